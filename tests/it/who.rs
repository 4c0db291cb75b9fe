//! Known-answer tests for the pods that responses name, in any header or in the body, over HTTP/1.1 and HTTP/2.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rolldrop_explain::Analysed;
use rolldrop_record::event::AnswerHeaders;
use rolldrop_record::{EventKind, Outcome, RequestId, RunDir};
use serde_json::json;

use crate::harness::Rolldrop;
use crate::machine::measured;
use crate::runs::{Dataplane, measure};
use crate::web::Web;

/// Pod that the server named for each request id, and whether the response was an error.
type Truth = Arc<Mutex<BTreeMap<String, (String, bool)>>>;

/// Names a pod by a fixed rule: for `/body` in the body, else in the header, where a gateway adds its own name. Every
/// fifth response is an error from the gateway.
fn answer(request: &Request<Incoming>, truth: &Truth) -> Response<Full<Bytes>> {
    let id = request.headers()["rolldrop-id"].to_str().expect("an id").to_owned();
    let seq = id.parse::<RequestId>().expect("an id").seq;
    let (pod, is_error) = (format!("web-{}", seq % 3), seq.is_multiple_of(5));
    truth.lock().expect("the truth").insert(id, (pod.clone(), is_error));
    let answer = Response::builder()
        .header("server", "envoy")
        .header("via", if seq.is_multiple_of(2) { "1.1 a" } else { "1.1 b" })
        .header("x-envoy-response-flags", "UF")
        .header("x-cache", "MISS")
        .header("x-other", "not kept");
    let (answer, body) = match request.uri().path() {
        "/body" => (answer, format!("Name: web\nHostname: {pod}, edge-7\nIP: ::1\n")),
        _ => (answer.header("x-served-by", pod).header("x-served-by", "edge-7"), "hello".to_owned()),
    };
    answer.status(if is_error { 503 } else { 200 }).body(Full::from(body)).expect("a response")
}

/// Serves until the test process exits.
fn serve(http2: bool) -> (SocketAddr, Truth) {
    let truth = Truth::default();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    let address = listener.local_addr().expect("an address");
    let log = Arc::clone(&truth);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            while let Ok((stream, _)) = listener.accept().await {
                let log = Arc::clone(&log);
                let service = service_fn(move |request| {
                    let answer = answer(&request, &log);
                    async move { Ok::<_, Infallible>(answer) }
                });
                let stream = TokioIo::new(stream);
                tokio::spawn(async move {
                    if http2 {
                        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                        let _ = server.serve_connection(stream, service).await;
                    } else {
                        let server = hyper::server::conn::http1::Builder::new();
                        let _ = server.serve_connection(stream, service).await;
                    }
                });
            }
        });
    });
    (address, truth)
}

#[test]
fn header_or_body_names_pod() {
    let by_header = ["--pod-header", "X-Served-By"];
    let by_body = ["--pod-body", "Hostname: (.+)"];
    for (http, connections, path, naming) in [
        ("1.1", "fresh", "", by_header),
        ("1.1", "keepalive", "", by_header),
        ("1.1", "keepalive", "body", by_body),
        ("2", "keepalive", "", by_header),
        ("2", "keepalive", "body", by_body),
    ] {
        let (address, truth) = serve(http == "2");
        let finished = Rolldrop::new(["load", &format!("http://{address}/{path}"), "-r", "max", "-n", "150"])
            .args(["--http", http, "--connections", connections, "-c", "2", "--out", "run", "--workers", "2"])
            .args(naming)
            .args(["--keep-header", "x-cache"])
            .args(["--connect-timeout", "60s", "--response-timeout", "60s"])
            .finish()
            .expect_code(0);
        let records = RunDir::open(&finished.dir().join("run")).and_then(|run| run.read()).expect("a run");
        let truth = truth.lock().expect("the truth");
        let mut answered = 0;
        for row in &records.requests {
            let id = records.info.request_id(row).to_string();
            let (pod, is_error) = truth.get(&id).unwrap_or_else(|| panic!("{id} did not arrive\n{finished}"));
            assert_eq!(row.pod.as_deref(), Some(&*format!("{pod}, edge-7")), "{row:?}");
            assert_eq!(row.outcome == Outcome::HttpError, *is_error, "{row:?}");
            let kept: Option<BTreeMap<String, String>> =
                row.headers.as_deref().map(|headers| serde_json::from_str(headers).expect("JSON"));
            let via = if row.seq.is_multiple_of(2) { "1.1 a" } else { "1.1 b" };
            let expected =
                [("server", "envoy"), ("via", via), ("x-cache", "MISS"), ("x-envoy-response-flags", "UF")];
            let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
            assert_eq!(kept, is_error.then(|| expected.into()), "{row:?}");
            answered += 1;
        }
        assert_eq!(answered, 150, "{finished}");
        let told: Vec<&AnswerHeaders> = records
            .events
            .iter()
            .filter_map(|event| match &event.kind {
                EventKind::AnswerHeaders(answers) => Some(answers),
                _ => None,
            })
            .collect();
        let [told] = told[..] else { panic!("{told:?}\n{finished}") };
        assert_eq!((told.answers, &told.server), (answered, &BTreeMap::from([("envoy".into(), answered)])));
        assert_eq!((told.via.len(), told.via.values().sum::<u64>()), (2, answered), "{told:?}");
        let balances_requests = told.pods_within_connection_changed > 0;
        assert_eq!(balances_requests, connections == "keepalive", "{told:?}");
        assert!(finished.dir().join("run/run.json").exists());
    }
}

