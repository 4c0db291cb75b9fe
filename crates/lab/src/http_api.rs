//! Serves the Kubernetes API over HTTPS on loopback, to clients with a token.
//!
//! It supports only HTTP/1.1, and objects in responses are JSON. This module turns requests into calls to the
//! [registry](super::registry), which implements the semantics, and turns the results into responses. `api_route`
//! parses paths, `auth` authorizes users through [RBAC](super::rbac), `object_handlers` handles verbs on objects,
//! `watch_feed` serves watches, `pod_proxy` forwards requests to pod ports, and `pod_log` serves pod logs.
//!
//! A slow client costs little and is cut off: it has `HEAD_TIMEOUT` for the TLS handshake and for the head of each
//! request, and its connection is closed if it reads no part of a response for `STALL_TIMEOUT`. Idle connections are
//! closed to make room for new ones (`places`).

mod api_route;
mod auth;
mod body;
mod discovery;
mod eviction_request;
mod fields;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod modelled;
mod negotiate;
mod node_command;
mod object_handlers;
mod pod_log;
mod pod_proxy;
mod present;
mod protobuf;
mod query;
mod respond;
mod review;
mod scale;
mod server_identity;
mod table;
mod unsupported;
mod watch_feed;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutStream;

use super::agents::Agents;
use super::api_tokens::ApiTokens;
use super::resource::Resource;
use super::shared::ClusterContext;
use super::status::Status;
use api_route::{ApiRoute, Subresource};
use query::Query;
use respond::ApiResponse;
use rolldrop_wire::places::{ConnectionPlace, Patience, Places, TrackedBody};

pub(crate) use server_identity::{IdentityError, ServerIdentity};

/// Time limit for the TLS handshake and for the head of each request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Time after which an idle connection is closed (kube-apiserver: `IdleTimeout` in
/// staging/src/k8s.io/apiserver/pkg/server/secure_serving.go).
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Time after which a connection is closed if the client does not read its response.
const STALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of connections. Once all are in use and none is idle, new connections wait.
const MAX_CONNECTIONS: usize = 512;

/// State of the API server: the cluster's shared state, the users' tokens, and access to the node agents.
#[derive(Debug)]
pub(crate) struct ApiServerState {
    pub(crate) shared: ClusterContext,
    pub(crate) agents: Agents,
    pub(crate) tokens: ApiTokens,
    pub(crate) identity: ServerIdentity,
}

/// Serves the API on `listener` until the cluster is stopped.
pub(crate) async fn serve(listener: TcpListener, server: Arc<ApiServerState>) {
    let places = Places::new(MAX_CONNECTIONS, Patience { idle: IDLE_TIMEOUT, head: HEAD_TIMEOUT });
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = server.shared.stop.cancelled() => return,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Most likely out of file descriptors, so wait for some connections to close.
                tracing::warn!(%error, "the API server cannot accept connections");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let place = tokio::select! {
            place = places.take(peer.ip()) => place,
            () = server.shared.stop.cancelled() => return,
        };
        let server = Arc::clone(&server);
        connections.spawn(async move {
            tokio::select! {
                biased;
                () = place.closing() => {}
                ended = serve_connection(stream, &server, &place) => {
                    if let Err(error) = ended {
                        tracing::debug!(error, "an API connection failed");
                    }
                }
            }
        });
    }
}

async fn serve_connection(
    stream: TcpStream,
    server: &Arc<ApiServerState>,
    place: &Arc<ConnectionPlace>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    // Watch events are small, and Nagle's algorithm would delay them.
    stream.set_nodelay(true)?;
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(STALL_TIMEOUT));
    let handshake = server.identity.acceptor.accept(Box::pin(stream));
    let stream = tokio::time::timeout(HEAD_TIMEOUT, handshake).await??;
    let service = service_fn(|request| async {
        let in_hand = place.begin_request();
        let answer = answer(request, server).await;
        Ok::<_, Infallible>(answer.map(|body| TrackedBody { body, _request: in_hand }))
    });
    hyper::server::conn::http1::Builder::new()
        // The connection's place has its own timeouts. It cuts off slow request heads, but leaves idle connections open
        // for longer.
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(place.noticing(stream)), service)
        .await?;
    Ok(())
}

async fn answer(request: Request<Incoming>, server: &Arc<ApiServerState>) -> ApiResponse {
    let line = format!("{} {}", request.method(), request.uri());
    let answer = match dispatch(request, server).await {
        Ok(answer) => answer,
        Err(status) => respond::status(&status),
    };
    tracing::trace!(request = line, status = answer.status().as_u16(), "API");
    answer
}

async fn dispatch(request: Request<Incoming>, server: &Arc<ApiServerState>) -> Result<ApiResponse, Status> {
    let shared = &server.shared;
    let user = auth::authenticate(&request, server).ok_or_else(|| Status::plain(401, "Unauthorized"))?;
    let query = Query::of(request.uri());
    let Some(route) = ApiRoute::of(request.uri().path()) else { return Ok(respond::unknown_path()) };
    auth::authorize(&request, &shared.registry, &query, &route, &user)?;
    match route {
        ApiRoute::Document(document) => {
            if request.method() != Method::GET {
                return Err(Status::method_not_allowed());
            }
            Ok(discovery::answer(document))
        }
        ApiRoute::Review(review) => review::answer(request, &shared.registry, review, &user).await,
        ApiRoute::Collection { resource, namespace } => {
            object_handlers::collection(request, server, &query, resource, namespace).await
        }
        ApiRoute::Object { resource, namespace, name, subresource: Subresource::Proxy { port, path } } => {
            match resource {
                Resource::Nodes => node_command::answer(&request, server, &query, &name, &path),
                _ => {
                    let target = pod_proxy::of_pod(shared, &namespace, &name, port.as_deref())?;
                    pod_proxy::forward(request, target, &path).await
                }
            }
        }
        ApiRoute::Object { namespace, name, subresource: Subresource::Eviction, .. } => {
            eviction_request::answer(request, shared, &query, &namespace, &name).await
        }
        ApiRoute::Object { namespace, name, subresource: Subresource::Unsupported(what), .. } => {
            Err(unsupported::answer(what, shared, &namespace, &name))
        }
        ApiRoute::Object { namespace, name, subresource: Subresource::Log, .. } => {
            pod_log::answer(&request, shared, &query, &namespace, &name).await
        }
        ApiRoute::Object { resource, namespace, name, subresource } => {
            object_handlers::object(request, server, &query, resource, &namespace, &name, &subresource).await
        }
    }
}
