//! Validates user settings and turns them into a [`Plan`].
//!
//! A plan contains only what can be carried out, so that bad input is rejected before the first request. Planning
//! resolves no names and opens no sockets.

mod error;
mod target_validation;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::answer_headers::WantedHeaders;
use super::client_tls;
use super::planned_target::PlannedTarget;
use super::pod_body::PodBody;
use super::schedule::Schedule;
pub use error::PlanError;
use rolldrop_record::load::{Length, Load, LoadPlan, NotALoad, Pace, RateStage, TlsSettings};
use rolldrop_record::run_info::{Balances, BalancesBecause, Role, Source, Target};
use rolldrop_record::{Outcome, RunId};
use target_validation::{cycle, plan_target};

/// Maximum length of the cycle in which weighted targets take turns.
const MAX_CYCLE: u64 = 65_536;

/// Source of the request times.
#[derive(Clone, Debug)]
pub(super) enum Timing {
    /// Each request has an intended send time.
    Schedule(Schedule),
    /// A request is due whenever a connection is free.
    OnDemand(Length),
}

/// Worker threads in one process, for a load that several processes send. Each process sends its part of a common
/// schedule, so that together they send exactly the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadShare {
    /// Number of the process's first thread.
    pub first: usize,
    /// Number of threads in all processes.
    pub of: usize,
}

/// A load that can be carried out.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) settings: Load,
    /// Part that all request ids share.
    pub(super) run: RunId,
    pub(super) share: ThreadShare,
    pub(super) timing: Timing,
    pub(super) targets: Vec<PlannedTarget>,
    /// Target indexes in turn order, repeated cyclically.
    pub(super) cycle: Vec<usize>,
    pub(super) max_connections: usize,
    /// Headers to look for in responses.
    pub(super) wanted: WantedHeaders,
    /// Client TLS configuration, if any target uses TLS.
    pub(super) tls: Option<client_tls::ClientTlsConfig>,
    /// Pattern that finds the pod's name in a response body.
    pub(super) pod_body: Option<PodBody>,
}

impl Plan {
    /// Validates the settings and creates a plan.
    ///
    /// # Errors
    /// Returns an error if the settings cannot be carried out; the error names the wrong setting and the allowed
    /// values.
    pub fn new(settings: Load) -> Result<Self, PlanError> {
        let settings = Load { http: settings.spoken(), ..settings };
        settings.check()?;
        let timing = plan_timing(&settings)?;
        let targets = settings.targets.iter().map(|target| plan_target(target, &settings));
        let targets = targets.collect::<Result<Vec<PlannedTarget>, _>>()?;
        let tls = plan_tls(&settings, &targets)?;
        let cycle = cycle(&settings.targets)?;
        let max_connections = settings.max_connections();
        if max_connections < settings.workers {
            return Err(PlanError::TooFewConnections { max: max_connections, workers: settings.workers });
        }
        let share = ThreadShare { first: 0, of: settings.workers };
        let pod_body = settings.pod_body.as_deref().map(str::parse).transpose()?;
        let wanted = WantedHeaders::new(&settings.pod_header, &settings.keep_headers)?;
        let run = RunId::random();
        Ok(Self { timing, targets, cycle, max_connections, wanted, tls, pod_body, settings, run, share })
    }

    /// Sets the run id of the requests. Without this call, a plan has its own run id.
    #[must_use]
    pub fn of_run(self, run: RunId) -> Self {
        Self { run, ..self }
    }

    /// Returns the part that all request ids share.
    pub fn run(&self) -> &RunId {
        &self.run
    }

    /// Returns the part of the load for a process that runs the threads in `share`.
    ///
    /// # Errors
    /// Returns an error if there are no such threads, or if there are fewer connections than threads.
    pub fn part(self, share: ThreadShare) -> Result<Self, PlanError> {
        let ThreadShare { first, of } = share;
        if first + self.settings.workers > of {
            return Err(NotALoad::Workers(of).into());
        }
        if self.max_connections < of {
            return Err(PlanError::TooFewConnections { max: self.max_connections, workers: of });
        }
        Ok(Self { share, ..self })
    }

    /// Returns the numbers of this process's worker threads.
    pub(super) fn own_workers(&self) -> std::ops::Range<usize> {
        self.share.first..self.share.first + self.settings.workers
    }

    /// Returns the number of requests that this process's threads will schedule; `None` if that is not known in
    /// advance.
    pub(super) fn own_requests(&self) -> Option<u64> {
        let own = |all| self.own_workers().map(|worker| part_of(all, worker, self.share.of)).sum();
        self.requests().map(own)
    }

