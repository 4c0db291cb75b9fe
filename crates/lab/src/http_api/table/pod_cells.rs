//! The table cells for pods, such as ready containers, a one-word status, and restarts (Kubernetes
//! pkg/printers/internalversion/printers.go, `printPod`).

use jiff::Timestamp;
use serde_json::{Value, json};

use super::age;
use super::table_cells::or;
use crate::conditions;
use crate::object_fields::{is_being_deleted, is_terminal};
use crate::value::{list, number, text};

/// Builds the table row for `pod`.
pub(super) fn row(pod: &Value, now: Timestamp) -> Vec<Value> {
    let summary = PodSummary::of(pod);
    let status = &pod["status"];
    vec![
        pod["metadata"]["name"].clone(),
        json!(format!("{}/{}", summary.ready, summary.total)),
        json!(summary.status),
        json!(summary.restarts(now)),
        json!(age::since(&pod["metadata"]["creationTimestamp"], now)),
        json!(or(&status["podIPs"][0]["ip"], "<none>")),
        json!(or(&pod["spec"]["nodeName"], "<none>")),
        json!(or(&status["nominatedNodeName"], "<none>")),
        json!("<none>"),
    ]
}

fn condition_is_true(pod: &Value, condition_type: &str) -> bool {
    conditions::of(pod, condition_type)["status"] == "True"
}

#[derive(Default)]
struct PodSummary {
    ready: usize,
    total: usize,
    status: String,
    restarts: i64,
    /// Termination time of the container that restarted most recently.
    last_end: Option<Timestamp>,
}

impl PodSummary {
    fn of(pod: &Value) -> Self {
        let (spec, status) = (&pod["spec"], &pod["status"]);
        let sidecars = list(&spec["initContainers"]).iter().filter(|init| is_sidecar(init)).count();
        let mut summary = Self {
            total: list(&spec["containers"]).len() + sidecars,
            status: or(&status["reason"], text(&status["phase"])).to_owned(),
            ..Self::default()
        };
        let mut sidecars = Self::default();
        let initializing = summary.read_init_containers(pod, &mut sidecars);
        if !initializing || condition_is_true(pod, "Initialized") {
            summary.restarts = sidecars.restarts;
            summary.last_end = sidecars.last_end;
            summary.read_containers(pod);
        }
        if is_being_deleted(pod) && !is_terminal(pod) {
            summary.status = "Terminating".to_owned();
        }
        summary
    }

    /// Counts the init containers. Returns true if any of them still keeps the pod from starting.
    fn read_init_containers(&mut self, pod: &Value, sidecars: &mut Self) -> bool {
        let specs = list(&pod["spec"]["initContainers"]);
        for (index, container) in list(&pod["status"]["initContainerStatuses"]).iter().enumerate() {
            let spec = specs.iter().find(|spec| spec["name"] == container["name"]);
            let is_sidecar = spec.is_some_and(is_sidecar);
            self.count_restarts(container);
            if is_sidecar {
                sidecars.count_restarts(container);
            }
            let state = &container["state"];
            let waiting = text(&state["waiting"]["reason"]);
            if state["terminated"].is_object() && number(&state["terminated"]["exitCode"]) == 0 {
                continue;
            }
            if is_sidecar && container["started"] == true {
                self.ready += usize::from(container["ready"] == true);
                continue;
            }
            self.status = if state["terminated"].is_object() {
                format!("Init:{}", end_of(&state["terminated"]))
            } else if !matches!(waiting, "" | "PodInitializing") {
                format!("Init:{waiting}")
            } else {
                format!("Init:{index}/{}", specs.len())
            };
            return true;
        }
        false
    }

    fn read_containers(&mut self, pod: &Value) {
        let mut has_running = false;
        let mut error = None;
        for container in list(&pod["status"]["containerStatuses"]).iter().rev() {
            self.count_restarts(container);
            let state = &container["state"];
            let waiting = text(&state["waiting"]["reason"]);
            if !waiting.is_empty() {
                self.status = waiting.to_owned();
            } else if state["terminated"].is_object() {
                self.status = end_of(&state["terminated"]);
                if number(&state["terminated"]["exitCode"]) != 0 {
                    error = Some(self.status.clone());
                }
            } else if container["ready"] == true && state["running"].is_object() {
                has_running = true;
                self.ready += 1;
            }
        }
        // Some containers have completed, but others may still be running.
        if self.status == "Completed" {
            if has_running && condition_is_true(pod, "Ready") {
                self.status = "Running".to_owned();
            } else if let Some(error) = error {
                self.status = error;
            } else if has_running {
                self.status = "NotReady".to_owned();
            }
        }
    }

    fn count_restarts(&mut self, container: &Value) {
        self.restarts += number(&container["restartCount"]);
        let ended = text(&container["lastState"]["terminated"]["finishedAt"]).parse().ok();
        self.last_end = self.last_end.max(ended);
    }

