//! The report as one HTML file: no script, no other resource, the charts inside.

use std::fmt::Display;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, Render, html};

use super::charts::Chart;
use super::format::{NONE, bounded, count, len, list, millis, or_none, percent, plain, seconds};
use super::words::{self, Remedy};
use rolldrop_analysis::model::{
    Bounded, Check, RunResult, Stage, StartStage, Termination, Verdict, WhatIf, Window, WindowSummary,
};

const STYLE: &str = include_str!("html/style.css");

/// The stages of a termination, in the columns of their table.
const STAGES: [(Stage, &str); 11] = [
    (Stage::DeleteSent, "delete sent"),
    (Stage::DeletionSeen, "deletion seen"),
    (Stage::EndpointTerminating, "endpoint terminating"),
    (Stage::KillBegan, "preStop began"),
    (Stage::AppSigterm, "SIGTERM not before"),
    (Stage::ListenerClosed, "listener closed"),
    (Stage::AppExited, "app exited"),
    (Stage::LastConnection, "last connection"),
    (Stage::ContainersTerminated, "containers terminated"),
    (Stage::EndpointRemoved, "endpoint removed"),
    (Stage::PodDeleted, "pod deleted"),
];

/// The stages of a start.
const START_STAGES: [(StartStage, &str); 5] = [
    (StartStage::Created, "created"),
    (StartStage::IpReported, "address reported"),
    (StartStage::Ready, "ready"),
    (StartStage::EndpointReady, "endpoint ready"),
    (StartStage::FirstRequest, "first request"),
];

/// The report of a result.
pub(super) fn render(result: &RunResult, charts: &[Chart]) -> String {
    page(
        &format!("rolldrop: {}", result.scenario),
        &html! {
            (answer(result))
            (checks(result))
            (figures(charts))
            (findings(result))
            (recommendations(result))
            (windows(result))
            (terminations(result))
            (what_if(result))
            (requests(result))
            (latency(result))
            (starts(result))
        },
        &words::provenance(result),
    )
}

/// A page that needs no other file.
pub(super) fn page(title: &str, body: &Markup, footer: &str) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main {
                    h1 { (title) }
                    (body)
                    footer { p { (footer) } }
                }
            }
        }
    };
    page.into_string() + "\n"
}

/// The pictures, inside the page.
pub(super) fn figures(charts: &[Chart]) -> Markup {
    html! {
        @for chart in charts {
            figure { img src={ "data:image/png;base64," (STANDARD.encode(&chart.png)) } alt=(chart.alt); }
        }
    }
}

fn answer(result: &RunResult) -> Markup {
    html! {
        @if let Some(warning) = words::warning(result) {
            p.alarm role="alert" { (warning) }
        }
        p.answer {
            (words::headline(result))
            @if let Some(whereabouts) = words::whereabouts(result) { " " (whereabouts) }
        }
        @if let Some(causes) = words::causes(result) {
            p { "Cause: " (causes) "." }
        }
        @match words::remedy(result) {
            Some(Remedy::Yaml(yaml, note)) => { p { "Remedy: " code { (yaml) } " (" (note) ")." } },
            Some(Remedy::Words(text)) => { p { "Remedy: " (text) } },
            None => {},
        }
        @if result.verdict == Verdict::Valid {
            @let (word, meaning, _) = words::verdict(&result.verdict);
            p { "Measurement: " strong { (word) } " (" (meaning) ")." }
        }
    }
}

fn checks(result: &RunResult) -> Markup {
    let columns: [Column<&Check>; 5] = [
        ("check", |c| Cell::head(&c.name)),
        ("verdict", |c| Cell::word(c.verdict.as_str())),
        ("observed", |c| Cell::text(&c.observed)),
        ("limit", |c| Cell::text(&c.limit)),
        ("why", |c| Cell::text(&c.reason())),
    ];
    table_of("Checks", "", &columns, &result.checks)
}

