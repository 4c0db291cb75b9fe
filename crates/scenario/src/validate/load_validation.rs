//! Validation of a scenario's load. The load generator checks the rest later, and its errors name the same keys.

use std::collections::BTreeMap;
use std::path::Path;

use super::{is_path, weight};
use crate::document::Document;
use crate::load_spec::{Abort, LoadJobSpec, LoadSpec, RequestKind};
use crate::{ScenarioError, files, raw, request_text};
use rolldrop_record::Secret;
use rolldrop_record::load::limits::{LEAST_ABORT_OVER, MAX_LOAD_PODS, MAX_RATE, MAX_START_LIMIT};
use rolldrop_record::load::{
    Grpc, Http, Length, Load, Pace, Rate, RateStage, StreamSettings, TlsSettings, are_statuses, defaults,
    keep_headers, statuses,
};

pub(super) fn load(
    mut raw: raw::LoadKeys,
    document: &Document,
    dir: &Path,
) -> Result<LoadSpec, ScenarioError> {
    if let Some(grpc) = &raw.grpc {
        check_calls(grpc, &raw, document)?;
    }
    let requests = requests(std::mem::take(&mut raw.requests), document, dir)?;
    let from = raw.from;
    let job = job(raw.job.take().unwrap_or_default(), document)?;
    let abort = raw.abort.take().map(|raw| abort(&raw, document)).transpose()?;
    Ok(LoadSpec { settings: settings(raw, document, dir)?, requests, from, job, abort })
}

fn settings(raw: raw::LoadKeys, document: &Document, dir: &Path) -> Result<Load, ScenarioError> {
    let (pace, http, headers) = (pace(&raw, document)?, http(&raw, document)?, headers(&raw, document, dir)?);
    let bodies = [raw.body, raw.body_file, raw.body_hex, raw.body_base64];
    let success =
        |list: Vec<raw::StatusKey>| list.iter().map(|status| status_range(status, document)).collect();
    let connections = raw.connections.unwrap_or_default();
    if let Some(why) = connections.share_fault() {
        return Err(document.error("spec.load.connections.share", why));
    }
    if let Some(why) = raw.stream.as_ref().and_then(StreamSettings::fault) {
        return Err(document.error("spec.load.stream", why));
    }
    let default = Load::default();
    Ok(Load {
        targets: Vec::new(),
        pace,
        arrivals: raw.arrivals.unwrap_or(default.arrivals),
        seed: raw.seed.unwrap_or(default.seed),
        warmup: raw.warmup.map_or(default.warmup, |span| span.0),
        http,
        grpc: raw.grpc,
        stream: raw.stream,
        connections,
        timeout: raw.timeout.unwrap_or_default(),
        tls: raw.tls.map_or(Ok(default.tls), |given| with_files(given, document, dir))?,
        method: raw.method.unwrap_or(default.method),
        headers,
        body: body(bodies, "spec.load", document, dir)?.unwrap_or(default.body),
        template: raw.template,
        retry: raw.retry.unwrap_or_default(),
        pod_header: raw.pod_header.unwrap_or(default.pod_header),
        pod_body: raw.pod_body,
        keep_headers: keep_headers(&raw.keep_headers),
        success: raw.success.map_or(Ok(default.success), success)?,
        connect_to: raw.connect_to,
        unix_socket: raw.unix_socket.map(|path| dir.join(path)),
        source_ports: raw.source_ports,
        reuse_ports: raw.reuse_ports,
        source_addresses: raw.source_addresses,
        dns: raw.dns.unwrap_or_default(),
        workers: raw.workers.unwrap_or(default.workers),
        spin: raw.spin.map_or(default.spin, |span| span.0),
        evidence: raw.evidence,
    })
}

fn job(raw: raw::LoadJobKeys, document: &Document) -> Result<LoadJobSpec, ScenarioError> {
    let wrong = |key: &str, why: String| Err(document.error(&format!("spec.load.job.{key}"), why));
    if raw.workers.is_some_and(|workers| !(1..=MAX_LOAD_PODS).contains(&workers)) {
        return wrong("workers", format!("must be between 1 and {MAX_LOAD_PODS}"));
    }
    let start_limit = raw.start_limit.map_or(defaults::START_LIMIT, |span| span.0);
    if start_limit.is_zero() || start_limit > MAX_START_LIMIT {
        return wrong("startLimit", format!("must be longer than 0 and at most {MAX_START_LIMIT:?}"));
    }
    let mut resources: BTreeMap<String, String> =
        defaults::LOAD_POD_RESOURCES.map(|(name, amount)| (name.to_owned(), amount.to_owned())).into();
    resources.extend(raw.resources.into_iter().map(|(name, raw::Quantity(amount))| (name, amount)));
    Ok(LoadJobSpec { workers: raw.workers, start_limit, resources })
}

