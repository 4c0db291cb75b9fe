//! Tests of marking workloads as in use, and of undoing changes while others change the same object.

use super::*;
use crate::api::edits;
use crate::undo::{ClusterChange, LeftOvers, ObjectRef, Since};
use rolldrop_scenario::{Patch, PatchType, Workload};

const PATH: &str = "/apis/apps/v1/namespaces/shop/deployments/web";
const IN_USE: &str = "rolldrop.dev/in-use";

fn deployment() -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "shop", "uid": "u1", "resourceVersion": "1"},
        "spec": {"replicas": 3, "template": {"spec": {"containers": [{"name": "app", "image": "app:1"}]}}}})
}

/// Applies a JSON merge patch (RFC 7386).
fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (name, value) in fields {
        match value {
            Value::Null => drop(object.as_object_mut().unwrap().remove(name)),
            value => merge(&mut object[name], value),
        }
    }
}

/// An API server with one Deployment, which another client patches once, before the test's first patch arrives.
struct Shop {
    object: Arc<Mutex<Value>>,
    meanwhile: Arc<Mutex<Option<Value>>>,
}

impl Shop {
    fn open(meanwhile: Option<Value>) -> (Self, Client, Calls) {
        let shop =
            Self { object: Arc::new(Mutex::new(deployment())), meanwhile: Arc::new(Mutex::new(meanwhile)) };
        let (object, meanwhile) = (Arc::clone(&shop.object), Arc::clone(&shop.meanwhile));
        let (client, calls) = api_of_bodies(move |method, uri, body| {
            let mut object = object.lock().unwrap();
            match (method, uri.path()) {
                (&Method::GET, PATH) => (200, object.to_string()),
                (&Method::PATCH, PATH) => {
                    let is_dry = uri.query() == Some("dryRun=All");
                    let theirs = if is_dry { None } else { meanwhile.lock().unwrap().take() };
                    theirs.iter().for_each(|theirs| Self::patch(&mut object, theirs));
                    let patched = Self::patched(&object, body);
                    if patched["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] {
                        return status(409, "Conflict", "the object has been modified");
                    }
                    if is_dry {
                        return (200, patched.to_string());
                    }
                    *object = patched;
                    Self::patch(&mut object, &json!({}));
                    (200, object.to_string())
                }
                (&Method::GET, "/apis/apps/v1") => {
                    let resource = json!({"name": "deployments", "singularName": "deployment", "namespaced": true,
                        "kind": "Deployment", "verbs": ["get", "patch"]});
                    let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "apps/v1",
                        "resources": [resource]});
                    (200, list.to_string())
                }
                _ => status(404, "NotFound", "not found"),
            }
        });
        (shop, client, calls)
    }

    /// Returns an object after applying a merge patch, or a JSON patch that replaces existing fields.
    fn patched(object: &Value, patch: &Value) -> Value {
        let mut patched = object.clone();
        match patch {
            Value::Array(operations) => operations.iter().for_each(|operation| {
                let path = operation["path"].as_str().unwrap();
                *patched.pointer_mut(path).unwrap() = operation["value"].clone();
            }),
            patch => merge(&mut patched, patch),
        }
        patched
    }

    fn patch(object: &mut Value, patch: &Value) {
        merge(object, patch);
        let version = object["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
        object["metadata"]["resourceVersion"] = (version + 1).to_string().into();
    }

    fn now(&self) -> Value {
        self.object.lock().unwrap().clone()
    }

    /// Marks the Deployment as in use.
    fn is_used(&self, until: &str) {
        let holder = json!({"run": "first", "owner": "ann@laptop", "until": until});
        let patch = json!({"metadata": {"annotations": {IN_USE: holder.to_string()}}});
        Self::patch(&mut self.object.lock().unwrap(), &patch);
    }

    fn holder(&self) -> Option<Value> {
        let object = self.now();
        object["metadata"]["annotations"][IN_USE].as_str().map(|text| serde_json::from_str(text).unwrap())
    }
}

