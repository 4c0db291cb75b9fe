//! Renders the report as one self-contained HTML file, with embedded charts and a small script. Everything is visible
//! without the script.

mod stream_page;
mod terminations;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, Render, html};

use super::charts::{Chart, ChartReading};
use super::check_words;
use super::format::{count, len, list, millis, or_none, percent, plain, seconds};
use super::words::{self, Remedy};
use rolldrop_explain::model::{
    CheckText, FindingText, Mode, RunResult, StartStage, Verdict, WhatIf, WindowSummary,
};
use rolldrop_judge::standing::Standing;

const STYLE: &str = include_str!("html/style.css");
const SCRIPT: &str = include_str!("html/page.js");

/// Maximum number of pods for the aligned chart. For more pods, or pods that did not end one by one, a chart over the
/// run's time is clearer.
const ALIGNED: usize = 8;

/// Maximum number of findings with the same remedy that are shown in full; more are folded.
const FEW_ALIKE: usize = 3;

/// Stages of a start, with their names.
const START_STAGES: [(StartStage, &str); 5] = [
    (StartStage::Created, "created"),
    (StartStage::IpReported, "address reported"),
    (StartStage::Ready, "ready"),
    (StartStage::EndpointReady, "endpoint ready"),
    (StartStage::FirstRequest, "first request"),
];

/// Renders the report on a result.
pub(super) fn render(result: &RunResult, charts: &[Chart]) -> String {
    let first = first_picture(result, charts);
    let others: Vec<&Chart> = charts.iter().filter(|chart| Some(chart.name) != first).collect();
    let sections = [
        ("Checks", checks(result)),
        ("Findings", findings(result)),
        ("preStop sleep", recommendations(result)),
        ("Terminations", terminations::section(result)),
        ("Streams", stream_page::html(result)),
        (
            "Pictures",
            html! {
                @if !others.is_empty() { h2 #(id("Pictures")) { "Pictures" } @for chart in others { (figure(chart)) } }
            },
        ),
        ("Endpoint-propagation windows", windows(result)),
        ("With a different preStop sleep", what_if(result)),
        ("Requests", requests(result)),
        ("Latency", latency(result)),
        ("Starts", starts(result)),
    ];
    let sections: Vec<(&str, Markup)> = sections.into_iter().filter(|(_, body)| !body.0.is_empty()).collect();
    page(
        &format!("rolldrop: {}", result.scenario),
        &html! {
            (answer(result))
            nav aria-label="Contents" {
                ul { @for (name, _) in &sections { li { a href={ "#" (id(name)) } { (name) } } } }
            }
            @for chart in charts.iter().filter(|chart| Some(chart.name) == first) { (figure(chart)) }
            @for (_, body) in &sections { (body) }
        },
        &words::provenance(result),
    )
}

/// Returns the chart that suits the run. A few pods that ended one by one are clearest side by side, aligned at their
/// deletions.
fn first_picture(result: &RunResult, charts: &[Chart]) -> Option<&'static str> {
    let ended = &result.terminations;
    let is_aligned = ended.len() <= ALIGNED && ended.iter().all(|t| t.mode == Mode::Isolated);
    let wanted = match ended.is_empty() {
        false if is_aligned => ["drops.png", "rollout.png", "timeline.png"],
        _ => ["rollout.png", "timeline.png", "drops.png"],
    };
    wanted.into_iter().find(|name| charts.iter().any(|chart| chart.name == *name))
}

/// Returns the id of a section, for links to it.
fn id(title: &str) -> String {
    title.to_lowercase().replace(' ', "-")
}

/// Renders a self-contained page.
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
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    page.into_string() + "\n"
}

/// Renders a chart, embedded in the page, along with its values: one line per value, with the area of the picture that
/// shows it.
pub(super) fn figure(chart: &Chart) -> Markup {
    let told = |reading: &ChartReading| {
        let [left, top, width, height] = reading.area;
        format!("{left} {top} {width} {height} {}", reading.text)
    };
    let readings: Vec<String> = chart.readings.iter().map(told).collect();
    html! {
        figure {
            div.picture tabindex="0" role="region" aria-label=(chart.title) data-readings=(readings.join("\n")) {
                img src={ "data:image/png;base64," (STANDARD.encode(&chart.png)) } alt=(chart.alt);
            }
            figcaption {
                @if !readings.is_empty() {
                    span { "Point at the picture, tap it, or focus it and press the arrow keys to read its values." }
                }
                button.zoom type="button" { "Zoom" }
            }
        }
    }
}

