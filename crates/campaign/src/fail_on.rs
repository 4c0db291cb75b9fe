//! Limits for `--fail-on`, such as `dropped>0.1%` or `p99>200ms`.

use std::str::FromStr;

use crate::load_result::LoadReport;
use rolldrop_explain::model::figure_text::{count, counted, either};
use rolldrop_explain::model::{CheckVerdict, Percentiles};
use rolldrop_record::Outcome;
use rolldrop_record::expect::LatencyFigure;
use rolldrop_record::load::duration;

/// One limit.
#[derive(Clone, Debug)]
pub struct FailOn {
    text: String,
    metric: FailOnMetric,
    limit: f64,
}

#[derive(Clone, Copy, Debug)]
enum FailOnMetric {
    /// A number of requests.
    Count(CountedRequests),
    /// The same count, as a percentage of all scheduled requests.
    Percent(CountedRequests),
    /// Percentile of the response time (closed loop: service time), in milliseconds.
    LatencyMs(LatencyFigure),
    /// Longest response time (closed loop: service time), in milliseconds.
    LongestMs,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum CountedRequests {
    Dropped,
    AppErrors,
    Of(Outcome),
}

/// Latencies that a limit may name.
const LATENCIES: [(&str, FailOnMetric); 5] = [
    ("p50", FailOnMetric::LatencyMs(LatencyFigure::P50)),
    ("p90", FailOnMetric::LatencyMs(LatencyFigure::P90)),
    ("p99", FailOnMetric::LatencyMs(LatencyFigure::P99)),
    ("p99.9", FailOnMetric::LatencyMs(LatencyFigure::P99_9)),
    ("max", FailOnMetric::LongestMs),
];

impl FailOn {
    /// Checks the result against the limit. The text explains a verdict other than a pass.
    pub fn check(&self, report: &LoadReport) -> (CheckVerdict, String) {
        let requests = &report.requests;
        let times = report.latency_ms.response.as_ref().unwrap_or(&report.latency_ms.service);
        let times = &times.percentiles;
        let number = |which| match which {
            CountedRequests::Dropped => requests.by_class.dropped,
            CountedRequests::AppErrors => requests.by_class.app_errors,
            CountedRequests::Of(outcome) => requests.by_outcome.get(&outcome).copied().unwrap_or(0),
        };
        let told = |verdict, why: String| (verdict, format!("--fail-on {}: {why}", self.text));
        let (observed, unit) = match self.metric {
            FailOnMetric::Count(which) => (number(which) as f64, " requests"),
            FailOnMetric::Percent(which) => {
                (100.0 * number(which) as f64 / requests.total.max(1) as f64, " %")
            }
            // Without any response, the limit counts as exceeded.
            FailOnMetric::LatencyMs(_) | FailOnMetric::LongestMs if times.n == 0 => {
                return told(CheckVerdict::Fail, "no request was answered".to_owned());
            }
            FailOnMetric::LatencyMs(figure) => match times.known(figure) {
                Some(ms) => (ms, " ms"),
                None => return told(CheckVerdict::Inconclusive, too_few(times.n, figure)),
            },
            FailOnMetric::LongestMs => (times.max, " ms"),
        };
        match observed > self.limit {
            true => told(CheckVerdict::Fail, format!("{observed:.3}{unit}")),
            false => (CheckVerdict::Pass, String::new()),
        }
    }
}

/// Explains why a percentile of `answers` responses is unknown.
fn too_few(answers: u64, figure: LatencyFigure) -> String {
    format!(
        "unknown, because only {} {} answered; this percentile needs {}: run a longer load, or raise its rate",
        counted(answers, "request"),
        either(answers, "was", "were"),
        count(Percentiles::fewest(figure))
    )
}

impl FromStr for FailOn {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (metric, limit) = text.split_once('>')?;
            let (metric, limit) = (metric.trim(), limit.trim());
            if let Some((_, metric)) = LATENCIES.iter().find(|(name, _)| *name == metric) {
                let limit = duration(limit)?.as_secs_f64() * 1e3;
                return Some(Self { text: text.to_owned(), metric: *metric, limit });
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
    use rolldrop_load::{Load, LoadSummary, Plan, Tally};
    use rolldrop_record::Stamp;

    /// Returns the result of a load with this many responses, each after 1 s.
    fn report(answers: u64) -> LoadReport {
        let mut tally = Tally::default();
        for _ in 0..answers {
            tally.outcomes.add(Outcome::Ok, 1);
            tally.response_ns.record(1_000_000_000);
            tally.service_ns.record(1_000_000_000);
        }
        let summary = LoadSummary {
            sources: vec!["load-0".into()],
            started: Stamp::from_unix_ns(0),
            ended: Stamp::from_unix_ns(1_000_000_000),
            scheduled: answers,
            stopped_early: false,
            tally,
            seconds: Vec::new(),
            ports: None,
        };
        LoadReport::new(&Plan::new(Load::new("http://web/")).unwrap().load_plan(), &summary, None)
    }

    #[test]
    fn percentile_of_few_answers_is_inconclusive() {
        let check = |limit: &str, answers| limit.parse::<FailOn>().unwrap().check(&report(answers));
        let few = "--fail-on p99>200ms: unknown, because only 99 requests were answered; this percentile needs 100: \
                   run a longer load, or raise its rate";
        assert_eq!(check("p99>200ms", 99), (CheckVerdict::Inconclusive, few.to_owned()));
        for (limit, answers, verdict) in [
            ("p99>200ms", 100, CheckVerdict::Fail),
            ("p99>2s", 100, CheckVerdict::Pass),
            ("p99>2s", 99, CheckVerdict::Inconclusive),
            ("p99>2s", 0, CheckVerdict::Fail),
            ("p50>2s", 1, CheckVerdict::Inconclusive),
            ("p99.9>2s", 999, CheckVerdict::Inconclusive),
            ("max>200ms", 1, CheckVerdict::Fail),
            ("max>2s", 1, CheckVerdict::Pass),
            ("dropped>0", 1, CheckVerdict::Pass),
        ] {
            assert_eq!(check(limit, answers).0, verdict, "{limit} with {answers}");
        }
        assert!(check("p50>2s", 1).1.contains("only 1 request was answered"));
    }

    #[test]
    fn limit_accepts_counts_percentages_and_durations() {
        let parsed = |text: &str| text.parse::<FailOn>().map(|limit| (limit.metric, limit.limit));
        let (percent, limit) = parsed("dropped>0.1%").unwrap();
        assert!(matches!(percent, FailOnMetric::Percent(CountedRequests::Dropped)) && limit == 0.1);
        let (refused, limit) = parsed("connect_refused > 3").unwrap();
        let is_refused = matches!(refused, FailOnMetric::Count(CountedRequests::Of(Outcome::ConnectRefused)));
        assert!(is_refused && limit == 3.0);
        let (latency, limit) = parsed("p99.9>1s").unwrap();
        assert!(matches!(latency, FailOnMetric::LatencyMs(LatencyFigure::P99_9)) && limit == 1000.0);
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
