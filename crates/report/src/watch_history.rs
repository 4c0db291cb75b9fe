//! Report on a `rolldrop watch` history: the workloads, worst first, and the share of the time for which the history
//! shows how pods ended.

mod watch_series;

use std::collections::{BTreeMap, BTreeSet};

use maud::html;
use serde::Serialize;

use super::charts::watch_chart;
use super::charts::{Chart, DrawError};
use super::format::{counted, either, len, long_time, percent, rfc3339_seconds, wrap};
use super::html::{self, HtmlCell};
use super::markdown;
use super::watch_lines::{
    PODS, RankingTable, WIDTH, WatchInterruption, WatchOutput, WatchedSpan, WorkloadRemedy, interruption,
    missing_right, ranking_lines, remedies,
};
use rolldrop_explain::count::workload_ranking::{RankedWorkload, WorkloadRanking};
use rolldrop_record::{Stamp, shown};
use watch_series::{HourOfWatch, hours};

/// Version of the report's JSON.
const REPORT_VERSION: u32 = 1;
/// Maximum number of unwatched periods, and of interruptions, that are listed in formats other than JSON.
const LISTED: usize = 10;

/// Time within which a watch records that it has been watching: it waits up to 75 s for lines in gateway logs, and
/// up to half a minute for the next sign of life on its connection.
const RECORDED_WITHIN_NS: i64 = 300_000_000_000;

type Span = (Stamp, Stamp);

/// Period that a gate judges.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct JudgedTime {
    /// Beginning of the period.
    pub from_ns: Stamp,
    /// End of the period; if a watch is running, the end of what it has recorded.
    pub to_ns: Stamp,
    /// Time, in seconds, for which it is not known which pods ended.
    pub unwatched_s: f64,
}

/// Collects the records of a history.
#[derive(Debug)]
pub struct WatchHistory {
    since: Option<Stamp>,
    until: Stamp,
    first: Option<Stamp>,
    ranking: WorkloadRanking,
    /// Watched periods, by scope.
    watched: BTreeMap<Option<String>, Vec<Span>>,
    clusters: BTreeSet<String>,
    gaps: Vec<WatchInterruption>,
    missing_rights: BTreeMap<String, String>,
    /// Losses and kills, by the hour in which they were recorded.
    by_hour: BTreeMap<i64, HourOfWatch>,
}

impl WatchHistory {
    /// Creates an empty history for the period from `since`, by default from the first record, to `until`.
    pub fn new(since: Option<Stamp>, until: Stamp) -> Self {
        Self {
            since,
            until,
            first: None,
            ranking: WorkloadRanking::default(),
            watched: BTreeMap::new(),
            clusters: BTreeSet::new(),
            gaps: Vec::new(),
            missing_rights: BTreeMap::new(),
            by_hour: BTreeMap::new(),
        }
    }

    /// Adds a line that was written at this time. Lines must be added in the order written.
    ///
    /// # Errors
    /// Fails if the line is not a record.
    pub fn add(&mut self, recorded: Stamp, line: &[u8]) -> Result<(), serde_json::Error> {
        self.take(recorded, &WatchOutput::read(line)?);
        Ok(())
    }

    /// Returns true if the report covers this time.
    pub fn covers(&self, at: Stamp) -> bool {
        self.since.is_none_or(|since| since <= at)
    }

    /// Adds a record that was written at this time.
    pub fn take(&mut self, recorded: Stamp, record: &WatchOutput) {
        match record {
            WatchOutput::Termination(end) if self.covers(recorded) => {
                self.first = Some(self.first.map_or(recorded, |first| first.min(recorded)));
                self.ranking.add(end);
                let hour = self.by_hour.entry(hours(recorded)).or_default();
                hour.killed += u64::from(end.killed_at_grace_end == Some(true));
                end.traffic.iter().for_each(|traffic| hour.lost.merge(&traffic.lost));
            }
            WatchOutput::Gap(gap) if self.covers(gap.to_ns) => self.gaps.push(gap.clone()),
            WatchOutput::NotWatched { resource, why } if self.covers(recorded) => {
                self.missing_rights.insert(resource.clone(), why.clone());
            }
            WatchOutput::Watched(WatchedSpan { from_ns, to_ns, namespace, cluster })
                if self.covers(*to_ns) =>
            {
                self.first = Some(self.first.map_or(*from_ns, |first| first.min(*from_ns)));
                if !self.clusters.contains(cluster) {
                    self.clusters.insert(cluster.clone());
                }
                let spans = self.watched.entry(namespace.clone()).or_default();
                match spans.last_mut() {
                    Some((_, until)) if until == from_ns => *until = *to_ns,
                    _ => spans.push((*from_ns, *to_ns)),
                }
            }
            _ => {}
        }
    }

