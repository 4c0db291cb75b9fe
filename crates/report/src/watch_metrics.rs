//! Metrics of `rolldrop watch`: counts over the terminations that it has reported, by workload.
//!
//! No label names a pod, and the number of workloads is limited, so the number of series is too (docs/watch.md).

use std::collections::BTreeMap;

use rolldrop_explain::model::{TerminationTraffic, WatchedMode, WatchedTermination};
use rolldrop_record::metrics_text::{Exemplar, MetricKind, MetricsFormat, MetricsText};
use rolldrop_record::{Cause, Stamp};

/// Maximum number of workloads with their own series.
pub const MAX_WORKLOADS: usize = 1000;
/// Upper bounds of the windows' buckets, in seconds.
const WINDOW_BOUNDS_S: [f64; 10] = [0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0];
/// Upper bounds of the terminations' buckets, in seconds.
const TERMINATION_BOUNDS_S: [f64; 10] = [1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0];
/// Namespace and name of the workloads above the limit; no object can have this name.
const OTHERS: &str = "(others)";
/// Name of the workload of a pod without a controller.
const NO_CONTROLLER: &str = "(no controller)";

rolldrop_record::named! {
    /// Effect of a termination on requests.
    enum TerminationResult {
        /// The logs show all requests to the pod, and none was lost.
        Clean = "clean",
        /// More requests were certainly lost than would be expected without the termination.
        Lost = "lost",
        /// Neither of these is certain, for example because there are no logs.
        Unobserved = "unobserved",
    }
}

impl From<Option<&TerminationTraffic>> for TerminationResult {
    fn from(traffic: Option<&TerminationTraffic>) -> Self {
        let Some(traffic) = traffic else { return Self::Unobserved };
        match traffic.lost.at_least > traffic.background_at_most() {
            true => Self::Lost,
            false if traffic.lost.at_most == 0 && shows_all(traffic) => Self::Clean,
            false => Self::Unobserved,
        }
    }
}

rolldrop_record::named! {
    /// Certainty of a count of requests.
    enum CountEvidence {
        /// The count is exact.
        Exact = "exact",
        /// There may be more requests.
        AtLeast = "at_least",
    }
}

/// Returns true if the logs show what became of each request to the pod.
fn shows_all(traffic: &TerminationTraffic) -> bool {
    traffic.gaps.is_empty() && traffic.not_observable == 0
}

/// Counts over terminations.
#[derive(Debug, Default)]
pub struct WatchMetrics(BTreeMap<(String, String), WorkloadMetrics>);

/// State of a source of the watch: a watched resource, or a gateway's log.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SourceHealth {
    /// True if all of it is being read.
    pub is_up: bool,
    /// Total length of the periods in which changes or lines may have been missed, in seconds.
    pub gap_s: f64,
    /// Number of lines that could not be read; `None` for a source without lines.
    pub unread: Option<u64>,
}

/// Number of requests, with the pod that was counted last.
#[derive(Debug, Default)]
struct RequestCount {
    total: u64,
    last: Option<Exemplar>,
}

impl RequestCount {
    fn add(&mut self, of_pod: Exemplar) {
        self.total += of_pod.value;
        self.last = Some(of_pod);
    }
}

#[derive(Debug, Default)]
struct WorkloadMetrics {
    terminations: BTreeMap<(WatchedMode, TerminationResult), u64>,
    lost: BTreeMap<(Cause, CountEvidence), RequestCount>,
    streams_cut: BTreeMap<CountEvidence, RequestCount>,
    masked: BTreeMap<CountEvidence, RequestCount>,
    windows: Distribution<{ WINDOW_BOUNDS_S.len() + 1 }>,
    durations: Distribution<{ TERMINATION_BOUNDS_S.len() + 1 }>,
    grace_exceeded: u64,
    pre_stop_failed: u64,
    terminating: u64,
}

/// Counts by bucket; the last bucket has no upper bound.
#[derive(Debug)]
struct Distribution<const BUCKETS: usize> {
    counts: [u64; BUCKETS],
    sum_s: f64,
}

impl<const BUCKETS: usize> Default for Distribution<BUCKETS> {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], sum_s: 0.0 }
    }
}

impl<const BUCKETS: usize> Distribution<BUCKETS> {
    fn add(&mut self, bounds_s: &[f64], value_s: f64) {
        self.counts[bounds_s.partition_point(|bound_s| *bound_s < value_s)] += 1;
        self.sum_s += value_s;
    }
}

