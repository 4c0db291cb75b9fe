//! Unmodified kube-rs against a running `rolldrop cluster`: typed objects, patches, watchers and stores, waiting,
//! eviction, logs, and error handling.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures::{AsyncBufReadExt, Stream, StreamExt, TryStreamExt};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, EvictParams, GroupVersionKind, ListParams, LogParams,
    Patch, PatchParams, PostParams, PropagationPolicy, WatchEvent, WatchParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Client, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::harness::LIMIT;
use crate::kubectl::{Kubectl, SharedCluster, pod, web};

/// Runs a test with its own client and namespace.
fn with_client<F: Future<Output = ()>>(test: impl FnOnce(Client, Kubectl) -> F) {
    let kubectl = Kubectl::in_namespace("kube-rs");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let run = async {
        let file = Kubeconfig::read_from(SharedCluster::get().kubeconfig()).expect("a kubeconfig");
        let options = KubeConfigOptions::default();
        let mut config = kube::Config::from_custom_kubeconfig(file, &options).await.expect("a config");
        config.proxy_url = None;
        // A refused eviction is a valid response here, not a reason to retry.
        config.default_retry = false;
        test(Client::try_from(config).expect("a client"), kubectl).await;
    };
    runtime.block_on(async { timeout(2 * LIMIT, run).await.expect("the test ends in time") });
}

fn config_map(name: &str, data: &[(&str, &str)]) -> ConfigMap {
    let data: BTreeMap<_, _> = data.iter().map(|(key, value)| (*key, *value)).collect();
    typed(json!({"metadata": {"name": name}, "data": data}))
}

fn typed<K: DeserializeOwned>(value: serde_json::Value) -> K {
    serde_json::from_value(value).expect("the object is well formed")
}

/// Returns the next item of a stream; fails if there is none.
async fn next<T, E: std::fmt::Debug>(stream: &mut (impl Stream<Item = Result<T, E>> + Unpin)) -> T {
    let item = timeout(LIMIT, stream.next()).await.expect("an event in time");
    item.expect("the stream continues").expect("no error")
}

/// Waits for the ConfigMap that a controller creates in a new namespace.
async fn until_settled(maps: &Api<ConfigMap>) {
    let is_there = |map: Option<&ConfigMap>| map.is_some();
    let settled = await_condition(maps.clone(), "kube-root-ca.crt", is_there);
    timeout(LIMIT, settled).await.expect("in time").expect("it is created");
}

/// Applies a watcher's event to the known names. Returns true once they are complete.
fn learn(known: &mut BTreeSet<String>, event: watcher::Event<ConfigMap>) -> bool {
    let is_listing = matches!(event, watcher::Event::Init | watcher::Event::InitApply(_));
    match event {
        watcher::Event::Init => known.clear(),
        watcher::Event::Apply(map) | watcher::Event::InitApply(map) => drop(known.insert(map.name_any())),
        watcher::Event::Delete(map) => drop(known.remove(&map.name_any())),
        watcher::Event::InitDone => {}
    }
    !is_listing
}

/// Returns the code, reason and message of the API's refusal.
fn refusal<T: std::fmt::Debug>(result: Result<T, kube::Error>) -> (u16, String, String) {
    match result {
        Err(kube::Error::Api(status)) => (status.code, status.reason.clone(), status.message.clone()),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn kube_client_creates_replaces_and_deletes() {
    with_client(async |client, kubectl| {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), kubectl.namespace());
        let made =
            maps.create(&PostParams::default(), &config_map("one", &[("a", "1")])).await.expect("created");
        assert!(made.uid().is_some() && made.creation_timestamp().is_some());
        assert_eq!(maps.get("one").await.expect("it exists"), made);
        assert_eq!(maps.get_opt("two").await.expect("a response"), None);

        let mut changed = made.clone();
        changed.data.get_or_insert_default().insert("b".to_owned(), "2".to_owned());
        let replaced = maps.replace("one", &PostParams::default(), &changed).await.expect("replaced");
        assert_eq!(replaced.data.as_ref().map(BTreeMap::len), Some(2));
        assert_ne!(replaced.resource_version(), made.resource_version());

        let tried = PostParams { dry_run: true, ..PostParams::default() };
        maps.create(&tried, &config_map("two", &[])).await.expect("it would be created");
        assert_eq!(maps.get_opt("two").await.expect("a response"), None);

        let mut entry = maps.entry("three").await.expect("an entry").or_insert(|| config_map("three", &[]));
        entry.commit(&PostParams::default()).await.expect("created");

        let labelled = typed(json!({"metadata": {"name": "four", "labels": {"keep": "no"}}}));
        maps.create(&PostParams::default(), &labelled).await.expect("created");
        maps.delete_collection(&DeleteParams::default(), &ListParams::default().labels("keep=no"))
            .await
            .expect("deleted");
        maps.delete("one", &DeleteParams::default()).await.expect("deleted");
        let names: BTreeSet<_> = maps
            .list(&ListParams::default())
            .await
            .expect("a list")
            .iter()
            .map(ResourceExt::name_any)
            .collect();
        assert!(names.contains("three") && !names.contains("one") && !names.contains("four"), "{names:?}");
    });
}

