//! Tests of undoing changes while the API server or the disk fails.

use super::*;
use crate::api::edits;
use crate::undo::{ClusterChange, ObjectRef};

const SERVICE: &str = "/api/v1/namespaces/shop/services/web";
const WEB: &str = "/apis/apps/v1/namespaces/shop/deployments/web";
const OTHER: &str = "/apis/apps/v1/namespaces/shop/deployments/other";

fn service(port: u16) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"ports": [{"port": 80, "targetPort": port}]}})
}

fn deployment(name: &str, replicas: u32, init_containers: &Value) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "shop"},
        "spec": {"replicas": replicas, "template": {"spec": {"initContainers": init_containers}}}})
}

/// Returns the objects that a run has changed, before and after: first Deployments, and then their Service.
fn changed() -> [(Value, Value); 3] {
    let (without, with) = (json!([{"name": "migrate"}]), json!([{"name": "migrate"}, {"name": "rolldrop"}]));
    [
        (deployment("other", 3, &without), deployment("other", 1, &without)),
        (deployment("web", 3, &without), deployment("web", 3, &with)),
        (service(8080), service(15006)),
    ]
}

/// Returns the journal of a run that made these changes.
fn journal(dir: &std::path::Path) -> Journal {
    let mut journal = Journal::begin(dir, Clock::start(), "my-run", None).unwrap();
    for (before, after) in changed() {
        let text = |pointer: &str| after.pointer(pointer).and_then(Value::as_str).unwrap().to_owned();
        let (version, kind, name) = (text("/apiVersion"), text("/kind"), text("/metadata/name"));
        let object = ObjectRef::new(&version, &kind, Some("shop".into()), &name);
        journal.announce(object, ClusterChange::Edit { edits: edits::between(&before, &after) }).unwrap();
    }
    journal
}

/// Returns an API server that has the changed objects, and responds to patches with `patch(path)`.
fn api_with(patch: impl Fn(&str) -> (u16, String) + Clone + Send + Sync + 'static) -> (Client, Calls) {
    let kinds = |group: &str, name: &str, kind: &str| {
        let resource = json!({"name": name, "singularName": kind.to_lowercase(), "namespaced": true, "kind": kind,
            "verbs": ["get", "patch"]});
        let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group,
            "resources": [resource]});
        (200, list.to_string())
    };
    api(move |method, path| {
        let [(_, other), (_, web), (_, service)] = changed();
        match (method, path) {
            (&Method::PATCH, path) => patch(path),
            (_, "/api/v1") => kinds("v1", "services", "Service"),
            (_, "/apis/apps/v1") => kinds("apps/v1", "deployments", "Deployment"),
            (_, SERVICE) => (200, service.to_string()),
            (_, WEB) => (200, web.to_string()),
            (_, OTHER) => (200, other.to_string()),
            _ => status(404, "NotFound", "no such object"),
        }
    })
}

/// Undoes the changes. Returns the report, and the objects that the journal on disk still lists as changed.
async fn undo(client: Client, spoil: impl FnOnce(&mut Journal)) -> (Vec<String>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let mut journal = journal(dir.path());
    spoil(&mut journal);
    let caller = Caller::in_shop(client, TimeLimits::default(), CancellationToken::new());
    let undone = ChangeLedger::of(journal).undo(&caller).await;
    let open = Journal::resume(dir.path(), Clock::start()).unwrap().0.open_changes();
    let named = open.iter().map(|open| format!("{} {}", open.object.kind, open.object.name));
    (undone.iter().map(ToString::to_string).collect(), named.collect())
}

/// Returns the paths of the patches.
fn patched(calls: &Calls) -> Vec<String> {
    let calls = calls.lock().unwrap();
    calls.iter().filter(|(method, ..)| *method == Method::PATCH).map(|(_, path, _)| path.clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn sidecar_stays_while_service_routes_to_it() {
    let (client, calls) = api_with(|path| match path {
        SERVICE => status(403, "Forbidden", "services \"web\" is forbidden"),
        _ => (200, deployment("any", 3, &Value::Null).to_string()),
    });
    let (report, open) = undo(client, |_| {}).await;
    assert_eq!(
        report,
        [
            "Service web in shop: not restored: failed to restore Service web in shop: services \"web\" is forbidden",
            "Deployment web in shop: not restored: Service web in shop was not restored and may still route to the \
             sidecar",
            "Deployment other in shop: restored",
        ]
    );
    assert_eq!(open, ["Service web", "Deployment web"], "rolldrop cleanup tries again");
    assert_eq!(patched(&calls), [SERVICE, OTHER], "a refusal does not pass");
}

#[tokio::test(start_paused = true)]
async fn undo_outlasts_passing_faults() {
    let begun = Instant::now();
    let (client, calls) = api_with(move |path| match path {
        SERVICE if begun.elapsed() < Duration::from_secs(100) => {
            status(503, "ServiceUnavailable", "try again later")
        }
        _ => (200, deployment("any", 3, &Value::Null).to_string()),
    });
    let (report, open) = undo(client, |_| {}).await;
    assert!(report.iter().all(|line| line.ends_with(": restored")), "{report:?}");
    assert_eq!((report.len(), open.len()), (3, 0), "{report:?}");
    let mut order = patched(&calls);
    order.dedup();
    assert_eq!(order, [SERVICE, OTHER, SERVICE, WEB], "the sidecar goes after its Service");
}

#[tokio::test(start_paused = true)]
async fn full_disk_does_not_end_undo() {
    let (client, calls) = api_with(|_| (200, deployment("any", 3, &Value::Null).to_string()));
    let (report, open) = undo(client, Journal::fill_disk).await;
    assert_eq!(patched(&calls), [SERVICE, WEB, OTHER]);
    assert_eq!((report.len(), open.len()), (3, 3), "{report:?}");
    for line in report {
        let (done, why) = line.split_once("; not recorded: failed to read or write ").unwrap();
        assert!(done.ends_with(" in shop: restored") && why.contains("No space left on device"), "{line}");
    }
}
