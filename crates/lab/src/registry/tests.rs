use super::*;

pub(super) fn registry() -> Registry {
    let registry =
        Registry::new(Clock::start(), AddressBlock::claim(rand::random_range(0..128)).unwrap(), "".into());
    registry.create(Resource::Namespaces, "", json!({"metadata": {"name": "default"}})).unwrap();
    registry
}

fn pod(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "app", "image": "rolldrop"}]},
    })
}

/// Creates a registry with the pod `a`, which is bound to a node and therefore gets a grace period.
fn registry_with_pod() -> Registry {
    let registry = registry();
    registry.create(Resource::Pods, "default", pod("a")).unwrap();
    registry.bind("default", "a", "node-1").unwrap();
    registry
}

fn seconds(time: &Value) -> i64 {
    time.as_str().unwrap().parse::<Timestamp>().unwrap().as_second()
}

fn delete(registry: &Registry, grace: Option<i64>) -> Result<Deleted, Status> {
    let options = DeleteOptions { grace_period_seconds: grace, ..DeleteOptions::default() };
    registry.delete(Resource::Pods, "default", "a", &options)
}

#[test]
fn created_pod_gets_kubernetes_defaults() {
    let registry = registry();
    let pod = registry.create(Resource::Pods, "default", pod("a")).unwrap();
    assert_eq!(pod["metadata"]["generation"], 1);
    assert_eq!(pod["metadata"]["uid"].as_str().unwrap().len(), 36);
    assert_eq!(pod["spec"]["terminationGracePeriodSeconds"], 30);
    assert_eq!(pod["spec"]["restartPolicy"], "Always");
    assert_eq!(pod["status"]["phase"], "Pending");
    assert_eq!(pod["kind"], "Pod");
}

#[test]
fn create_generates_and_validates_names() {
    let registry = registry();
    let mut unnamed = pod("");
    unnamed["metadata"]["generateName"] = json!("web-");
    let name = registry.create(Resource::Pods, "default", unnamed).unwrap()["metadata"]["name"].clone();
    assert!(name.as_str().unwrap().strip_prefix("web-").is_some_and(|suffix| suffix.len() == 5), "{name}");
    registry.create(Resource::Pods, "default", pod("a")).unwrap();
    let taken = registry.create(Resource::Pods, "default", pod("a")).unwrap_err();
    assert_eq!((taken.code(), taken.reason()), (409, "AlreadyExists"));
    assert_eq!(taken.to_string(), "pods \"a\" already exists");
    assert_eq!(registry.create(Resource::Pods, "default", pod("A_b")).unwrap_err().code(), 422);
    assert_eq!(registry.create(Resource::Pods, "nowhere", pod("a")).unwrap_err().code(), 404);
    assert_eq!(
        registry.create(Resource::Pods, "default", json!({"spec": {"containers": 1}})).unwrap_err().code(),
        400
    );
}

#[test]
fn binding_keeps_pod_conditions_from_others() {
    let registry = registry();
    registry.create(Resource::Pods, "default", pod("a")).unwrap();
    let condition = |kind: &str, status: &str| json!({"type": kind, "status": status});
    let set = json!([condition("PodScheduled", "False"), condition("example.org/gate", "True")]);
    let modify = |pod: &mut Value| pod["status"]["conditions"] = set;
    registry.modify(Resource::Pods, "default", "a", ObjectPart::Status, modify).unwrap();
    let bound = registry.bind("default", "a", "node-1").unwrap();
    for kind in ["PodScheduled", "example.org/gate"] {
        assert_eq!(conditions::of(&bound, kind)["status"], "True", "{kind}");
    }
}

#[test]
fn deletion_timestamp_includes_grace_period() {
    let registry = registry_with_pod();
    let before = registry.now_seconds();
    let deleted = delete(&registry, None).unwrap();
    let after = registry.now_seconds();
    let pod = deleted.object();
    assert!(matches!(deleted, Deleted::Terminating(_)));
    assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(pod["metadata"]["generation"], 2);
    let ends_at = seconds(&pod["metadata"]["deletionTimestamp"]);
    assert!((before + 30..=after + 30).contains(&ends_at));
}

#[test]
fn later_deletes_only_shorten_grace_period() {
    let registry = registry_with_pod();
    let first = delete(&registry, Some(100)).unwrap();
    let first_end = seconds(&first.object()["metadata"]["deletionTimestamp"]);
    assert_eq!(first.object()["metadata"]["deletionGracePeriodSeconds"], 100);

    let longer = delete(&registry, Some(200)).unwrap();
    assert_eq!(longer.object(), first.object());
    let default = delete(&registry, None).unwrap();
    assert_eq!(default.object(), first.object());

    let shorter = delete(&registry, Some(40)).unwrap();
    assert_eq!(shorter.object()["metadata"]["deletionGracePeriodSeconds"], 40);
    assert_eq!(seconds(&shorter.object()["metadata"]["deletionTimestamp"]), first_end - 60);
    assert_eq!(shorter.object()["metadata"]["generation"], 2, "only the first delete counts");
}

