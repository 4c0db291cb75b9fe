use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{DeleteParams, ListParams, LogParams, WatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::*;

/// Returns a guarded client whose API server answers every request with these pieces, and a counter of its requests.
fn client(status: u16, pieces: Vec<Vec<u8>>) -> (Client, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let service = tower::service_fn(move |_: Request<Body>| {
        count.fetch_add(1, Ordering::SeqCst);
        let pieces =
            pieces.clone().into_iter().map(|piece| Ok::<_, BoxError>(Frame::data(Bytes::from(piece))));
        let answer = Response::builder().status(status).body(StreamBody::new(stream::iter(pieces)));
        std::future::ready(answer)
    });
    (Client::new(GuardLayer.layer(service), "shop"), asked)
}

fn answering(answer: &Value) -> Client {
    client(200, vec![answer.to_string().into_bytes()]).0
}

fn pod(name: &str, namespace: &str, app: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "node-1", "containers": []},
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": app}}})
}

fn list(items: &[Value]) -> Value {
    json!({"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "7"}, "items": items})
}

fn pods(client: Client) -> Api<Pod> {
    Api::namespaced(client, "shop")
}

fn why(error: &kube::Error) -> String {
    distrust(error).unwrap_or_else(|| panic!("not an untrusted response: {error:?}")).to_string()
}

#[tokio::test]
async fn guard_rejects_unrequested_objects() {
    let web = pod("web", "shop", "web");
    let params = ListParams::default().labels("app in (web, api),!old").fields("spec.nodeName=node-1");
    let listed = pods(answering(&list(std::slice::from_ref(&web)))).list(&params).await;
    assert_eq!(listed.unwrap().items.len(), 1);
    for (lie, said) in [
        (pod("web", "kube-system", "web"), "is in namespace \"kube-system\", not in \"shop\""),
        (pod("web", "", "web"), "is in namespace \"\", not in \"shop\""),
        (pod("web", "shop", "db"), "do not match the requested selector app in (api,web)"),
        (
            pod("x?gracePeriodSeconds=0&", "shop", "web"),
            "\"x?gracePeriodSeconds=0&\" is not a valid name for pods",
        ),
        (pod("../../kube-system/pods/dns", "shop", "web"), "is not a valid name for pods"),
        (pod("..", "shop", "web"), "is not a valid name for pods"),
    ] {
        let mut elsewhere = web.clone();
        elsewhere["spec"]["nodeName"] = "node-2".into();
        let listed = pods(answering(&list(&[web.clone(), lie.clone()]))).list(&params).await;
        assert!(why(&listed.unwrap_err()).contains(said), "{said}");
        let listed = pods(answering(&list(&[elsewhere]))).list(&params).await;
        assert!(why(&listed.unwrap_err()).contains("does not have the requested field \"node-1\""));
    }
    let found = pods(answering(&pod("web", "shop", "web"))).get("web").await;
    assert!(found.is_ok());
    for lie in [pod("dns", "shop", "web"), pod("web", "kube-system", "web"), json!({"kind": "Pod"})] {
        let (reading, deleting) = (pods(answering(&lie)), pods(answering(&lie)));
        let read = reading.get("web").await.map(drop);
        let deleted = deleting.delete("web", &DeleteParams::default()).await.map(drop);
        if lie["metadata"].is_null() {
            // An empty object contradicts nothing, but it cannot be parsed.
            assert!(read.is_err());
        } else {
            assert!(why(&read.unwrap_err()).contains(", not "), "{lie}");
            assert!(why(&deleted.unwrap_err()).contains(", not "), "{lie}");
        }
    }
    let events = Api::<Event>::namespaced(
        answering(&list(&[json!({"metadata": {"name": "web.1", "namespace": "shop"},
        "involvedObject": {"kind": "Node"}, "reason": "Rebooted"})])),
        "shop",
    );
    for (fields, missing) in
        [("involvedObject.kind=Pod", "Pod"), ("involvedObject.kind=Node,reason=Starting", "Starting")]
    {
        let error = why(&events.list(&ListParams::default().fields(fields)).await.unwrap_err());
        assert!(error.contains(&format!("does not have the requested field {missing:?}")), "{error}");
    }
}

#[tokio::test]
async fn invalid_names_are_never_requested() {
    let (client, asked) = client(200, vec![pod("web", "shop", "web").to_string().into_bytes()]);
    let names =
        ["x?gracePeriodSeconds=0&", "../../kube-system/pods/dns", "..", ".", "a%2f..", "x#", "x?watch=true"];
    for name in names {
        let pods = pods(client.clone());
        assert!(pods.get(name).await.is_err(), "{name}");
        assert!(pods.delete(name, &DeleteParams::default()).await.is_err(), "{name}");
        let elsewhere = Api::<Pod>::namespaced(client.clone(), name);
        assert!(elsewhere.list(&ListParams::default()).await.is_err(), "{name}");
    }
    // A "#" cannot be seen here, because the client itself cuts it off together with everything after it.
    assert_eq!(asked.load(Ordering::SeqCst), 3, "no other name is requested");
    let unclear = ListParams::default().labels("a~b");
    assert!(why(&pods(client.clone()).list(&unclear).await.unwrap_err()).contains("cannot check responses"));
    let request = |uri: &str| Request::get(uri).body(()).unwrap();
    for uri in [
        "/api/v1/nodes/node-1/proxy/logs?x=1",
        "/api/v1/namespaces/shop/pods/web:8080/proxy/rows",
        "/version",
    ] {
        assert!(GuardedRequest::of(&request(uri)).is_ok(), "{uri}");
    }
    for uri in
        ["/api/v1/namespaces/shop/pods/web:8080/proxy/../../x", "/api/v1/nodes/a?b/proxy/", "/api//v1/pods"]
    {
        assert!(GuardedRequest::of(&request(uri)).is_err(), "{uri}");
    }
}

#[tokio::test]
async fn unrequested_event_ends_watch() {
    let event = |kind: &str, object: &Value| format!("{}\n", json!({"type": kind, "object": object}));
    let good = event("ADDED", &pod("web", "shop", "web"));
    let gone = event("DELETED", &pod("web", "shop", "db"));
    let mark =
        event("BOOKMARK", &json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}}));
    let told = event(
        "ERROR",
        &json!({"kind": "Status", "code": 410, "message": "", "reason": "Expired", "status": "Failure"}),
    );
    let seen = async |text: String, piece: usize| {
        let pieces = text.as_bytes().chunks(piece).map(<[u8]>::to_vec).collect();
        let params = WatchParams::default().labels("app=web");
        let events = pods(client(200, pieces).0).watch(&params, "7").await.unwrap();
        events.boxed().collect::<Vec<_>>().await
    };
    for piece in [1, 7, 1000] {
        let whole = seen(format!("{good}{mark}{gone}{told}"), piece).await;
        assert!(whole.len() == 4 && whole.iter().all(Result::is_ok), "{whole:?}");
        for lie in [pod("web", "kube-system", "web"), pod("web", "shop", "db"), pod("..", "shop", "web")] {
            let cut = seen(format!("{good}{}{good}", event("MODIFIED", &lie)), piece).await;
            let lie = cut.iter().find_map(|event| event.as_ref().err()).expect("an error");
            assert!(why(lie).contains("rejected"), "{lie:?}");
            assert!(cut.len() <= 2, "{cut:?}");
        }
    }
    // If the response is cut off mid-line, only the complete lines pass.
    assert_eq!(seen(format!("{good}{}", &good[..20]), 9).await.len(), 1);
}

