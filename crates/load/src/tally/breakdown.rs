//! Counts and histograms of subsets: the parts of service times, and the requests to each target.

use std::collections::BTreeMap;

use super::{ErrorStatuses, OutcomeCounts, Times, is_answered, merge};
use rolldrop_record::RequestRow;

/// Durations of the parts of service times, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct ServiceTimeParts {
    /// Time from the start of connecting until the connection is established.
    pub connect_ns: Times,
    /// Duration of the TLS handshake, which follows connecting.
    pub tls_ns: Times,
    /// Time from sending until the complete response head has arrived, for requests with a complete response.
    pub head_ns: Times,
}

impl ServiceTimeParts {
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

/// Counts and histograms of the requests in the counted part that were sent to one target.
#[derive(Clone, Debug, Default)]
pub struct TargetTally {
    /// Request counts by outcome.
    pub outcomes: OutcomeCounts,
    /// Counts of the statuses of complete responses outside the success set.
    pub error_statuses: ErrorStatuses,
    /// Counts of the HTTP statuses of all complete responses.
    pub statuses: BTreeMap<u16, u64>,
    /// Number of bytes written.
    pub bytes_sent: u64,
    /// Number of bytes read.
    pub bytes_received: u64,
    /// Response times of the requests with a complete response, in nanoseconds.
    pub response_ns: Times,
    /// Service times of the requests with a complete response, in nanoseconds.
    pub service_ns: Times,
}

impl TargetTally {
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
