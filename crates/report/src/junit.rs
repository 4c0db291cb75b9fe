//! The JUnit form: what a CI system shows as tests. One case for the measurement itself and one for
//! each check of the gate; what could not be told is an error, not a failure.

use std::fmt::Write as _;

use super::{html, words};
use rolldrop_analysis::model::{CheckVerdict, RunResult, Verdict};

/// Such as `<error type="inconclusive" message="…"/>`.
struct Trouble {
    element: &'static str,
    kind: &'static str,
    message: String,
}

pub(super) fn render(result: &RunResult) -> String {
    let mut cases = vec![("measurement", measurement(result))];
    for check in &result.checks {
        let trouble = |element, kind| Some(Trouble { element, kind, message: check.in_words() });
        let trouble = match check.verdict {
            CheckVerdict::Pass => None,
            CheckVerdict::Fail => trouble("failure", "fail"),
            CheckVerdict::Inconclusive => trouble("error", "inconclusive"),
        };
        cases.push((&check.name, trouble));
    }
    let count = |element: &str| {
        cases.iter().filter(|(_, trouble)| trouble.as_ref().is_some_and(|t| t.element == element)).count()
    };
    let scenario = text(&result.scenario);
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n");
    let _ = writeln!(
        out,
        "  <testsuite name=\"{scenario}\" tests=\"{}\" failures=\"{}\" errors=\"{}\" time=\"{:.3}\">",
        cases.len(),
        count("failure"),
        count("error"),
        result.load.duration_s
    );
    for (name, trouble) in &cases {
        let _ = write!(out, "    <testcase classname=\"rolldrop.{scenario}\" name=\"{}\"", text(name));
        match trouble {
            None => out.push_str("/>\n"),
            Some(Trouble { element, kind, message }) => {
                let message = text(message);
                let _ = writeln!(out, ">\n      <{element} type=\"{kind}\" message=\"{message}\"/>");
                out.push_str("    </testcase>\n");
            }
        }
    }
    out.push_str("  </testsuite>\n</testsuites>\n");
    out
}

fn measurement(result: &RunResult) -> Option<Trouble> {
    let kind = match result.verdict {
        Verdict::Valid => return None,
        Verdict::Partial { .. } => "partial",
        Verdict::Invalid { .. } => "invalid",
    };
    Some(Trouble { element: "error", kind, message: words::warning(result).unwrap_or_default() })
}

/// As an attribute's value; XML has no control characters at all.
fn text(text: &str) -> String {
    html::escape(&text.replace(char::is_control, " "))
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;
    use rolldrop_analysis::model::Check;

    fn check(name: &str, verdict: CheckVerdict) -> Check {
        let [limit, observed, why] = ["0", "24", "24 \"lost\" & <more>\u{1}"].map(str::to_owned);
        Check { name: name.into(), verdict, limit, observed, why }
    }

    #[test]
    fn each_check_is_a_case_and_what_cannot_be_told_is_an_error() {
        let mut result = samples::naive_exit().result;
        result.checks = vec![
            check("dropped.max", CheckVerdict::Fail),
            check("windows.max", CheckVerdict::Inconclusive),
            check("terminations.min", CheckVerdict::Pass),
        ];
        insta::assert_snapshot!(render(&result), @r#"
        <?xml version="1.0" encoding="UTF-8"?>
        <testsuites>
          <testsuite name="naive-exit" tests="4" failures="1" errors="1" time="30.000">
            <testcase classname="rolldrop.naive-exit" name="measurement"/>
            <testcase classname="rolldrop.naive-exit" name="dropped.max">
              <failure type="fail" message="24 (limit 0): 24 &quot;lost&quot; &amp; &lt;more&gt; "/>
            </testcase>
            <testcase classname="rolldrop.naive-exit" name="windows.max">
              <error type="inconclusive" message="24 (limit 0): 24 &quot;lost&quot; &amp; &lt;more&gt; "/>
            </testcase>
            <testcase classname="rolldrop.naive-exit" name="terminations.min"/>
          </testsuite>
        </testsuites>
        "#);
    }

    #[test]
    fn a_measurement_that_does_not_count_is_an_error() {
        let invalid = render(&samples::invalid().result);
        assert!(invalid.contains("<error type=\"invalid\" message=\"INVALID"), "{invalid}");
        assert!(render(&samples::partial().result).contains("<error type=\"partial\""));
    }
}
