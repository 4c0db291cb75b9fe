//! Data for the chart of a rollout.

use std::collections::BTreeMap;

use super::super::axis::{bin_of, nice_step};
use super::super::timeline_chart::{self, StackedColumn};
use crate::words;
use rolldrop_explain::Analysis;
use rolldrop_explain::model::{Bounded, LostRequest, PodSpan, RunResult, Stage, Termination};
use rolldrop_record::Outcome;

/// Target for the maximum number of rows. More are drawn only if combining pods cannot reduce their number to it.
const ROWS: usize = 40;
/// Periods in seconds within which pods must start and end to share a row. The first period with which all rows fit is
/// used.
const TOGETHER_S: [f64; 9] = [0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, f64::MAX];
/// Approximate number of bins on the axis.
const BINS: f64 = 450.0;
/// Approximate number of bins in a row, whose marks have outlines.
const ROW_BINS: f64 = 200.0;
/// Minimum share of the run that the quiet parts before and after all events must occupy for the axis to omit them.
const QUIET_SHARE: f64 = 0.3;

/// Data that the chart plots. Times are in seconds since the counted part of the load began.
#[derive(Debug, PartialEq)]
pub(super) struct RolloutSeries {
    pub(super) rows: Vec<RolloutRow>,
    pub(super) from_s: f64,
    pub(super) to_s: f64,
    pub(super) consumers: Vec<String>,
    /// Number of pods without events.
    pub(super) quiet: usize,
    pub(super) began: usize,
    pub(super) restarted: usize,
    pub(super) withdrawn: usize,
    /// Period in seconds within which pods that share a row started and ended; `None` if no pods share a row.
    pub(super) together_s: Option<f64>,
    pub(super) answered: Vec<StackedColumn>,
    pub(super) answered_step_s: f64,
    /// Lost requests per target with its name, or of all targets together, by bin of their start time.
    pub(super) lost: Vec<(Option<String>, Vec<StackedColumn>)>,
    pub(super) bin_s: f64,
    /// Width of a row's bins, in seconds.
    pub(super) row_bin_s: f64,
    /// Largest number of lost requests in a bin of a row.
    pub(super) most: u64,
}

/// Relation of a lost request to the pods of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LossRelation {
    /// Only pods of this row explain the request.
    Own,
    /// Other pods may also explain the request, which is drawn in the row of each.
    Shared,
}

/// Number of lost requests by bin, relation and outcome.
pub(super) type LossesByBin = BTreeMap<i64, BTreeMap<(LossRelation, Outcome), u64>>;

/// A row for one pod, or for several.
#[derive(Debug, PartialEq)]
pub(super) struct RolloutRow {
    pub(super) name: String,
    pub(super) lines: Vec<PodLine>,
    /// Period during which the pods remained in each consumer's rules after their deletion.
    pub(super) windows: Vec<Option<InRules>>,
    pub(super) losses: LossesByBin,
    pub(super) lost: Bounded,
    /// True if lost requests can be attributed to the row; this requires pods that ended.
    pub(super) has_losses: bool,
}

/// Phases of one pod, in order of time.
#[derive(Debug, Default, PartialEq)]
pub(super) struct PodLine {
    pub(super) pod: String,
    pub(super) phases: Vec<PhaseSpan>,
}

#[derive(Debug, PartialEq)]
pub(super) struct PhaseSpan {
    pub(super) phase: DrawnPhase,
    pub(super) from_s: f64,
    pub(super) to_s: f64,
}

/// Phase of a pod. The variants are in the order of the legend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DrawnPhase {
    Starting,
    Ready,
    /// The pod's label keeps it out of its Services.
    Out,
    /// A container is down, but the pod stays.
    Down,
    Sleeping,
    /// The pod is terminating, and its listener is open.
    Stopping,
    /// The pod is terminating, and there is no evidence of whether it listens.
    Ending,
    Refusing,
    Gone,
}

impl DrawnPhase {
    pub(super) fn is_end(self) -> bool {
        !matches!(self, DrawnPhase::Starting | DrawnPhase::Ready)
    }
}

/// Period during which pods remained in a consumer's rules, with a certain and a possible part.
#[derive(Debug, PartialEq)]
pub(super) struct InRules {
    pub(super) from_s: f64,
    pub(super) certain_s: f64,
    /// End of the possible part; `None` if it is unbounded.
    pub(super) possible_s: Option<f64>,
}

