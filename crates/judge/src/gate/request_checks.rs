//! Checks on requests. Counts are judged as observed, shares by their bounds.
//!
//! One termination loses its requests together, and so do pods that left the rules in one step. So a share is bounded by
//! independent terminations, or by groups of terminations that share their losses: the proportion of these units that
//! lose anything (Clopper and Pearson) times the loss per losing unit, which is assumed to lie between the smallest and
//! the largest loss seen. With 24 units or more, if at least five lost something, Student's t bounds the mean loss
//! instead. Losses that cannot be attributed to any termination count as observed.

use super::figure::{each_limit, each_within};
use crate::judgements::basis::{Basis, LossUnits, Measured, PodFact};
use crate::judgements::gate_check::{Check, CheckEvidence};
use rolldrop_explain::math::stats;
use rolldrop_explain::model::figure_text::len;
use rolldrop_explain::model::{Bounded, CheckVerdict, LossGroup, RequestCounts, TerminationRequests, Unit};
use rolldrop_record::expect::{Amount, Bounds, Expect, Limits};
use rolldrop_record::{Cause, Outcome};

/// Minimum number of units for bounding the mean loss with Student's t.
const MANY: usize = 24;
/// Minimum number of units that lost something for bounding the mean loss with Student's t.
const SOME: usize = 5;

/// Requests of a run, or of a part of a run, in the form that the checks need.
pub(super) struct CheckedRequests<'a> {
    pub(super) counts: &'a RequestCounts,
    pub(super) groups: &'a [LossGroup],
    /// Each termination's pod and its requests.
    pub(super) terminations: Vec<(&'a str, &'a TerminationRequests)>,
    /// Number of the run's terminations whose losses are independent.
    pub(super) independent: usize,
    /// Confidence of each bound.
    pub(super) confidence: f64,
}

