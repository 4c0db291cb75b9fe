//! Checks of windows, of dead seconds, and of the preStop sleep that is set.
//!
//! A quantile is bounded by order statistics, with windows that may have ended at the same time counted once, for each
//! mode and consumer on its own.

use std::collections::BTreeSet;

use super::figure::{Measured, each_within};
use super::requests::{more, no_termination};
use rolldrop_explain::math::stats;
use rolldrop_explain::model::apart;
use rolldrop_explain::model::figures::{counted, len, percent};
use rolldrop_explain::model::{Check, LossGroup, Mode, Termination, Unit, Window};
use rolldrop_record::expect::{Bounds, PreStopLimits, Span, WindowLimits};

/// The windows of a run.
pub(super) struct Windows<'a> {
    pub(super) terminations: &'a [Termination],
    pub(super) groups: &'a [LossGroup],
    /// Only consumer that counts; `None` for all.
    pub(super) consumer: Option<&'a str>,
    /// Confidence of each statement about all modes and consumers.
    pub(super) confidence: f64,
}

/// Confidence of a statement about several kinds of windows, and of the part about each of them.
#[derive(Clone, Copy)]
struct Confidence {
    of_all: f64,
    each: f64,
}

/// Windows that surely ended apart from the others.
type Block<'a> = Vec<(&'a Termination, Option<&'a Window>)>;

impl<'a> Windows<'a> {
    /// Returns the checks of `windows`.
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

    /// Returns the longest window: at least the longest lower bound, at most the longest upper bound if all have one.
    pub(super) fn longest(&self) -> Measured {
        let all = || self.all();
        if all().next().is_none() {
            return no_window();
        }
        let lower = all().filter_map(|(t, window)| Some((window.lower_s?, t)));
        let lower = lower.max_by(|a, b| a.0.total_cmp(&b.0));
        // For pods that share lost requests, perhaps only one of their windows is known to have lasted that long.
        let of_group = |group: &LossGroup| {
            let windows = group.windows.iter().filter(|window| self.counts(&window.consumer));
            Some((
                windows.filter_map(|window| window.lower_s).max_by(f64::total_cmp)?,
                group.terminations.len(),
            ))
        };
        let together = self.groups.iter().filter_map(of_group).max_by(|a, b| a.0.total_cmp(&b.0));
        let upper = all().filter_map(|(_, window)| window.upper_s).max_by(f64::total_cmp);
        let open = all().filter(|(_, window)| window.upper_s.is_none()).count();
        let shown = match (lower, together) {
            (Some((lower_s, t)), None) => Some((lower_s, format!("pod {}", t.pod))),
            (Some((lower_s, t)), Some((of_group, _))) if lower_s >= of_group => {
                Some((lower_s, format!("pod {}", t.pod)))
            }
            (_, Some((lower_s, 1))) => Some((lower_s, "a pod".to_owned())),
            (_, Some((lower_s, pods))) => Some((lower_s, format!("one of {pods} pods"))),
            (None, None) => None,
        };
        let low = shown.as_ref().map(|(lower_s, _)| *lower_s);
        let still = shown.map(|(lower_s, whom)| {
            format!("{whom} still got new connections {lower_s:.3} s after its deletion")
        });
        let basis = match open {
            0 => "the longest window lies between these bounds".to_owned(),
            _ => format!("{open} of {} without an upper bound", counted(len(all().count()), "window")),
        };
        let high = upper.filter(|_| open == 0);
        Measured::between(Unit::Seconds, low, None, high)
            .observed(
                upper.map_or_else(|| "no upper bound".to_owned(), |upper| format!("at most {upper:.3} s")),
            )
            .because(basis)
            .beyond_because(still)
            .settled_by(MORE_CONNECTIONS)
    }

