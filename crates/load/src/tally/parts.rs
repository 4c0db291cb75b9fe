//! Counts and histograms of a part of the requests: the parts of a service time, and the requests of one target.

use std::collections::BTreeMap;

use super::{Counts, ErrorStatuses, Times, is_answered, merge};
use rolldrop_record::RequestRow;

/// Durations of the parts of service times, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    /// From the start of connecting until the connection was established.
    pub connect_ns: Times,
    /// From then on, the TLS handshake.
    pub tls_ns: Times,
    /// From sending until the complete head of the answer had arrived, of answered requests.
    pub head_ns: Times,
}

impl Parts {
    pub(super) fn add(&mut self, row: &RequestRow) {
        if let (Some(start), Some(connected)) = (row.connect_start, row.connected) {
            self.connect_ns.record(connected.ns_since(start));
        }
        if let (Some(connected), Some(tls)) = (row.connected, row.tls) {
            self.tls_ns.record(tls.ns_since(connected));
        }
        if let (Some(sent), Some(head), true) = (row.sent, row.head, is_answered(row)) {
            self.head_ns.record(head.ns_since(sent));
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.connect_ns.merge(&other.connect_ns);
        self.tls_ns.merge(&other.tls_ns);
        self.head_ns.merge(&other.head_ns);
    }
}

/// Counts and histograms of the requests of the counted part that went to one target.
#[derive(Clone, Debug, Default)]
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
    pub response_ns: Times,
    /// Service times of the same requests, in nanoseconds.
    pub service_ns: Times,
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
            self.response_ns.record(row.response_ns());
            self.service_ns.record(service_ns);
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.outcomes.merge(&other.outcomes);
        self.error_statuses.merge(&other.error_statuses);
        merge(&mut self.statuses, &other.statuses);
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        self.response_ns.merge(&other.response_ns);
        self.service_ns.merge(&other.service_ns);
    }
}