#[test]
fn kube_client_sends_every_patch_type() {
    with_client(async |client, kubectl| {
        kubectl.run_web(1);
        let deployments: Api<Deployment> = Api::namespaced(client, kubectl.namespace());
        let plain = PatchParams::default();
        let merged = deployments
            .patch(
                "web",
                &plain,
                &Patch::Merge(json!({"metadata": {"labels": {"merged": "yes", "app": null}}})),
            )
            .await
            .expect("merged");
        assert_eq!(merged.labels().get("merged").map(String::as_str), Some("yes"));
        assert!(!merged.labels().contains_key("app"));

        // A strategic patch finds the container by its name and keeps its other fields.
        let container = json!({"name": "app", "env": [{"name": "A", "value": "1"}]});
        let patch = json!({"spec": {"template": {"spec": {"containers": [container]}}}});
        let patched = deployments.patch("web", &plain, &Patch::Strategic(patch)).await.expect("patched");
        let template = patched.spec.expect("a spec").template.spec.expect("a pod's spec");
        assert_eq!(template.containers.len(), 1);
        assert_eq!(template.containers[0].image.as_deref(), Some("host/sleep:1"));
        assert_eq!(template.containers[0].env.as_ref().map(Vec::len), Some(1));

        let scale = json!({"spec": {"replicas": 2}});
        let scaled = deployments.patch_scale("web", &plain, &Patch::Merge(scale)).await.expect("scaled");
        assert_eq!(scaled.spec.and_then(|spec| spec.replicas), Some(2));
        assert_eq!(deployments.get("web").await.expect("it exists").spec.and_then(|s| s.replicas), Some(2));
    });
}

#[test]
fn server_side_apply_sets_fields() {
    with_client(async |client, kubectl| {
        let maps: Api<ConfigMap> = Api::namespaced(client, kubectl.namespace());
        let apply = |data: serde_json::Value| {
            Patch::Apply(
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owned"}, "data": data}),
            )
        };
        let (first, second) = (PatchParams::apply("first"), PatchParams::apply("second"));
        maps.patch("owned", &first, &apply(json!({"a": "1", "b": "1"}))).await.expect("created");
        maps.patch("owned", &second, &apply(json!({"c": "2"}))).await.expect("added");
        // This cluster does not track field owners, so a field that is no longer applied stays.
        let left = maps.patch("owned", &first, &apply(json!({"a": "3"}))).await.expect("applied");
        let data: Vec<_> = left.data.expect("data").into_iter().collect();
        assert_eq!(
            data,
            [("a", "3"), ("b", "1"), ("c", "2")].map(|(key, value)| (key.to_owned(), value.to_owned()))
        );
        let forced = maps.patch("owned", &second.force(), &apply(json!({"a": "2"}))).await.expect("forced");
        assert_eq!(forced.data.expect("data")["a"], "2");
    });
}

