//! From the raw file to a scenario in which contradictions cannot stand.

mod load;

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::raw;
use super::yaml::Document;
use super::{Action, ClusterChoice, Disruption, Load, Loaded, Place, Scenario, ScenarioError, Target};
use crate::record::{Bounds, Expect, WindowBounds};

const API_VERSION: &str = "rolldrop.dev/v1";
/// The load goes on for at least this long after the last disruption began.
const SHORTEST_AFTERMATH: Duration = Duration::from_secs(1);

pub(super) fn validate<C>(
    raw: raw::File<C>,
    document: &Document,
    dir: &Path,
) -> Result<Loaded<C>, ScenarioError> {
    if raw.api_version != API_VERSION {
        return Err(document.error("apiVersion", format!("is {:?}, must be {API_VERSION}", raw.api_version)));
    }
    if raw.kind != "Scenario" {
        return Err(document.error("kind", format!("is {:?}, must be Scenario", raw.kind)));
    }
    if !is_name(&raw.metadata.name) {
        return Err(document.error("metadata.name", "must be lowercase letters, digits and dashes"));
    }
    let spec = raw.spec;
    let cluster = cluster(spec.cluster, document)?;
    let manifests = manifests(spec.manifests, document, dir)?;
    let targets = targets(spec.target, &manifests, document)?;
    let load = load::load(spec.load, document, dir)?;
    let disruptions = spec
        .disruptions
        .into_iter()
        .enumerate()
        .map(|(index, d)| disruption(d, index, &load, &manifests, document))
        .collect::<Result<Vec<_>, _>>()?;
    let expect = expect(spec.expect, document)?;
    let scenario = Scenario {
        name: raw.metadata.name,
        description: raw.metadata.description,
        manifests,
        targets,
        load,
        inject_sidecar: spec.sidecar.inject,
        disruptions,
        expect,
        document: document.clone(),
    };
    Ok(Loaded { scenario, cluster })
}

fn cluster<C>(
    raw: Option<raw::Cluster<C>>,
    document: &Document,
) -> Result<Option<ClusterChoice<C>>, ScenarioError> {
    match raw.map(|c| (c.embedded, c.context)) {
        None | Some((None, None)) => Ok(None),
        Some((Some(config), None)) => Ok(Some(ClusterChoice::Embedded(config))),
        Some((None, Some(context))) => Ok(Some(ClusterChoice::Context(context))),
        Some((Some(_), Some(_))) => {
            Err(document.error("spec.cluster", "names both embedded and context: leave one out"))
        }
    }
}

fn manifests(raw: Vec<raw::Manifest>, document: &Document, dir: &Path) -> Result<Vec<Value>, ScenarioError> {
    let mut objects = Vec::new();
    for (index, manifest) in raw.into_iter().enumerate() {
        let key = format!("spec.manifests[{index}]");
        match (manifest.file, manifest.inline) {
            (Some(file), None) => {
                let path = dir.join(&file);
                let key = format!("{key}.file");
                let text = std::fs::read_to_string(&path)
                    .map_err(|e| document.error(&key, format!("{}: {e}", path.display())))?;
                let found: Vec<Value> = serde_saphyr::from_multiple(&text).map_err(|e| {
                    document.error(&key, format!("{}: {}", path.display(), e.without_snippet()))
                })?;
                for object in found.into_iter().filter(|o| !o.is_null()) {
                    objects.push(checked_object(object, &key, document)?);
                }
            }
            (None, Some(object)) => {
                objects.push(checked_object(object, &format!("{key}.inline"), document)?);
            }
            _ => return Err(document.error(&key, "needs exactly one of file and inline")),
        }
    }
    Ok(objects)
}

fn checked_object(object: Value, key: &str, document: &Document) -> Result<Value, ScenarioError> {
    for pointer in ["/apiVersion", "/kind", "/metadata/name"] {
        if object.pointer(pointer).and_then(Value::as_str).is_none() {
            let field = pointer[1..].replace('/', ".");
            return Err(document.error(key, format!("is no Kubernetes object: it has no {field}")));
        }
    }
    Ok(object)
}

fn targets(
    raw: raw::OneOrMore<raw::Target>,
    manifests: &[Value],
    document: &Document,
) -> Result<Vec<Target>, ScenarioError> {
    if raw.all.is_empty() {
        return Err(document.error("spec.target", "is empty: name a service or a url"));
    }
    let mut targets: Vec<Target> = Vec::with_capacity(raw.all.len());
    for (index, one) in raw.all.into_iter().enumerate() {
        let key = if raw.is_list { format!("spec.target[{index}]") } else { "spec.target".to_owned() };
        let weight = weight(one.weight, &key, document)?;
        let own_name = one.name.clone();
        let place = place(one, &key, manifests, document)?;
        let name = own_name.unwrap_or_else(|| match &place {
            Place::Service { name, .. } => name.clone(),
            Place::Url(url) => url.host_str().unwrap_or("url").to_owned(),
        });
        if targets.iter().any(|target| target.name == name) {
            let why = format!("{name:?} is the name of another target: give each its own");
            return Err(document.error(&format!("{key}.name"), why));
        }
        targets.push(Target { name, weight, place });
    }
    Ok(targets)
}

