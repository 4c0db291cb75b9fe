//! Output of `rolldrop watch`: a line for each termination, and the ranking of the workloads at the end.

use serde::{Deserialize, Serialize};

use super::finding_words::objection;
use super::format::{count, counted, either, list, percent, range, rfc3339_seconds, wrap};
use super::long_sleep_words::long_sleep;
use super::summary::columns;
use super::watch_traffic_words::{termination_traffic, workload_traffic};
use rolldrop_explain::count::workload_ranking::{RankedWorkload, WorkloadTraffic};
use rolldrop_explain::model::account::{BeatsState, Objection};
use rolldrop_explain::model::{Bounded, ContainerEnd, LogGap, WatchedTermination};
use rolldrop_record::{Stamp, shown};

/// Width of the sentences below the ranking.
pub(super) const WIDTH: usize = 100;
/// Resource that must be watched to see any termination.
pub(super) const PODS: &str = "pods";
/// Cell of the ranking whose value is not known.
const UNKNOWN: &str = "unknown";

/// One line of the output.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum WatchOutput {
    /// A termination that has settled.
    Termination(Box<WatchedTermination>),
    /// Interruption of a watch.
    Gap(WatchInterruption),
    /// A watch that the API server refused.
    NotWatched {
        /// Resource of the watch.
        resource: String,
        /// Reason given by the API server.
        why: String,
    },
    /// Period in which lines may be missing from a gateway log.
    LogGap(LogGap),
    /// Summary of a gateway's log, at the end.
    Log(LogReading),
    /// A period in which a watch ran; occurs only in a history.
    Watched(WatchedSpan),
    /// A workload, at the end and worst first.
    Workload(Box<RankedWorkload>),
    /// The last line.
    Summary(WatchSummary),
}

/// Numbers of lines read from a gateway's log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LogReading {
    /// The log.
    pub source: String,
    /// Number of lines that show a request.
    pub lines: u64,
    /// Number of attempts after the first one of each request; `None` if the log does not show them.
    pub retries: Option<u64>,
    /// Number of requests that succeeded on such an attempt.
    pub saved_by_retries: Option<u64>,
    /// Number of lines that could not be read.
    pub unreadable: u64,
    /// Reason why the first of these lines could not be read.
    pub example: Option<String>,
}

/// Period in which a watch ran. All terminations in its scope whose pods disappeared in this period are recorded,
/// except those that a gap hides.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WatchedSpan {
    /// Beginning of the period.
    pub from_ns: Stamp,
    /// End of the period.
    pub to_ns: Stamp,
    /// Namespace that was watched; `None` for all.
    pub namespace: Option<String>,
    /// Description of the cluster.
    pub cluster: String,
}

/// The fields of a recorded line that a later watch needs. It does not read the others, because a history may be large.
#[derive(Clone, Debug, Deserialize)]
pub struct EarlierRecord {
    /// UID of the pod that was terminated.
    pub uid: Option<String>,
    /// Cluster that was watched.
    pub cluster: Option<String>,
    /// Time up to which the cluster was watched.
    pub to_ns: Option<Stamp>,
}

impl EarlierRecord {
    /// Reads a line.
    ///
    /// # Errors
    /// Fails if the line is not a record.
    pub fn read(line: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(line)
    }
}

/// Period in which a watch showed nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WatchInterruption {
    /// Resource of the watch.
    pub resource: String,
    /// Time of the watch's last sign of life before the interruption.
    pub from_ns: Stamp,
    /// Time of the watch's first sign of life after the interruption.
    pub to_ns: Stamp,
    /// True if changes in between were lost. Otherwise they were shown late.
    pub is_lost: bool,
}

/// Totals over the whole watch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WatchSummary {
    /// Time at which the watch began.
    pub from_ns: Stamp,
    /// Time at which the watch ended.
    pub to_ns: Stamp,
    /// Number of terminations.
    pub terminations: u64,
    /// Number of workloads to which the terminated pods belonged.
    pub workloads: u64,
    /// Number of pods that were still terminating at the end.
    pub still_terminating: u64,
}