#[test]
fn refusals_carry_kubernetes_error_reasons() {
    with_client(async |client, kubectl| {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), kubectl.namespace());
        let post = PostParams::default();
        let made = maps.create(&post, &config_map("one", &[])).await.expect("created");
        let code_and_reason = |refused: (u16, String, String)| (refused.0, refused.1);
        assert_eq!(
            refusal(maps.get("nosuch").await),
            (404, "NotFound".to_owned(), "configmaps \"nosuch\" not found".to_owned())
        );
        let again = code_and_reason(refusal(maps.create(&post, &config_map("one", &[])).await));
        assert_eq!(again, (409, "AlreadyExists".to_owned()));
        maps.replace("one", &post, &made).await.expect("unchanged");
        let change = Patch::Merge(json!({"data": {"a": "1"}}));
        maps.patch("one", &PatchParams::default(), &change).await.expect("changed");
        let stale = code_and_reason(refusal(maps.replace("one", &post, &made).await));
        assert_eq!(stale, (409, "Conflict".to_owned()));
        let wrong_uid = DeleteParams::default().preconditions(kube::api::Preconditions {
            uid: Some("another".to_owned()),
            resource_version: None,
        });
        let other = code_and_reason(refusal(maps.delete("one", &wrong_uid).await));
        assert_eq!(other, (409, "Conflict".to_owned()));

        let pods: Api<Pod> = Api::namespaced(client.clone(), kubectl.namespace());
        let nameless = typed(json!({"metadata": {"name": "bad"}, "spec": {"containers": []}}));
        match pods.create(&post, &nameless).await {
            Err(kube::Error::Api(status)) => {
                assert_eq!((status.code, status.reason.as_str()), (422, "Invalid"));
                let details = status.details.as_ref().expect("details");
                assert_eq!((details.name.as_str(), details.kind.as_str()), ("bad", "Pod"));
                assert_eq!(details.causes[0].field, "spec.containers");
            }
            other => panic!("not refused: {other:?}"),
        }
        let unknown = ApiResource::from_gvk(&GroupVersionKind::gvk("example.org", "v1", "Thing"));
        let things: Api<DynamicObject> = Api::all_with(client, &unknown);
        assert_eq!(refusal(things.list(&ListParams::default()).await).0, 404);
    });
}

#[test]
fn kube_client_reads_metadata_and_pages() {
    with_client(async |client, kubectl| {
        let maps: Api<ConfigMap> = Api::namespaced(client, kubectl.namespace());
        for n in 0..5 {
            let map = typed(
                json!({"metadata": {"name": format!("m{n}"), "labels": {"n": "x"}}, "data": {"a": "b"}}),
            );
            maps.create(&PostParams::default(), &map).await.expect("created");
        }
        let all = ListParams::default().labels("n=x");
        let metadata = maps.list_metadata(&all).await.expect("a list");
        assert_eq!(metadata.items.len(), 5);
        assert_eq!(metadata.items[0].types.as_ref().expect("types").kind, "PartialObjectMetadata");
        assert_eq!(maps.get_metadata("m3").await.expect("metadata").name_any(), "m3");

        let mut names = Vec::new();
        let mut page = all.clone().limit(2);
        loop {
            let part = maps.list(&page).await.expect("a page");
            assert!(part.items.len() <= 2);
            names.extend(part.items.iter().map(ResourceExt::name_any));
            match part.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => break,
            }
        }
        assert_eq!(names, ["m0", "m1", "m2", "m3", "m4"]);
    });
}

#[test]
fn watch_resumes_from_last_version() {
    with_client(async |client, kubectl| {
        let maps: Api<ConfigMap> = Api::namespaced(client, kubectl.namespace());
        until_settled(&maps).await;
        let start = maps.list(&ListParams::default()).await.expect("a list");
        for name in ["a", "b", "c"] {
            maps.create(&PostParams::default(), &config_map(name, &[])).await.expect("created");
        }
        let mut version = start.metadata.resource_version.expect("a version");
        let mut names = Vec::new();
        // Each watch is dropped after one event, and the next resumes after it.
        while names.len() < 3 {
            let mut events = pin!(maps.watch(&WatchParams::default(), &version).await.expect("a watch"));
            let WatchEvent::Added(map) = next(&mut events).await else { panic!("not an addition") };
            names.push(map.name_any());
            version = map.resource_version().expect("a version");
        }
        assert_eq!(names, ["a", "b", "c"]);
        let periodic = pin!(maps.watch(&WatchParams::default(), &version).await.expect("a watch"));
        let mut bookmarks =
            periodic.try_filter(|event| std::future::ready(matches!(event, WatchEvent::Bookmark(_))));
        let WatchEvent::Bookmark(bookmark) = next(&mut bookmarks).await else { unreachable!("filtered") };
        assert_eq!(bookmark.types.kind, "ConfigMap");
        assert!(
            bookmark.metadata.resource_version.parse::<u64>().expect("a number")
                >= version.parse().expect("a number")
        );
    });
}

