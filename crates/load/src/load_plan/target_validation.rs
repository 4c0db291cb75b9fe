//! Validates targets: parses their URLs, assembles their requests, and determines their turns.

use std::net::IpAddr;

use http::{HeaderName, HeaderValue, Method};
use url::Url;

use super::{MAX_CYCLE, PlanError};
use crate::placeholders::{self, TemplatePiece};
use crate::planned_target::{PlannedTarget, RequestBody};
use crate::request::{self, RETRY_HEADER};
use crate::{client_tls, grpc};
use rolldrop_record::LENGTH_HEADER;
use rolldrop_record::id::ID_HEADER;
use rolldrop_record::load::{Http, Load, LoadTarget};
use rolldrop_record::{Secret, shown};

/// Validates a target.
///
/// # Errors
/// Returns an error if requests to the target cannot be sent.
pub(super) fn plan_target(target: &LoadTarget, settings: &Load) -> Result<PlannedTarget, PlanError> {
    let bad = |why: String| bad_url(target, why);
    let (url, scheme) = parse(target)?;
    let Some(host_in_url) = url.host_str() else { return Err(bad("it has no host".to_owned())) };
    // An IPv6 address is in brackets.
    let host = host_in_url.trim_matches(['[', ']']).to_owned();
    let path = plan_path(&url, target, settings)?;
    let method = plan_method(target, settings)?;
    if scheme.is_websocket && method != Method::GET {
        return Err(bad(format!("WebSocket needs method GET, not {method}")));
    }
    let mut headers = plan_headers(target, settings, scheme)?;
    if let Some(law) = settings.stream.as_ref().and_then(|stream| stream.length.clone()) {
        headers.push((HeaderName::from_static(LENGTH_HEADER), vec![TemplatePiece::Length(law)]));
    }
    let body = target.body.as_ref().unwrap_or(&settings.body);
    let body = match settings.template {
        true if !body.is_empty() => RequestBody::Made(pieces(settings, body, "body")?),
        _ => RequestBody::Fixed(body.clone().into()),
    };
    // The scheme's default port is omitted, as in browsers.
    let authority = url.port().map_or(host_in_url.to_owned(), |port| format!("{host_in_url}:{port}"));
    let tls_name = settings.tls.server_name.as_ref().unwrap_or(&host);
    let tls_name = scheme.is_secure.then(|| client_tls::server_name(tls_name)).transpose()?;
    let port = url.port_or_known_default().unwrap_or(80);
    let connect_to = settings.connect_to.iter().find_map(|to| to.target(&host, port));
    let (host, port) = connect_to.unwrap_or((host, port));
    if port == 0 && settings.unix_socket.is_none() {
        return Err(bad("no server listens on port 0".to_owned()));
    }
    let family = settings.dns.family;
    if host.parse().is_ok_and(|address: IpAddr| !family.has(address)) {
        return Err(PlanError::Family { host, family });
    }
    let planned = PlannedTarget {
        name: target.name.as_str().into(),
        host,
        port,
        tls_name,
        authority,
        http: settings.http,
        url: url.to_string(),
        path,
        method,
        headers,
        body,
        grpc: settings.grpc.as_ref().map(|grpc| grpc::GrpcCall::new(grpc, settings.response_timeout())),
        is_websocket: scheme.is_websocket,
    };
    match planned.http {
        Http::Http2 if planned.is_websocket => Err(bad("WebSocket works only over HTTP/1.1".to_owned())),
        Http::Http2 => request::http2_template::check(&planned).map(|()| planned).map_err(bad),
        Http::Auto => {
            let or = |why| bad(format!("{why}, or use HTTP/1.1 (--http 1.1)"));
            request::http2_template::check(&planned).map(|()| planned).map_err(or)
        }
        Http::Http1 => Ok(planned),
    }
}

/// Properties of a URL scheme.
#[derive(Clone, Copy)]
struct UrlScheme {
    is_secure: bool,
    is_websocket: bool,
}

fn bad_url(target: &LoadTarget, why: String) -> PlanError {
    PlanError::Url { url: shown::url(&target.url).into_owned(), why }
}

fn parse(target: &LoadTarget) -> Result<(Url, UrlScheme), PlanError> {
    let bad = |why: String| bad_url(target, why);
    // This includes URLs whose host looks like a scheme: localhost:8080.
    if !target.url.contains("://") {
        return Err(bad(format!("it has no scheme; write it as http://{}", shown::url(&target.url))));
    }
    let url = Url::parse(&target.url).map_err(|e| bad(format!("{e}; write it as http://HOST:PORT/PATH")))?;
    let (is_secure, is_websocket) = match url.scheme() {
        "http" => (false, false),
        "https" => (true, false),
        "ws" => (false, true),
        "wss" => (true, true),
        other => return Err(bad(format!("scheme {other:?} is not supported: use http, https, ws or wss"))),
    };
    if !url.username().is_empty() || url.password().is_some() {
        return Err(bad("credentials in a URL are not sent: use an Authorization header".to_owned()));
    }
    Ok((url, UrlScheme { is_secure, is_websocket }))
}

