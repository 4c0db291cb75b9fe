//! Checks that apply to the whole run, to one consumer, or to one target.

use std::borrow::Cow;

use super::figure::largest;
use super::known::{ComparableFigures, FiguresOfTarget, Keyed, KnownFigure};
use super::request_checks::{CheckedRequests, no_termination};
use super::window_checks::{Windows, no_window};
use super::{ending_checks, planned, rollout_checks, stream_checks, times};
use crate::judgements::basis::{Basis, Measured};
use crate::judgements::gate_check::{Check, CheckEvidence, CheckName};
use rolldrop_explain::model::{CheckVerdict, Latencies, Recommendation, RunResult, TargetResult, Unit};
use rolldrop_record::Cause;
use rolldrop_record::expect::{Bounds, Expect, LatencyFigure, Part as Named, Span, WindowLimits};

/// Figures of all requests, or of a part of them.
pub(super) struct PartFigures<'a> {
    result: &'a RunResult,
    pub(super) requests: CheckedRequests<'a>,
    latency_ms: &'a Latencies,
    outage: Measured,
    /// Consumer to which the part is limited; `None` for all.
    consumer: Option<&'a str>,
}

impl<'a> PartFigures<'a> {
    /// Returns the whole run as a part.
    pub(super) fn all(result: &'a RunResult) -> Self {
        let of = result.terminations.iter().map(|t| (t.pod.as_str(), &t.requests)).collect();
        Self {
            result,
            requests: CheckedRequests {
                counts: &result.requests,
                groups: &result.groups,
                terminations: of,
                independent: Recommendation::independent_ends(&result.recommendation),
                confidence: result.confidence(),
            },
            latency_ms: &result.latency_ms,
            outage: times::outage(result.longest_outage_s, result.is_failing_at_end),
            consumer: None,
        }
    }

    fn of_target(result: &'a RunResult, target: &'a TargetResult) -> Self {
        let pods = result.terminations.iter().map(|t| t.pod.as_str());
        Self {
            result,
            requests: CheckedRequests {
                counts: &target.requests,
                groups: &target.groups,
                terminations: pods.zip(&target.terminations).collect(),
                independent: Recommendation::independent_ends(&result.recommendation),
                confidence: result.confidence(),
            },
            latency_ms: &target.latency_ms,
            outage: times::outage(target.longest_outage_s, target.is_failing_at_end),
            consumer: Some(&target.consumer),
        }
    }

    /// Returns the figures that can be compared with a baseline and that are also defined for a part of the requests.
    pub(super) fn figures(&self) -> Keyed {
        let Self { requests, .. } = self;
        let windows = self.windows();
        let count = Measured::count;
        let most = |each: &[Measured], nothing: fn() -> Measured| largest(each).unwrap_or_else(nothing);
        let mut all = vec![
            ("dropped".to_owned(), count(requests.counts.lost())),
            ("dropped.perTermination".to_owned(), most(&requests.each_termination(), no_termination)),
            ("dropped.perGroup".to_owned(), most(&requests.each_group(), no_termination)),
            ("appErrors".to_owned(), count(requests.counts.app_errors)),
            ("appErrors.whileEnding".to_owned(), count(requests.errors_of_ends())),
            ("requests.ok".to_owned(), requests.ok_outside()),
            ("requests.notSent".to_owned(), count(requests.counts.not_sent)),
            ("windows".to_owned(), windows.longest()),
            ("outage".to_owned(), self.outage.clone()),
        ];
        let causes = requests.counts.by_cause.iter();
        all.extend(causes.map(|(cause, n)| (format!("causes.{cause}"), count(*n))));
        let outcomes = requests.counts.by_outcome.keys();
        all.extend(outcomes.map(|o| (format!("outcomes.{o}"), count(requests.of_outcome(*o)))));
        let quantiles = WindowLimits::QUANTILES.into_iter();
        all.extend(
            quantiles
                .map(|(name, share)| (format!("windows.{name}"), most(&windows.quantiles(share), no_window))),
        );
        for (part, percentiles) in times::parts(self.latency_ms, self.result.load.is_closed_loop()) {
            let of =
                |figure: &LatencyFigure| (format!("{part}.{figure}"), times::millis(percentiles, *figure));
            all.extend(LatencyFigure::ALL.iter().map(of));
        }
        all.into_iter().map(|(key, measured)| (key, measured.most())).collect()
    }

    /// Returns the figures that are defined only for the whole run.
    fn figures_of_all(&self) -> Keyed {
        let mut all = self.figures();
        let result = self.result;
        let nothing: [fn() -> Measured; 3] = [no_termination, times::no_start, rollout_checks::no_rollout];
        let each = [
            ("deadSeconds", self.windows().each_dead()),
            ("starts.firstRequest", times::each_start(&result.starts)),
            ("rollout", rollout_checks::each_rollout(result)),
        ];
        for ((key, each), nothing) in each.into_iter().zip(nothing) {
            all.insert(key.to_owned(), largest(&each).unwrap_or_else(nothing).most());
        }
        let not_ready = result.requests.by_cause.get(&Cause::NotReadyYet).copied().unwrap_or(0);
        all.insert("starts.dropped".to_owned(), KnownFigure::Value(not_ready as f64));
        all.insert("restarts".to_owned(), planned::restarted(result).most());
        all.insert("killed".to_owned(), ending_checks::killed(&result.terminations).most());
        all.insert("failedHooks".to_owned(), ending_checks::failed_hooks(&result.terminations).most());
        all.extend(stream_checks::figures(result.streams.as_ref()));
        all
    }

