//! What to send: settings as a user gives them, and the [`Plan`] that they make once checked.
//!
//! A plan holds only what can be carried out, so that bad input is refused
//! before the first request. It resolves no names and opens no sockets.

mod error;
mod target;
mod transport;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::connect_to::ConnectTo;
use super::pace::{Arrivals, Length, Pace, Stage};
use super::ports::PortRange;
use super::resolve::{DnsSettings, Family};
use super::schedule::Schedule;
use super::tls::{self, TlsSettings};
use crate::record::run_info::{self, Balances, LoadPlan, Role, Source};
pub use error::PlanError;
pub(super) use target::{PlannedTarget, Text};
use target::{cycle, plan_target};
pub use transport::{Connections, Grpc, Http};

/// The rate above which a plan is refused, in requests per second.
const MAX_RATE: f64 = 1_000_000.0;
/// The longest duration and timeout that a plan takes: a week.
const MAX_DURATION: Duration = Duration::from_secs(7 * 24 * 3600);
/// The most worker threads that a plan takes.
const MAX_WORKERS: usize = 256;
/// The most streams to a connection that a plan takes: those that HTTP/2 has numbers for.
const MAX_STREAMS: usize = (1 << 30) - 1;
/// The streams to a connection where no number is given: what HTTP/2 recommends to servers as the
/// least (RFC 9113, 6.5.2).
const DEFAULT_STREAMS: usize = 100;
/// The most retries that a plan takes.
const MAX_RETRIES: u32 = 100;
/// The longest cycle in which targets with weights take their turns.
const MAX_CYCLE: u64 = 65_536;
/// The least limit on connections that is chosen where none is given.
const MIN_DEFAULT_CONNECTIONS: f64 = 256.0;
/// The connections of a closed loop where no number is given.
const CLOSED_LOOP_CONNECTIONS: usize = 50;

/// Something to send requests to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The name in the rows' `target` column.
    pub name: String,
    /// `http://host[:port][/path][?query]`, or `https://`.
    pub url: String,
    /// Its share of the requests: this, of the sum of all targets' weights.
    pub weight: u32,
    /// The method of its requests, where it has one of its own.
    pub method: Option<String>,
    /// Headers of its own, which go before those of the same name that all requests have.
    pub headers: Vec<(String, String)>,
    /// A body of its own.
    pub body: Option<Vec<u8>>,
}

impl Target {
    /// A target with nothing of its own.
    pub fn new(name: impl Into<String>, url: impl Into<String>) -> Self {
        let (name, url) = (name.into(), url.into());
        Self { name, url, weight: 1, method: None, headers: Vec::new(), body: None }
    }
}

/// Settings as a user gives them; [`Plan::new`] checks them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Where requests go: to each in turn, as often as its weight says.
    pub targets: Vec<Target>,
    /// How fast they leave, over all targets and workers.
    pub pace: Pace,
    /// How they are spread over the rates of an open loop.
    pub arrivals: Arrivals,
    /// Whatever is drawn at random is drawn from this.
    pub seed: u64,
    /// Length of the warm-up before it, which is recorded but not counted.
    pub warmup: Duration,
    /// Which HTTP they speak.
    pub http: Http,
    /// Whether they are calls of a gRPC method; the body is then the message.
    pub grpc: Option<Grpc>,
    /// Which connections carry the requests.
    pub connections: Connections,
    /// The most connections open at a time; `None` for as many as the rate can
    /// keep open when every request runs into its timeouts.
    pub max_connections: Option<usize>,
    /// The most requests that an HTTP/2 connection carries at a time, as far as the server allows;
    /// `None` for 100, or 1 in a closed loop.
    pub streams: Option<usize>,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long the TLS handshake may take.
    pub tls_timeout: Duration,
    /// How long the first byte of the answer may take, from the moment of sending; `None` for as
    /// long as the whole answer.
    pub first_byte_timeout: Option<Duration>,
    /// How long the answer may take, from the moment of sending to the end of the body.
    pub response_timeout: Duration,
    /// The request's method.
    pub method: String,
    /// Further request headers.
    pub headers: Vec<(String, String)>,
    /// The request's body; none is sent when it is empty.
    pub body: Vec<u8>,
    /// Whether URLs, header values and bodies have placeholders (`template`).
    pub template: bool,
    /// Where to connect instead of where the URLs say; the first that fits counts.
    pub connect_to: Vec<ConnectTo>,
    /// The Unix socket to connect to, whatever the URLs say.
    pub unix_socket: Option<PathBuf>,
    /// How names are looked up.
    pub dns: DnsSettings,
    /// TLS, for URLs that ask for it.
    pub tls: TlsSettings,
    /// The most requests that a connection carries; `None` for any number.
    pub max_requests: Option<u64>,
    /// The age after which a connection carries no further request; `None` for any age.
    pub max_age: Option<Duration>,
    /// How often a request that failed is sent again. The row keeps the first outcome.
    pub retries: u32,
    /// From a failure to the next attempt.
    pub retry_delay: Duration,
    /// Statuses that count as success, as inclusive ranges.
    pub success: Vec<(u16, u16)>,
    /// Worker threads.
    pub workers: usize,
    /// How long before a request's time its worker stops sleeping and watches the clock.
    pub spin: Duration,
    /// The ports that connections come from; `None` for the system's ephemeral ports.
    pub source_ports: Option<PortRange>,
    /// The addresses that connections come from, which the workers take in turn; none to let
    /// the system choose.
    pub source_addresses: Vec<IpAddr>,
    /// Whether a source port may be used again before the system has forgotten its last connection.
    pub reuse_ports: bool,
}

