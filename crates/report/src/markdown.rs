//! Renders the summary as Markdown, for a CI job summary or a post-mortem.

mod stream_tables;

use std::fmt::Write as _;

use super::check_words;
use super::format::{bounded, count, counted, len, millis_unit, or_none, seconds};
use super::words::{self, Remedy};
use rolldrop_explain::model::{RunResult, Termination};

/// Maximum number of terminations that are listed individually.
const LISTED: usize = 20;

pub(super) fn render(result: &RunResult) -> String {
    let mut out = String::new();
    section(&mut out, &format!("# rolldrop: {}", escape(&result.scenario)));
    if let Some(warning) = words::warning(result) {
        section(&mut out, &format!("> [!CAUTION]\n> **{}**", escape(&warning)));
    }
    let mut answer = format!("**{}**", escape(&words::headline(result)));
    if let Some(whereabouts) = words::whereabouts(result) {
        let _ = write!(answer, " {}", escape(&whereabouts));
    }
    section(&mut out, &answer);
    let mut lost = Vec::new();
    for (outcome, n) in words::dropped_by_outcome(&result.requests) {
        lost.push(format!("- class: {} `{outcome}` ({})", count(n), words::outcome(outcome)));
    }
    for (cause, n) in words::dropped_by_cause(&result.requests) {
        lost.push(format!("- cause: {} `{}` ({})", count(n), cause.as_str(), words::cause(cause)));
    }
    match words::remedy(result) {
        Some(Remedy::Yaml(yaml, note)) => lost.push(format!("- remedy: `{yaml}` ({note})")),
        Some(Remedy::Words(text)) => lost.push(format!("- remedy: {}", escape(&text))),
        None => {}
    }
    section(&mut out, &lost.join("\n"));
    terminations(&mut out, result);
    stream_tables::markdown(&mut out, result);
    windows(&mut out, result);
    recommendations(&mut out, result);
    latency(&mut out, result);
    findings(&mut out, result);
    checks(&mut out, result);
    let (word, meaning, _) = words::verdict(&result.verdict);
    section(&mut out, &format!("Measurement: **{word}** ({meaning})."));
    section(&mut out, &format!("<sub>{}</sub>", escape(&words::provenance(result))));
    out
}

fn terminations(out: &mut String, result: &RunResult) {
    let all = &result.terminations;
    if all.is_empty() {
        return;
    }
    section(out, "## Terminations");
    let mut order: Vec<&Termination> = all.iter().collect();
    if all.len() > LISTED {
        order.sort_by(|a, b| words::most_lost_first(a, b));
    }
    let rows = order.iter().take(LISTED).map(|t| {
        vec![
            format!("`{}`", t.pod.replace('`', "'")),
            words::mode(t.mode).to_owned(),
            bounded(&t.requests.dropped) + &words::errors_of(t),
            or_none(t.requests.seen, count),
            words::longest(t),
            format!("{} s", seconds(t.t0_uncertainty_s)),
            or_none(t.exit_code, |code| code.to_string()),
        ]
    });
    table(
        out,
        &["pod", "mode", "dropped", "requests", "window since deletion", "t0 within", "exit code"],
        &[2, 3, 5, 6],
        rows,
    );
    if order.len() > LISTED {
        section(out, &format!("{}.", words::further(order.len() - LISTED, order[LISTED - 1])));
    }
    let groups: Vec<String> =
        words::groups(result).iter().map(|group| format!("- {}", escape(group))).collect();
    section(out, &groups.join("\n"));
    let causes = words::why_they_ended(all);
    let mut lines: Vec<String> = causes
        .iter()
        .take(LISTED)
        .map(|(whom, why)| format!("- {}: {}", escape(whom), escape(why)))
        .collect();
    if let Some(more @ 1..) = causes.len().checked_sub(LISTED) {
        lines.push(format!("- and {}", counted(len(more), "other cause")));
    }
    if !lines.is_empty() {
        section(out, &format!("Why they ended, according to the cluster:\n\n{}", lines.join("\n")));
    }
}

fn windows(out: &mut String, result: &RunResult) {
    let mut lines: Vec<String> = result
        .windows_s
        .iter()
        .map(|w| format!("- {}: {}", escape(&w.consumer), escape(&words::window_summary(w))))
        .collect();
    lines.extend(words::censored(&result.terminations).iter().map(|why| format!("- {}", escape(why))));
    if !lines.is_empty() {
        section(
            out,
            "## Endpoint-propagation window\n\nHow long new connections still went to a pod after its deletion.",
        );
        section(out, &lines.join("\n"));
    }
}

