//! The load of a scenario, checked. What only the load generator can judge, it judges later,
//! and names the same keys.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::{is_path, weight};
use crate::scenario::load::{
    Abort, Connections, Dns, Family, Grpc, Http, Load, LoadFrom, LoadJob, Pace, Request, Stage, Tls,
    TlsVersion,
};
use crate::scenario::yaml::Document;
use crate::scenario::{ScenarioError, files, raw, text};
use rolldrop_record::row::POD_HEADER;

const MAX_RATE: f64 = 1e6;
/// The most pods that send a load.
const MAX_LOAD_PODS: usize = 1000;
/// The longest wait for them: they do not wait much longer for their orders.
const MAX_START_LIMIT: Duration = Duration::from_secs(600);
/// What such a pod asks for where nothing else is said.
const LOAD_POD_RESOURCES: [(&str, &str); 2] = [("cpu", "500m"), ("memory", "256Mi")];

pub(super) fn load(raw: raw::Load, document: &Document, dir: &Path) -> Result<Load, ScenarioError> {
    let positive = |span: Option<raw::Span>, key: &str| match span.map(|s| s.0) {
        Some(Duration::ZERO) => Err(document.error(&format!("spec.load.{key}"), "must be longer than 0")),
        duration => Ok(duration),
    };
    let (pace, duration) = pace(&raw, document)?;
    let headers = headers(&raw, document, dir)?;
    let grpc = raw.grpc.as_ref().map(|grpc| calls(grpc, &raw, document)).transpose()?;
    let raw::Connections { mode, share, max, streams, max_requests, max_age } =
        raw.connections.unwrap_or_default();
    let http = http(raw.http, grpc.is_some(), streams, document)?;
    let connections = match (mode.unwrap_or(raw::Mode::Fresh), share) {
        (raw::Mode::Fresh, None) => Connections::Fresh,
        (raw::Mode::Keepalive, None) => Connections::Keepalive,
        (raw::Mode::Mixed, Some(share)) if (0.0..=1.0).contains(&share) => Connections::Mixed(share),
        (raw::Mode::Mixed, _) => {
            let why = "mode mixed needs the share of fresh connections, 0 to 1";
            return Err(document.error("spec.load.connections.share", why));
        }
        (_, Some(_)) => {
            let why = "only mode mixed takes a share: remove it, or set mode: mixed";
            return Err(document.error("spec.load.connections.share", why));
        }
    };
    if max == Some(0) {
        return Err(document.error("spec.load.connections.max", "must be at least 1"));
    }
    if max_requests == Some(0) {
        return Err(document.error("spec.load.connections.maxRequests", "must be at least 1"));
    }
    let of_load = Body {
        text: raw.body,
        file: raw.body_file,
        hex: raw.body_hex,
        base64: raw.body_base64,
        key: "spec.load",
    };
    let timeout = raw.timeout.unwrap_or_default();
    let success = match raw.success {
        None => vec![(200, 399)],
        Some(list) => list.iter().map(|status| status_range(status, document)).collect::<Result<_, _>>()?,
    };
    let dns = raw.dns.map_or_else(Dns::default, |raw::Dns { servers, family }| Dns {
        servers,
        family: family.map(|family| match family {
            raw::Family::Ipv4 => Family::Ipv4,
            raw::Family::Ipv6 => Family::Ipv6,
        }),
    });
    let second = Duration::from_secs(1);
    Ok(Load {
        pace,
        poisson: matches!(raw.arrivals, Some(raw::Arrivals::Poisson)),
        seed: raw.seed.unwrap_or(0),
        duration,
        warmup: raw.warmup.map_or(Duration::ZERO, |s| s.0),
        http,
        grpc,
        connections,
        max_connections: max,
        streams,
        connect_timeout: positive(timeout.connect, "timeout.connect")?.unwrap_or(second),
        tls_timeout: positive(timeout.tls, "timeout.tls")?.unwrap_or(2 * second),
        tls: raw.tls.map_or(Ok(Tls::default()), |raw| tls(raw, document, dir))?,
        first_byte_timeout: positive(timeout.first_byte, "timeout.firstByte")?,
        response_timeout: positive(timeout.response, "timeout.response")?.unwrap_or(5 * second),
        method: raw.method.unwrap_or_else(|| "GET".into()),
        headers,
        body: of_load.bytes(document, dir)?.unwrap_or_default(),
        template: raw.template,
        requests: requests(raw.requests, document, dir)?,
        retries: raw.retry.as_ref().map_or(0, |retry| retry.times),
        retry_delay: raw.retry.and_then(|retry| retry.delay).map_or(Duration::ZERO, |span| span.0),
        max_requests,
        max_age: max_age.map(|span| span.0),
        pod_header: raw.pod_header.unwrap_or_else(|| POD_HEADER.to_owned()),
        pod_body: raw.pod_body,
        keep_headers: raw.keep_headers,
        success,
        connect_to: raw.connect_to,
        unix_socket: raw.unix_socket.map(|path| dir.join(path)),
        source_ports: raw.source_ports.map(|range| source_ports(&range, document)).transpose()?,
        reuse_ports: raw.reuse_ports,
        source_addresses: raw.source_addresses,
        dns,
        workers: raw.workers.unwrap_or(1),
        spin: raw.spin.map_or(Duration::ZERO, |span| span.0),
        from: raw.from.map(|from| match from {
            raw::LoadFrom::Local => LoadFrom::Local,
            raw::LoadFrom::Cluster => LoadFrom::Cluster,
        }),
        job: job(raw.job.unwrap_or_default(), document)?,
        evidence: raw.evidence,
        abort: raw.abort.map(|raw| abort(&raw, document)).transpose()?,
    })
}

