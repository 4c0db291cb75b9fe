//! Renders the result as JUnit XML, which CI systems show as tests: one case for the measurement itself, and one for
//! each check of the gate. An inconclusive check is an error, not a failure.

use std::time::Duration;

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use super::{check_words, words};
use rolldrop_explain::model::{CheckText, CheckVerdict, RunResult, Verdict};

pub(super) fn render(result: &RunResult) -> String {
    let time = Duration::try_from_secs_f64(result.load.duration_s).unwrap_or_default();
    let class = format!("rolldrop.{}", result.scenario);
    let cases = std::iter::once(case(&class, "measurement", measurement(result)));
    suite(&result.scenario, time, cases.chain(of_checks(&class, &result.checks)))
}

/// Renders the checks of a gate on a history.
pub(super) fn of_history(time: Duration, checks: &[CheckText]) -> String {
    suite("watch", time, of_checks("rolldrop.watch", checks))
}

fn suite(name: &str, time: Duration, cases: impl Iterator<Item = TestCase>) -> String {
    let mut suite = TestSuite::new(name);
    suite.set_time(time);
    suite.add_test_cases(cases);
    let mut report = Report::unnamed();
    report.add_test_suite(suite);
    report.to_string().expect("a report in memory takes all text")
}

fn of_checks(class: &str, checks: &[CheckText]) -> impl Iterator<Item = TestCase> {
    checks.iter().map(move |check| {
        let status = match check.verdict {
            CheckVerdict::Pass => TestCaseStatus::success(),
            CheckVerdict::Fail => trouble(NonSuccessKind::Failure, "fail", &check_words::in_words(check)),
            CheckVerdict::Inconclusive => {
                trouble(NonSuccessKind::Error, "inconclusive", &check_words::in_words(check))
            }
        };
        case(class, &check.name, status)
    })
}

fn case(class: &str, name: &str, status: TestCaseStatus) -> TestCase {
    let mut case = TestCase::new(name, status);
    case.set_classname(class);
    case
}

/// Creates an element such as `<error message="…" type="inconclusive"/>`.
fn trouble(element: NonSuccessKind, kind: &str, message: &str) -> TestCaseStatus {
    let mut status = TestCaseStatus::non_success(element);
    // GitLab shows the content of the element, and other systems show its message.
    status.set_type(kind).set_message(message).set_description(message);
    status
}

fn measurement(result: &RunResult) -> TestCaseStatus {
    let kind = match result.verdict {
        Verdict::Valid => return TestCaseStatus::success(),
        Verdict::Partial { .. } => "partial",
        Verdict::Invalid { .. } => "invalid",
    };
    trouble(NonSuccessKind::Error, kind, &words::warning(result).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    fn check(name: &str, verdict: CheckVerdict) -> CheckText {
        samples::check(name, verdict, "0", "24", "24 \"lost\" & <more>\u{1}")
    }

    #[test]
    fn junit_reports_inconclusive_check_as_error() {
        let mut result = samples::naive_exit().result;
        result.checks = vec![
            check("dropped.max", CheckVerdict::Fail),
            check("windows.max", CheckVerdict::Inconclusive),
            check("terminations.min", CheckVerdict::Pass),
        ];
        insta::assert_snapshot!(render(&result), @r#"
        <?xml version="1.0" encoding="UTF-8"?>
        <testsuites tests="4" skipped="0" failures="1" errors="1">
            <testsuite name="naive-exit" tests="4" skipped="0" errors="1" failures="1" time="30.000">
                <testcase name="measurement" classname="rolldrop.naive-exit"/>
                <testcase name="dropped.max" classname="rolldrop.naive-exit">
                    <failure message="24 (limit 0): 24 &quot;lost&quot; &amp; &lt;more&gt;" type="fail">24 (limit 0): 24 &quot;lost&quot; &amp; &lt;more&gt;</failure>
                </testcase>
                <testcase name="windows.max" classname="rolldrop.naive-exit">
                    <error message="24 (limit 0): 24 &quot;lost&quot; &amp; &lt;more&gt;" type="inconclusive">24 (limit 0): 24 &quot;lost&quot; &amp; &lt;more&gt;</error>
                </testcase>
                <testcase name="terminations.min" classname="rolldrop.naive-exit"/>
            </testsuite>
        </testsuites>
        "#);
    }

    #[test]
    fn junit_reports_invalid_measurement_as_error() {
        let invalid = render(&samples::invalid().result);
        assert!(invalid.contains("<error message=\"INVALID"), "{invalid}");
        assert!(invalid.contains("type=\"invalid\">INVALID"), "{invalid}");
        assert!(render(&samples::partial().result).contains("type=\"partial\">PARTIAL"));
    }
}
