//! Validation of settings before anything is sent. Each message says what to change.

use std::time::Duration;

use super::limits::{MAX_DURATION, MAX_RATE, MAX_RETRIES, MAX_STREAMS, MAX_WORKERS};
use super::{Arrivals, ConnectionMode, Http, Length, Load, Pace, are_statuses, in_units};

/// Reason why settings are invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NotALoad {
    /// There is no target.
    #[error("no target: give a URL such as http://127.0.0.1:8080/")]
    NoTarget,
    /// The rate is out of range.
    #[error("rate {0} is out of range: use more than 0 and at most {MAX_RATE} requests/s")]
    Rate(f64),
    /// A duration is out of range.
    #[error("{what} of {} is out of range: use {allowed}", in_units(*given))]
    Duration {
        /// Name of the duration.
        what: &'static str,
        /// The given duration.
        given: Duration,
        /// Allowed range, as text.
        allowed: &'static str,
    },
    /// The setting needs a schedule, which a closed loop does not have.
    #[error("a closed loop has no schedule: remove either {0} or the closed loop")]
    Closed(&'static str),
    /// The number of workers is out of range.
    #[error("{0} workers are out of range: use 1 to {MAX_WORKERS}")]
    Workers(usize),
    /// There are more source addresses than workers.
    #[error(
        "{addresses} source addresses are too many for the number of workers ({workers}): use at most one address \
         per worker"
    )]
    TooFewWorkers {
        /// Number of addresses.
        addresses: usize,
        /// Number of workers.
        workers: usize,
    },
    /// The responses have no body that can be searched.
    #[error(
        "{0} has no body to search for the pod's name: remove the body pattern (--pod-body, load.podBody) and \
         have responses name their pod in a header"
    )]
    PodBody(&'static str),
    /// The number of retries is out of range.
    #[error("{0} retries are too many: use at most {MAX_RETRIES}")]
    Retries(u32),
    /// The share of fresh connections does not fit the mode.
    #[error("connections: {0}")]
    Share(&'static str),
    /// The limit can never apply to fresh connections.
    #[error("a fresh connection carries one request: remove {0} or keep connections open")]
    FreshLimit(&'static str),
    /// A connection could not carry any requests.
    #[error("0 requests per connection are too few: use at least 1")]
    MaxRequests,
    /// The number of streams per connection is out of range.
    #[error("{0} streams per connection are out of range: use 1 to {MAX_STREAMS}")]
    Streams(usize),
    /// A stream limit is set without HTTP/2.
    #[error("HTTP/1.1 has no streams: use HTTP/2 or remove the limit on streams")]
    StreamsNeedHttp2,
    /// gRPC is combined with HTTP/1.1.
    #[error("gRPC needs HTTP/2")]
    GrpcNeedsHttp2,
    /// A setting cannot be combined with streams.
    #[error("streams: {0}")]
    Stream(&'static str),
    /// A range of statuses is empty or out of range.
    #[error("success statuses {0}-{1} are not a range within 100-599")]
    Success(u16, u16),
}

impl Load {
    /// Validates the settings that do not depend on the target.
    ///
    /// # Errors
    /// Returns an error for invalid settings. It says which setting is wrong, and what is allowed.
    pub fn check(&self) -> Result<(), NotALoad> {
        if !(1..=MAX_WORKERS).contains(&self.workers) {
            return Err(NotALoad::Workers(self.workers));
        }
        let (addresses, workers) = (self.source_addresses.len(), self.workers);
        if addresses > workers {
            return Err(NotALoad::TooFewWorkers { addresses, workers });
        }
        if let Some(&(from, to)) = self.success.iter().find(|range| !are_statuses(**range)) {
            return Err(NotALoad::Success(from, to));
        }
        if self.targets.is_empty() {
            return Err(NotALoad::NoTarget);
        }
        if self.retry.times > MAX_RETRIES {
            return Err(NotALoad::Retries(self.retry.times));
        }
        self.check_connections()?;
        self.check_http()?;
        self.check_stream()?;
        self.check_durations()?;
        self.check_pace()
    }

    fn check_connections(&self) -> Result<(), NotALoad> {
        let kept = &self.connections;
        if let Some(why) = kept.share_fault() {
            return Err(NotALoad::Share(why));
        }
        let limits = [
            ("the limit on requests", kept.max_requests.is_some()),
            ("the limit on age", kept.max_age.is_some()),
        ];
        match limits.into_iter().find(|(_, is_given)| *is_given) {
            Some((limit, _)) if kept.mode == ConnectionMode::Fresh => Err(NotALoad::FreshLimit(limit)),
            _ if kept.max_requests == Some(0) => Err(NotALoad::MaxRequests),
            _ => Ok(()),
        }
    }

    fn check_http(&self) -> Result<(), NotALoad> {
        if self.pod_body.is_some() {
            match self.has_scheme(&["ws:", "wss:"]) {
                _ if self.grpc.is_some() => return Err(NotALoad::PodBody("a gRPC response")),
                true => return Err(NotALoad::PodBody("a WebSocket response")),
                false => {}
            }
        }
        match (self.spoken(), self.connections.max_concurrent_streams) {
            (Http::Http1, _) if self.grpc.is_some() => Err(NotALoad::GrpcNeedsHttp2),
            (Http::Http1, Some(_)) => Err(NotALoad::StreamsNeedHttp2),
            (_, Some(streams)) if !(1..=MAX_STREAMS).contains(&streams) => Err(NotALoad::Streams(streams)),
            _ => Ok(()),
        }
    }

    fn check_stream(&self) -> Result<(), NotALoad> {
        let Some(stream) = &self.stream else { return Ok(()) };
        let contradictions = [
            (self.grpc.is_some(), "gRPC calls cannot be streams: remove one of the two"),
            (self.has_scheme(&["ws:", "wss:"]), "WebSocket targets cannot be streams: use an http URL"),
            (self.spoken() == Http::Http2, "they need HTTP/1.1: remove the HTTP version or set it to 1.1"),
            (
                self.pod_body.is_some(),
                "their bodies are not searched for the pod's name: have responses name their pod in a header",
            ),
            (self.retry.times > 0, "they are not retried: remove the retries"),
            (
                self.connections.max.is_some() && stream.max_open.is_some(),
                "each has its own connection, so one limit is enough: remove the limit on connections",
            ),
        ];
        let contradiction = contradictions.into_iter().find(|(is_so, _)| *is_so).map(|(_, why)| why);
        match stream.fault().or(contradiction) {
            Some(why) => Err(NotALoad::Stream(why)),
            None => takes_time("a stall timeout", stream.stall_timeout),
        }
    }

    fn check_durations(&self) -> Result<(), NotALoad> {
        let timeout = &self.timeout;
        let from_0 = [("a warm-up", self.warmup), ("a spin", self.spin), ("a retry delay", self.retry.delay)];
        let above_0 = [
            ("a connect timeout", Some(timeout.connect)),
            ("a TLS timeout", Some(timeout.tls)),
            ("a response timeout", timeout.response),
            ("a first-byte timeout", timeout.first_byte),
            ("a maximum connection age", self.connections.max_age),
        ];
        if let Some((what, given)) = from_0.into_iter().find(|(_, given)| *given > MAX_DURATION) {
            return Err(NotALoad::Duration { what, given, allowed: "at most a week" });
        }
        above_0
            .into_iter()
            .try_for_each(|(what, given)| given.map_or(Ok(()), |given| takes_time(what, given)))
    }

    fn check_pace(&self) -> Result<(), NotALoad> {
        let stages = match &self.pace {
            Pace::Open(stages) => stages,
            Pace::Closed(_) if self.arrivals != Arrivals::Even => return Err(NotALoad::Closed("poisson")),
            Pace::Closed(_) if !self.spin.is_zero() => return Err(NotALoad::Closed("spin")),
            Pace::Closed(Length::Time(duration)) => return takes_time("a duration", *duration),
            Pace::Closed(Length::Requests(_)) => return Ok(()),
        };
        // A ramp may begin or end at 0, and a stage may be a pause, but the load as a whole must send requests.
        let is_rate = |rate: f64| (0.0..=MAX_RATE).contains(&rate);
        let mut rates = stages.iter().flat_map(|stage| [stage.from, stage.to]);
        if let Some(rate) = rates.find(|rate| !is_rate(*rate)) {
            return Err(NotALoad::Rate(rate));
        }
        if self.pace.peak_rate() == 0.0 {
            return Err(NotALoad::Rate(0.0));
        }
        let mut durations = stages.iter().map(|stage| stage.duration).chain(self.pace.duration());
        durations.try_for_each(|duration| takes_time("a duration", duration))
    }
}

fn takes_time(what: &'static str, given: Duration) -> Result<(), NotALoad> {
    match given.is_zero() || given > MAX_DURATION {
        true => Err(NotALoad::Duration { what, given, allowed: "more than 0 and at most a week" }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Connections, Grpc, LoadTarget, StreamKind, StreamSettings};
    use super::*;

    fn refused(change: impl FnOnce(&mut Load)) -> String {
        let mut load = Load::new("http://127.0.0.1:8080/");
        change(&mut load);
        load.check().unwrap_err().to_string()
    }

    #[test]
    fn check_names_invalid_setting() {
        let pace = |rate, s| Pace::constant(rate, Duration::from_secs(s));
        assert_eq!(Load::new("http://web/").check(), Ok(()));
        assert!(refused(|s| s.targets.clear()).contains("no target"));
        assert!(refused(|s| s.pace = pace(0.0, 30)).starts_with("rate 0 is out of range"));
        assert!(refused(|s| s.pace = pace(f64::NAN, 30)).contains("NaN"));
        assert!(
            refused(|s| s.pace = pace(1.0, 0))
                .starts_with("a duration of 0s is out of range: use more than 0")
        );
        assert!(refused(|s| s.timeout.response = Some(Duration::MAX)).contains("a response timeout"));
        let stages = |texts: &[&str]| Pace::Open(texts.iter().map(|text| text.parse().unwrap()).collect());
        assert!(refused(|s| s.pace = stages(&["5:1s", "5:0s"])).contains("a duration of 0s"));
        assert!(refused(|s| s.pace = stages(&["0-1e9:1s"])).starts_with("rate 1000000000 is out of range"));
        assert!(refused(|s| s.pace = stages(&[])).starts_with("rate 0 is out of range"));
        assert!(refused(|s| s.workers = 0).contains("0 workers"));
        let addresses = vec![[127, 0, 0, 1].into(); 2];
        assert!(refused(|s| s.source_addresses = addresses).contains("2 source addresses"));
        assert!(refused(|s| s.retry.times = 101).contains("101 retries"));
        assert!(refused(|s| s.connections.max_requests = Some(0)).contains("carries one request"));
        let none = Connections { max_requests: Some(0), ..Connections::KEEPALIVE };
        assert!(refused(|s| s.connections = none).contains("0 requests per connection"));
        assert!(refused(|s| s.success = vec![(300, 200)]).contains("300-200"));
    }

    #[test]
    fn load_with_streams_rejects_contradicting_settings() {
        let stream = || Some(StreamSettings::new(StreamKind::Sse));
        let refused_with = |change: fn(&mut Load)| {
            refused(|s| {
                s.stream = stream();
                change(s);
            })
        };
        assert!(refused_with(|s| s.http = Http::Http2).contains("they need HTTP/1.1"));
        assert!(refused_with(|s| s.retry.times = 1).contains("not retried"));
        assert!(refused_with(|s| s.targets = vec![LoadTarget::new("", "ws://web/")]).contains("WebSocket"));
        assert!(refused_with(|s| s.pod_body = Some("x".into())).contains("in a header"));
        let both = refused_with(|s| {
            s.connections.max = Some(5);
            s.stream.as_mut().unwrap().max_open = Some(5);
        });
        assert!(both.contains("one limit is enough"), "{both}");
        assert!(
            refused_with(|s| s.stream.as_mut().unwrap().stall_timeout = Duration::MAX)
                .contains("a stall timeout")
        );
    }

    #[test]
    fn open_stream_limit_sets_connection_limit() {
        let load = |max_open, pace: Option<Pace>| {
            let stream = StreamSettings { max_open, ..StreamSettings::new(StreamKind::Sse) };
            let load = Load { stream: Some(stream), ..Load::new("http://web/") };
            Load { pace: pace.unwrap_or_else(|| load.pace.clone()), ..load }
        };
        assert_eq!(load(None, None).max_connections(), 20_000);
        assert_eq!(load(Some(7), None).max_connections(), 7);
        let closed = Pace::Closed(Length::Time(Duration::from_secs(1)));
        assert_eq!(load(None, Some(closed)).max_connections(), 50, "a closed loop keeps its own default");
        assert_eq!(load(None, None).response_timeout(), Duration::from_secs(60));
        assert_eq!(Load::new("http://web/").response_timeout(), Duration::from_secs(5));
    }

    #[test]
    fn pod_body_needs_plain_http() {
        let pattern = || Some("pod=(.+)".to_owned());
        let call = refused(|s| {
            (s.grpc, s.pod_body) = (Some(Grpc::new("a/b".parse().unwrap())), pattern());
        });
        assert!(call.starts_with("a gRPC response has no"), "{call}");
        for url in ["ws://web/", "wss://web/"] {
            let refused = refused(|s| (s.targets, s.pod_body) = (vec![LoadTarget::new("", url)], pattern()));
            assert!(refused.starts_with("a WebSocket response has no body"), "{refused}");
        }
    }
}