impl WatchOutput {
    /// Reads a line.
    ///
    /// # Errors
    /// Fails if the line is not a record.
    pub fn read(line: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(line)
    }

    /// Returns the line as a JSON object.
    ///
    /// # Panics
    ///
    /// Never: the line contains only what JSON can represent.
    pub fn json(&self) -> String {
        let value = serde_json::to_value(self).expect("plain data with names as keys");
        format!("{}\n", *shown::values(&value))
    }

    /// Returns the line for a terminal; `None` for a workload and for the summary, which [`watch_ranking`] shows, and
    /// for a watched period.
    pub fn text(&self) -> Option<String> {
        let text = match self {
            Self::Termination(end) => termination(end),
            Self::Gap(gap) => interruption(gap),
            Self::NotWatched { resource, why } => missing_right(resource, why),
            Self::LogGap(gap) => log_gap(gap),
            Self::Log(reading) => log_reading(reading)?,
            Self::Watched(_) | Self::Workload(_) | Self::Summary(_) => return None,
        };
        Some(format!("{}\n", shown::one_line(&text)))
    }
}

fn log_gap(LogGap { source, from_ns, to_ns, why }: &LogGap) -> String {
    let until = to_ns.map_or_else(|| "on".to_owned(), |to| format!("to {}", rfc3339_seconds(to)));
    let why = why.as_deref().unwrap_or("the watch ended before slow requests could be in the log");
    format!("lines from {source} may be missing, from {} {until}: {why}", rfc3339_seconds(*from_ns))
}

