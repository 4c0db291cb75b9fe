//! The lives of pods, and how they ended, from what the watches showed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use super::Command;
use super::clocks::{API_SERVER, Clocks};
use super::endpoints::{EndpointChange, Endpoints};
use super::explain::Histories;
use crate::record::event::{Action, Change, ContainerState, PodEvent, ProxyPhase};
use crate::record::{Event, EventKind, Mode, Stamp};

/// The resolution of a deletionTimestamp.
const SECOND_NS: i64 = 1_000_000_000;

/// The beginning of one pod.
#[derive(Clone, Debug)]
pub struct PodLife {
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// When a watch first showed it.
    pub created: Stamp,
    /// Whether it was already there when the watch began.
    pub listed: bool,
    /// Its address, once one was reported.
    pub ip: Option<String>,
    /// Whether its main containers have readiness probes; `None` where the record does not say so.
    pub is_probed: Option<bool>,
    /// When its address was first seen.
    pub ip_reported: Option<Stamp>,
    /// When it was first seen ready.
    pub ready: Option<Stamp>,
    /// When its endpoint was first seen ready.
    pub endpoint_ready: Option<Stamp>,
}

/// When a deletion took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct T0 {
    /// Not before this.
    pub earliest: Stamp,
    /// Not after this.
    pub latest: Stamp,
}

/// The stages of a pod's end that were seen.
#[derive(Clone, Debug, Default)]
pub struct Stages {
    /// The coordinator's own delete call was sent.
    pub delete_sent: Option<Stamp>,
    /// A watch showed the deletionTimestamp.
    pub deletion_seen: Option<Stamp>,
    /// A watch showed the endpoint as terminating.
    pub endpoint_terminating: Option<Stamp>,
    /// The proxy's preStop hook was called.
    pub kill_began: Option<Stamp>,
    /// The proxy found the app's listener closed.
    pub listener_closed: Option<Stamp>,
    /// The proxy received SIGTERM.
    pub app_exited: Option<Stamp>,
    /// The proxy exited.
    pub proxy_exited: Option<Stamp>,
    /// A watch showed all main containers terminated.
    pub containers_terminated: Option<Stamp>,
    /// A watch showed the endpoint gone.
    pub endpoint_removed: Option<Stamp>,
    /// A watch showed the pod deleted.
    pub pod_deleted: Option<Stamp>,
}

/// The end of one pod.
#[derive(Clone, Debug)]
pub struct PodEnd {
    /// The pod's name.
    pub pod: String,
    /// Its UID.
    pub uid: String,
    /// Its address.
    pub ip: Option<String>,
    /// Whether its main containers have readiness probes; `None` where the record does not say so.
    pub is_probed: Option<bool>,
    /// Its node.
    pub node: Option<String>,
    /// How it came, by the action behind it; [`Mode::Other`] where none is known.
    pub mode: Mode,
    /// The disruption behind it.
    pub disruption: Option<u32>,
    /// What ended it, in words; `None` where nothing says so.
    pub cause: Option<String>,
    /// Whether the coordinator deleted it itself.
    pub own: bool,
    /// Whether nothing of its end was seen: it is gone since a gap of the watch.
    pub is_lost: bool,
    /// When the deletion took effect.
    pub t0: T0,
    /// The grace period of the deletion, in seconds.
    pub grace_s: i64,
    /// The app's preStop sleep in seconds; `None` where a hook of another kind hides it.
    pub pre_stop_sleep_s: Option<i64>,
    /// The stages seen.
    pub stages: Stages,
    /// The exit code of the main containers: the first that is not 0.
    pub exit_code: Option<i32>,
}

impl PodEnd {
    /// Before this the app cannot have been told to stop: it still slept in its preStop hook.
    pub fn may_stop_from(&self) -> Stamp {
        self.t0
            .earliest
            .shifted_ns(self.pre_stop_sleep_s.unwrap_or(0).clamp(0, self.grace_s.max(0)) * SECOND_NS)
    }

