//! Pods read from lists and watches, with only the fields that are used here.
//!
//! A namespace may have tens of thousands of pods. Most of each pod's text is its environment, volumes, annotations and
//! `managedFields`, which take five times as much memory once parsed.

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{Metadata, NamespaceResourceScope};
use kube::core::ObjectList;
use serde::Deserialize;

use super::Listed;

/// Pod with only the fields that `sidecar::observed` and the coordinator read.
#[derive(Clone, Debug, Deserialize)]
#[serde(from = "Pod")]
pub struct ListedPod(pub Pod);

/// Pod with only the fields that decide whether and how it may be terminated, because thousands are held at a time.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "Pod")]
pub struct Candidate {
    /// Metadata without annotations and `managedFields`.
    pub metadata: ObjectMeta,
    /// Node that the pod is bound to.
    pub node: Option<String>,
    /// Names of the containers, without sidecars.
    pub containers: Vec<String>,
    /// True if the Ready condition is True and the pod is not being deleted.
    pub is_ready: bool,
    /// True if all containers have ended for good.
    pub is_over: bool,
}

impl From<Pod> for ListedPod {
    fn from(read: Pod) -> Self {
        let containers = |all: Vec<Container>| all.into_iter().map(reduce_container).collect();
        let statuses = |all: Vec<ContainerStatus>| all.into_iter().map(reduce_status).collect();
        let spec = read.spec.map(|spec| PodSpec {
            node_name: spec.node_name,
            termination_grace_period_seconds: spec.termination_grace_period_seconds,
            init_containers: spec.init_containers.map(containers),
            containers: containers(spec.containers),
            ..PodSpec::default()
        });
        let status = read.status.map(|status| PodStatus {
            phase: status.phase,
            pod_ip: status.pod_ip,
            reason: status.reason,
            conditions: status.conditions,
            init_container_statuses: status.init_container_statuses.map(statuses),
            container_statuses: status.container_statuses.map(statuses),
            ..PodStatus::default()
        });
        Self(Pod { metadata: reduce_metadata(read.metadata), spec, status })
    }
}

impl From<Pod> for Candidate {
    fn from(read: Pod) -> Self {
        let PodStatus { conditions, phase, .. } = read.status.unwrap_or_default();
        let is_over = phase.is_some_and(|phase| phase == "Succeeded" || phase == "Failed");
        let conditions = conditions.unwrap_or_default();
        let is_ready = conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
            && read.metadata.deletion_timestamp.is_none();
        let PodSpec { node_name: node, containers, .. } = read.spec.unwrap_or_default();
        let containers = containers.into_iter().map(|container| container.name).collect();
        Self { metadata: reduce_metadata(read.metadata), node, containers, is_ready, is_over }
    }
}

fn reduce_metadata(read: ObjectMeta) -> ObjectMeta {
    ObjectMeta { annotations: None, managed_fields: None, ..read }
}

fn reduce_container(read: Container) -> Container {
    Container {
        name: read.name,
        restart_policy: read.restart_policy,
        lifecycle: read.lifecycle,
        ports: read.ports,
        readiness_probe: read.readiness_probe,
        ..Container::default()
    }
}

fn reduce_status(read: ContainerStatus) -> ContainerStatus {
    ContainerStatus {
        name: read.name,
        restart_count: read.restart_count,
        state: read.state,
        ..Default::default()
    }
}

/// Lets a type be requested as pods, and compiles its list parser in this crate.
macro_rules! asked_for_as_pods {
    ($type:ty, $($metadata:tt).+) => {
        impl k8s_openapi::Resource for $type {
            const API_VERSION: &'static str = Pod::API_VERSION;
            const GROUP: &'static str = Pod::GROUP;
            const KIND: &'static str = Pod::KIND;
            const VERSION: &'static str = Pod::VERSION;
            const URL_PATH_SEGMENT: &'static str = Pod::URL_PATH_SEGMENT;
            type Scope = NamespaceResourceScope;
        }

        impl Listed for $type {
            fn page(text: &str) -> serde_json::Result<ObjectList<Self>> {
                serde_json::from_str(text)
            }
        }

        impl Metadata for $type {
            type Ty = ObjectMeta;

            fn metadata(&self) -> &ObjectMeta {
                &self.$($metadata).+
            }

            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.$($metadata).+
            }
        }
    };
}

