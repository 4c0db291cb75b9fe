//! From records to pod lives and joined requests, all on the coordinator's clock.
//!
//! Pure: data in, data out. It decides what happened when; why a request was
//! lost, and what follows from it, is the job of [`crate::analysis`].

pub mod clocks;
pub mod endpoints;
mod explain;
pub mod pods;
pub mod requests;
pub mod restarts;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use clocks::{API_SERVER, Clocks};
use endpoints::{EndpointChange, Endpoints};
pub use pods::{PodEnd, PodLife, Stages, T0};
pub use requests::{Request, Requests};
pub use restarts::Restart;

use crate::record::event::{Action, ActionName, Change, MachineSample};
use crate::record::run_info::Rows;
use crate::record::{EventKind, Mode, Outcome, RowSource, RunInfo, RunLog, Stamp};

/// What a watch of these is called.
const PODS: &str = "pods";
const ENDPOINT_SLICES: &str = "endpointslices";

/// A stretch in which a watch saw nothing.
#[derive(Clone, Debug)]
pub struct Gap {
    /// The resource.
    pub resource: String,
    /// Whether what happened is unknown. Else it came late: when it was seen says little.
    pub is_lost: bool,
    /// From.
    pub from: Stamp,
    /// To.
    pub to: Stamp,
}

/// How the hand-over of a proxy's rows ended.
#[derive(Clone, Debug)]
pub struct HandOver {
    /// The pod.
    pub pod: String,
    /// The proxy, as a source.
    pub source: String,
    /// How many there were, and how many arrived.
    pub rows: Rows,
}

/// A program that the run started.
#[derive(Clone, Debug)]
pub struct Command {
    /// The disruption of the scenario that it is; `None` for the command line's.
    pub disruption: Option<u32>,
    /// Its words.
    pub words: Vec<String>,
    /// When it was started.
    pub started: Stamp,
    /// When it ended, if it did while the run lasted.
    pub ended: Option<Stamp>,
    /// Its exit code.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// How pods ended by it; `None` where the run ended before that was known.
    pub mode: Option<Mode>,
}

/// An action that was asked for and not done.
#[derive(Clone, Debug)]
pub struct Refused {
    /// The action.
    pub action: ActionName,
    /// The pod, where the action names one.
    pub pod: Option<String>,
    /// The API server's status code; `None` where it was not asked, or did not answer.
    pub status: Option<u16>,
    /// Why.
    pub why: String,
}

/// A pod that left its Services while it lived on.
#[derive(Clone, Debug)]
pub struct Withdrawal {
    /// Its name.
    pub pod: String,
    /// When that was asked for.
    pub asked: Stamp,
    /// When the answer was there.
    pub answered: Stamp,
    /// When a watch showed its endpoint gone.
    pub endpoint_removed: Option<Stamp>,
}

/// One run on one clock, but for its [`Requests`].
#[derive(Clone, Debug)]
pub struct Timeline {
    /// run.json.
    pub info: RunInfo,
    /// When the counted part of the load began.
    pub origin: Stamp,
    /// The load's stages: when each began, and its rates then and at its end.
    pub stages: Vec<(Stamp, f64, f64)>,
    /// When the load ended, or the last request where no event says so.
    pub load_ended: Stamp,
    /// Rows that the load sources said there are.
    pub announced: Option<u64>,
    /// Of load sources whose rows did not all arrive: how many of their counted requests ended so.
    pub tallies: BTreeMap<String, BTreeMap<Outcome, u64>>,
    /// All pods behind the targets, by creation.
    pub pods: Vec<PodLife>,
    /// The pods that ended under load, by t0.
    pub ends: Vec<PodEnd>,
    ends_by_name: HashMap<String, Vec<(Stamp, Option<usize>)>>,
    /// The programs that the run started, in order.
    pub commands: Vec<Command>,
    /// What was asked for and not done.
    pub refused: Vec<Refused>,
    /// Containers that ended in pods that stay.
    pub restarts: Vec<Restart>,
    /// Pods that left their Services while they lived on.
    pub withdrawals: Vec<Withdrawal>,
    /// The history of the endpoints.
    pub endpoints: Endpoints,
    /// Gaps of the watches.
    pub gaps: Vec<Gap>,
    /// When the watch of pods last began with a list.
    pub pods_listed: Option<Stamp>,
    /// How the measuring processes and their machines fared, by source.
    pub machine: BTreeMap<String, Vec<(Stamp, MachineSample)>>,
    /// How the proxies' rows ended.
    pub hand_overs: Vec<HandOver>,
    /// Warnings that were recorded.
    pub warnings: Vec<String>,
    /// What could not be read.
    pub torn: Vec<String>,
    /// Clocks that matter here and were never compared with the coordinator's.
    pub unsampled_clocks: Vec<String>,
}