    /// When nothing of the pod was left, as far as it was seen.
    pub fn gone(&self) -> Option<Stamp> {
        self.stages.pod_deleted.or(self.stages.containers_terminated)
    }
}

/// What the watch showed of one UID.
#[derive(Clone, Debug)]
struct Seen {
    life: PodLife,
    last: PodEvent,
    last_at: Stamp,
    deletion: Option<(Stamp, Stamp, i64)>,
    terminal: Option<Stamp>,
    containers_terminated: Option<Stamp>,
    deleted: Option<Stamp>,
    exit_code: Option<i32>,
}

impl Seen {
    fn new(at: Stamp, event: &PodEvent) -> Self {
        let life = PodLife {
            name: event.name.clone(),
            uid: event.uid.clone(),
            created: at,
            listed: event.change == Change::Listed,
            ip: None,
            is_probed: None,
            ip_reported: None,
            ready: None,
            endpoint_ready: None,
        };
        Self {
            life,
            last: event.clone(),
            last_at: at,
            deletion: None,
            terminal: None,
            containers_terminated: None,
            deleted: None,
            exit_code: None,
        }
    }

    fn observe(&mut self, at: Stamp, event: &PodEvent) {
        self.last = event.clone();
        self.last_at = at;
        if let Some(ip) = &event.ip {
            self.life.ip_reported.get_or_insert(at);
            self.life.ip.get_or_insert_with(|| ip.clone());
        }
        let is_new = self.life.ready.is_none();
        self.life.is_probed = self.life.is_probed.or_else(|| is_probed(event, is_new));
        if event.ready {
            self.life.ready.get_or_insert(at);
        }
        if let (None, Some(stamp)) = (self.deletion, event.deletion_timestamp) {
            self.deletion = Some((at, stamp, event.deletion_grace_s.unwrap_or(event.grace_s)));
        }
        if matches!(event.phase.as_str(), "Failed" | "Succeeded") {
            self.terminal.get_or_insert(at);
        }
        let main: Vec<&ContainerState> = event.containers.iter().filter(|c| !c.sidecar).collect();
        if !main.is_empty() && main.iter().all(|c| c.state.as_deref() == Some("terminated")) {
            self.containers_terminated.get_or_insert(at);
            let codes = || main.iter().filter_map(|c| c.exit_code);
            self.exit_code = codes().find(|c| *c != 0).or_else(|| codes().next());
        }
        if event.change == Change::Deleted {
            self.deleted.get_or_insert(at);
        }
    }

    fn pre_stop_sleep_s(&self) -> Option<i64> {
        let mut main = self.last.containers.iter().filter(|c| !c.sidecar).peekable();
        if main.peek().is_none() || main.clone().any(|c| c.pre_stop_other) {
            return None;
        }
        // Every container counts: the first to be told to stop can refuse.
        main.map(|c| c.pre_stop_sleep_s.unwrap_or(0)).min()
    }
}

/// Whether the main containers of a pod are probed before it is ready, as far as one event says so.
/// `is_new`: it was never seen ready before.
fn is_probed(event: &PodEvent, is_new: bool) -> Option<bool> {
    let main = || event.containers.iter().filter(|c| !c.sidecar);
    if main().any(|c| c.readiness_probe == Some(true)) {
        return Some(true);
    }
    if main().next().is_some() && main().all(|c| c.readiness_probe == Some(false)) {
        return Some(false);
    }
    // Records of older versions say nothing of probes. A pod whose containers all run is ready at once
    // without one, and an ending one keeps its readiness until they have ended.
    let waits = is_new
        && !event.ready
        && event.deletion_timestamp.is_none()
        && event.phase == "Running"
        && event.containers.iter().all(|c| c.state.as_deref() == Some("running"));
    (waits && main().next().is_some()).then_some(true)
}