impl Settings {
    /// The default load on one target, whose name is its URL: 200 GET requests/s for 30 s on fresh
    /// connections.
    pub fn new(url: impl Into<String>) -> Self {
        let url = url.into();
        Self {
            targets: vec![Target::new(url.as_str(), url.as_str())],
            pace: Pace::constant(200.0, Duration::from_secs(30)),
            arrivals: Arrivals::Even,
            seed: 0,
            warmup: Duration::ZERO,
            http: Http::Auto,
            grpc: None,
            connections: Connections::Fresh,
            max_connections: None,
            streams: None,
            connect_timeout: Duration::from_secs(1),
            tls_timeout: Duration::from_secs(2),
            first_byte_timeout: None,
            response_timeout: Duration::from_secs(5),
            method: "GET".to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
            template: false,
            connect_to: Vec::new(),
            unix_socket: None,
            dns: DnsSettings::default(),
            tls: TlsSettings::default(),
            max_requests: None,
            max_age: None,
            retries: 0,
            retry_delay: Duration::ZERO,
            success: vec![(200, 399)],
            workers: 1,
            spin: Duration::ZERO,
            source_ports: None,
            source_addresses: Vec::new(),
            reuse_ports: false,
        }
    }
}

/// Where the requests come from.
#[derive(Clone, Debug)]
pub(super) enum Timing {
    /// Each has its time.
    Schedule(Schedule),
    /// Whenever a connection is free.
    OnDemand(Length),
}

/// Which worker threads of a load a process has, where several processes send it: each has its
/// part of one schedule, so that together they send exactly the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The number of the process's first thread.
    pub first: usize,
    /// The threads of all processes.
    pub of: usize,
}

/// A load that can be carried out.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) settings: Settings,
    pub(super) share: Share,
    pub(super) timing: Timing,
    pub(super) targets: Vec<PlannedTarget>,
    /// The targets' turns, again and again.
    pub(super) cycle: Vec<usize>,
    pub(super) max_connections: usize,
    /// The client's side of TLS, where a target speaks it.
    pub(super) tls: Option<tls::Config>,
}

