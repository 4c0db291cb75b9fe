//! The checks that can be asked of the whole run, of one consumer and of one target.

use std::borrow::Cow;

use super::requests::Requests;
use super::times;
use super::windows::Windows;
use crate::RunResult;
use crate::model::{
    Check, CheckVerdict, Latencies, LossGroup, RequestCounts, TargetResult, TerminationRequests,
};
use rolldrop_record::expect::Expect;

/// The figures of a part of the requests, or of all.
pub(super) struct Part<'a> {
    result: &'a RunResult,
    pub(super) requests: Requests<'a>,
    latency_ms: &'a Latencies,
    longest_outage_s: f64,
    /// Its only consumer; `None` for all.
    consumer: Option<&'a str>,
}

impl<'a> Part<'a> {
    /// The whole run.
    pub(super) fn all(result: &'a RunResult) -> Self {
        let of = result.terminations.iter().map(|t| (t.pod.as_str(), &t.requests)).collect();
        Self {
            result,
            requests: requests(&result.requests, &result.groups, of, result.confidence()),
            latency_ms: &result.latency_ms,
            longest_outage_s: result.longest_outage_s,
            consumer: None,
        }
    }

    fn of_target(result: &'a RunResult, target: &'a TargetResult) -> Self {
        let pods = result.terminations.iter().map(|t| t.pod.as_str());
        Self {
            result,
            requests: requests(
                &target.requests,
                &target.groups,
                pods.zip(&target.terminations).collect(),
                result.confidence(),
            ),
            latency_ms: &target.latency_ms,
            longest_outage_s: target.longest_outage_s,
            consumer: Some(&target.consumer),
        }
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

    /// The checks that come before those of the whole run: what is counted, windows and times.
    pub(super) fn checks(&self, expect: &Expect) -> Vec<Check> {
        let mut checks = self.requests.checks(expect);
        let windows = self.windows();
        checks.extend(expect.windows.iter().flat_map(|limits| windows.checks(limits)));
        checks.extend(expect.outage.iter().flat_map(|bounds| times::outage(self.longest_outage_s, *bounds)));
        checks.extend(expect.dead_seconds.iter().flat_map(|bounds| windows.dead_seconds(*bounds)));
        if let Some(limits) = &expect.latency {
            checks.extend(times::latency(self.latency_ms, self.result.load.is_closed_loop(), limits));
        }
        checks.extend(expect.pre_stop.iter().flat_map(|limits| windows.pre_stop(*limits)));
        checks
    }
}

fn requests<'a>(
    counts: &'a RequestCounts,
    groups: &'a [LossGroup],
    terminations: Vec<(&'a str, &'a TerminationRequests)>,
    confidence: f64,
) -> Requests<'a> {
    Requests { counts, groups, terminations, confidence }
}

/// The checks of single consumers and targets.
pub(super) fn of_parts(result: &RunResult, expect: &Expect) -> Vec<Check> {
    let consumers = expect.consumers.iter().map(|(name, expect)| (Kind::Consumer, name, expect));
    let targets = expect.targets.iter().map(|(name, expect)| (Kind::Target, name, expect));
    consumers.chain(targets).flat_map(|(kind, name, expect)| of_part(result, kind, name, expect)).collect()
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Consumer,
    Target,
}

/// The checks of the targets that a name means: one, or those behind one consumer.
fn of_part(result: &RunResult, kind: Kind, name: &str, expect: &Expect) -> Vec<Check> {
    let key = match kind {
        Kind::Consumer => "consumers",
        Kind::Target => "targets",
    };
    let known = known(result);
    let is_meant =
        |target: &TargetResult| target.name == name || (kind == Kind::Consumer && target.consumer == name);
    let meant: Vec<&TargetResult> = known.iter().filter(|target| is_meant(target)).collect();
    if meant.is_empty() {
        return vec![unknown(&format!("{key}.{name}"), kind, &known)];
    }
    let is_one = meant.len() == 1;
    let of = |target: &&TargetResult| {
        let prefix = if is_one { format!("{key}.{name}") } else { format!("{key}.{name}.{}", target.name) };
        let checks = Part::of_target(result, target).checks(expect);
        let named = |check: Check| Check { name: format!("{prefix}.{}", check.name), ..check };
        checks.into_iter().map(named).collect::<Vec<_>>()
    };
    meant.iter().flat_map(of).collect()
}

/// The targets; where there is only one, it has the figures of the whole run.
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
        terminations: result.terminations.iter().map(|t| t.requests.clone()).collect(),
        groups: result.groups.clone(),
    });
    Cow::Owned(only.into_iter().collect())
}

fn unknown(name: &str, kind: Kind, known: &[TargetResult]) -> Check {
    let (what, names): (_, Vec<&str>) = match kind {
        Kind::Consumer => ("consumer", known.iter().flat_map(|t| [&*t.consumer, &*t.name]).collect()),
        Kind::Target => ("target", known.iter().map(|t| &*t.name).collect()),
    };
    let why = format!("the run has no such {what}; use one of {}", names.join(", "));
    Check::plain(name, CheckVerdict::Inconclusive, "to be measured", "unknown", why)
}
