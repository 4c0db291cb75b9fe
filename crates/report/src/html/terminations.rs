//! Renders the terminations as a table that can be sorted and filtered, and whose rows unfold to show timelines.

use std::fmt::Display;

use maud::{Markup, html};

use super::{HtmlCell, scrolled};
use crate::format::{NONE, bounded, count, counted, list, or_none, plain, range, seconds_unit};
use crate::words;
use rolldrop_explain::model::{Bounded, RunResult, Stage, Termination, Window};

/// Stages of a termination, with their names.
const STAGES: [(Stage, &str); 11] = [
    (Stage::DeleteSent, "delete sent"),
    (Stage::DeletionSeen, "deletion seen"),
    (Stage::EndpointTerminating, "endpoint terminating"),
    (Stage::KillBegan, "preStop began"),
    (Stage::AppSigterm, "earliest SIGTERM"),
    (Stage::ListenerClosed, "listener closed"),
    (Stage::AppExited, "app exited"),
    (Stage::LastConnection, "last connection"),
    (Stage::ContainersTerminated, "containers terminated"),
    (Stage::EndpointRemoved, "endpoint removed"),
    (Stage::PodDeleted, "pod deleted"),
];

/// Maximum number of terminations that are unfolded in print.
const FEW: usize = 30;

/// A column: its name, its cell, and the value to sort by if it is not sorted by text.
type SortedColumn = (&'static str, fn(&Termination) -> HtmlCell, Option<fn(&Termination) -> f64>);

/// Sort value of a missing number: below all others.
const MISSING: f64 = -1e9;

const COLUMNS: [SortedColumn; 10] = [
    ("dropped", |t| HtmlCell::number(range(&t.requests.dropped)), Some(|t| t.requests.dropped.estimate)),
    (
        "5xx after t0",
        |t| HtmlCell::number(or_none(t.app_errors_after_t0, count)),
        Some(|t| t.app_errors_after_t0.map_or(MISSING, |n| n as f64)),
    ),
    ("window", |t| HtmlCell::number(words::longest(t)), Some(reach)),
    ("deleted at", |t| HtmlCell::number(seconds_unit(t.t0_s)), Some(|t| t.t0_s)),
    (
        "dead time",
        |t| HtmlCell::number(or_none(t.dead_seconds, seconds_unit)),
        Some(|t| t.dead_seconds.unwrap_or(MISSING)),
    ),
    (
        "requests",
        |t| HtmlCell::number(or_none(t.requests.seen, count)),
        Some(|t| t.requests.seen.map_or(MISSING, |n| n as f64)),
    ),
    (
        "exit code",
        |t| HtmlCell::number(or_none(t.exit_code, |code| code.to_string())),
        Some(|t| t.exit_code.map_or(MISSING, f64::from)),
    ),
    ("mode", |t| HtmlCell::text(words::mode(t.mode)), None),
    ("node", |t| HtmlCell::text(t.node.as_deref().unwrap_or(NONE)), None),
    ("classes", |t| HtmlCell::lines(&each(words::by_estimate(&t.requests.by_outcome))), None),
];

/// Returns the end of the longest window, in seconds since t0. A window without an upper bound sorts last.
fn reach(t: &Termination) -> f64 {
    words::longest_window(t).map_or(MISSING, |w| match (w.lower_s, w.upper_s) {
        (_, Some(upper)) if upper.is_finite() => upper,
        (lower, _) => 1e6 + lower.unwrap_or(0.0),
    })
}

fn each<K: Display>(counts: Vec<(K, Bounded)>) -> Vec<String> {
    counts.iter().map(|(what, n)| format!("{} {what}", range(n))).collect()
}

/// Renders the section, or nothing if no pod ended.
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
            "Each row expands into a timeline. Windows count from t0, when the deletion took effect. Dead time: the \
             best estimate of the new connections that the pod dropped, divided by the rate at which it got new connections \
             before."
        }
        p.filter {
            label for="filter" { "Show only" }
            input #filter type="search" placeholder="pod, node, mode, class …" autocomplete="off";
            output #shown for="filter" { (all.len()) " of " (all.len()) }
        }
        (scrolled("Terminations", html! {
            table.rows.few[all.len() <= FEW] data-filter="filter" data-count="shown" {
                thead {
                    tr {
                        th scope="col" { button type="button" { "pod" } }
                        @for (name, _, value) in &COLUMNS {
                            th.number[value.is_some()] scope="col" { button type="button" { (name) } }
                        }
                    }
                }
                @for (i, t) in all.iter().enumerate() { (row(i, t)) }
            }
        }))
        @if !groups.is_empty() {
            p { "Losses that several pods may share. The totals are exact:" }
            ul { @for group in groups { li { (group) } } }
        }
        @if !causes.is_empty() {
            p { "Why they ended, according to the cluster:" }
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
                td colspan=(COLUMNS.len() + 1) { div.unfolded { (timeline(t)) (losses(t)) } }
            }
        }
    }
}

/// Renders windows and stages over the time since t0, on a common scale.
fn timeline(t: &Termination) -> Markup {
    let seen = STAGES.iter().filter_map(|(stage, name)| Some((*name, *t.timeline.get(stage)?)));
    let mut seen: Vec<(&str, f64)> = seen.filter(|(_, at)| at.is_finite()).collect();
    seen.sort_by(|a, b| a.1.total_cmp(&b.1));
    let bounds = t.windows.iter().flat_map(|w| [w.lower_s, w.upper_s]).flatten().filter(|s| s.is_finite());
    let all = || seen.iter().map(|(_, at)| *at).chain(bounds.clone());
    let (from, to) = (all().fold(0.0, f64::min), all().fold(0.0, f64::max));
    let at = |s: f64| format!("{:.1}%", 100.0 * (s - from) / (to - from).max(f64::MIN_POSITIVE));
    let bar = |w: &Window| {
        let [lower, upper] = [w.lower_s, w.upper_s].map(|bound| bound.filter(|s| s.is_finite()));
        let certain = lower.unwrap_or(0.0).max(0.0);
        let possible = upper.unwrap_or(to).max(certain);
        html! {
            span.track {
                i.possible style={ "left:" (at(0.0)) ";right:calc(100% - " (at(possible)) ")" } {}
                i.certain style={ "left:" (at(0.0)) ";right:calc(100% - " (at(certain)) ")" } {}
            }
        }
    };
    html! {
        p { "Time since t0, which is known to within " (seconds_unit(t.t0_uncertainty_s)) ":" }
        ul.steps {
            @for w in &t.windows {
                li {
                    span { "window of " (w.consumer) }
                    span.number { (words::window(w)) }
                    (bar(w))
                    span.note { (note(w)) }
                }
            }
            @for (name, s) in &seen {
                li {
                    span { (name) }
                    span.number { (seconds_unit(*s)) }
                    span.track { i.at style={ "left:" (at(*s)) } {} }
                }
            }
        }
    }
}

/// Describes the evidence for a window.
fn note(w: &Window) -> String {
    let basis = words::basis(w);
    let mut parts: Vec<String> = Vec::new();
    parts.extend((!basis.is_empty()).then(|| format!("known from {basis}")));
    let unbounded = |why: &String| match w.is_one() {
        true => format!("not fully bounded: {why}"),
        false => why.clone(),
    };
    parts.extend(w.censored.as_ref().map(unbounded));
    parts.push(counted(w.late_arrivals, "late arrival"));
    parts.push(format!("{} new connections/s before", plain(w.rate_before)));
    parts.join("; ")
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