/// Returns the series; `None` if no pod started, ended, restarted or left its Services.
pub(super) fn series(analysis: &Analysis) -> Option<RolloutSeries> {
    let charts = &analysis.charts;
    let end_s = timeline_chart::end_s(analysis);
    let began = |pod: &PodSpan| pod.created_s.is_some_and(|at| at >= 0.0);
    let is_quiet = |pod: &&PodSpan| {
        !began(pod) && pod.termination.is_none() && pod.down_s.is_empty() && pod.out_s.is_empty()
    };
    let mut pods: Vec<&PodSpan> = charts.pods.iter().filter(|pod| !is_quiet(pod)).collect();
    if pods.is_empty() {
        return None;
    }
    let t0 = |pod: &PodSpan| {
        pod.termination.and_then(|t| analysis.result.terminations.get(t)).map_or(f64::INFINITY, |t| t.t0_s)
    };
    // Pods that existed before the load are ordered by when they ended.
    let created = |pod: &PodSpan| pod.created_s.filter(|at| *at >= 0.0).unwrap_or(f64::NEG_INFINITY);
    pods.sort_by(|a, b| created(a).total_cmp(&created(b)).then(t0(a).total_cmp(&t0(b))));
    let (from_s, to_s) = range(analysis, &pods, end_s);
    let bin_s = nice_step((to_s - from_s) / BINS);
    let row_bin_s = nice_step((to_s - from_s) / ROW_BINS);
    let (groups, together_s) = together(&pods, created, t0);
    let losses = losses(analysis, &groups, row_bin_s);
    let row = |(group, losses): (&Vec<&PodSpan>, _)| row(analysis, group, losses, (from_s, to_s));
    let mut rows: Vec<RolloutRow> = groups.iter().zip(losses).map(row).collect();
    let unexplained: Vec<&LostRequest> =
        analysis.counted_losses().filter(|lost| lost.candidates.is_empty()).collect();
    if !unexplained.is_empty() {
        rows.push(RolloutRow {
            name: if analysis.result.terminations.is_empty() {
                "lost requests"
            } else {
                "not explained by any pod"
            }
            .to_owned(),
            lines: Vec::new(),
            has_losses: true,
            windows: Vec::new(),
            losses: unexplained.iter().fold(LossesByBin::new(), |mut losses, lost| {
                add(&mut losses, lost, LossRelation::Own, row_bin_s);
                losses
            }),
            lost: Bounded::exactly(unexplained.len() as u64),
        });
    }
    let most = rows.iter().flat_map(|row| row.losses.values()).map(|bin| bin.values().sum()).max();
    let (answered, answered_step_s) = answered(analysis, from_s, to_s);
    Some(RolloutSeries {
        from_s,
        to_s,
        consumers: consumers(&analysis.result),
        quiet: charts.pods.len() - pods.len(),
        began: pods.iter().filter(|pod| began(pod)).count(),
        restarted: pods.iter().map(|pod| pod.down_s.len()).sum(),
        withdrawn: pods.iter().filter(|pod| !pod.out_s.is_empty()).count(),
        together_s,
        answered,
        answered_step_s,
        lost: lost(analysis, bin_s),
        bin_s,
        row_bin_s,
        most: most.unwrap_or(0),
        rows,
    })
}

/// Returns the lost requests of each target over time.
fn lost(analysis: &Analysis, bin_s: f64) -> Vec<(Option<String>, Vec<StackedColumn>)> {
    let columns = |is_its: &dyn Fn(&LostRequest) -> bool| {
        let mut bins: BTreeMap<i64, BTreeMap<Outcome, u64>> = BTreeMap::new();
        for lost in analysis.counted_losses().filter(|lost| is_its(lost)) {
            *bins.entry(bin_of(lost.begun_s, bin_s)).or_default().entry(lost.outcome).or_default() += 1;
        }
        bins.into_iter().map(|(bin, stack)| (bin as f64 * bin_s, stack)).collect()
    };
    let targets = &analysis.result.targets;
    if targets.len() < 2 {
        return vec![(None, columns(&|_| true))];
    }
    let of = targets
        .iter()
        .map(|target| (Some(target.consumer.clone()), columns(&|lost| *lost.target == *target.name)));
    of.collect()
}

/// Returns the consumers with known windows, in order.
fn consumers(result: &RunResult) -> Vec<String> {
    let windows = result.terminations.iter().map(|t| &t.windows).max_by_key(|windows| windows.len());
    windows.map(|all| all.iter().map(|w| w.consumer.clone()).collect()).unwrap_or_default()
}