fn abort(raw: &raw::AbortKeys, document: &Document) -> Result<Abort, ScenarioError> {
    let over = raw.over.map_or(defaults::ABORT_OVER, |span| span.0);
    let requests = raw.requests.unwrap_or(defaults::ABORT_REQUESTS);
    if over < LEAST_ABORT_OVER {
        return Err(document.error("spec.load.abort.over", format!("must be {LEAST_ABORT_OVER:?} or longer")));
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

/// Returns the headers from the scenario, from a file, and with values from environment variables.
fn headers(
    raw: &raw::LoadKeys,
    document: &Document,
    dir: &Path,
) -> Result<Vec<(String, Secret)>, ScenarioError> {
    let mut headers: Vec<(String, Secret)> = raw.headers.clone().into_iter().collect();
    if let Some(file) = &raw.headers_file {
        let key = "spec.load.headersFile";
        let bytes = read(file, key, document, dir)?;
        let found = request_text::headers(&String::from_utf8_lossy(&bytes));
        headers.extend(found.map_err(|why| document.error(key, format!("{file}: {why}")))?);
    }
    for (name, variable) in &raw.headers_from_env {
        let key = format!("spec.load.headersFromEnv.{name}");
        let failed = |e| document.error(&key, format!("the environment variable {variable:?}: {e}"));
        let value = std::env::var(variable).map_err(failed)?;
        headers.push((name.clone(), value.trim().into()));
    }
    Ok(headers)
}

/// Replaces the file names in the settings with the files' contents.
fn with_files(mut given: TlsSettings, document: &Document, dir: &Path) -> Result<TlsSettings, ScenarioError> {
    if given.key_pem.is_some() && given.cert_pem.is_none() {
        return Err(document.error("spec.load.tls.key", "is a key without a certificate: add cert"));
    }
    let TlsSettings { ca_pem, cert_pem, key_pem, .. } = &mut given;
    for (key, text) in [("ca", ca_pem), ("cert", cert_pem), ("key", key_pem)] {
        if let Some(file) = text {
            let bytes = read(file.expose(), &format!("spec.load.tls.{key}"), document, dir)?;
            // Bytes that are not text cannot be PEM. Using them fails later.
            *file = String::from_utf8_lossy(&bytes).into();
        }
    }
    Ok(given)
}

/// Returns a body that is given as text, as a file, in hex or in base64. `key` is the path to the load or request.
fn body(
    given: [Option<String>; 4],
    key: &str,
    document: &Document,
    dir: &Path,
) -> Result<Option<Vec<u8>>, ScenarioError> {
    let of = |name: &str| format!("{key}.{name}");
    let wrong = |name: &str, why| document.error(&of(name), why);
    match given {
        [None, None, None, None] => Ok(None),
        [Some(text), None, None, None] => Ok(Some(text.into_bytes())),
        [None, Some(file), None, None] => read(&file, &of("bodyFile"), document, dir).map(Some),
        [None, None, Some(hex), None] => {
            request_text::from_hex(&hex).map(Some).map_err(|why| wrong("bodyHex", why))
        }
        [None, None, None, Some(base64)] => {
            request_text::from_base64(&base64).map(Some).map_err(|why| wrong("bodyBase64", why))
        }
        _ => {
            let why = "is given twice: keep one of body, bodyFile, bodyHex and bodyBase64";
            Err(document.error(&of("body"), why))
        }
    }
}

fn requests(
    raw: Vec<raw::RequestKeys>,
    document: &Document,
    dir: &Path,
) -> Result<Vec<RequestKind>, ScenarioError> {
    let given = if raw.is_empty() { vec![raw::RequestKeys::default()] } else { raw };
    let request = |(index, raw): (usize, raw::RequestKeys)| {
        let key = format!("spec.load.requests[{index}]");
        is_path(raw.path.as_ref(), &key, document)?;
        let bodies = [raw.body, raw.body_file, raw.body_hex, raw.body_base64];
        Ok(RequestKind {
            path: raw.path,
            method: raw.method,
            headers: raw.headers.into_iter().collect(),
            body: body(bodies, &key, document, dir)?,
            weight: weight(raw.weight, &key, document)?,
        })
    };
    given.into_iter().enumerate().map(request).collect()
}

/// Checks the settings of gRPC calls. Settings that a call cannot use are refused, not ignored.
fn check_calls(grpc: &Grpc, raw: &raw::LoadKeys, document: &Document) -> Result<(), ScenarioError> {
    let wrong = |key: &str, why: &str| Err(document.error(&format!("spec.load.{key}"), why));
    let is_other = |method: &Option<String>| method.as_ref().is_some_and(|method| method != "POST");
    let is_post = "a gRPC call is always a POST: remove this key; load.grpc.method names the method to call";
    if is_other(&raw.method) {
        return wrong("method", is_post);
    }
    for (index, request) in raw.requests.iter().enumerate() {
        if is_other(&request.method) {
            return wrong(&format!("requests[{index}].method"), is_post);
        }
        if request.path.is_some() {
            let why = format!("the path of a gRPC call is its method, /{}: remove this key", grpc.rpc);
            return wrong(&format!("requests[{index}].path"), &why);
        }
    }
    if raw.success.is_some() {
        let why = "gRPC calls are not judged by their HTTP status: list gRPC statuses in load.grpc.success";
        return wrong("success", why);
    }
    if raw.pod_body.is_some() {
        let why = "gRPC messages are not searched for the pod: remove this key, or use podHeader instead";
        return wrong("podBody", why);
    }
    Ok(())
}

fn http(raw: &raw::LoadKeys, document: &Document) -> Result<Http, ScenarioError> {
    let is_grpc = raw.grpc.is_some();
    let http = raw.http.unwrap_or_default();
    let has_streams = raw.connections.is_some_and(|connections| connections.max_concurrent_streams.is_some());
    if http == Http::Http1 && is_grpc {
        return Err(document.error("spec.load.http", "is 1.1, but gRPC needs HTTP/2: remove this key"));
    }
    if has_streams && (raw.http.is_none() && !is_grpc || http == Http::Http1) {
        let why = "HTTP/1.1 has no streams: remove this key, or set load.http: 2";
        return Err(document.error("spec.load.connections.maxConcurrentStreams", why));
    }
    Ok(http)
}

fn pace(raw: &raw::LoadKeys, document: &Document) -> Result<Pace, ScenarioError> {
    if !raw.stages.is_empty() {
        return stages(raw, document).map(Pace::Open);
    }
    let duration = raw.duration.map_or(defaults::DURATION, |span| span.0);
    if duration.is_zero() {
        return Err(document.error("spec.load.duration", "must be longer than 0"));
    }
    let per_s = match raw.rate {
        None => defaults::RATE,
        Some(Rate::PerSecond(rate)) => rate,
        Some(Rate::Max) if raw.arrivals.is_some() => {
            let why = "a closed loop has no arrivals to spread: remove this key, or set a rate";
            return Err(document.error("spec.load.arrivals", why));
        }
        Some(Rate::Max) => return Ok(Pace::Closed(Length::Time(duration))),
    };
    Ok(Pace::constant(rate(per_s, Least::Above0, "spec.load.rate", document)?, duration))
}

/// Lowest allowed rate.
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

fn stages(raw: &raw::LoadKeys, document: &Document) -> Result<Vec<RateStage>, ScenarioError> {
    if raw.rate.is_some() || raw.duration.is_some() {
        let why = "each stage has its own rate and duration: remove load.rate and load.duration";
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
                let why = "only a ramp can start at another rate: add ramp: linear, or remove this key";
                return Err(document.error(&format!("{key}.from"), why));
            }
        };
        if stage.duration.0.is_zero() {
            return Err(document.error(&format!("{key}.duration"), "must be longer than 0"));
        }
        stages.push(RateStage { from, to, duration: stage.duration.0 });
        before = to;
    }
    match stages.iter().any(|stage| stage.to > 0.0) {
        true => Ok(stages),
        false => Err(document.error("spec.load.stages", "at least one stage must be above 0 requests/s")),
    }
}

fn status_range(status: &raw::StatusKey, document: &Document) -> Result<(u16, u16), ScenarioError> {
    let range = match status {
        raw::StatusKey::One(code) => Some((*code, *code)),
        raw::StatusKey::Range(text) => statuses(text),
    };
    range.filter(|range| are_statuses(*range)).ok_or_else(|| {
        document.error("spec.load.success", "takes statuses and ranges such as 200 or 200-399")
    })
}