/// Builds the lives and the ends of all pods. Ends after the load are the run's own
/// clearing up and those before it its setting up: neither is measured.
pub(super) fn build(
    events: &[Event],
    clocks: &Clocks,
    endpoints: &Endpoints,
    commands: &[Command],
    load: RangeInclusive<Stamp>,
) -> (Vec<PodLife>, Vec<PodEnd>) {
    let mut seen: BTreeMap<String, Seen> = BTreeMap::new();
    let mut actions: Vec<(Stamp, &Action)> = Vec::new();
    let mut histories = Histories::default();
    let mut gaps: Vec<(Stamp, Stamp)> = Vec::new();
    let mut phases: Vec<(Stamp, &str, ProxyPhase)> = Vec::new();
    for event in events {
        let at = clocks.place(&event.source, event.at);
        match &event.kind {
            EventKind::Pod(pod) => {
                seen.entry(pod.uid.clone()).or_insert_with(|| Seen::new(at, pod)).observe(at, pod);
            }
            EventKind::Action(action) if action.mode.is_some() => actions.push((at, action)),
            EventKind::WatchGap { resource, from } if resource == "pods" => gaps.push((*from, at)),
            EventKind::ProxyPhase { pod, phase } => phases.push((at, pod, *phase)),
            other => histories.observe(at, other),
        }
    }
    // A gap tells who is gone only once the list after it was seen.
    let listed = seen.values().map(|s| s.last_at).max();
    gaps.retain(|(_, to)| listed.is_some_and(|at| at >= *to));
    let acted: BTreeSet<&str> = actions.iter().filter_map(|(_, a)| a.pod.as_deref()).collect();
    let (mut lives, mut ends) = (Vec::new(), Vec::new());
    for mut pod in seen.into_values() {
        let name = pod.life.name.clone();
        // A pod that no Service ever named took no requests: its end loses none.
        if !endpoints.is_empty() && !endpoints.ever_named(&name) && !acted.contains(name.as_str()) {
            continue;
        }
        pod.life.endpoint_ready = endpoints.first(&name, EndpointChange::Ready, pod.life.created);
        let causes = Causes { actions: &actions, commands, histories: &histories };
        if let Some(end) = end_of(&pod, clocks, endpoints, &causes, &gaps, &phases)
            && is_under_load(&end, &load)
        {
            ends.push(end);
        }
        lives.push(pod.life);
    }
    lives.sort_by(|a, b| (a.created, &a.name).cmp(&(b.created, &b.name)));
    ends.sort_by(|a, b| (a.t0.earliest, &a.pod).cmp(&(b.t0.earliest, &b.pod)));
    (lives, ends)
}

/// Whether a pod ended while load was sent, or may have: of one that was lost in a gap it is only known
/// that it did so at some time of that.
fn is_under_load(end: &PodEnd, load: &RangeInclusive<Stamp>) -> bool {
    if end.is_lost {
        end.t0.latest >= *load.start() && end.t0.earliest <= *load.end()
    } else {
        end.t0.earliest >= *load.start() && end.t0.latest <= *load.end()
    }
}

/// What may have ended a pod.
struct Causes<'a> {
    actions: &'a [(Stamp, &'a Action)],
    commands: &'a [Command],
    histories: &'a Histories,
}

/// A deletion that the run itself asked for.
struct Own<'a> {
    /// The first call of which it may have been the effect.
    sent: Stamp,
    action: &'a Action,
    t0: T0,
}