#[tokio::test]
async fn zero_grace_period_emits_modified_then_deleted() {
    let registry = registry_with_pod();
    let version = registry.list(Resource::Pods, None, &ObjectSelection::all()).version;
    let mut watch =
        registry.watch(Resource::Pods, None, ObjectSelection::all(), WatchFrom::Version(version)).unwrap();
    assert!(matches!(delete(&registry, Some(0)).unwrap(), Deleted::Removed(_)));
    let marked = watch.next().await.unwrap();
    assert_eq!(marked.event_type, WatchEventType::Modified);
    assert_eq!(marked.object["metadata"]["deletionGracePeriodSeconds"], 0);
    assert_eq!(watch.next().await.unwrap().event_type, WatchEventType::Deleted);
    assert_eq!(delete(&registry, None).unwrap_err().code(), 404);
}

#[test]
fn unscheduled_or_finished_pod_is_deleted_immediately() {
    let registry = registry();
    registry.create(Resource::Pods, "default", pod("a")).unwrap();
    assert!(matches!(delete(&registry, None).unwrap(), Deleted::Removed(_)));

    let registry = registry_with_pod();
    registry
        .modify(Resource::Pods, "default", "a", ObjectPart::Status, |pod| {
            pod["status"]["phase"] = json!("Succeeded")
        })
        .unwrap();
    assert!(matches!(delete(&registry, None).unwrap(), Deleted::Removed(_)));
}

#[test]
fn negative_grace_period_means_one_second() {
    let registry = registry_with_pod();
    let deleted = delete(&registry, Some(-5)).unwrap();
    assert_eq!(deleted.object()["metadata"]["deletionGracePeriodSeconds"], 1);
}

#[test]
fn uid_precondition_protects_recreated_pod() {
    let registry = registry_with_pod();
    let refused =
        registry.delete(Resource::Pods, "default", "a", &DeleteOptions::new(0, "another")).unwrap_err();
    assert_eq!((refused.code(), refused.reason()), (409, "Conflict"));
    let uid =
        registry.get(Resource::Pods, "default", "a").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    registry.delete(Resource::Pods, "default", "a", &DeleteOptions::new(0, &uid)).unwrap();
}

fn deployment() -> Value {
    json!({
        "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "app", "image": "rolldrop"}]},
            },
        },
    })
}

#[test]
fn stale_write_returns_conflict() {
    let registry = registry();
    let first = registry.create(Resource::Deployments, "default", deployment()).unwrap();
    let mut changed = (*first).clone();
    changed["spec"]["replicas"] = json!(3);
    registry.update(Resource::Deployments, "default", "web", changed.clone()).unwrap();
    let stale = registry.update(Resource::Deployments, "default", "web", changed).unwrap_err();
    assert_eq!((stale.code(), stale.reason()), (409, "Conflict"));
    let mut another = (*first).clone();
    another["metadata"]["uid"] = json!("another");
    assert_eq!(registry.update(Resource::Deployments, "default", "web", another).unwrap_err().code(), 409);
}

#[test]
fn generation_counts_only_spec_changes() {
    let registry = registry();
    registry.create(Resource::Deployments, "default", deployment()).unwrap();
    let generation = |object: Arc<Value>| object["metadata"]["generation"].as_i64().unwrap();
    let modify = |part, change: fn(&mut Value)| {
        generation(registry.modify(Resource::Deployments, "default", "web", part, change).unwrap())
    };
    assert_eq!(modify(ObjectPart::Main, |object| object["metadata"]["labels"] = json!({"a": "b"})), 1);
    assert_eq!(modify(ObjectPart::Status, |object| object["status"] = json!({"replicas": 1})), 1);
    assert_eq!(modify(ObjectPart::Main, |object| object["spec"]["replicas"] = json!(2)), 2);
    let same = registry.get(Resource::Deployments, "default", "web").unwrap();
    let unchanged = registry.update(Resource::Deployments, "default", "web", (*same).clone()).unwrap();
    assert_eq!(same, unchanged, "a write that changes nothing creates no version");
}

#[test]
fn spec_and_status_are_updated_separately() {
    let registry = registry();
    registry.create(Resource::Deployments, "default", deployment()).unwrap();
    let change = |object: &mut Value| {
        object["spec"]["replicas"] = json!(7);
        object["status"]["replicas"] = json!(7);
    };
    let after = registry.modify(Resource::Deployments, "default", "web", ObjectPart::Status, change).unwrap();
    assert_eq!((&after["spec"]["replicas"], &after["status"]["replicas"]), (&json!(1), &json!(7)));
    let after = registry
        .modify(Resource::Deployments, "default", "web", ObjectPart::Main, |object| {
            object["spec"]["replicas"] = json!(2);
            object["status"]["replicas"] = json!(0);
        })
        .unwrap();
    assert_eq!((&after["spec"]["replicas"], &after["status"]["replicas"]), (&json!(2), &json!(7)));
}

