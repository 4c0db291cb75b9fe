//! A proxy before an embedded cluster's API server that misbehaves as a test tells it to.
//!
//! It speaks plain HTTP to whoever uses its kubeconfig, and passes requests on with the cluster's own
//! credentials. What it does with a request is one [`Act`], chosen by a rule that the test may replace
//! at any time.

use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::harness::ClusterProcess;

/// What becomes of a request.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// It is passed on, and so is the answer.
    Pass,
    /// It is answered here.
    Answer { status: u16, headers: Vec<(&'static str, String)>, body: String },
}

impl Act {
    /// An answer in JSON.
    pub(crate) fn json(status: u16, body: &Value) -> Self {
        let headers = vec![("content-type", "application/json".to_owned())];
        Act::Answer { status, headers, body: body.to_string() }
    }
}

type Rule = Arc<dyn Fn(&Parts) -> Act + Send + Sync>;
type AnswerBody = UnsyncBoxBody<Bytes, kube::Error>;

/// The proxy; it ends when dropped.
pub(crate) struct FaultyApi {
    rule: Arc<Mutex<Rule>>,
    kubeconfig: PathBuf,
    runtime: Option<Runtime>,
    _dir: tempfile::TempDir,
}

impl FaultyApi {
    /// One before this cluster, which does nothing of its own yet.
    pub(crate) fn before(cluster: &ClusterProcess) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let client = runtime.block_on(cluster.client());
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).expect("a port");
        let address = listener.local_addr().expect("an address");

        let text = std::fs::read_to_string(cluster.kubeconfig()).expect("a kubeconfig");
        let mut config: Value = serde_saphyr::from_str(&text).expect("YAML");
        let extensions = config["clusters"][0]["cluster"]["extensions"].take();
        let named = json!({"server": format!("http://{address}"), "extensions": extensions});
        config["clusters"][0]["cluster"] = named;
        config["users"][0]["user"] = json!({"token": "the first"});
        let kubeconfig = dir.path().join("kubeconfig");
        std::fs::write(&kubeconfig, config.to_string()).expect("a file");

        let rule: Arc<Mutex<Rule>> = Arc::new(Mutex::new(Arc::new(|_: &Parts| Act::Pass)));
        runtime.spawn(accept(listener, client, Arc::clone(&rule)));
        Self { rule, kubeconfig, runtime: Some(runtime), _dir: dir }
    }

    /// The kubeconfig that leads to it.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig.clone()
    }

    /// From now on each request is treated so.
    pub(crate) fn set(&self, rule: impl Fn(&Parts) -> Act + Send + Sync + 'static) {
        *self.rule.lock().expect("no panic") = Arc::new(rule);
    }
}

impl Drop for FaultyApi {
    fn drop(&mut self) {
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

async fn accept(listener: TcpListener, client: kube::Client, rule: Arc<Mutex<Rule>>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (client, rule) = (client.clone(), Arc::clone(&rule));
        let serve = service_fn(move |request: Request<Incoming>| {
            let rule = Arc::clone(&rule.lock().expect("no panic"));
            answer(client.clone(), rule, request)
        });
        let http = hyper::server::conn::http1::Builder::new();
        connections.spawn(async move { http.serve_connection(TokioIo::new(stream), serve).await });
    }
}

async fn answer(
    client: kube::Client,
    rule: Rule,
    request: Request<Incoming>,
) -> io::Result<Response<AnswerBody>> {
    let (mut parts, body) = request.into_parts();
    if let Act::Answer { status, headers, body } = rule(&parts) {
        let mut answer = Response::builder().status(status);
        for (name, value) in headers {
            answer = answer.header(name, value);
        }
        let body = Full::new(Bytes::from(body)).map_err(|never| match never {});
        return answer.body(body.boxed_unsync()).map_err(io::Error::other);
    }
    // The cluster's own credentials take the place of whoever asks.
    parts.headers.remove(header::AUTHORIZATION);
    parts.headers.remove(header::HOST);
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let answer = client.send(Request::from_parts(parts, Body::from(body.to_vec()))).await;
    Ok(answer.map_err(io::Error::other)?.map(BodyExt::boxed_unsync))
}