impl WorkloadMetrics {
    fn add(&mut self, now: Stamp, end: &WatchedTermination) {
        let traffic = end.traffic.as_ref();
        *self.terminations.entry((end.mode, traffic.into())).or_default() += 1;
        self.grace_exceeded += u64::from(end.killed_at_grace_end == Some(true));
        self.pre_stop_failed += u64::from(end.failed_hooks.as_ref().is_some_and(|failed| !failed.is_empty()));
        if let Some(used) = end.grace_use {
            self.durations.add(&TERMINATION_BOUNDS_S, used.likely_s);
        }
        let Some(traffic) = traffic else { return };
        let longest = traffic.windows.iter().filter_map(|window| window.lower_s).max_by(f64::total_cmp);
        if let Some(longest_s) = longest.filter(|longest_s| *longest_s > 0.0) {
            self.windows.add(&WINDOW_BOUNDS_S, longest_s);
        }
        let evidence = |is_exact: bool| match is_exact && shows_all(traffic) {
            true => CountEvidence::Exact,
            false => CountEvidence::AtLeast,
        };
        let of_pod = |value: u64| Exemplar { pod: end.pod.clone(), value, at: now };
        for (cause, lost) in traffic.by_cause.iter().filter(|(_, lost)| lost.at_least > 0) {
            let key = (*cause, evidence(lost.is_exact()));
            self.lost.entry(key).or_default().add(of_pod(lost.at_least));
        }
        let counts = [
            (&mut self.streams_cut, traffic.streams_cut.unwrap_or_default()),
            (&mut self.masked, traffic.saved_by_retries.unwrap_or_default()),
        ];
        for (counted, requests) in counts.into_iter().filter(|(_, requests)| requests.at_least > 0) {
            let key = evidence(requests.is_exact());
            counted.entry(key).or_default().add(of_pod(requests.at_least));
        }
    }
}

impl WatchMetrics {
    /// Counts a termination that is reported at `now`.
    pub fn add(&mut self, now: Stamp, end: &WatchedTermination) {
        self.workload_mut(&end.namespace, end.workload.as_deref()).add(now, end);
    }

    /// Returns true if there are more workloads than may have series of their own.
    pub fn has_others(&self) -> bool {
        self.0.len() > MAX_WORKLOADS
    }

    fn workload_mut(&mut self, namespace: &str, workload: Option<&str>) -> &mut WorkloadMetrics {
        let mut key = (namespace.to_owned(), workload.unwrap_or(NO_CONTROLLER).to_owned());
        if self.0.len() >= MAX_WORKLOADS && !self.0.contains_key(&key) {
            key = (OTHERS.to_owned(), OTHERS.to_owned());
        }
        self.0.entry(key).or_default()
    }

    /// Sets the number of pods that are terminating now, by namespace and workload.
    pub fn set_terminating(&mut self, terminating: BTreeMap<(String, Option<String>), u64>) {
        self.0.values_mut().for_each(|workload| workload.terminating = 0);
        for ((namespace, workload), pods) in terminating {
            self.workload_mut(&namespace, workload.as_deref()).terminating += pods;
        }
    }

    /// Renders all metrics, with the states of the sources by name.
    pub fn render<'s>(
        &self,
        format: MetricsFormat,
        sources: impl IntoIterator<Item = (&'s str, SourceHealth)>,
    ) -> String {
        let mut page = WatchMetricsPage { text: MetricsText::new(format), workloads: &self.0 };
        page.terminations();
        page.requests();
        page.durations();
        page.sources(&sources.into_iter().collect::<Vec<_>>());
        page.text.finish()
    }
}

struct WatchMetricsPage<'a> {
    text: MetricsText,
    workloads: &'a BTreeMap<(String, String), WorkloadMetrics>,
}

impl<'a> WatchMetricsPage<'a> {
    /// Begins a metric, and returns the workloads with their labels.
    fn family(
        &mut self,
        name: &str,
        kind: MetricKind,
        help: &str,
    ) -> impl Iterator<Item = ([(&'static str, &'a str); 2], &'a WorkloadMetrics)> + use<'a> {
        self.text.family(name, kind, help);
        let labels = |(namespace, workload): &'a (String, String)| {
            [("namespace", namespace.as_str()), ("workload", workload.as_str())]
        };
        self.workloads.iter().map(move |(name, metrics)| (labels(name), metrics))
    }