fn findings(result: &RunResult) -> Markup {
    html! {
        @if !result.findings.is_empty() {
            h2 { "Findings" }
            dl {
                @for finding in &result.findings {
                    @let severity = finding.severity.as_str();
                    dt { span class=(severity) { (severity) } " " (words::sentence(&finding.what)) }
                    dd { (words::sentence(&finding.why)) }
                    dd.remedy { (words::sentence(&finding.remedy)) }
                }
            }
        }
    }
}

fn recommendations(result: &RunResult) -> Markup {
    html! {
        @if !result.recommendation.is_empty() {
            h2 { "preStop sleep" }
            @for rec in &result.recommendation {
                p { strong { (words::mode(rec.mode)) } ": " (words::recommendation(rec).join(" ")) }
                @let yaml = words::yaml(rec, &result.cluster.version);
                @if !yaml.is_empty() {
                    pre { (yaml.join("\n")) }
                }
                @if !rec.consumers.is_empty() {
                    p { "Measured towards: " (list(&rec.consumers)) "." }
                }
            }
        }
    }
}

fn windows(result: &RunResult) -> Markup {
    let columns: [Column<&WindowSummary>; 9] = [
        ("consumer", |w| Cell::head(&w.consumer)),
        ("mode", |w| Cell::text(words::mode(w.mode))),
        ("pods", |w| Cell::number(count(len(w.n)))),
        ("lower bounds", |w| {
            Cell::number(or_none(w.lower, |(a, b)| format!("{} to {}", seconds(a), seconds(b))))
        }),
        ("upper p50", |w| Cell::seconds(w.p50)),
        ("upper p90", |w| Cell::seconds(w.p90)),
        ("upper p99", |w| Cell::seconds(w.p99)),
        ("upper max", |w| Cell::seconds(w.max)),
        ("censored", |w| Cell::number(count(len(w.censored)))),
    ];
    let note = "How long new connections still went to a pod after its deletion, in seconds.";
    table_of("Endpoint-propagation windows", note, &columns, &result.windows_s)
}

fn terminations(result: &RunResult) -> Markup {
    let all = &result.terminations;
    if all.is_empty() {
        return Markup::default();
    }
    let groups = words::groups(result);
    let causes = words::why_they_ended(all);
    html! {
        (each_termination(all))
        @if !groups.is_empty() {
            p { "What several pods may have lost. The totals are exact:" }
            ul { @for group in groups { li { (group) } } }
        }
        @if !causes.is_empty() {
            p { "Why they ended, as far as the cluster says:" }
            ul { @for (whom, why) in causes { li { (whom) ": " (why) } } }
        }
        (each_window(all))
        (each_stage(all))
    }
}

fn each_termination(all: &[Termination]) -> Markup {
    fn each<K: Display>(counts: Vec<(K, Bounded)>) -> String {
        counts.iter().map(|(what, n)| format!("{} {what}", bounded(n))).collect::<Vec<_>>().join("; ")
    }
    let columns: [Column<&Termination>; 11] = [
        ("pod", |t| Cell::head(&t.pod)),
        ("node", |t| Cell::text(t.node.as_deref().unwrap_or(NONE))),
        ("mode", |t| Cell::text(words::mode(t.mode))),
        ("dropped", |t| Cell::number(bounded(&t.requests.dropped))),
        ("requests", |t| Cell::number(or_none(t.requests.seen, count))),
        ("classes", |t| Cell::text(&each(words::by_estimate(&t.requests.by_outcome)))),
        ("causes", |t| Cell::text(&each(words::by_estimate(&t.requests.by_cause)))),
        ("window since t0", |t| Cell::text(&words::longest(t))),
        ("t0 within", |t| Cell::number(format!("{} s", seconds(t.t0_uncertainty_s)))),
        ("dead time", |t| Cell::number(or_none(t.dead_seconds, |v| format!("{} s", seconds(v))))),
        ("exit code", |t| Cell::number(or_none(t.exit_code, |code| code.to_string()))),
    ];
    let note = "t0 is when the deletion took effect; it is known within the time given. Dead time: the best estimate of the new connections \
                that the pod dropped, divided by the rate at which it got new connections before.";
    table_of("Terminations", note, &columns, all)
}