#[test]
fn unusable_pod_body_pattern_is_refused() {
    for command in [&["load", "http://127.0.0.1:1/"][..], &["run", "--embedded"]] {
        for (pattern, why) in
            [("pod=(", "unclosed group, at character 5"), ("x*", "it can match an empty string")]
        {
            let finished = Rolldrop::new(command.iter().copied()).args(["--pod-body", pattern]).finish();
            assert!(finished.expect_code(2).stderr().contains(why), "{why}");
        }
    }
    for (arguments, why) in [
        (&["http://127.0.0.1:1/", "--grpc", "a/b"][..], "cannot be used with"),
        (&["ws://127.0.0.1:1/"], "a WebSocket response has no body"),
    ] {
        let finished = Rolldrop::new(["load", "--pod-body", "pod=(.+)"]).args(arguments).finish();
        assert!(finished.expect_code(2).stderr().contains(why), "{why}");
    }
}

/// Returns a scenario of two pods with the recording proxy beside them, and a stranger that sends requests with ids of
/// its own.
fn scenario() -> String {
    let script = r#"
        n=0
        while :; do
          for id in load-0-$n 0123456789ab-load-0-$n; do
            curl -s -o /dev/null -m 5 -H "rolldrop-id: $id" "http://$WEB_SERVICE_HOST/"
            sleep 0.05
          done
          n=$((n + 1))
        done"#;
    let stranger = json!({"name": "app", "image": "host", "command": ["sh", "-c", script]});
    let stranger = json!({"terminationGracePeriodSeconds": 1, "containers": [stranger]});
    let labels = json!({"app": "stranger"});
    let stranger = json!({"metadata": {"labels": labels}, "spec": stranger});
    let stranger = json!({"selector": {"matchLabels": labels}, "template": stranger});
    let web = Web::new(2).named().pod(json!({"terminationGracePeriodSeconds": 5}));
    web.and("apps/v1", "Deployment", "stranger", stranger).scenario(
        "stranger",
        "
  cluster: {embedded: {nodes: 1}}
  target: {service: web}
  sidecar: {inject: true}
  load: {rate: 60, warmup: 1s, duration: 9s, timeout: {connect: 10s, response: 30s}}
  disruptions: [{at: 4s, action: deletePod, selector: app=web, count: 1}]
",
    )
}

#[test]
fn request_ids_of_others_change_no_figures() {
    measured(|| {
        let run = measure(&scenario(), Dataplane::Userspace, &[]);
        let own = run.records.info.run.as_str();
        let with_id: Vec<_> = run.records.served.iter().filter_map(|row| row.request.as_ref()).collect();
        let strange = with_id.iter().filter(|id| id.run() != own).count();
        assert!(strange > 0, "no request from a stranger\n{}", run.finished);
        run.finished.figure(strange >= 60);
        let what: Vec<&str> = run.result.findings.iter().map(|finding| finding.what.as_str()).collect();
        let told = what.iter().find(|what| what.contains("with an id from another run")).expect("a finding");
        let count: String =
            told.split(' ').nth(1).unwrap_or_default().chars().filter(char::is_ascii_digit).collect();
        assert_eq!(count.parse(), Ok(strange), "{told}");
        assert!(!what.iter().any(|what| what.contains("a time before the request was sent")), "{what:?}");

        let (log, tables) = RunDir::open(&run.path).and_then(|run| run.recorded()).expect("the run reads");
        let Analysed { requests, .. } = Analysed::of(log, tables).expect("the rows read");
        let mut joined = 0;
        requests.in_memory().expect("the rows read").iter().for_each(|request| {
            // Both ends name the same pod; a stranger's row would name another one half of the time.
            if request.row.outcome == Outcome::Ok {
                assert!(request.proxy.is_some(), "{request:?}");
                assert_eq!(request.proxy, request.row.pod, "{request:?}");
                assert!(request.other_attempts.is_empty() && request.misfits.is_empty(), "{request:?}");
                joined += 1;
            }
        });
        assert!(joined > 0, "no request has a proxy row\n{}", run.finished);
        run.finished.figure(joined > 300);
    });
}