fn job(raw: raw::LoadJob, document: &Document) -> Result<LoadJob, ScenarioError> {
    let wrong = |key: &str, why: String| Err(document.error(&format!("spec.load.job.{key}"), why));
    if raw.workers.is_some_and(|workers| !(1..=MAX_LOAD_PODS).contains(&workers)) {
        return wrong("workers", format!("must be 1 to {MAX_LOAD_PODS}"));
    }
    let start_limit = raw.start_limit.map_or(Duration::from_secs(120), |span| span.0);
    if start_limit.is_zero() || start_limit > MAX_START_LIMIT {
        return wrong("startLimit", format!("must be longer than 0 and at most {MAX_START_LIMIT:?}"));
    }
    let mut resources: BTreeMap<String, String> =
        LOAD_POD_RESOURCES.map(|(name, amount)| (name.to_owned(), amount.to_owned())).into();
    resources.extend(raw.resources.into_iter().map(|(name, raw::Quantity(amount))| (name, amount)));
    Ok(LoadJob { workers: raw.workers, start_limit, resources })
}

fn abort(raw: &raw::Abort, document: &Document) -> Result<Abort, ScenarioError> {
    let over = raw.over.map_or(Duration::from_secs(10), |span| span.0);
    let requests = raw.requests.unwrap_or(50);
    if over < Duration::from_secs(1) {
        return Err(document.error("spec.load.abort.over", "must be 1s or longer"));
    }
    if requests == 0 {
        return Err(document.error("spec.load.abort.requests", "must be at least 1"));
    }
    Ok(Abort { share: raw.dropped.0, over, requests })
}

/// Reads a file that a key names.
fn read(file: &str, key: &str, document: &Document, dir: &Path) -> Result<Vec<u8>, ScenarioError> {
    let path = dir.join(file);
    files::read(&path).map_err(|e| document.error(key, format!("{}: {e}", path.display())))
}

/// Headers as they stand, from a file, and with values from the environment.
fn headers(raw: &raw::Load, document: &Document, dir: &Path) -> Result<Vec<(String, String)>, ScenarioError> {
    let given = |headers: &BTreeMap<String, String>| headers.clone().into_iter().collect::<Vec<_>>();
    let mut headers = given(&raw.headers);
    if let Some(file) = &raw.headers_file {
        let key = "spec.load.headersFile";
        let bytes = read(file, key, document, dir)?;
        let found = text::headers(&String::from_utf8_lossy(&bytes));
        headers.extend(found.map_err(|why| document.error(key, format!("{file}: {why}")))?);
    }
    for (name, variable) in given(&raw.headers_from_env) {
        let key = format!("spec.load.headersFromEnv.{name}");
        let failed = |e| document.error(&key, format!("the environment variable {variable:?}: {e}"));
        let value = std::env::var(&variable).map_err(failed)?;
        headers.push((name, value.trim().to_owned()));
    }
    Ok(headers)
}

fn tls(raw: raw::Tls, document: &Document, dir: &Path) -> Result<Tls, ScenarioError> {
    let pem = |file: Option<String>, key: &str| {
        let bytes =
            file.map(|file| read(&file, &format!("spec.load.tls.{key}"), document, dir)).transpose()?;
        // What is not text cannot be PEM, and is told so when it is used.
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    };
    if raw.key.is_some() && raw.cert.is_none() {
        return Err(document.error("spec.load.tls.key", "is a key without a certificate: add cert"));
    }
    let version = match raw.version.as_ref().map(|raw::Version(version)| version.as_str()) {
        None => None,
        Some("1.2") => Some(TlsVersion::Tls12),
        Some("1.3") => Some(TlsVersion::Tls13),
        Some(other) => {
            return Err(document.error("spec.load.tls.version", format!("is {other}, must be 1.2 or 1.3")));
        }
    };
    Ok(Tls {
        ca_pem: pem(raw.ca, "ca")?,
        cert_pem: pem(raw.cert, "cert")?,
        key_pem: pem(raw.key, "key")?,
        server_name: raw.server_name,
        insecure: raw.insecure,
        version,
        resume: raw.resume,
    })
}

