//! Puts figures and their limits into words.

use super::EvidenceInWords;
use crate::format::{count, counted, either, len, long_time};
use rolldrop_explain::model::figure_text::{percent, percent_up};
use rolldrop_explain::model::{CheckVerdict, Figure, FindingText, Stage, StartStage, Unit};
use rolldrop_judge::judgements::basis::{
    Basis, FigureDoubt, LatencyBasis, LongestWindow, LossUnits, Measured, PodFact, WindowOwner,
};
use rolldrop_judge::judgements::gate_check::LimitSide;
use rolldrop_record::expect::LatencyFigure;

const MORE_CONNECTIONS: &str = "a higher rate of new connections narrows the bounds, and so does a load that continues after the last termination";
const NAME_PODS: &str = "have responses name their pod (sidecar or pod header), or end pods one at a time";
const NAME_NEW_PODS: &str =
    "have responses name their pod (sidecar or pod header), or let the load run longer";
const UNTIL_GONE: &str = "keep the load running until the pod is gone";

pub(super) fn told(
    measured: &Measured,
    (limit, side): (f64, LimitSide),
    by_default: bool,
    verdict: CheckVerdict,
) -> EvidenceInWords {
    let Measured { figure, basis } = measured;
    let side = match side {
        LimitSide::Min => "at least",
        LimitSide::Max => "at most",
    };
    let mut why = match (verdict, basis) {
        (CheckVerdict::Fail, Basis::LongestWindow(LongestWindow { lasted: Some((lower_s, whose)), .. })) => {
            format!("{} still got new connections {lower_s:.3} s after its deletion", owner(whose))
        }
        (CheckVerdict::Inconclusive, Basis::Observed) => "the limit lies between the bounds".to_owned(),
        _ => reason(basis),
    };
    why.push_str(match (by_default, basis) {
        (true, Basis::Outside { .. } | Basis::NoneOutside) => {
            "; requests: {ok: {min: SHARE}} sets another limit"
        }
        (true, Basis::NoneEnded | Basis::NoneEndedInWatch | Basis::NoneEndedInHistory) => {
            "; terminations: {min: 0} allows it"
        }
        _ => "",
    });
    let told =
        EvidenceInWords::new(format!("{side} {}", as_limit(figure.unit, limit)), observed(measured), why);
    EvidenceInWords { figure: Some(*figure), ..told.settled_by(settle(basis)) }
}

/// Formats an observed number.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count, which is whole")]
pub(super) fn write(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Count if value.fract() == 0.0 => count(value as u64),
        Unit::Count => format!("{value:.1}"),
        Unit::Share => percent(value),
        Unit::Seconds => format!("{value:.3} s"),
        Unit::Millis => format!("{value:.3} ms"),
        Unit::Times => format!("{value:.2}x"),
    }
}

/// Formats a limit.
fn as_limit(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Count | Unit::Share => write(unit, value),
        Unit::Seconds => format!("{value} s"),
        Unit::Millis => format!("{value} ms"),
        Unit::Times => format!("{value}x"),
    }
}

fn observed(measured: &Measured) -> String {
    let Figure { unit, low, value, high } = measured.figure;
    let write = |value| write(unit, value);
    match (&measured.basis, low, value, high) {
        (Basis::LongestWindow(_), _, _, Some(high)) => format!("at most {}", write(high)),
        (Basis::LongestWindow(_), ..) => "no upper bound".to_owned(),
        (Basis::NoneEndedInWatch | Basis::NoneEndedInHistory, ..) => "0".to_owned(),
        (_, Some(low), _, Some(high)) if low == high => write(low),
        (_, Some(low), Some(value), Some(high)) => {
            format!("{} ({} to {})", write(value), write(low), write(high))
        }
        (_, Some(low), _, Some(high)) => format!("{} to {}", write(low), write(high)),
        (_, Some(low), _, None) => format!("at least {}", write(low)),
        (_, None, _, Some(high)) => format!("at most {}", write(high)),
        (_, None, ..) => "unknown".to_owned(),
    }
}

