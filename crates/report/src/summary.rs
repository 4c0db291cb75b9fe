//! Renders the summary for stdout: the conclusion first, then the evidence.

mod stream_lines;

use super::check_words;
use super::format::{count, counted, len, list, millis, millis_unit, or_none, percent, seconds_unit, wrap};
use super::words::{self, Remedy};
use rolldrop_canvas::shorten;
use rolldrop_explain::model::{
    CheckText, CheckVerdict, Recommendation, RunResult, Severity, Termination, Verdict,
};

/// Maximum number of terminations that are listed individually; one line summarises the rest.
const LISTED: usize = 12;
/// Minimum width that the columns require.
const MIN_WIDTH: usize = 72;

/// Layout options for text output.
#[derive(Clone, Debug)]
pub struct TextOptions {
    /// True if the text is coloured for a terminal.
    pub color: bool,
    /// Number of characters per line.
    pub width: usize,
    /// Location of the report and the charts, printed at the end; `None` if they were not written.
    pub files: Option<String>,
}

impl Default for TextOptions {
    fn default() -> Self {
        Self { color: false, width: 100, files: None }
    }
}

pub(super) fn render(result: &RunResult, options: &TextOptions) -> String {
    let mut page = TextPage::new(options);
    answer(&mut page, result);
    terminations(&mut page, result);
    stream_lines::text(&mut page, result);
    windows(&mut page, result);
    for rec in &result.recommendation {
        recommendation(&mut page, rec, &result.cluster.version);
    }
    latency(&mut page, result);
    findings(&mut page, result);
    checks(&mut page, result);
    close(&mut page, result, options.files.as_deref());
    page.out
}

/// Meanings that text colours express.
#[derive(Clone, Copy)]
pub(super) enum Paint {
    Bold,
    Good,
    Bad,
    Caution,
}

pub(super) struct TextPage {
    pub(super) out: String,
    width: usize,
    color: bool,
}

impl TextPage {
    pub(super) fn new(options: &TextOptions) -> Self {
        Self { out: String::new(), width: options.width.max(MIN_WIDTH), color: options.color }
    }

    /// Returns the width of a column of names to the left of these lines. Names are shortened if there is not enough
    /// room.
    fn name_width(&self, names: &[&str], lines: &[String]) -> usize {
        let room = self.width.saturating_sub(4 + lines.first().map_or(0, |line| line.chars().count()));
        let longest = names.iter().take(lines.len()).map(|name| name.chars().count()).max().unwrap_or(0);
        longest.min(room).max(8)
    }