    fn terminations(&mut self) {
        let name = "rolldrop_terminations_total";
        let help = "Terminations of pods, by the effect on requests that gateways logged.";
        for (of, metrics) in self.family(name, MetricKind::Counter, help) {
            for ((mode, result), count) in &metrics.terminations {
                let labels = [("mode", mode.as_str()), ("result", result.as_str())];
                self.text.sample(name, &[of, labels].concat(), count);
            }
        }
        let name = "rolldrop_grace_exceeded_total";
        let help = "Pods that SIGKILL terminated at the end of their grace period.";
        for (of, metrics) in self.family(name, MetricKind::Counter, help) {
            self.text.sample(name, &of, metrics.grace_exceeded);
        }
        let name = "rolldrop_prestop_failed_total";
        let help = "Terminated pods with a failed preStop hook.";
        for (of, metrics) in self.family(name, MetricKind::Counter, help) {
            self.text.sample(name, &of, metrics.pre_stop_failed);
        }
        let name = "rolldrop_terminating";
        for (of, metrics) in self.family(name, MetricKind::Gauge, "Pods that are being deleted now.") {
            self.text.sample(name, &of, metrics.terminating);
        }
    }

    fn requests(&mut self) {
        let name = "rolldrop_lost_requests_total";
        let help = "Minimum number of requests that terminating pods lost for gateways' clients.";
        for (of, metrics) in self.family(name, MetricKind::Counter, help) {
            for ((cause, evidence), count) in &metrics.lost {
                let labels = [("cause", cause.as_str()), ("evidence", evidence.as_str())];
                self.text.sample_with(name, &[of, labels].concat(), count.total, count.last.as_ref());
            }
        }
        let name = "rolldrop_streams_cut_total";
        let help =
            "Minimum number of lost requests whose responses had begun, such as downloads and streams.";
        self.by_evidence(name, help, |metrics| &metrics.streams_cut);
        let name = "rolldrop_masked_requests_total";
        let help =
            "Minimum number of requests that failed at terminating pods and that gateways' retries saved.";
        self.by_evidence(name, help, |metrics| &metrics.masked);
    }

    fn by_evidence(
        &mut self,
        name: &str,
        help: &str,
        counts: fn(&WorkloadMetrics) -> &BTreeMap<CountEvidence, RequestCount>,
    ) {
        for (of, metrics) in self.family(name, MetricKind::Counter, help) {
            for (evidence, count) in counts(metrics) {
                let labels = [&of[..], &[("evidence", evidence.as_str())]].concat();
                self.text.sample_with(name, &labels, count.total, count.last.as_ref());
            }
        }
    }

    fn durations(&mut self) {
        let name = "rolldrop_window_seconds";
        let help = "Lower bound of the time for which gateways used a pod after its deletion.";
        for (of, WorkloadMetrics { windows, .. }) in self.family(name, MetricKind::Histogram, help) {
            self.text.histogram(name, &of, WINDOW_BOUNDS_S, &windows.counts, windows.sum_s);
        }
        let name = "rolldrop_termination_seconds";
        let help = "Time from a pod's deletion until all of its containers had terminated.";
        for (of, WorkloadMetrics { durations, .. }) in self.family(name, MetricKind::Histogram, help) {
            self.text.histogram(name, &of, TERMINATION_BOUNDS_S, &durations.counts, durations.sum_s);
        }
    }

    fn sources(&mut self, sources: &[(&str, SourceHealth)]) {
        let text = &mut self.text;
        let name = "rolldrop_evidence_up";
        text.family(name, MetricKind::Gauge, "1 if all of a watched resource or a log is being read.");
        for (source, health) in sources {
            text.sample(name, &[("source", source)], u8::from(health.is_up));
        }
        let name = "rolldrop_watch_gap_seconds_total";
        let help = "Length of the periods in which changes or lines may have been missed.";
        text.family(name, MetricKind::Counter, help);
        for (source, health) in sources {
            text.sample(name, &[("source", source)], health.gap_s);
        }
        let name = "rolldrop_lines_unread_total";
        text.family(name, MetricKind::Counter, "Lines of a log that could not be read.");
        for (source, unread) in sources.iter().filter_map(|(source, health)| Some((source, health.unread?))) {
            text.sample(name, &[("source", source)], unread);
        }
    }
}

#[cfg(test)]
mod tests {
    use rolldrop_explain::model::{Bounded, GraceUse, LogGap, Window};

    use super::*;