    /// Returns the watched and unwatched periods, by scope.
    fn scopes(&self, whole: Span) -> Vec<WatchedScope> {
        self.watched.keys().map(|namespace| self.scope(namespace.as_deref(), whole)).collect()
    }

    fn scope(&self, namespace: Option<&str>, whole: Span) -> WatchedScope {
        let hidden = self.gaps.iter().filter(|gap| gap.is_lost && gap.resource == PODS);
        let hidden: Vec<Span> = hidden.map(|gap| (gap.from_ns, gap.to_ns)).collect();
        // A watch of all namespaces also watches this one.
        let own = namespace.and_then(|namespace| self.watched.get(&Some(namespace.to_owned())));
        let spans = own.into_iter().chain(self.watched.get(&None)).flatten().copied().collect();
        WatchedScope::new(namespace.map(|of| shown::one_line(of).into_owned()), whole, spans, &hidden)
    }

    /// Returns the period that a gate judges, and the longest time for which it is not known which pods ended in one of
    /// these namespaces; if none are given, in one of the watched scopes.
    pub fn judged_time(&self, namespaces: &BTreeSet<String>) -> JudgedTime {
        let from = self.since.or(self.first).unwrap_or(self.until);
        let last = self.watched.values().flatten().map(|(_, to)| *to).max();
        let is_recent = |last: &Stamp| *last > from && self.until.ns_since(*last) <= RECORDED_WITHIN_NS;
        let to = last.filter(is_recent).unwrap_or(self.until);
        let scopes = match namespaces.is_empty() && !self.watched.is_empty() {
            true => self.scopes((from, to)),
            false if namespaces.is_empty() => vec![self.scope(None, (from, to))],
            false => namespaces.iter().map(|namespace| self.scope(Some(namespace), (from, to))).collect(),
        };
        let unwatched_s =
            scopes.iter().map(|scope| to.seconds_since(from) - scope.watched_s).fold(0.0, f64::max);
        JudgedTime { from_ns: from, to_ns: to, unwatched_s }
    }

    /// Returns the report. `skipped` describes records that could not be read.
    pub fn report(self, skipped: Vec<String>) -> WatchReport {
        let from = self.since.or(self.first).unwrap_or(self.until);
        let watched = self.scopes((from, self.until));
        // Other programs may have written to the directory.
        let workloads = self.ranking.ranked().into_iter().map(|of| shown::values(&of).into_owned());
        let plain = |text: String| shown::one_line(&text).into_owned();
        let missing_rights = self.missing_rights.into_iter().map(|(of, why)| (plain(of), plain(why)));
        WatchReport {
            schema_version: REPORT_VERSION,
            from_ns: from,
            to_ns: self.until,
            clusters: self.clusters.into_iter().map(plain).collect(),
            watched,
            gaps: shown::values(&self.gaps).into_owned(),
            missing_rights: missing_rights.collect(),
            skipped: skipped.into_iter().map(plain).collect(),
            terminations: self.ranking.terminations(),
            by_hour: self.by_hour,
            workloads: workloads.map(|of| ReportedWorkload { remedies: remedies(&of), of }).collect(),
        }
    }
}

/// Report on a history. It is also the JSON output.
#[derive(Clone, Debug, Serialize)]
pub struct WatchReport {
    schema_version: u32,
    from_ns: Stamp,
    to_ns: Stamp,
    clusters: Vec<String>,
    watched: Vec<WatchedScope>,
    gaps: Vec<WatchInterruption>,
    /// Reasons given by the API server, by resource.
    missing_rights: BTreeMap<String, String>,
    skipped: Vec<String>,
    terminations: u64,
    #[serde(skip)]
    by_hour: BTreeMap<i64, HourOfWatch>,
    workloads: Vec<ReportedWorkload>,
}

/// A workload, with advice.
#[derive(Clone, Debug, Serialize)]
struct ReportedWorkload {
    #[serde(flatten)]
    of: RankedWorkload,
    remedies: Vec<WorkloadRemedy>,
}