#[tokio::test]
async fn guard_rejects_endless_responses() {
    let endless = || vec![vec![b' '; ANSWER_BYTES / 8]; 9];
    for status in [200, 500] {
        let listed = pods(client(status, endless()).0).list(&ListParams::default()).await;
        assert!(why(&listed.unwrap_err()).ends_with("it is longer than 33554432 bytes"));
    }
    let log = pods(client(500, endless()).0).logs("web", &LogParams::default()).await;
    assert!(why(&log.unwrap_err()).ends_with("it is longer than 65536 bytes"));
    let line = vec![vec![b' '; WATCH_LINE_BYTES / 2]; 4];
    let watch = pods(client(200, line).0).watch(&WatchParams::default(), "0").await.unwrap();
    let ended = watch.try_collect::<Vec<_>>().await.unwrap_err();
    assert!(why(&ended).contains("a watch line is longer than 4194304 bytes"), "{ended:?}");
}

#[test]
fn discovery_rejects_kinds_with_path_segments() {
    let asked = GuardedRequest::of(&Request::get("/api/v1").body(()).unwrap()).unwrap();
    let kinds = |name: &str| json!({"kind": "APIResourceList", "resources": [{"name": name}]}).to_string();
    assert!(response_check::check_answer(&asked, kinds("pods/eviction").as_bytes()).is_ok());
    assert!(response_check::check_answer(&asked, kinds("../pods").as_bytes()).is_err());
    assert!(response_check::check_answer(&asked, b"ok").is_ok());
}
