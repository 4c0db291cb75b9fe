//! The report as one HTML file: no script, no other resource, the charts inside.

use std::fmt::Display;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, Render, html};

use super::charts::Chart;
use super::format::{NONE, bounded, count, len, millis, percent, plain, seconds};
use super::words::{self, Remedy};
use rolldrop_analysis::model::{Bounded, RunResult, Stage, Termination, Verdict};

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
const START_STAGES: [(&str, &str); 5] = [
    ("created", "created"),
    ("ip_reported", "address reported"),
    ("ready", "ready"),
    ("endpoint_ready", "endpoint ready"),
    ("first_request", "first request"),
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
    if result.checks.is_empty() {
        return Markup::default();
    }
    let rows = result.checks.iter().map(|c| {
        let verdict = words::check(c.verdict);
        vec![
            Cell::head(&c.name),
            Cell { text: verdict.to_owned(), class: verdict, head: false },
            Cell::text(&c.observed),
            Cell::text(&c.limit),
            Cell::text(&c.why),
        ]
    });
    table("Checks", "", &["check", "verdict", "observed", "limit", "why"], rows)
}

fn findings(result: &RunResult) -> Markup {
    html! {
        @if !result.findings.is_empty() {
            h2 { "Findings" }
            dl {
                @for finding in &result.findings {
                    @let severity = words::severity(finding.severity);
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
                    p { "Measured towards: " (words::consumers(rec)) "." }
                }
            }
        }
    }
}

fn windows(result: &RunResult) -> Markup {
    if result.windows_s.is_empty() {
        return Markup::default();
    }
    let rows = result.windows_s.iter().map(|w| {
        let optional = |v: Option<f64>| Cell::number(v.map_or_else(|| NONE.to_owned(), seconds));
        let lower =
            w.lower.map_or_else(|| NONE.to_owned(), |(a, b)| format!("{} to {}", seconds(a), seconds(b)));
        vec![
            Cell::head(&w.consumer),
            Cell::text(words::mode(w.mode)),
            Cell::number(count(len(w.n))),
            Cell::number(lower),
            optional(w.p50),
            optional(w.p90),
            optional(w.p99),
            optional(w.max),
            Cell::number(count(len(w.censored))),
        ]
    });
    let columns = [
        "consumer",
        "mode",
        "pods",
        "lower bounds",
        "upper p50",
        "upper p90",
        "upper p99",
        "upper max",
        "censored",
    ];
    let note = "How long new connections still went to a pod after its deletion, in seconds.";
    table("Endpoint-propagation windows", note, &columns, rows)
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
    fn list<K: Display>(counts: Vec<(K, Bounded)>) -> String {
        counts.iter().map(|(what, n)| format!("{} {what}", bounded(n))).collect::<Vec<_>>().join("; ")
    }
    let rows = all.iter().map(|t| {
        vec![
            Cell::head(&t.pod),
            Cell::text(t.node.as_deref().unwrap_or(NONE)),
            Cell::text(words::mode(t.mode)),
            Cell::number(bounded(&t.requests.dropped)),
            Cell::number(t.requests.seen.map_or_else(|| NONE.to_owned(), count)),
            Cell::text(&list(words::by_estimate(&t.requests.by_outcome))),
            Cell::text(&list(words::by_estimate(&t.requests.by_cause))),
            Cell::text(&words::longest_window(t).map_or_else(|| NONE.to_owned(), words::window)),
            Cell::number(format!("{} s", seconds(t.t0_uncertainty_s))),
            Cell::number(t.dead_seconds.map_or_else(|| NONE.to_owned(), |v| format!("{} s", seconds(v)))),
            Cell::number(t.exit_code.map_or_else(|| NONE.to_owned(), |code| code.to_string())),
        ]
    });
    let columns = [
        "pod",
        "node",
        "mode",
        "dropped",
        "requests",
        "classes",
        "causes",
        "window since t0",
        "t0 within",
        "dead time",
        "exit code",
    ];
    let note = "t0 is when the deletion took effect; it is known within the time given. Dead time: the best estimate of the new connections \
                that the pod dropped, divided by the rate at which it got new connections before.";
    table("Terminations", note, &columns, rows)
}

fn each_window(all: &[Termination]) -> Markup {
    let rows = all.iter().flat_map(|t| t.windows.iter().map(move |w| (t, w))).map(|(t, w)| {
        vec![
            Cell::head(&t.pod),
            Cell::text(&w.consumer),
            Cell::number(w.lower_s.map_or_else(|| NONE.to_owned(), seconds)),
            Cell::number(w.upper_s.map_or_else(|| NONE.to_owned(), seconds)),
            Cell::text(&words::basis(w)),
            Cell::text(w.censored.as_deref().unwrap_or_default()),
            Cell::number(count(w.late_arrivals)),
            Cell::number(plain(w.rate_before)),
        ]
    });
    let columns = [
        "pod",
        "consumer",
        "lower bound",
        "upper bound",
        "known by",
        "censored because",
        "late arrivals",
        "new connections/s before",
    ];
    let note = "Seconds since t0. Late arrivals: new connections that came after t0.";
    table("Window of each termination", note, &columns, rows)
}

fn each_stage(all: &[Termination]) -> Markup {
    let shown: Vec<(Stage, &str)> =
        STAGES.into_iter().filter(|(stage, _)| all.iter().any(|t| t.timeline.contains_key(stage))).collect();
    let columns: Vec<&str> = std::iter::once("pod").chain(shown.iter().map(|s| s.1)).collect();
    let rows = all.iter().map(|t| {
        let mut row = vec![Cell::head(&t.pod)];
        row.extend(shown.iter().map(|(stage, _)| {
            Cell::number(t.timeline.get(stage).map_or_else(|| NONE.to_owned(), |v| seconds(*v)))
        }));
        row
    });
    table("Stages of each termination", "Seconds since t0.", &columns, rows)
}

fn what_if(result: &RunResult) -> Markup {
    if result.what_if.is_empty() {
        return Markup::default();
    }
    let rows = result.what_if.iter().map(|w| {
        vec![
            Cell::head(&format!("{} s", w.pre_stop_seconds)),
            Cell::number(format!("{} of {}", w.windows_covered, w.terminations)),
            Cell::number(count(w.drops_avoided)),
            Cell::number(count(w.drops_left)),
        ]
    });
    let note = "What other settings would have done to the terminations of this run. Not a prediction.";
    table(
        "With another preStop sleep",
        note,
        &["sleep", "windows covered", "drops avoided", "drops left"],
        rows,
    )
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
        row.extend(START_STAGES.iter().map(|(stage, _)| {
            Cell::number(s.timeline.get(*stage).map_or_else(|| NONE.to_owned(), |v| seconds(*v)))
        }));
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