/// Returns both ends of the axis: those of the whole run, or of the part with events.
fn range(analysis: &Analysis, pods: &[&PodSpan], end_s: f64) -> (f64, f64) {
    let ends = analysis.result.terminations.iter().flat_map(|t| {
        let stages = t.timeline.values().map(|s| t.t0_s + s);
        let windows = t.windows.iter().flat_map(|w| [w.lower_s, w.upper_s]).flatten().map(|s| t.t0_s + s);
        stages.chain(windows).chain([t.t0_s])
    });
    let pods = pods.iter().flat_map(|pod| {
        let periods = pod.down_s.iter().chain(&pod.out_s).flat_map(|(from, to)| [Some(*from), *to]);
        [pod.created_s, pod.ready_s.filter(|_| pod.created_s.is_some())].into_iter().chain(periods).flatten()
    });
    let acts = analysis.charts.actions.iter().map(|act| act.at_s);
    let lost = analysis.counted_losses().map(|lost| lost.begun_s);
    let all: Vec<f64> = ends.chain(pods).chain(acts).chain(lost).filter(|s| s.is_finite()).collect();
    let first = all.iter().copied().fold(end_s, f64::min).max(0.0);
    let last = all.iter().copied().fold(0.0, f64::max).min(end_s);
    let margin = ((last - first) * 0.05).max(0.2);
    let (from_s, to_s) = ((first - margin).max(0.0), (last + margin).min(end_s));
    if to_s - from_s < (1.0 - QUIET_SHARE) * end_s && to_s > from_s { (from_s, to_s) } else { (0.0, end_s) }
}

/// Returns the pods of each row. If there are too many pods for one row each, pods that started and ended at about the
/// same time are combined.
fn together<'a>(
    pods: &[&'a PodSpan],
    created: impl Fn(&PodSpan) -> f64,
    t0: impl Fn(&PodSpan) -> f64,
) -> (Vec<Vec<&'a PodSpan>>, Option<f64>) {
    if pods.len() <= ROWS {
        return (pods.iter().map(|pod| vec![*pod]).collect(), None);
    }
    let is_near = |a: f64, b: f64, within: f64| a == b || (a - b).abs() <= within;
    let mut groups: Vec<Vec<&PodSpan>> = Vec::new();
    for within in TOGETHER_S {
        groups.clear();
        for pod in pods {
            let fits = |group: &&mut Vec<&PodSpan>| {
                is_near(created(group[0]), created(pod), within) && is_near(t0(group[0]), t0(pod), within)
            };
            match groups.iter_mut().find(fits) {
                Some(group) => group.push(pod),
                None => groups.push(vec![pod]),
            }
        }
        if groups.len() <= ROWS {
            return (groups, Some(within));
        }
    }
    (groups, Some(f64::MAX))
}

/// Returns the lost requests that each of these groups of pods may explain.
fn losses(analysis: &Analysis, groups: &[Vec<&PodSpan>], bin_s: f64) -> Vec<(LossesByBin, Bounded)> {
    let mut group_of = vec![None; analysis.result.terminations.len()];
    for (number, pods) in groups.iter().enumerate() {
        for termination in pods.iter().filter_map(|pod| pod.termination) {
            if let Some(group) = group_of.get_mut(termination) {
                *group = Some(number);
            }
        }
    }
    let mut found = vec![(LossesByBin::new(), Bounded::default()); groups.len()];
    for request in analysis.counted_losses() {
        let mut shares: BTreeMap<usize, f64> = BTreeMap::new();
        for candidate in &request.candidates {
            if let Some(group) = group_of.get(candidate.termination).copied().flatten() {
                *shares.entry(group).or_default() += candidate.share;
            }
        }
        for (group, share) in shares {
            let (losses, lost) = &mut found[group];
            let before = lost.at_least;
            lost.add(share);
            let whose = if lost.at_least > before { LossRelation::Own } else { LossRelation::Shared };
            add(losses, request, whose, bin_s);
        }
    }
    found
}

fn row(
    analysis: &Analysis,
    pods: &[&PodSpan],
    (losses, lost): (LossesByBin, Bounded),
    (from_s, to_s): (f64, f64),
) -> RolloutRow {
    let its = pods.iter().filter_map(|pod| pod.termination);
    let terminations: Vec<&Termination> = its.filter_map(|t| analysis.result.terminations.get(t)).collect();
    let consumers = terminations.iter().map(|t| t.windows.len()).max().unwrap_or(0);
    RolloutRow {
        name: words::row_of(&pods.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>()),
        lines: pods.iter().map(|pod| line(analysis, pod, from_s, to_s)).collect(),
        windows: (0..consumers).map(|consumer| in_rules(&terminations, consumer)).collect(),
        losses,
        lost,
        has_losses: !terminations.is_empty(),
    }
}

/// Returns the period in a consumer's rules. For a row of several pods, the period spans those of all pods.
fn in_rules(terminations: &[&Termination], consumer: usize) -> Option<InRules> {
    let all = terminations.iter().filter_map(|t| {
        let window = t.windows.get(consumer)?;
        let from_s = t.t0_s - t.t0_uncertainty_s;
        Some(InRules {
            from_s: t.t0_s,
            certain_s: t.t0_s + window.lower_s.unwrap_or(0.0).max(0.0),
            possible_s: window.upper_s.map(|s| from_s + s),
        })
    });
    all.reduce(|sum, next| InRules {
        from_s: sum.from_s.min(next.from_s),
        certain_s: sum.certain_s.max(next.certain_s),
        possible_s: sum.possible_s.zip(next.possible_s).map(|(a, b)| a.max(b)),
    })
}