/// Returns what the ranking does not show about a log: requests that retries saved, and lines that could not be read.
fn log_reading(reading: &LogReading) -> Option<String> {
    let LogReading { source, lines, retries, saved_by_retries, unreadable, example } = reading;
    let mut parts = Vec::new();
    if let (Some(retries @ 1..), Some(saved)) = (*retries, *saved_by_retries) {
        let (tried, requests) = (either(retries, "retry", "retries"), counted(*lines, "request"));
        parts.push(format!("{} {tried} saved {} of {requests} at {source}", count(retries), count(saved)));
    }
    if let Some(example) = example {
        let all = counted(lines + unreadable, "line");
        parts.push(format!(
            "{} of {all} from {source} could not be read; the first: {example}",
            count(*unreadable)
        ));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

pub(super) fn missing_right(resource: &str, why: &str) -> String {
    format!("cannot watch {resource}, so {}: {why}", without(resource))
}

/// Returns the consequence of not being allowed to watch this resource.
fn without(resource: &str) -> &'static str {
    match resource {
        "events" => "failed preStop hooks are not seen",
        "services" | "endpointslices" => "log lines that name a Service instead of its pods cannot be used",
        "nodes" => "drains cannot be told from other evictions",
        _ => "rollouts and scale-downs of these cannot be told from other deletions",
    }
}

pub(super) fn interruption(gap: &WatchInterruption) -> String {
    let WatchInterruption { resource, from_ns, to_ns, is_lost } = gap;
    let effect = match (is_lost, resource.as_str()) {
        (true, PODS) => "terminations in between may be missing, or their ends unknown",
        (true, _) => "changes in between are unknown",
        (false, _) => "changes in between were seen late",
    };
    format!(
        "the watch of {resource} was interrupted from {} to {}: {effect}",
        rfc3339_seconds(*from_ns),
        rfc3339_seconds(*to_ns)
    )
}

fn termination(end: &WatchedTermination) -> String {
    let workload = end.workload.as_deref().unwrap_or("no controller");
    let cause = end.cause.as_deref().unwrap_or("deleted by an unknown client");
    let mut parts = vec![cause.to_owned(), ending(end)];
    parts.extend(end.containers.iter().filter_map(exit));
    let failed: Vec<&String> = end.failed_hooks.iter().flatten().collect();
    if !failed.is_empty() {
        parts.push(format!("preStop hook failed in {}", list(&failed)));
    }
    parts.extend(end.traffic.iter().flat_map(|traffic| termination_traffic(end, traffic)));
    let (at, namespace, pod) = (rfc3339_seconds(end.t0_latest_ns), &end.namespace, &end.pod);
    format!("{at} {namespace}/{pod} ({workload}): {}", parts.join("; "))
}

fn ending(end: &WatchedTermination) -> String {
    let grace_s = end.grace_s;
    match (end.killed_at_grace_end, end.grace_use, end.ended_ns) {
        (Some(true), ..) => format!("KILLED at the end of its grace period of {grace_s} s"),
        (killed, Some(used), _) => {
            let share = end.share_of_grace().map(|share| format!(", {} of it", percent(share)));
            let unsure = if killed.is_none() { " (it is unknown whether it was killed)" } else { "" };
            format!(
                "ended {:.1} s into its grace period of {grace_s} s{}{unsure}",
                used.likely_s,
                share.unwrap_or_default()
            )
        }
        (_, None, Some(_)) => "ended; the beginning of its grace period is unknown".to_owned(),
        (_, None, None) => "the end of its containers was not seen".to_owned(),
    }
}

fn exit(container: &ContainerEnd) -> Option<String> {
    let code = container.exit_code?;
    let signal = match code {
        137 => Some("SIGKILL"),
        143 => Some("SIGTERM"),
        _ => None,
    };
    let reason = container.reason.as_deref().filter(|reason| !["Completed", "Error"].contains(reason));
    let facts: Vec<&str> = signal.into_iter().chain(reason).collect();
    let facts = if facts.is_empty() { String::new() } else { format!(" ({})", facts.join(", ")) };
    Some(format!("{} exited with {code}{facts}", container.name))
}

/// Returns the ranking for a terminal, with the remedies that follow from it.
pub fn watch_ranking(summary: &WatchSummary, ranked: &[RankedWorkload]) -> String {
    let WatchSummary { from_ns, to_ns, terminations, workloads, still_terminating } = summary;
    // A blank line separates the ranking from the terminations.
    let mut lines: Vec<String> = (*terminations > 0).then(String::new).into_iter().collect();
    lines.push(format!(
        "{} of {} from {} to {}",
        counted(*terminations, "termination"),
        counted(*workloads, "workload"),
        rfc3339_seconds(*from_ns),
        rfc3339_seconds(*to_ns)
    ));
    if *still_terminating > 0 {
        lines.push(format!("{} still terminating when the watch ended", counted(*still_terminating, "pod")));
    }
    lines.extend(ranking_lines(ranked));
    lines.push(String::new());
    lines.join("\n")
}

/// Returns the lines of the ranking, and of the remedies that follow from it.
pub(super) fn ranking_lines(ranked: &[RankedWorkload]) -> Vec<String> {
    let mut lines = Vec::new();
    if !ranked.is_empty() {
        lines.push(String::new());
        lines.extend(RankingTable::new(ranked.iter()).text());
    }
    for remedy in ranked.iter().flat_map(remedies) {
        lines.push(String::new());
        lines.extend(wrap(&shown::one_line(&remedy.sentence), WIDTH));
        lines.extend(remedy.command.map(|command| format!("  {}", shown::one_line(&command))));
    }
    lines
}

/// The ranking as a table: names in the first column, numbers in the others.
pub(super) struct RankingTable {
    pub(super) header: Vec<&'static str>,
    pub(super) rows: Vec<Vec<String>>,
}

impl RankingTable {
    /// Creates the table. It has columns about requests only if a gateway log names any of the pods.
    pub(super) fn new<'a>(ranked: impl Iterator<Item = &'a RankedWorkload> + Clone) -> Self {
        let has_traffic = ranked.clone().any(|of| of.traffic.is_some());
        let of_requests = ["requests lost", "streams cut"].into_iter().filter(|_| has_traffic);
        let of_ends =
            ["killed", ">= 90%", "unknown", "failed hooks", "grace period", "used, median", "used, max"];
        let header = ["workload", "terminations"].into_iter().chain(of_requests).chain(of_ends).collect();
        Self { header, rows: ranked.map(|of| cells(of, has_traffic)).collect() }
    }

    /// Returns the columns that hold numbers.
    pub(super) fn numbers(&self) -> Vec<usize> {
        (1..self.header.len()).collect()
    }

    fn text(&self) -> Vec<String> {
        let header = self.header.iter().map(|name| (*name).to_owned()).collect();
        let rows: Vec<Vec<String>> = std::iter::once(header).chain(self.rows.iter().cloned()).collect();
        columns(&rows, &self.numbers())
    }
}