fn weight(raw: Option<u32>, key: &str, document: &Document) -> Result<u32, ScenarioError> {
    match raw {
        Some(0) => Err(document.error(&format!("{key}.weight"), "must be at least 1")),
        weight => Ok(weight.unwrap_or(1)),
    }
}

fn is_path(path: Option<&String>, key: &str, document: &Document) -> Result<(), ScenarioError> {
    match path.filter(|path| !path.starts_with('/')) {
        Some(path) => Err(document.error(&format!("{key}.path"), format!("is {path:?}, must begin with /"))),
        None => Ok(()),
    }
}

fn place(
    raw: raw::Target,
    key: &str,
    manifests: &[Value],
    document: &Document,
) -> Result<Place, ScenarioError> {
    let path = raw.path;
    is_path(path.as_ref(), key, document)?;
    match (raw.service, raw.url) {
        (Some(name), None) => {
            let services = || manifests.iter().filter(|m| m["kind"] == "Service");
            if services().next().is_some() && !services().any(|m| m["metadata"]["name"] == name.as_str()) {
                let why = format!("there is no Service {name:?} among the manifests");
                return Err(document.error(&format!("{key}.service"), why));
            }
            let port = raw.port.map(|port| match port {
                raw::Port::Number(number) => number.to_string(),
                raw::Port::Name(name) => name,
            });
            Ok(Place::Service { name, port, path: path.unwrap_or_else(|| "/".into()) })
        }
        (None, Some(text)) => {
            if raw.port.is_some() || path.is_some() {
                return Err(document.error(key, "port and path belong into the url"));
            }
            let url = url::Url::parse(&text)
                .map_err(|e| document.error(&format!("{key}.url"), format!("{text:?}: {e}")))?;
            Ok(Place::Url(url))
        }
        _ => Err(document.error(key, "needs exactly one of service and url")),
    }
}

<<<<<<< HEAD
fn load(raw: raw::Load, document: &Document, dir: &Path) -> Result<Load, ScenarioError> {
    let positive = |span: Option<raw::Span>, default: Duration, key: &str| match span.map_or(default, |s| s.0)
    {
        Duration::ZERO => Err(document.error(&format!("spec.load.{key}"), "must be longer than 0")),
        duration => Ok(duration),
    };
    let stages = stages(&raw, document)?;
    let raw::Connections { mode, share, max, streams, max_requests, max_age } =
        raw.connections.unwrap_or_default();
    let http = http(raw.http, streams, document)?;
    let connections = match (mode.unwrap_or(raw::Mode::Fresh), share) {
        (raw::Mode::Fresh, None) => Connections::Fresh,
        (raw::Mode::Keepalive, None) => Connections::Keepalive,
        (raw::Mode::Mixed, Some(share)) if (0.0..=1.0).contains(&share) => Connections::Mixed(share),
        (raw::Mode::Mixed, _) => {
            let why = "mode mixed needs the share of fresh connections, 0 to 1";
            return Err(document.error("spec.load.connections.share", why));
        }
        (_, Some(_)) => {
            let why = "only mode mixed takes a share: leave it out, or set mode: mixed";
            return Err(document.error("spec.load.connections.share", why));
        }
    };
    if max == Some(0) {
        return Err(document.error("spec.load.connections.max", "must be at least 1"));
    }
    if max_requests == Some(0) {
        return Err(document.error("spec.load.connections.maxRequests", "must be at least 1"));
    }
    let body = body(raw.body, raw.body_file, "spec.load", document, dir)?;
    let requests = requests(raw.requests, document, dir)?;
    let (connect, tls_timeout, response) =
        raw.timeout.map_or((None, None, None), |t| (t.connect, t.tls, t.response));
    let success = match raw.success {
        None => vec![(200, 399)],
        Some(list) => list.iter().map(|status| status_range(status, document)).collect::<Result<_, _>>()?,
    };
    Ok(Load {
        duration: stages.iter().map(|stage| stage.duration).sum(),
        stages,
        poisson: match raw.arrivals {
            Some(raw::Arrivals::Poisson) => Some(raw.seed.unwrap_or(0)),
            Some(raw::Arrivals::Even) | None => None,
        },
        warmup: raw.warmup.map_or(Duration::ZERO, |s| s.0),
        http,
        connections,
        max_connections: max,
        streams,
        connect_timeout: positive(connect, Duration::from_secs(1), "timeout.connect")?,
        tls_timeout: positive(tls_timeout, Duration::from_secs(2), "timeout.tls")?,
        tls: raw.tls.map_or(Ok(Tls::default()), |raw| tls(raw, document, dir))?,
        response_timeout: positive(response, Duration::from_secs(5), "timeout.response")?,
        method: raw.method.unwrap_or_else(|| "GET".into()),
        headers: raw.headers.into_iter().collect(),
        body: body.unwrap_or_default(),
        template: raw.template,
        requests,
        retries: raw.retry.as_ref().map_or(0, |retry| retry.times),
        retry_delay: raw.retry.and_then(|retry| retry.delay).map_or(Duration::ZERO, |span| span.0),
        max_requests,
        max_age: max_age.map(|span| span.0),
        success,
        source_ports: raw.source_ports.map(|range| source_ports(&range, document)).transpose()?,
    })
}

