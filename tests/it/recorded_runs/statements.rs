//! Statements by rolldrop about a recorded run, in a form for comparison.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::time::Duration;

use rolldrop_explain::Analysed;
use rolldrop_explain::model::{Bounded, LossGroup, Window};
use rolldrop_explain::timeline::Request;
use rolldrop_record::run_info::Balances;
use rolldrop_record::service_proxy::ServiceProxy;
use rolldrop_record::{Cause, RunDir, Stamp};
use serde_json::Value;

use super::truth::Uid;

/// Statements about one run.
pub(super) struct Statements {
    /// Each pod that terminated.
    pub(super) terminations: Vec<Termination>,
    /// Each lost request.
    pub(super) lost: Vec<Lost>,
    /// Terminations that share lost requests.
    pub(super) groups: Vec<Group>,
    /// Targets, each with its way of balancing.
    pub(super) balances: Vec<(String, Balances)>,
    /// `result.json`.
    pub(super) result: Value,
}

/// Statements about one terminated pod.
pub(super) struct Termination {
    pub(super) uid: Uid,
    /// Earliest possible t0.
    pub(super) earliest: Stamp,
    /// Time at which a watch showed the deletion.
    pub(super) seen: Option<Stamp>,
    /// Windows by target.
    pub(super) windows: Vec<Bounds>,
    /// Lost requests.
    pub(super) dropped: Bounded,
}

/// Earliest and latest stated end of a window.
pub(super) struct Bounds {
    pub(super) lower: Option<Stamp>,
    pub(super) upper: Option<Stamp>,
}

/// Statements about terminations that share lost requests.
pub(super) struct Group {
    pub(super) pods: BTreeSet<Uid>,
    pub(super) dropped: u64,
    /// Minimum duration in seconds of at least one of the group's windows, by target.
    pub(super) lower_s: Vec<Option<f64>>,
}

/// Statements about one lost request.
pub(super) struct Lost {
    pub(super) request: Request,
    pub(super) cause: Cause,
    /// Pods whose termination may explain the lost request.
    pub(super) candidates: BTreeSet<Uid>,
}

impl Statements {
    /// Analyses the run directory `run`, with the Service proxy stated to be kube-proxy with nftables.
    pub(super) fn of(run: &Path) -> Self {
        let (mut log, tables) = RunDir::open(run).and_then(|run| run.recorded()).expect("a run");
        log.info.cluster.assume(&ServiceProxy::Nftables).expect("a mode that the run did not detect");
        let Analysed { timeline, requests, mut analysis } = Analysed::of(log, tables).expect("rows");
        rolldrop_report::tell(&mut analysis);
        let result = analysis.result;
        let uid = |termination: usize| result.terminations[termination].uid.clone();
        let by_id: HashMap<_, &Request> =
            requests.others.iter().map(|r| ((&r.row.source, r.row.seq), r)).collect();
        let lost = analysis.lost.iter().map(|lost| Lost {
            request: by_id[&(&lost.source, lost.seq)].clone(),
            cause: lost.cause,
            candidates: lost.candidates.iter().map(|c| uid(c.termination)).collect(),
        });
        let terminations = result.terminations.iter().zip(&timeline.ends).map(|(said, end)| {
            let latest = since(timeline.origin, said.t0_s);
            let earliest = since(latest, -said.t0_uncertainty_s);
            Termination {
                uid: said.uid.clone(),
                earliest,
                seen: end.stages.deletion_seen,
                windows: said.windows.iter().map(|window| Bounds::of(window, earliest, latest)).collect(),
                dropped: said.requests.dropped,
            }
        });
        let targets = &timeline.info.targets;
        let group = |group: &LossGroup| Group {
            pods: group.terminations.iter().map(|&e| uid(e)).collect(),
            dropped: group.dropped,
            lower_s: targets
                .iter()
                .map(|t| group.windows.iter().find(|w| w.consumer == t.consumer).and_then(|w| w.lower_s))
                .collect(),
        };
        Self {
            terminations: terminations.collect(),
            lost: lost.collect(),
            groups: result.groups.iter().map(group).collect(),
            balances: targets.iter().map(|t| (t.name.clone(), t.balances)).collect(),
            result: serde_json::from_slice(&rolldrop_report::json(&result)).expect("JSON"),
        }
    }
}

impl Bounds {
    fn of(window: &Window, earliest: Stamp, latest: Stamp) -> Self {
        Self {
            lower: window.lower_s.map(|lower_s| since(latest, lower_s)),
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