    pub(super) fn paint(&self, paint: Paint, text: &str) -> String {
        let code = match paint {
            Paint::Bold => "1",
            Paint::Good => "32",
            Paint::Bad => "1;31",
            Paint::Caution => "33",
        };
        if self.color { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }

    pub(super) fn line(&mut self, text: &str) {
        self.out.push_str(text.trim_end());
        self.out.push('\n');
    }

    /// Writes a heading after a blank line.
    pub(super) fn heading(&mut self, title: &str, note: &str) {
        let painted = self.paint(Paint::Bold, title);
        self.line("");
        if title.len() + note.len() + 3 <= self.width {
            self.line(&format!("{painted}   {note}"));
        } else {
            self.line(&painted);
            self.paragraph("", 2, None, note);
        }
    }

    /// Writes a paragraph, indented by `indent` spaces. The first line begins with `lead` instead of the indentation.
    pub(super) fn paragraph(&mut self, lead: &str, indent: usize, paint: Option<Paint>, text: &str) {
        for (i, line) in wrap(text, self.width.saturating_sub(indent)).iter().enumerate() {
            let line = paint.map_or_else(|| line.clone(), |paint| self.paint(paint, line));
            let start = if i == 0 { format!("{lead:indent$}") } else { " ".repeat(indent) };
            self.line(&format!("{start}{line}"));
        }
    }
}

fn answer(page: &mut TextPage, result: &RunResult) {
    if let Some(warning) = words::warning(result) {
        page.paragraph("", 0, Some(Paint::Bad), &warning);
        page.line("");
    }
    page.paragraph("", 0, Some(Paint::Bold), &words::headline(result));
    if let Some(whereabouts) = words::whereabouts(result) {
        page.paragraph("", 0, None, &whereabouts);
    }
    let outcomes = words::dropped_by_outcome(&result.requests);
    for (i, (outcome, n)) in outcomes.iter().enumerate() {
        let lead = if i == 0 { "  class" } else { "" };
        page.paragraph(lead, 9, None, &format!("{} {outcome}: {}", count(*n), words::outcome(*outcome)));
    }
    let causes = words::dropped_by_cause(&result.requests);
    for (i, (cause, n)) in causes.iter().enumerate() {
        let lead = if i == 0 { "  cause" } else { "" };
        page.paragraph(lead, 9, None, &format!("{} {}: {}", count(*n), cause.as_str(), words::cause(*cause)));
    }
    match words::remedy(result) {
        Some(Remedy::Yaml(yaml, note)) => {
            // The YAML stays on one line so that it can be copied.
            page.line(&format!("  remedy {yaml}"));
            page.paragraph("", 9, None, &format!("({note})"));
        }
        Some(Remedy::Words(text)) => page.paragraph("  remedy", 9, None, &text),
        None => {}
    }
    if let Some((most, _)) = causes.first() {
        page.line(&format!("  more   rolldrop explain {most}"));
    }
    let requests = &result.requests;
    let not_sent = words::not_sent(requests);
    let other: Vec<String> = [
        (requests.app_errors, "answered with an app error"),
        (requests.not_sent, not_sent.as_str()),
        (requests.cancelled, "cut off by the end of the run"),
        (
            requests.stale_flow_own,
            "lost to the load generator's own stale flows, because it reused source ports",
        ),
    ]
    .into_iter()
    .filter(|(n, _)| *n > 0)
    .map(|(n, what)| format!("{} {what}", count(n)))
    .collect();
    if !other.is_empty() {
        page.paragraph("  besides", 11, None, &format!("{}; none of these counts as dropped", list(&other)));
    }
    page.paragraph("  run", 9, None, &words::provenance(result));
}

fn terminations(page: &mut TextPage, result: &RunResult) {
    let all = &result.terminations;
    if all.is_empty() {
        return;
    }
    page.heading(
        "TERMINATIONS",
        match all.iter().any(|t| t.windows.len() > 1) {
            false => "windows count from t0, when the deletion took effect",
            true => "windows count from t0, when the deletion took effect; a pod's longest is shown",
        },
    );
    let mut order: Vec<&Termination> = all.iter().collect();
    if all.len() > LISTED {
        order.sort_by(|a, b| words::most_lost_first(a, b));
    }
    let header = ["mode", "dropped", "window", "t0 within", "exit"].map(str::to_owned);
    let rows = order.iter().take(LISTED).map(|t| {
        [
            words::mode(t.mode).to_owned(),
            words::dropped_of(t) + &words::errors_of(t),
            words::longest(t),
            seconds_unit(t.t0_uncertainty_s),
            or_none(t.exit_code, |code| code.to_string()),
        ]
    });
    let lines = columns(&std::iter::once(header).chain(rows).collect::<Vec<_>>(), &[1, 3, 4]);
    let names: Vec<&str> = std::iter::once("pod").chain(order.iter().map(|t| t.pod.as_str())).collect();
    let width = page.name_width(&names, &lines);
    for (name, line) in names.iter().zip(&lines) {
        page.line(&format!("  {:width$}  {line}", shorten(name, width)));
    }
    if order.len() > LISTED {
        page.line(&format!("  and {}", words::further(order.len() - LISTED, order[LISTED - 1])));
    }
    for (i, group) in words::groups(result).iter().enumerate() {
        page.paragraph(if i == 0 { "  shared" } else { "" }, 9, None, group);
    }
    let causes = words::why_they_ended(all);
    for (i, (whom, why)) in causes.iter().take(LISTED).enumerate() {
        page.paragraph(if i == 0 { "  why" } else { "" }, 9, None, &format!("{whom}: {why}"));
    }
    if let Some(more @ 1..) = causes.len().checked_sub(LISTED) {
        page.paragraph("", 9, None, &format!("and {}", counted(len(more), "other cause")));
    }
}

fn windows(page: &mut TextPage, result: &RunResult) {
    if result.windows_s.is_empty() {
        return;
    }
    page.heading(
        "ENDPOINT-PROPAGATION WINDOW",
        "how long new connections still went to a pod after its deletion",
    );
    for summary in &result.windows_s {
        let text = format!("{}: {}", summary.consumer, words::window_summary(summary));
        page.paragraph("", 2, None, &text);
    }
    for why in words::censored(&result.terminations) {
        page.paragraph("", 2, None, &why);
    }
}

fn recommendation(page: &mut TextPage, rec: &Recommendation, version: &str) {
    page.heading("PRESTOP SLEEP", &format!("for pods that end {}", words::manner(rec.mode)));
    page.paragraph("", 2, None, &words::recommendation(rec).join(" "));
    for line in words::yaml(rec, version) {
        page.line(&format!("      {line}"));
    }
}

fn latency(page: &mut TextPage, result: &RunResult) {
    let latencies = &result.latency_ms;
    if latencies.steady.n + latencies.disrupted.n == 0 {
        return;
    }
    let (what, from) = words::latency(&result.load);
    page.heading("LATENCY", &format!("{what} of answered requests, {from}"));
    page.line(&format!("  {:<26}  {:>9}  {:>11}  {:>11}  {:>11}", "", "requests", "p50", "p99", "max"));
    let rows = [("steady", latencies.steady), ("while a pod ended", latencies.disrupted)];
    for (name, p) in rows.into_iter().filter(|(_, p)| p.n > 0) {
        let [p50, p99] = words::FEW_PERCENTILES.map(|figure| words::latency_figure(&p, figure, millis_unit));
        let max = millis_unit(p.max);
        page.line(&format!("  {name:<26}  {:>9}  {p50:>11}  {p99:>11}  {max:>11}", count(p.n)));
    }
    let parts = rows.iter().map(|(_, p)| p);
    if let Some(why) = words::missing_figures(parts, &words::FEW_PERCENTILES, words::FEW_ANSWERS) {
        page.paragraph("", 2, None, &why);
    }
    if result.longest_outage_s > 0.0 {
        page.line(&format!(
            "  longest time in which every request failed: {}",
            words::longest_outage(result)
        ));
    }
}

fn findings(page: &mut TextPage, result: &RunResult) {
    if result.findings.is_empty() {
        return;
    }
    page.heading("FINDINGS", "");
    for finding in &result.findings {
        let paint = match finding.severity {
            Severity::Error => Some(Paint::Bad),
            Severity::Warning => Some(Paint::Caution),
            Severity::Info => None,
        };
        page.paragraph(&format!("  {}", finding.severity), 11, paint, &words::sentence(&finding.what));
        let text = [&finding.why, &finding.remedy].map(|text| words::sentence(text)).join(" ");
        page.paragraph("", 11, None, &text);
    }
}

fn checks(page: &mut TextPage, result: &RunResult) {
    if result.checks.is_empty() {
        return;
    }
    page.heading("CHECKS", "");
    // Passed checks need no explanation, so one paragraph lists all of them.
    let passed = |c: &&CheckText| c.verdict == CheckVerdict::Pass;
    let met: Vec<String> = result
        .checks
        .iter()
        .filter(passed)
        .map(|c| format!("{}: observed {}, limit {}", c.name, c.observed, c.limit))
        .collect();
    if !met.is_empty() {
        page.paragraph("  pass", 16, Some(Paint::Good), &met.join("; "));
    }
    for check in result.checks.iter().filter(|c| !passed(c)) {
        let paint = match check.verdict {
            CheckVerdict::Fail => Paint::Bad,
            _ => Paint::Caution,
        };
        let word = page.paint(paint, &format!("{:<12}", check.verdict.as_str()));
        let mut text = format!("{}: observed {}, limit {}", check.name, check.observed, check.limit);
        let reason = check_words::reason(check);
        if !reason.is_empty() {
            text = format!("{text}; {reason}");
        }
        for (i, line) in wrap(&text, page.width - 16).iter().enumerate() {
            let start = if i == 0 { format!("  {word}  ") } else { " ".repeat(16) };
            page.line(&format!("{start}{line}"));
        }
    }
}

fn close(page: &mut TextPage, result: &RunResult, files: Option<&str>) {
    let (word, meaning, why) = words::verdict(&result.verdict);
    let paint = if result.verdict == Verdict::Valid { Paint::Good } else { Paint::Bad };
    page.line("");
    let lag = &result.load.send_lag_us;
    let head = page.paint(paint, word);
    page.line(&format!("{head}: {meaning}"));
    for reason in why {
        page.paragraph("  because", 11, None, reason);
    }
    page.line(&format!(
        "  {} of {} requests not sent ({}); send lag p99 {} ms, max {} ms",
        count(result.load.not_sent),
        count(result.load.scheduled),
        percent(share(result.load.not_sent, result.load.scheduled)),
        millis(lag.p99 / 1e3),
        millis(lag.max / 1e3),
    ));
    for (verdict, word, paint) in [
        (CheckVerdict::Fail, "GATE FAILED", Paint::Bad),
        (CheckVerdict::Inconclusive, "GATE INCONCLUSIVE", Paint::Caution),
    ] {
        let names = words::checks_with(&result.checks, verdict);
        if !names.is_empty() {
            page.paragraph("", 0, Some(paint), &format!("{word}: {}", list(&names)));
            break;
        }
    }
    if let Some(files) = files {
        let directory = files.trim_end_matches('/');
        page.line(&format!("Report: {directory}/report.html, charts in {directory}/charts"));
    }
}

/// Aligns rows in columns, two spaces apart. The columns listed in `right` hold numbers.
pub(super) fn columns<Row: AsRef<[String]>>(rows: &[Row], right: &[usize]) -> Vec<String> {
    let number = rows.first().map_or(0, |row| row.as_ref().len());
    let width = |i: usize| rows.iter().map(|row| row.as_ref()[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..number).map(width).collect();
    let cell = |(i, text): (usize, &String)| match (right.contains(&i), widths[i]) {
        (true, width) => format!("{text:>width$}"),
        (false, width) => format!("{text:width$}"),
    };
    rows.iter().map(|row| row.as_ref().iter().enumerate().map(cell).collect::<Vec<_>>().join("  ")).collect()
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
