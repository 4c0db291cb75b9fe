//! Counters for finished requests, in Prometheus format.

use std::time::Duration;

use super::ProxyState;
use super::budget::Unrecorded;
use rolldrop_record::ServedEnd;
use rolldrop_record::event::ProxyPhase;
use rolldrop_record::metrics_text::{MetricKind, MetricsFormat, MetricsText};

/// Name for the time before the first phase.
const SERVING: &str = "serving";
/// Upper bounds of the latency buckets, in microseconds; one more bucket is unbounded.
const BOUNDS_US: [u64; 15] = [
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000,
];

/// Counts over the proxy's lifetime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyCounts {
    /// Requests recorded.
    pub recorded: u64,
    /// Rows sent to a collector, each counted once.
    pub handed_over: u64,
    /// Rows that were dropped, oldest first, because no collector fetched them in time.
    pub dropped: u64,
    /// Requests that the proxy itself rejected, for example because their end was ambiguous; they have no row.
    pub rejected: u64,
    /// Client connections closed so that others could be accepted.
    pub made_room: u64,
    /// Requests and other items passed on unrecorded, by reason.
    unrecorded: [u64; Unrecorded::ALL.len()],
    /// The latest phase reached.
    pub phase: Option<ProxyPhase>,
    /// Requests, by the phase in which they ended (the first entry is before all phases) and by outcome.
    ended: [[u64; ServedEnd::ALL.len()]; ProxyPhase::ALL.len() + 1],
    latency: Latency,
}

/// Distribution of request durations, from head to end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Latency {
    /// Number of requests by bucket; each request is in exactly one.
    buckets: [u64; BOUNDS_US.len() + 1],
    sum_ns: u64,
}

impl ProxyCounts {
    /// Returns the number of recorded rows, plus those that should have been recorded but were not.
    pub fn with_unrecorded(&self) -> u64 {
        self.recorded + self.unrecorded.iter().sum::<u64>()
    }

    /// Counts an item that was passed on unrecorded.
    pub(super) fn unrecorded(&mut self, why: Unrecorded) {
        self.unrecorded[why as usize] += 1;
    }

    /// Counts a finished request or connection. A connection without a head has no latency.
    pub(super) fn ended(&mut self, end: ServedEnd, took_ns: Option<i64>) {
        self.ended[self.phase.map_or(0, |phase| phase as usize + 1)][end as usize] += 1;
        if let Some(took_ns) = took_ns.and_then(|ns| u64::try_from(ns).ok()) {
            let bucket = BOUNDS_US.partition_point(|bound_us| bound_us * 1000 < took_ns);
            self.latency.buckets[bucket] += 1;
            self.latency.sum_ns += took_ns;
        }
    }
}

/// Returns the proxy's counts and current values in Prometheus' text format.
pub(super) fn text(proxy: &ProxyState) -> String {
    let counts = proxy.journal.counts();
    let mut text = MetricsText::new(MetricsFormat::Prometheus);
    let requests = "rolldrop_proxy_requests_total";
    text.family(
        requests,
        MetricKind::Counter,
        "Finished requests (TLS and TCP: connections), by outcome and phase of the pod's termination.",
    );
    for (phase, ends) in phases().zip(&counts.ended) {
        // Open responses have not ended.
        for (end, count) in ServedEnd::ALL.iter().zip(ends).filter(|(end, _)| **end != ServedEnd::Open) {
            text.sample(requests, &[("outcome", end.as_str()), ("phase", phase)], *count);
        }
    }
    let name = "rolldrop_proxy_request_duration_seconds";
    text.family(name, MetricKind::Histogram, "Time from a request's head to its end.");
    let bounds_s = BOUNDS_US.iter().map(|bound_us| Duration::from_micros(*bound_us).as_secs_f64());
    let Latency { buckets, sum_ns } = &counts.latency;
    text.histogram(name, &[], bounds_s, buckets, Duration::from_nanos(*sum_ns).as_secs_f64());
    for (name, help, count) in [
        (
            "rolldrop_proxy_rejected_total",
            "Requests that the proxy itself rejected; they have no row.",
            counts.rejected,
        ),
        (
            "rolldrop_proxy_made_room_total",
            "Client connections closed so that others could be accepted.",
            counts.made_room,
        ),
        (
            "rolldrop_proxy_rows_handed_over_total",
            "Rows sent to a collector, each counted once.",
            counts.handed_over,
        ),
        (
            "rolldrop_proxy_rows_dropped_total",
            "Rows dropped because no collector fetched them in time.",
            counts.dropped,
        ),
    ] {
        text.family(name, MetricKind::Counter, help);
        text.sample(name, &[], count);
    }
    let name = "rolldrop_proxy_unrecorded_total";
    text.family(name, MetricKind::Counter, "Requests and connections passed on unrecorded, by reason.");
    for (why, count) in Unrecorded::ALL.iter().zip(counts.unrecorded) {
        text.sample(name, &[("reason", why.as_str())], count);
    }
    for (name, help, value) in [
        ("rolldrop_proxy_in_flight", "Requests in flight.", proxy.in_flight.count()),
        ("rolldrop_proxy_connections", "Open client connections.", proxy.open.count()),
        ("rolldrop_proxy_held_bytes", "Bytes of the shared budget held by connections.", proxy.pool.used()),
    ] {
        text.family(name, MetricKind::Gauge, help);
        text.sample(name, &[], value);
    }
    let name = "rolldrop_proxy_phase";
    text.family(name, MetricKind::Gauge, "1 for the latest phase of the pod's termination.");
    let current = counts.phase.map_or(SERVING, ProxyPhase::as_str);
    for phase in phases() {
        text.sample(name, &[("phase", phase)], u8::from(phase == current));
    }
    text.finish()
}

/// Returns the names of the phases, and of the time before them.
fn phases() -> impl Iterator<Item = &'static str> {
    std::iter::once(SERVING).chain(ProxyPhase::ALL.iter().map(|phase| phase.as_str()))
}