/// Renders text with a copy button.
fn copyable(of: &str, text: Markup) -> Markup {
    html! {
        div.copyable {
            (text)
            button.copy type="button" data-of=(of) { "Copy" }
        }
    }
}

/// Renders lines of YAML with a copy button.
fn code(of: &str, text: &str) -> Markup {
    copyable(of, html! { pre id=(of) tabindex="0" { (text) } })
}

/// Renders the first screen: verdict, conclusion, cause and remedy.
fn answer(result: &RunResult) -> Markup {
    let (_, meaning, _) = words::verdict(&result.verdict);
    let standing = Standing::of(result);
    let look = match standing {
        Standing::Measured => "info",
        Standing::Passed => "good",
        Standing::Failed | Standing::Invalid => "bad",
        _ => "caution",
    };
    html! {
        p {
            strong.state.(look) { (standing.as_str().replace('_', " ")) }
            " "
            (words::sentence(&format!("the run {}", words::standing(result))))
            @if result.verdict == Verdict::Valid { " " (words::sentence(meaning)) }
        }
        @if let Some(warning) = words::warning(result) {
            p.alarm role="alert" { (warning) }
        }
        p.answer { (words::headline(result)) }
        @if let Some(whereabouts) = words::whereabouts(result) { p { (whereabouts) } }
        @if let Some(causes) = words::causes(result) {
            p { strong { "Cause: " } (causes) "." }
        }
        @match words::remedy(result) {
            Some(Remedy::Yaml(yaml, note)) => {
                p { strong { "Remedy" } " (" (note) "):" }
                (code("remedy", &yaml))
            },
            Some(Remedy::Words(text)) => {
                (copyable("remedy", html! { p { strong { "Remedy: " } span #remedy { (text) } } }))
            },
            None => {},
        }
    }
}

fn checks(result: &RunResult) -> Markup {
    let columns: [TableColumn<&CheckText>; 5] = [
        ("check", |c| HtmlCell::head(&c.name)),
        ("verdict", |c| HtmlCell::word(c.verdict.as_str())),
        ("observed", |c| HtmlCell::text(&c.observed)),
        ("limit", |c| HtmlCell::text(&c.limit)),
        ("why", |c| HtmlCell::text(&check_words::reason(c))),
    ];
    table_of("Checks", "", &columns, &result.checks)
}

fn findings(result: &RunResult) -> Markup {
    // Findings about a cause are never grouped.
    let is_alike = |a: &FindingText, b: &FindingText| {
        a.cause.is_none() && b.cause.is_none() && (a.severity, &a.remedy) == (b.severity, &b.remedy)
    };
    html! {
        @if !result.findings.is_empty() {
            h2 #findings { "Findings" }
            dl {
                @for alike in result.findings.chunk_by(is_alike) {
                    @let (shown, folded) = alike.split_at(if alike.len() > FEW_ALIKE { 1 } else { alike.len() });
                    @for finding in shown {
                        @let severity = finding.severity.as_str();
                        dt { span class=(severity) { (severity) } " " (words::sentence(&finding.what)) }
                        dd { (words::sentence(&finding.why)) }
                        dd.remedy { (words::sentence(&finding.remedy)) }
                    }
                    @if !folded.is_empty() {
                        dd {
                            details {
                                summary { (count(len(folded.len()))) " more with the same remedy" }
                                ul {
                                    @for finding in folded {
                                        li { (words::sentence(&finding.what)) " " (words::sentence(&finding.why)) }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn recommendations(result: &RunResult) -> Markup {
    html! {
        @if !result.recommendation.is_empty() {
            h2 #(id("preStop sleep")) { "preStop sleep" }
            @for (i, rec) in result.recommendation.iter().enumerate() {
                p { strong { (words::mode(rec.mode)) } ": " (words::recommendation(rec).join(" ")) }
                @let yaml = words::yaml(rec, &result.cluster.version);
                @if !yaml.is_empty() {
                    (code(&format!("recommendation-{i}"), &yaml.join("\n")))
                }
                @if !rec.consumers.is_empty() {
                    p { "Measured for: " (list(&rec.consumers)) "." }
                }
            }
        }
    }
}

fn windows(result: &RunResult) -> Markup {
    let columns: [TableColumn<&WindowSummary>; 9] = [
        ("consumer", |w| HtmlCell::head(&w.consumer)),
        ("mode", |w| HtmlCell::text(words::mode(w.mode))),
        ("pods", |w| HtmlCell::number(count(len(w.n)))),
        ("lower bounds", |w| {
            HtmlCell::number(or_none(w.lower, |(a, b)| format!("{} to {}", seconds(a), seconds(b))))
        }),
        ("upper p50", |w| HtmlCell::seconds(w.p50)),
        ("upper p90", |w| HtmlCell::seconds(w.p90)),
        ("upper p99", |w| HtmlCell::seconds(w.p99)),
        ("upper max", |w| HtmlCell::seconds(w.max)),
        ("censored", |w| HtmlCell::number(count(len(w.censored)))),
    ];
    let note = "How long new connections still went to a pod after its deletion, in seconds.";
    table_of("Endpoint-propagation windows", note, &columns, &result.windows_s)
}

fn what_if(result: &RunResult) -> Markup {
    let columns: [TableColumn<&WhatIf>; 4] = [
        ("sleep", |w| HtmlCell::head(&format!("{} s", w.pre_stop_seconds))),
        ("windows covered", |w| HtmlCell::number(format!("{} of {}", w.windows_covered, w.terminations))),
        ("drops avoided", |w| HtmlCell::number(count(w.drops_avoided))),
        ("drops left", |w| HtmlCell::number(count(w.drops_left))),
    ];
    let note = "How the terminations of this run would have ended with other settings; not a prediction.";
    table_of("With a different preStop sleep", note, &columns, &result.what_if)
}

fn requests(result: &RunResult) -> Markup {
    let r = &result.requests;
    let share = |n: u64| if r.total == 0 { 0.0 } else { n as f64 / r.total as f64 };
    let row = |what: &str, n: u64| {
        vec![HtmlCell::head(what), HtmlCell::number(count(n)), HtmlCell::number(percent(share(n)))]
    };
    let mut rows = vec![
        row("answered", r.ok),
        row("dropped", r.dropped),
        row("dropped within the window of a terminating pod", r.in_window),
        row("dropped within a window, in flight when the deletion took effect", r.in_flight),
        row("dropped within a window, attributed by time and outcome alone", r.by_time),
        row("all other dropped requests", r.outside_window),
        row(
            "dropped because of the load generator's own stale flows, not counted in the headline",
            r.stale_flow_own,
        ),
        row("dropped; Go's net/http retries would have hidden them", r.retry_hidden.go_net_http),
        row(
            "dropped; retries of safe and idempotent methods would have hidden them",
            r.retry_hidden.safe_idempotent,
        ),
        row("app errors", r.app_errors),
        row("app errors: 5xx while pods were terminating", r.app_errors_while_ending),
        row(&words::not_sent(r), r.not_sent),
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
        "{} requests/s scheduled for {} s; {} not sent; send lag p50 {}, p99 {}, max {} µs; {} warm-up requests not counted.",
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
        let mut row = vec![HtmlCell::head(name), HtmlCell::number(count(p.n))];
        let figure = |figure| HtmlCell::number(words::latency_figure(&p, figure, millis));
        row.extend(words::PERCENTILES.map(figure));
        row.push(HtmlCell::number(millis(p.max)));
        row
    });
    let parts = [&l.response, &l.service, &l.steady, &l.disrupted];
    let missing = words::missing_figures(parts, &words::PERCENTILES, words::FEW_ANSWERS);
    let missing = missing.map_or_else(String::new, |why| format!(" {why}."));
    let note = format!(
        "Milliseconds, of answered requests. Response time counts from the intended send time, service time from the \
         actual one, when connecting began or a request was written on an open connection. \
         Longest time in which every request failed: {}.{missing}",
        words::longest_outage(result)
    );
    table("Latency", &note, &["", "requests", "p50", "p90", "p99", "p99.9", "max"], rows)
}

fn starts(result: &RunResult) -> Markup {
    if result.starts.is_empty() {
        return Markup::default();
    }
    let rows = result.starts.iter().map(|s| {
        let mut row = vec![HtmlCell::head(&s.pod)];
        row.extend(START_STAGES.iter().map(|(stage, _)| HtmlCell::seconds(s.timeline.get(stage).copied())));
        row
    });
    let columns: Vec<&str> = std::iter::once("pod").chain(START_STAGES.iter().map(|s| s.1)).collect();
    table("Starts", "Seconds since the pod was created.", &columns, rows)
}

pub(super) struct HtmlCell {
    pub(super) text: String,
    pub(super) class: &'static str,
    pub(super) head: bool,
    /// Sort key of the cell; `None` to sort by its text.
    value: Option<f64>,
}

impl HtmlCell {
    pub(super) fn head(text: &str) -> Self {
        Self { text: text.to_owned(), class: "", head: true, value: None }
    }

    pub(super) fn text(text: &str) -> Self {
        Self { text: text.to_owned(), class: "", head: false, value: None }
    }

    /// Makes a cell with one line per item.
    fn lines(lines: &[String]) -> Self {
        Self { text: lines.join("\n"), class: "lines", head: false, value: None }
    }

    pub(super) fn seconds(value: Option<f64>) -> Self {
        Self::number(or_none(value, seconds))
    }

    /// Makes a cell whose word is also its CSS class.
    pub(super) fn word(word: &'static str) -> Self {
        Self { text: word.to_owned(), class: word, head: false, value: None }
    }

    /// Returns the cell with `value` as its sort key.
    fn sorted_by(self, value: Option<f64>) -> Self {
        Self { value: value.filter(|value| value.is_finite()), ..self }
    }

    pub(super) fn number(text: String) -> Self {
        Self { text, class: "number", head: false, value: None }
    }
}

impl Render for HtmlCell {
    fn render(&self) -> Markup {
        let class = (!self.class.is_empty()).then_some(self.class);
        html! {
            @if self.head {
                th scope="row" class=[class] { (self.text) }
            } @else {
                td class=[class] data-value=[self.value] { (self.text) }
            }
        }
    }
}

/// A table column: its name, and the function that makes its cell for a row.
type TableColumn<T> = (&'static str, fn(T) -> HtmlCell);

/// Renders a table of these rows under a heading, or nothing if there are no rows.
fn table_of<T: Copy>(
    title: &str,
    note: &str,
    columns: &[TableColumn<T>],
    rows: impl IntoIterator<Item = T>,
) -> Markup {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let rows = rows.into_iter().map(|row| columns.iter().map(|(_, cell)| cell(row)).collect());
    let rows: Vec<Vec<HtmlCell>> = rows.collect();
    if rows.is_empty() { Markup::default() } else { table(title, note, &names, rows) }
}

/// Renders a table under a heading. The head of a column without a name is a plain cell.
pub(super) fn table(
    title: &str,
    note: &str,
    columns: &[&str],
    rows: impl IntoIterator<Item = Vec<HtmlCell>>,
) -> Markup {
    html! {
        h2 #(id(title)) { (title) }
        @if !note.is_empty() {
            p { (note) }
        }
        (scrolled(title, table_body(columns, rows)))
    }
}

/// Renders a table without a heading.
fn table_body(columns: &[&str], rows: impl IntoIterator<Item = Vec<HtmlCell>>) -> Markup {
    html! {
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

/// Renders a block that scrolls sideways on its own if it is too wide.
fn scrolled(title: &str, body: Markup) -> Markup {
    html! { div.wide tabindex="0" role="region" aria-label=(title) { (body) } }
}
