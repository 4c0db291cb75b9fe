//! The terminations: a table that sorts and filters, whose rows unfold to windows and stages.

use std::fmt::Display;

use maud::{Markup, html};

use super::{Cell, STAGES, scrolled};
use crate::format::{NONE, bounded, count, list, or_none, plain, seconds};
use crate::words;
use rolldrop_analysis::model::{Bounded, RunResult, Termination, Window};

/// A column: its name, its cell, and the value by which it sorts, if that is no text.
type Column = (&'static str, fn(&Termination) -> Cell, Option<fn(&Termination) -> f64>);

/// A number that is missing sorts below all others.
const MISSING: f64 = -1e9;

const COLUMNS: [Column; 9] = [
    ("node", |t| Cell::text(t.node.as_deref().unwrap_or(NONE)), None),
    ("mode", |t| Cell::text(words::mode(t.mode)), None),
    ("deleted at", |t| Cell::number(format!("{} s", seconds(t.t0_s))), Some(|t| t.t0_s)),
    ("dropped", |t| Cell::number(range(&t.requests.dropped)), Some(|t| t.requests.dropped.estimate)),
    (
        "requests",
        |t| Cell::number(or_none(t.requests.seen, count)),
        Some(|t| t.requests.seen.map_or(MISSING, |n| n as f64)),
    ),
    ("window", |t| Cell::number(words::longest(t)), Some(reach)),
    (
        "dead time",
        |t| Cell::number(or_none(t.dead_seconds, |v| format!("{} s", seconds(v)))),
        Some(|t| t.dead_seconds.unwrap_or(MISSING)),
    ),
    (
        "exit code",
        |t| Cell::number(or_none(t.exit_code, |code| code.to_string())),
        Some(|t| t.exit_code.map_or(MISSING, f64::from)),
    ),
    ("classes", |t| Cell::text(&each(words::by_estimate(&t.requests.by_outcome))), None),
];

/// How far the longest window reaches; one without an end reaches furthest.
fn reach(t: &Termination) -> f64 {
    words::longest_window(t).map_or(MISSING, |w| match (w.lower_s, w.upper_s) {
        (_, Some(upper)) if upper.is_finite() => upper,
        (lower, _) => 1e6 + lower.unwrap_or(0.0),
    })
}

/// A count between two limits, as short as a table needs it.
fn range(n: &Bounded) -> String {
    match n.is_exact() {
        true => count(n.at_most),
        false => format!("{} to {}", count(n.at_least), count(n.at_most)),
    }
}

fn each<K: Display>(counts: Vec<(K, Bounded)>) -> String {
    counts.iter().map(|(what, n)| format!("{} {what}", range(n))).collect::<Vec<_>>().join("; ")
}

/// The section; empty if no pod ended.
pub(super) fn section(result: &RunResult) -> Markup {
    let all = &result.terminations;
    if all.is_empty() {
        return Markup::default();
    }
    let groups = words::groups(result);
    let causes = words::why_they_ended(all);
    html! {
        h2 #terminations { "Terminations" }
        p {
            "Each row unfolds to its windows and stages. Windows count from t0, when the deletion took effect. Dead time: the \
             best estimate of the new connections that the pod dropped, divided by the rate at which it got new connections \
             before."
        }
        p.filter {
            label for="filter" { "Show only" }
            input #filter type="search" placeholder="pod, node, mode, class …" autocomplete="off";
            output #shown for="filter" { (all.len()) " of " (all.len()) }
        }
        (scrolled("Terminations", html! {
            table.rows data-filter="filter" data-count="shown" {
                thead {
                    tr {
                        th scope="col" { button type="button" { "pod" } }
                        @for (name, ..) in &COLUMNS { th scope="col" { button type="button" { (name) } } }
                    }
                }
                @for (i, t) in all.iter().enumerate() { (row(i, t)) }
            }
        }))
        @if !groups.is_empty() {
            p { "What several pods may have lost. The totals are exact:" }
            ul { @for group in groups { li { (group) } } }
        }
        @if !causes.is_empty() {
            p { "Why they ended, as far as the cluster says:" }
            ul { @for (whom, why) in causes { li { (whom) ": " (why) } } }
        }
    }
}

fn row(number: usize, t: &Termination) -> Markup {
    let detail = format!("termination-{number}");
    html! {
        tbody {
            tr {
                th scope="row" {
                    button.unfold type="button" aria-expanded="true" aria-controls=(detail) {
                        span.unfold-mark aria-hidden="true" {} (t.pod)
                    }
                }
                @for (_, cell, value) in &COLUMNS { (cell(t).sorted_by(value.map(|value| value(t)))) }
            }
            tr.detail id=(detail) {
                td colspan=(COLUMNS.len() + 1) { (windows(t)) (stages(t)) (losses(t)) }
            }
        }
    }
}

fn windows(t: &Termination) -> Markup {
    let columns: [super::Column<&Window>; 7] = [
        ("consumer", |w| Cell::head(&w.consumer)),
        ("lower bound", |w| Cell::seconds(w.lower_s)),
        ("upper bound", |w| Cell::seconds(w.upper_s)),
        ("known by", |w| Cell::text(&words::basis(w))),
        ("censored because", |w| Cell::text(w.censored.as_deref().unwrap_or_default())),
        ("late arrivals", |w| Cell::number(count(w.late_arrivals))),
        ("new connections/s before", |w| Cell::number(plain(w.rate_before))),
    ];
    html! {
        @if !t.windows.is_empty() {
            table {
                thead { tr { @for (name, _) in &columns { th scope="col" { (name) } } } }
                tbody { @for w in &t.windows { tr { @for (_, cell) in &columns { (cell(w)) } } } }
            }
        }
    }
}

fn stages(t: &Termination) -> Markup {
    let seen = STAGES.iter().filter_map(|(stage, name)| Some((*name, *t.timeline.get(stage)?)));
    let mut seen: Vec<(&str, f64)> = seen.collect();
    seen.sort_by(|a, b| a.1.total_cmp(&b.1));
    let told: Vec<String> = seen.iter().map(|(name, at)| format!("{name} {} s", seconds(*at))).collect();
    html! {
        p { "Since t0, known within " (seconds(t.t0_uncertainty_s)) " s: " (told.join(" · ")) }
    }
}

fn losses(t: &Termination) -> Markup {
    let causes: Vec<String> = words::by_estimate(&t.requests.by_cause)
        .iter()
        .map(|(cause, n)| format!("{} {cause} ({})", bounded(n), words::cause(*cause)))
        .collect();
    html! {
        @if !causes.is_empty() { p { "Lost: " (list(&causes)) } }
    }
}