fn tls(raw: raw::Tls, document: &Document, dir: &Path) -> Result<Tls, ScenarioError> {
    let read = |file: String| {
        let path = dir.join(file);
        let failed = |e| document.error("spec.load.tls.ca", format!("{}: {e}", path.display()));
        std::fs::read_to_string(&path).map_err(failed)
    };
    Ok(Tls { ca_pem: raw.ca.map(read).transpose()?, server_name: raw.server_name, insecure: raw.insecure })
}

fn body(
    text: Option<String>,
    file: Option<String>,
    key: &str,
    document: &Document,
    dir: &Path,
) -> Result<Option<Vec<u8>>, ScenarioError> {
    match (text, file) {
        (Some(_), Some(_)) => {
            Err(document.error(&format!("{key}.body"), "stands beside bodyFile: leave one out"))
        }
        (text, None) => Ok(text.map(String::into_bytes)),
        (None, Some(file)) => {
            let path = dir.join(&file);
            let failed = |e| document.error(&format!("{key}.bodyFile"), format!("{}: {e}", path.display()));
            std::fs::read(&path).map(Some).map_err(failed)
        }
    }
}

fn requests(raw: Vec<raw::Request>, document: &Document, dir: &Path) -> Result<Vec<Request>, ScenarioError> {
    let given = if raw.is_empty() { vec![raw::Request::default()] } else { raw };
    let request = |(index, raw): (usize, raw::Request)| {
        let key = format!("spec.load.requests[{index}]");
        is_path(raw.path.as_ref(), &key, document)?;
        Ok(Request {
            path: raw.path,
            method: raw.method,
            headers: raw.headers.into_iter().collect(),
            body: body(raw.body, raw.body_file, &key, document, dir)?,
            weight: weight(raw.weight, &key, document)?,
        })
    };
    given.into_iter().enumerate().map(request).collect()
}

fn http(
    given: Option<raw::Http>,
    streams: Option<usize>,
    document: &Document,
) -> Result<Http, ScenarioError> {
    let http = match given {
        None | Some(raw::Http::Text(raw::HttpText::Auto)) => Http::Auto,
        Some(raw::Http::Number(1.1) | raw::Http::Text(raw::HttpText::Http1)) => Http::Http1,
        Some(raw::Http::Number(2.0) | raw::Http::Text(raw::HttpText::Http2)) => Http::Http2,
        Some(raw::Http::Number(other)) => {
            return Err(document.error("spec.load.http", format!("is {other}, must be auto, 1.1 or 2")));
        }
    };
    match (http, streams) {
        _ if streams.is_some() && (given.is_none() || http == Http::Http1) => {
            let why = "HTTP/1.1 has no streams: leave it out, or set load.http: 2";
            Err(document.error("spec.load.connections.streams", why))
        }
        (_, Some(0)) => Err(document.error("spec.load.connections.streams", "must be at least 1")),
        _ => Ok(http),
    }
}