/// A body, in whichever way it is given.
struct Body<'a> {
    text: Option<String>,
    file: Option<String>,
    hex: Option<String>,
    base64: Option<String>,
    /// What it is the body of.
    key: &'a str,
}

impl Body<'_> {
    fn bytes(self, document: &Document, dir: &Path) -> Result<Option<Vec<u8>>, ScenarioError> {
        let Self { text, file, hex, base64, key } = self;
        let of = |name: &str| format!("{key}.{name}");
        let wrong = |name: &str, why| document.error(&of(name), why);
        match (text, file, hex, base64) {
            (None, None, None, None) => Ok(None),
            (Some(text), None, None, None) => Ok(Some(text.into_bytes())),
            (None, Some(file), None, None) => read(&file, &of("bodyFile"), document, dir).map(Some),
            (None, None, Some(hex), None) => {
                text::from_hex(&hex).map(Some).map_err(|why| wrong("bodyHex", why))
            }
            (None, None, None, Some(base64)) => {
                text::from_base64(&base64).map(Some).map_err(|why| wrong("bodyBase64", why))
            }
            _ => {
                let why = "is given twice: keep one of body, bodyFile, bodyHex and bodyBase64";
                Err(document.error(&of("body"), why))
            }
        }
    }
}

fn requests(raw: Vec<raw::Request>, document: &Document, dir: &Path) -> Result<Vec<Request>, ScenarioError> {
    let given = if raw.is_empty() { vec![raw::Request::default()] } else { raw };
    let request = |(index, raw): (usize, raw::Request)| {
        let key = format!("spec.load.requests[{index}]");
        is_path(raw.path.as_ref(), &key, document)?;
        let body = Body {
            text: raw.body,
            file: raw.body_file,
            hex: raw.body_hex,
            base64: raw.body_base64,
            key: &key,
        };
        Ok(Request {
            path: raw.path,
            method: raw.method,
            headers: raw.headers.into_iter().collect(),
            body: body.bytes(document, dir)?,
            weight: weight(raw.weight, &key, document)?,
        })
    };
    given.into_iter().enumerate().map(request).collect()
}

/// Calls of a method. What a call has no use for is refused, rather than left out in silence.
fn calls(grpc: &raw::Grpc, raw: &raw::Load, document: &Document) -> Result<Grpc, ScenarioError> {
    let raw::Grpc { method: rpc, success } = grpc;
    let wrong = |key: &str, why: &str| Err(document.error(&format!("spec.load.{key}"), why));
    let is_other = |method: &Option<String>| method.as_ref().is_some_and(|method| method != "POST");
    let is_post = "a gRPC call is a POST: remove it; load.grpc.method names what is called";
    if is_other(&raw.method) {
        return wrong("method", is_post);
    }
    for (index, request) in raw.requests.iter().enumerate() {
        if is_other(&request.method) {
            return wrong(&format!("requests[{index}].method"), is_post);
        }
        if request.path.is_some() {
            let why = format!("the path of a call is that of its method, /{rpc}: remove it");
            return wrong(&format!("requests[{index}].path"), &why);
        }
    }
    if raw.success.is_some() {
        let why = "a gRPC call is not judged by HTTP statuses: list gRPC's in load.grpc.success";
        return wrong("success", why);
    }
    if raw.pod_body.is_some() {
        let why = "gRPC's messages are not searched: remove it; a header can name the pod (podHeader)";
        return wrong("podBody", why);
    }
    Ok(Grpc { method: rpc.clone(), success: success.clone().unwrap_or_else(|| vec![0]) })
}

fn http(
    given: Option<raw::Version>,
    is_grpc: bool,
    streams: Option<usize>,
    document: &Document,
) -> Result<Http, ScenarioError> {
    let http = match given.as_ref().map(|raw::Version(version)| version.as_str()) {
        None if is_grpc => Http::Http2,
        None | Some("auto") => Http::Auto,
        Some("1.1") => Http::Http1,
        Some("2") => Http::Http2,
        Some(other) => {
            return Err(document.error("spec.load.http", format!("is {other}, must be auto, 1.1 or 2")));
        }
    };
    match (http, streams) {
        (Http::Http1, _) if is_grpc => {
            Err(document.error("spec.load.http", "is 1.1, but gRPC needs HTTP/2: remove it"))
        }
        _ if streams.is_some() && (given.is_none() && !is_grpc || http == Http::Http1) => {
            let why = "HTTP/1.1 has no streams: remove it, or set load.http: 2";
            Err(document.error("spec.load.connections.streams", why))
        }
        (_, Some(0)) => Err(document.error("spec.load.connections.streams", "must be at least 1")),
        _ => Ok(http),
    }
}