impl<'a> Causes<'a> {
    /// The run's own deletion of a pod. `second` is when it took effect by the API server's own
    /// account, to the second.
    fn own(&self, pod: &Seen, second: Option<T0>) -> Option<Own<'a>> {
        let is_this = |a: &&&'a (Stamp, &'a Action)| match &a.1.uid {
            Some(uid) => *uid == pod.life.uid,
            None => a.1.pod.as_deref() == Some(pod.life.name.as_str()),
        };
        let attempts: Vec<&(Stamp, &Action)> = self.actions.iter().filter(|a| is_this(&a)).collect();
        let is_accepted = |a: &&&(Stamp, &Action)| a.1.status.is_some_and(|s| (200..300).contains(&s));
        let accepted = attempts.iter().find(is_accepted);
        // One without an answer, or with one that says nothing, may have been the one that was carried out.
        let may_be = |a: &&&(Stamp, &Action)| !a.1.is_undone && a.1.status.is_none_or(|s| s >= 500);
        let doubtful = attempts.iter().take_while(|a| !is_accepted(a)).find(may_be);
        let (sent, action) = doubtful.or(accepted)?;
        let (earliest, action) = (*sent, accepted.map_or(*action, |(_, accepted)| *accepted));
        let latest = match accepted {
            Some((_, accepted)) => accepted.answered,
            // Without an answer the deletion is only known to have come before the watch showed it.
            None => pod.deletion?.0,
        };
        let mut t0 = T0 { earliest, latest: latest.max(earliest) };
        if let Some(second) = second.filter(|_| doubtful.is_some()) {
            let both = T0 { earliest: earliest.max(second.earliest), latest: t0.latest.min(second.latest) };
            match (both.earliest <= both.latest, accepted) {
                (true, _) => t0 = both,
                (false, Some(_)) => {}
                // It was somebody else's.
                (false, None) => return None,
            }
        }
        Some(Own { sent: *sent, action, t0 })
    }
}