/// Returns a row of the ranking.
fn cells(of: &RankedWorkload, has_traffic: bool) -> Vec<String> {
    let unknown = || UNKNOWN.to_owned();
    let share = |share: Option<f64>| share.map_or_else(unknown, percent);
    let traffic = of.traffic.as_ref();
    let of_requests =
        [traffic.map(|traffic| lost(of, traffic)), traffic.map(|traffic| streams_cut(of, traffic))];
    let of_requests = of_requests.into_iter().filter(|_| has_traffic);
    let mut cells = vec![shown::one_line(&name(of)).into_owned(), count(of.terminations)];
    cells.extend(of_requests.map(|cell| cell.unwrap_or_else(unknown)));
    cells.extend([
        count(of.killed_at_grace_end),
        count(of.nearly_killed),
        count(of.unknown),
        count(of.failed_hooks),
        graces(of),
        share(of.median_share_of_grace),
        share(of.max_share_of_grace),
    ]);
    cells
}

/// Returns the number of a workload's lost requests.
pub(super) fn lost(of: &RankedWorkload, traffic: &WorkloadTraffic) -> String {
    seen(&traffic.lost, traffic.not_observable == 0 && traffic.is_whole(of.terminations))
}

fn streams_cut(of: &RankedWorkload, traffic: &WorkloadTraffic) -> String {
    seen(&traffic.streams_cut, traffic.streams_cut_unknown == 0 && traffic.is_whole(of.terminations))
}

/// Formats a count with bounds; if there may have been more than were seen, only the lower bound.
fn seen(n: &Bounded, are_all: bool) -> String {
    match (are_all, n.at_least) {
        (true, _) => range(n),
        (false, 0) => UNKNOWN.to_owned(),
        (false, least) => format!("at least {}", count(least)),
    }
}

pub(super) fn name(of: &RankedWorkload) -> String {
    format!("{} {}", of.namespace, of.workload.as_deref().unwrap_or("(no controller)"))
}

fn graces(of: &RankedWorkload) -> String {
    list(&of.grace_periods_s.iter().map(|seconds| format!("{seconds} s")).collect::<Vec<_>>())
}

/// Advice that follows from a workload's terminations.
#[derive(Clone, Debug, Serialize)]
pub(super) struct WorkloadRemedy {
    /// Kind of incident, in one word.
    reason: &'static str,
    pub(super) sentence: String,
    /// Command that shows more.
    pub(super) command: Option<String>,
}

/// Returns the advice in a ranking.
pub(super) fn remedies(of: &RankedWorkload) -> Vec<WorkloadRemedy> {
    let long = of.long_sleep.as_ref().map(|sleep| WorkloadRemedy {
        reason: "SleepTooLong",
        sentence: format!("{}: {}", name(of), long_sleep(sleep)),
        command: None,
    });
    failures(of).into_iter().chain(long).collect()
}