impl Plan {
    /// Checks settings.
    ///
    /// # Errors
    /// When they cannot be carried out; the error says which, and what would do.
    pub fn new(settings: Settings) -> Result<Self, PlanError> {
        let settings = Settings { http: spoken(&settings), ..settings };
        check_duration("a warm-up", settings.warmup, true)?;
        check_duration("a connect timeout", settings.connect_timeout, false)?;
        check_duration("a TLS timeout", settings.tls_timeout, false)?;
        check_duration("a response timeout", settings.response_timeout, false)?;
        if let Some(limit) = settings.first_byte_timeout {
            check_duration("a first-byte timeout", limit, false)?;
        }
        check_duration("a spin", settings.spin, true)?;
        let timing = plan_timing(&settings)?;
        if !(1..=MAX_WORKERS).contains(&settings.workers) {
            return Err(PlanError::Workers(settings.workers));
        }
        let (addresses, workers) = (settings.source_addresses.len(), settings.workers);
        if addresses > workers {
            return Err(PlanError::TooFewWorkers { addresses, workers });
        }
        if let Some(&(from, to)) =
            settings.success.iter().find(|(from, to)| !(100 <= *from && from <= to && *to <= 599))
        {
            return Err(PlanError::Success(from, to));
        }
        if settings.targets.is_empty() {
            return Err(PlanError::NoTarget);
        }
        if settings.retries > MAX_RETRIES {
            return Err(PlanError::Retries(settings.retries));
        }
        let limits =
            [("the most requests", settings.max_requests.is_some()), ("the age", settings.max_age.is_some())];
        if let Some((limit, _)) = limits.iter().find(|(_, is_given)| *is_given)
            && settings.connections == Connections::Fresh
        {
            return Err(PlanError::FreshLimit(limit));
        }
        if settings.max_requests == Some(0) {
            return Err(PlanError::MaxRequests);
        }
        check_http(&settings)?;
        if let Some(age) = settings.max_age {
            check_duration("a connection's age", age, false)?;
        }
        check_duration("a retry's delay", settings.retry_delay, true)?;
        let targets = settings.targets.iter().map(|target| plan_target(target, &settings));
        let targets = targets.collect::<Result<Vec<PlannedTarget>, _>>()?;
        let tls = plan_tls(&settings, &targets)?;
        let cycle = cycle(&settings.targets)?;
        let max_connections = settings.max_connections.unwrap_or_else(|| default_connections(&settings));
        if max_connections < settings.workers {
            return Err(PlanError::TooFewConnections { max: max_connections, workers: settings.workers });
        }
        let share = Share { first: 0, of: settings.workers };
        Ok(Self { timing, targets, cycle, max_connections, tls, settings, share })
    }

    /// The part of the load that a process with these threads of it sends.
    ///
    /// # Errors
    /// When there are no such threads, or fewer connections than threads.
    pub fn part(self, share: Share) -> Result<Self, PlanError> {
        let Share { first, of } = share;
        if first + self.settings.workers > of {
            return Err(PlanError::Workers(of));
        }
        if self.max_connections < of {
            return Err(PlanError::TooFewConnections { max: self.max_connections, workers: of });
        }
        Ok(Self { share, ..self })
    }

    /// The numbers of the process's worker threads.
    pub(super) fn own_workers(&self) -> std::ops::Range<usize> {
        self.share.first..self.share.first + self.settings.workers
    }

    /// The requests that the process's own threads will schedule.
    pub(super) fn own_requests(&self) -> Option<u64> {
        let of = self.share.of as u64;
        let own =
            |all| self.own_workers().map(|worker| all / of + u64::from((worker as u64) < all % of)).sum();
        self.requests().map(own)
    }

    /// The requests that will be scheduled, warm-up included; `None` where only the end will tell.
    pub fn requests(&self) -> Option<u64> {
        match &self.timing {
            Timing::Schedule(schedule) => Some(schedule.warmup() + schedule.main()),
            Timing::OnDemand(Length::Requests(requests)) if self.settings.warmup.is_zero() => Some(*requests),
            Timing::OnDemand(_) => None,
        }
    }

    /// The most requests that an HTTP/2 connection carries at a time.
    pub(super) fn streams(&self) -> usize {
        let default = if self.settings.pace.is_closed() { 1 } else { DEFAULT_STREAMS };
        self.settings.streams.unwrap_or(default)
    }

    /// The length of the whole schedule, warm-up included; `None` where only the end will tell.
    pub fn length(&self) -> Option<Duration> {
        self.settings.pace.duration().map(|counted| self.settings.warmup + counted)
    }

    /// Fresh connections a second of this process, as far as they are planned.
    pub(super) fn fresh_per_s(&self) -> f64 {
        let own = self.settings.workers as f64 / self.share.of as f64;
        let rate = self.settings.pace.peak_rate() * own;
        match self.settings.connections {
            Connections::Fresh => rate,
            Connections::Keepalive => 0.0,
            Connections::Mixed(share) => rate * share,
        }
    }

    /// The length of the warm-up.
    pub fn warmup(&self) -> Duration {
        self.settings.warmup
    }

    /// The stages of an open loop; none of a closed one.
    pub fn stages(&self) -> Vec<Stage> {
        match &self.settings.pace {
            Pace::Open(stages) => stages.clone(),
            Pace::Closed(_) => Vec::new(),
        }
    }

