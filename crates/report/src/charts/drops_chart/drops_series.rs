//! Data for the chart of dropped requests.

use std::collections::{BTreeMap, BTreeSet};

use super::super::axis::{Break, bin_of, nice_step, right_end};
use super::MARKS;
use crate::words;
use rolldrop_explain::Analysis;
use rolldrop_explain::model::{LossGroup, LostRequest, Mode, Termination, Window};
use rolldrop_record::Outcome;

/// Target for the maximum number of rows. More are drawn only if combining pods cannot reduce their number to it.
const ROWS: usize = 8;
/// Approximate number of bins on the x axis.
const BINS: f64 = 110.0;
/// Time in seconds up to which the axis shows drops, however short the windows are.
const NEAR_S: f64 = 4.0;

/// Data that the chart plots.
#[derive(Debug, PartialEq)]
pub(super) struct DropSeries {
    pub(super) rows: Vec<DropRow>,
    /// Both ends of the x axis, in seconds since the deletion.
    pub(super) from_s: f64,
    pub(super) to_s: f64,
    /// Range that the axis omits because nothing happened there.
    pub(super) left_out_s: Option<Break>,
    /// Width of a bin, in seconds.
    pub(super) bin_s: f64,
    /// Largest number of drops in one bin.
    pub(super) most: u64,
    /// Number of dropped requests that no termination explains.
    pub(super) elsewhere: u64,
    /// Start time of each remaining dropped request, in seconds since the deletion from which its row counts.
    pub(super) delays_s: Vec<f64>,
}

/// Pods whose requests a row shows.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RowPods {
    /// A single pod, as an index into the terminations.
    One(usize),
    /// Pods that may have lost the same requests. Time counts from the first deletion.
    Group(Vec<usize>),
    /// Pods that share no losses. Time counts from each pod's own deletion.
    Apart(Vec<usize>),
}

impl RowPods {
    pub(super) fn all(&self) -> &[usize] {
        match self {
            RowPods::One(one) => std::slice::from_ref(one),
            RowPods::Group(all) | RowPods::Apart(all) => all,
        }
    }
}

/// A row: one or several pods, and the requests that a consumer lost because of them.
#[derive(Debug, PartialEq)]
pub(super) struct DropRow {
    pub(super) pods: RowPods,
    /// The consumer, if there is more than one.
    pub(super) consumer: Option<String>,
    /// Drops by bin and outcome. Bins are counted from the deletion and are negative before it.
    pub(super) bins: BTreeMap<i64, BTreeMap<Outcome, u64>>,
    /// Total number of drops in the row.
    pub(super) dropped: u64,
    /// Number of drops beyond the end of the axis.
    pub(super) beyond: u64,
    /// Arrival times of answered requests on new connections, in seconds.
    pub(super) late: Vec<f64>,
    /// Times at which the pods were deleted, in seconds since the first deletion.
    pub(super) deletions: Vec<f64>,
    /// Stages of a single pod, ordered by time: the time, and the index in [`MARKS`].
    pub(super) marks: Vec<(f64, usize)>,
    /// Longest lower and upper bounds of the windows that begin at the row's time origin.
    pub(super) window: Option<(f64, Option<f64>)>,
    /// Duration that at least one window in the group reached, in seconds.
    pub(super) group_window_s: Option<f64>,
}

/// Consumer data that rows need: the index among the targets, the name, and the groups.
struct ConsumerGroups<'a> {
    index: usize,
    name: Option<&'a str>,
    target: Option<&'a str>,
    groups: &'a [LossGroup],
}

