//! Checks on windows, dead seconds, and the configured preStop sleep.
//!
//! Order statistics bound a quantile, separately for each mode and consumer. Windows that may have ended at the same
//! time count once.

use std::collections::BTreeSet;

use super::figure::each_within;
use super::request_checks::no_termination;
use crate::judgements::basis::{Basis, LongestWindow, Measured, PodFact, WindowOwner};
use crate::judgements::gate_check::{Check, CheckName};
use rolldrop_explain::math::stats;
use rolldrop_explain::model::figure_text::len;
use rolldrop_explain::model::{LossGroup, Mode, Termination, Unit, Window, apart};
use rolldrop_record::expect::{Bounds, PreStopLimits, Span, WindowLimits};

/// Windows of a run, in the form that the checks need.
pub(super) struct Windows<'a> {
    pub(super) terminations: &'a [Termination],
    pub(super) groups: &'a [LossGroup],
    /// Consumer whose windows count; `None` for all.
    pub(super) consumer: Option<&'a str>,
    /// Joint confidence of a statement about all modes and consumers.
    pub(super) confidence: f64,
}

/// Confidence of a statement about several kinds of windows, and of its part about each kind.
#[derive(Clone, Copy)]
struct Confidence {
    of_all: f64,
    each: f64,
}

/// Windows that may have ended together, but certainly not with any other window.
type WindowBlock<'a> = Vec<(&'a Termination, Option<&'a Window>)>;

impl<'a> Windows<'a> {
    /// Returns the checks for the `windows` expectation.
    pub(super) fn checks(&self, limits: &WindowLimits) -> Vec<Check> {
        let max = limits.max.map(|max| self.longest().at_most("windows", max.seconds()));
        let quantile = |(name, share, bounds): (&str, f64, Bounds<Span>)| {
            let name = format!("windows.{name}");
            each_within(&name, bounds.map(Span::seconds), &self.quantiles(share), no_window)
        };
        max.into_iter().chain(limits.quantiles().flat_map(quantile)).collect()
    }

    fn counts(&self, consumer: &str) -> bool {
        self.consumer.is_none_or(|only| only == consumer)
    }

    fn all(&self) -> impl Iterator<Item = (&'a Termination, &'a Window)> {
        let ones = |t: &'a Termination| t.windows.iter().filter(|window| window.is_one());
        let of = move |t: &'a Termination| ones(t).map(move |window| (t, window));
        self.terminations.iter().flat_map(of).filter(move |(_, window)| self.counts(&window.consumer))
    }

    /// Returns the bounds of the longest window: the longest lower bound and, if all windows have an upper bound, the
    /// longest upper bound.
    pub(super) fn longest(&self) -> Measured {
        let all = || self.all();
        if all().next().is_none() {
            return no_window();
        }
        let lower = all().filter_map(|(t, window)| Some((window.lower_s?, t)));
        let lower = lower.max_by(|a, b| a.0.total_cmp(&b.0));
        // Among pods that share lost requests, it may be known only that one of them had a window that long.
        let of_group = |group: &LossGroup| {
            let windows = group.windows.iter().filter(|window| self.counts(&window.consumer));
            Some((
                windows.filter_map(|window| window.lower_s).max_by(f64::total_cmp)?,
                group.terminations.len(),
            ))
        };
        let together = self.groups.iter().filter_map(of_group).max_by(|a, b| a.0.total_cmp(&b.0));
        let upper_s = all().filter_map(|(_, window)| window.upper_s).max_by(f64::total_cmp);
        let unbounded = all().filter(|(_, window)| window.upper_s.is_none()).count();
        let lasted = match (lower, together) {
            (Some((lower_s, t)), together) if together.is_none_or(|(of_group, _)| lower_s >= of_group) => {
                Some((lower_s, WindowOwner::Pod(t.pod.clone())))
            }
            (_, together) => together.map(|(lower_s, pods)| (lower_s, WindowOwner::OneOf(pods))),
        };
        let low = lasted.as_ref().map(|(lower_s, _)| *lower_s);
        let high = upper_s.filter(|_| unbounded == 0);
        let (windows, unbounded) = (len(all().count()), len(unbounded));
        let basis = Basis::LongestWindow(LongestWindow { windows, unbounded, lasted });
        Measured::between(Unit::Seconds, low, None, high).because(basis)
    }