/// Returns the advice that follows from failures.
fn failures(of: &RankedWorkload) -> Vec<WorkloadRemedy> {
    let (name, graces) = (name(of), graces(of));
    let of_all = |n: u64| format!("{} of {}", count(n), counted(of.terminations, "pod"));
    let lost = of.traffic.as_ref().and_then(|traffic| workload_traffic(&name, traffic, of.terminations));
    let mut remedies: Vec<WorkloadRemedy> = lost
        .into_iter()
        .map(|sentence| WorkloadRemedy { reason: "RequestsLost", sentence, command: None })
        .collect();
    if of.killed_at_grace_end > 0 {
        let killed = of_all(of.killed_at_grace_end);
        let remedy = match of.killed_after_long_sleep == of.killed_at_grace_end {
            true => {
                "The preStop sleep left the app no more than 2 s to exit. Shorten the sleep, or raise \
                 terminationGracePeriodSeconds."
            }
            false => {
                "Check that the app exits on SIGTERM: it may not handle the signal, or a shell that started it may \
                 not pass the signal on. If the app needs more time, raise terminationGracePeriodSeconds; if it \
                 serves streams, `rolldrop tune --grace` finds how long they need."
            }
        };
        let sentence = format!("{name}: {killed} killed at the end of the grace period ({graces}). {remedy}");
        remedies.push(WorkloadRemedy { reason: "KilledAtGraceEnd", sentence, command: None });
    }
    if of.nearly_killed > 0 {
        let sentence = format!(
            "{name}: {} used 90 % or more of the grace period ({graces}). A slower pod would be killed: raise \
             terminationGracePeriodSeconds, or make the app exit sooner.",
            of_all(of.nearly_killed)
        );
        remedies.push(WorkloadRemedy { reason: "NearlyKilled", sentence, command: None });
    }
    if of.failed_hooks > 0 {
        let sentence = format!(
            "{name}: {} had a failing preStop hook. The app got its stop signal as soon as the hook failed. See why:",
            of_all(of.failed_hooks)
        );
        let namespace = &of.namespace;
        let command = format!("kubectl get events -n {namespace} --field-selector reason=FailedPreStopHook");
        remedies.push(WorkloadRemedy { reason: "PreStopHookFailed", sentence, command: Some(command) });
    }
    remedies
}

/// Content of an Event about a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadNote {
    /// Kind of incident, in one word.
    pub reason: &'static str,
    /// Description of the incident, and its remedy.
    pub message: String,
}

/// Returns what is worth an Event about a workload.
pub fn workload_notes(of: &RankedWorkload) -> Vec<WorkloadNote> {
    let (name, failures) = (format!("{}: ", name(of)), failures(of));
    let note = |WorkloadRemedy { reason, sentence, command }: WorkloadRemedy| {
        let message = sentence.strip_prefix(&name).unwrap_or(&sentence);
        let command = command.map(|command| format!(" {command}")).unwrap_or_default();
        WorkloadNote { reason, message: shown::one_line(&format!("{message}{command}")).into_owned() }
    };
    failures.into_iter().map(note).collect()
}