fn web() -> Workload {
    "deployment/web".parse().unwrap()
}

fn patches(calls: &Calls) -> usize {
    calls.lock().unwrap().iter().filter(|(method, ..)| *method == Method::PATCH).count()
}

#[tokio::test(start_paused = true)]
async fn hold_is_taken_renewed_and_released() {
    let (shop, client, calls) = Shop::open(None);
    let (mut session, run_dir, _dir) = session(client, TimeLimits::default());
    session.hold(&[web()], "my-run").await.unwrap();
    let holder = shop.holder().unwrap();
    assert_eq!(holder["run"], "my-run");
    assert!(holder["owner"].as_str().is_some_and(|owner| !owner.is_empty()), "{holder}");
    let until: jiff::Timestamp = holder["until"].as_str().unwrap().parse().unwrap();
    assert!(until > jiff::Timestamp::from_nanosecond(session.now().unix_ns().into()).unwrap());
    assert_eq!(shop.now()["spec"], deployment()["spec"]);
    tokio::time::sleep(Duration::from_secs(400)).await;
    assert_eq!(patches(&calls), 3, "renewed twice");
    // If the run is killed, the change stays in the journal.
    let open = session.ledger.journal().open_changes();
    assert!(
        matches!(&open[..], [open] if matches!(&open.change, ClusterChange::Hold { run } if run == "my-run")),
        "{open:?}"
    );
    let Closed { undone, .. } = finish(session).await;
    let undone: Vec<String> = undone.iter().map(ToString::to_string).collect();
    assert_eq!(undone, ["Deployment web in shop: released"]);
    assert_eq!(shop.holder(), None);
    assert!(Journal::resume(run_dir.path(), Clock::start()).unwrap().0.open_changes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn second_run_on_held_workload_is_refused() {
    let (shop, client, calls) = Shop::open(None);
    shop.is_used("2999-01-01T00:00:00Z");
    let (mut second, ..) = session(client.clone(), TimeLimits::default());
    let said = "Deployment web is in use by run first (ann@laptop) until 2999-01-01T00:00:00Z: wait until that run ends";
    let planned = check_holds(&second.caller, &[web()], None).await.unwrap_err().to_string();
    assert!(planned.starts_with(said), "{planned}");
    let error = second.hold(&[web()], "second").await.unwrap_err().to_string();
    assert!(error.starts_with(said), "{error}");
    assert!(error.contains("kubectl annotate -n shop deployment/web rolldrop.dev/in-use-"), "{error}");
    assert_eq!((patches(&calls), second.ledger.journal().open_changes().len()), (0, 0));
    // A run that is part of the tuning holding the workload continues.
    second.hold(&[web()], "first").await.unwrap();
    assert_eq!((patches(&calls), second.ledger.journal().open_changes().len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn expired_hold_is_taken_over() {
    let (shop, client, _) = Shop::open(None);
    shop.is_used("2001-01-01T00:00:00Z");
    let (mut session, _run_dir, _dir) = session(client, TimeLimits::default());
    let told = check_holds(&session.caller, &[web()], None).await.unwrap();
    let word = "Deployment web was in use by run first (ann@laptop) until 2001-01-01T00:00:00Z; that time has passed";
    assert!(matches!(&told[..], [told] if told.starts_with(word)), "{told:?}");
    session.hold(&[web()], "my-run").await.unwrap();
    assert_eq!(shop.holder().unwrap()["run"], "my-run");
}

#[tokio::test(start_paused = true)]
async fn only_one_concurrent_run_acquires_hold() {
    let holder = json!({"run": "first", "owner": "ann@laptop", "until": "2999-01-01T00:00:00Z"});
    let first = json!({"metadata": {"annotations": {IN_USE: holder.to_string()}}});
    let (shop, client, _) = Shop::open(Some(first));
    let (mut second, ..) = session(client, TimeLimits::default());
    let error = second.hold(&[web()], "second").await.unwrap_err();
    assert!(matches!(error, CoordinatorError::InUse { .. }), "{error}");
    assert_eq!((shop.holder(), second.ledger.journal().open_changes().len()), (Some(holder), 0));
}

/// Sets the number of replicas, and undoes the change while another client makes one. Returns the undo report and the
/// resulting object.
async fn undone_while(theirs: Value) -> (String, Value) {
    let (shop, client, _) = Shop::open(None);
    let (session, _run_dir, _dir) = session(client, TimeLimits::default());
    let (resource, scope) = session.caller.kind_of("apps/v1", "Deployment").await.unwrap();
    let api = session.caller.api_of(&resource, &scope, "shop");
    let set = |object: &mut Value| object["spec"]["replicas"] = 5.into();
    session.changer().alter(&api, &deployment(), set).await.unwrap().unwrap();
    assert_eq!(shop.now()["spec"]["replicas"], 5);
    *shop.meanwhile.lock().unwrap() = Some(theirs);
    let Closed { undone, .. } = finish(session).await;
    (undone[0].to_string(), shop.now())
}

#[tokio::test(start_paused = true)]
async fn restore_keeps_concurrent_changes() {
    let (said, object) = undone_while(json!({"metadata": {"labels": {"team": "shop"}}})).await;
    assert_eq!(said, "Deployment web in shop: restored");
    assert_eq!(
        (&object["spec"]["replicas"], &object["metadata"]["labels"]["team"]),
        (&json!(3), &json!("shop"))
    );
    let (said, object) = undone_while(json!({"spec": {"replicas": 7}})).await;
    assert_eq!(said, "Deployment web in shop: left alone: others have changed spec.replicas");
    assert_eq!(object["spec"]["replicas"], 7);
}

#[tokio::test(start_paused = true)]
async fn alter_reapplies_edits_after_foreign_change() {
    let (shop, client, _) = Shop::open(Some(json!({"spec": {"replicas": 4}})));
    let (session, _run_dir, _dir) = session(client, TimeLimits::default());
    let (resource, scope) = session.caller.kind_of("apps/v1", "Deployment").await.unwrap();
    let api = session.caller.api_of(&resource, &scope, "shop");
    session
        .changer()
        .alter(&api, &deployment(), |object| object["spec"]["replicas"] = 5.into())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(shop.now()["spec"]["replicas"], 5);
    finish(session).await;
    assert_eq!(shop.now()["spec"]["replicas"], 4, "as others had set it");
}

/// Sets the image with this kind of patch while another client makes a change. Returns the pods' containers after that,
/// and the object after the image has been changed back.
async fn image_set_while(patch_type: PatchType, theirs: Value) -> (Value, Value) {
    let (shop, client, _) = Shop::open(Some(theirs));
    let (session, _run_dir, _dir) = session(client, TimeLimits::default());
    let (resource, scope) = session.caller.kind_of("apps/v1", "Deployment").await.unwrap();
    let api = session.caller.api_of(&resource, &scope, "shop");
    let patch_of = |current: &Value| {
        let mut containers = current["spec"]["template"]["spec"]["containers"].clone();
        containers[0]["image"] = "app:2".into();
        let path = "/spec/template/spec/containers";
        let body = match patch_type {
            PatchType::Json => json!([{"op": "replace", "path": path, "value": containers}]),
            _ => json!({"spec": {"template": {"spec": {"containers": containers}}}}),
        };
        Ok(Patch { patch_type, body })
    };
    session.changer().patch(&api, &deployment(), patch_of).await.unwrap().unwrap();
    let set = shop.now()["spec"]["template"]["spec"]["containers"].clone();
    finish(session).await;
    (set, shop.now())
}

#[tokio::test(start_paused = true)]
async fn patch_is_reapplied_after_foreign_change() {
    let theirs = json!({"spec": {"template": {"spec": {"containers": [
        {"name": "app", "image": "app:1"}, {"name": "theirs", "image": "helper:1"}]}}}});
    for patch_type in [PatchType::Merge, PatchType::Json] {
        let (set, undone) = image_set_while(patch_type, theirs.clone()).await;
        let expected = json!([{"name": "app", "image": "app:2"}, {"name": "theirs", "image": "helper:1"}]);
        assert_eq!(set, expected, "{patch_type:?}");
        assert_eq!(undone["spec"]["template"], theirs["spec"]["template"], "{patch_type:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn patch_fails_after_repeated_conflicts() {
    let count = Arc::new(AtomicUsize::new(0));
    let (client, calls) = api(move |method, _| {
        let mut object = deployment();
        object["spec"]["replicas"] = count.fetch_add(1, Ordering::SeqCst).into();
        match *method {
            Method::PATCH => status(409, "Conflict", "the object has been modified"),
            _ => (200, object.to_string()),
        }
    });
    let (session, _run_dir, _dir) = session(client, TimeLimits::default());
    let resource = crate::api::kinds::resource_of(web().kind);
    let api = session.caller.api_of(&resource, &kube::discovery::Scope::Namespaced, "shop");
    let body = json!({"spec": {"minReadySeconds": 3}});
    let patch = Patch { patch_type: PatchType::Merge, body };
    let error =
        session.changer().patch(&api, &deployment(), |_| Ok(patch.clone())).await.unwrap_err().to_string();
    assert_eq!(error, "failed to change Deployment web in shop: others keep changing it");
    assert_eq!(patches(&calls), 5);
}

#[test]
fn workload_changes_after_kill_are_classified() {
    let dir = tempfile::tempdir().unwrap();
    let (out, clock) = (dir.path().join("tuning"), Clock::start());
    std::fs::create_dir_all(out.join("1-before")).unwrap();
    let nothing = |what: &str| assert!(LeftOvers::in_dir(&out).unwrap().cluster().is_none(), "{what}");
    nothing("killed before it changed anything");
    std::fs::write(out.join("state.json.part"), "{").unwrap();
    nothing("killed while it wrote its state");
    std::fs::create_dir_all(out.join("1-before/cluster/pods")).unwrap();
    std::fs::write(out.join("1-before/cluster/pods/web.log"), "x").unwrap();
    nothing("killed while the cluster started");
    std::fs::write(out.join("1-before/notes.txt"), "x").unwrap();
    assert!(LeftOvers::in_dir(&out).is_err(), "it holds something else");
    std::fs::remove_file(out.join("1-before/notes.txt")).unwrap();
    let found = deployment();
    let mut set = found.clone();
    set["spec"]["template"]["spec"]["containers"][0]["lifecycle"] =
        json!({"preStop": {"sleep": {"seconds": 10}}});
    let mut journal =
        Journal::begin(&out.join("1-before"), clock, "my-run", Some(crate::cluster::Origin::default()))
            .unwrap();
    let web = ObjectRef { uid: Some("u1".into()), ..ObjectRef::new("apps/v1", "Deployment", None, "web") };
    journal.announce(web, ClusterChange::Edit { edits: edits::between(&found, &set) }).unwrap();
    assert!(LeftOvers::in_dir(&out).unwrap_err().to_string().contains("has not ended"));
    drop(journal);
    let left = LeftOvers::in_dir(&out).unwrap();
    assert!(left.cluster().is_some());
    assert_eq!(left.since(&found, &found), Since::AsFound);
    assert_eq!(left.since(&found, &set), Since::AsSet);
    let mut deployed = set.clone();
    deployed["spec"]["template"]["spec"]["containers"][0]["image"] = "app:2".into();
    let what = vec![r#"spec.template.spec.containers[name=app].image: "app:1" → "app:2""#.to_owned()];
    assert_eq!(left.since(&found, &deployed), Since::Changed { what });
    set["spec"]["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"] = 3.into();
    let Since::Changed { what } = left.since(&found, &set) else { panic!("others have set another sleep") };
    assert_eq!(
        what,
        ["spec.template.spec.containers[name=app].lifecycle.preStop.sleep.seconds: not set → 3"]
    );
}