impl CheckedRequests<'_> {
    /// Returns all checks on requests, in the order in which the vocabulary lists them.
    pub(super) fn checks(&self, expect: &Expect) -> Vec<Check> {
        let mut checks = Vec::new();
        if expect.limits == Some(Limits::Default) && expect.dropped.is_none() {
            checks.push(self.with_power(self.none_dropped()));
        }
        if let Some(limits) = &expect.dropped {
            let total = self.amount("dropped", limits.total(), self.counts.lost(), lost_of);
            checks.extend(total.into_iter().map(|check| self.with_power(check)));
            checks.extend(limits.per_termination.iter().flat_map(|bounds| self.per_termination(*bounds)));
            checks.extend(limits.per_group.iter().flat_map(|bounds| self.per_group(*bounds)));
        }
        if let Some(limits) = &expect.app_errors {
            let errors = self.counts.app_errors;
            checks.extend(self.observed("appErrors", limits.total(), &Measured::count(errors)));
            let while_ending = limits.while_ending.iter();
            checks.extend(while_ending.flat_map(|bounds| self.errors_while_ending(*bounds)));
        }
        if let Some(limits) = &expect.requests {
            let ok = limits.ok.iter();
            checks.extend(ok.flat_map(|b| self.ok_outside().within("requests.ok", b.map(|share| share.0))));
            let (bounds, not_sent) = (limits.not_sent.iter(), Measured::count(self.counts.not_sent));
            let check = |b| self.observed("requests.notSent", b, &not_sent);
            checks.extend(bounds.copied().flat_map(check));
        }
        for (cause, bounds) in &expect.causes {
            checks.extend(self.cause(&format!("causes.{cause}"), *cause, *bounds));
        }
        for (outcome, bounds) in &expect.outcomes {
            checks.extend(self.outcome(*outcome, *bounds));
        }
        checks
    }

    /// Checks the default gate's limit: nothing is lost, except requests that an HTTP/2 server reported as not
    /// processed. A server that shuts down cleanly also reports such requests, and every client resends them.
    fn none_dropped(&self) -> Check {
        let of = |outcome| self.counts.by_outcome.get(&outcome).copied().unwrap_or(0);
        let unprocessed = of(Outcome::H2Goaway) + of(Outcome::H2RefusedStream);
        let lost = Measured::count(self.counts.lost().saturating_sub(unprocessed));
        let lost = match unprocessed {
            0 => lost,
            _ => lost.because(Basis::WithoutUnprocessed(unprocessed)),
        };
        lost.at_most("dropped", 0.0)
    }

    /// Checks the number or share of requests dropped for one cause.
    pub(super) fn cause(&self, name: &str, cause: Cause, bounds: Bounds<Amount>) -> Vec<Check> {
        let observed = self.counts.by_cause.get(&cause).copied().unwrap_or(0);
        self.amount(name, bounds, observed, |group| group.by_cause.get(&cause).copied().unwrap_or(0))
    }

    /// Checks the number of 5xx responses from pods that were terminating.
    fn errors_while_ending(&self, bounds: Bounds<Amount>) -> Vec<Check> {
        let (errors, all) = (self.errors_of_ends(), self.counts.app_errors_while_ending);
        let count = Measured::count(errors);
        let count = if errors == all { count } else { count.because(Basis::AsInSteadyPart(all)) };
        self.observed("appErrors.whileEnding", bounds, &count)
    }

    /// Returns the number of 5xx responses from terminating pods, or 0 if they are no more frequent than while no pod
    /// ends.
    pub(super) fn errors_of_ends(&self) -> u64 {
        self.counts.errors_of_ends(self.terminations.iter().map(|(_, requests)| requests.seen).sum())
    }

    fn outcome(&self, outcome: Outcome, bounds: Bounds<Amount>) -> Vec<Check> {
        let of = |group: &LossGroup| group.by_outcome.get(&outcome).copied().unwrap_or(0);
        self.amount(&format!("outcomes.{outcome}"), bounds, self.of_outcome(outcome), of)
    }

    /// Checks `observed` against limits on counts, and its share of the requests against limits on shares. `of` returns
    /// a group's part of `observed`.
    fn amount(
        &self,
        name: &str,
        bounds: Bounds<Amount>,
        observed: u64,
        of: impl Fn(&LossGroup) -> u64,
    ) -> Vec<Check> {
        amount(name, bounds, &Measured::count(observed), |limit| {
            self.share(observed, self.counts.total, &of, limit)
        })
    }

    /// Checks a number that is not attributed to terminations. Its share has no bounds beyond the observed value.
    fn observed(&self, name: &str, bounds: Bounds<Amount>, count: &Measured) -> Vec<Check> {
        let sent = self.counts.total.max(1) as f64;
        amount(name, bounds, count, |_| count.clone().into_share_of(sent))
    }

    /// If a check passes because nothing was lost, adds how rare a fault this many terminations would still have
    /// revealed.
    fn with_power(&self, mut check: Check) -> Check {
        let units = self.loss_units();
        if let CheckEvidence::Limit { measured, .. } = &mut check.evidence
            && units.number > 0
            && self.counts.lost() == 0
            && measured.basis == Basis::Observed
        {
            let confidence = self.confidence;
            let share = stats::share_upper(0, units.number, confidence);
            measured.basis = Basis::Power { share, confidence, units };
        }
        check
    }

    /// Counts the terminations that are in no loss group.
    fn ungrouped(&self) -> usize {
        let grouped: usize = self.groups.iter().map(|group| group.terminations.len()).sum();
        self.terminations.len().saturating_sub(grouped)
    }

    /// Returns `of` for each loss group, and 0 for each further unit that lost nothing: a termination that is in no
    /// group, as far as the terminations are independent.
    fn units(&self, of: impl Fn(&LossGroup) -> u64) -> Vec<u64> {
        let further = self.independent.max(1).saturating_sub(self.groups.len());
        self.groups.iter().map(of).chain(std::iter::repeat_n(0, further.min(self.ungrouped()))).collect()
    }

    /// Counts the terminations; those that share losses, or that left the rules in one step, count once.
    fn loss_units(&self) -> LossUnits {
        let n = self.units(|_| 0).len();
        LossUnits { number: len(n), are_groups: n != self.terminations.len() }
    }

    /// Bounds the share of `observed` in `whole`, which is all scheduled requests or all streams. `of` returns a
    /// group's part of `observed`.
    pub(super) fn share(
        &self,
        observed: u64,
        whole: u64,
        of: impl Fn(&LossGroup) -> u64,
        limit: f64,
    ) -> Measured {
        if whole == 0 {
            return Measured::unknown(Unit::Share, Basis::NothingScheduled);
        }
        let units = self.units(of);
        let losses = UnitLosses::of(&units, observed, self.confidence);
        let (low, high) = losses.bounds(len(units.len()), 1.0);
        let high = high.min(whole as f64);
        let measured = Measured::between(Unit::Count, Some(low), Some(observed as f64), Some(high));
        let measured = measured.into_share_of(whole as f64);
        if units.is_empty() || low == high {
            return measured;
        }
        measured.because(Basis::Losses {
            confidence: self.confidence,
            units: self.loss_units(),
            losing: losses.losing,
            more: losses.more(&units, limit * whole as f64),
        })
    }

    /// Returns the success rate while no pod ended.
    pub(super) fn ok_outside(&self) -> Measured {
        let outside = self.counts.outside_terminations;
        let (ok, all) = (outside.ok, outside.all());
        if all == 0 {
            return Measured::unknown(Unit::Share, Basis::NoneOutside);
        }
        Measured::exactly(Unit::Share, ok as f64 / all as f64).because(Basis::Outside { ok, all })
    }

    /// Returns each termination's number of lost requests.
    pub(super) fn each_termination(&self) -> Vec<Measured> {
        let lost = |(pod, requests): &(&str, &TerminationRequests)| {
            let stale = requests.by_cause.get(&Cause::StaleFlow);
            let Bounded { at_least, at_most, .. } = stale.copied().unwrap_or_default();
            let dropped = requests.dropped;
            let low = dropped.at_least.saturating_sub(at_least) as f64;
            let high = dropped.at_most.saturating_sub(at_most) as f64;
            Measured::between(Unit::Count, Some(low), None, Some(high))
                .because(Basis::Pod((*pod).to_owned(), PodFact::SharesLosses))
        };
        self.terminations.iter().map(lost).collect()
    }

    fn per_termination(&self, bounds: Bounds<u64>) -> Vec<Check> {
        // If a group lost more than the limit times its pods, at least one pod exceeded the limit.
        let of_group = |group: &LossGroup| {
            let stale = group.by_cause.get(&Cause::StaleFlow).copied().unwrap_or(0);
            let pods = len(group.terminations.len()).max(1);
            Measured::between(Unit::Count, Some((group.dropped - stale).div_ceil(pods) as f64), None, None)
                .because(Basis::GroupBeyondLimit)
        };
        let (bounds_on, each) = (bounds.map(|n| n as f64), self.each_termination());
        let mut checks = each_within("dropped.perTermination", bounds_on, &each, no_termination);
        if let Some(max) = bounds.max {
            let judge = |group| of_group(group).at_most("dropped.perTermination", max as f64);
            let failed = self.groups.iter().map(judge).find(|check| check.verdict == CheckVerdict::Fail);
            if let (Some(failed), Some(check)) = (failed, checks.last_mut())
                && check.verdict != CheckVerdict::Fail
            {
                *check = failed;
            }
        }
        checks
    }

    /// Returns the losses of each group of terminations that share losses, and of each ungrouped termination.
    pub(super) fn each_group(&self) -> Vec<Measured> {
        let ungrouped = std::iter::repeat_n(0, self.ungrouped());
        self.groups.iter().map(lost_of).chain(ungrouped).map(Measured::count).collect()
    }

    fn per_group(&self, bounds: Bounds<u64>) -> Vec<Check> {
        each_within("dropped.perGroup", bounds.map(|n| n as f64), &self.each_group(), no_termination)
    }

    /// Counts the requests of one outcome class, without the generator's own stale flows.
    pub(super) fn of_outcome(&self, outcome: Outcome) -> u64 {
        let all = self.counts.by_outcome.get(&outcome).copied().unwrap_or(0);
        let stale = self.counts.stale_flow_own_by_outcome.get(&outcome).copied().unwrap_or(0);
        all.saturating_sub(stale)
    }
}