    fn windows(&self) -> Windows<'a> {
        let Self { result, consumer, .. } = self;
        Windows {
            terminations: &result.terminations,
            groups: &result.groups,
            consumer: *consumer,
            confidence: result.confidence(),
        }
    }

    /// Returns the checks on counts, windows and times, which precede those that apply only to the whole run.
    pub(super) fn checks(&self, expect: &Expect) -> Vec<Check> {
        let mut checks = self.requests.checks(expect);
        let windows = self.windows();
        checks.extend(expect.windows.iter().flat_map(|limits| windows.checks(limits)));
        let outage = |bounds: &Bounds<Span>| self.outage.within("outage", bounds.map(Span::seconds));
        checks.extend(expect.outage.iter().flat_map(outage));
        checks.extend(expect.dead_seconds.iter().flat_map(|bounds| windows.dead_seconds(*bounds)));
        if let Some(limits) = &expect.latency {
            checks.extend(times::latency(self.latency_ms, self.result.load.is_closed_loop(), limits));
        }
        checks.extend(expect.pre_stop.iter().flat_map(|limits| windows.pre_stop(*limits)));
        checks
    }
}

/// Returns the checks that are limited to a consumer or a target.
pub(super) fn of_parts(result: &RunResult, expect: &Expect) -> Vec<Check> {
    let consumers = expect.consumers.iter().map(|(name, expect)| (Named::Consumer(name.clone()), expect));
    let targets = expect.targets.iter().map(|(name, expect)| (Named::Target(name.clone()), expect));
    consumers.chain(targets).flat_map(|(named, expect)| of_part(result, &named, expect)).collect()
}

/// Returns the figures of a run that can be compared with a baseline.
pub(crate) fn figures(result: &RunResult) -> ComparableFigures {
    let of = |target: &TargetResult| FiguresOfTarget {
        name: target.name.clone(),
        consumer: target.consumer.clone(),
        // The figures of a single target are those of the whole run.
        figures: match result.targets.is_empty() {
            true => Keyed::new(),
            false => PartFigures::of_target(result, target).figures(),
        },
    };
    ComparableFigures {
        all: PartFigures::all(result).figures_of_all(),
        targets: known(result).iter().map(of).collect(),
    }
}

/// Returns the targets that a limit names. If the clients of each node are a target of their own (`NAME@node`), NAME
/// stands for all of them.
pub(crate) fn meant<'t, T>(
    named: &Named,
    targets: &'t [T],
    names: impl Fn(&T) -> (&str, &str),
) -> Vec<&'t T> {
    let is_named = |target: &&T| match (named, names(target)) {
        (Named::Consumer(of), (name, consumer)) => name == of || consumer == of,
        (Named::Target(of), (name, _)) => name == of,
    };
    let exact: Vec<&T> = targets.iter().filter(is_named).collect();
    if !exact.is_empty() {
        return exact;
    }
    let (Named::Consumer(of) | Named::Target(of)) = named;
    let is_of_a_node = |target: &&T| names(target).0.split_once('@').is_some_and(|(name, _)| name == of);
    targets.iter().filter(is_of_a_node).collect()
}

/// Returns the checks for a name: one target, all targets behind one consumer, or one target as seen from each node.
fn of_part(result: &RunResult, named: &Named, expect: &Expect) -> Vec<Check> {
    let key = named.key();
    let known = known(result);
    let meant = meant(named, &known, |target| (&target.name, &target.consumer));
    if meant.is_empty() {
        return vec![unknown(key, named, &known)];
    }
    let is_one = meant.len() == 1;
    let of = |target: &&TargetResult| {
        let prefix = if is_one { key.clone() } else { format!("{key}.{}", target.name) };
        let mut checks = PartFigures::of_target(result, target).checks(expect);
        if super::sent(&target.requests) == 0 {
            let nothing = Measured::unknown(Unit::Count, Basis::NothingSent);
            checks.push(nothing.at_least("requests.sent", 1.0));
        }
        let named =
            |check: Check| Check { name: CheckName::Limit(format!("{prefix}.{}", check.name)), ..check };
        checks.into_iter().map(named).collect::<Vec<_>>()
    };
    meant.iter().flat_map(of).collect()
}

/// Returns the targets. A single target gets the figures of the whole run.
fn known(result: &RunResult) -> Cow<'_, [TargetResult]> {
    if !result.targets.is_empty() {
        return Cow::Borrowed(&result.targets);
    }
    let only = result.only_target.as_ref().map(|target| TargetResult {
        name: target.name.clone(),
        consumer: target.consumer.clone(),
        requests: result.requests.clone(),
        latency_ms: result.latency_ms.clone(),
        longest_outage_s: result.longest_outage_s,
        is_failing_at_end: result.is_failing_at_end,
        terminations: result.terminations.iter().map(|t| t.requests.clone()).collect(),
        groups: result.groups.clone(),
    });
    Cow::Owned(only.into_iter().collect())
}

fn unknown(key: String, part: &Named, known: &[TargetResult]) -> Check {
    let names: Vec<&str> = match part {
        Named::Consumer(_) => known.iter().flat_map(|t| [&*t.consumer, &*t.name]).collect(),
        Named::Target(_) => known.iter().map(|t| &*t.name).collect(),
    };
    let known = names.into_iter().map(str::to_owned).collect();
    let evidence = CheckEvidence::UnknownPart { part: part.clone(), known };
    Check::limit(key, CheckVerdict::Inconclusive, evidence)
}