#[test]
fn watcher_relists_after_expired_version() {
    with_client(async |client, kubectl| {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), kubectl.namespace());
        // Resource versions are cluster-wide, and the first is long expired.
        match maps.watch(&WatchParams::default(), "1").await {
            Err(kube::Error::Api(status)) => assert_eq!(status.code, 410),
            Ok(events) => {
                // The version is not old enough, so the server sends the changes that it remembers.
                let mut events = pin!(events);
                maps.create(&PostParams::default(), &config_map("kept", &[])).await.expect("created");
                next(&mut events).await;
            }
            Err(other) => panic!("{other:?}"),
        }
        // Short watches make the watcher reconnect several times, with a list or from the last seen version.
        for config in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
            let config = config.timeout(1);
            let mut events = pin!(watcher(maps.clone(), config));
            let mut known = BTreeSet::new();
            for n in 0..3 {
                let name = format!("w{n}");
                maps.create(&PostParams::default(), &config_map(&name, &[])).await.expect("created");
                while !known.contains(&name) {
                    learn(&mut known, next(&mut events).await);
                }
                // The timeout is longer than one watch.
                let idle = timeout(Duration::from_millis(1500), events.next()).await;
                if let Ok(event) = idle {
                    learn(&mut known, event.expect("the stream continues").expect("no error"));
                }
            }
            for n in 0..3 {
                maps.delete(&format!("w{n}"), &DeleteParams::default()).await.expect("deleted");
            }
            // The watcher may learn of these from a list if its version has expired because of many other changes.
            let is_left = |known: &BTreeSet<String>| known.iter().any(|name| name.starts_with('w'));
            while !learn(&mut known, next(&mut events).await) || is_left(&known) {}
        }
    });
}