fn end_of(
    pod: &Seen,
    clocks: &Clocks,
    endpoints: &Endpoints,
    causes: &Causes<'_>,
    gaps: &[(Stamp, Stamp)],
    phases: &[(Stamp, &str, ProxyPhase)],
) -> Option<PodEnd> {
    let name = pod.life.name.as_str();
    let second = pod.deletion.map(|(at, stamp, grace_s)| {
        let offset = clocks.offset(API_SERVER, stamp.shifted_ns(-grace_s * SECOND_NS));
        let second = clocks.place(API_SERVER, stamp).shifted_ns(-grace_s * SECOND_NS);
        let latest = second.shifted_ns(SECOND_NS + offset.uncertainty_ns).min(at);
        T0 { earliest: second.shifted_ns(-offset.uncertainty_ns).min(latest), latest }
    });
    let own = causes.own(pod, second);
    // One that ended by itself may be deleted later.
    let first = match (pod.terminal, pod.deletion) {
        (Some(terminal), Some((deletion, ..))) if terminal < deletion => Some(terminal),
        (terminal, None) => terminal.or(pod.deleted),
        _ => None,
    };
    let phase = |which: ProxyPhase| {
        phases
            .iter()
            .find(|(at, p, k)| *p == name && *k == which && *at >= pod.life.created)
            .map(|(at, ..)| *at)
    };
    let deletion_seen = pod.deletion.map(|(at, ..)| at);
    let t0 = if let Some(own) = &own {
        own.t0
    } else if let Some(first) = first {
        let signs = [ProxyPhase::PreStop, ProxyPhase::ListenerClosed, ProxyPhase::Sigterm];
        let first =
            signs.into_iter().filter_map(phase).chain(pod.containers_terminated).fold(first, Stamp::min);
        T0 { earliest: first, latest: first }
    } else if let Some(second) = second {
        second
    } else {
        // Gone between two lists: the later one does not show it any more.
        let (from, to) = gaps.iter().find(|(_, to)| *to > pod.last_at)?;
        T0 { earliest: *from, latest: *to }
    };
    let grace_s = pod.deletion.map_or(pod.last.grace_s, |(.., grace_s)| grace_s);
    let sleep_s = pod.pre_stop_sleep_s();
    let after = |at: Stamp| (at >= t0.earliest).then_some(at);
    let stages = Stages {
        delete_sent: own.as_ref().map(|own| own.sent),
        deletion_seen,
        endpoint_terminating: endpoints.first(name, EndpointChange::Terminating, t0.earliest),
        kill_began: phase(ProxyPhase::PreStop),
        listener_closed: phase(ProxyPhase::ListenerClosed),
        app_exited: phase(ProxyPhase::Sigterm),
        proxy_exited: phase(ProxyPhase::Exit),
        containers_terminated: pod.containers_terminated.and_then(after),
        endpoint_removed: endpoints.first(name, EndpointChange::Removed, t0.earliest),
        pod_deleted: pod.deleted,
    };
    let ended_by_itself = first.is_some() && pod.deleted != first;
    let explained = match &own {
        Some(own) => Some((None, format!("{} by this run", own.action.action))),
        None => {
            let explained = causes.histories.explain(&pod.last, pod.life.created, t0, ended_by_itself);
            explained.map(|explained| (Some(explained.mode), explained.cause))
        }
    };
    let known = explained.as_ref().and_then(|(mode, _)| *mode);
    // A node that shuts down ends its pods without deleting them.
    let by_shutdown = known == Some(Mode::NodeShutdown);
    let may_be = |a: &Action| match a.mode {
        Some(Mode::NodeShutdown) => by_shutdown,
        // What is known to have been something else was not the action.
        mode => pod.deletion.is_some() && (known.is_none() || known == mode),
    };
    let commanded = causes.commands.iter().rfind(|command| command.started <= t0.latest);
    let action = own.as_ref().map(|own| own.action).or_else(|| {
        let begun = |at: Stamp| at <= t0.latest && commanded.is_none_or(|command| command.started <= at);
        let mut latest = causes.actions.iter().rev();
        let found = latest.find(|(at, a)| a.pod.is_none() && a.error.is_none() && begun(*at) && may_be(a));
        found.map(|(_, action)| *action)
    });
    let mode = action.and_then(|a| a.mode).or(known).or_else(|| commanded?.mode);
    Some(PodEnd {
        pod: name.to_owned(),
        uid: pod.life.uid.clone(),
        ip: pod.life.ip.clone(),
        is_probed: pod.life.is_probed,
        node: pod.last.node.clone(),
        mode: mode.unwrap_or(Mode::Other),
        disruption: action.map(|a| a.disruption).or_else(|| commanded?.disruption),
        cause: explained.map(|(_, cause)| cause),
        own: own.is_some(),
        is_lost: own.is_none() && first.is_none() && second.is_none(),
        t0,
        grace_s,
        pre_stop_sleep_s: sleep_s,
        stages,
        exit_code: pod.exit_code,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whether_a_pod_is_probed_is_recorded_or_seen_in_its_start() {
        let event = |ready: bool, state: &str, probe: serde_json::Value| -> PodEvent {
            let container = |name: &str, sidecar: bool, probe: &serde_json::Value| {
                json!({"name": name, "sidecar": sidecar, "pre_stop_sleep_s": null, "pre_stop_other": false,
                    "state": state, "reason": null, "exit_code": null, "restarts": 0, "readiness_probe": probe})
            };
            let pod = json!({
                "change": "applied", "namespace": "shop", "name": "web-1", "uid": "u", "resource_version": "1",
                "node": "n1", "ip": "10.0.0.1", "phase": "Running", "ready": ready, "deletion_timestamp": null,
                "deletion_grace_s": null, "grace_s": 30, "disruption_target": null,
                "containers": [container("app", false, &probe), container("proxy", true, &json!(true))],
            });
            serde_json::from_value(pod).unwrap()
        };
        let life = |events: &[PodEvent]| {
            let mut seen = Seen::new(Stamp::from_unix_ns(1), &events[0]);
            events.iter().for_each(|event| seen.observe(Stamp::from_unix_ns(1), event));
            seen.life
        };
        let told = |events: &[PodEvent]| life(events).is_probed;
        let null = || serde_json::Value::Null;
        assert_eq!(told(&[event(true, "running", json!(true))]), Some(true));
        assert_eq!(told(&[event(true, "running", json!(false))]), Some(false));
        assert_eq!(told(&[event(false, "waiting", null()), event(true, "running", null())]), None);
        let late = [event(false, "running", null()), event(true, "running", null())];
        assert_eq!(told(&late), Some(true), "it ran and was not ready");
        let lost = [event(true, "running", null()), event(false, "running", null())];
        assert_eq!(told(&lost), None, "its node is away");
        assert_eq!(life(&lost).ip.as_deref(), Some("10.0.0.1"));
    }
}
