//! Renders the output for a GitHub Actions step: annotations, a summary, and outputs.
//!
//! Annotations are workflow commands on stdout, one per line (docs.github.com, "Workflow commands for GitHub Actions").
//! A step shows at most ten errors, ten warnings and ten notices, and silently drops the rest; the last annotation
//! therefore summarises those that do not fit.

use std::fmt::Write as _;

use super::format::{count, len};
use super::{check_words, markdown, words};
use rolldrop_explain::model::{CheckText, CheckVerdict, RunResult};
use rolldrop_judge::standing::Standing;

/// Maximum number of annotations per level that a step shows.
const SHOWN: usize = 10;

/// Output for a GitHub Actions step.
#[derive(Clone, Debug)]
pub struct Github {
    /// Text for stdout: passed checks as plain lines, the rest as annotations.
    pub log: String,
    /// Markdown to append to the file that `GITHUB_STEP_SUMMARY` names.
    pub summary: String,
    /// `name=value` lines to append to the file that `GITHUB_OUTPUT` names.
    pub outputs: String,
}

pub(super) fn render(result: &RunResult) -> Github {
    Github { log: log(result), summary: markdown::render(result), outputs: outputs(result) }
}

fn log(result: &RunResult) -> String {
    let undecided = words::undecided(result).map(|why| (standing(result), why));
    annotated(&result.checks, undecided, (standing(result), words::headline(result)))
}

/// Returns the checks: passed ones as plain lines, the rest as annotations. `undecided` says why they decide nothing, and
/// `result` what they amount to, each with a title.
pub(super) fn annotated(
    checks: &[CheckText],
    undecided: Option<(String, String)>,
    result: (String, String),
) -> String {
    let mut out = String::new();
    for check in checks.iter().filter(|check| check.verdict == CheckVerdict::Pass) {
        let _ = writeln!(out, "{} {}: {}", check.verdict.as_str(), check.name, check_words::in_words(check));
    }
    let mut errors: Vec<(String, String)> = undecided.into_iter().collect();
    errors.extend(annotations(checks, CheckVerdict::Fail));
    annotate(&mut out, "error", &errors);
    annotate(&mut out, "warning", &annotations(checks, CheckVerdict::Inconclusive));
    annotate(&mut out, "notice", &[result]);
    out
}

/// Returns a line such as `naive-exit failed: dropped.max`.
fn standing(result: &RunResult) -> String {
    format!("{} {}", result.scenario, words::standing(result))
}

/// Returns a title and a message for each check with this verdict.
fn annotations(checks: &[CheckText], verdict: CheckVerdict) -> Vec<(String, String)> {
    let checks = checks.iter().filter(|check| check.verdict == verdict);
    let title = |name: &str| match verdict {
        CheckVerdict::Pass => format!("{name} passed"),
        CheckVerdict::Fail => format!("{name} failed"),
        CheckVerdict::Inconclusive => format!("{name} is inconclusive"),
    };
    checks.map(|check| (title(&check.name), check_words::in_words(check))).collect()
}

fn annotate(out: &mut String, level: &str, annotations: &[(String, String)]) {
    let whole = if annotations.len() > SHOWN { SHOWN - 1 } else { SHOWN };
    let mut line = |title: &str, message: &str| {
        let (title, message) = (property(&format!("rolldrop: {title}")), data(message));
        let _ = writeln!(out, "::{level} title={title}::{message}");
    };
    for (title, message) in annotations.iter().take(whole) {
        line(title, message);
    }
    if let Some(rest @ [_, ..]) = annotations.get(whole..) {
        let titles: Vec<&str> = rest.iter().map(|(title, _)| title.as_str()).collect();
        line(&format!("{} more", count(len(rest.len()))), &titles.join(", "));
    }
}

/// Escapes a message for a workflow command.
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// Escapes a property value for a workflow command.
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

/// Returns figures for use in later steps. Their names follow the naming style of Actions.
fn outputs(result: &RunResult) -> String {
    let requests = &result.requests;
    let named = |verdict| words::checks_with(&result.checks, verdict).join(",");
    let figures = [
        ("verdict", Standing::of(result).as_str().to_owned()),
        ("summary", words::headline(result)),
        ("failed-checks", named(CheckVerdict::Fail)),
        ("inconclusive-checks", named(CheckVerdict::Inconclusive)),
        ("requests", requests.total.to_string()),
        ("dropped", requests.lost().to_string()),
        ("dropped-share", format!("{:.6}", words::dropped_share(result))),
        ("app-errors", requests.app_errors.to_string()),
        ("terminations", result.terminations.len().to_string()),
        ("longest-outage-seconds", format!("{:.3}", result.longest_outage_s)),
    ];
    lines(&figures)
}

/// Returns `name=value` lines.
pub(super) fn lines(figures: &[(&str, String)]) -> String {
    figures.iter().map(|(name, value)| format!("{name}={value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    fn checks(n: usize, verdict: CheckVerdict) -> Vec<CheckText> {
        let check = |i: usize| {
            samples::check(&format!("check{i}"), verdict, "at most 5 %", &i.to_string(), "100 %, see: a,b")
        };
        (1..=n).map(check).collect()
    }

    #[test]
    fn log_annotates_unpassed_checks_and_result() {
        let mut result = samples::naive_exit().result;
        result.checks = checks(3, CheckVerdict::Pass);
        result.checks[0].verdict = CheckVerdict::Fail;
        result.checks[2].verdict = CheckVerdict::Inconclusive;
        insta::assert_snapshot!(log(&result), @"
        pass check2: 2 (limit at most 5 %): 100 %, see: a,b
        ::error title=rolldrop%3A check1 failed::1 (limit at most 5 %25): 100 %25, see: a,b
        ::warning title=rolldrop%3A check3 is inconclusive::3 (limit at most 5 %25): 100 %25, see: a,b
        ::notice title=rolldrop%3A naive-exit failed%3A check1::24 of 9,000 requests were dropped as 3 pods ended.
        ");
    }

    #[test]
    fn log_merges_annotations_beyond_limit() {
        let mut result = samples::naive_exit().result;
        result.checks = checks(12, CheckVerdict::Fail);
        let log = log(&result);
        let errors: Vec<&str> = log.lines().filter(|line| line.starts_with("::error ")).collect();
        assert_eq!(errors.len(), SHOWN);
        let last = "::error title=rolldrop%3A 3 more::check10 failed, check11 failed, check12 failed";
        assert_eq!(errors.last(), Some(&last));
        result.checks.truncate(10);
        assert!(!super::log(&result).contains("more::"));
    }

    #[test]
    fn invalid_or_partial_run_logs_error() {
        for (analysis, what) in [(samples::invalid(), "is invalid"), (samples::partial(), "is partial")] {
            let result = &analysis.result;
            let line = format!("::error title=rolldrop%3A {} {what}::", result.scenario);
            assert!(log(result).contains(&line), "{}", log(result));
        }
    }

    #[test]
    fn outputs_contain_comparable_figures() {
        let mut result = samples::naive_exit().result;
        result.checks = checks(2, CheckVerdict::Fail);
        insta::assert_snapshot!(outputs(&result), @"
        verdict=failed
        summary=24 of 9,000 requests were dropped as 3 pods ended.
        failed-checks=check1,check2
        inconclusive-checks=
        requests=9000
        dropped=24
        dropped-share=0.002667
        app-errors=0
        terminations=3
        longest-outage-seconds=0.041
        ");
    }
}
