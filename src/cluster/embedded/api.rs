//! The Kubernetes API over HTTP/1.1 on loopback, for those who hold the token.
//!
//! JSON only. Here a request becomes a call of the [registry](super::registry) and its result
//! an answer; the semantics are the registry's. Paths are read in `route`, verbs on objects
//! served in `objects`, watches in `watch`, pods' own ports in `proxy`, their logs in `log`.

mod discovery;
mod log;
mod objects;
mod proxy;
mod respond;
mod route;
mod watch;

use std::convert::Infallible;
use std::sync::Arc;

use http::{Method, Request, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::Shared;
use super::status::Status;
use respond::Answer;
use route::{Query, Route, Subresource};

/// The version that this API server says it has.
pub const GIT_VERSION: &str = "v1.36.2+rolldrop";

/// Serves the API on `listener` until the cluster ends.
pub async fn serve(listener: TcpListener, shared: Shared, token: String) {
    let token: Arc<str> = format!("Bearer {token}").into();
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = shared.stop.cancelled() => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file descriptors, most likely: let some connections end first.
                tracing::warn!(%error, "API server cannot accept");
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                continue;
            }
        };
        // Watch events are small and must not wait for each other.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "no TCP_NODELAY");
        }
        let (shared, token) = (shared.clone(), Arc::clone(&token));
        connections.spawn(async move {
            let service = service_fn(|request| {
                let (shared, token) = (shared.clone(), Arc::clone(&token));
                async move { Ok::<_, Infallible>(answer(request, &shared, &token).await) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service);
            if let Err(error) = connection.await {
                tracing::debug!(%error, "API connection ended");
            }
        });
    }
}

async fn answer(request: Request<Incoming>, shared: &Shared, token: &str) -> Answer {
    let line = format!("{} {}", request.method(), request.uri());
    let answer = match dispatch(request, shared, token).await {
        Ok(answer) => answer,
        Err(status) => respond::status(&status),
    };
    tracing::trace!(request = line, status = answer.status().as_u16(), "API");
    answer
}

async fn dispatch(request: Request<Incoming>, shared: &Shared, token: &str) -> Result<Answer, Status> {
    let authorization = request.headers().get(header::AUTHORIZATION);
    if authorization.is_none_or(|given| given.as_bytes() != token.as_bytes()) {
        return Err(Status::unauthorized());
    }
    let query = Query::of(request.uri());
    match Route::of(request.uri().path()).ok_or_else(Status::unknown_path)? {
        Route::Document(document) => {
            if request.method() != Method::GET {
                return Err(Status::method_not_allowed());
            }
            Ok(discovery::answer(document))
        }
        Route::Collection { resource, namespace } => {
            objects::collection(request, shared, &query, resource, namespace).await
        }
        Route::Object { namespace, name, subresource: Subresource::Proxy { port, path }, .. } => {
            proxy::forward(request, shared, &namespace, &name, port.as_deref(), &path).await
        }
        Route::Object { namespace, name, subresource: Subresource::Log, .. } => {
            log::answer(&request, shared, &query, &namespace, &name).await
        }
        Route::Object { resource, namespace, name, subresource } => {
            objects::object(request, shared, &query, resource, &namespace, &name, &subresource).await
        }
    }
}