/// Part of the report's period for which it is known how the pods of one namespace, or of all, ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct WatchedScope {
    namespace: Option<String>,
    watched_s: f64,
    share: f64,
    unwatched: Vec<UnwatchedSpan>,
}

/// Period for which it is not known which pods ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct UnwatchedSpan {
    from_ns: Stamp,
    to_ns: Stamp,
}

impl WatchedScope {
    fn new(namespace: Option<String>, whole: Span, mut watched: Vec<Span>, hidden: &[Span]) -> Self {
        watched.sort_unstable();
        let mut unwatched: Vec<Span> = hidden.to_vec();
        let mut known_until = whole.0;
        for (from, to) in watched {
            unwatched.push((known_until, from));
            known_until = known_until.max(to);
        }
        unwatched.push((known_until, whole.1));
        unwatched.retain_mut(|(from, to)| {
            (*from, *to) = ((*from).max(whole.0), (*to).min(whole.1));
            from < to
        });
        unwatched.sort_unstable();
        unwatched.dedup_by(|(from, to), (_, before)| {
            let overlaps = *from <= *before;
            if overlaps {
                *before = (*before).max(*to);
            }
            overlaps
        });
        let all_s = whole.1.seconds_since(whole.0);
        let missing_s: f64 = unwatched.iter().map(|(from, to)| to.seconds_since(*from)).sum();
        Self {
            namespace,
            watched_s: all_s - missing_s,
            share: if all_s > 0.0 { 1.0 - missing_s / all_s } else { 0.0 },
            unwatched: unwatched
                .into_iter()
                .map(|(from_ns, to_ns)| UnwatchedSpan { from_ns, to_ns })
                .collect(),
        }
    }

    fn sentence(&self) -> String {
        let of = match &self.namespace {
            Some(namespace) => format!("namespace {namespace}"),
            None => "all namespaces".to_owned(),
        };
        let (share, effect) = match self.unwatched.is_empty() {
            true => (self.share, ""),
            // Rounding must not hide that some time was unwatched.
            false => (self.share.min(0.999), "; terminations may be missing from the rest"),
        };
        format!("{of}: watched for {} of the time ({}){effect}", percent(share), long_time(self.watched_s))
    }
}