    /// Returns the windows of each mode and consumer, in blocks that ended separately.
    fn blocks(&self) -> Vec<Vec<WindowBlock<'a>>> {
        let kinds: BTreeSet<(Mode, &str)> =
            self.all().map(|(t, window)| (t.mode, window.consumer.as_str())).collect();
        let of = |(mode, consumer): (Mode, &str)| {
            let its = self.all().filter(|(t, window)| t.mode == mode && window.consumer == consumer);
            apart(its.map(|(t, window)| (t, Some(window))))
        };
        kinds.into_iter().map(of).collect()
    }

    /// Divides the error of one statement among this many kinds of windows.
    fn shared_by(&self, kinds: usize) -> Confidence {
        Confidence { of_all: self.confidence, each: 1.0 - (1.0 - self.confidence) / kinds.max(1) as f64 }
    }

    /// Returns a quantile of future windows, for each mode and consumer.
    pub(super) fn quantiles(&self, share: f64) -> Vec<Measured> {
        let kinds = self.blocks();
        let confidence = self.shared_by(kinds.len());
        kinds.iter().map(|blocks| quantile(blocks, share, confidence)).collect()
    }

    /// Checks the share of terminations in which the configured preStop sleep outlasts the window.
    pub(super) fn pre_stop(&self, limits: PreStopLimits) -> Vec<Check> {
        let share = limits.suffices.0;
        let kinds = self.blocks();
        let confidence = self.shared_by(kinds.len()).each;
        let outlasted = |blocks: &Vec<WindowBlock<'_>>| covered(blocks, share, confidence);
        let each: Vec<Measured> = kinds.iter().map(outlasted).collect();
        let bounds = Bounds { min: Some(share), ..Bounds::default() };
        let mut checks = each_within("preStop", bounds, &each, no_window);
        for check in &mut checks {
            check.name = CheckName::Limit("preStop.suffices".to_owned());
        }
        checks
    }

    pub(super) fn dead_seconds(&self, bounds: Bounds<Span>) -> Vec<Check> {
        each_within("deadSeconds", bounds.map(Span::seconds), &self.each_dead(), no_termination)
    }

    pub(super) fn each_dead(&self) -> Vec<Measured> {
        let of = |t: &Termination| match t.dead_seconds {
            Some(dead_s) => Measured::exactly(Unit::Seconds, dead_s),
            None => Measured::unknown(Unit::Seconds, Basis::Pod(t.pod.clone(), PodFact::NoRate)),
        };
        self.terminations.iter().map(of).collect()
    }
}

pub(super) fn no_window() -> Measured {
    Measured::unknown(Unit::Seconds, Basis::NoWindow)
}

/// Returns the bounds of a quantile. Each block contributes the largest upper and the smallest lower bound of its
/// windows.
fn quantile(blocks: &[WindowBlock<'_>], share: f64, confidence: Confidence) -> Measured {
    let n = blocks.len();
    let (lower_rank, upper_rank) = stats::quantile_ranks(n, share, confidence.each);
    let windows =
        |block: &WindowBlock<'_>| block.iter().filter_map(|(_, window)| *window).cloned().collect::<Vec<_>>();
    let lower = |block: &WindowBlock<'_>| {
        windows(block).iter().map(|w| w.lower_s.unwrap_or(0.0)).min_by(f64::total_cmp).unwrap_or(0.0)
    };
    let upper = |block: &WindowBlock<'_>| {
        let uppers = windows(block).iter().map(|w| w.upper_s.unwrap_or(f64::INFINITY)).max_by(f64::total_cmp);
        uppers.unwrap_or(f64::INFINITY)
    };
    let at = |rank: Option<usize>, mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        rank.and_then(|rank| values.get(rank - 1).copied()).filter(|value| value.is_finite())
    };
    let low = at(lower_rank, blocks.iter().map(lower).collect());
    let high = at(upper_rank, blocks.iter().map(upper).collect());
    let basis = Basis::Percentile {
        share,
        confidence: confidence.of_all,
        windows: len(n),
        needed: upper_rank.is_none().then(|| len(stats::wilks_needed(share, confidence.each))),
    };
    Measured::between(Unit::Seconds, low, None, high).because(basis)
}

/// Returns the bounds on the share of terminations whose windows are shorter than their preStop sleep: the share that
/// certainly are, and the share that may be.
fn covered(blocks: &[WindowBlock<'_>], share: f64, confidence: f64) -> Measured {
    let sleep_s = |t: &Termination| t.pre_stop_seconds.map(|s| s as f64);
    let is_short = |(t, window): &(&Termination, Option<&Window>)| {
        let upper_s = window.and_then(|w| w.upper_s);
        sleep_s(t).zip(upper_s).is_some_and(|(sleep_s, upper_s)| upper_s <= sleep_s)
    };
    let is_longer = |(t, window): &(&Termination, Option<&Window>)| {
        let lower_s = window.and_then(|w| w.lower_s);
        sleep_s(t).zip(lower_s).is_some_and(|(sleep_s, lower_s)| lower_s > sleep_s)
    };
    let n = len(blocks.len());
    let short = len(blocks.iter().filter(|block| block.iter().all(is_short)).count());
    let longer = len(blocks.iter().filter(|block| block.iter().any(is_longer)).count());
    let low = stats::share_lower(short, n, confidence);
    let high = stats::share_upper(n - longer, n, confidence);
    let hidden = blocks.iter().flatten().find(|(t, _)| t.pre_stop_seconds.is_none());
    let basis = match hidden {
        Some((t, _)) => Basis::Pod(t.pod.clone(), PodFact::HookIsNoSleep),
        None => {
            let needed = stats::needed(n, |n| stats::share_lower(n, n, confidence) >= share);
            let more = needed.filter(|needed| short == n && *needed > n).map(|needed| needed - n);
            Basis::Sleep { windows: n, outlasted: short, longer, more }
        }
    };
    Measured::between(Unit::Share, Some(low), Some(short as f64 / n.max(1) as f64), Some(high)).because(basis)
}
