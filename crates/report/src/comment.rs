//! Renders a pull or merge request comment: the verdict, the checks, the figures, and the folded summary.
//!
//! The first line is an invisible marker. The action that posts the comment (`.github/actions/rolldrop/comment`)
//! replaces an existing comment with the same marker so that each scenario has one comment.

use super::check_words;
use super::format::{count, counted, len, millis_unit, percent};
use super::markdown::{self, escape, section, table};
use super::words;
use rolldrop_explain::model::{CheckText, CheckVerdict, RunResult};
use rolldrop_record::expect::LatencyFigure;

/// Maximum size of the summary in bytes. GitHub accepts 65,536 characters, and the rest of a comment needs far less
/// than the difference.
const MOST_SUMMARY: usize = 50_000;

/// Maximum number of checks that are listed individually.
const LISTED: usize = 50;

pub(super) fn render(result: &RunResult) -> String {
    let mut out = format!("{}\n", marker(&result.scenario));
    let standing = words::standing(result);
    section(
        &mut out,
        &format!("### rolldrop: `{}` {}", result.scenario.replace('`', "'"), escape(&standing)),
    );
    if let Some(why) = words::undecided(result) {
        section(&mut out, &format!("> [!CAUTION]\n> {}", escape(&why)));
    }
    let mut answer = format!("**{}**", escape(&words::headline(result)));
    if let Some(causes) = words::causes(result) {
        answer.push_str(&format!(" Why: {}.", escape(&causes)));
    }
    section(&mut out, &answer);
    checks(&mut out, &result.checks);
    figures(&mut out, result);
    let summary = markdown::render(result);
    if summary.chars().count() <= MOST_SUMMARY {
        section(&mut out, "<details><summary>Full summary</summary>");
        section(&mut out, summary.trim_end());
        section(&mut out, "</details>");
    } else {
        section(&mut out, "The summary is too long for a comment; see `summary.md` in the run directory.");
    }
    out
}

/// Returns the marker for comments about one scenario; no other comment contains it.
fn marker(scenario: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ['-', '.', '_'].contains(&c);
    let name: String = scenario.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
    // Two dashes could end the HTML comment.
    format!("<!-- rolldrop: {} -->", name.replace("--", "-_"))
}

/// Adds the table of a gate's checks.
pub(super) fn checks(out: &mut String, checks: &[CheckText]) {
    if checks.is_empty() {
        return;
    }
    let row = |check: &&CheckText| {
        vec![
            match check.verdict {
                CheckVerdict::Pass => check.verdict.as_str().to_owned(),
                CheckVerdict::Fail | CheckVerdict::Inconclusive => {
                    format!("**{}**", check.verdict.as_str())
                }
            },
            format!("`{}`", check.name.replace('`', "'")),
            escape(&check.observed),
            escape(&check.limit),
            escape(&check_words::reason(check)),
        ]
    };
    let checks = words::by_verdict(checks);
    table(out, &["", "check", "observed", "limit", "why"], &[], checks.iter().take(LISTED).map(row));
    if let Some(more @ 1..) = checks.len().checked_sub(LISTED) {
        section(out, &format!("And {}.", counted(len(more), "more check")));
    }
}

fn figures(out: &mut String, result: &RunResult) {
    let requests = &result.requests;
    let mut header = vec!["dropped", "app errors", "terminations", "longest outage"];
    let mut row = vec![
        percent(words::dropped_share(result)),
        count(requests.app_errors),
        count(len(result.terminations.len())),
        words::longest_outage(result),
    ];
    for (name, part) in
        [("p99", result.latency_ms.steady), ("p99 while a pod ended", result.latency_ms.disrupted)]
    {
        if part.n > 0 {
            header.push(name);
            row.push(words::latency_figure(&part, LatencyFigure::P99, millis_unit));
        }
    }
    table(out, &header, &[0, 1, 2, 3, 4, 5], [row]);
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    #[test]
    fn comment_starts_with_verdict_and_checks() {
        let mut result = samples::naive_exit().result;
        let passed = samples::check("terminations.min", CheckVerdict::Pass, "at least 3", "3", "");
        let failed = samples::check("dropped.max", CheckVerdict::Fail, "at most 0", "24", "a|b");
        result.checks = vec![passed, failed];
        let comment = render(&result);
        let (before, summary) = comment.split_once("<details>").expect("a summary");
        insta::assert_snapshot!(before, @"
        <!-- rolldrop: naive-exit -->
        ### rolldrop: `naive-exit` failed: dropped.max

        **24 of 9,000 requests were dropped as 3 pods ended.** Why: routed to a pod that no longer accepted connections.

        |  | check | observed | limit | why |
        | --- | --- | --- | --- | --- |
        | **fail** | `dropped.max` | 24 | at most 0 | a\\|b |
        | pass | `terminations.min` | 3 | at least 3 |  |

        | dropped | app errors | terminations | longest outage | p99 | p99 while a pod ended |
        | --: | --: | --: | --: | --: | --: |
        | 0.267 % | 0 | 3 | 0.041 s | 4.43 ms | 7.09 ms |
        ");
        assert!(summary.contains("# rolldrop: naive-exit\n"), "{summary}");
        assert!(summary.ends_with("</details>\n\n"), "{summary}");
        result.is_failing_at_end = true;
        let open = "| at least 0.041 s (requests still failed when the load ended) |";
        assert!(render(&result).contains(open), "{}", render(&result));
    }

    #[test]
    fn marker_escapes_name_to_one_line() {
        assert_eq!(marker("a b--><!--\n"), "<!-- rolldrop: a_b-____-__ -->");
        let first = |result| render(result).lines().next().map(str::to_owned);
        assert_ne!(first(&samples::rollout().result), first(&samples::naive_exit().result));
    }

    #[test]
    fn comment_stays_within_github_limit() {
        let mut result = samples::naive_exit().result;
        let finding = result.findings[0].clone();
        result.findings = vec![finding; 2000];
        let comment = render(&result);
        assert!(comment.chars().count() < 65_536);
        assert!(comment.contains("too long for a comment"), "{comment}");
    }

    #[test]
    fn invalid_run_comment_warns_first() {
        let comment = render(&samples::invalid().result);
        assert!(comment.contains(" is invalid\n\n> [!CAUTION]\n> INVALID MEASUREMENT"), "{comment}");
    }
}