    /// Returns the windows of each mode and consumer, in blocks that ended apart.
    fn blocks(&self) -> Vec<Vec<Block<'a>>> {
        let kinds: BTreeSet<(Mode, &str)> =
            self.all().map(|(t, window)| (t.mode, window.consumer.as_str())).collect();
        let of = |(mode, consumer): (Mode, &str)| {
            let its = self.all().filter(|(t, window)| t.mode == mode && window.consumer == consumer);
            apart(its.map(|(t, window)| (t, Some(window))))
        };
        kinds.into_iter().map(of).collect()
    }

    /// Splits the error of one statement between this many kinds of windows.
    fn shared_by(&self, kinds: usize) -> Confidence {
        Confidence { of_all: self.confidence, each: 1.0 - (1.0 - self.confidence) / kinds.max(1) as f64 }
    }

    /// Returns a quantile of future windows, for each mode and consumer.
    pub(super) fn quantiles(&self, share: f64) -> Vec<Measured> {
        let kinds = self.blocks();
        let confidence = self.shared_by(kinds.len());
        kinds.iter().map(|blocks| quantile(blocks, share, confidence)).collect()
    }

    /// Checks the preStop sleep that is set: the share of the terminations that it outlasts.
    pub(super) fn pre_stop(&self, limits: PreStopLimits) -> Vec<Check> {
        let share = limits.suffices.0;
        let kinds = self.blocks();
        let confidence = self.shared_by(kinds.len()).each;
        let outlasted = |blocks: &Vec<Block<'_>>| covered(blocks, share, confidence);
        let each: Vec<Measured> = kinds.iter().map(outlasted).collect();
        let bounds = Bounds { min: Some(share), ..Bounds::default() };
        let mut checks = each_within("preStop", bounds, &each, no_window);
        for check in &mut checks {
            check.name = "preStop.suffices".to_owned();
        }
        checks
    }

    /// Checks dead seconds, each termination by itself.
    pub(super) fn dead_seconds(&self, bounds: Bounds<Span>) -> Vec<Check> {
        each_within("deadSeconds", bounds.map(Span::seconds), &self.each_dead(), no_termination)
    }

    /// Returns the dead seconds of each termination.
    pub(super) fn each_dead(&self) -> Vec<Measured> {
        let of = |t: &Termination| match t.dead_seconds {
            Some(dead_s) => Measured::exactly(Unit::Seconds, dead_s),
            None => Measured::unknown(
                Unit::Seconds,
                format!("nothing shows at which rate pod {} got new connections, or what it lost", t.pod),
                "name the pod of each request (sidecar or pod header), or end pods one at a time",
            ),
        };
        self.terminations.iter().map(of).collect()
    }
}

const MORE_CONNECTIONS: &str =
    "a higher rate of new connections narrows the bounds, and a load that goes on after the last termination";

pub(super) fn no_window() -> Measured {
    Measured::unknown(Unit::Seconds, "no window was measured", "end pods while new connections are made")
}

/// Returns the two bounds of a quantile; a block has the largest upper and the smallest lower bound of its windows.
fn quantile(blocks: &[Block<'_>], share: f64, confidence: Confidence) -> Measured {
    let n = blocks.len();
    let (lower_rank, upper_rank) = stats::quantile_ranks(n, share, confidence.each);
    let windows =
        |block: &Block<'_>| block.iter().filter_map(|(_, window)| *window).cloned().collect::<Vec<_>>();
    let lower = |block: &Block<'_>| {
        windows(block).iter().map(|w| w.lower_s.unwrap_or(0.0)).min_by(f64::total_cmp).unwrap_or(0.0)
    };
    let upper = |block: &Block<'_>| {
        let uppers = windows(block).iter().map(|w| w.upper_s.unwrap_or(f64::INFINITY)).max_by(f64::total_cmp);
        uppers.unwrap_or(f64::INFINITY)
    };
    let at = |rank: Option<usize>, mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        rank.and_then(|rank| values.get(rank - 1).copied()).filter(|value| value.is_finite())
    };
    let low = at(lower_rank, blocks.iter().map(lower).collect());
    let high = at(upper_rank, blocks.iter().map(upper).collect());
    let basis = format!(
        "bounds of the {:.0}th percentile at {} confidence; {} ended separately",
        share * 100.0,
        percent(confidence.of_all),
        counted(len(n), "window")
    );
    let wanted = stats::wilks_needed(share, confidence.each);
    let settle = match upper_rank {
        None => format!("{}: an upper bound needs {wanted}", more(len(wanted.saturating_sub(n)))),
        Some(_) => MORE_CONNECTIONS.to_owned(),
    };
    Measured::between(Unit::Seconds, low, None, high).because(basis).settled_by(settle)
}

/// Returns the share of terminations whose windows are surely shorter than their preStop sleep, and the share that may
/// be.
fn covered(blocks: &[Block<'_>], share: f64, confidence: f64) -> Measured {
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
    let (basis, settle) = match hidden {
        Some((t, _)) => (
            format!("the preStop hook of pod {} is no sleep: how long it takes is unknown", t.pod),
            "use preStop: {sleep: {seconds: N}}".to_owned(),
        ),
        None => (
            format!("the sleep outlasts {short} of {}, {longer} surely last longer", counted(n, "window")),
            match stats::needed(n, |n| stats::share_lower(n, n, confidence) >= share) {
                Some(wanted) if short == n && wanted > n => {
                    format!("{} whose windows it outlasts", more(wanted - n))
                }
                _ => format!("more terminations, and narrower bounds: {MORE_CONNECTIONS}"),
            },
        ),
    };
    Measured::between(Unit::Share, Some(low), Some(short as f64 / n.max(1) as f64), Some(high))
        .because(basis)
        .settled_by(settle)
}
