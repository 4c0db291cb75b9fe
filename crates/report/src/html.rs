//! The report as one HTML file: no script, no other resource, the charts inside.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::charts::Chart;
use super::format::{NONE, bounded, count, len, millis, percent, plain, seconds};
use super::words::{self, Remedy};
use rolldrop_analysis::model::{RunResult, Stage, Verdict};

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
    let mut page = begin(&format!("rolldrop: {}", result.scenario));
    answer(&mut page, result);
    checks(&mut page, result);
    figures(&mut page, charts);
    findings(&mut page, result);
    recommendations(&mut page, result);
    windows(&mut page, result);
    terminations(&mut page, result);
    what_if(&mut page, result);
    requests(&mut page, result);
    latency(&mut page, result);
    starts(&mut page, result);
    end(page, &words::provenance(result))
}

/// A page with its title.
pub(super) fn begin(title: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
    )
}

/// The pictures, inside the page.
pub(super) fn figures(page: &mut String, charts: &[Chart]) {
    for chart in charts {
        let _ = writeln!(
            page,
            "<figure><img src=\"data:image/png;base64,{}\" alt=\"{}\"></figure>",
            STANDARD.encode(&chart.png),
            escape(&chart.alt)
        );
    }
}

/// The page, finished.
pub(super) fn end(page: String, footer: &str) -> String {
    page + &format!("<footer><p>{}</p></footer>\n</main>\n</body>\n</html>\n", escape(footer))
}

fn answer(page: &mut String, result: &RunResult) {
    if let Some(warning) = words::warning(result) {
        let _ = writeln!(page, "<p class=\"alarm\" role=\"alert\">{}</p>", escape(&warning));
    }
    let _ = write!(page, "<p class=\"answer\">{}", escape(&words::headline(result)));
    if let Some(whereabouts) = words::whereabouts(result) {
        let _ = write!(page, " {}", escape(&whereabouts));
    }
    page.push_str("</p>\n");
    if let Some(causes) = words::causes(result) {
        let _ = writeln!(page, "<p>Cause: {}.</p>", escape(&causes));
    }
    match words::remedy(result) {
        Some(Remedy::Yaml(yaml, note)) => {
            let _ = writeln!(page, "<p>Remedy: <code>{}</code> ({}).</p>", escape(&yaml), escape(&note));
        }
        Some(Remedy::Words(text)) => {
            let _ = writeln!(page, "<p>Remedy: {}</p>", escape(&text));
        }
        None => {}
    }
    if result.verdict == Verdict::Valid {
        let (word, meaning, _) = words::verdict(&result.verdict);
        let _ = writeln!(page, "<p>Measurement: <strong>{word}</strong> ({meaning}).</p>");
    }
}

