//! Tests for dry runs, deletion and pagination.

use super::*;
use crate::registry::page::ListPage;

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
    assert_eq!(registry.get(Resource::Deployments, "default", "web").unwrap()["spec"]["replicas"], 1);
    assert_eq!(version(), before);
}

#[test]
fn unsupported_deletions_are_rejected() {
    let registry = registry();
    registry.create(Resource::Deployments, "default", deployment()).unwrap();
    for options in [json!({"dryRun": ["All"]}), json!({"propagationPolicy": "Orphan"})] {
        let options = serde_json::from_value(options).unwrap();
        let refused = registry.delete(Resource::Deployments, "default", "web", &options).unwrap_err();
        assert!(refused.to_string().contains("does not support"), "{refused}");
    }
    assert!(registry.get(Resource::Deployments, "default", "web").is_ok());
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
fn terminating_namespace_rejects_new_objects() {
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
fn pages_share_first_page_version() {
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
        let request = PageRequest { limit: 2, token: token.to_owned() };
        registry.list_page(Resource::Pods, Some("default"), &all, &request)
    };
    let first = list("").unwrap();
    assert_eq!(names(&first), ["a", "b"]);
    registry.delete(Resource::Pods, "default", "c", &DeleteOptions::default()).unwrap();
    registry.create(Resource::Pods, "default", pod("ca")).unwrap();
    let second = list(first.next.as_deref().unwrap()).unwrap();
    assert_eq!(names(&second), ["ca", "d"]);
    assert_eq!(second.list.version, first.list.version);
    let third = list(second.next.as_deref().unwrap()).unwrap();
    assert_eq!((names(&third), third.next), (vec!["e".to_owned()], None));
    assert_eq!(list("nonsense").unwrap_err().code(), 400);
}