/// Returns text as a single piece, or split at its placeholders if templates are enabled.
fn pieces(settings: &Load, text: &[u8], what: &str) -> Result<Vec<TemplatePiece>, PlanError> {
    match settings.template {
        false => Ok(vec![TemplatePiece::Bytes(text.to_vec())]),
        true => placeholders::parse(text).map_err(|why| PlanError::Template { what: what.to_owned(), why }),
    }
}

/// Returns the path and query; for a gRPC call, the path is the method's name.
fn plan_path(url: &Url, target: &LoadTarget, settings: &Load) -> Result<Vec<TemplatePiece>, PlanError> {
    let mut path = url.path().to_owned();
    if let Some(query) = url.query() {
        path.push('?');
        path.push_str(query);
    }
    if let Some(grpc) = &settings.grpc {
        if path != "/" {
            let why =
                format!("a gRPC call always uses the path of its method, /{}: remove the path", grpc.rpc);
            return Err(bad_url(target, why));
        }
        path.push_str(&grpc.rpc.to_string());
    }
    if settings.template {
        // Restores braces, the only characters of a placeholder that are escaped in a URL path.
        path = path.replace("%7B%7B", "{{").replace("%7D%7D", "}}");
    }
    pieces(settings, path.as_bytes(), &format!("URL {:?}", target.url))
}

fn plan_method(target: &LoadTarget, settings: &Load) -> Result<Method, PlanError> {
    if let (Some(_), Some(method)) = (&settings.grpc, &target.method)
        && method != "POST"
    {
        return Err(PlanError::GrpcMethod { method: method.clone(), url: target.url.clone() });
    }
    let method = settings.method_of(target);
    let read = Method::from_bytes(method.as_bytes()).ok().filter(|method| *method != Method::CONNECT);
    read.ok_or_else(|| PlanError::Method(method.to_owned()))
}

fn plan_headers(
    target: &LoadTarget,
    settings: &Load,
    scheme: UrlScheme,
) -> Result<Vec<(HeaderName, Vec<TemplatePiece>)>, PlanError> {
    let is_own = |name: &str| target.headers.iter().any(|(own, _)| own.eq_ignore_ascii_case(name));
    let common = settings.headers.iter().filter(|(name, _)| !is_own(name));
    let mut headers = Vec::new();
    for (name, value) in common.chain(&target.headers).map(plan_header).collect::<Result<Vec<_>, _>>()? {
        let is_framing = |names: &[&str]| names.contains(&name.as_str());
        if scheme.is_websocket && is_framing(&OF_WEBSOCKET) || settings.grpc.is_some() && is_framing(&OF_GRPC)
        {
            return Err(PlanError::Header { name: name.to_string(), why: "rolldrop sets it itself" });
        }
        headers.push((name.clone(), pieces(settings, value.as_bytes(), &format!("header {name}"))?));
    }
    Ok(headers)
}

/// Returns the order in which targets take turns: each in proportion to its weight, and spread as evenly as possible
/// (smooth weighted round robin).
///
/// # Errors
/// Returns an error if a weight is 0 or the cycle is too long.
pub(super) fn cycle(targets: &[LoadTarget]) -> Result<Vec<usize>, PlanError> {
    if let Some(target) = targets.iter().find(|target| target.weight == 0) {
        return Err(PlanError::NoWeight(target.name.clone()));
    }
    let weights = || targets.iter().map(|target| i64::from(target.weight));
    let common = weights().fold(0, gcd).max(1);
    let total: i64 = weights().map(|weight| weight / common).sum();
    let length = total.unsigned_abs();
    if length > MAX_CYCLE {
        return Err(PlanError::Weights(length));
    }
    let mut credit = vec![0; targets.len()];
    let mut cycle = Vec::new();
    for _ in 0..length {
        credit.iter_mut().zip(weights()).for_each(|(credit, weight)| *credit += weight / common);
        // Takes the first of the targets with the highest credit.
        let next = (0..credit.len()).rev().max_by_key(|target| credit[*target]).unwrap_or(0);
        credit[next] -= total;
        cycle.push(next);
    }
    Ok(cycle)
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Headers that the generator itself writes to frame the message or to identify the request.
const RESERVED: [&str; 5] = ["connection", "content-length", "transfer-encoding", ID_HEADER, RETRY_HEADER];

/// Headers of a WebSocket handshake.
const OF_WEBSOCKET: [&str; 4] =
    ["upgrade", "sec-websocket-key", "sec-websocket-version", "sec-websocket-extensions"];

/// Headers of a gRPC call, whose timeout is the response timeout.
const OF_GRPC: [&str; 2] = ["te", "grpc-timeout"];

fn plan_header((name, value): &(String, Secret)) -> Result<(HeaderName, HeaderValue), PlanError> {
    let bad = |why| PlanError::Header { name: name.clone(), why };
    let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad("its name is invalid"))?;
    if RESERVED.contains(&parsed.as_str()) {
        return Err(bad("rolldrop sets it itself"));
    }
    let value = HeaderValue::from_str(value.expose()).map_err(|_| bad("its value is invalid"))?;
    Ok((parsed, value))
}