impl Timeline {
    /// Puts the records of a run together.
    ///
    /// # Errors
    /// When its rows cannot be read.
    pub fn build<R: RowSource>(log: RunLog, rows: R) -> Result<(Self, Requests<R>), R::Error> {
        let RunLog { info, events, torn } = log;
        let clocks = Clocks::new(&info, &events);
        let requests = Requests::open(rows, clocks.clone())?;

        let mut endpoints = Endpoints::default();
        let (mut started, mut counted) = (None, None);
        let (mut ended, mut announced) = (None::<Stamp>, None);
        let (mut gaps, mut hand_overs, mut warnings) = (vec![], vec![], vec![]);
        let mut commands: Vec<Command> = Vec::new();
        let mut actions: Vec<(Stamp, &Action)> = Vec::new();
        let mut pods_listed = None;
        let mut stages = Vec::new();
        let mut tallies = BTreeMap::new();
        let mut machine: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for event in &events {
            let at = clocks.place(&event.source, event.at);
            match &event.kind {
                EventKind::LoadStarted { warmup_s, .. } => {
                    let warmup_s = Duration::from_secs_f64(warmup_s.max(0.0));
                    started = Some(started.map_or(at, |t: Stamp| t.min(at)));
                    counted = Some(counted.map_or(at + warmup_s, |t: Stamp| t.min(at + warmup_s)));
                }
                EventKind::LoadStage { from, to, .. } => stages.push((at, *from, *to)),
                EventKind::LoadEnded { scheduled } => {
                    ended = Some(ended.map_or(at, |t| t.max(at)));
                    announced = Some(announced.unwrap_or(0) + scheduled);
                }
                EventKind::LoadCounted { of, outcomes } => {
                    tallies.insert(of.clone(), outcomes.clone());
                }
                EventKind::CommandStarted { command: words, disruption } => commands.push(Command {
                    disruption: *disruption,
                    words: words.clone(),
                    started: at,
                    ended: None,
                    code: None,
                    signal: None,
                    mode: None,
                }),
                EventKind::CommandEnded { code, signal, disruption } => {
                    if let Some(command) = commands.iter_mut().rfind(|c| c.disruption == *disruption) {
                        (command.ended, command.code, command.signal) = (Some(at), *code, *signal);
                    }
                }
                EventKind::CommandSettled { mode, disruption } => {
                    if let Some(command) = commands.iter_mut().rfind(|c| c.disruption == *disruption) {
                        command.mode = Some(*mode);
                    }
                }
                EventKind::Pod(pod) if pod.change == Change::Listed => pods_listed = Some(at),
                EventKind::Action(action) => actions.push((at, action)),
                EventKind::EndpointSlice(slice) => endpoints.observe(at, slice),
                EventKind::WatchGap { resource, from } | EventKind::WatchLate { resource, from } => {
                    let is_lost = matches!(event.kind, EventKind::WatchGap { .. });
                    if resource == ENDPOINT_SLICES {
                        endpoints.was_blind(*from, at);
                    }
                    gaps.push(Gap { resource: resource.clone(), is_lost, from: *from, to: at });
                }
                EventKind::Machine(sample) => {
                    machine.entry(event.source.clone()).or_default().push((at, *sample));
                }
                EventKind::ProxyEnded { pod, of, rows } => {
                    hand_overs.push(HandOver { pod: pod.clone(), source: of.clone(), rows: *rows });
                }
                EventKind::Warning { message } => warnings.push(message.clone()),
                _ => {}
            }
        }
        let load_started = started.or(requests.first_scheduled).unwrap_or(info.started);
        let origin = counted.unwrap_or(load_started);
        let load_ended = ended.or(requests.last_end).unwrap_or(load_started);
        let (pods, ends) = pods::build(&events, &clocks, &endpoints, &commands, load_started..=load_ended);
        let mut unsampled_clocks: Vec<String> = clocks.unsampled().map(str::to_owned).collect();
        if ends.iter().any(|e| !e.own && e.stages.deletion_seen.is_some()) && !clocks.knows(API_SERVER) {
            unsampled_clocks.push(API_SERVER.to_owned());
        }
        let timeline = Self {
            info,
            origin,
            stages,
            load_ended,
            announced,
            tallies,
            ends_by_name: ends_by_name(&pods, &ends),
            pods,
            ends,
            commands,
            refused: refused(&actions),
            restarts: restarts::build(&events, &clocks),
            withdrawals: withdrawals(&actions, &endpoints),
            endpoints,
            gaps,
            pods_listed,
            machine,
            hand_overs,
            warnings,
            torn,
            unsampled_clocks,
        };
        Ok((timeline, requests))
    }