fn checks(page: &mut String, result: &RunResult) {
    if result.checks.is_empty() {
        return;
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
    table(page, "Checks", "", &["check", "verdict", "observed", "limit", "why"], rows);
}

fn findings(page: &mut String, result: &RunResult) {
    if result.findings.is_empty() {
        return;
    }
    page.push_str("<h2>Findings</h2>\n<dl>\n");
    for finding in &result.findings {
        let severity = words::severity(finding.severity);
        let _ = writeln!(
            page,
            "<dt><span class=\"{severity}\">{severity}</span> {}</dt>\n<dd>{}</dd>\n<dd class=\"remedy\">{}</dd>",
            escape(&words::sentence(&finding.what)),
            escape(&words::sentence(&finding.why)),
            escape(&words::sentence(&finding.remedy)),
        );
    }
    page.push_str("</dl>\n");
}

fn recommendations(page: &mut String, result: &RunResult) {
    if result.recommendation.is_empty() {
        return;
    }
    page.push_str("<h2>preStop sleep</h2>\n");
    for rec in &result.recommendation {
        let text = words::recommendation(rec).join(" ");
        let _ = writeln!(page, "<p><strong>{}</strong>: {}</p>", words::mode(rec.mode), escape(&text));
        let yaml = words::yaml(rec, &result.cluster.version);
        if !yaml.is_empty() {
            let _ = writeln!(page, "<pre>{}</pre>", escape(&yaml.join("\n")));
        }
        if !rec.consumers.is_empty() {
            let _ = writeln!(page, "<p>Measured towards: {}.</p>", escape(&words::consumers(rec)));
        }
    }
}

fn windows(page: &mut String, result: &RunResult) {
    if result.windows_s.is_empty() {
        return;
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
    table(page, "Endpoint-propagation windows", note, &columns, rows);
}

fn terminations(page: &mut String, result: &RunResult) {
    let all = &result.terminations;
    if all.is_empty() {
        return;
    }
    let rows = all.iter().map(|t| {
        let lost: Vec<String> = words::by_estimate(&t.requests.by_outcome)
            .iter()
            .map(|(o, n)| format!("{} {o}", bounded(n)))
            .collect();
        let causes: Vec<String> = words::by_estimate(&t.requests.by_cause)
            .iter()
            .map(|(c, n)| format!("{} {c}", bounded(n)))
            .collect();
        vec![
            Cell::head(&t.pod),
            Cell::text(t.node.as_deref().unwrap_or(NONE)),
            Cell::text(words::mode(t.mode)),
            Cell::number(bounded(&t.requests.dropped)),
            Cell::number(t.requests.seen.map_or_else(|| NONE.to_owned(), count)),
            Cell::text(&lost.join("; ")),
            Cell::text(&causes.join("; ")),
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
    table(page, "Terminations", note, &columns, rows);
    let groups = words::groups(result);
    if !groups.is_empty() {
        page.push_str("<p>What several pods may have lost. The totals are exact:</p>\n<ul>\n");
        for group in groups {
            let _ = writeln!(page, "<li>{}</li>", escape(&group));
        }
        page.push_str("</ul>\n");
    }
    let causes = words::why_they_ended(all);
    if !causes.is_empty() {
        page.push_str("<p>Why they ended, as far as the cluster says:</p>\n<ul>\n");
        for (whom, why) in causes {
            let _ = writeln!(page, "<li>{}: {}</li>", escape(&whom), escape(why));
        }
        page.push_str("</ul>\n");
    }

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
    table(page, "Window of each termination", note, &columns, rows);

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
    table(page, "Stages of each termination", "Seconds since t0.", &columns, rows);
}

fn what_if(page: &mut String, result: &RunResult) {
    if result.what_if.is_empty() {
        return;
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
        page,
        "With another preStop sleep",
        note,
        &["sleep", "windows covered", "drops avoided", "drops left"],
        rows,
    );
}

fn requests(page: &mut String, result: &RunResult) {
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
    table(page, "Requests", &note, &["", "requests", "share"], rows);
}

fn latency(page: &mut String, result: &RunResult) {
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
    table(page, "Latency", &note, &["", "requests", "p50", "p90", "p99", "p99.9", "max"], rows);
}

fn starts(page: &mut String, result: &RunResult) {
    if result.starts.is_empty() {
        return;
    }
    let rows = result.starts.iter().map(|s| {
        let mut row = vec![Cell::head(&s.pod)];
        row.extend(START_STAGES.iter().map(|(stage, _)| {
            Cell::number(s.timeline.get(*stage).map_or_else(|| NONE.to_owned(), |v| seconds(*v)))
        }));
        row
    });
    let columns: Vec<&str> = std::iter::once("pod").chain(START_STAGES.iter().map(|s| s.1)).collect();
    table(page, "Starts", "Seconds since the pod was created.", &columns, rows);
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

pub(super) fn table(
    page: &mut String,
    title: &str,
    note: &str,
    columns: &[&str],
    rows: impl IntoIterator<Item = Vec<Cell>>,
) {
    let _ = writeln!(page, "<h2>{}</h2>", escape(title));
    if !note.is_empty() {
        let _ = writeln!(page, "<p>{}</p>", escape(note));
    }
    page.push_str("<div class=\"wide\"><table>\n<thead><tr>");
    for column in columns {
        match *column {
            "" => page.push_str("<td></td>"),
            name => {
                let _ = write!(page, "<th scope=\"col\">{}</th>", escape(name));
            }
        }
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        page.push_str("<tr>");
        for cell in row {
            let class =
                if cell.class.is_empty() { String::new() } else { format!(" class=\"{}\"", cell.class) };
            let text = escape(&cell.text);
            let _ = match cell.head {
                true => write!(page, "<th scope=\"row\"{class}>{text}</th>"),
                false => write!(page, "<td{class}>{text}</td>"),
            };
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody>\n</table></div>\n");
}

/// Text that HTML shows as it is, in elements and in quoted attributes.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}