    /// Returns the number of requests that will be scheduled, including the warm-up; `None` if that is not known in
    /// advance.
    pub fn requests(&self) -> Option<u64> {
        match &self.timing {
            Timing::Schedule(schedule) => Some(schedule.warmup() + schedule.main()),
            Timing::OnDemand(Length::Requests(requests)) if self.settings.warmup.is_zero() => Some(*requests),
            Timing::OnDemand(_) => None,
        }
    }

    /// Returns the number of warm-up requests; `None` if the warm-up is limited only by time.
    pub fn warmup_requests(&self) -> Option<u64> {
        match &self.timing {
            Timing::Schedule(schedule) => Some(schedule.warmup()),
            Timing::OnDemand(_) => self.settings.warmup.is_zero().then_some(0),
        }
    }

    /// Returns the length of the whole schedule, including the warm-up; `None` if that is not known in advance.
    pub fn length(&self) -> Option<Duration> {
        self.settings.pace.duration().map(|counted| self.settings.warmup + counted)
    }

    /// Returns the length of the whole schedule or, if that is not known in advance, only the length of the warm-up.
    pub(super) fn known_length(&self) -> Duration {
        self.length().unwrap_or(self.settings.warmup)
    }

    /// Returns the maximum number of connections that worker number `worker` may have open.
    pub(super) fn part_of_connections(&self, worker: usize) -> usize {
        let part = part_of(self.max_connections as u64, worker, self.share.of);
        usize::try_from(part).unwrap_or(usize::MAX)
    }

    /// Computes the planned number of fresh connections per second in this process.
    pub(super) fn fresh_per_s(&self) -> f64 {
        let own = self.settings.workers as f64 / self.share.of as f64;
        self.settings.fresh_per_s() * own
    }

    /// Returns the length of the warm-up.
    pub fn warmup(&self) -> Duration {
        self.settings.warmup
    }

    /// Returns the stages of an open loop; empty for a closed loop.
    pub fn stages(&self) -> Vec<RateStage> {
        match &self.settings.pace {
            Pace::Open(stages) => stages.clone(),
            Pace::Closed(_) => Vec::new(),
        }
    }

    /// Returns the source names of the load, one per worker.
    pub fn sources(&self) -> Vec<String> {
        self.own_workers().map(source_name).collect()
    }

    /// Returns the plan in the format of `run.json`.
    pub fn load_plan(&self) -> LoadPlan {
        LoadPlan::from(&self.settings)
    }

    /// Returns the targets in the format of `run.json`, without the Service and the routing, which are unknown to the
    /// load.
    pub fn targets(&self) -> Vec<Target> {
        let target = |target: &PlannedTarget| Target {
            name: target.name.to_string(),
            url: target.url.clone(),
            consumer: target.name.to_string(),
            balances: Balances::Connections,
            balances_because: BalancesBecause::Assumed,
            service: None,
            routing: None,
            node: None,
        };
        self.targets.iter().map(target).collect()
    }

    /// Returns the load's sources in the format of `run.json`, for a load sent by the process that writes the run
    /// directory.
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

    /// Returns the outcome of a complete response with this status.
    pub(super) fn outcome_of(&self, status: u16) -> Outcome {
        if self.is_success(status) { Outcome::Ok } else { Outcome::HttpError }
    }

    /// Returns true if a status counts as success. A redirect or a status without content begins no stream.
    pub(super) fn is_success(&self, status: u16) -> bool {
        let is_no_stream = self.settings.stream.is_some() && matches!(status, 204 | 205 | 300..=399);
        !is_no_stream && self.settings.success.iter().any(|(from, to)| (*from..=*to).contains(&status))
    }
}

/// Returns the source name of a worker.
pub(super) fn source_name(worker: usize) -> String {
    format!("load-{worker}")
}

/// Returns the part of `total` for worker number `worker`; the parts differ by at most one.
pub(super) fn part_of(total: u64, worker: usize, workers: usize) -> u64 {
    let (worker, workers) = (worker as u64, workers as u64);
    total / workers + u64::from(worker < total % workers)
}

fn plan_timing(settings: &Load) -> Result<Timing, PlanError> {
    let duration = settings.pace.duration().unwrap_or_default();
    let stages = match &settings.pace {
        Pace::Open(stages) => stages,
        Pace::Closed(Length::Requests(0)) => return Err(PlanError::NoRequest { rate: 0.0, duration }),
        Pace::Closed(length) => return Ok(Timing::OnDemand(*length)),
    };
    let rate = settings.pace.warmup_rate();
    let warmup = RateStage { from: rate, to: rate, duration: settings.warmup };
    let schedule = Schedule::new(warmup, stages, settings.arrivals, settings.seed);
    match schedule.main() {
        0 => Err(PlanError::NoRequest { rate: settings.pace.mean_rate(), duration }),
        _ => Ok(Timing::Schedule(schedule)),
    }
}