#[test]
fn reflector_store_follows_api_changes() {
    with_client(async |client, kubectl| {
        let maps: Api<ConfigMap> = Api::namespaced(client, kubectl.namespace());
        let (store, writer) = reflector::store();
        let config = watcher::Config::default().labels("kept=yes");
        let mut touched =
            watcher(maps.clone(), config).default_backoff().reflect(writer).touched_objects().boxed();
        let _following =
            AbortOnDropHandle::new(tokio::spawn(async move { while touched.next().await.is_some() {} }));
        timeout(LIMIT, store.wait_until_ready()).await.expect("in time").expect("the store is ready");
        let map = |name: &str, n: u32| -> ConfigMap {
            typed(
                json!({"metadata": {"name": name, "labels": {"kept": "yes"}}, "data": {"n": n.to_string()}}),
            )
        };
        for n in 0..20 {
            maps.create(&PostParams::default(), &map(&format!("m{n}"), 0)).await.expect("created");
        }
        for n in 0..20 {
            let name = format!("m{n}");
            match n % 3 {
                0 => {
                    maps.delete(&name, &DeleteParams::default()).await.expect("deleted");
                }
                1 => {
                    let patch = Patch::Merge(json!({"data": {"n": "1"}}));
                    maps.patch(&name, &PatchParams::default(), &patch).await.expect("patched");
                }
                _ => {}
            }
        }
        maps.create(&PostParams::default(), &map("last", 0)).await.expect("created");
        // Events arrive in the order of the changes, so this one is the last.
        let last = reflector::ObjectRef::new("last").within(kubectl.namespace());
        timeout(LIMIT, async {
            while store.get(&last).is_none() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .expect("the store keeps up");
        let listed = maps.list(&ListParams::default().labels("kept=yes")).await.expect("a list");
        let of = |map: &ConfigMap| (map.name_any(), map.resource_version(), map.data.clone());
        let stored: BTreeSet<_> = store.state().iter().map(|map| of(map)).collect();
        assert_eq!(stored, listed.iter().map(of).collect());
        assert_eq!(stored.len(), 14);
    });
}

#[test]
fn kube_client_follows_pod_log() {
    with_client(async |client, kubectl| {
        let pods: Api<Pod> = Api::namespaced(client, kubectl.namespace());
        kubectl.apply(&pod("talker", "for n in 1 2 3; do echo line $n; sleep 0.2; done"));
        let started = |pod: Option<&Pod>| {
            let phase = pod.and_then(|pod| pod.status.as_ref()?.phase.as_deref());
            matches!(phase, Some("Running" | "Succeeded"))
        };
        timeout(LIMIT, await_condition(pods.clone(), "talker", started))
            .await
            .expect("in time")
            .expect("it runs");
        let follow = LogParams { follow: true, ..LogParams::default() };
        let log = pods.log_stream("talker", &follow).await.expect("a log");
        let lines: Vec<_> = timeout(LIMIT, log.lines().try_collect()).await.expect("in time").expect("text");
        assert_eq!(lines, ["line 1", "line 2", "line 3"]);
        let tail = LogParams { tail_lines: Some(1), ..LogParams::default() };
        assert_eq!(pods.logs("talker", &tail).await.expect("a log"), "line 3\n");

        let uid = pods.get("talker").await.expect("it exists").uid().expect("a uid");
        pods.delete("talker", &DeleteParams::default()).await.expect("deleted");
        let gone = await_condition(pods, "talker", conditions::is_deleted(&uid));
        timeout(LIMIT, gone).await.expect("in time").expect("it is deleted");
    });
}

#[test]
fn eviction_succeeds_only_within_budget() {
    with_client(async |client, kubectl| {
        kubectl.apply(&web(2));
        let pods: Api<Pod> = Api::namespaced(client.clone(), kubectl.namespace());
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), kubectl.namespace());
        let done = await_condition(deployments.clone(), "web", conditions::is_deployment_completed());
        timeout(LIMIT, done).await.expect("in time").expect("it is rolled out");
        let budget = json!({
            "metadata": {"name": "web"},
            "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "web"}}},
        });
        let budgets: Api<PodDisruptionBudget> = Api::namespaced(client, kubectl.namespace());
        budgets.create(&PostParams::default(), &typed(budget)).await.expect("created");
        let allowed = |wanted: i32| {
            move |budget: Option<&PodDisruptionBudget>| {
                let status = budget.and_then(|budget| budget.status.as_ref());
                status.is_some_and(|s| {
                    s.observed_generation.is_some()
                        && s.expected_pods == Some(2)
                        && s.disruptions_allowed == Some(wanted)
                })
            }
        };
        let full = await_condition(budgets.clone(), "web", allowed(0));
        timeout(LIMIT, full).await.expect("in time").expect("the budget counts");

        let running = pods.list(&ListParams::default().labels("app=web")).await.expect("a list");
        let name = running.items[0].name_any();
        let refused = refusal(pods.evict(&name, &EvictParams::default()).await);
        assert_eq!((refused.0, refused.1.as_str()), (429, "TooManyRequests"));

        let patch = Patch::Merge(json!({"spec": {"minAvailable": 1}}));
        budgets.patch("web", &PatchParams::default(), &patch).await.expect("patched");
        timeout(LIMIT, await_condition(budgets, "web", allowed(1)))
            .await
            .expect("in time")
            .expect("one may be evicted");
        let status = pods.evict(&name, &EvictParams::default()).await.expect("evicted");
        assert_eq!(status.code, 201);
        let uid = running.items[0].uid().expect("a uid");
        let gone = await_condition(pods.clone(), &name, conditions::is_deleted(&uid));
        timeout(LIMIT, gone).await.expect("in time").expect("it is deleted");

        // Objects that the Deployment owns are deleted with it.
        let cascade = DeleteParams {
            propagation_policy: Some(PropagationPolicy::Background),
            ..DeleteParams::default()
        };
        deployments.delete("web", &cascade).await.expect("deleted");
        crate::harness::wait_for("no pods", LIMIT, || {
            kubectl.ok("get pods -l app=web -o name").is_empty().then_some(())
        });
    });
}