fn each_window(all: &[Termination]) -> Markup {
    let columns: [Column<(&Termination, &Window)>; 8] = [
        ("pod", |(t, _)| Cell::head(&t.pod)),
        ("consumer", |(_, w)| Cell::text(&w.consumer)),
        ("lower bound", |(_, w)| Cell::seconds(w.lower_s)),
        ("upper bound", |(_, w)| Cell::seconds(w.upper_s)),
        ("known by", |(_, w)| Cell::text(&words::basis(w))),
        ("censored because", |(_, w)| Cell::text(w.censored.as_deref().unwrap_or_default())),
        ("late arrivals", |(_, w)| Cell::number(count(w.late_arrivals))),
        ("new connections/s before", |(_, w)| Cell::number(plain(w.rate_before))),
    ];
    let rows = all.iter().flat_map(|t| t.windows.iter().map(move |w| (t, w)));
    let note = "Seconds since t0. Late arrivals: new connections that came after t0.";
    table_of("Window of each termination", note, &columns, rows)
}

fn each_stage(all: &[Termination]) -> Markup {
    let shown: Vec<(Stage, &str)> =
        STAGES.into_iter().filter(|(stage, _)| all.iter().any(|t| t.timeline.contains_key(stage))).collect();
    let columns: Vec<&str> = std::iter::once("pod").chain(shown.iter().map(|s| s.1)).collect();
    let rows = all.iter().map(|t| {
        let mut row = vec![Cell::head(&t.pod)];
        row.extend(shown.iter().map(|(stage, _)| Cell::seconds(t.timeline.get(stage).copied())));
        row
    });
    table("Stages of each termination", "Seconds since t0.", &columns, rows)
}

fn what_if(result: &RunResult) -> Markup {
    let columns: [Column<&WhatIf>; 4] = [
        ("sleep", |w| Cell::head(&format!("{} s", w.pre_stop_seconds))),
        ("windows covered", |w| Cell::number(format!("{} of {}", w.windows_covered, w.terminations))),
        ("drops avoided", |w| Cell::number(count(w.drops_avoided))),
        ("drops left", |w| Cell::number(count(w.drops_left))),
    ];
    let note = "What other settings would have done to the terminations of this run. Not a prediction.";
    table_of("With another preStop sleep", note, &columns, &result.what_if)
}

fn requests(result: &RunResult) -> Markup {
    let r = &result.requests;
    let share = |n: u64| if r.total == 0 { 0.0 } else { n as f64 / r.total as f64 };
    let row =
        |what: &str, n: u64| vec![Cell::head(what), Cell::number(count(n)), Cell::number(percent(share(n)))];
    let mut rows = vec![
        row("answered", r.ok),
        row("dropped", r.dropped),
        row("of those, in the window of a terminating pod", r.in_window),
        row("of these, in flight when its deletion took effect", r.in_flight),
        row("of these, attributed by time and outcome alone", r.by_time),
        row("of those, outside", r.outside_window),
        row("of those, the generator's own stale flows, which no headline counts", r.stale_flow_own),
        row("of those, hidden by the retries of Go's net/http", r.retry_hidden.go_net_http),
        row("of those, hidden by retrying safe and idempotent methods", r.retry_hidden.safe_idempotent),
        row("errors of the app", r.app_errors),
        row("not sent", r.not_sent),
        row("cut off by the end of the run", r.cancelled),
        row("total", r.total),
    ];
    for (outcome, n) in words::by_count(&r.by_outcome) {
        rows.push(row(&format!("outcome {outcome}: {}", words::outcome(outcome)), n));
    }
    for (cause, n) in words::by_count(&r.by_cause) {
        rows.push(row(&format!("cause {}: {}", cause.as_str(), words::cause(cause)), n));
    }
    let note = format!(
        "{} requests/s scheduled for {} s; {} not sent; send lag p50 {}, p99 {}, max {} µs; {} requests of the warm-up not counted.",
        plain(result.load.rate),
        plain(result.load.duration_s),
        count(result.load.not_sent),
        plain(result.load.send_lag_us.p50.round()),
        plain(result.load.send_lag_us.p99.round()),
        plain(result.load.send_lag_us.max.round()),
        count(r.warmup),
    );
    table("Requests", &note, &["", "requests", "share"], rows)
}

