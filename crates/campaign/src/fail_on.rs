//! Limits for `--fail-on`, such as `dropped>0.1%` or `p99>200ms`.

use std::str::FromStr;

use crate::load_result::LoadReport;
use rolldrop_record::Outcome;
use rolldrop_record::load::duration;

/// One limit.
#[derive(Clone, Debug, PartialEq)]
pub struct FailOn {
    text: String,
    metric: FailOnMetric,
    limit: f64,
}

#[derive(Clone, Debug, PartialEq)]
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

#[derive(Clone, Copy, Debug, PartialEq)]
enum Percentile {
    P50,
    P90,
    P99,
    P999,
    Max,
}

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
                let p = report.latency_ms.response.as_ref().unwrap_or(&report.latency_ms.service);
                let p = &p.percentiles;
                let value = match percentile {
                    Percentile::P50 => p.p50,
                    Percentile::P90 => p.p90,
                    Percentile::P99 => p.p99,
                    Percentile::P999 => p.p99_9,
                    Percentile::Max => p.max,
                };
                (value, " ms")
            }
        };
        // Without a single response, the latency does not count as within the limit.
        let is_unknown =
            matches!(self.metric, FailOnMetric::LatencyMs(_)) && report.latency_ms.service.percentiles.n == 0;
        if is_unknown {
            return Some(format!("--fail-on {}: no request was answered", self.text));
        }
        (observed > self.limit).then(|| format!("--fail-on {}: {observed:.3}{unit}", self.text))
    }
}

impl FromStr for FailOn {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (metric, limit) = text.split_once('>')?;
            let (metric, limit) = (metric.trim(), limit.trim());
            let percentile = match metric {
                "p50" => Some(Percentile::P50),
                "p90" => Some(Percentile::P90),
                "p99" => Some(Percentile::P99),
                "p99.9" => Some(Percentile::P999),
                "max" => Some(Percentile::Max),
                _ => None,
            };
            if let Some(percentile) = percentile {
                let limit = duration(limit)?.as_secs_f64() * 1e3;
                return Some(Self {
                    text: text.to_owned(),
                    metric: FailOnMetric::LatencyMs(percentile),
                    limit,
                });
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
    fn limit_parses_counts_percentages_and_durations() {
        let parsed = |text: &str| text.parse::<FailOn>().map(|limit| (limit.metric, limit.limit));
        assert_eq!(parsed("dropped>0.1%"), Ok((FailOnMetric::Percent(CountedRequests::Dropped), 0.1)));
        let refused = CountedRequests::Of(Outcome::ConnectRefused);
        assert_eq!(parsed("connect_refused > 3"), Ok((FailOnMetric::Count(refused), 3.0)));
        assert_eq!(parsed("p99.9>1s"), Ok((FailOnMetric::LatencyMs(Percentile::P999), 1000.0)));
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
