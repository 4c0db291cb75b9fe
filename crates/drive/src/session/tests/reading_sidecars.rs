//! Tests of reading sidecars' journals outside a run, for a watch.

use super::*;
use crate::collect::{JournalDelivery, JournalDeliveryKind, SidecarJournals};
use rolldrop_record::wire::{COLLECTOR_HEADER, ProxyLine, TOKEN_HEADER, TOKEN_WANTED};

/// A request to a sidecar: pod, path with query, token.
type Asked = (String, String, Option<String>);

/// A namespace with the Deployment `web`, whose pod `web-1` stays, and whose pod `web-2` is being deleted until
/// `is_over`. `respond` returns a sidecar's response to a path with a query.
fn shop(
    is_over: impl Fn(&[Asked]) -> bool + Clone + Send + Sync + 'static,
    respond: impl Fn(&str) -> (u16, String) + Clone + Send + Sync + 'static,
) -> (Client, Arc<Mutex<Vec<Asked>>>) {
    let asked = Arc::<Mutex<Vec<Asked>>>::default();
    let all = Arc::clone(&asked);
    let service = tower::service_fn(move |request: Request<Body>| {
        let (all, is_over, respond) = (Arc::clone(&all), is_over.clone(), respond.clone());
        async move {
            let uri = request.uri();
            let (path, query) = (uri.path(), uri.query().unwrap_or_default());
            let (code, text) = match path.rsplit('/').next() {
                Some("deployments") => (200, deployments().to_string()),
                Some("pods") => {
                    assert!(
                        path == "/api/v1/namespaces/shop/pods" && query.contains("labelSelector=app%3Dweb"),
                        "{uri}"
                    );
                    match (query.contains("watch=true"), is_over(&all.lock().unwrap())) {
                        (false, _) => (200, pods().to_string()),
                        (true, false) => (200, String::new()),
                        (true, true) => (
                            200,
                            json!({"type": "DELETED", "object": web_pod("web-2", true)}).to_string() + "\n",
                        ),
                    }
                }
                _ => {
                    let pod = path.split('/').nth(6).unwrap().trim_end_matches(":18081").to_owned();
                    let asked = format!("{}?{query}", path.rsplit('/').next().unwrap());
                    let token =
                        request.headers().get(TOKEN_HEADER).map(|token| token.to_str().unwrap().to_owned());
                    let is_collecting = request.headers().contains_key(COLLECTOR_HEADER);
                    assert_eq!(is_collecting, asked.starts_with("rows"), "{asked}");
                    let answer = respond(&asked);
                    all.lock().unwrap().push((pod, asked, token));
                    answer
                }
            };
            let response = Response::builder().status(code).body(Body::from(text.into_bytes()));
            response.map_err(kube::Error::HttpError)
        }
    });
    (Client::new(service, "default"), asked)
}

fn deployments() -> Value {
    let metadata = json!({"name": "web", "namespace": "shop", "resourceVersion": "1", "uid": "d"});
    let web = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
        "spec": {"selector": {"matchLabels": {"app": "web"}}}});
    json!({"apiVersion": "apps/v1", "kind": "DeploymentList", "metadata": {"resourceVersion": "1"}, "items": [web]})
}

fn pods() -> Value {
    pods_of(vec![web_pod("web-1", false), web_pod("web-2", true)])
}

fn pods_of(items: Vec<Value>) -> Value {
    json!({"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": items})
}

/// Returns a pod with a running sidecar.
fn web_pod(name: &str, is_ending: bool) -> Value {
    let mut metadata = json!({"name": name, "namespace": "shop", "uid": format!("uid-{name}"),
        "resourceVersion": "2", "labels": {"app": "web"}});
    if is_ending {
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        metadata["deletionGracePeriodSeconds"] = 30.into();
    }
    let sidecar = json!({"name": "rolldrop", "restartPolicy": "Always",
        "ports": [{"name": "rolldrop-admin", "containerPort": 18081}]});
    let status = json!({"name": "rolldrop", "image": "", "imageID": "", "ready": true, "restartCount": 0,
        "state": {"running": {}}});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata,
        "spec": {"containers": [{"name": "app"}], "initContainers": [sidecar]},
        "status": {"phase": "Running", "podIP": "10.0.0.2", "initContainerStatuses": [status]}})
}

