//! Ownership of fields against what a real API server has recorded, and the rules of applying.

use super::*;
use crate::cluster::embedded::conditions;
use crate::cluster::embedded::registry::tests::{recorded, registry};
use crate::cluster::embedded::registry::{Part, Patch, PatchKind, Registry, WriteOptions};

fn fields_of(object: &Value, manager: &str) -> Value {
    fields_through(object, manager, None)
}

/// What a manager owns by writes of a subresource, or by whichever came first.
fn fields_through(object: &Value, manager: &str, subresource: Option<&str>) -> Value {
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    let is_wanted = |entry: &Value| {
        subresource.is_none_or(|wanted| entry["subresource"].as_str().unwrap_or_default() == wanted)
    };
    let entry = entries.iter().find(|entry| entry["manager"] == manager && is_wanted(entry));
    entry.unwrap_or_else(|| panic!("{manager} owns nothing: {entries:#?}"))["fieldsV1"].clone()
}

fn managers(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry["manager"].as_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

fn applied_by_client(object: &Value) -> Value {
    let annotation = object["metadata"]["annotations"][LAST_APPLIED].as_str().unwrap();
    let mut applied: Value = serde_json::from_str(annotation).unwrap();
    applied["metadata"]["annotations"][LAST_APPLIED] = json!(annotation);
    applied
}

#[test]
fn creation_is_recorded_as_a_real_server_records_it() {
    for (resource, file) in [
        (Resource::Deployments, "deployment-get"),
        (Resource::Services, "service-get"),
        (Resource::PodDisruptionBudgets, "pdb-get"),
    ] {
        let golden = recorded(file)["response"].take();
        let options = WriteOptions::of("kubectl-client-side-apply");
        let created =
            registry().create_with(resource, "default", applied_by_client(&golden), &options).unwrap();
        let [own, theirs] = [&*created, &golden].map(|object| fields_of(object, "kubectl-client-side-apply"));
        assert_eq!(own, theirs, "{file}");
    }
}

#[test]
fn status_is_recorded_as_a_real_server_records_it() {
    let golden = recorded("pdb-get")["response"].take();
    let registry = registry();
    let options = WriteOptions::of("kubectl-client-side-apply");
    let budgets = Resource::PodDisruptionBudgets;
    let created = registry.create_with(budgets, "default", applied_by_client(&golden), &options).unwrap();
    let options = WriteOptions { subresource: "status", ..WriteOptions::of("kube-controller-manager") };
    let version = &created["metadata"]["resourceVersion"];
    let object = json!({"metadata": {"resourceVersion": version}, "status": golden["status"]});
    let updated = registry.update_with(budgets, "default", "web", Part::Status, object, &options).unwrap();
    let owned = fields_of(&updated, "kube-controller-manager");
    assert_eq!(owned, fields_of(&golden, "kube-controller-manager"));
}

fn apply(registry: &Registry, manager: &str, force: bool, body: Value) -> Result<Value, Status> {
    let patch = Patch { kind: PatchKind::Apply, body };
    let options = WriteOptions { force, ..WriteOptions::of(manager) };
    let done = registry.patch(Resource::Deployments, "default", "web", Part::Main, &patch, &options);
    done.map(|object| (*object).clone())
}

fn deployment(containers: Value) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": containers}},
        },
    })
}

fn replicas(count: u32) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": count}})
}

fn container(deployment: &Value) -> &Value {
    &deployment["spec"]["template"]["spec"]["containers"][0]
}

