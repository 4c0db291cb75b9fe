//! Manifest for the load's Job.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::plan::{COMPONENT, COMPONENT_LABEL, OS_LABEL};
use crate::undo::RUN_LABEL;
use rolldrop_record::Evidence;
use rolldrop_record::wire::AdminToken;

/// Port on which a worker listens in its pod.
pub(crate) const LOAD_PORT: u16 = 9901;
/// Key of the token in the Secret.
pub(super) const TOKEN_KEY: &str = "token";
/// Environment variable with the token.
const TOKEN_VARIABLE: &str = "ROLLDROP_LOAD_TOKEN";
/// Time after which Kubernetes removes a finished Job that nothing else has removed.
const TTL_SECONDS: u64 = 600;
/// Time that a worker has to close its files after SIGTERM.
const GRACE_SECONDS: u64 = 30;

/// Settings for the Job.
#[derive(Clone, Debug)]
pub(crate) struct LoadJob<'a> {
    /// Number of workers.
    pub workers: usize,
    /// Image with this program.
    pub image: &'a str,
    /// Resource requests of a worker, such as `cpu`; the memory request is also the limit.
    pub resources: &'a BTreeMap<String, String>,
    /// Token that the workers check.
    pub token: &'a AdminToken,
    /// Address that the workers connect to; `None` if the run reaches them through the API server.
    pub collector: Option<&'a str>,
    /// Time after which Kubernetes terminates the Job in any case.
    pub lifetime: Duration,
    /// Evidence that shows which pods connections are routed to; `None` if workers need none. For conntrack, workers
    /// ask their node's kernel, which responds only in the host network.
    pub evidence: Option<Evidence>,
}

/// Returns the Job with this name; its Secret has the same name.
pub(super) fn job(name: &str, run: &str, job: &LoadJob<'_>) -> Value {
    let labels = json!({COMPONENT_LABEL: COMPONENT, RUN_LABEL: run});
    // A CPU limit would delay requests.
    let memory = job.resources.iter().filter(|(resource, _)| *resource == "memory");
    let limits: BTreeMap<_, _> = memory.collect();
    let listen = format!("$(POD_IP):{LOAD_PORT}");
    let mut args = vec!["load-worker", "--listen", &listen, "--out", "/rows"];
    args.extend(job.collector.iter().flat_map(|collector| ["--visit", collector, "--name", "$(POD_NAME)"]));
    let container = json!({
        "name": "load-worker",
        "image": job.image,
        // The chart sets the same policy. A worker with another version is refused.
        "imagePullPolicy": "IfNotPresent",
        "args": args,
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": TOKEN_VARIABLE, "valueFrom": {"secretKeyRef": {"name": name, "key": TOKEN_KEY}}},
        ],
        "ports": [{"name": "rolldrop-load", "containerPort": LOAD_PORT}],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": LOAD_PORT}, "periodSeconds": 1},
        "resources": {"requests": job.resources, "limits": limits},
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": match job.evidence {
                None => json!({"drop": ["ALL"]}),
                Some(Evidence::Conntrack) => json!({"drop": ["ALL"], "add": ["NET_ADMIN"]}),
            },
        },
        // Makes the worker's last line of output the reason for its termination.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "rows", "mountPath": "/rows"}],
    });
    let mut manifest = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "labels": {COMPONENT_LABEL: COMPONENT}},
        "spec": {
            "completionMode": "Indexed",
            "completions": job.workers,
            "parallelism": job.workers,
            // The failure of one worker must not terminate the others.
            "backoffLimit": i32::MAX,
            "activeDeadlineSeconds": job.lifetime.as_secs().max(1),
            "ttlSecondsAfterFinished": TTL_SECONDS,
            "template": {
                "metadata": {
                    "labels": labels,
                    "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
                },
                "spec": {
                    "restartPolicy": "Never",
                    "nodeSelector": {(OS_LABEL): "linux"},
                    "automountServiceAccountToken": false,
                    "enableServiceLinks": false,
                    "terminationGracePeriodSeconds": GRACE_SECONDS,
                    "securityContext": {
                        "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "topologySpreadConstraints": [{
                        "maxSkew": 1,
                        "topologyKey": "kubernetes.io/hostname",
                        "whenUnsatisfiable": "ScheduleAnyway",
                        "labelSelector": {"matchLabels": labels},
                    }],
                    "containers": [container],
                    "volumes": [{"name": "rows", "emptyDir": {}}],
                },
            },
        },
    });
    if let Some(Evidence::Conntrack) = job.evidence {
        enter_node_network(&mut manifest["spec"]["template"]["spec"]);
    }
    manifest
}

fn enter_node_network(pod: &mut Value) {
    pod["hostNetwork"] = true.into();
    // Otherwise, the pod would use the node's DNS configuration.
    pod["dnsPolicy"] = "ClusterFirstWithHostNet".into();
    // An added capability takes effect only for root.
    pod["securityContext"]["runAsNonRoot"] = false.into();
    for id in ["runAsUser", "runAsGroup", "fsGroup"] {
        pod["securityContext"][id] = 0.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_conntrack_makes_workers_privileged() {
        let (resources, token) = (BTreeMap::new(), "secret".parse().unwrap());
        let made = |evidence| {
            let (image, lifetime) = ("rolldrop", Duration::from_secs(1));
            let load = LoadJob {
                workers: 2,
                image,
                resources: &resources,
                token: &token,
                collector: None,
                lifetime,
                evidence,
            };
            let mut pod = job("load", "run", &load)["spec"]["template"]["spec"].take();
            let container = pod["containers"][0]["securityContext"].take();
            (pod, container)
        };
        let (pod, container) = made(None);
        assert_eq!(
            (&pod["hostNetwork"], &pod["securityContext"]["runAsUser"]),
            (&Value::Null, &json!(65532))
        );
        assert_eq!(container["capabilities"], json!({"drop": ["ALL"]}));
        let (pod, container) = made(Some(Evidence::Conntrack));
        assert_eq!((&pod["hostNetwork"], &pod["securityContext"]["runAsUser"]), (&json!(true), &json!(0)));
        assert_eq!(pod["dnsPolicy"], "ClusterFirstWithHostNet");
        assert_eq!(container["capabilities"], json!({"drop": ["ALL"], "add": ["NET_ADMIN"]}));
        assert_eq!(container["allowPrivilegeEscalation"], json!(false));
    }
}