fn plan_tls(
    settings: &Load,
    targets: &[PlannedTarget],
) -> Result<Option<client_tls::ClientTlsConfig>, PlanError> {
    if targets.iter().any(|target| target.tls_name.is_some()) {
        return Ok(Some(client_tls::ClientTlsConfig::new(
            &settings.tls,
            client_tls::offered(settings.http),
        )?));
    }
    if settings.tls == TlsSettings::default() { Ok(None) } else { Err(PlanError::NoTls) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placeholders::TemplatePiece;
    use rolldrop_record::load::{Connections, Grpc, LoadTarget};

    fn refused(change: impl FnOnce(&mut Load)) -> String {
        let mut settings = Load::new("http://127.0.0.1:8080/");
        change(&mut settings);
        Plan::new(settings).unwrap_err().to_string()
    }

    #[test]
    fn plan_error_names_invalid_setting() {
        let url = |url: &'static str| refused(move |s| s.targets[0].url = url.to_owned());
        assert_eq!(
            url("web:8080"),
            "cannot use URL \"web:8080\": it has no scheme; write it as http://web:8080"
        );
        assert!(url("ftp://x/").contains("scheme \"ftp\" is not supported: use http, https, ws or wss"));
        assert!(url("http://me:secret@x/").contains("credentials"));
        assert!(url("http://x:0/").ends_with("no server listens on port 0"));
        let rare = Pace::constant(0.01, Duration::from_secs(30));
        assert!(refused(|s| s.pace = rare).contains("is less than one request"));
        assert!(refused(|s| s.connections.max = Some(0)).contains("0 connections are too few"));
        assert!(refused(|s| s.method = "GE T".into()).contains("\"GE T\""));
        assert!(refused(|s| s.headers.push(("a b".into(), "c".into()))).contains("its name"));
        assert!(refused(|s| s.headers.push(("a".into(), "b\nc".into()))).contains("its value"));
        assert!(refused(|s| s.headers.push(("Rolldrop-Id".into(), "x".into()))).contains("sets it itself"));
        let call = |change: fn(&mut Load)| {
            refused(|s| {
                s.grpc = Some(Grpc::new("a/b".parse().unwrap()));
                change(s);
            })
        };
        assert_eq!(
            call(|s| s.targets[0].method = Some("GET".into())),
            "GET http://127.0.0.1:8080/: gRPC calls use POST: write POST http://127.0.0.1:8080/"
        );
        assert!(call(|s| s.headers.push(("TE".into(), "trailers".into()))).contains("sets it itself"));
        let template = |body: &str| {
            refused(|s| {
                s.template = true;
                s.body = body.into();
            })
        };
        assert!(template("{{what}}").starts_with("body: unknown placeholder \"{{what}}\": use {{seq}}"));
    }

    #[test]
    fn plan_splits_url_into_parts() {
        let target = |url: &str| {
            let plan = Plan::new(Load::new(url)).unwrap();
            let t = plan.targets[0].clone();
            let [TemplatePiece::Bytes(path)] = t.path.as_slice() else { panic!("{:?}", t.path) };
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
            let target = |weight: &u32| LoadTarget { weight: *weight, ..LoadTarget::new("t", "http://web/") };
            let targets = weights.iter().map(target).collect();
            Plan::new(Load { targets, ..Load::new("") }).map(|plan| plan.cycle)
        };
        assert_eq!(turns(&[1, 1]).unwrap(), [0, 1]);
        assert_eq!(turns(&[300, 100]).unwrap(), [0, 0, 1, 0]);
        assert_eq!(turns(&[5, 1, 1]).unwrap(), [0, 0, 1, 0, 2, 0, 0]);
        assert!(turns(&[1, 0]).unwrap_err().to_string().contains("weight 0"));
        assert!(turns(&[65_536, 1]).unwrap_err().to_string().contains("add up to 65537"));
    }

    #[test]
    fn connect_to_keeps_target_authority() {
        let connect_to = vec!["web:80:127.0.0.1:8080".parse().unwrap()];
        let plan = Plan::new(Load { connect_to, ..Load::new("http://web/") }).unwrap();
        let target = &plan.targets[0];
        assert_eq!(
            (target.host.as_str(), target.port, target.authority.as_str()),
            ("127.0.0.1", 8080, "web")
        );
    }

    #[test]
    fn fresh_share_matches_connection_mode() {
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
