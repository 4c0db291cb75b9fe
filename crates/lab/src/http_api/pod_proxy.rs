//! The `proxy` subresource for pods: forwards an HTTP request to a pod's port through the API server.
//!
//! Request and response bodies are streamed, so either may last for as long as the pod runs.

use std::net::SocketAddrV4;
use std::time::Duration;

use http::{HeaderMap, HeaderName, Request, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

use super::super::resource::Resource;
use super::super::shared::ClusterContext;
use super::super::status::Status;
use super::super::value::list;
use super::respond::{ApiResponse, BodyError};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Headers that apply only to one connection, or only to the API server.
const NOT_FORWARDED: [HeaderName; 9] = [
    header::AUTHORIZATION,
    header::CONNECTION,
    header::HOST,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHORIZATION,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::TE,
    header::UPGRADE,
];

/// Returns the address of a pod's port.
///
/// # Errors
///
/// 404 if the pod does not exist, 400 if the port does not exist, 503 if the pod has no address yet.
pub(super) fn of_pod(
    shared: &ClusterContext,
    namespace: &str,
    name: &str,
    port: Option<&str>,
) -> Result<SocketAddrV4, Status> {
    let pod = shared.registry.get(Resource::Pods, namespace, name)?;
    let ip = pod["status"]["podIP"].as_str().and_then(|ip| ip.parse().ok());
    let ip = ip.ok_or_else(|| Status::unavailable(format!("pod {name:?} has no address")))?;
    Ok(SocketAddrV4::new(ip, resolve_port(&pod, port)?))
}

/// Forwards a request to `path` at `target`, and returns the response.
pub(super) async fn forward(
    request: Request<Incoming>,
    target: SocketAddrV4,
    path: &str,
) -> Result<ApiResponse, Status> {
    let unreachable = |error: &dyn std::fmt::Display| {
        Status::unavailable(format!("error trying to reach service: {target}: {error}"))
    };
    let stream = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(target))
        .await
        .map_err(|elapsed| unreachable(&elapsed))?
        .map_err(|error| unreachable(&error))?;
    stream.set_nodelay(true).map_err(|error| unreachable(&error))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| unreachable(&error))?;
    let connection = AbortOnDropHandle::new(tokio::spawn(connection));

    let (mut parts, body) = request.into_parts();
    let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    parts.uri =
        format!("{path}{query}").parse().map_err(|_| Status::bad_request("the path is not a valid URI"))?;
    remove_hop_by_hop(&mut parts.headers);
    let host = target
        .to_string()
        .parse()
        .map_err(|_| Status::internal("the address is not a valid header value"))?;
    parts.headers.insert(header::HOST, host);

    let answer =
        sender.send_request(Request::from_parts(parts, body)).await.map_err(|error| unreachable(&error))?;
    let (mut parts, body) = answer.into_parts();
    remove_hop_by_hop(&mut parts.headers);
    // Keep the connection alive until the response body ends.
    let body = body.map_err(BodyError::from).map_frame(move |frame| {
        let _ = &connection;
        frame
    });
    Ok(ApiResponse::from_parts(parts, body.boxed_unsync()))
}

/// Removes the headers that apply only to one connection (RFC 9110, section 7.6.1).
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|names| names.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for header in named.iter().chain(&NOT_FORWARDED) {
        headers.remove(header);
    }
}

/// Finds a port by number or name. Without either, returns the pod's first port, or 80 if it declares none.
fn resolve_port(pod: &Value, port: Option<&str>) -> Result<u16, Status> {
    let lists = ["containers", "initContainers"].into_iter();
    let mut ports =
        lists.flat_map(|name| list(&pod["spec"][name])).flat_map(|container| list(&container["ports"]));
    let number = |port: &Value| port["containerPort"].as_u64().and_then(|port| u16::try_from(port).ok());
    let found = match port.map(|port| (port, port.parse::<u16>())) {
        None => Some(ports.next().and_then(number).unwrap_or(80)),
        Some((_, Ok(port))) => Some(port),
        Some((name, Err(_))) => ports.find(|port| port["name"] == name).and_then(number),
    };
    found.ok_or_else(|| Status::bad_request(format!("the pod has no port {:?}", port.unwrap_or_default())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_strips_hop_by_hop_headers() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Hop"),
            ("connection", "x-other"),
            ("x-hop", "1"),
            ("x-other", "1"),
            ("keep-alive", "timeout=5"),
            ("authorization", "Bearer secret"),
            ("x-kept", "1"),
        ] {
            headers.append(HeaderName::from_static(name), value.parse().unwrap());
        }
        remove_hop_by_hop(&mut headers);
        assert_eq!(headers.keys().collect::<Vec<_>>(), ["x-kept"]);
    }
}