pub(super) fn series(analysis: &Analysis) -> DropSeries {
    let result = &analysis.result;
    let consumers: Vec<ConsumerGroups<'_>> = match &result.targets[..] {
        [] | [_] => vec![ConsumerGroups { index: 0, name: None, target: None, groups: &result.groups }],
        several => (several.iter().enumerate())
            .map(|(index, target)| ConsumerGroups {
                index,
                name: Some(&target.consumer),
                target: Some(&target.name),
                groups: &target.groups,
            })
            .collect(),
    };
    let parts: Vec<Vec<RowPods>> = consumers.iter().map(|consumer| parts(analysis, consumer)).collect();
    let all: usize = parts.iter().map(Vec::len).sum();
    let rows: Vec<(&ConsumerGroups<'_>, RowPods)> = consumers
        .iter()
        .zip(parts)
        .flat_map(|(consumer, pods)| {
            let pods = if all > ROWS { together(analysis, pods, ROWS / consumers.len()) } else { pods };
            pods.into_iter().map(move |pods| (consumer, pods))
        })
        .collect();
    let lost: Vec<Vec<(f64, Outcome)>> =
        rows.iter().map(|(consumer, pods)| lost(analysis, consumer, pods)).collect();
    let mut rows: Vec<DropRow> = rows.iter().map(|(consumer, pods)| row(analysis, consumer, pods)).collect();

    let near = near_s(&rows);
    let delays_s: Vec<f64> = lost.iter().flatten().map(|(at, _)| *at).filter(|s| s.is_finite()).collect();
    let windows = rows.iter().filter_map(|row| row.window).map(|(lower, upper)| upper.unwrap_or(lower));
    let late = rows.iter().flat_map(|row| row.late.iter().copied());
    let deletions = rows.iter().flat_map(|row| row.deletions.iter().copied());
    let happened = || delays_s.iter().copied().filter(|t| t.abs() <= near);
    let end =
        happened().chain(late.filter(|t| *t <= near)).chain(windows).chain(deletions).fold(0.0, f64::max);
    let marks: Vec<f64> = rows.iter().flat_map(|row| row.marks.iter().map(|mark| mark.0)).collect();
    let start = happened().chain(marks.iter().copied().filter(|t| t.abs() <= near)).fold(0.0, f64::min);
    let (to_s, left_out_s) = right_end(end, &marks);
    let shown_to_s = left_out_s.map_or(to_s, |b| b.from);
    let from_s = (start * 1.05).min(-0.04 * shown_to_s);
    let bin_s = nice_step((shown_to_s - from_s) / BINS);
    for (row, lost) in rows.iter_mut().zip(lost) {
        for (at, outcome) in lost {
            if (from_s..=shown_to_s).contains(&at) {
                *row.bins.entry(bin_of(at, bin_s)).or_default().entry(outcome).or_default() += 1;
            } else {
                row.beyond += 1;
            }
            row.dropped += 1;
        }
        row.late.retain(|&t| t <= shown_to_s);
    }
    let most = rows.iter().flat_map(|row| row.bins.values()).map(|bin| bin.values().sum()).max().unwrap_or(0);
    let elsewhere = analysis.counted_losses().filter(|lost| lost.candidates.is_empty()).count() as u64;
    DropSeries { rows, from_s, to_s, left_out_s, bin_s, most, elsewhere, delays_s }
}

/// Returns the time up to which the axis shows drops: everything that may belong to a window, and at least a few
/// seconds.
fn near_s(rows: &[DropRow]) -> f64 {
    let bounds = rows.iter().filter_map(|row| row.window).map(|(lower, upper)| upper.unwrap_or(lower));
    let deletions = rows.iter().flat_map(|row| row.deletions.iter().copied());
    (3.0 * bounds.chain(deletions).fold(0.0, f64::max)).max(NEAR_S)
}

/// Returns the pods ordered by time. Pods that share losses are grouped.
fn parts(analysis: &Analysis, consumer: &ConsumerGroups<'_>) -> Vec<RowPods> {
    let shared = consumer.groups.iter().filter(|group| group.terminations.len() > 1);
    let mut parts: Vec<RowPods> = shared.map(|group| RowPods::Group(group.terminations.clone())).collect();
    let in_group: BTreeSet<usize> = parts.iter().flat_map(|group| group.all().iter().copied()).collect();
    let single = (0..analysis.result.terminations.len()).filter(|t| !in_group.contains(t));
    parts.extend(single.map(RowPods::One));
    parts.sort_by_key(|pods| pods.all().first().copied());
    parts
}