fn recommendations(out: &mut String, result: &RunResult) {
    if result.recommendation.is_empty() {
        return;
    }
    section(out, "## preStop sleep");
    for rec in &result.recommendation {
        let mode = words::mode(rec.mode);
        section(out, &format!("**{mode}**: {}", escape(&words::recommendation(rec).join(" "))));
        let yaml = words::yaml(rec, &result.cluster.version);
        if !yaml.is_empty() {
            section(out, &format!("```yaml\n{}\n```", yaml.join("\n")));
        }
    }
}

fn latency(out: &mut String, result: &RunResult) {
    let latencies = &result.latency_ms;
    if latencies.steady.n + latencies.disrupted.n == 0 {
        return;
    }
    let (what, _) = words::latency(&result.load);
    section(out, &format!("## {}", words::title(what)));
    let rows = [("steady", latencies.steady), ("while a pod ended", latencies.disrupted)];
    let rows = rows.into_iter().filter(|(_, p)| p.n > 0).map(|(name, p)| {
        let mut row = vec![name.to_owned(), count(p.n)];
        row.extend(words::PERCENTILES.map(|figure| words::latency_figure(&p, figure, millis_unit)));
        row.push(millis_unit(p.max));
        row
    });
    table(out, &["", "requests", "p50", "p90", "p99", "p99.9", "max"], &[1, 2, 3, 4, 5, 6], rows);
    let parts = [&latencies.steady, &latencies.disrupted];
    if let Some(why) = words::missing_figures(parts, &words::PERCENTILES, words::FEW_ANSWERS) {
        section(out, &format!("{why}."));
    }
}

fn findings(out: &mut String, result: &RunResult) {
    if result.findings.is_empty() {
        return;
    }
    section(out, "## Findings");
    let lines: Vec<String> = result
        .findings
        .iter()
        .map(|f| {
            let text = [&f.what, &f.why, &f.remedy].map(|t| escape(&words::sentence(t)));
            format!("- **{}**: {}", f.severity, text.join(" ").trim_end())
        })
        .collect();
    section(out, &lines.join("\n"));
}

fn checks(out: &mut String, result: &RunResult) {
    if result.checks.is_empty() {
        return;
    }
    section(out, "## Checks");
    let rows = result.checks.iter().map(|c| {
        vec![
            format!("**{}**", c.verdict),
            format!("`{}`", c.name),
            escape(&c.observed),
            escape(&c.limit),
            escape(&check_words::reason(c)),
        ]
    });
    table(out, &["verdict", "check", "observed", "limit", "why"], &[], rows);
}

/// Writes a paragraph or another block, followed by a blank line.
pub(super) fn section(out: &mut String, text: &str) {
    if !text.is_empty() {
        let _ = write!(out, "{text}\n\n");
    }
}

/// Writes a table. The columns listed in `right` hold numbers.
pub(super) fn table(
    out: &mut String,
    header: &[&str],
    right: &[usize],
    rows: impl IntoIterator<Item = Vec<String>>,
) {
    let _ = writeln!(out, "| {} |", header.join(" | "));
    let rules: Vec<&str> =
        (0..header.len()).map(|i| if right.contains(&i) { "--:" } else { "---" }).collect();
    let _ = writeln!(out, "| {} |", rules.join(" | "));
    for row in rows {
        let _ = writeln!(out, "| {} |", row.join(" | "));
    }
    out.push('\n');
}

/// Invisible character that breaks up text which GitHub or GitLab would otherwise treat as a reference.
const NOTHING: char = '\u{200b}';

/// Escapes text so that Markdown shows it literally. Apps and API servers choose parts of the text, so it must not
/// create links, and in a comment it must not notify anyone (`@name`) or refer to an issue (`#1`).
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut before = None;
    for (at, c) in text.char_indices() {
        let rest = &text[at + c.len_utf8()..];
        let begins_word = before.replace(c).is_none_or(|before: char| !before.is_alphanumeric());
        match c {
            '@' if begins_word && rest.starts_with(char::is_alphanumeric) => out.extend([c, NOTHING]),
            '#' if rest.starts_with(|next: char| next.is_ascii_digit()) => out.extend(['\\', c, NOTHING]),
            // After a backslash, nothing is recognised as an address.
            ':' if rest.starts_with("//") => out.push_str(":\\"),
            '.' if out.ends_with("www") => out.push_str("\\."),
            '\n' | '\r' => out.push(' '),
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '~' => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}