/// Returns a sentence about beats that cannot be used, if that is certain.
pub fn unusable_beats(state: &BeatsState) -> Option<String> {
    match state {
        BeatsState::Absent | BeatsState::Usable | BeatsState::Dropped(Objection::TooFewChecks { .. }) => None,
        BeatsState::Dropped(why) => {
            Some(format!("beats cannot date deletions in this cluster: {}", objection(why)))
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use rolldrop_explain::model::{Bounded, GraceUse, T0Basis, WatchedMode};

    const T0: Stamp = Stamp::from_unix_ns(1_767_366_245_678_000_000);

    pub(crate) fn end() -> WatchedTermination {
        let container = |name: &str, exit_code, reason: &str| ContainerEnd {
            name: name.to_owned(),
            sidecar: false,
            exit_code,
            reason: Some(reason.to_owned()),
        };
        WatchedTermination {
            namespace: "shop".to_owned(),
            workload: Some("Deployment web".to_owned()),
            pod: "web-7d9f-x".to_owned(),
            uid: "u".to_owned(),
            node: None,
            mode: WatchedMode::Rollout,
            cause: Some("rollout of Deployment web".to_owned()),
            t0_earliest_ns: T0,
            t0_latest_ns: T0,
            t0_basis: T0Basis::Timestamp,
            has_beats: false,
            grace_s: 30,
            pre_stop_sleep_s: None,
            ended_ns: Some(T0),
            grace_use: Some(GraceUse { least_s: 28.0, likely_s: 30.3, most_s: 31.0 }),
            killed_at_grace_end: Some(true),
            containers: vec![
                container("app", Some(137), "Error"),
                container("log", Some(137), "OOMKilled"),
                container("lost", None, "ContainerStatusUnknown"),
            ],
            restarts: 0,
            failed_hooks: Some(BTreeSet::from(["app".to_owned()])),
            ready_while_terminating_s: None,
            traffic: None,
        }
    }

    fn text(of: WatchedTermination) -> String {
        WatchOutput::Termination(Box::new(of)).text().unwrap()
    }

    #[test]
    fn termination_line_states_known_facts() {
        assert_eq!(
            text(end()),
            "2026-01-02T15:04:05Z shop/web-7d9f-x (Deployment web): rollout of Deployment web; KILLED at the end of its \
             grace period of 30 s; app exited with 137 (SIGKILL); log exited with 137 (SIGKILL, OOMKilled); preStop hook \
             failed in app\n"
        );
        let likely_s = 2.4;
        let unknown = WatchedTermination {
            workload: None,
            cause: None,
            killed_at_grace_end: None,
            grace_use: Some(GraceUse { least_s: 0.0, likely_s, most_s: 9.0 }),
            containers: Vec::new(),
            failed_hooks: None,
            ..end()
        };
        assert_eq!(
            text(unknown.clone()),
            "2026-01-02T15:04:05Z shop/web-7d9f-x (no controller): deleted by an unknown client; ended 2.4 s into its \
             grace period of 30 s, 8 % of it (it is unknown whether it was killed)\n"
        );
        let unseen = WatchedTermination { grace_use: None, ended_ns: None, ..unknown };
        assert!(text(unseen).ends_with("; the end of its containers was not seen\n"));
        let hostile = WatchedTermination { cause: Some("\u{1b}[31m\n::error::".to_owned()), ..end() };
        assert!(!text(hostile.clone()).trim_end().contains(['\u{1b}', '\n']));
        let json = WatchOutput::Termination(Box::new(hostile)).json();
        assert!(json.contains(r#""kind":"termination""#) && json.lines().count() == 1, "{json}");
        assert!(json.contains(r#""killed_at_grace_end":true"#) && !json.contains("u001b"), "{json}");
    }

    #[test]
    fn ranking_gives_only_justified_advice() {
        let of = |workload: &str| RankedWorkload {
            namespace: "shop".to_owned(),
            workload: Some(workload.to_owned()),
            terminations: 4,
            grace_periods_s: BTreeSet::from([30]),
            median_share_of_grace: Some(0.05),
            max_share_of_grace: Some(1.01),
            ..RankedWorkload::default()
        };
        let killed = RankedWorkload { killed_at_grace_end: 3, ..of("Deployment web") };
        let slept =
            RankedWorkload { killed_at_grace_end: 2, killed_after_long_sleep: 2, ..of("Deployment sleepy") };
        let hooked = RankedWorkload { failed_hooks: 1, max_share_of_grace: None, ..of("Deployment hooked") };
        let summary =
            WatchSummary { from_ns: T0, to_ns: T0, terminations: 16, workloads: 4, still_terminating: 1 };
        let text = watch_ranking(&summary, &[killed, slept, hooked, of("Deployment fine")]);
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in [
            "16 terminations of 4 workloads from 2026-01-02T15:04:05Z",
            "1 pod still terminating",
            "shop Deployment web 4 3 0 0 0 30 s 5 % 101 %",
            "shop Deployment web: 3 of 4 pods killed at the end of the grace period (30 s). Check that the app exits",
            "shop Deployment sleepy: 2 of 4 pods killed at the end of the grace period (30 s). The preStop sleep left",
            "shop Deployment hooked: 1 of 4 pods had a failing preStop hook.",
        ] {
            assert!(flat.contains(part), "{part}\n{text}");
        }
        assert_eq!(text.matches("Deployment fine").count(), 1, "{text}");
        assert!(!text.contains("streams cut"), "no log names the pods\n{text}");
        let none = WatchSummary { terminations: 0, workloads: 0, still_terminating: 0, ..summary };
        assert_eq!(
            watch_ranking(&none, &[]),
            "0 terminations of 0 workloads from 2026-01-02T15:04:05Z to 2026-01-02T15:04:05Z\n"
        );
    }

    #[test]
    fn ranking_shows_streams_cut_if_known() {
        let row = |traffic: Option<WorkloadTraffic>| {
            cells(&RankedWorkload { traffic, ..RankedWorkload::default() }, true)[2..4].join(", ")
        };
        let cut = |lost, streams_cut, streams_cut_unknown| {
            Some(WorkloadTraffic { lost, streams_cut, streams_cut_unknown, ..WorkloadTraffic::default() })
        };
        let (none, some) = (Bounded::default(), Bounded::exactly(7));
        assert_eq!(row(None), "unknown, unknown");
        assert_eq!(row(cut(none, none, 0)), "0, 0");
        assert_eq!(row(cut(some, some, 0)), "7, 7");
        assert_eq!(row(cut(some, none, 1)), "7, unknown");
        assert_eq!(row(cut(some, Bounded { at_most: 9, ..some }, 1)), "7, at least 7");
        assert_eq!(row(cut(some, Bounded { at_least: 3, ..some }, 0)), "7, 3 to 7");
    }

    #[test]
    fn ranking_never_shows_unseen_losses_as_zero() {
        let whole = |n| WorkloadTraffic {
            terminations: 3,
            lost: Bounded::exactly(n),
            streams_cut: Bounded::exactly(n),
            ..WorkloadTraffic::default()
        };
        let row = |traffic: WorkloadTraffic| {
            let of = RankedWorkload { traffic: Some(traffic), terminations: 3, ..RankedWorkload::default() };
            cells(&of, true)[2..4].join(", ")
        };
        assert_eq!([0, 5].map(|n| row(whole(n))), ["0, 0", "5, 5"]);
        assert_eq!(
            [0, 5].map(|n| row(WorkloadTraffic { with_gaps: 1, ..whole(n) })),
            ["unknown, unknown", "at least 5, at least 5"]
        );
        assert_eq!(row(WorkloadTraffic { not_observable: 2, ..whole(0) }), "unknown, 0");
        assert_eq!(
            row(WorkloadTraffic { terminations: 2, ..whole(0) }),
            "unknown, unknown",
            "one is in no log"
        );
    }

    #[test]
    fn log_line_shows_retries_and_unreadable_lines() {
        let text = |reading: LogReading| WatchOutput::Log(reading).text();
        let read = LogReading { source: "edge/envoy".to_owned(), lines: 5_000, ..LogReading::default() };
        assert_eq!(text(read.clone()), None);
        let retried = LogReading { retries: Some(12), saved_by_retries: Some(10), ..read };
        let saved = "12 retries saved 10 of 5,000 requests at edge/envoy";
        assert_eq!(text(retried.clone()).unwrap(), format!("{saved}\n"));
        let example = Some("no JSON".to_owned());
        let unread = text(LogReading { unreadable: 1, example, ..retried }).unwrap();
        let wanted = "1 of 5,001 lines from edge/envoy could not be read; the first: no JSON";
        assert_eq!(unread, format!("{saved}; {wanted}\n"));
    }
}