/// Returns the deliveries until the end of a journal.
async fn deliveries(client: &Client) -> Vec<JournalDelivery> {
    let token = Some("s3cret".parse().unwrap());
    let sources = ["shop/deployment/web".parse().unwrap()];
    let mut journals = SidecarJournals::begin(client, &sources, token, Clock::start()).await.unwrap();
    let mut all = Vec::new();
    let until_end = async {
        while let Some(delivery) = journals.next().await {
            let is_last = matches!(delivery.kind, JournalDeliveryKind::Ended { .. });
            all.push(delivery);
            if is_last {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), until_end).await.unwrap();
    all
}

/// Responds as a sidecar with three rows, the first of which is number `next`.
fn three_rows(asked: &str, recorded: u64, next: u64) -> (u16, String) {
    if asked.starts_with("clock?") {
        return (200, json!({"now_ns": 8, "started_ns": 7, "recorded": recorded}).to_string());
    }
    let hello = ProxyLine::Hello {
        source: "web-2".into(),
        pod: "web-2".into(),
        started_ns: Stamp::from_unix_ns(7),
        next,
    };
    let rows = [0, 1, 2].map(|seq| ProxyLine::Row(served(seq)));
    let lines = [hello].into_iter().chain(rows).chain([ProxyLine::End { recorded: next + 3 }]);
    (200, lines.map(|line| serde_json::to_string(&line).unwrap() + "\n").collect())
}

fn has_read_rows(asked: &[Asked]) -> bool {
    asked.iter().any(|(_, path, _)| path.starts_with("rows?"))
}

fn gaps(deliveries: &[JournalDelivery]) -> Vec<&str> {
    let gaps = deliveries.iter().filter_map(|delivery| match &delivery.kind {
        JournalDeliveryKind::Gap { why, .. } => Some(why.as_str()),
        _ => None,
    });
    gaps.collect()
}

#[tokio::test]
async fn only_terminating_pods_receive_token() {
    let (client, asked) = shop(has_read_rows, |asked| three_rows(asked, 3, 0));
    let deliveries = deliveries(&client).await;
    let asked = asked.lock().unwrap();
    let token = Some("s3cret".to_owned());
    assert!(asked.iter().all(|(pod, _, sent)| pod == "web-2" && *sent == token), "{asked:?}");
    let is_of_pod =
        |of: &JournalDelivery| (of.number, &*of.uid, &*of.log) == (0, "uid-web-2", "shop/web-2/rolldrop");
    assert!(deliveries.iter().all(is_of_pod), "{deliveries:?}");
    // The clock is known before the first rows.
    assert!(matches!(deliveries[0].kind, JournalDeliveryKind::Clock(_)), "{deliveries:?}");
    let rows = deliveries.iter().filter_map(|delivery| match &delivery.kind {
        JournalDeliveryKind::Rows(rows) => Some(rows.len()),
        _ => None,
    });
    assert_eq!((rows.sum::<usize>(), gaps(&deliveries)), (3, Vec::new()));
}

#[tokio::test]
async fn only_latest_rows_of_old_sidecar_are_read() {
    let (client, asked) = shop(has_read_rows, |asked| three_rows(asked, 50_000, 30_000));
    assert_eq!(gaps(&deliveries(&client).await), [] as [&str; 0]);
    let asked = asked.lock().unwrap();
    let rows = asked.iter().find(|(_, path, _)| path.starts_with("rows?")).unwrap();
    assert_eq!(rows.1, "rows?from=30000&of=7");
}

#[tokio::test]
async fn rows_discarded_by_sidecar_leave_gap() {
    let (client, _) = shop(has_read_rows, |asked| three_rows(asked, 5, 2));
    let deliveries = deliveries(&client).await;
    let expected = ["the sidecar no longer had all rows", "2 of its requests have no row"];
    assert_eq!(gaps(&deliveries), expected, "{deliveries:?}");
}

#[tokio::test]
async fn sidecar_refusing_token_leaves_gap() {
    let is_over = |asked: &[Asked]| asked.len() > 5;
    let begun = AtomicUsize::new(0);
    let respond = Arc::new(move || match begun.fetch_add(1, Ordering::SeqCst) {
        // Two requests are made at the same time.
        0 | 4.. => status(503, "ServiceUnavailable", "connection refused"),
        _ => (401, format!("{TOKEN_WANTED}\n")),
    });
    let (client, _) = shop(is_over, move |_| respond());
    let deliveries = deliveries(&client).await;
    let warnings: Vec<_> = deliveries
        .iter()
        .filter_map(|delivery| match &delivery.kind {
            JournalDeliveryKind::Warning(what) => Some(what.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(warnings, ["the sidecar of pod shop/web-2 does not accept the token (--admin-token-file)"]);
    assert_eq!(gaps(&deliveries), ["it does not accept the token (--admin-token-file)"], "{deliveries:?}");
}

#[tokio::test]
async fn missing_permission_is_reported_once() {
    let is_over = |asked: &[Asked]| asked.len() > 3;
    let why = "pods \"web-2:18081\" is forbidden: cannot get resource \"pods/proxy\"";
    let (client, _) = shop(is_over, move |_| status(403, "Forbidden", why));
    let deliveries = deliveries(&client).await;
    let warned = deliveries.iter().filter(|of| matches!(of.kind, JournalDeliveryKind::Warning(_))).count();
    let gap = format!("it cannot be read: {why}");
    assert_eq!((warned, gaps(&deliveries)), (1, vec![gap.as_str()]), "{deliveries:?}");
}

#[tokio::test]
async fn pod_without_sidecar_is_reported_once() {
    let bare = |version: &str| {
        let mut pod = web_pod("web-2", true);
        pod["spec"]["initContainers"] = json!([]);
        pod["metadata"]["resourceVersion"] = version.into();
        pod
    };
    let (list, event) = (pods_of(vec![bare("2")]), json!({"type": "MODIFIED", "object": bare("3")}));
    let answer = move |_: &Method, uri: &Uri, _: &Value| match uri.path().rsplit('/').next() {
        Some("deployments") => (200, deployments().to_string()),
        _ if uri.query().is_some_and(|query| query.contains("watch=true")) => {
            (200, format!("{event}\n{event}\n"))
        }
        _ => (200, list.to_string()),
    };
    let (client, calls) = api_of_bodies(answer);
    let sources = ["shop/deployment/web".parse().unwrap()];
    let mut journals = SidecarJournals::begin(&client, &sources, None, Clock::start()).await.unwrap();
    let told = journals.next().await.unwrap().kind;
    let what = "pod shop/web-2 has no sidecar: add it with `rolldrop inject`".to_owned();
    assert_eq!(told, JournalDeliveryKind::Warning(what));
    // The deployment, the list, and two watches that show the pod again.
    while calls.lock().unwrap().len() < 4 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let more = tokio::time::timeout(Duration::ZERO, journals.next()).await;
    assert!(more.is_err(), "{more:?}");
}

#[tokio::test]
async fn killed_sidecar_leaves_gap() {
    let (client, _) = shop(has_read_rows, |asked| {
        let (code, text) = three_rows(asked, 3, 0);
        (
            code,
            text.lines()
                .filter(|line| !line.contains("\"end\":{\"recorded"))
                .map(|line| format!("{line}\n"))
                .collect(),
        )
    });
    let deliveries = deliveries(&client).await;
    assert_eq!(gaps(&deliveries), ["the sidecar ended before it had handed over its last rows"]);
}