impl WatchReport {
    /// Returns the report as JSON.
    ///
    /// # Panics
    ///
    /// Never: the report contains only what JSON can represent.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data with names as keys") + "\n"
    }

    fn headline(&self) -> String {
        format!(
            "{} of {} from {} to {}",
            counted(self.terminations, "termination"),
            counted(len(self.workloads.len()), "workload"),
            rfc3339_seconds(self.from_ns),
            rfc3339_seconds(self.to_ns)
        )
    }

    /// Returns sentences about what the history knows, and does not know.
    fn knowledge(&self) -> Vec<String> {
        let mut sentences: Vec<String> =
            self.clusters.iter().map(|cluster| format!("cluster: {cluster}")).collect();
        if self.watched.is_empty() {
            sentences.push("no watch is known to have run in this period".to_owned());
        }
        for scope in &self.watched {
            sentences.push(scope.sentence());
            let mut listed: Vec<&UnwatchedSpan> = scope.unwatched.iter().collect();
            listed.sort_by_key(|span| std::cmp::Reverse(span.to_ns.ns_since(span.from_ns)));
            listed.truncate(LISTED);
            listed.sort_by_key(|span| span.from_ns);
            sentences.extend(listed.iter().map(|span| {
                let (from, to) = (rfc3339_seconds(span.from_ns), rfc3339_seconds(span.to_ns));
                format!(
                    "not watched from {from} to {to} ({})",
                    long_time(span.to_ns.seconds_since(span.from_ns))
                )
            }));
            sentences.extend(more(scope.unwatched.len(), "shorter period"));
        }
        sentences.extend(self.gaps.iter().rev().take(LISTED).map(interruption));
        sentences.extend(more(self.gaps.len(), "earlier interruption"));
        sentences.extend(self.missing_rights.iter().map(|(resource, why)| missing_right(resource, why)));
        sentences.extend(self.skipped.iter().cloned());
        sentences
    }

    fn table(&self) -> RankingTable {
        RankingTable::new(self.workloads.iter().map(|of| &of.of))
    }

    /// Returns the report for a terminal.
    pub fn text(&self) -> String {
        let mut lines = vec![self.headline()];
        lines.extend(self.knowledge().iter().flat_map(|sentence| wrap(sentence, WIDTH)));
        lines.extend(ranking_lines(&self.workloads.iter().map(|of| of.of.clone()).collect::<Vec<_>>()));
        lines.push(String::new());
        lines.join("\n")
    }

    /// Returns the report as Markdown.
    pub fn markdown(&self) -> String {
        let mut out = String::new();
        markdown::section(&mut out, "# rolldrop watch");
        markdown::section(&mut out, &format!("**{}**", markdown::escape(&self.headline())));
        let items = |sentences: &[String]| {
            let items = sentences.iter().map(|sentence| format!("- {}", markdown::escape(sentence)));
            items.collect::<Vec<_>>().join("\n")
        };
        markdown::section(&mut out, &items(&self.knowledge()));
        if !self.workloads.is_empty() {
            let table = self.table();
            let rows = table.rows.iter().map(|row| row.iter().map(|cell| markdown::escape(cell)).collect());
            markdown::table(&mut out, &table.header, &table.numbers(), rows);
        }
        let advice = self.workloads.iter().flat_map(|of| &of.remedies).map(|remedy| {
            remedy.sentence.clone()
                + &remedy.command.as_ref().map(|command| format!(" {command}")).unwrap_or_default()
        });
        markdown::section(&mut out, &items(&advice.collect::<Vec<_>>()));
        out
    }

    /// Draws the workloads that lose most, and when that happened.
    ///
    /// # Errors
    ///
    /// No history should cause an error; see [`DrawError`].
    pub fn chart(&self) -> Result<Chart, DrawError> {
        watch_chart::draw(&self.series())
    }

    /// Returns the report as a self-contained page with the chart.
    pub fn html(&self, chart: &Chart) -> String {
        let table = self.table();
        let rows = table.rows.into_iter().map(|row| {
            let cell = |(column, text): (usize, String)| match column {
                0 => HtmlCell::head(&text),
                _ => HtmlCell::number(text),
            };
            row.into_iter().enumerate().map(cell).collect()
        });
        let remedies: Vec<&WorkloadRemedy> = self.workloads.iter().flat_map(|of| &of.remedies).collect();
        let body = html! {
            p.answer { (self.headline()) }
            (html::figure(chart))
            ul { @for sentence in self.knowledge() { li { (sentence) } } }
            @if !self.workloads.is_empty() { (html::table("Workloads", "", &table.header, rows)) }
            @if !remedies.is_empty() {
                h2 { "Remedies" }
                @for remedy in remedies {
                    p { (remedy.sentence) }
                    @if let Some(command) = &remedy.command { pre { (command) } }
                }
            }
        };
        html::page("rolldrop watch", &body, concat!("rolldrop ", env!("CARGO_PKG_VERSION")))
    }
}

