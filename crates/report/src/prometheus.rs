//! Renders the figures of a run as metrics in Prometheus' text format, for node_exporter's textfile collector.
//!
//! Names and units follow prometheus.io/docs/practices/naming: base units, with the unit as the last word of the name.
//! All metrics are gauges without timestamps, because the collector rejects timestamps and a run's counts do not
//! continue those of the previous run. The last line also makes the file valid OpenMetrics, for GitLab's metrics
//! report.

use std::fmt::Write as _;

use rolldrop_explain::model::{CheckVerdict, RunResult};
use rolldrop_judge::standing::Standing;
use rolldrop_record::metrics_text::label;

use super::words;

pub(super) fn render(result: &RunResult) -> String {
    let mut page = MetricsPage { out: String::new(), scenario: &result.scenario };
    verdicts(&mut page, result);
    requests(&mut page, result);
    terminations(&mut page, result);
    latencies(&mut page, result);
    page.out.push_str("# EOF\n");
    page.out
}

struct MetricsPage<'a> {
    out: String,
    scenario: &'a str,
}

impl MetricsPage<'_> {
    /// Writes a metric with its finite values; writes nothing if there are none.
    fn gauge<'l>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Vec<(&'l str, &'l str)>, f64)>,
    ) {
        let mut lines = String::new();
        for (labels, value) in values.into_iter().filter(|(_, value)| value.is_finite()) {
            let _ = write!(lines, "rolldrop_{name}{{scenario=\"{}\"", label(self.scenario));
            for (key, text) in labels {
                let _ = write!(lines, ",{key}=\"{}\"", label(text));
            }
            // Rounds to the nanosecond: further digits are rounding noise.
            let _ = writeln!(lines, "}} {}", (value * 1e9).round() / 1e9);
        }
        if !lines.is_empty() {
            let _ = write!(self.out, "# HELP rolldrop_{name} {help}\n# TYPE rolldrop_{name} gauge\n{lines}");
        }
    }

    /// Writes a metric that has a single value.
    fn one(&mut self, name: &str, help: &str, value: f64) {
        self.gauge(name, help, [(Vec::new(), value)]);
    }
}

const fn flag(is_so: bool) -> f64 {
    if is_so { 1.0 } else { 0.0 }
}

fn verdicts(page: &mut MetricsPage<'_>, result: &RunResult) {
    let of = Standing::of(result);
    let states = Standing::ALL.iter().map(|state| (vec![("verdict", state.as_str())], flag(*state == of)));
    page.gauge("gate_verdict", "Verdict of the run as a gate: 1 for its verdict, 0 for the others.", states);
    let verdicts = [CheckVerdict::Pass, CheckVerdict::Fail, CheckVerdict::Inconclusive];
    let checks = result.checks.iter().flat_map(|check| {
        let value = |verdict| flag(check.verdict == verdict);
        let labels =
            |verdict: CheckVerdict| vec![("check", check.name.as_str()), ("verdict", verdict.as_str())];
        verdicts.map(|verdict| (labels(verdict), value(verdict)))
    });
    page.gauge("check_verdict", "Verdict of each check: 1 for its verdict, 0 for the others.", checks);
    let build =
        vec![("version", result.tool.version.as_str()), ("kubernetes", result.cluster.version.as_str())];
    page.gauge("build", "The program and the cluster that it measured; always 1.", [(build, 1.0)]);
}

fn requests(page: &mut MetricsPage<'_>, result: &RunResult) {
    let requests = &result.requests;
    let by_outcome =
        requests.by_outcome.iter().map(|(outcome, n)| (vec![("outcome", outcome.as_str())], *n as f64));
    page.gauge("requests", "Scheduled requests of the run, by outcome.", by_outcome);
    page.one(
        "dropped_requests",
        "Requests that were lost because of infrastructure.",
        requests.lost() as f64,
    );
    let by_cause = requests.by_cause.iter().map(|(cause, n)| (vec![("cause", cause.as_str())], *n as f64));
    page.gauge("cause_dropped_requests", "Dropped requests, by cause.", by_cause);
    let share = words::dropped_share(result);
    page.one("dropped_ratio", "Dropped requests as a share of all, from 0 to 1.", share);
    page.one(
        "app_error_requests",
        "Requests that the app answered with an error status.",
        requests.app_errors as f64,
    );
    page.one("load_duration_seconds", "Duration of the load.", result.load.duration_s);
    page.one(
        "longest_outage_seconds",
        "Longest time in which every request failed; a lower bound if requests still failed when the load ended.",
        result.longest_outage_s,
    );
}