/// Describes the evidence for a figure's bounds, or the reason why it is unknown; empty for a plain observation.
pub(super) fn reason(basis: &Basis) -> String {
    match basis {
        Basis::Observed => String::new(),
        Basis::NothingSent => "nothing was sent, so nothing was measured".to_owned(),
        Basis::NothingScheduled => "no request was scheduled".to_owned(),
        Basis::NoneEnded => "the run was meant to terminate pods, but none was terminated".to_owned(),
        Basis::NoneEndedInWatch => "no pod ended while the run watched".to_owned(),
        Basis::NoneEndedInHistory => "no pod ended in this period".to_owned(),
        Basis::Open(doubts) => doubts.iter().map(doubt).collect::<Vec<_>>().join("; "),
        Basis::NoneOutside => "no request was sent outside terminations".to_owned(),
        Basis::GroupBeyondLimit => {
            "a group of terminations lost more than the limit allows for all its pods together".to_owned()
        }
        Basis::NoStream => "the load sent no streams".to_owned(),
        Basis::NoTermination => "no termination was measured".to_owned(),
        Basis::NoWindow => "no window was measured".to_owned(),
        Basis::NoEnd => "no pod ended".to_owned(),
        Basis::NoStart => "no pod started".to_owned(),
        Basis::StillFailing => "requests still failed when the load ended".to_owned(),
        Basis::NoRollout => "no rollout was measured".to_owned(),
        Basis::WithoutUnprocessed(n) => {
            format!("not counting {} that the server said it had not processed", counted(*n, "request"))
        }
        Basis::Power { share, confidence, units } => format!(
            "a fault that loses requests in at least {} of the terminations shows in {} of the runs with {}",
            percent_up(*share),
            percent(*confidence),
            in_words(*units)
        ),
        Basis::AsInSteadyPart(n) => format!("{}, no more than in the steady part of the run", count(*n)),
        Basis::Losses { confidence, units, losing, .. } => format!(
            "bounds at {} confidence from {}, of which {} lost requests: neighbouring requests are correlated",
            percent(*confidence),
            in_words(*units),
            count(*losing)
        ),
        Basis::Outside { ok, all } => {
            format!("{} of {} requests outside terminations succeeded", count(*ok), count(*all))
        }
        Basis::LongestWindow(LongestWindow { unbounded: 0, .. }) => {
            "the longest window lies between these bounds".to_owned()
        }
        Basis::LongestWindow(LongestWindow { windows, unbounded, .. }) => {
            format!("{unbounded} of {} without an upper bound", counted(*windows, "window"))
        }
        Basis::Percentile { share, confidence, windows, .. } => format!(
            "bounds of the {:.0}th percentile at {} confidence; {} ended separately",
            share * 100.0,
            percent(*confidence),
            counted(*windows, "window")
        ),
        Basis::Sleep { windows, outlasted, longer, .. } => format!(
            "the sleep outlasts {outlasted} of {}; {longer} certainly last longer",
            counted(*windows, "window")
        ),
        Basis::UnseenExitCodes(pods) => match &pods[..] {
            [pod] => format!("the exit code of pod {pod} was not seen"),
            _ => format!("the exit codes of {} were not seen", counted(len(pods.len()), "pod")),
        },
        Basis::Pod(pod, fact) => of_pod(pod, *fact),
        Basis::Latency(figure, basis) => latency(*figure, *basis),
        Basis::Restarted(findings) => observations(findings),
    }
}

fn doubt(doubt: &FigureDoubt) -> String {
    let pods = |n: u64| counted(n, "pod");
    match doubt {
        FigureDoubt::NotWatched(seconds) => {
            format!("for {}, no watch is known to have run, or it was interrupted", long_time(*seconds))
        }
        FigureDoubt::InNoLog(n) => format!("no log names {}", pods(*n)),
        FigureDoubt::LinesMissing(n) => {
            format!("log lines may be missing for {}", counted(*n, "termination"))
        }
        FigureDoubt::NotObservable(n) => {
            format!("the logs do not show whether {} succeeded", counted(*n, "further request"))
        }
        FigureDoubt::StreamsCutUnknown(n) => {
            format!("the logs do not show which streams were cut by {}", counted(*n, "termination"))
        }
        FigureDoubt::Background(n) => format!("{} may have failed without a termination", count(*n)),
        FigureDoubt::MayBeOthers(n) => format!("{} may belong to other terminations", count(*n)),
        FigureDoubt::NoRequests => "no request reached a terminating pod".to_owned(),
        FigureDoubt::KilledUnknown(n) => {
            format!("it is not known how {} ended", pods(*n))
        }
        FigureDoubt::HooksUnknown(n) => {
            format!("Events about {} may have been missed", pods(*n))
        }
        FigureDoubt::ExitCodesUnseen(n) => format!("the exit codes of {} were not seen", pods(*n)),
    }
}

/// Explains what would remove a doubt; empty if nothing would.
const fn settle_doubt(doubt: &FigureDoubt) -> &'static str {
    match doubt {
        FigureDoubt::NotWatched(_) => "keep the watch running, or judge a shorter period (--since)",
        FigureDoubt::InNoLog(_) => {
            "follow the logs of the gateways in front of these pods (--logs), or judge only workloads that are behind \
             gateways (--workload)"
        }
        FigureDoubt::LinesMissing(_) => "keep the logs readable and the watch running",
        FigureDoubt::NotObservable(_) | FigureDoubt::StreamsCutUnknown(_) => {
            "use a log format that shows which responses were complete"
        }
        FigureDoubt::NoRequests => "judge a longer period (--since)",
        FigureDoubt::KilledUnknown(_) | FigureDoubt::ExitCodesUnseen(_) => UNTIL_GONE,
        FigureDoubt::HooksUnknown(_) => "allow the watch to list and watch Events",
        FigureDoubt::Background(_) | FigureDoubt::MayBeOthers(_) => "",
    }
}

