//! Counts and histograms of a part of the requests: the parts of a service time, and the requests of one target.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use super::{Counts, ErrorStatuses, add, histogram, is_answered, merge, record};
use rolldrop_record::RequestRow;

/// Durations of the parts of service times, in nanoseconds.
#[derive(Clone, Debug)]
pub struct Parts {
    /// From the start of connecting until the connection was established.
    pub connect_ns: Histogram<u64>,
    /// From then on, the TLS handshake.
    pub tls_ns: Histogram<u64>,
    /// From sending until the complete head of the answer had arrived, of answered requests.
    pub head_ns: Histogram<u64>,
}

impl Default for Parts {
    fn default() -> Self {
        Self { connect_ns: histogram(), tls_ns: histogram(), head_ns: histogram() }
    }
}

impl Parts {
    pub(super) fn add(&mut self, row: &RequestRow) {
        if let (Some(start), Some(connected)) = (row.connect_start, row.connected) {
            record(&mut self.connect_ns, connected.ns_since(start));
        }
        if let (Some(connected), Some(tls)) = (row.connected, row.tls) {
            record(&mut self.tls_ns, tls.ns_since(connected));
        }
        if let (Some(sent), Some(head), true) = (row.sent, row.head, is_answered(row)) {
            record(&mut self.head_ns, head.ns_since(sent));
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        add(&mut self.connect_ns, &other.connect_ns);
        add(&mut self.tls_ns, &other.tls_ns);
        add(&mut self.head_ns, &other.head_ns);
    }
}

/// Counts and histograms of the requests of the counted part that went to one target.
#[derive(Clone, Debug)]
pub struct OfTarget {
    /// Requests, by outcome.
    pub outcomes: Counts,
    /// Statuses of complete answers outside the success set.
    pub error_statuses: ErrorStatuses,
    /// HTTP statuses of all complete answers.
    pub statuses: BTreeMap<u16, u64>,
    /// Bytes written.
    pub bytes_sent: u64,
    /// Bytes read.
    pub bytes_received: u64,
    /// Response times of the answered requests, in nanoseconds.
    pub response_ns: Histogram<u64>,
    /// Service times of the same requests, in nanoseconds.
    pub service_ns: Histogram<u64>,
}

impl Default for OfTarget {
    fn default() -> Self {
        Self {
            outcomes: Counts::default(),
            error_statuses: ErrorStatuses::default(),
            statuses: BTreeMap::new(),
            bytes_sent: 0,
            bytes_received: 0,
            response_ns: histogram(),
            service_ns: histogram(),
        }
    }
}

impl OfTarget {
    pub(super) fn add(&mut self, row: &RequestRow) {
        self.outcomes.add(row.outcome, 1);
        self.error_statuses.add(row);
        self.bytes_sent += row.bytes_sent;
        self.bytes_received += row.bytes_received;
        if !is_answered(row) {
            return;
        }
        if let Some(status) = row.status {
            *self.statuses.entry(status).or_default() += 1;
        }
        if let Some(service_ns) = row.service_ns() {
            record(&mut self.response_ns, row.response_ns());
            record(&mut self.service_ns, service_ns);
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.outcomes.merge(&other.outcomes);
        self.error_statuses.merge(&other.error_statuses);
        merge(&mut self.statuses, &other.statuses);
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        add(&mut self.response_ns, &other.response_ns);
        add(&mut self.service_ns, &other.service_ns);
    }
}