fn terminations(page: &mut MetricsPage<'_>, result: &RunResult) {
    page.one("terminations", "Pods that ended during the run.", result.terminations.len() as f64);
    let windows = result.windows_s.iter().filter_map(|window| {
        let labels = vec![("consumer", window.consumer.as_str()), ("mode", window.mode.as_str())];
        Some((labels, window.max?))
    });
    let help = "Largest upper bound of an endpoint-propagation window.";
    page.gauge("window_max_seconds", help, windows);
    let sleeps = result.recommendation.iter().filter_map(|recommended| {
        Some((vec![("mode", recommended.mode.as_str())], recommended.pre_stop_seconds? as f64))
    });
    page.gauge("recommended_pre_stop_seconds", "Recommended preStop sleep.", sleeps);
}

fn latencies(page: &mut MetricsPage<'_>, result: &RunResult) {
    let all =
        if result.load.is_closed_loop() { &result.latency_ms.service } else { &result.latency_ms.response };
    let parts =
        [("all", all), ("steady", &result.latency_ms.steady), ("disrupted", &result.latency_ms.disrupted)];
    let values = parts.into_iter().filter(|(_, part)| part.n > 0).flat_map(|(name, part)| {
        let figures = words::PERCENTILES.into_iter().zip(["50", "90", "99", "99.9"]);
        figures.filter_map(move |(figure, percentile)| {
            Some((vec![("part", name), ("percentile", percentile)], part.known(figure)? / 1000.0))
        })
    });
    let (what, _) = words::latency(&result.load);
    let help =
        format!("Percentiles of the {what}: for all requests, while no pod ended, and while a pod ended.");
    page.gauge("latency_seconds", &help, values);
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    #[test]
    fn figures_are_gauges_in_base_units() {
        let metrics = render(&samples::naive_exit().result);
        for line in [
            "# TYPE rolldrop_dropped_requests gauge",
            "rolldrop_dropped_requests{scenario=\"naive-exit\"} 24",
            "rolldrop_dropped_ratio{scenario=\"naive-exit\"} 0.002666667",
            "rolldrop_requests{scenario=\"naive-exit\",outcome=\"connect_refused\"} 24",
            "rolldrop_cause_dropped_requests{scenario=\"naive-exit\",cause=\"routed_to_dead_pod\"} 24",
            "rolldrop_latency_seconds{scenario=\"naive-exit\",part=\"steady\",percentile=\"99\"} 0.00443",
            "rolldrop_load_duration_seconds{scenario=\"naive-exit\"} 30",
            "rolldrop_terminations{scenario=\"naive-exit\"} 3",
        ] {
            assert_eq!(metrics.lines().filter(|l| *l == line).count(), 1, "{line}: {metrics}");
        }
        assert!(metrics.ends_with("\n# EOF\n"), "{metrics}");
    }

    #[test]
    fn metrics_omit_unknowns_and_escape_names() {
        let mut result = samples::partial().result;
        result.scenario = "a\"b\\c".into();
        result.longest_outage_s = f64::NAN;
        let metrics = render(&result);
        assert!(
            metrics.contains("rolldrop_gate_verdict{scenario=\"a\\\"b\\\\c\",verdict=\"partial\"} 1\n"),
            "{metrics}"
        );
        for absent in ["longest_outage", "window_max", "recommended", "NaN", " inf\n"] {
            assert!(!metrics.contains(absent), "{absent}: {metrics}");
        }
    }
}