    /// The names of the load's sources: one per worker.
    pub fn sources(&self) -> Vec<String> {
        self.own_workers().map(source_name).collect()
    }

    /// The plan as `run.json` holds it. Headers and body stay out: they may hold secrets.
    pub fn load_plan(&self) -> LoadPlan {
        let settings = &self.settings;
        let pacing = settings.pace.as_str();
        let mut other = BTreeMap::from([
            ("http".to_owned(), settings.http.as_str().into()),
            ("max_connections".to_owned(), self.max_connections.into()),
            ("workers".to_owned(), settings.workers.into()),
        ]);
        if let Pace::Open(stages) = &settings.pace
            && pacing == "stages"
        {
            let stages: Vec<_> = stages.iter().map(Stage::to_string).collect();
            other.insert("stages".to_owned(), stages.into());
        }
        if settings.arrivals == Arrivals::Poisson {
            other.insert("arrivals".to_owned(), "poisson".into());
        }
        if settings.arrivals == Arrivals::Poisson || settings.template {
            other.insert("seed".to_owned(), settings.seed.into());
        }
        // Names alone: values may be secrets.
        let headers = settings.headers.iter().map(|(name, _)| name.clone());
        let headers: Vec<String> = headers.collect();
        if !headers.is_empty() {
            other.insert("headers".to_owned(), headers.into());
        }
        let mut methods: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for target in &self.targets {
            methods.entry(target.name.to_string()).or_default().insert(target.method.as_str());
        }
        // Several under one name are no method of which it is known that clients replay it.
        let joined = |(name, methods): (String, BTreeSet<&str>)| {
            (name, methods.into_iter().collect::<Vec<_>>().join(", ").into())
        };
        other.insert(
            "methods".to_owned(),
            methods.into_iter().map(joined).collect::<serde_json::Map<_, _>>().into(),
        );
        if self.targets.iter().any(PlannedTarget::has_idempotency_key) {
            other.insert("idempotency_key".to_owned(), true.into());
        }
        let connect_to: Vec<String> = settings.connect_to.iter().map(ConnectTo::to_string).collect();
        if !connect_to.is_empty() {
            other.insert("connect_to".to_owned(), connect_to.into());
        }
        if settings.http != Http::Http1 {
            other.insert("streams".to_owned(), self.streams().into());
        }
        if let Some(grpc) = &settings.grpc {
            other.insert("grpc".to_owned(), grpc.rpc.to_string().into());
            other.insert("grpc_success".to_owned(), grpc.success.clone().into());
        }
        if let Some(path) = &settings.unix_socket {
            other.insert("unix_socket".to_owned(), path.display().to_string().into());
        }
        if settings.dns.family != Family::Any {
            other.insert("family".to_owned(), settings.dns.family.to_string().into());
        }
        if self.tls.is_some() {
            other.insert("tls_timeout_s".to_owned(), settings.tls_timeout.as_secs_f64().into());
            other.insert("tls".to_owned(), settings.tls.summary());
        }
        if let Some(limit) = settings.first_byte_timeout {
            other.insert("first_byte_timeout_s".to_owned(), limit.as_secs_f64().into());
        }
        if !settings.spin.is_zero() {
            other.insert("spin_s".to_owned(), settings.spin.as_secs_f64().into());
        }
        if let Some(max) = settings.max_requests {
            other.insert("max_requests_per_connection".to_owned(), max.into());
        }
        if let Some(age) = settings.max_age {
            other.insert("max_connection_age_s".to_owned(), age.as_secs_f64().into());
        }
        if settings.retries > 0 {
            other.insert("retries".to_owned(), settings.retries.into());
        }
        if let Some(ports) = settings.source_ports {
            other.insert("source_ports".to_owned(), ports.to_string().into());
        }
        if let Connections::Mixed(share) = settings.connections {
            other.insert("fresh_share".to_owned(), share.into());
        }
        LoadPlan {
            pacing: pacing.to_owned(),
            rate: settings.pace.mean_rate(),
            duration_s: settings.pace.duration().unwrap_or_default().as_secs_f64(),
            warmup_s: settings.warmup.as_secs_f64(),
            connections: settings.connections.as_str().to_owned(),
            connect_timeout_s: settings.connect_timeout.as_secs_f64(),
            response_timeout_s: settings.response_timeout.as_secs_f64(),
            success: settings.success.clone(),
            other,
        }
    }