    /// Maximum number of series per workload: terminations by mode and result, lost requests by cause and evidence,
    /// streams cut and masked requests by evidence, both histograms with sum and count, and three others.
    const MAX_SERIES_OF_WORKLOAD: usize = WatchedMode::ALL.len() * TerminationResult::ALL.len()
        + (Cause::ALL.len() + 2) * CountEvidence::ALL.len()
        + (WINDOW_BOUNDS_S.len() + 3)
        + (TERMINATION_BOUNDS_S.len() + 3)
        + 3;

    fn at(s: i64) -> Stamp {
        Stamp::from_unix_ns(s * 1_000_000_000)
    }

    /// Returns the termination of a pod of this workload, with this traffic.
    fn end(workload: &str, traffic: Option<TerminationTraffic>) -> WatchedTermination {
        WatchedTermination {
            workload: Some(workload.to_owned()),
            pod: "web-1".to_owned(),
            grace_use: Some(GraceUse { least_s: 1.5, likely_s: 2.0, most_s: 2.5 }),
            killed_at_grace_end: Some(false),
            failed_hooks: None,
            traffic,
            ..crate::watch_lines::tests::end()
        }
    }

    fn lost(bounds: Bounded) -> TerminationTraffic {
        let by_cause = BTreeMap::from([(Cause::GatewayToDeadPod, bounds)]);
        let background = Some(Bounded::default());
        TerminationTraffic {
            requests: 10,
            lost: bounds,
            by_cause,
            background,
            ..TerminationTraffic::default()
        }
    }

    fn between(at_least: u64, at_most: u64) -> Bounded {
        Bounded { at_least, at_most, estimate: at_least as f64 }
    }

    fn gap() -> LogGap {
        LogGap { source: "edge".to_owned(), from_ns: at(1), to_ns: None, why: None }
    }

    fn window(lower_s: Option<f64>) -> Window {
        serde_json::from_value(serde_json::json!({"consumer": "edge", "lower_s": lower_s, "upper_s": null,
            "lower_basis": null, "upper_basis": null, "censored": null, "rate_before": 0.0, "late_arrivals": 0}))
        .expect("a window")
    }

    #[test]
    fn result_is_certain_or_unobserved() {
        let none = || lost(Bounded::default());
        let gaps = |traffic| TerminationTraffic { gaps: vec![gap()], ..traffic };
        let hidden = |traffic| TerminationTraffic { not_observable: 1, ..traffic };
        let expecting =
            |at_most, traffic| TerminationTraffic { background: Some(between(0, at_most)), ..traffic };
        let without_background = |traffic| TerminationTraffic { background: None, ..traffic };
        for (traffic, result) in [
            (None, TerminationResult::Unobserved),
            (Some(without_background(none())), TerminationResult::Clean),
            (Some(without_background(lost(between(9, 9)))), TerminationResult::Unobserved),
            (Some(none()), TerminationResult::Clean),
            (Some(gaps(none())), TerminationResult::Unobserved),
            (Some(hidden(none())), TerminationResult::Unobserved),
            (Some(lost(between(0, 1))), TerminationResult::Unobserved),
            (Some(lost(between(1, 9))), TerminationResult::Lost),
            (Some(gaps(lost(between(1, 1)))), TerminationResult::Lost),
            (Some(expecting(2, lost(between(2, 2)))), TerminationResult::Unobserved),
            (Some(expecting(2, lost(between(3, 3)))), TerminationResult::Lost),
        ] {
            assert_eq!(TerminationResult::from(traffic.as_ref()), result, "{traffic:?}");
        }
    }

