//! What rolldrop states about a recorded run, in one form for comparison.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use rolldrop::analysis::model::{Cause, Window};
use rolldrop::analysis::{self, Class, Policy};
use rolldrop::record::run_info::Balances;
use rolldrop::record::{Phase, RunDir, Stamp};
use rolldrop::timeline::{Request, Timeline};

use super::truth::Uid;

/// The statements about one run.
pub(super) struct Statements {
    /// Each pod that ended.
    pub(super) terminations: Vec<Termination>,
    /// Each lost request.
    pub(super) lost: Vec<Lost>,
    /// For each target: what it balances.
    pub(super) balances: Vec<(String, Balances)>,
}

/// What is stated about one pod that ended.
pub(super) struct Termination {
    pub(super) uid: Uid,
    /// t0 earliest.
    pub(super) earliest: Stamp,
    /// When a watch showed the deletion.
    pub(super) seen: Option<Stamp>,
    /// By target.
    pub(super) windows: Vec<Bounds>,
    /// Lost requests: at least, at most, and the best estimate.
    pub(super) dropped: Dropped,
}

/// Between which moments a window is stated to end.
pub(super) struct Bounds {
    pub(super) lower: Option<Stamp>,
    pub(super) upper: Option<Stamp>,
}

/// How many lost requests a pod is stated to have.
pub(super) struct Dropped {
    pub(super) at_least: u64,
    pub(super) at_most: u64,
    pub(super) estimate: f64,
}

/// What is stated about one lost request.
pub(super) struct Lost {
    pub(super) request: Request,
    pub(super) cause: Cause,
    /// The pods whose end may explain it.
    pub(super) candidates: BTreeSet<Uid>,
}

impl Statements {
    /// Analyses the run directory `run`.
    pub(super) fn of(run: &Path) -> Self {
        let (log, tables) = RunDir::open(run).and_then(|run| run.recorded()).expect("a run");
        let (timeline, requests) = Timeline::build(log, tables).expect("rows");
        let policy = Policy::default();
        let analysis = analysis::analyse(&timeline, &requests, &policy).expect("rows");
        let result = analysis.result;
        let is_lost = |r: &&Request| r.row.phase == Phase::Main && policy.class(&r.row) == Class::Dropped;
        let rows: Vec<&Request> = requests.others.iter().filter(is_lost).collect();
        assert_eq!(rows.len(), analysis.charts.drops.len(), "every lost request is in the charts' data");
        let lost = rows.into_iter().zip(&analysis.charts.drops).map(|(request, drop)| Lost {
            request: request.clone(),
            cause: drop.cause,
            candidates: drop.termination.iter().map(|&e| result.terminations[e].uid.clone()).collect(),
        });
        let terminations = result.terminations.iter().zip(&timeline.ends).map(|(said, end)| {
            let latest = since(timeline.origin, said.t0_s);
            let earliest = since(latest, -said.t0_uncertainty_s);
            let dropped = said.requests.dropped;
            Termination {
                uid: said.uid.clone(),
                earliest,
                seen: end.stages.deletion_seen,
                windows: said.windows.iter().map(|window| Bounds::of(window, earliest, latest)).collect(),
                dropped: Dropped { at_least: dropped, at_most: dropped, estimate: dropped as f64 },
            }
        });
        Self {
            terminations: terminations.collect(),
            lost: lost.collect(),
            balances: timeline.info.targets.iter().map(|t| (t.name.clone(), t.balances)).collect(),
        }
    }
}

impl Bounds {
    fn of(window: &Window, earliest: Stamp, latest: Stamp) -> Self {
        Self {
            lower: Some(since(latest, window.lower_s)),
            upper: window.upper_s.map(|upper_s| since(earliest, upper_s)),
        }
    }
}

fn since(zero: Stamp, seconds: f64) -> Stamp {
    match seconds < 0.0 {
        true => zero - Duration::from_secs_f64(-seconds),
        false => zero + Duration::from_secs_f64(seconds),
    }
}
