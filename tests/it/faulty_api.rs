//! A proxy in front of an embedded cluster's API server. It misbehaves as a test tells it to.
//!
//! The proxy speaks plain HTTP to every user of its kubeconfig, and forwards requests with the cluster's own
//! credentials. An [`Act`] determines the treatment of each request. The rule that chooses the act can be replaced at
//! any time.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::request::Parts;
use http::{Request, Response, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, BodyStream, Full, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::harness::{OWN_PORT, own_host};
use crate::lab::Cluster;

/// Treatment of a request by the proxy.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Forwards the request and the response.
    Pass,
    /// Responds without forwarding the request.
    Answer { status: u16, headers: Vec<(&'static str, String)>, body: String },
    /// Forwards the request after this delay.
    Slow(Duration),
    /// Forwards the request, but closes the connection instead of returning the response.
    LoseAnswer,
    /// Cuts the response off after this time.
    EndAfter(Duration),
    /// Changes the objects in the returned list with this function.
    Lie(fn(&mut Value)),
}

impl Act {
    /// Returns the response of an API server that refuses the request.
    pub(crate) fn status(status: u16, reason: &str) -> Self {
        let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status,
            "reason": reason, "message": format!("{reason}, as the test says")});
        Self::json(status, &body)
    }

    /// Returns a JSON response.
    pub(crate) fn json(status: u16, body: &Value) -> Self {
        let headers = vec![("content-type", "application/json".to_owned())];
        Act::Answer { status, headers, body: body.to_string() }
    }
}

/// Returns true if a request is a watch.
pub(crate) fn is_watch(request: &Parts) -> bool {
    request.uri.query().is_some_and(|query| query.contains("watch=true"))
}

type Rule = Arc<dyn Fn(&Parts) -> Act + Send + Sync>;
type AnswerBody = UnsyncBoxBody<Bytes, kube::Error>;

/// The proxy; it stops when dropped.
pub(crate) struct FaultyApi {
    rule: Arc<Mutex<Rule>>,
    is_open: watch::Sender<bool>,
    is_listening: watch::Receiver<bool>,
    kubeconfig: PathBuf,
    runtime: Option<Runtime>,
    _dir: tempfile::TempDir,
}

impl FaultyApi {
    /// Starts a proxy in front of this cluster. At first, it forwards everything.
    pub(crate) fn before(cluster: &Cluster) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let client = runtime.block_on(cluster.client());
        // No one else takes the port while nothing listens on it.
        let listener = runtime.block_on(TcpListener::bind((own_host(), OWN_PORT))).expect("a port");
        let address = listener.local_addr().expect("an address");

        let text = std::fs::read_to_string(cluster.kubeconfig()).expect("a kubeconfig");
        let mut config: Value = serde_saphyr::from_str(&text).expect("YAML");
        let extensions = config["clusters"][0]["cluster"]["extensions"].take();
        let named = json!({"server": format!("http://{address}"), "extensions": extensions});
        config["clusters"][0]["cluster"] = named;
        config["users"][0]["user"] = json!({"token": "the first"});
        let kubeconfig = dir.path().join("kubeconfig");
        std::fs::write(&kubeconfig, config.to_string()).expect("a file");

        let (is_open, opened) = watch::channel(true);
        let (listening, is_listening) = watch::channel(true);
        let rule: Arc<Mutex<Rule>> = Arc::new(Mutex::new(Arc::new(|_: &Parts| Act::Pass)));
        runtime.spawn(accept(listener, opened, listening, client, Arc::clone(&rule)));
        Self { rule, is_open, is_listening, kubeconfig, runtime: Some(runtime), _dir: dir }
    }

    /// Returns the kubeconfig for the proxy.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig.clone()
    }

    /// Replaces the user's credentials in the kubeconfig.
    pub(crate) fn authenticate_by(&self, user: &Value) {
        let text = std::fs::read_to_string(&self.kubeconfig).expect("its kubeconfig");
        let mut config: Value = serde_json::from_str(&text).expect("JSON");
        config["users"][0]["user"] = user.clone();
        std::fs::write(&self.kubeconfig, config.to_string()).expect("a file");
    }

    /// Sets the rule for all requests from now on.
    pub(crate) fn set(&self, rule: impl Fn(&Parts) -> Act + Send + Sync + 'static) {
        *self.rule.lock().expect("no panic") = Arc::new(rule);
    }

    /// Forwards all requests from now on.
    pub(crate) fn pass(&self) {
        self.set(|_| Act::Pass);
    }

    /// Cuts all connections and refuses new ones.
    pub(crate) fn refuse(&self) {
        self.is_open.send_replace(false);
        self.until_listening(false);
    }

    /// Accepts connections again.
    pub(crate) fn accept(&self) {
        self.is_open.send_replace(true);
        self.until_listening(true);
    }

    fn until_listening(&self, wanted: bool) {
        let mut is_listening = self.is_listening.clone();
        let runtime = self.runtime.as_ref().expect("it runs");
        runtime.block_on(is_listening.wait_for(|is| *is == wanted)).expect("it runs");
    }
}