#[test]
fn what_an_applier_no_longer_sends_goes_away() {
    let registry = registry();
    let env = json!([{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]);
    let probe = json!({"httpGet": {"port": 80}});
    let full = json!([{"name": "app", "image": "rolldrop", "env": env, "readinessProbe": probe}]);
    let created = apply(&registry, "me", false, deployment(full)).unwrap();
    assert_eq!(container(&created)["readinessProbe"]["timeoutSeconds"], 1);
    let less = json!([{"name": "app", "image": "rolldrop", "env": [{"name": "B", "value": "2"}]}]);
    let changed = apply(&registry, "me", false, deployment(less.clone())).unwrap();
    assert_eq!(container(&changed)["env"], json!([{"name": "B", "value": "2"}]));
    // Its defaults, which nobody owns, go with it.
    assert_eq!(container(&changed).get("readinessProbe"), None);
    assert_eq!(container(&changed)["imagePullPolicy"], "Always", "a default stays");
    assert_eq!(apply(&registry, "me", false, deployment(less)).unwrap(), changed, "nothing changes twice");
}

#[test]
fn two_appliers_conflict_share_and_hand_over() {
    let registry = registry();
    let containers = json!([{"name": "app", "image": "rolldrop"}]);
    apply(&registry, "owner", false, deployment(containers.clone())).unwrap();
    apply(&registry, "scaler", false, replicas(3)).expect("a default is nobody's");
    // The same value may be owned by two.
    let shared = apply(&registry, "second", false, replicas(3)).unwrap();
    assert_eq!(managers(&shared), ["owner", "scaler", "second"]);
    let refused = apply(&registry, "second", false, replicas(4)).unwrap_err();
    assert_eq!((refused.code(), refused.reason()), (409, "Conflict"));
    assert_eq!(refused.to_string(), "Apply failed with 1 conflict: conflict with \"scaler\": .spec.replicas");
    let cause = json!({"reason": "FieldManagerConflict", "message": "conflict with \"scaler\"", "field": ".spec.replicas"});
    assert_eq!(refused.to_json()["details"]["causes"], json!([cause]));
    let forced = apply(&registry, "second", true, replicas(4)).unwrap();
    assert_eq!(forced["spec"]["replicas"], 4);
    assert_eq!(managers(&forced), ["owner", "second"]);
    // What only one owned is gone, and here has a default.
    let bare = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}});
    let left = apply(&registry, "second", false, bare).unwrap();
    assert_eq!(left["spec"]["replicas"], 1);
    assert_eq!(container(&left)["image"], "rolldrop");
}

#[test]
fn a_plain_write_takes_fields_from_an_applier() {
    let registry = registry();
    let mut all = deployment(json!([{"name": "app", "image": "rolldrop"}]));
    all["spec"]["replicas"] = json!(2);
    apply(&registry, "owner", false, all.clone()).unwrap();
    let scale = WriteOptions { subresource: "scale", ..WriteOptions::of("kubectl-scale") };
    let set = |object: &mut Value| {
        object["spec"]["replicas"] = json!(5);
        Ok(())
    };
    registry.modify_with(Resource::Deployments, "default", "web", Part::Main, &scale, set).unwrap();
    let refused = apply(&registry, "owner", false, all.clone()).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "Apply failed with 1 conflict: conflict with \"kubectl-scale\" with subresource \"scale\" using apps/v1: .spec.replicas"
    );
    all["spec"].as_object_mut().unwrap().remove("replicas");
    let given_up = apply(&registry, "owner", false, all).unwrap();
    assert_eq!(given_up["spec"]["replicas"], 5, "it is another's now");
}

/// The first object of a recorded answer.
fn first(file: &str) -> Value {
    let mut response = recorded(file)["response"].take();
    let first = response["items"].get_mut(0).map(Value::take);
    first.unwrap_or(response)
}

