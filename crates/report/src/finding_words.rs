//! Puts the findings and reasons of an analysis into words. The facts come from `explain` (`model::account`). Every
//! sentence about them is written here, once, before the report is rendered in any format.

mod advice;
mod cause_words;
mod ending_words;
mod incidents;
mod invalid_words;
mod measurement;
mod not_sent_words;
mod stream_words;
pub(crate) mod unbounded_words;

pub(super) use advice::{manner, rests_on, sleep_in_words};
pub use invalid_words::invalid as reason;
pub(super) use not_sent_words::reasons_in_words;

use super::format::{count, counted, either};
use rolldrop_explain::Analysis;
use rolldrop_explain::model::account::{BeatsState, ConsumerClock, Finding, Objection};
use rolldrop_explain::model::figure_text::{percent, percent_up};
use rolldrop_explain::model::{FindingText, OutsideCounts, RunResult, Verdict};
use rolldrop_record::Outcome;

/// Remedy if a container exits but its pod stays. Nothing waits for the container to exit, so no pod setting helps.
const RESTART_REMEDY: &str = "run more replicas and let clients retry; a readinessProbe shortens the outage";

/// Puts the account of an analysis into words, and stores the sentences in the result.
pub fn tell(analysis: &mut Analysis) {
    let Analysis { account, result, .. } = analysis;
    match &mut result.verdict {
        Verdict::Valid => {}
        Verdict::Partial { why } => *why = account.incomplete.iter().map(invalid_words::incomplete).collect(),
        Verdict::Invalid { why } => *why = account.invalid.iter().map(invalid_words::invalid).collect(),
    }
    let windows = result.terminations.iter_mut().flat_map(|termination| &mut termination.windows);
    for (window, unbounded) in windows.zip(account.unbounded.iter().flatten()) {
        window.censored = unbounded.as_ref().map(unbounded_words::reason);
    }
    for (recommendation, grounds) in result.recommendation.iter_mut().zip(&account.grounds) {
        recommendation.basis = advice::basis(&grounds.basis);
        recommendation.refused_because = grounds.refusals.iter().map(advice::refusal).collect();
        recommendation.narrowed_by = grounds.narrowing.map(advice::narrowing);
    }
    result.findings = account.findings.iter().map(|finding| in_words(finding, result)).collect();
}

/// The sentences of a finding.
struct Words {
    what: String,
    why: String,
    remedy: String,
}

fn words(what: impl Into<String>, why: impl Into<String>, remedy: impl Into<String>) -> Words {
    Words { what: what.into(), why: why.into(), remedy: remedy.into() }
}

fn in_words(finding: &Finding, result: &RunResult) -> FindingText {
    let (severity, kind, cause) = (finding.severity(), finding.kind(), finding.cause());
    let Words { what, why, remedy } = sentences(finding, result);
    FindingText { severity, kind, cause, what, why, remedy }
}

fn sentences(finding: &Finding, result: &RunResult) -> Words {
    match finding {
        Finding::NotWorking { ok, all, most_frequent } => not_working(*ok, *all, *most_frequent),
        Finding::Invalid(reason) => invalid_words::not_valid(reason),
        Finding::Incomplete(reason) => invalid_words::not_whole(reason),
        Finding::Lost { requests, by } => cause_words::lost(*requests, by, result),
        Finding::LostToRestart { requests, cause } => words(
            format!(
                "{cause}: {}, lost when a container exited and its pod stayed",
                counted(*requests, "request")
            ),
            "no preStop hook runs before such an exit, and the pod stays an endpoint until the kubelet notices",
            RESTART_REMEDY,
        ),
        Finding::Ambiguous { requests } => words(
            format!(
                "{} may belong to several terminations, so the loss of each is an interval",
                counted(*requests, "dropped request")
            ),
            "the pods ended so close together that neither time nor outcome shows which one lost a request",
            "have responses name their pod, or delete pods further apart; the totals of each group are exact",
        ),
        Finding::EndingErrors { answers, requests, are_all_named } => {
            ending_words::errors(*answers, *requests, *are_all_named)
        }
        Finding::Ending(ending) => ending_words::ending(ending),
        Finding::NeverRouted { consumer, pods } => unbounded_words::never_routed(consumer, pods),
        Finding::Unbounded { consumer, pods, denied } => unbounded_words::unbounded(consumer, pods, denied),
        Finding::RightMissing { denied, unbounded, windows } => {
            unbounded_words::right_missing(denied, *unbounded, *windows)
        }
        Finding::InPhase(clock) => words(
            in_phase(clock),
            "all windows of this consumer share that phase, so they count as one sample, however many there are",
            "end pods at random phases: set a jitter of at least that period",
        ),
        Finding::NotSent(by_reason) => words(
            format!("{} not sent", was(by_reason.values().sum())),
            reasons_in_words(by_reason),
            not_sent_words::remedy(by_reason),
        ),
        Finding::ImpreciseDeletions { deletions, widest_s, beats } => {
            imprecise_deletions(*deletions, *widest_s, beats)
        }
        Finding::UnevenStreams(uneven) => stream_words::uneven(uneven),
        Finding::Incident(incident) => incidents::incident(incident),
        Finding::Unsettled { waits } => words(
            format!(
                "requests were still being lost at the end of {} after terminations",
                counted(*waits, "wait")
            ),
            "a consumer takes longer than that to notice that a pod is gone, so windows may be longer than measured",
            "raise --settle-max to wait longer",
        ),
        Finding::TakenForGateway { consumer, because } => words(
            format!("{consumer} is treated as a gateway that balances requests: {because}"),
            "a gateway keeps its connections to pods open, so its windows show in requests, not in connections",
            "if you know what it balances, set `balances: connections` or `balances: requests` for the target",
        ),
        Finding::Measurement(measurement) => measurement::measurement(measurement),
        Finding::LookedAt { look, most, confidence, is_last } => words(
            format!(
                "the gate was judged at look {look} of {most}, with bounds at {} confidence",
                percent(*confidence)
            ),
            "the run continued while its gate was inconclusive; all looks share one error probability, fixed before the start",
            if *is_last { "if it is still inconclusive, start a new run with more terminations" } else { "" },
        ),
        Finding::NoTermination { are_others_disrupted } => no_termination(*are_others_disrupted),
        Finding::NothingLost { terminations, independent, confidence, at_most } => {
            nothing_lost(*terminations, *independent, (*confidence, *at_most))
        }
    }
}

