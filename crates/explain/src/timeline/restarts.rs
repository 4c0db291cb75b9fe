//! Containers that exited in pods that were not terminating: after a crash, a failed probe or running out of memory.

use std::collections::BTreeMap;

use super::EndpointHistory;
use rolldrop_record::event::{ActionName, ContainerState, PodEvent};
use rolldrop_record::{EventKind, Stamp};

/// Longest time between a container's exit and a watch event that shows it; a kubelet checks its containers once a
/// second.
const SEEN_WITHIN_NS: i64 = 2_000_000_000;

/// Container that exited in a pod that was not terminating.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerRestart {
    /// The pod's name.
    pub pod: String,
    /// The container's name.
    pub container: String,
    /// Exit code, if it was seen.
    pub exit_code: Option<i32>,
    /// True if the run had the container killed.
    pub is_crash: bool,
    /// Earliest time the container may have exited.
    pub from: Stamp,
    /// Time the pod was ready again, if it was.
    pub to: Option<Stamp>,
}

/// Last known state of a container.
#[derive(Clone, Copy, Debug)]
struct SeenContainer {
    running_at: Stamp,
    restarts: i32,
    /// Index of the unfinished restart, if any.
    open: Option<usize>,
}

/// Collects restarts from the pod watch, and the crashes requested by the run.
#[derive(Debug, Default)]
pub(super) struct RestartCollector<'a> {
    restarts: Vec<ContainerRestart>,
    /// State by the pod's UID and the container's name.
    seen: BTreeMap<(String, String), SeenContainer>,
    crashes: BTreeMap<&'a str, Stamp>,
}

impl<'a> RestartCollector<'a> {
    pub(super) fn observe(&mut self, at: Stamp, kind: &'a EventKind) {
        match kind {
            EventKind::Pod(pod) => {
                pod.containers.iter().filter(|container| !container.sidecar).for_each(|container| {
                    self.observe_container(at, pod, container);
                });
            }
            EventKind::Action(action) if action.action == ActionName::Crash => {
                self.crashes.extend(action.uid.as_deref().map(|uid| (uid, at)));
            }
            _ => {}
        }
    }

    /// Returns the restarts in pods behind Services, and those requested by the run. A pod that no Service ever listed
    /// received no requests.
    pub(super) fn behind(self, endpoints: &EndpointHistory) -> Vec<ContainerRestart> {
        let is_behind = |restart: &ContainerRestart| {
            restart.is_crash || endpoints.is_empty() || endpoints.ever_named(&restart.pod)
        };
        self.restarts.into_iter().filter(is_behind).collect()
    }

    fn observe_container(&mut self, at: Stamp, pod: &PodEvent, container: &ContainerState) {
        let is_ending = pod.deletion_timestamp.is_some() || pod.disruption_target.is_some();
        let stays = !is_ending && pod.phase == "Running";
        let runs = container.state.as_deref() == Some("running");
        let key = (pod.uid.clone(), container.name.clone());
        let Some(last) = self.seen.get_mut(&key) else {
            if runs {
                let first = SeenContainer { running_at: at, restarts: container.restarts, open: None };
                self.seen.insert(key, first);
            }
            return;
        };
        let has_ended = !runs || container.restarts > last.restarts;
        if has_ended && last.open.is_none() && stays {
            let shown = last.running_at.max(at.shifted_ns(-SEEN_WITHIN_NS));
            let asked = self.crashes.get(pod.uid.as_str()).filter(|asked| **asked >= last.running_at);
            last.open = Some(self.restarts.len());
            self.restarts.push(ContainerRestart {
                pod: pod.name.clone(),
                container: container.name.clone(),
                exit_code: container.exit_code,
                is_crash: asked.is_some(),
                from: asked.copied().unwrap_or(shown),
                to: None,
            });
        }
        if let Some(open) = last.open {
            let restart = &mut self.restarts[open];
            restart.exit_code = restart.exit_code.or(container.exit_code);
            if runs && pod.ready {
                restart.to = Some(at);
                last.open = None;
            }
        }
        if runs {
            (last.running_at, last.restarts) = (at, container.restarts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rolldrop_record::Event;
    use rolldrop_record::event::{Action, Change};

    fn restarts(events: &[Event]) -> Vec<ContainerRestart> {
        let mut collector = RestartCollector::default();
        events.iter().for_each(|event| collector.observe(event.at, &event.kind));
        collector.restarts
    }

    fn pod(at_ns: i64, state: &str, restarts: i32, exit_code: Option<i32>, ready: bool) -> Event {
        let container = ContainerState {
            name: "app".into(),
            sidecar: false,
            pre_stop_sleep_s: None,
            pre_stop_other: false,
            pre_stop_exec_sleep_s: None,
            pre_stop_program: None,
            state: Some(state.into()),
            reason: None,
            message: None,
            exit_code,
            restarts,
            readiness_probe: None,
            readiness_notices_s: None,
        };
        let pod = PodEvent {
            change: Change::Applied,
            namespace: "shop".into(),
            name: "web-1".into(),
            uid: "u".into(),
            resource_version: "1".into(),
            node: None,
            ip: None,
            phase: "Running".into(),
            ready,
            deletion_timestamp: None,
            deletion_grace_s: None,
            grace_s: 30,
            disruption_target: None,
            disruption_message: None,
            reason: None,
            owner: None,
            containers: vec![container],
        };
        Event::new(Stamp::from_unix_ns(at_ns), "coordinator", EventKind::Pod(pod))
    }

    #[test]
    fn container_exit_counts_as_restart() {
        let second = 1_000_000_000;
        let at = Stamp::from_unix_ns;
        let ends = [
            pod(0, "running", 0, None, true),
            pod(10 * second, "terminated", 0, Some(137), false),
            pod(11 * second, "running", 1, None, false),
            pod(12 * second, "running", 1, None, true),
        ];
        let restart = ContainerRestart {
            pod: "web-1".into(),
            container: "app".into(),
            exit_code: Some(137),
            is_crash: false,
            from: at(8 * second),
            to: Some(at(12 * second)),
        };
        assert_eq!(restarts(&ends), std::slice::from_ref(&restart));

        let crash = Action {
            is_undone: false,
            disruption: 0,
            action: ActionName::Crash,
            mode: None,
            pod: Some("web-1".into()),
            uid: Some("u".into()),
            answered: at(9 * second),
            status: Some(200),
            error: None,
        };
        let crash = Event::new(at(9 * second), "coordinator", EventKind::Action(crash));
        let [first, rest @ ..] = ends;
        let events: Vec<Event> = [first, crash].into_iter().chain(rest).collect();
        let asked = ContainerRestart { from: at(9 * second), is_crash: true, ..restart };
        assert_eq!(restarts(&events), [asked]);
    }
}