/// The pace, and the length of the counted part.
fn pace(raw: &raw::Load, document: &Document) -> Result<(Pace, Duration), ScenarioError> {
    if !raw.stages.is_empty() {
        let stages = stages(raw, document)?;
        let duration = stages.iter().map(|stage| stage.duration).sum();
        return Ok((Pace::Open(stages), duration));
    }
    let duration = raw.duration.map_or(Duration::from_secs(30), |span| span.0);
    if duration.is_zero() {
        return Err(document.error("spec.load.duration", "must be longer than 0"));
    }
    let per_s = match raw.rate {
        None => 200.0,
        Some(raw::Rate::PerSecond(rate)) => rate,
        Some(raw::Rate::Max) if raw.arrivals.is_some() => {
            let why = "a closed loop has no arrivals to spread: remove it, or set a rate";
            return Err(document.error("spec.load.arrivals", why));
        }
        Some(raw::Rate::Max) => return Ok((Pace::Closed, duration)),
    };
    let rate = rate(per_s, Least::Above0, "spec.load.rate", document)?;
    Ok((Pace::Open(vec![Stage { from: rate, to: rate, duration }]), duration))
}

/// The lowest rate that will do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Least {
    Is0,
    Above0,
}

fn rate(rate: f64, least: Least, key: &str, document: &Document) -> Result<f64, ScenarioError> {
    let range = if least == Least::Is0 { "0 or above" } else { "above 0" };
    let why = || format!("is {rate}, must be {range} and at most {MAX_RATE} requests/s");
    let is_rate = (rate > 0.0 || least == Least::Is0 && rate == 0.0) && rate <= MAX_RATE;
    if is_rate { Ok(rate) } else { Err(document.error(key, why())) }
}

fn stages(raw: &raw::Load, document: &Document) -> Result<Vec<Stage>, ScenarioError> {
    if raw.rate.is_some() || raw.duration.is_some() {
        let why = "each has its own rate and duration: remove load.rate and load.duration";
        return Err(document.error("spec.load.stages", why));
    }
    let mut before = 0.0;
    let mut stages = Vec::with_capacity(raw.stages.len());
    for (index, stage) in raw.stages.iter().enumerate() {
        let key = format!("spec.load.stages[{index}]");
        let to = rate(stage.rate, Least::Is0, &format!("{key}.rate"), document)?;
        let from = match (stage.from, stage.ramp) {
            (Some(from), Some(raw::Ramp::Linear)) => {
                rate(from, Least::Is0, &format!("{key}.from"), document)?
            }
            (None, Some(raw::Ramp::Linear)) => before,
            (None, None) => to,
            (Some(_), None) => {
                let why = "only a ramp starts at another rate: add ramp: linear, or remove it";
                return Err(document.error(&format!("{key}.from"), why));
            }
        };
        if stage.duration.0.is_zero() {
            return Err(document.error(&format!("{key}.duration"), "must be longer than 0"));
        }
        stages.push(Stage { from, to, duration: stage.duration.0 });
        before = to;
    }
    match stages.iter().any(|stage| stage.to > 0.0) {
        true => Ok(stages),
        false => Err(document.error("spec.load.stages", "must be above 0 requests/s somewhere")),
    }
}

fn source_ports(text: &str, document: &Document) -> Result<(u16, u16), ScenarioError> {
    let range = text
        .split_once('-')
        .and_then(|(from, to)| Some((from.trim().parse().ok()?, to.trim().parse().ok()?)));
    range
        .filter(|(from, to)| 0 < *from && from <= to)
        .ok_or_else(|| document.error("spec.load.sourcePorts", "takes a range of ports such as 32768-60999"))
}

fn status_range(status: &raw::Status, document: &Document) -> Result<(u16, u16), ScenarioError> {
    let range = match status {
        raw::Status::One(code) => Some((*code, *code)),
        raw::Status::Range(text) => text
            .split_once('-')
            .and_then(|(from, to)| Some((from.trim().parse().ok()?, to.trim().parse().ok()?))),
    };
    range.filter(|(from, to)| (100..=599).contains(from) && from <= to && *to <= 599).ok_or_else(|| {
        document.error("spec.load.success", "takes statuses and ranges such as 200 or 200-399")
    })
}
