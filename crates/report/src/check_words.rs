//! Puts checks into words, as used in `result.json` and in all other formats.

mod baseline_words;
mod limit_words;

use super::format::counted;
use rolldrop_explain::model::{CheckText, CheckVerdict, CommandResult, Figure, Verdict};
use rolldrop_judge::judgements::gate_check::{Check, CheckEvidence};
use rolldrop_record::expect::{Accounting, Part, Validity};

/// Evidence of a check, in words.
#[derive(Default)]
struct EvidenceInWords {
    limit: String,
    observed: String,
    /// Reason for the verdict; empty if the limit and the observation make it obvious.
    why: String,
    /// Way to settle the check if it is inconclusive.
    settle: String,
    figure: Option<Figure>,
}

impl EvidenceInWords {
    fn new(limit: impl Into<String>, observed: impl Into<String>, why: impl Into<String>) -> Self {
        Self { limit: limit.into(), observed: observed.into(), why: why.into(), ..Self::default() }
    }

    fn settled_by(self, settle: impl Into<String>) -> Self {
        Self { settle: settle.into(), ..self }
    }
}

/// Puts a check into words.
pub(super) fn written(check: &Check) -> CheckText {
    let EvidenceInWords { limit, observed, why, settle, figure } = told(check);
    let (why, settle) = match (&check.invalid, check.verdict) {
        (Some(why), _) => (format!("the measurement is invalid: {}", why.join("; ")), String::new()),
        (None, CheckVerdict::Inconclusive) => (why, settle),
        (None, _) => (why, String::new()),
    };
    CheckText { name: check.name.to_string(), verdict: check.verdict, limit, observed, why, settle, figure }
}

fn told(check: &Check) -> EvidenceInWords {
    match &check.evidence {
        CheckEvidence::Limit { measured, limit, side, by_default } => {
            limit_words::told(measured, (*limit, *side), *by_default, check.verdict)
        }
        CheckEvidence::Accounting { expected, adds_up, missing } => accounting(*expected, *adds_up, *missing),
        CheckEvidence::Validity { expected, found } => validity(*expected, found),
        CheckEvidence::Command(result) => command(result),
        CheckEvidence::NotDone(findings) => {
            EvidenceInWords::new("all actions done", "not all", limit_words::observations(findings))
        }
        CheckEvidence::UnknownPart { part, known } => unknown(part, known),
        CheckEvidence::Row(row) => baseline_words::row(row),
        CheckEvidence::FewRequestsASide(n) => baseline_words::few_requests(*n, " per side"),
        CheckEvidence::FewRequests(n) => baseline_words::few_requests(*n, ""),
        CheckEvidence::History { used, left_out } => baseline_words::history(*used, left_out),
        CheckEvidence::NotValid => EvidenceInWords::new("valid", "not valid", baseline_words::NOT_VALID),
        CheckEvidence::Missing(runs) => {
            let why = format!("{runs} earlier runs have this figure, but this run does not");
            EvidenceInWords::new("known", "unknown", why)
        }
        CheckEvidence::Predicted(prediction) => baseline_words::prediction(prediction),
        CheckEvidence::Worse(worsening) => baseline_words::worsening(worsening),
    }
}

fn accounting(expected: Accounting, adds_up: bool, missing: u64) -> EvidenceInWords {
    let (observed, why) = match (adds_up, missing) {
        (true, 0) => ("closes", String::new()),
        (true, n) => ("does not close", format!("the rows of {} did not arrive", counted(n, "request"))),
        (false, _) => ("does not close", "the classes do not add up to the total".to_owned()),
    };
    EvidenceInWords::new(expected.as_str(), observed, why)
}

fn validity(expected: Validity, found: &Verdict) -> EvidenceInWords {
    let (observed, why) = match found {
        Verdict::Valid => ("valid", String::new()),
        Verdict::Partial { why } => ("partial", why.join("; ")),
        Verdict::Invalid { why } => ("invalid", why.join("; ")),
    };
    EvidenceInWords::new(expected.as_str(), observed, why)
}

fn command(result: &CommandResult) -> EvidenceInWords {
    let observed = match (result.code, result.signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "no exit code".to_owned(),
    };
    let why = format!("{}: {observed}", result.words.join(" "));
    EvidenceInWords::new("exit code 0", observed, why)
}

fn unknown(part: &Part, known: &[String]) -> EvidenceInWords {
    let what = match part {
        Part::Consumer(_) => "consumer",
        Part::Target(_) => "target",
    };
    let why = format!("the run has no such {what}; use one of {}", known.join(", "));
    EvidenceInWords::new("to be measured", "unknown", why)
}

/// Describes the observation and the limit, and the reason if it adds anything.
pub(super) fn in_words(check: &CheckText) -> String {
    let why = reason(check);
    let why = if why.is_empty() { why } else { format!(": {why}") };
    format!("{} (limit {}){why}", check.observed, check.limit)
}

/// Returns the reason for the verdict and how to settle it; empty if there is neither.
pub(super) fn reason(check: &CheckText) -> String {
    let parts = [&check.why, &check.settle].map(String::as_str);
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
}

/// Renders the checks, one per line.
pub(super) fn text(checks: &[CheckText]) -> String {
    let line = |check: &CheckText| {
        let verdict = match check.verdict {
            CheckVerdict::Pass => "pass",
            CheckVerdict::Fail => "FAIL",
            CheckVerdict::Inconclusive => "inconclusive",
        };
        format!("{verdict:<12} {}: {}\n", check.name, in_words(check))
    };
    checks.iter().map(line).collect()
}

#[cfg(test)]
mod tests;