asked_for_as_pods!(ListedPod, 0.metadata);
asked_for_as_pods!(Candidate, metadata);

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use rolldrop_record::event::Change;
    use rolldrop_sidecar::observed::{pod_event, statuses};

    /// Returns a pod with every field that this crate reads, and more.
    fn whole() -> Value {
        let reference = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-1", "uid": "r", "controller": true});
        json!({
            "metadata": {"name": "a", "namespace": "shop", "uid": "u", "resourceVersion": "9",
                "labels": {"app": "web"}, "annotations": {"x": "y"}, "ownerReferences": [reference],
                "creationTimestamp": "2026-01-01T00:00:02Z", "deletionTimestamp": "2026-01-01T00:01:02Z",
                "deletionGracePeriodSeconds": 30,
                "managedFields": [{"manager": "kubelet", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}}}]},
            "spec": {"nodeName": "n1", "terminationGracePeriodSeconds": 45, "volumes": [{"name": "v"}],
                "initContainers": [{"name": "mesh", "restartPolicy": "Always", "env": [{"name": "A", "value": "b"}],
                    "lifecycle": {"preStop": {"exec": {"command": ["x"]}}}}],
                "containers": [{"name": "app", "image": "i", "ports": [{"name": "http", "containerPort": 80}],
                    "lifecycle": {"preStop": {"sleep": {"seconds": 5}}}, "readinessProbe": {"httpGet": {"port": 80}}}]},
            "status": {"phase": "Running", "podIP": "10.0.0.1", "reason": "Evicted",
                "conditions": [{"type": "Ready", "status": "True"},
                    {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "m"}],
                "initContainerStatuses": [{"name": "mesh", "image": "", "imageID": "", "ready": true,
                    "restartCount": 1, "state": {"running": {}}}],
                "containerStatuses": [{"name": "app", "image": "", "imageID": "", "ready": false, "restartCount": 3,
                    "state": {"terminated": {"exitCode": 1, "reason": "Error", "message": "why"}}}]},
        })
    }

    #[test]
    fn listed_pod_keeps_all_recorded_fields() {
        let pod: Pod = serde_json::from_value(whole()).unwrap();
        let ListedPod(listed) = serde_json::from_value(whole()).unwrap();
        let (expected, seen) = (pod_event(Change::Listed, &pod), pod_event(Change::Listed, &listed));
        assert_eq!(seen, expected);
        assert_eq!((expected.containers.len(), expected.grace_s, expected.ready), (2, 45, true));
        let ports = |pod: &Pod| pod.spec.as_ref().unwrap().containers[0].ports.clone();
        assert_eq!(ports(&listed), ports(&pod));
        assert_eq!(statuses(&listed).count(), 2);
        assert!(listed.metadata.managed_fields.is_none() && listed.metadata.annotations.is_none());
        assert!(listed.spec.unwrap().volumes.is_none());
    }

    #[test]
    fn exec_probe_does_not_prove_listener() {
        for (probe, connects, notices_s) in [
            (json!({"httpGet": {"port": 80}}), true, Some(31)),
            (json!({"httpGet": {"port": "http"}}), true, Some(31)),
            (json!({"tcpSocket": {"port": 80}, "periodSeconds": 1, "failureThreshold": 2}), true, Some(3)),
            // The app may be listening on that port only.
            (json!({"httpGet": {"port": 81}}), true, None),
            (json!({"grpc": {"port": 81}}), true, None),
            (json!({"exec": {"command": ["true"]}}), false, None),
        ] {
            let mut object = whole();
            object["spec"]["containers"][0]["readinessProbe"] = probe;
            let ListedPod(listed) = serde_json::from_value(object.clone()).unwrap();
            let app = pod_event(Change::Listed, &listed).containers.pop().unwrap();
            assert_eq!((app.name.as_str(), app.readiness_probe), ("app", Some(connects)));
            assert_eq!(app.readiness_notices_s, notices_s);
            let pod: Pod = serde_json::from_value(object).unwrap();
            assert_eq!(pod_event(Change::Listed, &pod), pod_event(Change::Listed, &listed));
        }
    }

    #[test]
    fn pods_parse_despite_missing_fields() {
        for bare in
            [json!({}), json!({"metadata": {"labels": null}, "spec": {"containers": null}, "status": null})]
        {
            let ListedPod(listed) = serde_json::from_value(bare.clone()).unwrap();
            assert_eq!(pod_event(Change::Listed, &listed).grace_s, 30);
            let candidate: Candidate = serde_json::from_value(bare).unwrap();
            assert!(!candidate.is_ready);
        }
    }

    #[test]
    fn terminating_candidate_is_not_ready() {
        let mut object = whole();
        let candidate = |object: &Value| serde_json::from_value::<Candidate>(object.clone()).unwrap();
        let leaving = candidate(&object);
        assert!(!leaving.is_ready);
        assert_eq!((leaving.node.as_deref(), leaving.containers), (Some("n1"), vec!["app".to_owned()]));
        object["metadata"]["deletionTimestamp"] = Value::Null;
        assert!(candidate(&object).is_ready);
    }
}