fn nothing_lost(terminations: u64, independent: u64, (confidence, at_most): (f64, f64)) -> Words {
    let steps = match independent < terminations {
        true => format!(", as the pods left the rules in {}", advice::steps(independent)),
        false => String::new(),
    };
    words(
        format!("no request was dropped in {}", counted(terminations, "termination")),
        format!(
            "with {} confidence, at most {} of such terminations drop a request{steps}",
            percent(confidence),
            percent_up(at_most)
        ),
        "measure more terminations for a tighter bound",
    )
}

fn not_working(ok: u64, all: u64, most_frequent: Option<(Outcome, u64)>) -> Words {
    let why = most_frequent.map_or_else(String::new, |(outcome, n)| {
        format!(
            "requests that already fail cannot be lost to a termination; the most frequent failure is {} ({})",
            outcome.as_str(),
            count(n)
        )
    });
    words(
        format!(
            "the target does not work: {} of {} requests outside terminations succeeded ({}; at least {} required)",
            count(ok),
            count(all),
            percent(ok as f64 / all as f64),
            percent(OutsideCounts::WORKING_SHARE)
        ),
        why,
        "check the URL, path, method and expected statuses (load.success), and that the target answers before pods end",
    )
}

/// Returns `1 request was`, `2 requests were`, and so on.
fn was(requests: u64) -> String {
    format!("{} {}", counted(requests, "request"), either(requests, "was", "were"))
}

/// States that the pods ended at the same phase of a consumer's clock.
fn in_phase(ConsumerClock { consumer, period_s, .. }: &ConsumerClock) -> String {
    format!(
        "the pods ended at about the same phase of the {period_s:.0} s for which {consumer} caches DNS answers"
    )
}

fn imprecise_deletions(deletions: u64, widest_s: f64, beats: &BeatsState) -> Words {
    let (why, remedy) = match beats {
        BeatsState::Absent => (
            "a deletionTimestamp is in whole seconds, and this run had no beats (its own writes, whose resource \
             versions date other deletions)"
                .to_owned(),
            "allow the run to create and patch its own ConfigMap, and do not set --no-beats",
        ),
        BeatsState::Dropped(why) => (
            format!("a deletionTimestamp is in whole seconds, and the run's beats were discarded: {}", objection(why)),
            "let the run delete the pods itself (deletePod, evict)",
        ),
        BeatsState::Usable => (
            "a deletionTimestamp is in whole seconds, and no beat narrows it down".to_owned(),
            "check the warnings for why beats were delayed",
        ),
    };
    let what = format!(
        "others deleted {}, at times known only to within {widest_s:.2} s; the upper bounds of their windows are up to \
         that much higher",
        counted(deletions, "pod")
    );
    words(what, why, remedy)
}

pub(super) fn objection(objection: &Objection) -> String {
    match objection {
        Objection::NotANumber(version) => format!("version {version:?} is not a number"),
        Objection::NotRising => "their resource versions do not increase".to_owned(),
        Objection::TooFewChecks { made, needed } => {
            format!("they could be compared with pod versions only {made} times, and {needed} are needed")
        }
        Objection::NotBetween => {
            "pod versions do not lie between the versions of the beats before and after".to_owned()
        }
        Objection::Disordered => "pod versions do not follow the order of the beats".to_owned(),
    }
}

fn no_termination(are_others_disrupted: bool) -> Words {
    let (why, remedy) = match are_others_disrupted {
        false => (
            "the run shows only the steady state",
            "add a disruption to the scenario to measure a termination",
        ),
        true => ("this run's disruptions do not end pods, so there is no window", ""),
    };
    words("no pod ended under load", why, remedy)
}

#[cfg(test)]
mod tests;
