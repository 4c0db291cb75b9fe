//! Request figures beyond counts: latencies, bytes, statuses, and figures per target and per second.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::classes::ByClass;
use rolldrop_explain::model::Percentiles;
use rolldrop_load::{LoadSecond, Recent, Tally, TargetTally};
use rolldrop_record::Outcome;

/// Distribution of durations, in milliseconds.
#[derive(Debug, Serialize)]
pub(crate) struct Distribution {
    pub(super) min: f64,
    pub(super) p75: f64,
    #[serde(flatten)]
    pub(crate) percentiles: Percentiles,
}

impl Distribution {
    /// Returns the distribution of values in nanoseconds.
    pub(super) fn of_ns(ns: &Histogram<u64>) -> Self {
        let min = if ns.is_empty() { 0.0 } else { ns.min() as f64 / 1e6 };
        Self { min, p75: ns.value_at_quantile(0.75) as f64 / 1e6, percentiles: Percentiles::of_ns(ns) }
    }

    /// Returns the distribution, or `None` if there are no values.
    fn of_some(ns: &Histogram<u64>) -> Option<Self> {
        (!ns.is_empty()).then(|| Self::of_ns(ns))
    }
}

/// Latency distributions of the requests.
#[derive(Debug, Serialize)]
pub(crate) struct LoadLatencies {
    /// Time from the intended send time; `None` in a closed loop, which has no such time.
    pub(crate) response: Option<Distribution>,
    /// Time from the actual send time, as in result.json.
    pub(crate) service: Distribution,
    /// Time until a new connection was established; `None` if there was none.
    pub(super) connect: Option<Distribution>,
    /// Duration of the TLS handshake on a new connection.
    pub(super) tls: Option<Distribution>,
    /// Time from sending until the complete response head arrived.
    pub(super) head: Option<Distribution>,
}

impl LoadLatencies {
    pub(super) fn new(tally: &Tally, is_closed_loop: bool) -> Self {
        Self {
            response: (!is_closed_loop).then(|| Distribution::of_ns(&tally.response_ns)),
            service: Distribution::of_ns(&tally.service_ns),
            connect: Distribution::of_some(&tally.parts.connect_ns),
            tls: Distribution::of_some(&tally.parts.tls_ns),
            head: Distribution::of_some(&tally.parts.head_ns),
        }
    }

    /// Returns the non-empty distributions with their names.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&'static str, &Distribution)> {
        let Self { response, service, connect, tls, head } = self;
        let service = (service.percentiles.n > 0).then_some(service);
        let response = response.as_ref().filter(|response| response.percentiles.n > 0);
        let parts = [("connect", connect.as_ref()), ("tls", tls.as_ref()), ("head", head.as_ref())];
        let all = [("response", response), ("service", service)].into_iter().chain(parts);
        all.filter_map(|(name, of)| Some((name, of?)))
    }
}

/// Bytes in heads and bodies, without TLS overhead.
#[derive(Debug, Serialize)]
pub(super) struct Bytes {
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) sent_per_s: f64,
    pub(super) received_per_s: f64,
}

impl Bytes {
    pub(super) fn new(sent: u64, received: u64, duration_s: f64) -> Self {
        let per_s = |n: u64| if duration_s > 0.0 { n as f64 / duration_s } else { 0.0 };
        Self { sent, received, sent_per_s: per_s(sent), received_per_s: per_s(received) }
    }
}

/// Figures for the requests to one target.
#[derive(Debug, Serialize)]
pub(super) struct TargetFigures {
    pub(super) name: String,
    pub(super) total: u64,
    #[serde(flatten)]
    pub(super) by_class: ByClass,
    by_outcome: BTreeMap<Outcome, u64>,
    pub(super) statuses: BTreeMap<u16, u64>,
    pub(super) bytes: Bytes,
    pub(super) response_ms: Option<Distribution>,
    pub(super) service_ms: Distribution,
}

impl TargetFigures {
    pub(super) fn new(name: &str, of: &TargetTally, is_closed_loop: bool, duration_s: f64) -> Self {
        Self {
            name: name.to_owned(),
            total: of.outcomes.total(),
            by_class: ByClass::of(&of.outcomes, &of.error_statuses),
            by_outcome: of.outcomes.iter().collect(),
            statuses: of.statuses.clone(),
            bytes: Bytes::new(of.bytes_sent, of.bytes_received, duration_s),
            response_ms: (!is_closed_loop).then(|| Distribution::of_ns(&of.response_ns)),
            service_ms: Distribution::of_ns(&of.service_ns),
        }
    }
}

/// Requests that finished in one second of the counted part.
#[derive(Debug, Serialize)]
pub(super) struct SecondFigures {
    /// Number of the second, counted from `start`.
    second: i64,
    total: u64,
    #[serde(flatten)]
    by_class: ByClass,
    bytes_received: u64,
    response_ms: Option<SecondQuantiles>,
    service_ms: Option<SecondQuantiles>,
}

#[derive(Debug, Serialize)]
struct SecondQuantiles {
    p50: f64,
    p99: f64,
}

impl SecondQuantiles {
    fn of(recent: Recent) -> Self {
        Self { p50: recent.p50.as_secs_f64() * 1e3, p99: recent.p99.as_secs_f64() * 1e3 }
    }
}

impl SecondFigures {
    pub(super) fn new(second: &LoadSecond, is_closed_loop: bool) -> Self {
        Self {
            second: second.number,
            total: second.outcomes.total(),
            by_class: ByClass::of(&second.outcomes, &second.error_statuses),
            bytes_received: second.bytes_received,
            response_ms: second.response.filter(|_| !is_closed_loop).map(SecondQuantiles::of),
            service_ms: second.service.map(SecondQuantiles::of),
        }
    }
}
