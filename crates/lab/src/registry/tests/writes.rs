//! Tests for dry runs, finalizers and pagination.

use super::*;
use crate::registry::page::ListPage;

fn config_map(finalizers: Value) -> Value {
    json!({"metadata": {"name": "a", "finalizers": finalizers}, "data": {"n": "1"}})
}

#[test]
fn dry_run_changes_nothing() {
    let registry = registry();
    let version = || registry.list(Resource::Pods, None, &ObjectSelection::all()).version;
    let before = version();
    let created = registry.create_with(Resource::Pods, "default", pod("a"), WriteEffect::DryRun).unwrap();
    assert_eq!(created["spec"]["terminationGracePeriodSeconds"], 30);
    assert_eq!(created["metadata"].get("resourceVersion"), None);
    let bad = json!({"metadata": {"name": "b"}, "spec": {"containers": []}});
    assert_eq!(
        registry.create_with(Resource::Pods, "default", bad, WriteEffect::DryRun).unwrap_err().code(),
        422
    );
    assert_eq!(version(), before);

    registry.create(Resource::Deployments, "default", deployment()).unwrap();
    let taken = registry.create_with(Resource::Deployments, "default", deployment(), WriteEffect::DryRun);
    assert_eq!(taken.unwrap_err().code(), 409);
    let before = version();
    let patch = ObjectPatch { kind: PatchKind::Merge, body: json!({"spec": {"replicas": 9}}) };
    let patched = registry
        .patch(Resource::Deployments, "default", "web", ObjectPart::Main, &patch, WriteEffect::DryRun, |_| {
            Ok(())
        })
        .unwrap();
    assert_eq!((&patched["spec"]["replicas"], &patched["metadata"]["generation"]), (&json!(9), &json!(2)));
    let options = DeleteOptions { dry_run: vec!["All".to_owned()], ..DeleteOptions::default() };
    registry.delete(Resource::Deployments, "default", "web", &options).unwrap();
    assert_eq!(registry.get(Resource::Deployments, "default", "web").unwrap()["spec"]["replicas"], 1);
    let options = DeleteOptions { dry_run: vec!["Some".to_owned()], ..DeleteOptions::default() };
    assert_eq!(registry.delete(Resource::Deployments, "default", "web", &options).unwrap_err().code(), 422);
    assert_eq!(version(), before);
}