/// Combines pods into at most `rows` rows. Single pods of a mode are combined first, then the groups with the fewest
/// losses.
fn together(analysis: &Analysis, parts: Vec<RowPods>, rows: usize) -> Vec<RowPods> {
    let mode = |t: usize| analysis.result.terminations[t].mode;
    let (mut out, mut single): (Vec<RowPods>, BTreeMap<Mode, Vec<usize>>) = Default::default();
    for pods in parts {
        match pods {
            RowPods::One(t) => single.entry(mode(t)).or_default().push(t),
            group => out.push(group),
        }
    }
    let free = rows.saturating_sub(single.len()).max(1);
    if out.len() > free {
        let free = free.saturating_sub(1).max(1);
        let lost = |group: &RowPods| {
            analysis
                .counted_losses()
                .filter(|lost| lost.candidates.iter().any(|c| group.all().contains(&c.termination)))
                .count()
        };
        out.sort_by_key(|group| std::cmp::Reverse(lost(group)));
        let rest = out.split_off(free);
        // Groups are never split, so that no request appears in two rows.
        for all in rest.iter().map(RowPods::all).filter(|all| !all.is_empty()) {
            single.entry(mode(all[0])).or_default().extend(all);
        }
        out.sort_by_key(|group| group.all().first().copied());
    }
    out.extend(single.into_values().map(|mut all| {
        all.sort_unstable();
        if let [one] = all[..] { RowPods::One(one) } else { RowPods::Apart(all) }
    }));
    out
}

/// Returns the requests that a consumer lost because of these pods, in seconds since the deletion from which the row
/// counts.
fn lost(analysis: &Analysis, consumer: &ConsumerGroups<'_>, pods: &RowPods) -> Vec<(f64, Outcome)> {
    let t0 = |t: usize| analysis.result.terminations.get(t).map_or(f64::NAN, |t| t.t0_s);
    let first = pods.all().iter().map(|t| t0(*t)).fold(f64::INFINITY, f64::min);
    let is_its = |lost: &&LostRequest| consumer.target.is_none_or(|target| *lost.target == *target);
    let of = |lost: &LostRequest| {
        let its = lost.candidates.iter().map(|c| c.termination).filter(|t| pods.all().contains(t));
        let since = match pods {
            RowPods::Group(_) => its.map(|_| first).next()?,
            // If several deletions may explain a request, its time counts from the earliest.
            RowPods::One(_) | RowPods::Apart(_) => its.map(t0).reduce(f64::min)?,
        };
        Some((lost.begun_s - since, lost.outcome))
    };
    analysis.counted_losses().filter(is_its).filter_map(of).collect()
}

/// Creates a row without drops.
fn row(analysis: &Analysis, consumer: &ConsumerGroups<'_>, pods: &RowPods) -> DropRow {
    let all: Vec<&Termination> =
        pods.all().iter().filter_map(|t| analysis.result.terminations.get(*t)).collect();
    let first = all.iter().map(|t| t.t0_s).fold(f64::INFINITY, f64::min);
    let is_group = matches!(pods, RowPods::Group(_));
    let since = |t: &Termination| if is_group { first } else { t.t0_s };
    let late = analysis.charts.late_ok.iter().filter(|arrival| {
        pods.all().contains(&arrival.termination)
            && (consumer.target.is_none() || arrival.target == Some(consumer.index))
    });
    let late = late.filter_map(|arrival| {
        Some(arrival.begun_s - since(analysis.result.terminations.get(arrival.termination)?))
    });
    let mut marks = Vec::new();
    if let [only] = all[..] {
        let seen = MARKS.iter().enumerate().filter_map(|(i, mark)| Some((*only.timeline.get(&mark.0)?, i)));
        marks = seen.filter(|mark| mark.0.is_finite()).collect();
        marks.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    }
    let windows: Vec<&Window> = all.iter().filter_map(|t| window(t, consumer)).collect();
    let lower = windows.iter().filter_map(|w| w.lower_s).filter(|s| s.is_finite()).fold(0.0, f64::max);
    let upper = windows.iter().map(|w| w.upper_s.filter(|s| s.is_finite()));
    let upper = upper.collect::<Option<Vec<f64>>>().map(|all| all.into_iter().fold(0.0, f64::max));
    DropRow {
        consumer: consumer.name.map(str::to_owned),
        bins: BTreeMap::new(),
        dropped: 0,
        beyond: 0,
        late: late.collect(),
        deletions: all.iter().map(|t| t.t0_s - since(t)).collect(),
        marks,
        group_window_s: consumer
            .groups
            .iter()
            .find(|group| is_group && group.terminations == pods.all())
            .and_then(|group| group.windows.get(consumer.index)?.lower_s),
        window: (!is_group && !windows.is_empty()).then_some((lower, upper)),
        pods: pods.clone(),
    }
}

/// Returns a consumer's window, or the longest window if there is only one consumer.
fn window<'a>(t: &'a Termination, consumer: &ConsumerGroups<'_>) -> Option<&'a Window> {
    match consumer.name {
        Some(_) => t.windows.get(consumer.index),
        None => words::longest_window(t),
    }
}