fn of_pod(pod: &str, fact: PodFact) -> String {
    match fact {
        PodFact::SharesLosses => format!("pod {pod} shares lost requests with other terminations"),
        PodFact::NoRate => {
            format!("the rate of new connections to pod {pod} and its losses are unknown")
        }
        PodFact::HookIsNoSleep => {
            format!("the preStop hook of pod {pod} is not a sleep, so its duration is unknown")
        }
        PodFact::NoStage(stage) => format!("stage {stage} of pod {pod} was not seen"),
        PodFact::NoStartStage(stage) => format!("stage {stage} of the new pod {pod} was not seen"),
        PodFact::NoFirstRequest => {
            format!("the new pod {pod} is not known to have answered a request")
        }
        PodFact::NotGone => format!("the end of pod {pod} was not seen"),
        PodFact::NotReady => format!("pod {pod} was not ready when the run ended"),
    }
}

fn latency(figure: LatencyFigure, basis: LatencyBasis) -> String {
    match basis {
        LatencyBasis::Answers(n) => format!("{figure} of {} answered requests", count(n)),
        LatencyBasis::Ratio { disrupted_ms, steady_ms } => {
            format!("{figure} is {disrupted_ms:.3} ms near terminations and {steady_ms:.3} ms elsewhere")
        }
        LatencyBasis::Few { answers, needed } => {
            format!("only {} such requests were answered; {figure} needs {}", count(answers), count(needed))
        }
    }
}

/// Joins the observations of several findings.
pub(super) fn observations(findings: &[FindingText]) -> String {
    findings.iter().map(|finding| finding.what.as_str()).collect::<Vec<_>>().join("; ")
}

fn in_words(units: LossUnits) -> String {
    let LossUnits { number, are_groups } = units;
    match are_groups {
        false => counted(number, "termination"),
        true => {
            format!("{} {}", count(number), either(number, "group of terminations", "groups of terminations"))
        }
    }
}

fn owner(whose: &WindowOwner) -> String {
    match whose {
        WindowOwner::Pod(pod) => format!("pod {pod}"),
        WindowOwner::OneOf(1) => "a pod".to_owned(),
        WindowOwner::OneOf(pods) => format!("one of {pods} pods"),
    }
}

/// Explains how to settle a check that is inconclusive on this basis; empty if there is no way.
pub(super) fn settle(basis: &Basis) -> String {
    let more = |n: u64| counted(n, "more termination");
    let way = match basis {
        Basis::NoneEndedInWatch => "watch while pods end",
        Basis::NoneEndedInHistory => "judge a longer period (--since)",
        Basis::Open(doubts) => doubts.first().map_or("", settle_doubt),
        Basis::NothingScheduled => "send a load",
        Basis::NoneOutside => "keep the load running before the first termination",
        Basis::Losses { more: Some(n), .. } => return format!("{} like these would settle it", more(*n)),
        Basis::Losses { more: None, .. } => "more terminations may settle it",
        Basis::NoStream => "send streams: load.stream in the scenario, or rolldrop load --stream",
        Basis::NoTermination => "end pods while the load runs",
        Basis::NoWindow => "end pods while new connections are made",
        Basis::Percentile { needed: Some(needed), windows, .. } => {
            let more = more(needed.saturating_sub(*windows));
            return format!("{more}: an upper bound needs {needed}");
        }
        Basis::LongestWindow(_) | Basis::Percentile { needed: None, .. } => MORE_CONNECTIONS,
        Basis::Sleep { more: Some(n), .. } => return format!("{} whose windows it outlasts", more(*n)),
        Basis::Sleep { more: None, .. } => {
            return format!("more terminations, and narrower bounds: {MORE_CONNECTIONS}");
        }
        Basis::NoEnd => "let the run end pods",
        Basis::NoStart => "let the run replace pods",
        Basis::StillFailing => "let the load run until requests succeed again",
        Basis::NoRollout => "roll out a workload",
        Basis::UnseenExitCodes(_) => UNTIL_GONE,
        Basis::Latency(_, LatencyBasis::Few { .. }) => "run a longer load, or raise its rate",
        Basis::Pod(_, fact) => settle_pod(*fact),
        Basis::Observed
        | Basis::NothingSent
        | Basis::NoneEnded
        | Basis::WithoutUnprocessed(_)
        | Basis::Power { .. }
        | Basis::AsInSteadyPart(_)
        | Basis::Outside { .. }
        | Basis::GroupBeyondLimit
        | Basis::Latency(..)
        | Basis::Restarted(_) => "",
    };
    way.to_owned()
}

const fn settle_pod(fact: PodFact) -> &'static str {
    match fact {
        PodFact::SharesLosses | PodFact::NoRate => NAME_PODS,
        PodFact::HookIsNoSleep => "use preStop: {sleep: {seconds: N}}",
        PodFact::NoStage(Stage::KillBegan | Stage::ListenerClosed | Stage::AppExited) => {
            "run the recording proxy in the pod (sidecar)"
        }
        PodFact::NoStage(Stage::LastConnection) => "open new connections to each pod until it ends",
        PodFact::NoStage(_) => UNTIL_GONE,
        PodFact::NoFirstRequest | PodFact::NoStartStage(StartStage::FirstRequest) => NAME_NEW_PODS,
        PodFact::NoStartStage(_) => "let the load run longer",
        PodFact::NotGone | PodFact::NotReady => "let the load run until the rollout has ended",
    }
}