#[test]
fn running_pod_spec_is_immutable() {
    let registry = registry_with_pod();
    let refused = registry.modify(Resource::Pods, "default", "a", ObjectPart::Main, |pod| {
        pod["spec"]["nodeName"] = json!("node-2");
    });
    assert_eq!(refused.unwrap_err().code(), 422);
}

#[test]
fn apply_creates_and_then_merges_object() {
    let registry = registry();
    let patch = ObjectPatch { kind: PatchKind::Apply, body: deployment() };
    let options = WriteEffect::Stored;
    let apply = || {
        registry
            .patch(Resource::Deployments, "default", "web", ObjectPart::Main, &patch, options, |_| Ok(()))
            .unwrap()
    };
    let created = apply();
    assert_eq!(created["metadata"]["generation"], 1);
    assert_eq!(apply(), created);
    let merge = ObjectPatch { kind: PatchKind::Merge, body: json!({"spec": {"replicas": 3}}) };
    assert!(
        registry
            .patch(Resource::Deployments, "default", "api", ObjectPart::Main, &merge, options, |_| Ok(()))
            .is_err()
    );
    let patched = registry
        .patch(Resource::Deployments, "default", "web", ObjectPart::Main, &merge, options, |_| Ok(()))
        .unwrap();
    assert_eq!(patched["metadata"]["generation"], 2);
}

#[test]
fn services_get_distinct_cluster_ips() {
    let registry = registry();
    let service = |name: &str, ip: &str| json!({"metadata": {"name": name}, "spec": {"clusterIP": ip, "ports": [{"port": 80}], "selector": {"app": "web"}}});
    let a = registry.create(Resource::Services, "default", service("a", "")).unwrap();
    let b = registry.create(Resource::Services, "default", service("b", "")).unwrap();
    assert_ne!(a["spec"]["clusterIP"], b["spec"]["clusterIP"]);
    assert_eq!(a["spec"]["ports"][0]["targetPort"], 80);
    let taken = a["spec"]["clusterIP"].as_str().unwrap();
    assert_eq!(registry.create(Resource::Services, "default", service("c", taken)).unwrap_err().code(), 422);
    assert_eq!(
        registry.create(Resource::Services, "default", service("c", "10.0.0.1")).unwrap_err().code(),
        422
    );
    let headless = registry.create(Resource::Services, "default", service("c", "None")).unwrap();
    assert_eq!(headless["spec"]["clusterIP"], "None");
}

#[tokio::test]
async fn filtered_watch_reports_relabelling_as_add_or_delete() {
    let registry = registry();
    let selection = ObjectSelection::parse(Resource::Pods, "app=web", "").unwrap();
    registry.create(Resource::Pods, "default", pod("a")).unwrap();
    let mut watch = registry.watch(Resource::Pods, Some("default"), selection, WatchFrom::Existing).unwrap();
    let relabel = |label: &'static str| {
        registry
            .modify(Resource::Pods, "default", "a", ObjectPart::Main, |pod| {
                pod["metadata"]["labels"]["app"] = json!(label)
            })
            .unwrap();
    };
    relabel("api");
    relabel("db");
    relabel("web");
    let mut seen = Vec::new();
    for _ in 0..3 {
        let event = watch.next().await.unwrap();
        seen.push((event.event_type, event.object["metadata"]["labels"]["app"].as_str().unwrap().to_owned()));
    }
    let web = || "web".to_owned();
    assert_eq!(
        seen,
        [(WatchEventType::Added, web()), (WatchEventType::Deleted, web()), (WatchEventType::Added, web())]
    );
    assert_eq!(watch.caught_up(), Some(registry.list(Resource::Pods, None, &ObjectSelection::all()).version));
}

#[test]
fn repeated_event_is_counted() {
    let registry = registry_with_pod();
    let pod = registry.get(Resource::Pods, "default", "a").unwrap();
    for _ in 0..3 {
        registry.record_event(&pod, EventType::Warning, "Unhealthy", "probe failed", "kubelet");
    }
    let events = registry.list(Resource::Events, Some("default"), &ObjectSelection::all()).items;
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["count"], 3);
    assert_eq!(events[0]["involvedObject"]["name"], "a");
    // The name contains the time in nanoseconds.
    let time = events[0]["metadata"]["name"].as_str().unwrap().strip_prefix("a.").unwrap();
    let seconds = i64::from_str_radix(time, 16).unwrap() / 1_000_000_000;
    assert!((registry.now_seconds() - seconds).abs() < 60);
    // After an event is deleted, the count restarts.
    let name = events[0]["metadata"]["name"].as_str().unwrap();
    registry.delete(Resource::Events, "default", name, &DeleteOptions::default()).unwrap();
    registry.record_event(&pod, EventType::Warning, "Unhealthy", "probe failed", "kubelet");
    let events = registry.list(Resource::Events, Some("default"), &ObjectSelection::all()).items;
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["count"], 1);
}

mod defaults;
mod validation;
mod writes;

pub(super) use defaults::recorded;
