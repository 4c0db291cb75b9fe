//! Expectations against a result: checks, and their verdict.
//!
//! Pure. A limit on counts is compared with what was observed, a limit on windows with their bounds. An invalid run
//! passes no check.

mod planned;

use crate::RunResult;
use crate::compare::FEWEST_REQUESTS;
use crate::compare::model::{Comparison, Judgement, Row};
use crate::figures::count;
use crate::model::{Check, CheckVerdict, CommandResult, Verdict};
use rolldrop_record::{Bounds, Cause, Expect};

/// Checks every expectation, in a fixed order.
pub fn check(result: &RunResult, expect: &Expect) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut counts = |name: &str, bounds: &Bounds, observed: u64| {
        checks.extend(bounds.min.map(|min| {
            let met = observed >= min;
            count_check(format!("{name}.min"), format!("at least {}", count(min)), observed, met)
        }));
        checks.extend(bounds.max.map(|max| {
            let met = observed <= max;
            count_check(format!("{name}.max"), format!("at most {}", count(max)), observed, met)
        }));
    };
    if let Some(bounds) = &expect.dropped {
        counts("dropped", bounds, result.requests.lost());
    }
    if let Some(bounds) = &expect.terminations {
        counts("terminations", bounds, result.terminations.len() as u64);
    }
    for (name, bounds) in &expect.causes {
        let of = |cause: &Cause| cause.as_str() == name;
        let observed = result.requests.by_cause.iter().filter(|(c, _)| of(c)).map(|(_, n)| n).sum();
        counts(&format!("causes.{name}"), bounds, observed);
    }
    checks.extend(planned::check(result, expect));
    checks.extend(expect.windows.map(|w| window_check(result, w.max_s)));
    checks.extend(result.command.as_ref().and_then(command_check));
    if let Verdict::Invalid { why } = &result.verdict {
        for check in &mut checks {
            check.verdict = CheckVerdict::Inconclusive;
            check.why = format!("the measurement is invalid: {}", why.join("; "));
        }
    }
    checks
}

/// Whether a run is worse than its baseline, figure by figure. An inconclusive figure passes if it does not even look
/// worse.
pub fn against_baseline(comparison: &Comparison) -> Vec<Check> {
    let check = |row: &Row| {
        // A figure that neither side has is none of these runs.
        row.baseline.or(row.candidate)?;
        let verdict = match row.verdict? {
            Judgement::Worse => CheckVerdict::Fail,
            Judgement::Better | Judgement::Same => CheckVerdict::Pass,
            Judgement::CannotTell if row.looks_worse_beyond(comparison.tolerance) => {
                CheckVerdict::Inconclusive
            }
            Judgement::CannotTell => CheckVerdict::Pass,
        };
        let value = |value: Option<f64>| value.map_or_else(|| "nothing".to_owned(), |v| row.unit.write(v));
        Some(Check {
            name: format!("baseline.{}", row.metric),
            verdict,
            limit: format!("not worse than {}", value(row.baseline)),
            observed: value(row.candidate),
            why: row.why.clone(),
        })
    };
    let sides = [&comparison.baseline, &comparison.candidate];
    let fewest = sides.map(|side| side.total).into_iter().min().unwrap_or(0);
    let too_few = (fewest < FEWEST_REQUESTS).then(|| Check {
        name: "baseline.requests".into(),
        verdict: CheckVerdict::Inconclusive,
        limit: format!("at least {FEWEST_REQUESTS} a side"),
        observed: count(fewest),
        why: "so few would not show that 1 % fail".into(),
    });
    too_few.into_iter().chain(comparison.rows.iter().filter_map(check)).collect()
}

/// The verdict of all checks: a failure outweighs an inconclusive check. Without checks the gate passes.
pub fn verdict(checks: &[Check]) -> CheckVerdict {
    let any = |v: CheckVerdict| checks.iter().any(|c| c.verdict == v);
    if any(CheckVerdict::Fail) {
        CheckVerdict::Fail
    } else if any(CheckVerdict::Inconclusive) {
        CheckVerdict::Inconclusive
    } else {
        CheckVerdict::Pass
    }
}

/// A command that failed fails the gate; one that the run cut off is not judged.
fn command_check(command: &CommandResult) -> Option<Check> {
    command.duration_s?;
    let observed = match (command.code, command.signal) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "no exit code".to_owned(),
    };
    let verdict = if command.code == Some(0) { CheckVerdict::Pass } else { CheckVerdict::Fail };
    Some(Check {
        name: "command".into(),
        verdict,
        limit: "exit code 0".into(),
        why: format!("{}: {observed}", command.words.join(" ")),
        observed,
    })
}

fn count_check(name: String, limit: String, observed: u64, met: bool) -> Check {
    Check {
        name,
        verdict: if met { CheckVerdict::Pass } else { CheckVerdict::Fail },
        limit,
        observed: count(observed),
        why: String::new(),
    }
}

fn window_check(result: &RunResult, max_s: f64) -> Check {
    let windows = || result.terminations.iter().flat_map(|t| t.windows.iter().map(move |w| (&t.pod, w)));
    let beyond = windows().find_map(|(pod, w)| Some((pod, w.lower_s.filter(|lower| *lower > max_s)?)));
    let open = windows().filter(|(_, w)| w.upper_s.is_none_or(|u| u > max_s)).count();
    let largest = windows().filter_map(|(_, w)| w.upper_s).max_by(f64::total_cmp);
    // Of pods that share lost requests it may only be known that one of their windows lasted so long.
    let together = result.groups.iter().find_map(|group| {
        let lower_s = group.windows.iter().filter_map(|w| w.lower_s).find(|lower| *lower > max_s)?;
        Some((group.terminations.len(), lower_s))
    });
    let (verdict, why) = if let Some((pod, lower_s)) = beyond {
        (CheckVerdict::Fail, format!("pod {pod} still got new connections {lower_s:.3} s after its deletion"))
    } else if let Some((pods, lower_s)) = together {
        let whom = if pods == 1 { "a pod".to_owned() } else { format!("one of {pods} pods") };
        (CheckVerdict::Fail, format!("{whom} still got new connections {lower_s:.3} s after its deletion"))
    } else if windows().next().is_none() {
        (CheckVerdict::Inconclusive, "no window was measured".to_owned())
    } else if open > 0 {
        let why =
            format!("{open} of {} windows have an upper bound beyond the limit, or none", windows().count());
        (CheckVerdict::Inconclusive, why)
    } else {
        (CheckVerdict::Pass, "every upper bound is within the limit".to_owned())
    };
    Check {
        name: "windows.max".into(),
        verdict,
        limit: format!("at most {max_s} s"),
        observed: largest.map_or_else(|| "no upper bound".to_owned(), |u| format!("at most {u:.3} s")),
        why,
    }
}
