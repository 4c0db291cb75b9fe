//! Events of one pod, as shown by the watch.

use super::{PodLife, SIGKILLED};
use rolldrop_record::Stamp;
use rolldrop_record::event::{Change, ContainerState, PodEvent};

/// Reason given for a container that was killed for exceeding its memory limit.
pub(super) const OOM_KILLED: &str = "OOMKilled";
/// Reason given for a container that the kubelet could no longer find; its exit code of 137 is then made up.
pub(super) const STATUS_UNKNOWN: &str = "ContainerStatusUnknown";

/// Deletion as first shown by the watch.
#[derive(Clone, Debug)]
pub(super) struct Deletion {
    /// Time the watch showed the deletion.
    pub(super) seen: Stamp,
    /// The pod's deletionTimestamp, on the API server's clock.
    pub(super) timestamp: Stamp,
    /// The grace period, in seconds.
    pub(super) grace_s: i64,
    /// Version of the pod object that showed the deletion.
    pub(super) version: String,
    /// True if the deletion itself created that version. In a list it may be a later version.
    pub(super) is_exact: bool,
}

/// Events of one UID, as shown by the watch.
#[derive(Clone, Debug)]
pub(super) struct WatchedPod {
    pub(super) life: PodLife,
    pub(super) last: PodEvent,
    pub(super) last_at: Stamp,
    pub(super) deletion: Option<Deletion>,
    /// Time the pod was shown as failed or succeeded.
    pub(super) terminal: Option<Stamp>,
    /// Time the main containers were last shown running, before they terminated.
    pub(super) running: Option<Stamp>,
    /// Time from which the main containers were shown as terminated; `None` while one of them runs or restarts.
    pub(super) containers_terminated: Option<Stamp>,
    /// Time from which all containers, sidecars included, were shown as terminated.
    pub(super) all_ended: Option<Stamp>,
    pub(super) deleted: Option<Stamp>,
    pub(super) exit_code: Option<i32>,
    pub(super) exit_reason: Option<String>,
    /// True if the pod was ready when its main containers were last shown running.
    was_ready: bool,
    /// Grace period of the pod's deletion at that time, in seconds; the kubelet's own final deletion has none.
    pub(super) running_grace_s: Option<i64>,
}

impl WatchedPod {
    pub(super) fn new(at: Stamp, event: &PodEvent) -> Self {
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
            running: None,
            containers_terminated: None,
            all_ended: None,
            deleted: None,
            exit_code: None,
            exit_reason: None,
            was_ready: false,
            running_grace_s: None,
        }
    }

    pub(super) fn observe(&mut self, at: Stamp, event: &PodEvent) {
        self.observe_start(at, event);
        self.observe_end(at, event);
        self.last = event.clone();
        self.last_at = at;
    }

    fn observe_start(&mut self, at: Stamp, event: &PodEvent) {
        if let Some(ip) = &event.ip {
            self.life.ip_reported.get_or_insert(at);
            self.life.ip = Some(ip.clone());
        }
        let is_new = self.life.ready.is_none();
        self.life.is_probed = self.life.is_probed.or_else(|| is_probed(event, is_new));
        if event.ready {
            self.life.ready.get_or_insert(at);
        }
    }

    fn observe_end(&mut self, at: Stamp, event: &PodEvent) {
        if let (None, Some(timestamp)) = (&self.deletion, event.deletion_timestamp) {
            self.deletion = Some(Deletion {
                seen: at,
                timestamp,
                grace_s: event.deletion_grace_s.unwrap_or(event.grace_s),
                version: event.resource_version.clone(),
                is_exact: event.change == Change::Applied,
            });
        }
        if has_finished(event) {
            self.terminal.get_or_insert(at);
        }
        let is = |c: &ContainerState, state: &str| c.state.as_deref() == Some(state);
        // A container that ended and restarted runs again, so only its last end counts.
        let last_end = |ended: Option<Stamp>, is_ended: bool| is_ended.then(|| ended.unwrap_or(at));
        if !event.containers.is_empty() {
            let are_ended = event.containers.iter().all(|c| is(c, "terminated"));
            self.all_ended = last_end(self.all_ended, are_ended);
        }
        let main: Vec<&ContainerState> = event.containers.iter().filter(|c| !c.sidecar).collect();
        if !main.is_empty() {
            let are_ended = main.iter().all(|c| is(c, "terminated"));
            self.containers_terminated = last_end(self.containers_terminated, are_ended);
            let ended = || main.iter().filter(|c| are_ended && c.exit_code.is_some());
            // A kill outweighs all other codes: the pod did not exit by itself.
            let is_kill = |c: &ContainerState| {
                c.exit_code == Some(SIGKILLED) && c.reason.as_deref() != Some(STATUS_UNKNOWN)
            };
            let killed = ended().find(|c| is_kill(c));
            let decisive =
                killed.or_else(|| ended().find(|c| c.exit_code != Some(0))).or_else(|| ended().next());
            self.exit_code = decisive.and_then(|c| c.exit_code);
            self.exit_reason = decisive.and_then(|c| c.reason.clone());
        }
        if !main.is_empty() && main.iter().all(|c| is(c, "running")) {
            self.running = Some(at);
            self.was_ready = event.ready;
            self.running_grace_s = event.deletion_grace_s;
        }
        if event.change == Change::Deleted {
            self.deleted.get_or_insert(at);
        }
    }

    /// Returns true if SIGKILL terminated a container, other than one that ran out of memory; `None` if a container's
    /// end is not known.
    pub(super) fn sigkilled(&self) -> Option<bool> {
        let is = |c: &ContainerState, reason: &str| c.reason.as_deref() == Some(reason);
        let ends = || self.last.containers.iter().filter(|c| !is(c, STATUS_UNKNOWN));
        let is_killed = ends().any(|c| c.exit_code == Some(SIGKILLED) && !is(c, OOM_KILLED));
        let is_known = self.all_ended.is_some() && ends().count() == self.last.containers.len();
        (is_killed || is_known).then_some(is_killed)
    }

    pub(super) fn pre_stop_sleep_s(&self) -> Option<i64> {
        let mut main = self.last.containers.iter().filter(|c| !c.sidecar).peekable();
        if main.peek().is_none() || main.clone().any(|c| c.pre_stop_other) {
            return None;
        }
        // Every container counts, because the first one to receive its signal may refuse requests.
        main.map(|c| c.pre_stop_sleep_s.unwrap_or(0)).min()
    }

    /// Returns the time in seconds within which the main containers' readiness probes would have noticed that nothing
    /// was listening; `None` without such a probe, or if one did notice.
    pub(super) fn accepted_for_all_but_s(&self) -> Option<u32> {
        let main = self.last.containers.iter().filter(|c| !c.sidecar);
        let notices_s = main.filter_map(|c| c.readiness_notices_s).max()?;
        self.was_ready.then_some(notices_s)
    }

    /// Returns the program run by a main container's hook.
    pub(super) fn hook_program(&self) -> Option<String> {
        self.last.containers.iter().filter(|c| !c.sidecar).find_map(|c| c.pre_stop_program.clone())
    }

    /// Returns the sleep of all main containers' hooks in seconds, from a sleep action or a program that only sleeps.
    pub(super) fn hook_sleep_s(&self) -> Option<i64> {
        let main = self.last.containers.iter().filter(|c| !c.sidecar);
        let sleeps = main.map(|c| match c.pre_stop_other {
            true => c.pre_stop_exec_sleep_s,
            false => Some(c.pre_stop_sleep_s.unwrap_or(0)),
        });
        sleeps.collect::<Option<Vec<i64>>>()?.into_iter().min()
    }
}