/// Counts a group's lost requests, without the generator's own stale flows.
fn lost_of(group: &LossGroup) -> u64 {
    group.dropped - group.by_cause.get(&Cause::StaleFlow).unwrap_or(&0)
}

/// Checks `count` against limits on counts, and `share` against limits on shares. `share` receives the limit.
pub(super) fn amount(
    name: &str,
    bounds: Bounds<Amount>,
    count: &Measured,
    share: impl Fn(f64) -> Measured,
) -> Vec<Check> {
    each_limit(bounds, |limit, side| match limit {
        Amount::Count(n) => count.against(name, n as f64, side),
        Amount::Share(limit) => share(limit.0).against(name, limit.0, side),
    })
}

/// Returns the unknown figure for a run without terminations.
pub(super) fn no_termination() -> Measured {
    Measured::unknown(Unit::Count, Basis::NoTermination)
}

/// Losses per independent unit: a termination, or a group that shares its losses.
struct UnitLosses {
    /// Number of units that lost something.
    losing: u64,
    least: f64,
    most: f64,
    /// Bounds on the mean loss, if there are enough units.
    mean: Option<(f64, f64)>,
    confidence: f64,
    units: u64,
    /// Number of lost requests that are not attributed to any unit.
    rest: f64,
}

impl UnitLosses {
    fn of(units: &[u64], observed: u64, confidence: f64) -> Self {
        let losing: Vec<u64> = units.iter().copied().filter(|n| *n > 0).collect();
        let values: Vec<f64> = units.iter().map(|n| *n as f64).collect();
        let is_many = units.len() >= MANY && losing.len() >= SOME;
        Self {
            losing: len(losing.len()),
            least: losing.iter().min().copied().unwrap_or(0) as f64,
            most: losing.iter().max().copied().unwrap_or(1) as f64,
            mean: is_many.then(|| stats::mean_bounds(&values, confidence)).flatten(),
            confidence,
            units: len(units.len()),
            rest: observed.saturating_sub(units.iter().sum()) as f64,
        }
    }

    /// Returns the bounds on the loss if `n` units like these end while `times` times as many requests are sent.
    fn bounds(&self, n: u64, times: f64) -> (f64, f64) {
        let rest = self.rest * times;
        if n == 0 {
            return (rest, rest);
        }
        if let Some((low, high)) = self.mean {
            return (rest + n as f64 * low.max(0.0), rest + n as f64 * high);
        }
        let losing = (self.losing * n).div_ceil(self.units.max(1));
        let low = stats::share_lower(losing, n, self.confidence) * self.least;
        let high = stats::share_upper(losing, n, self.confidence) * self.most;
        (rest + n as f64 * low, rest + n as f64 * high)
    }

    /// Returns how many further terminations like these would show on which side of `limit` the loss is, if that can be
    /// computed.
    fn more(&self, units: &[u64], limit: f64) -> Option<u64> {
        let seen = len(units.len());
        let settles = |n: u64| {
            let times = n as f64 / seen as f64;
            let (low, high) = self.bounds(n, times);
            high <= limit * times || low > limit * times
        };
        stats::needed(seen, settles).filter(|_| self.mean.is_none()).map(|n| n - seen)
    }
}