    /// The targets as `run.json` lists them, where nothing is known of who routes to them.
    pub fn targets(&self) -> Vec<run_info::Target> {
        let target = |target: &PlannedTarget| run_info::Target {
            name: target.name.to_string(),
            url: target.url.clone(),
            consumer: target.name.to_string(),
            balances: Balances::Connections,
            service: None,
        };
        self.targets.iter().map(target).collect()
    }

    /// The load's sources as `run.json` lists them, where nobody else keeps the time.
    pub fn recorders(&self) -> Vec<Source> {
        let recorder = |name| Source {
            name,
            role: Role::Load,
            clock_offset_ns: 0,
            clock_uncertainty_ns: Some(0),
            rows: None,
        };
        self.sources().into_iter().map(recorder).collect()
    }

    /// Whether a status counts as success.
    pub(super) fn is_success(&self, status: u16) -> bool {
        self.settings.success.iter().any(|(from, to)| (*from..=*to).contains(&status))
    }
}

/// The name of a worker's source.
pub(super) fn source_name(worker: usize) -> String {
    format!("load-{worker}")
}

/// What is left to choose of which HTTP to speak: gRPC needs HTTP/2, and only TLS negotiates.
/// Beside WebSocket, which begins with HTTP/1.1, nothing else is spoken.
fn spoken(settings: &Settings) -> Http {
    match settings.http {
        Http::Auto if settings.grpc.is_some() => Http::Http2,
        Http::Auto if has_scheme(settings, &["ws:", "wss:"]) => Http::Http1,
        Http::Auto if !has_scheme(settings, &["https:"]) => Http::Http1,
        http => http,
    }
}

fn has_scheme(settings: &Settings, schemes: &[&str]) -> bool {
    settings.targets.iter().any(|target| schemes.iter().any(|scheme| target.url.starts_with(scheme)))
}

fn check_http(settings: &Settings) -> Result<(), PlanError> {
    match (settings.http, settings.streams) {
        (Http::Http1, _) if settings.grpc.is_some() => Err(PlanError::GrpcNeedsHttp2),
        (Http::Http1, Some(_)) => Err(PlanError::StreamsNeedHttp2),
        (_, Some(streams)) if !(1..=MAX_STREAMS).contains(&streams) => Err(PlanError::Streams(streams)),
        _ => Ok(()),
    }
}

fn plan_timing(settings: &Settings) -> Result<Timing, PlanError> {
    let stages = match &settings.pace {
        Pace::Open(stages) => stages,
        Pace::Closed(_) if settings.arrivals != Arrivals::Even => return Err(PlanError::Closed("poisson")),
        Pace::Closed(_) if !settings.spin.is_zero() => return Err(PlanError::Closed("spin")),
        Pace::Closed(length) => {
            match length {
                Length::Time(duration) => check_duration("a duration", *duration, false)?,
                Length::Requests(0) => {
                    return Err(PlanError::NoRequest { rate: 0.0, duration: Duration::ZERO });
                }
                Length::Requests(_) => {}
            }
            return Ok(Timing::OnDemand(*length));
        }
    };
    // A ramp may begin or end at 0, and a stage may be a pause; a load may not.
    let is_rate = |rate: f64| (0.0..=MAX_RATE).contains(&rate);
    let mut rates = stages.iter().flat_map(|stage| [stage.from, stage.to]);
    if let Some(rate) = rates.find(|rate| !is_rate(*rate)) {
        return Err(PlanError::Rate(rate));
    }
    if settings.pace.peak_rate() == 0.0 {
        return Err(PlanError::Rate(0.0));
    }
    stages.iter().try_for_each(|stage| check_duration("a duration", stage.duration, false))?;
    let duration = settings.pace.duration().unwrap_or_default();
    check_duration("a duration", duration, false)?;
    let rate = settings.pace.warmup_rate();
    let warmup = Stage { from: rate, to: rate, duration: settings.warmup };
    let schedule = Schedule::new(warmup, stages, settings.arrivals, settings.seed);
    match schedule.main() {
        0 => Err(PlanError::NoRequest { rate: settings.pace.mean_rate(), duration }),
        _ => Ok(Timing::Schedule(schedule)),
    }
}