/// Returns true if a pod finished without being deleted.
pub(in super::super) fn has_finished(pod: &PodEvent) -> bool {
    matches!(pod.phase.as_str(), "Failed" | "Succeeded")
}

/// Returns true if a pod's main containers are probed before the pod is ready, as far as one event shows it. `is_new`
/// is true if the pod was never seen ready before.
fn is_probed(event: &PodEvent, is_new: bool) -> Option<bool> {
    let main = || event.containers.iter().filter(|c| !c.sidecar);
    if main().any(|c| c.readiness_probe == Some(true)) {
        return Some(true);
    }
    if main().next().is_some() && main().all(|c| c.readiness_probe == Some(false)) {
        return Some(false);
    }
    // The record may lack facts about probes. Without a probe, a pod is ready as soon as all its containers run, and a
    // terminating pod stays ready until they have terminated.
    let waits = is_new
        && !event.ready
        && event.deletion_timestamp.is_none()
        && event.phase == "Running"
        && event.containers.iter().all(|c| c.state.as_deref() == Some("running"));
    (waits && main().next().is_some()).then_some(true)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn kill_outweighs_other_exit_codes() {
        let code = |ends: &[(i32, &str)]| {
            let containers = ends.iter().map(|(code, reason)| {
                json!({"name": "app", "sidecar": false, "pre_stop_other": false, "state": "terminated",
                    "reason": reason, "exit_code": code, "restarts": 0})
            });
            let pod = json!({
                "change": "applied", "namespace": "shop", "name": "web-1", "uid": "u", "resource_version": "1",
                "node": "n1", "ip": "10.0.0.1", "phase": "Running", "ready": false, "deletion_timestamp": null,
                "deletion_grace_s": null, "grace_s": 30, "disruption_target": null,
                "containers": containers.collect::<Vec<_>>(),
            });
            let event: PodEvent = serde_json::from_value(pod).unwrap();
            let mut seen = WatchedPod::new(Stamp::from_unix_ns(1), &event);
            seen.observe(Stamp::from_unix_ns(1), &event);
            (seen.exit_code, seen.exit_reason)
        };
        let known = |code, reason: &str| (Some(code), Some(reason.to_owned()));
        assert_eq!(code(&[(0, "Completed"), (137, "Error")]), known(137, "Error"));
        assert_eq!(code(&[(143, "Error"), (137, "OOMKilled"), (1, "Error")]), known(137, "OOMKilled"));
        assert_eq!(code(&[(1, "Error"), (137, STATUS_UNKNOWN)]), known(1, "Error"), "that code is made up");
        assert_eq!(code(&[(0, "Completed"), (2, "Error")]), known(2, "Error"));
    }

    #[test]
    fn late_readiness_reveals_unrecorded_probe() {
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
            let mut seen = WatchedPod::new(Stamp::from_unix_ns(1), &events[0]);
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
        assert_eq!(told(&lost), None, "its node is unreachable");
        assert_eq!(life(&lost).ip.as_deref(), Some("10.0.0.1"));
    }
}
