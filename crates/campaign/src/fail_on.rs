//! Limits for `--fail-on`, such as `dropped>0.1%` or `p99>200ms`.

use std::str::FromStr;

use crate::load_result::LoadReport;
use rolldrop_explain::model::Percentiles;
use rolldrop_record::Outcome;
use rolldrop_record::load::duration;

/// One limit.
#[derive(Clone, Debug)]
pub struct FailOn {
    text: String,
    metric: FailOnMetric,
    limit: f64,
}

#[derive(Clone, Debug)]
enum FailOnMetric {
    /// A number of requests.
    Count(CountedRequests),
    /// The same count, as a percentage of all scheduled requests.
    Percent(CountedRequests),
    /// Percentile of the response time (closed loop: service time), in milliseconds.
    LatencyMs(Percentile),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum CountedRequests {
    Dropped,
    AppErrors,
    Of(Outcome),
}

/// Reads one percentile.
type Percentile = fn(&Percentiles) -> f64;

/// Latency percentiles that a limit may name.
const PERCENTILES: [(&str, Percentile); 5] =
    [("p50", |p| p.p50), ("p90", |p| p.p90), ("p99", |p| p.p99), ("p99.9", |p| p.p99_9), ("max", |p| p.max)];

impl FailOn {
    /// Describes the violation if the result exceeds the limit, or returns `None`.
    pub fn exceeded(&self, report: &LoadReport) -> Option<String> {
        let requests = &report.requests;
        let count = |which| match which {
            CountedRequests::Dropped => requests.by_class.dropped,
            CountedRequests::AppErrors => requests.by_class.app_errors,
            CountedRequests::Of(outcome) => requests.by_outcome.get(&outcome).copied().unwrap_or(0),
        };
        let (observed, unit) = match self.metric {
            FailOnMetric::Count(which) => (count(which) as f64, " requests"),
            FailOnMetric::Percent(which) => {
                (100.0 * count(which) as f64 / requests.total.max(1) as f64, " %")
            }
            FailOnMetric::LatencyMs(percentile) => {
                // Without any response, the limit counts as exceeded.
                if report.latency_ms.service.percentiles.n == 0 {
                    return Some(format!("--fail-on {}: no request was answered", self.text));
                }
                let times = report.latency_ms.response.as_ref().unwrap_or(&report.latency_ms.service);
                (percentile(&times.percentiles), " ms")
            }
        };
        (observed > self.limit).then(|| format!("--fail-on {}: {observed:.3}{unit}", self.text))
    }
}

impl FromStr for FailOn {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (metric, limit) = text.split_once('>')?;
            let (metric, limit) = (metric.trim(), limit.trim());
            if let Some((_, percentile)) = PERCENTILES.iter().find(|(name, _)| *name == metric) {
                let metric = FailOnMetric::LatencyMs(*percentile);
                let limit = duration(limit)?.as_secs_f64() * 1e3;
                return Some(Self { text: text.to_owned(), metric, limit });
            }
            let requests = match metric {
                "dropped" => CountedRequests::Dropped,
                "app_errors" => CountedRequests::AppErrors,
                outcome => CountedRequests::Of(outcome.parse().ok()?),
            };
            let (metric, limit) = match limit.strip_suffix('%') {
                Some(percent) => (FailOnMetric::Percent(requests), percent.trim()),
                None => (FailOnMetric::Count(requests), limit),
            };
            // Reject a limit that cannot be exceeded.
            let most = if matches!(metric, FailOnMetric::Percent(_)) { 100.0 } else { f64::INFINITY };
            let limit: f64 = limit.parse().ok().filter(|limit| (0.0..most).contains(limit))?;
            Some(Self { text: text.to_owned(), metric, limit })
        };
        parse().ok_or_else(|| {
            "expected METRIC>LIMIT, such as dropped>0.1% or p99>200ms. dropped, app_errors and outcomes take a \
             number or a percentage; p50, p90, p99, p99.9 and max take a duration"
                .to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_accepts_counts_percentages_and_durations() {
        let parsed = |text: &str| text.parse::<FailOn>().map(|limit| (limit.metric, limit.limit));
        let (percent, limit) = parsed("dropped>0.1%").unwrap();
        assert!(matches!(percent, FailOnMetric::Percent(CountedRequests::Dropped)) && limit == 0.1);
        let (refused, limit) = parsed("connect_refused > 3").unwrap();
        let is_refused = matches!(refused, FailOnMetric::Count(CountedRequests::Of(Outcome::ConnectRefused)));
        assert!(is_refused && limit == 3.0);
        let (latency, limit) = parsed("p99.9>1s").unwrap();
        assert!(matches!(latency, FailOnMetric::LatencyMs(_)) && limit == 1000.0);
        for wrong in [
            "dropped",
            "dropped>many",
            "dropped>-1",
            "dropped>inf",
            "dropped>100%",
            "p99>200",
            "p95>1s",
            "lost>1",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
