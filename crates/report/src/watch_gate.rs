//! Gate on a `rolldrop watch` history, in words, for terminals and CI systems.

use std::time::Duration;

use serde::Serialize;

use super::format::{counted, list, rfc3339_seconds};
use super::github::{self, Github};
use super::watch_history::JudgedTime;
use super::{check_words, comment, junit, markdown, words};
use rolldrop_explain::model::{CheckText, CheckVerdict};
use rolldrop_judge::gate;
use rolldrop_judge::judgements::gate_check::Check;
use rolldrop_record::shown;

/// Version of the JSON.
const GATE_VERSION: u32 = 1;

/// Verdict on the real traffic of a period. It is also the JSON output.
#[derive(Clone, Debug, Serialize)]
pub struct HistoryGate {
    schema_version: u32,
    #[serde(flatten)]
    time: JudgedTime,
    /// Workloads that are judged, such as `shop/web`; empty if all are.
    workloads: Vec<String>,
    terminations: u64,
    verdict: CheckVerdict,
    checks: Vec<CheckText>,
}

impl HistoryGate {
    /// Puts the checks of some workloads, or of all, into words.
    pub fn new(time: JudgedTime, workloads: &[String], terminations: u64, checks: &[Check]) -> Self {
        Self {
            schema_version: GATE_VERSION,
            time,
            workloads: shown::values(&workloads.to_vec()).into_owned(),
            terminations,
            verdict: gate::verdict(checks.iter().map(|check| check.verdict)),
            checks: shown::values(&super::written(checks)).into_owned(),
        }
    }

    /// Returns the combined verdict.
    pub const fn verdict(&self) -> CheckVerdict {
        self.verdict
    }

    fn headline(&self) -> String {
        let of =
            if self.workloads.is_empty() { String::new() } else { format!(" of {}", list(&self.workloads)) };
        format!(
            "{}{of} from {} to {}",
            counted(self.terminations, "termination"),
            rfc3339_seconds(self.time.from_ns),
            rfc3339_seconds(self.time.to_ns)
        )
    }

    /// Returns the result as a sentence with the history as its subject: `failed: dropped.max`.
    fn standing(&self) -> String {
        let named = |verdict| list(&words::checks_with(&self.checks, verdict));
        match self.verdict {
            CheckVerdict::Pass => format!("passed {}", counted(self.checks.len() as u64, "check")),
            CheckVerdict::Fail => format!("failed: {}", named(CheckVerdict::Fail)),
            CheckVerdict::Inconclusive => format!("is inconclusive: {}", named(CheckVerdict::Inconclusive)),
        }
    }

    /// Returns the checks for a terminal, one line each.
    pub fn text(&self) -> String {
        format!("{}\n{}", self.headline(), check_words::text(&self.checks))
    }

    /// Returns the gate as JSON.
    ///
    /// # Panics
    ///
    /// Never: the gate contains only what JSON can represent.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data with names as keys") + "\n"
    }

    /// Returns the checks as test cases in JUnit XML.
    pub fn junit(&self) -> String {
        let seconds = self.time.to_ns.seconds_since(self.time.from_ns);
        junit::of_history(Duration::try_from_secs_f64(seconds).unwrap_or_default(), &self.checks)
    }

    /// Returns the output for a GitHub Actions step.
    pub fn github(&self) -> Github {
        let named = |verdict| words::checks_with(&self.checks, verdict).join(",");
        let verdict = match self.verdict {
            CheckVerdict::Pass => "passed",
            CheckVerdict::Fail => "failed",
            CheckVerdict::Inconclusive => "inconclusive",
        };
        Github {
            log: github::annotated(
                &self.checks,
                None,
                (format!("watch {}", self.standing()), self.headline()),
            ),
            summary: self.markdown(),
            outputs: github::lines(&[
                ("verdict", verdict.to_owned()),
                ("summary", self.headline()),
                ("failed-checks", named(CheckVerdict::Fail)),
                ("inconclusive-checks", named(CheckVerdict::Inconclusive)),
                ("terminations", self.terminations.to_string()),
            ]),
        }
    }

    /// Returns a comment for a pull request. Its first line is a hidden marker so that the next one can replace it.
    pub fn comment(&self) -> String {
        format!("<!-- rolldrop: watch -->\n{}", self.markdown())
    }

    fn markdown(&self) -> String {
        let mut out = String::new();
        markdown::section(&mut out, &format!("### rolldrop: `watch` {}", markdown::escape(&self.standing())));
        markdown::section(&mut out, &format!("**{}**", markdown::escape(&self.headline())));
        comment::checks(&mut out, &self.checks);
        out
    }
}