    #[test]
    fn counters_hold_lower_bounds_with_evidence() {
        let mut metrics = WatchMetrics::default();
        metrics.add(at(200), &end("Deployment web", Some(lost(Bounded::exactly(7)))));
        metrics.add(at(201), &end("Deployment web", Some(lost(between(2, 9)))));
        let cut = TerminationTraffic { streams_cut: Some(Bounded::exactly(6)), ..lost(Bounded::exactly(7)) };
        metrics.add(at(200), &end("Deployment api", Some(cut)));
        let mut missing = lost(Bounded::exactly(3));
        (missing.gaps, missing.saved_by_retries) = (vec![gap()], Some(Bounded::exactly(4)));
        missing.windows = vec![window(None), window(Some(0.4)), window(Some(3.0))];
        metrics.add(at(202), &end("Deployment web", Some(missing)));
        let killed = end("Deployment web", None);
        metrics.add(at(203), &WatchedTermination { killed_at_grace_end: Some(true), ..killed });
        metrics.set_terminating(BTreeMap::from([(("shop".to_owned(), None), 2)]));
        let health = SourceHealth { is_up: true, gap_s: 1.5, unread: Some(3) };
        let text = metrics.render(MetricsFormat::OpenMetrics, [("edge/deployment/envoy", health)]);
        let web = r#"namespace="shop",workload="Deployment web""#;
        for line in [
            format!(r#"rolldrop_terminations_total{{{web},mode="rollout",result="lost"}} 3"#),
            format!(r#"rolldrop_terminations_total{{{web},mode="rollout",result="unobserved"}} 1"#),
            format!(
                r#"rolldrop_lost_requests_total{{{web},cause="gateway_to_dead_pod",evidence="exact"}} 7 # {{pod="web-1"}} 7 200.000"#
            ),
            format!(
                r#"rolldrop_lost_requests_total{{{web},cause="gateway_to_dead_pod",evidence="at_least"}} 5 # {{pod="web-1"}} 3 202.000"#
            ),
            format!(
                r#"rolldrop_masked_requests_total{{{web},evidence="at_least"}} 4 # {{pod="web-1"}} 4 202.000"#
            ),
            r#"rolldrop_streams_cut_total{namespace="shop",workload="Deployment api",evidence="exact"} 6 # {pod="web-1"} 6 200.000"#
                .to_owned(),
            format!(r#"rolldrop_window_seconds_bucket{{{web},le="2.0"}} 0"#),
            format!(r#"rolldrop_window_seconds_bucket{{{web},le="5.0"}} 1"#),
            format!(r#"rolldrop_window_seconds_sum{{{web}}} 3"#),
            format!(r#"rolldrop_termination_seconds_bucket{{{web},le="1.0"}} 0"#),
            format!(r#"rolldrop_termination_seconds_bucket{{{web},le="2.0"}} 4"#),
            format!(r#"rolldrop_grace_exceeded_total{{{web}}} 1"#),
            format!(r#"rolldrop_terminating{{{web}}} 0"#),
            r#"rolldrop_terminating{namespace="shop",workload="(no controller)"} 2"#.to_owned(),
            r#"rolldrop_evidence_up{source="edge/deployment/envoy"} 1"#.to_owned(),
            r#"rolldrop_watch_gap_seconds_total{source="edge/deployment/envoy"} 1.5"#.to_owned(),
            r#"rolldrop_lines_unread_total{source="edge/deployment/envoy"} 3"#.to_owned(),
        ] {
            assert!(text.lines().any(|of| of == line), "{line}\n{text}");
        }
        let plain = metrics.render(MetricsFormat::Prometheus, []);
        assert!(!plain.contains("web-1") && !plain.contains("# EOF"), "{plain}");
    }

    #[test]
    fn series_stay_below_stated_limit() {
        let mut metrics = WatchMetrics::default();
        let series = |metrics: &WatchMetrics| {
            let text = metrics.render(MetricsFormat::Prometheus, []);
            text.lines().filter(|line| !line.starts_with('#')).count()
        };
        for number in 0..MAX_WORKLOADS + 50 {
            let name = format!("Deployment web-{number}\n\"");
            let causes = |bounds: Bounded| Cause::ALL.iter().map(move |cause| (*cause, bounds)).collect();
            let bounds = [between(0, 0), between(0, 1), between(1, 1), between(1, 2)];
            for (mode, bounds) in WatchedMode::ALL.iter().flat_map(|mode| bounds.map(|bounds| (mode, bounds)))
            {
                let mut traffic = lost(bounds);
                (traffic.by_cause, traffic.saved_by_retries) = (causes(bounds), Some(bounds));
                traffic.streams_cut = Some(bounds);
                metrics.add(at(1), &WatchedTermination { mode: *mode, ..end(&name, Some(traffic)) });
            }
            assert_eq!(metrics.has_others(), number >= MAX_WORKLOADS);
        }
        let most = (MAX_WORKLOADS + 1) * MAX_SERIES_OF_WORKLOAD;
        assert_eq!((series(&metrics), most), (most, 87_087), "docs/watch.md states it");
        metrics.set_terminating(BTreeMap::from([(("new".to_owned(), None), 1)]));
        assert_eq!(series(&metrics), most);
        let text = metrics.render(MetricsFormat::Prometheus, []);
        let others = r#"rolldrop_terminating{namespace="(others)",workload="(others)"} 1"#;
        assert!(text.lines().any(|line| line == others));
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'));
    }
}