fn add(losses: &mut LossesByBin, request: &LostRequest, whose: LossRelation, bin_s: f64) {
    let bin = losses.entry(bin_of(request.begun_s, bin_s)).or_default();
    *bin.entry((whose, request.outcome)).or_default() += 1;
}

/// Returns the phases of a pod, clipped to the axis.
fn line(analysis: &Analysis, pod: &PodSpan, from_s: f64, to_s: f64) -> PodLine {
    let termination = pod.termination.and_then(|t| analysis.result.terminations.get(t));
    let mut steps: Vec<(DrawnPhase, f64)> = Vec::new();
    let created_s = pod.created_s.unwrap_or(from_s);
    if let Some(created_s) = pod.created_s {
        steps.push((DrawnPhase::Starting, created_s));
    }
    if let Some(ready_s) = pod.ready_s.or(pod.created_s.is_none().then_some(from_s)) {
        steps.push((DrawnPhase::Ready, ready_s.max(created_s)));
    }
    for (phase, periods) in [(DrawnPhase::Down, &pod.down_s), (DrawnPhase::Out, &pod.out_s)] {
        for (from, to) in periods {
            steps.push((phase, *from));
            steps.extend(to.map(|to| (DrawnPhase::Ready, to)));
        }
    }
    let mut until_s = to_s;
    if let Some(t) = termination {
        steps.retain(|(_, at)| *at < t.t0_s);
        steps.extend(ending(t).into_iter().map(|(phase, s)| (phase, t.t0_s + s.max(0.0))));
        until_s = t.timeline.get(&Stage::PodDeleted).map_or(to_s, |s| t.t0_s + s);
    }
    steps.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut phases = Vec::new();
    for (i, (phase, at)) in steps.iter().enumerate() {
        let next = steps.get(i + 1).map_or(until_s, |next| next.1);
        let (from, to) = (at.max(from_s), next.min(to_s));
        if to > from || (phase.is_end() && (from_s..=to_s).contains(at) && to >= from) {
            phases.push(PhaseSpan { phase: *phase, from_s: from, to_s: to });
        }
    }
    PodLine { pod: pod.name.clone(), phases }
}

/// Returns the phases of a pod's termination, each with its start time in seconds since t0.
fn ending(t: &Termination) -> Vec<(DrawnPhase, f64)> {
    let at = |stage| t.timeline.get(&stage).copied();
    let exited = at(Stage::AppExited).or(at(Stage::ContainersTerminated));
    let closed = at(Stage::ListenerClosed).filter(|closed| exited.is_none_or(|exited| *closed <= exited));
    let is_observed = closed.is_some() || at(Stage::AppExited).is_some();
    let stopping = if is_observed { DrawnPhase::Stopping } else { DrawnPhase::Ending };
    let mut phases = match at(Stage::AppSigterm).filter(|s| *s > 0.0) {
        Some(sigterm) => vec![(DrawnPhase::Sleeping, 0.0), (stopping, sigterm)],
        None => vec![(stopping, 0.0)],
    };
    phases.extend(closed.map(|s| (DrawnPhase::Refusing, s)));
    phases.extend(exited.map(|s| (DrawnPhase::Gone, s)));
    // A later phase ends the earlier ones, even if clocks disagree.
    let ends = phases.iter().map(|p| p.1).rev().scan(f64::INFINITY, |least, at| {
        *least = least.min(at);
        Some(*least)
    });
    let starts: Vec<f64> = ends.collect();
    phases.iter().zip(starts.into_iter().rev()).map(|((phase, _), at)| (*phase, at)).collect()
}

/// Returns answered requests per second, in steps long enough for at most a few hundred columns.
fn answered(analysis: &Analysis, from_s: f64, to_s: f64) -> (Vec<StackedColumn>, f64) {
    let step = nice_step((to_s - from_s) / BINS).max(1.0);
    let mut columns: BTreeMap<i64, u64> = BTreeMap::new();
    for second in &analysis.charts.seconds {
        *columns.entry(bin_of(second.at_s, step)).or_default() += second.ok;
    }
    let columns = columns.into_iter().map(|(bin, n)| (bin as f64 * step, BTreeMap::from([(Outcome::Ok, n)])));
    let shown = columns.filter(|(at, _)| at + step > from_s && *at < to_s);
    (timeline_chart::as_rates(shown.collect(), step, timeline_chart::end_s(analysis)), step)
}