#[test]
fn last_finalizer_releases_deleted_object() {
    let registry = registry();
    let maps = Resource::ConfigMaps;
    registry.create(maps, "default", config_map(json!(["example.org/a", "example.org/b"]))).unwrap();
    let delete = || registry.delete(maps, "default", "a", &DeleteOptions::default());
    let Deleted::Terminating(marked) = delete().unwrap() else { panic!("gone") };
    assert!(marked["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(delete().unwrap().object(), &marked, "a second delete changes nothing");
    let keep = |finalizers: Value| {
        registry
            .modify(maps, "default", "a", ObjectPart::Main, |map| map["metadata"]["finalizers"] = finalizers)
    };
    assert!(keep(json!(["example.org/b"])).unwrap()["metadata"]["deletionTimestamp"].is_string());
    assert!(registry.get(maps, "default", "a").is_ok());
    keep(json!([])).unwrap();
    assert_eq!(registry.get(maps, "default", "a").unwrap_err().code(), 404);
    // Removing the finalizers from an object that is not being deleted only changes the object.
    registry.create(maps, "default", config_map(json!(["example.org/a"]))).unwrap();
    keep(json!([])).unwrap();
    assert!(registry.get(maps, "default", "a").is_ok());
}

#[test]
fn expired_pod_waits_for_finalizers() {
    let registry = registry();
    let mut held = pod("a");
    held["metadata"]["finalizers"] = json!(["example.org/a"]);
    registry.create(Resource::Pods, "default", held).unwrap();
    let marked = delete(&registry, Some(0)).unwrap();
    assert!(matches!(marked, Deleted::Terminating(_)));
    assert_eq!(marked.object()["metadata"]["deletionGracePeriodSeconds"], 0);
    registry
        .modify(Resource::Pods, "default", "a", ObjectPart::Main, |pod| {
            pod["metadata"]["finalizers"] = json!([])
        })
        .unwrap();
    assert!(registry.get(Resource::Pods, "default", "a").is_err());
}

#[test]
fn dropped_delete_still_removes_pod() {
    for is_cut_off in [false, true] {
        let registry = registry_with_pod();
        let options = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
        let begin = || registry.begin_delete(Resource::Pods, "default", "a", &options).unwrap();
        let Deleted::Due(due) = begin() else { panic!("not due") };
        assert!(registry.get(Resource::Pods, "default", "a").is_ok());
        // A caller between the two steps gets the same result.
        let Deleted::Due(other) = begin() else { panic!("not due") };
        if is_cut_off {
            drop(due);
        } else {
            assert_eq!(due.finish()["metadata"]["deletionGracePeriodSeconds"], 0);
        }
        assert!(registry.get(Resource::Pods, "default", "a").is_err());
        assert_eq!(other.finish()["metadata"]["name"], "a");
    }
}

#[test]
fn new_finalizer_keeps_due_pod() {
    let registry = registry_with_pod();
    let options = DeleteOptions { grace_period_seconds: Some(0), ..DeleteOptions::default() };
    let Deleted::Due(due) = registry.begin_delete(Resource::Pods, "default", "a", &options).unwrap() else {
        panic!("not due")
    };
    let set = |finalizers: Value| {
        registry.modify(Resource::Pods, "default", "a", ObjectPart::Main, |pod| {
            pod["metadata"]["finalizers"] = finalizers;
        })
    };
    set(json!(["example.org/a"])).unwrap();
    due.finish();
    assert!(registry.get(Resource::Pods, "default", "a").is_ok());
    set(json!([])).unwrap();
    assert!(registry.get(Resource::Pods, "default", "a").is_err());
}

#[test]
fn terminating_namespace_refuses_new_objects() {
    let registry = registry();
    registry.create(Resource::Namespaces, "", json!({"metadata": {"name": "shop"}})).unwrap();
    registry.delete(Resource::Namespaces, "", "shop", &DeleteOptions::default()).unwrap();
    let refused = registry.create(Resource::Pods, "shop", pod("a")).unwrap_err();
    assert_eq!(refused.code(), 403);
    assert_eq!(refused.to_json()["details"]["causes"][0]["reason"], "NamespaceTerminating");
    for name in ["default", "kube-system"] {
        let refused = registry.delete(Resource::Namespaces, "", name, &DeleteOptions::default()).unwrap_err();
        assert_eq!(refused.code(), 403);
    }
}

#[test]
fn pages_share_version_of_first() {
    let registry = registry();
    let names = |page: &ListPage| {
        let name = |object: &Arc<Value>| object["metadata"]["name"].as_str().unwrap().to_owned();
        page.list.items.iter().map(name).collect::<Vec<_>>()
    };
    for name in ["a", "b", "c", "d", "e"] {
        registry.create(Resource::Pods, "default", pod(name)).unwrap();
    }
    let all = ObjectSelection::all();
    let list = |token: &str| {
        let request = PageRequest { limit: 2, token: token.to_owned(), ..PageRequest::default() };
        registry.list_page(Resource::Pods, Some("default"), &all, &request)
    };
    let first = list("").unwrap();
    assert_eq!((names(&first), first.remaining), (vec!["a".to_owned(), "b".to_owned()], Some(3)));
    registry.delete(Resource::Pods, "default", "c", &DeleteOptions::default()).unwrap();
    registry.create(Resource::Pods, "default", pod("ca")).unwrap();
    let second = list(first.next.as_deref().unwrap()).unwrap();
    assert_eq!(names(&second), ["ca", "d"]);
    assert_eq!(second.list.version, first.list.version);
    let third = list(second.next.as_deref().unwrap()).unwrap();
    assert_eq!((names(&third), third.next, third.remaining), (vec!["e".to_owned()], None, None));
    assert_eq!(list("nonsense").unwrap_err().code(), 400);
}
