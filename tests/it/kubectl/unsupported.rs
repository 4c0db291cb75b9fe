//! kubectl operations that real clusters support and the embedded cluster does not: the error states this, and offers a
//! remedy.

use super::{Kubectl, pod};

#[test]
fn container_access_refusal_offers_alternative() {
    let kubectl = Kubectl::in_namespace("unsupported");
    kubectl.apply(&pod("idle", "exec sleep 1000"));
    kubectl.ok("wait pod/idle --for=condition=Ready --timeout=300s");
    for (args, what) in [
        ("exec idle -- ls", "exec"),
        ("cp idle:/etc/hostname copy", "exec"),
        ("attach idle", "attach"),
        ("port-forward idle 8080:80", "port-forward"),
        ("debug idle --image=x", "changing the containers of a running pod"),
    ] {
        let told = kubectl.fails(args);
        let expected = format!("the embedded cluster does not support {what}: ");
        assert!(told.contains(&expected), "kubectl {args}: {told}");
    }
    assert_eq!(
        kubectl.fails("exec nobody -- ls"),
        "Error from server (NotFound): pods \"nobody\" not found\n"
    );
}

#[test]
fn missing_kinds_are_refused_by_name() {
    let kubectl = Kubectl::in_namespace("unsupported");
    assert_eq!(kubectl.fails("top pods"), "error: Metrics API not available\n");
    let quota = kubectl.fails("create quota q --hard=pods=1");
    assert!(quota.contains("(post resourcequotas)"), "{quota}");
    assert_eq!(
        kubectl.fails("get cronjobs"),
        "error: the server doesn't have a resource type \"cronjobs\"\n"
    );
    let explained = kubectl.fails("explain pods");
    assert!(explained.contains("not found in OpenAPI schema"), "{explained}");
}
