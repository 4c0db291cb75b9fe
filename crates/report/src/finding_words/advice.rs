//! Puts recommendations and their grounds into words.

use super::super::format::{counted, either, len, percent, percent_down};
use super::unbounded_words::unbounded_of;
use super::{cause_words, in_phase};
use rolldrop_explain::MAX_COARSENESS_S;
use rolldrop_explain::model::account::{
    ConsumerClock, More, Narrowing, NoRecommendation, RecommendationBasis,
};
use rolldrop_explain::model::{Mode, Recommendation, WindowBasis};

/// Describes the evidence for a recommendation, such as `6 terminations of 1 rollout`.
pub(crate) fn rests_on(recommendation: &Recommendation) -> String {
    let terminations = counted(len(recommendation.terminations), "termination");
    match recommendation.rollouts {
        Some(rollouts) => format!("{terminations} of {}", counted(len(rollouts), "rollout")),
        None => terminations,
    }
}

/// Describes how pods end in a mode, to follow "pods that end".
pub(crate) const fn manner(mode: Mode) -> &'static str {
    match mode {
        Mode::Isolated => "one at a time",
        Mode::Rollout => "in a rollout",
        Mode::ScaleDown => "by scaling down",
        Mode::Drain => "as a node is drained",
        Mode::NodeShutdown => "as a node shuts down",
        Mode::Other => "in another way",
    }
}

/// Describes the sleep, its mode and its evidence, such as `a preStop sleep of 2 s for pods that end in a rollout
/// (suggested by 6 terminations of 1 rollout, not proven)`; `None` if no sleep is recommended.
pub(crate) fn sleep_in_words(recommendation: &Recommendation) -> Option<String> {
    let (of, how) = (manner(recommendation.mode), rests_on(recommendation));
    let grace = recommendation.termination_grace_period_seconds;
    let grace = grace.map_or_else(String::new, |s| format!(" with terminationGracePeriodSeconds {s}"));
    if let Some(proven) = recommendation.pre_stop_seconds {
        return Some(format!(
            "a preStop sleep of {proven} s{grace} for pods that end {of} (recommended, based on {how})"
        ));
    }
    let to = recommendation.suggested_seconds?;
    Some(match (recommendation.suggested_from_seconds, &recommendation.narrowed_by) {
        (Some(from), narrowed) => format!(
            "a preStop sleep between {from} and {to} s{grace} for pods that end {of} (suggested by {how}, not proven: {})",
            narrowed.as_deref().unwrap_or_default()
        ),
        (None, _) => {
            format!(
                "a preStop sleep of {to} s{grace} for pods that end {of} (suggested by {how}, not proven)"
            )
        }
    })
}

/// Describes the basis of a recommendation.
pub(super) fn basis(basis: &RecommendationBasis) -> String {
    let clock = |ConsumerClock { consumer, period_s, news_s }: &ConsumerClock| {
        format!(
            ", and {consumer} may keep routing to a pod for the {period_s:.0} s of its DNS cache plus the \
             {news_s:.3} s until the change arrived"
        )
    };
    let stopping = match basis.stopping_s {
        Some(s) => format!("the slowest pod took {s:.2} s from SIGTERM to its exit"),
        None => "the time from SIGTERM to the exit was not seen for every pod".to_owned(),
    };
    format!(
        "{}{}; the sleep is the longest time, rounded up, plus a margin of {} s, and never below the current setting; \
         {stopping}",
        longest_window(basis),
        basis.clocks.iter().map(clock).collect::<String>(),
        basis.margin_s,
    )
}

/// Describes what is known about the longest window.
fn longest_window(
    &RecommendationBasis { longest_s, windows, unbounded, .. }: &RecommendationBasis,
) -> String {
    match longest_s {
        Some(longest_s) if unbounded == 0 => {
            format!("the longest window lasted at most {longest_s:.3} s")
        }
        Some(longest_s) => format!(
            "the longest of the {} windows with an upper bound lasted at most {longest_s:.3} s",
            windows - unbounded
        ),
        None if windows == 0 => "there are no windows".to_owned(),
        None => "the length of the longest window is unknown, because none has an upper bound".to_owned(),
    }
}

/// Explains why nothing is recommended.
pub(super) fn refusal(refusal: &NoRecommendation) -> String {
    match refusal {
        NoRecommendation::NotWhole => "the record is incomplete".to_owned(),
        NoRecommendation::NotValid => "the measurement is not valid".to_owned(),
        NoRecommendation::Recreated(workload) => format!(
            "{workload} has strategy Recreate: all its pods end before the first new one starts, which no sleep can \
             cover"
        ),
        NoRecommendation::NotDeleted => cause_words::NOT_DELETED_REMEDY.to_owned(),
        NoRecommendation::ProbeFirst { probe, requests } => cause_words::probe_first(*probe, *requests),
        NoRecommendation::TooFew { windows, units, needed, covered, asked, confidence } => {
            let of = match units < windows {
                true => format!("{windows} pods, which left the rules in {},", steps(len(*units))),
                false => windows.to_string(),
            };
            format!(
                "the longest window of {of} covers {} of future ones at {} confidence; {} more {} needed to claim {} \
                 coverage",
                percent_down(*covered),
                percent(*confidence),
                needed - units,
                either(len(needed - units), "is", "are"),
                percent(*asked)
            )
        }
        NoRecommendation::Unbounded { unbounded, windows } => unbounded_of(len(*unbounded), len(*windows)),
        NoRecommendation::TooCoarse { rate } => format!(
            "a pod got only {rate:.1} new connections/s, which shows its window to within {:.2} s at best (limit \
             {MAX_COARSENESS_S} s); raise the rate of new connections",
            3.0 / rate
        ),
        NoRecommendation::InPhase(clock) => in_phase(clock),
    }
}

/// Counts the steps in which pods left the rules independently.
pub(super) fn steps(independent: u64) -> String {
    match independent {
        1 => "a single independent step".to_owned(),
        n => counted(n, "independent step"),
    }
}

/// Names the measurement that would narrow a range. Where bounds rest on balancing, it adds that naming the pods would
/// tighten them.
pub(super) fn narrowing(Narrowing { more, basis }: Narrowing) -> String {
    let more = match more {
        More::Rollouts(n) => format!("{} would settle it", counted(len(n), "more rollout")),
        More::Terminations(n) => {
            format!("{} at different times would settle it", counted(len(n), "more termination"))
        }
    };
    match basis {
        Some(WindowBasis::Balance | WindowBasis::BalanceAssumed) => format!(
            "{more}, and naming the pods would tighten the bounds (podHeader, a sidecar, --evidence conntrack)"
        ),
        _ => more,
    }
}