fn stages(raw: &raw::Load, document: &Document) -> Result<Vec<Stage>, ScenarioError> {
    let rate = |rate: f64, may_be_0: bool, key: &str| {
        let range = if may_be_0 { "0 or above" } else { "above 0" };
        let why = || format!("is {rate}, must be {range} and at most {MAX_RATE} requests/s");
        let is_rate = (rate > 0.0 || may_be_0 && rate == 0.0) && rate <= MAX_RATE;
        if is_rate { Ok(rate) } else { Err(document.error(key, why())) }
    };
    let length = |duration: Duration, key: &str| match duration {
        Duration::ZERO => Err(document.error(key, "must be longer than 0")),
        duration => Ok(duration),
    };
    if raw.stages.is_empty() {
        let rate = rate(raw.rate.unwrap_or(200.0), false, "spec.load.rate")?;
        let duration = raw.duration.map_or(Duration::from_secs(30), |span| span.0);
        let duration = length(duration, "spec.load.duration")?;
        return Ok(vec![Stage { from: rate, to: rate, duration }]);
    }
    if raw.rate.is_some() || raw.duration.is_some() {
        let why = "each has its own rate and duration: leave out load.rate and load.duration";
        return Err(document.error("spec.load.stages", why));
    }
    let mut before = 0.0;
    let mut stages = Vec::with_capacity(raw.stages.len());
    for (index, stage) in raw.stages.iter().enumerate() {
        let key = format!("spec.load.stages[{index}]");
        let to = rate(stage.rate, true, &format!("{key}.rate"))?;
        let from = match (stage.from, stage.ramp) {
            (Some(from), Some(raw::Ramp::Linear)) => rate(from, true, &format!("{key}.from"))?,
            (None, Some(raw::Ramp::Linear)) => before,
            (None, None) => to,
            (Some(_), None) => {
                let why = "only a ramp begins elsewhere than at its rate: add ramp: linear, or leave it out";
                return Err(document.error(&format!("{key}.from"), why));
            }
        };
        stages.push(Stage { from, to, duration: length(stage.duration.0, &format!("{key}.duration"))? });
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

=======
>>>>>>> main
fn disruption(
    raw: raw::Disruption,
    index: usize,
    load: &Load,
    manifests: &[Value],
    document: &Document,
) -> Result<Disruption, ScenarioError> {
    let key = format!("spec.disruptions[{index}]");
    let repeat = raw.repeat.unwrap_or(1);
    let every = raw.every.map_or(Duration::ZERO, |s| s.0);
    if repeat == 0 {
        return Err(document.error(&format!("{key}.repeat"), "must be at least 1"));
    }
    if repeat > 1 && every.is_zero() {
        return Err(document.error(&key, "repeats need a distance: add every: 5s"));
    }
    let last = raw.at.0 + every * (repeat - 1);
    if last + SHORTEST_AFTERMATH > load.duration {
        let why = format!(
            "the last one would begin {:.1} s into a load of {:.1} s: lengthen spec.load.duration",
            last.as_secs_f64(),
            load.duration.as_secs_f64()
        );
        return Err(document.error(&format!("{key}.at"), why));
    }
    let action = match raw.action {
        raw::ActionName::DeletePod => {
            let Some(selector) = raw.selector.filter(|s| !s.trim().is_empty()) else {
                return Err(document.error(&key, "deletePod needs a selector, such as selector: app=web"));
            };
            check_selector(&selector, manifests)
                .map_err(|why| document.error(&format!("{key}.selector"), why))?;
            let count = raw.count.unwrap_or(1);
            if count == 0 {
                return Err(document.error(&format!("{key}.count"), "must be at least 1"));
            }
            Action::DeletePod { selector, count }
        }
    };
    Ok(Disruption { at: raw.at.0, every, repeat, action })
}

/// A selector of plain `key=value` terms must match a pod template, where the manifests have any.
fn check_selector(selector: &str, manifests: &[Value]) -> Result<(), String> {
    let mut terms = Vec::new();
    for term in selector.split(',') {
        match term.split_once('=') {
            Some((key, value)) if !key.ends_with('!') => {
                terms.push((key.trim(), value.trim_start_matches('=').trim()));
            }
            // A set-based or negated term: the API server will judge it.
            _ => return Ok(()),
        }
    }
    let labels: Vec<&Value> =
        manifests.iter().filter_map(|m| m.pointer("/spec/template/metadata/labels")).collect();
    let matches = |labels: &&Value| terms.iter().all(|(key, value)| labels[*key] == *value);
    if labels.is_empty() || labels.iter().any(matches) {
        return Ok(());
    }
    Err(format!("{selector:?} matches no pod template of the manifests: correct the labels or the selector"))
}

fn expect(raw: raw::Expect, document: &Document) -> Result<Expect, ScenarioError> {
    let ordered = |bounds: Option<Bounds>, key: &str| match bounds {
        Some(Bounds { min: Some(min), max: Some(max) }) if min > max => {
            Err(document.error(&format!("spec.expect.{key}"), format!("min {min} is above max {max}")))
        }
        bounds => Ok(bounds),
    };
    Ok(Expect {
        dropped: ordered(raw.dropped, "dropped")?,
        windows: raw.windows.map(|w| WindowBounds { max_s: w.max.0.as_secs_f64() }),
        terminations: ordered(raw.terminations, "terminations")?,
        causes: raw
            .causes
            .into_iter()
            .map(|(cause, bounds)| {
                let key = format!("causes.{cause}");
                Ok((cause, ordered(Some(bounds), &key)?.unwrap_or_default()))
            })
            .collect::<Result<_, ScenarioError>>()?,
    })
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 63
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !name.starts_with('-')
        && !name.ends_with('-')
}