fn latency(result: &RunResult) -> Markup {
    let l = &result.latency_ms;
    let (what, _) = words::latency(&result.load);
    let [steady, disrupted] = ["steady", "while a pod ended"].map(|when| format!("{what}, {when}"));
    let rows = [
        ("response time", l.response),
        ("service time", l.service),
        (steady.as_str(), l.steady),
        (disrupted.as_str(), l.disrupted),
    ];
    let rows = rows.into_iter().filter(|(_, p)| p.n > 0).map(|(name, p)| {
        let mut row = vec![Cell::head(name), Cell::number(count(p.n))];
        row.extend([p.p50, p.p90, p.p99, p.p99_9, p.max].map(|v| Cell::number(millis(v))));
        row
    });
    let note = format!(
        "Milliseconds, of answered requests. Response time counts from the intended send time, service time from the \
         actual one, when connecting began or a request was written on an open connection. \
         Longest time in which every request failed: {} s.",
        seconds(result.longest_outage_s)
    );
    table("Latency", &note, &["", "requests", "p50", "p90", "p99", "p99.9", "max"], rows)
}

fn starts(result: &RunResult) -> Markup {
    if result.starts.is_empty() {
        return Markup::default();
    }
    let rows = result.starts.iter().map(|s| {
        let mut row = vec![Cell::head(&s.pod)];
        row.extend(START_STAGES.iter().map(|(stage, _)| Cell::seconds(s.timeline.get(stage).copied())));
        row
    });
    let columns: Vec<&str> = std::iter::once("pod").chain(START_STAGES.iter().map(|s| s.1)).collect();
    table("Starts", "Seconds since the pod was created.", &columns, rows)
}

pub(super) struct Cell {
    pub(super) text: String,
    pub(super) class: &'static str,
    pub(super) head: bool,
}

impl Cell {
    pub(super) fn head(text: &str) -> Self {
        Self { text: text.to_owned(), class: "", head: true }
    }

    pub(super) fn text(text: &str) -> Self {
        Self { text: text.to_owned(), class: "", head: false }
    }

    pub(super) fn seconds(value: Option<f64>) -> Self {
        Self::number(or_none(value, seconds))
    }

    /// A word that is also its class.
    pub(super) fn word(word: &'static str) -> Self {
        Self { text: word.to_owned(), class: word, head: false }
    }

    pub(super) fn number(text: String) -> Self {
        Self { text, class: "number", head: false }
    }
}

impl Render for Cell {
    fn render(&self) -> Markup {
        let class = (!self.class.is_empty()).then_some(self.class);
        html! {
            @if self.head {
                th scope="row" class=[class] { (self.text) }
            } @else {
                td class=[class] { (self.text) }
            }
        }
    }
}

/// A column: its name, and its cell in a row.
type Column<T> = (&'static str, fn(T) -> Cell);

/// A table of these rows under its heading; empty if there are no rows.
fn table_of<T: Copy>(
    title: &str,
    note: &str,
    columns: &[Column<T>],
    rows: impl IntoIterator<Item = T>,
) -> Markup {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let rows = rows.into_iter().map(|row| columns.iter().map(|(_, cell)| cell(row)).collect());
    let rows: Vec<Vec<Cell>> = rows.collect();
    if rows.is_empty() { Markup::default() } else { table(title, note, &names, rows) }
}

/// A table under its heading. A column without a name has a plain cell at its head.
pub(super) fn table(
    title: &str,
    note: &str,
    columns: &[&str],
    rows: impl IntoIterator<Item = Vec<Cell>>,
) -> Markup {
    html! {
        h2 { (title) }
        @if !note.is_empty() {
            p { (note) }
        }
        div.wide {
            table {
                thead {
                    tr {
                        @for column in columns {
                            @if column.is_empty() { td {} } @else { th scope="col" { (column) } }
                        }
                    }
                }
                tbody {
                    @for row in rows {
                        tr { @for cell in row { (cell) } }
                    }
                }
            }
        }
    }
}