    /// Seconds since the counted part of the load began.
    pub fn seconds(&self, at: Stamp) -> f64 {
        at.seconds_since(self.origin)
    }

    /// The end of the pod that bore this name at `at`, if it ended under load.
    pub fn end_of(&self, pod: &str, at: Stamp) -> Option<usize> {
        // Names come back with StatefulSets: the life counts that had begun.
        let lives = self.ends_by_name.get(pod)?;
        let begun = lives.partition_point(|(created, _)| *created <= at);
        lives.get(begun.saturating_sub(1))?.1
    }

    /// Whether a list came after a gap of the watch of pods, so that it tells who is gone.
    pub fn was_listed_after(&self, gap: &Gap) -> bool {
        self.pods_listed.is_some_and(|at| at >= gap.to)
    }

    /// The gaps of the watches of pods and endpoints that a pod's end falls into.
    pub fn gaps_of(&self, end: &PodEnd) -> impl Iterator<Item = &Gap> {
        let (from, until) = (end.t0.earliest, end.gone().unwrap_or(self.load_ended));
        let matters = |gap: &&Gap| [PODS, ENDPOINT_SLICES].contains(&gap.resource.as_str());
        self.gaps.iter().filter(matters).filter(move |gap| gap.from <= until && gap.to >= from)
    }
}

/// For each name the lives of the pods that bore it, in order: when they began, and their ends under load.
fn ends_by_name(pods: &[PodLife], ends: &[PodEnd]) -> HashMap<String, Vec<(Stamp, Option<usize>)>> {
    let mut lives: HashMap<String, Vec<_>> = HashMap::new();
    for life in pods {
        let end = ends.iter().position(|end| end.uid == life.uid);
        lives.entry(life.name.clone()).or_default().push((life.created, end));
    }
    lives
}

/// What was refused for good: an eviction that a budget held up may have been done later, and so may any
/// call over a fault of the API server.
fn refused(actions: &[(Stamp, &Action)]) -> Vec<Refused> {
    let is_done_later = |number: usize, (asked, action): &(Stamp, &Action)| {
        let mut later = actions[number + 1..].iter().map(|(_, later)| later).filter(|later| {
            later.disruption == action.disruption && later.action == action.action && later.pod == action.pod
        });
        match action.pod {
            Some(_) => later.next().is_some(),
            // Of what names no pod, what the run itself refused took no time, and is not made again.
            None => action.answered > *asked && later.any(|later| later.error.is_none()),
        }
    };
    let mut refused: Vec<Refused> = Vec::new();
    for (number, entry) in actions.iter().enumerate() {
        let Action { action, pod, status, error, .. } = entry.1;
        let Some(why) = error else { continue };
        if !is_done_later(number, entry) {
            let (pod, why) = (pod.clone(), why.clone());
            refused.push(Refused { action: *action, pod, status: *status, why });
        }
    }
    refused
}

fn withdrawals(actions: &[(Stamp, &Action)], endpoints: &Endpoints) -> Vec<Withdrawal> {
    let relabelled =
        actions.iter().filter(|(_, action)| action.action == ActionName::Relabel && action.error.is_none());
    let withdrawal = |(asked, action): &(Stamp, &Action)| {
        let pod = action.pod.clone()?;
        let endpoint_removed = endpoints.first(&pod, EndpointChange::Removed, *asked);
        Some(Withdrawal { pod, asked: *asked, answered: action.answered, endpoint_removed })
    };
    relabelled.filter_map(withdrawal).collect()
}