/// Returns a sentence about the items that are not listed.
fn more(n: usize, what: &str) -> Option<String> {
    let rest = n.checked_sub(LISTED).map(len).filter(|rest| *rest > 0)?;
    Some(format!("and {} that {} not listed", counted(rest, what), either(rest, "is", "are")))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::workload_notes;
    use rolldrop_explain::model::{Bounded, Cause, TerminationTraffic};

    fn at(s: i64) -> Stamp {
        Stamp::from_unix_ns((1_767_366_245 + s) * 1_000_000_000)
    }

    fn watched(from: i64, to: i64, namespace: Option<&str>) -> WatchOutput {
        let (from_ns, to_ns, namespace) = (at(from), at(to), namespace.map(str::to_owned));
        WatchOutput::Watched(WatchedSpan { from_ns, to_ns, namespace, cluster: "context x at y".to_owned() })
    }

    fn gap(resource: &str, from: i64, to: i64, is_lost: bool) -> WatchOutput {
        let (from_ns, to_ns) = (at(from), at(to));
        WatchOutput::Gap(WatchInterruption { resource: resource.to_owned(), from_ns, to_ns, is_lost })
    }

    fn end(pod: &str) -> WatchOutput {
        let end = json!({"kind": "termination", "namespace": "shop", "workload": format!("Deployment {pod}"), "pod": pod,
            "uid": pod, "node": null, "mode": "rollout", "cause": null, "t0_earliest_ns": 0, "t0_latest_ns": 1,
            "t0_basis": "timestamp", "grace_s": 30, "pre_stop_sleep_s": 0, "ended_ns": null,
            "grace_use": {"least_s": 29.0, "likely_s": 30.1, "most_s": 31.0}, "killed_at_grace_end": true,
            "containers": [], "restarts": 0, "failed_hooks": ["app"], "ready_while_terminating_s": null,
            "of_tomorrow": 1});
        serde_json::from_value(end).unwrap()
    }

    fn report(since: Option<i64>, records: &[(i64, WatchOutput)]) -> WatchReport {
        let mut history = WatchHistory::new(since.map(at), at(100));
        records
            .iter()
            .for_each(|(recorded, line)| history.add(at(*recorded), line.json().as_bytes()).unwrap());
        history.report(Vec::new())
    }

    /// Returns the watched share, and the unwatched periods in seconds.
    fn scope(report: &WatchReport, index: usize) -> (f64, Vec<(i64, i64)>) {
        let scope = &report.watched[index];
        let seconds = |stamp: Stamp| stamp.ns_since(at(0)) / 1_000_000_000;
        let unwatched = scope.unwatched.iter().map(|span| (seconds(span.from_ns), seconds(span.to_ns)));
        ((scope.share * 1000.0).round() / 1000.0, unwatched.collect())
    }

    #[test]
    fn report_states_unwatched_times() {
        let records = [
            (20, watched(0, 20, None)),
            (30, watched(20, 30, None)),
            (40, gap("pods", 22, 25, true)),
            (41, gap("pods", 26, 27, false)),
            (41, gap("nodes", 26, 27, true)),
            (60, watched(50, 60, Some("shop"))),
            // The clock was set back.
            (58, watched(55, 70, None)),
        ];
        let whole = report(None, &records);
        assert_eq!(scope(&whole, 0), (0.42, vec![(22, 25), (30, 55), (70, 100)]));
        assert_eq!(scope(&whole, 1), (0.47, vec![(22, 25), (30, 50), (70, 100)]), "shop");
        let late = report(Some(60), &records);
        assert_eq!(scope(&late, 0), (0.25, vec![(70, 100)]));
        let text = whole.text();
        for part in [
            "0 terminations of 0 workloads from 2026-01-02T15:04:05Z to 2026-01-02T15:05:45Z",
            "all namespaces: watched for 42 % of the time (42.0 s); terminations may be missing from the rest",
            "not watched from 2026-01-02T15:05:15Z to 2026-01-02T15:05:45Z (30.0 s)",
            "the watch of pods was interrupted from 2026-01-02T15:04:31Z",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        let nothing = report(None, &[]);
        assert!(
            nothing.text().contains("no watch is known to have run in this period"),
            "{}",
            nothing.text()
        );
        let complete = report(Some(0), &[(100, watched(0, 100, None))]).text();
        assert!(complete.contains("watched for 100 % of the time (100.0 s)\n"), "{complete}");
        let nearly = report(None, &[(100, watched(-1_000_000, 99, None))]).text();
        assert!(nearly.contains("watched for 99.9 % of the time (11.6 days);"), "{nearly}");
    }

    #[test]
    fn judged_time_ends_with_running_watch() {
        let time = |since: Option<i64>, until: i64, records: &[(i64, WatchOutput)], namespaces: &[&str]| {
            let mut history = WatchHistory::new(since.map(at), at(until));
            records.iter().for_each(|(recorded, record)| history.take(at(*recorded), record));
            let time = history.judged_time(&namespaces.iter().map(|of| (*of).to_owned()).collect());
            let seconds = |stamp: Stamp| stamp.ns_since(at(0)) / 1_000_000_000;
            (seconds(time.from_ns), seconds(time.to_ns), time.unwatched_s)
        };
        let watch = [(900, watched(0, 900, Some("shop")))];
        assert_eq!(time(None, 1000, &watch, &[]), (0, 900, 0.0), "it is still running");
        assert_eq!(time(None, 2000, &watch, &[]), (0, 2000, 1100.0), "it has ended");
        assert_eq!(time(Some(-50), 1000, &watch, &["shop"]), (-50, 900, 50.0));
        assert_eq!(time(Some(0), 1000, &watch, &["shop", "bank"]), (0, 900, 900.0));
        assert_eq!(time(Some(950), 1000, &watch, &[]), (950, 1000, 50.0), "nothing is recorded yet");
        assert_eq!(time(Some(0), 1000, &[], &[]), (0, 1000, 1000.0));
        let all = [watch[0].clone(), (950, watched(500, 950, None)), (950, gap("pods", 600, 610, true))];
        assert_eq!(time(Some(0), 1000, &all, &["shop"]), (0, 950, 10.0));
        assert_eq!(time(Some(0), 1000, &all, &["bank"]), (0, 950, 510.0));
    }

    #[test]
    fn long_list_of_unwatched_times_is_cut() {
        let records: Vec<_> = (0..14).map(|n| (7 * n, watched(7 * n, 7 * n + 1, None))).collect();
        let text = report(None, &records).text();
        assert_eq!(text.matches("not watched from").count(), LISTED, "{text}");
        assert!(text.contains("and 4 shorter periods that are not listed"), "{text}");
    }

    #[test]
    fn report_formats_escape_names() {
        let hostile = "<b>|*x*\u{1b}[31m";
        let records = [(1, end("web")), (2, end(hostile)), (3, watched(0, 100, None))];
        let report = report(None, &records);
        let json: Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(json["schema_version"], 1);
        assert_eq!(
            (&json["terminations"], &json["workloads"][0]["killed_at_grace_end"]),
            (&json!(2), &json!(1))
        );
        let remedies = json["workloads"][0]["remedies"].as_array().unwrap();
        assert_eq!((remedies.len(), json["watched"][0]["share"].as_f64()), (2, Some(1.0)));
        let (text, markdown, html) =
            (report.text(), report.markdown(), report.html(&report.chart().unwrap()));
        for shown in [&text, &markdown, &html, &report.json()] {
            assert!(!shown.contains('\u{1b}') && shown.contains("Deployment web"), "{shown}");
            assert!(
                shown.contains("terminationGracePeriodSeconds")
                    && shown.contains("kubectl get events -n shop")
            );
        }
        assert!(markdown.contains(r"| shop Deployment &lt;b>\|\*x\*\\u{1b}\[31m | 1 | 1 |"), "{markdown}");
        assert!(html.contains("shop Deployment &lt;b&gt;|*x*") && !html.contains("<b>"), "{html}");
    }

    #[test]
    fn reports_and_events_state_why_window_is_unresolved() {
        let shown = |has_beats: bool| {
            let WatchOutput::Termination(mut end) = end("web") else { panic!("a termination") };
            (end.t0_latest_ns, end.has_beats) = (end.t0_earliest_ns.shifted_ns(800_000_000), has_beats);
            let lost = Bounded::exactly(2);
            let window = json!({"consumer": "edge/envoy", "lower_s": null, "upper_s": 1.25, "lower_basis": null,
                "upper_basis": null, "censored": null, "rate_before": 1.0, "late_arrivals": 0});
            end.traffic = Some(TerminationTraffic {
                lost,
                by_cause: BTreeMap::from([(Cause::GatewayToDeadPod, lost)]),
                windows: vec![serde_json::from_value(window).unwrap()],
                ..TerminationTraffic::default()
            });
            let line = WatchOutput::Termination(end.clone()).text().unwrap();
            let report = report(None, &[(1, WatchOutput::Termination(end))]);
            let events = workload_notes(&report.workloads[0].of).into_iter().map(|note| note.message);
            let html = report.html(&report.chart().unwrap());
            let all = [line, report.text(), report.markdown(), html, report.json(), events.collect()];
            all.map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "))
        };
        for (without, with) in shown(false).iter().zip(shown(true)) {
            let part = "is not resolved, as";
            let (within, advice) = ("deletion is known only to within 0.800 s", "(add --beats)");
            assert!([part, within, advice].iter().all(|part| without.contains(part)), "{without}");
            assert!(with.contains(within) && !with.contains(advice), "{with}");
            assert!(!without.contains("1.250"), "{without}");
        }
    }

    #[test]
    fn report_formats_show_streams_cut() {
        let with = |pod: &str, cut: Option<Bounded>| {
            let WatchOutput::Termination(mut end) = end(pod) else { panic!("a termination") };
            let lost = Bounded::exactly(12);
            let by_cause = BTreeMap::from([(Cause::KilledInFlight, lost)]);
            end.traffic = Some(TerminationTraffic {
                lost,
                by_cause,
                background: Some(Bounded::default()),
                streams_cut: cut,
                ..TerminationTraffic::default()
            });
            WatchOutput::Termination(end)
        };
        // A record of an earlier version has no such field.
        let mut earlier: Value = serde_json::from_str(&with("old", None).json()).unwrap();
        earlier["traffic"].as_object_mut().unwrap().remove("streams_cut").expect("the field");
        let earlier = WatchOutput::read(earlier.to_string().as_bytes()).unwrap();
        let records = [(1, earlier), (2, with("web", Some(Bounded::exactly(9)))), (3, end("api"))];
        let report = report(None, &records);
        let json: Value = serde_json::from_str(&report.json()).unwrap();
        let of = |number: usize| &json["workloads"][number]["traffic"];
        assert_eq!(of(0)["streams_cut"], json!({"at_least": 9, "at_most": 9, "estimate": 9.0}));
        assert_eq!((&of(0)["streams_cut_unknown"], &of(1)["streams_cut_unknown"]), (&json!(0), &json!(1)));
        assert_eq!(of(2), &Value::Null);
        let html = report.html(&report.chart().unwrap());
        for text in [report.text(), report.markdown(), html, report.json()] {
            let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(flat.contains("Streams cut among them: 9. "), "{text}");
            assert!(
                flat.contains("For 1 of the terminations, it is not known which streams were cut."),
                "{text}"
            );
        }
        let markdown = report.markdown();
        for row in [
            "| workload | terminations | requests lost | streams cut | killed |",
            "| shop Deployment web | 1 | 12 | 9 | 1 |",
            "| shop Deployment old | 1 | 12 | unknown | 1 |",
            "| shop Deployment api | 1 | unknown | unknown | 1 |",
        ] {
            assert!(markdown.contains(row), "{row}\n{markdown}");
        }
    }

    #[test]
    fn chart_shows_when_requests_were_lost() {
        let lossy = |lost: Bounded| {
            let WatchOutput::Termination(mut end) = end("web") else { panic!("a termination") };
            end.traffic = Some(TerminationTraffic { lost, ..TerminationTraffic::default() });
            WatchOutput::Termination(end)
        };
        let (hour, day) = (3_600, 86_400);
        let records = [
            (0, watched(0, 10, None)),
            (hour, lossy(Bounded::exactly(3))),
            (hour + 1, lossy(Bounded { at_least: 1, at_most: 4, estimate: 2.0 })),
            (2 * hour, end("api")),
        ];
        let series = |days: i64| {
            let mut history = WatchHistory::new(Some(at(0)), at(days * day));
            records.iter().for_each(|(recorded, record)| history.take(at(*recorded), record));
            history.report(Vec::new()).series()
        };
        let hours = series(1);
        assert_eq!((hours.bin, hours.bins.len(), &*hours.bins[0].label), ("hour", 25, "15:00"));
        let filled: Vec<_> =
            hours.bins.iter().map(|bin| (bin.lost.at_least, bin.lost.at_most, bin.killed)).collect();
        assert_eq!(filled[..4], [(0, 0, 0), (4, 7, 2), (0, 0, 1), (0, 0, 0)]);
        assert_eq!(hours.rows.iter().map(|row| row.lost.is_some()).collect::<Vec<_>>(), [true, false]);
        let [(from, to)] = hours.unwatched[..] else { panic!("{:?}", hours.unwatched) };
        assert!(from < 0.1 && to > 24.0, "{from} {to}");
        let days = series(30);
        assert_eq!((days.bin, days.bins.len(), days.bins[0].lost.at_most), ("day", 31, 7));
        let nothing = WatchHistory::new(Some(at(0)), at(day)).report(Vec::new()).series();
        assert_eq!(nothing.title, "No watch is known to have run in this period");
        assert_eq!(nothing.unwatched.len(), 1);
        assert_eq!(watch_chart::draw(&days).unwrap().name, "watch.png");
    }

    #[test]
    fn report_selects_by_time() {
        let records =
            [(1, end("early")), (50, end("late")), (60, watched(0, 60, None)), (200, end("future"))];
        let names = |report: WatchReport| {
            report.workloads.into_iter().filter_map(|of| of.of.workload).collect::<Vec<_>>()
        };
        assert_eq!(names(report(None, &records)).len(), 3);
        assert_eq!(names(report(Some(50), &records)), ["Deployment future", "Deployment late"]);
    }
}