impl Drop for FaultyApi {
    fn drop(&mut self) {
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

async fn accept(
    first: TcpListener,
    mut is_open: watch::Receiver<bool>,
    listening: watch::Sender<bool>,
    client: kube::Client,
    rule: Arc<Mutex<Rule>>,
) {
    let address = first.local_addr().expect("an address");
    let mut listener = Some(first);
    while is_open.wait_for(|is| *is).await.is_ok() {
        let door = match listener.take() {
            Some(listener) => listener,
            None => TcpListener::bind(address).await.expect("its own port"),
        };
        listening.send_replace(true);
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = door.accept() => {
                    let Ok((stream, _)) = accepted else { continue };
                    let (client, rule) = (client.clone(), Arc::clone(&rule));
                    let serve = service_fn(move |request: Request<Incoming>| {
                        let rule = Arc::clone(&rule.lock().expect("no panic"));
                        answer(client.clone(), rule, request)
                    });
                    let http = hyper::server::conn::http1::Builder::new();
                    connections.spawn(async move { http.serve_connection(TokioIo::new(stream), serve).await });
                }
                closed = is_open.wait_for(|is| !*is) => {
                    drop(closed);
                    break;
                }
            }
        }
        drop(door);
        connections.shutdown().await;
        listening.send_replace(false);
    }
}

async fn answer(
    client: kube::Client,
    rule: Rule,
    request: Request<Incoming>,
) -> io::Result<Response<AnswerBody>> {
    let (mut parts, body) = request.into_parts();
    let act = rule(&parts);
    match &act {
        Act::Answer { status, headers, body } => {
            let mut answer = Response::builder().status(*status);
            for (name, value) in headers {
                answer = answer.header(*name, value);
            }
            let body = Full::new(Bytes::from(body.clone())).map_err(|never| match never {});
            return answer.body(body.boxed_unsync()).map_err(io::Error::other);
        }
        Act::Slow(late) => tokio::time::sleep(*late).await,
        Act::Pass | Act::LoseAnswer | Act::EndAfter(_) | Act::Lie(_) => {}
    }
    // The cluster's own credentials replace the client's.
    parts.headers.remove(header::AUTHORIZATION);
    parts.headers.remove(header::HOST);
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let answer = client.send(Request::from_parts(parts, Body::from(body.to_vec()))).await;
    let answer = answer.map_err(io::Error::other)?;
    match act {
        Act::LoseAnswer => Err(io::Error::other("the response is lost")),
        Act::Lie(lie) => {
            let (mut head, body) = answer.into_parts();
            let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
            let mut list: Value = serde_json::from_slice(&body)?;
            list["items"].as_array_mut().into_iter().flatten().for_each(lie);
            head.headers.remove(header::CONTENT_LENGTH);
            let body = Full::new(Bytes::from(list.to_string())).map_err(|never| match never {});
            Ok(Response::from_parts(head, body.boxed_unsync()))
        }
        Act::EndAfter(length) => {
            let end = Box::pin(tokio::time::sleep(length));
            Ok(answer.map(|body| StreamBody::new(BodyStream::new(body).take_until(end)).boxed_unsync()))
        }
        _ => Ok(answer.map(BodyExt::boxed_unsync)),
    }
}
