//! From records to pod lives and joined requests, all on the coordinator's clock.
//!
//! Pure: data in, data out. It decides what happened when; why a request was
//! lost, and what follows from it, is the job of [`crate::analysis`].

mod addresses;
mod attempts;
pub mod clocks;
mod consumer;
pub mod endpoints;
mod explain;
pub mod integrity;
mod names;
pub mod pods;
pub mod requests;
pub mod restarts;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use addresses::Addresses;
use clocks::{API_SERVER, Clocks};
use endpoints::{EndpointChange, Endpoints};
pub use integrity::{Hole, Integrity};
use names::PodNames;
pub use pods::{PodEnd, PodLife, Stages, T0};
use requests::Joins;
pub use requests::{Agreement, Request, Requests};
pub use restarts::Restart;

use crate::record::event::{Action, ActionName, AnswerHeaders, Change, MachineSample, NameAnswer};
use crate::record::run_info::{Rows, Target};
use crate::record::service_proxy::ServiceProxy;
use crate::record::{Event, EventKind, Mode, Outcome, RowSource, RunInfo, RunLog, Stamp};

/// What a watch of these is called.
const PODS: &str = "pods";
const ENDPOINT_SLICES: &str = "endpointslices";
/// The mode of a Service proxy whose connections the kernel tracks in a way of their own.

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

/// What the kernel's connection tracking said of the connections of the load.
#[derive(Clone, Debug, Default)]
pub struct Tracked {
    /// Connections that were opened.
    pub connections: u64,
    /// Those of them that it had an entry for.
    pub routed: u64,
    /// When it said more than could be taken in: from and to.
    pub gaps: Vec<(Stamp, Stamp)>,
    /// How that agrees with what the answers say.
    pub agreement: Agreement,
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
    /// What the headers of each target's answers said, over all load sources, by the target's name.
    pub answers: BTreeMap<String, AnswerHeaders>,
    /// How the proxies' rows ended.
    pub hand_overs: Vec<HandOver>,
    /// What the kernel said of the connections of the load, where it was asked.
    pub tracked: Option<Tracked>,
    /// Warnings that were recorded.
    pub warnings: Vec<String>,
    /// What could not be read.
    pub torn: Vec<String>,
    /// What could not be read, and no kill explains.
    pub corrupt: Vec<String>,
    /// For how long the answers of the DNS held, by name: in seconds, the longest.
    ttls: BTreeMap<String, f64>,
    /// Whether what could be read is whole and agrees with itself.
    pub integrity: Integrity,
    /// Clocks that matter here and were never compared with the coordinator's.
    pub unsampled_clocks: Vec<String>,
}

impl Timeline {
    /// Puts the records of a run together.
    ///
    /// # Errors
    /// When its rows cannot be read.
    pub fn build<R: RowSource>(log: RunLog, rows: R) -> Result<(Self, Requests<R>), R::Error> {
        let RunLog { mut info, events, torn, corrupt } = log;
        let clocks = Clocks::new(&info, &events);
        let joins = Joins {
            names: PodNames::of(&events, &clocks),
            addresses: Addresses::of(&info, &events, &clocks),
            run: info.run.clone(),
            needs_proof: info.cluster.dataplane == ServiceProxy::Ipvs,
        };
        let requests = Requests::open(rows, clocks.clone(), joins)?;

        let mut endpoints = Endpoints::default();
        let (mut started, mut counted) = (None, None);
        let (mut ended, mut announced) = (None::<Stamp>, None);
        let (mut gaps, mut hand_overs, mut warnings) = (vec![], vec![], vec![]);
        let mut commands: Vec<Command> = Vec::new();
        let mut actions: Vec<(Stamp, &Action)> = Vec::new();
        let mut pods_listed = None;
        let mut tracked = None::<Tracked>;
        let mut stages = Vec::new();
        let mut tallies = BTreeMap::new();
        let mut machine: BTreeMap<String, Vec<_>> = BTreeMap::new();
        let mut answers: BTreeMap<String, AnswerHeaders> = BTreeMap::new();
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
                EventKind::AnswerHeaders(of_source) => {
                    let all = answers.entry(of_source.target.clone()).or_insert_with(|| AnswerHeaders {
                        target: of_source.target.clone(),
                        ..AnswerHeaders::default()
                    });
                    all.merge(of_source);
                }
                EventKind::ProxyEnded { pod, of, rows } => {
                    hand_overs.push(HandOver { pod: pod.clone(), source: of.clone(), rows: *rows });
                }
                EventKind::ConntrackGap { from } => {
                    let from = clocks.place(&event.source, *from);
                    tracked.get_or_insert_with(Tracked::default).gaps.push((from, at));
                }
                EventKind::ConntrackEnded { connections, routed } => {
                    let tracked = tracked.get_or_insert_with(Tracked::default);
                    tracked.connections += connections;
                    tracked.routed += routed;
                }
                EventKind::Warning { message } => warnings.push(message.clone()),
                _ => {}
            }
        }
        consumer::settle(&mut info.targets, &requests, &answers);
        let load_started = started.or(requests.first_scheduled).unwrap_or(info.started);
        let origin = counted.unwrap_or(load_started);
        let load_ended = ended.or(requests.last_end).unwrap_or(load_started);
        let integrity = requests.integrity((&info, &events), (load_started, load_ended))?;
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
            answers,
            hand_overs,
            tracked: tracked.map(|tracked| Tracked { agreement: requests.agreement, ..tracked }),
            warnings,
            torn,
            corrupt,
            ttls: ttls(&events),
            integrity,
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

    /// For how long clients of this target keep an answer of the DNS, in seconds: the longest that was seen.
    /// `None` where they ask no DNS, or its answers have no limit. A window towards such a consumer is a draw
    /// of its phase plus a delay.
    pub fn period_s(&self, target: &Target) -> Option<f64> {
        self.ttls.get(target.host()?).copied()
    }

    /// Where requests of the load are missing in the record, by time: what happened there cannot be told
    /// from the requests, whichever target they went to.
    pub fn holes(&self) -> &[Hole] {
        &self.integrity.holes
    }

    /// The first hole that a stretch of time meets.
    pub fn hole_in(&self, from: Stamp, until: Stamp) -> Option<&Hole> {
        self.holes().iter().find(|hole| hole.from <= until && from <= hole.to)
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

/// For how long the answers of the DNS held, by name.
fn ttls(events: &[Event]) -> BTreeMap<String, f64> {
    let mut ttls: BTreeMap<String, f64> = BTreeMap::new();
    for event in events {
        if let EventKind::NameAnswer(NameAnswer { name, ttl_s: Some(ttl_s), .. }) = &event.kind {
            let longest = ttls.entry(name.clone()).or_insert(*ttl_s);
            *longest = longest.max(*ttl_s);
        }
    }
    ttls
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