    fn restarts(&self, now: Timestamp) -> String {
        match self.last_end {
            Some(end) if self.restarts != 0 => {
                format!("{} ({} ago)", self.restarts, age::since(&json!(end.to_string()), now))
            }
            _ => self.restarts.to_string(),
        }
    }
}

fn is_sidecar(init_container: &Value) -> bool {
    init_container["restartPolicy"] == "Always"
}

/// Describes in one word how a container terminated.
fn end_of(terminated: &Value) -> String {
    match (text(&terminated["reason"]), number(&terminated["signal"])) {
        ("", 0) => format!("ExitCode:{}", number(&terminated["exitCode"])),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(spec: Value, status: Value, deleted: bool) -> String {
        let mut pod = json!({"metadata": {"name": "p"}, "spec": spec, "status": status});
        if deleted {
            pod["metadata"]["deletionTimestamp"] = json!("2026-11-21T00:00:00Z");
        }
        let row = row(&pod, "2026-11-21T00:01:00Z".parse().unwrap());
        row[1..4].iter().map(text).collect::<Vec<_>>().join(" ")
    }

    fn one(state: Value, ready: bool) -> (Value, Value) {
        let spec = json!({"containers": [{"name": "app"}]});
        let container = json!({"name": "app", "ready": ready, "restartCount": 0, "state": state});
        (spec, json!({"phase": "Running", "containerStatuses": [container]}))
    }

    #[test]
    fn pod_status_is_one_word() {
        let (spec, status) = one(json!({"running": {}}), true);
        assert_eq!(shown(spec.clone(), status.clone(), false), "1/1 Running 0");
        assert_eq!(shown(spec.clone(), status, true), "1/1 Terminating 0");
        assert_eq!(shown(spec, json!({"phase": "Pending"}), false), "0/1 Pending 0");
        let (spec, status) = one(json!({"waiting": {"reason": "CrashLoopBackOff"}}), false);
        assert_eq!(shown(spec, status, false), "0/1 CrashLoopBackOff 0");
        let (spec, mut status) = one(json!({"terminated": {"exitCode": 0, "reason": "Completed"}}), false);
        status["phase"] = json!("Succeeded");
        assert_eq!(shown(spec.clone(), status.clone(), true), "0/1 Completed 0");
        let (spec, status) = one(json!({"terminated": {"exitCode": 137, "signal": 9}}), false);
        assert_eq!(shown(spec, status, false), "0/1 Signal:9 0");
    }

    #[test]
    fn init_status_takes_precedence() {
        let spec = json!({
            "containers": [{"name": "app"}],
            "initContainers": [{"name": "a"}, {"name": "b", "restartPolicy": "Always"}],
        });
        let waiting = json!({"name": "app", "state": {"waiting": {"reason": "PodInitializing"}}});
        let with = |a: Value, b: Value, app: &Value| {
            let inits = [json!({"name": "a", "state": a}), b];
            shown(
                spec.clone(),
                json!({"phase": "Pending", "initContainerStatuses": inits, "containerStatuses": [app]}),
                false,
            )
        };
        let idle = json!({"name": "b", "state": {"waiting": {"reason": "PodInitializing"}}});
        assert_eq!(with(json!({"running": {}}), idle.clone(), &waiting), "0/2 Init:0/2 0");
        let failed = json!({"terminated": {"exitCode": 1, "reason": "Error"}});
        assert_eq!(with(failed, idle.clone(), &waiting), "0/2 Init:Error 0");
        let done = json!({"terminated": {"exitCode": 0}});
        assert_eq!(with(done.clone(), idle, &waiting), "0/2 Init:1/2 0");
        let sidecar = json!({"name": "b", "started": true, "ready": true, "state": {"running": {}}});
        let app = json!({"name": "app", "ready": true, "state": {"running": {}}});
        assert_eq!(with(done, sidecar, &app), "2/2 Pending 0");
    }

    #[test]
    fn restart_count_shows_age_of_last_restart() {
        let (spec, mut status) = one(json!({"running": {}}), true);
        status["containerStatuses"][0]["restartCount"] = json!(3);
        status["containerStatuses"][0]["lastState"] =
            json!({"terminated": {"finishedAt": "2026-11-21T00:00:55Z"}});
        assert_eq!(shown(spec, status, false), "1/1 Running 3 (5s ago)");
    }

    #[test]
    fn partly_completed_pod_status_shows_readiness() {
        let done = json!({"name": "a", "ready": false, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}});
        let up = json!({"name": "b", "ready": true, "state": {"running": {}}});
        let spec = json!({"containers": [{"name": "a"}, {"name": "b"}]});
        let mut status = json!({"phase": "Running", "containerStatuses": [done, up]});
        assert_eq!(shown(spec.clone(), status.clone(), false), "1/2 NotReady 0");
        status["conditions"] = json!([{"type": "Ready", "status": "True"}]);
        assert_eq!(shown(spec, status, false), "1/2 Running 0");
    }
}