fn plan_tls(settings: &Settings, targets: &[PlannedTarget]) -> Result<Option<tls::Config>, PlanError> {
    if targets.iter().any(|target| target.tls_name.is_some()) {
        return Ok(Some(tls::Config::new(&settings.tls, settings.http.alpn())?));
    }
    if settings.tls == TlsSettings::default() { Ok(None) } else { Err(PlanError::NoTls) }
}

/// As many connections as the rate keeps open when every request runs into both timeouts.
fn default_connections(settings: &Settings) -> usize {
    if matches!(settings.pace, Pace::Closed(_)) {
        return CLOSED_LOOP_CONNECTIONS.max(settings.workers);
    }
    let is_secure = has_scheme(settings, &["https:", "wss:"]);
    let tls = if is_secure { settings.tls_timeout } else { Duration::ZERO };
    let held_s = (settings.connect_timeout + tls + settings.response_timeout).as_secs_f64();
    let connections = (settings.pace.peak_rate() * held_s).ceil().max(MIN_DEFAULT_CONNECTIONS);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive, and the cast saturates"
    )]
    let connections = connections as usize;
    connections.max(settings.workers)
}

fn check_duration(what: &'static str, given: Duration, zero_allowed: bool) -> Result<(), PlanError> {
    if given > MAX_DURATION || (given.is_zero() && !zero_allowed) {
        let allowed = if zero_allowed { "at most a week" } else { "above 0 and at most a week" };
        return Err(PlanError::Duration { what, given, allowed });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::template::Piece;

    fn refused(change: impl FnOnce(&mut Settings)) -> String {
        let mut settings = Settings::new("http://127.0.0.1:8080/");
        change(&mut settings);
        Plan::new(settings).unwrap_err().to_string()
    }

    #[test]
    fn bad_settings_say_what_is_wrong() {
        let pace = |rate, s| Pace::constant(rate, Duration::from_secs(s));
        let url = |url: &'static str| refused(move |s| s.targets[0].url = url.to_owned());
        assert_eq!(
            url("web:8080"),
            "\"web:8080\" is no usable URL: it has no scheme; write it as http://web:8080"
        );
        assert!(url("ftp://x/").contains("scheme \"ftp\" is not supported, only http, https, ws and wss"));
        assert!(url("http://me:secret@x/").contains("credentials"));
        assert!(url("http://x:0/").ends_with("no server listens on port 0"));
        assert!(refused(|s| s.targets.clear()).contains("no target"));
        assert!(refused(|s| s.pace = pace(0.0, 30)).starts_with("rate 0 is not above 0"));
        assert!(refused(|s| s.pace = pace(f64::NAN, 30)).contains("NaN"));
        assert!(refused(|s| s.pace = pace(1.0, 0)).starts_with("a duration of 0s is not above 0"));
        assert!(refused(|s| s.response_timeout = Duration::MAX).contains("a response timeout"));
        assert!(refused(|s| s.pace = pace(0.01, 30)).contains("make no request at all"));
        let stages = |texts: &[&str]| Pace::Open(texts.iter().map(|text| text.parse().unwrap()).collect());
        assert!(refused(|s| s.pace = stages(&["5:1s", "5:0s"])).contains("a duration of 0s"));
        assert!(refused(|s| s.pace = stages(&["0-1e9:1s"])).starts_with("rate 1000000000 is not"));
        assert!(refused(|s| s.pace = stages(&[])).starts_with("rate 0 is not"));
        assert!(refused(|s| s.workers = 0).contains("0 workers"));
        assert!(refused(|s| s.max_connections = Some(0)).contains("0 connections are too few"));
        assert!(
            refused(|s| s.source_addresses = vec![[127, 0, 0, 1].into(); 2]).contains("2 source addresses")
        );
        assert!(refused(|s| s.method = "GE T".into()).contains("\"GE T\""));
        assert!(refused(|s| s.headers.push(("a b".into(), "c".into()))).contains("its name"));
        assert!(refused(|s| s.headers.push(("a".into(), "b\nc".into()))).contains("its value"));
        assert!(refused(|s| s.headers.push(("Rolldrop-Id".into(), "x".into()))).contains("sets it itself"));
        assert!(refused(|s| s.retries = 101).contains("101 retries"));
        assert!(refused(|s| s.max_requests = Some(0)).contains("carries one request"));
        assert!(
            refused(|s| (s.connections, s.max_requests) = (Connections::Keepalive, Some(0)))
                .contains("0 requests to a connection")
        );
        let call = |change: fn(&mut Settings)| {
            refused(|s| {
                s.grpc = Some(Grpc::new("a/b".parse().unwrap()));
                change(s);
            })
        };
        assert_eq!(
            call(|s| s.targets[0].method = Some("GET".into())),
            "GET http://127.0.0.1:8080/: a gRPC call is a POST: write POST http://127.0.0.1:8080/"
        );
        assert!(call(|s| s.headers.push(("TE".into(), "trailers".into()))).contains("sets it itself"));
        let template = |body: &str| {
            refused(|s| {
                s.template = true;
                s.body = body.into();
            })
        };
        assert!(template("{{what}}").starts_with("body: placeholder \"{{what}}\" is none of {{seq}}"));
        assert!(refused(|s| s.success = vec![(300, 200)]).contains("300-200"));
    }

    #[test]
    fn a_url_is_taken_apart() {
        let target = |url: &str| {
            let plan = Plan::new(Settings::new(url)).unwrap();
            let t = plan.targets[0].clone();
            let [Piece::Bytes(path)] = t.path.as_slice() else { panic!("{:?}", t.path) };
            (t.host, t.port, t.authority, String::from_utf8(path.clone()).unwrap())
        };
        let expected = |host: &str, port, authority: &str, path: &str| {
            (host.to_owned(), port, authority.to_owned(), path.to_owned())
        };
        assert_eq!(target("http://web"), expected("web", 80, "web", "/"));
        assert_eq!(target("http://[::1]:81/a%20b?c=d#e"), expected("::1", 81, "[::1]:81", "/a%20b?c=d"));
    }

    #[test]
    fn targets_take_turns_by_weight() {
        let turns = |weights: &[u32]| {
            let target = |weight: &u32| Target { weight: *weight, ..Target::new("t", "http://web/") };
            let targets = weights.iter().map(target).collect();
            Plan::new(Settings { targets, ..Settings::new("") }).map(|plan| plan.cycle)
        };
        assert_eq!(turns(&[1, 1]).unwrap(), [0, 1]);
        assert_eq!(turns(&[300, 100]).unwrap(), [0, 0, 1, 0]);
        assert_eq!(turns(&[5, 1, 1]).unwrap(), [0, 0, 1, 0, 2, 0, 0]);
        assert!(turns(&[1, 0]).unwrap_err().to_string().contains("weight 0"));
        assert!(turns(&[65_536, 1]).unwrap_err().to_string().contains("add up to 65537"));
    }

    #[test]
    fn what_is_sent_elsewhere_still_names_its_target() {
        let connect_to = vec!["web:80:127.0.0.1:8080".parse().unwrap()];
        let plan = Plan::new(Settings { connect_to, ..Settings::new("http://web/") }).unwrap();
        let target = &plan.targets[0];
        assert_eq!(
            (target.host.as_str(), target.port, target.authority.as_str()),
            ("127.0.0.1", 8080, "web")
        );
    }

    #[test]
    fn secrets_are_not_in_the_plan_that_is_written() {
        let plan = Plan::new(Settings {
            headers: vec![("Authorization".into(), "Bearer hush".into())],
            body: b"hush".to_vec(),
            ..Settings::new("http://web/")
        });
        let written = serde_json::to_string(&plan.unwrap().load_plan()).unwrap();
        assert!(written.contains("Authorization") && !written.contains("hush"), "{written}");
    }

    #[test]
    fn a_share_of_fresh_connections_is_spread_evenly() {
        let fresh = |text: &str| {
            let mode = text.parse::<Connections>().unwrap();
            assert_eq!(mode.to_string(), text);
            (0..1000).filter(|seq| mode.is_fresh(*seq)).count()
        };
        assert_eq!(fresh("fresh"), 1000);
        assert_eq!(fresh("keepalive"), 0);
        assert_eq!(fresh("mixed:0.25"), 250);
        assert_eq!(fresh("mixed:0"), 0);
        assert_eq!(fresh("mixed:1"), 1000);
        assert!("mixed:1.5".parse::<Connections>().is_err());
        assert!("mixed".parse::<Connections>().is_err());
    }
}