#[test]
fn what_components_write_is_recorded_as_on_a_real_cluster() {
    let registry = registry();
    let (manager, kubelet) = ("kube-controller-manager", registry.acting_as("kubelet"));
    for (resource, file, writer) in [
        (Resource::ReplicaSets, "replicaset-list", manager),
        (Resource::Pods, "pod-list", manager),
        (Resource::EndpointSlices, "endpointslice-list", manager),
        (Resource::Endpoints, "endpoints-get", manager),
        (Resource::Events, "event-list", "kubelet"),
    ] {
        let golden = first(file);
        let mut object = golden.clone();
        remove(&mut object["metadata"], "resourceVersion");
        // What admission and the scheduler add to a pod is nobody's.
        for added in ["nodeName", "volumes", "tolerations", "serviceAccountName", "serviceAccount"] {
            remove(&mut object["spec"], added);
        }
        if resource == Resource::Pods {
            for added in ["priority", "preemptionPolicy"] {
                remove(&mut object["spec"], added);
            }
            remove(&mut object["spec"]["containers"][0], "volumeMounts");
        }
        let created = registry.acting_as(writer).create(resource, "default", object).unwrap();
        let [own, theirs] = [&*created, &golden].map(|object| fields_through(object, writer, Some("")));
        assert_eq!(own, theirs, "{file}");

        let name = created["metadata"]["name"].as_str().unwrap();
        let status = |registry: &Registry| {
            let write = |object: &mut Value| {
                let bound_at = conditions::of(object, "PodScheduled")["lastTransitionTime"].clone();
                object["status"] = golden["status"].clone();
                for condition in object["status"]["conditions"].as_array_mut().into_iter().flatten() {
                    if condition["type"] == "PodScheduled" {
                        condition["lastTransitionTime"] = bound_at.clone();
                    }
                }
            };
            registry.modify(resource, "default", name, Part::Status, write).unwrap()
        };
        let (written, writer) = match resource {
            Resource::ReplicaSets => (status(&registry), manager),
            Resource::Pods => {
                registry.bind("default", name, "node1").unwrap();
                (status(&kubelet), "kubelet")
            }
            _ => continue,
        };
        let [own, theirs] = [&*written, &golden].map(|object| fields_through(object, writer, Some("status")));
        assert_eq!(own, theirs, "{file}");
    }
}

#[test]
fn an_object_without_a_record_is_recorded_from_the_first_apply_on() {
    let registry = registry();
    registry
        .create(Resource::Deployments, "default", deployment(json!([{"name": "app", "image": "rolldrop"}])))
        .unwrap();
    let options = WriteOptions::of("kubectl-label");
    let merge = |metadata: Value| {
        let patch = Patch { kind: PatchKind::Merge, body: json!({"metadata": metadata}) };
        registry.patch(Resource::Deployments, "default", "web", Part::Main, &patch, &options).unwrap()
    };
    assert_eq!(managers(&merge(json!({"managedFields": [{}]}))), [""; 0]);
    assert_eq!(managers(&merge(json!({"labels": {"a": "b"}}))), [""; 0]);
    let applied = apply(&registry, "me", true, replicas(2)).unwrap();
    assert_eq!(managers(&applied), [BEFORE_FIRST_APPLY, "me"]);
    assert_eq!(fields_of(&applied, "me"), json!({"f:spec": {"f:replicas": {}}}));
}

#[test]
fn the_record_stays_short() {
    let registry = registry();
    let object = json!({"metadata": {"name": "a"}, "data": {"n": "0"}});
    registry.create_with(Resource::ConfigMaps, "default", object, &WriteOptions::of("creator")).unwrap();
    let mut last = Value::Null;
    for n in 1..30 {
        let patch = Patch { kind: PatchKind::Merge, body: json!({"data": {format!("k{n}"): "v"}}) };
        let options = WriteOptions::of(&format!("manager-{n}"));
        let patched = registry.patch(Resource::ConfigMaps, "default", "a", Part::Main, &patch, &options);
        last = (*patched.unwrap()).clone();
    }
    assert_eq!(managers(&last).len(), MAX_UPDATE_ENTRIES);
    assert!(managers(&last).contains(&ANCIENT.to_owned()));
    let all =
        entries_of(&last).unwrap().iter().fold(Fields::default(), |all, entry| all.union(&entry.fields));
    assert_eq!(all.below["f:data"].below.len(), 30);
}

#[test]
fn an_apply_says_who_it_is_and_brings_no_record() {
    let registry = registry();
    let nameless = apply(&registry, "", false, replicas(1)).unwrap_err();
    assert_eq!(nameless.code(), 422);
    assert!(nameless.to_string().contains("fieldManager: Required value: is required for apply patch"));
    let mut with_record = replicas(1);
    with_record["metadata"]["managedFields"] = json!([]);
    assert_eq!(apply(&registry, "me", false, with_record).unwrap_err().code(), 400);
}
