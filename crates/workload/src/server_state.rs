//! Server state that every connection needs, and the responses that depend on it.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{CONNECTION, HeaderName, HeaderValue};
use hyper::{HeaderMap, Response, StatusCode};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::path_responses::{ServerReadiness, UnsentResponse, answer, index_body, is_of_a_probe};
use super::sample_streams::SampleStreams;
use super::stop_signals::{Noticed, StopSignal};
use super::workload_log::{NowNs, ServerEvent, WorkloadLog};
use super::{WorkloadConfig, WorkloadError};

pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("rolldrop-id");
pub(super) const POD: HeaderName = HeaderName::from_static("rolldrop-pod");

/// State that every connection needs.
pub(super) struct ServerState {
    pub(super) log: WorkloadLog,
    pub(super) started: Instant,
    ready_after: Duration,
    pub(super) draining: Cell<bool>,
    /// Cancelled when idle connections must be closed.
    pub(super) close_idle: CancellationToken,
    pub(super) idle_timeout: Duration,
    response_time: Duration,
    fail_share: f64,
    /// Number of requests so far, not counting probes.
    counted: Cell<u64>,
    index: Bytes,
    pub(super) pod: Option<HeaderValue>,
    pub(super) streams: Rc<SampleStreams>,
}

impl ServerState {
    /// Opens the log and creates the state.
    pub(super) fn open(config: &WorkloadConfig, now: NowNs) -> Result<Self, WorkloadError> {
        Ok(Self {
            log: WorkloadLog::open(config.log.as_ref(), now)?,
            started: Instant::now(),
            ready_after: config.ready_after,
            draining: Cell::new(false),
            close_idle: CancellationToken::new(),
            idle_timeout: config.idle_timeout,
            response_time: config.response_time,
            fail_share: config.fail_share,
            counted: Cell::new(0),
            index: index_body(config.body_bytes, config.pod_name.as_deref()),
            pod: config.pod_name.as_deref().and_then(|name| HeaderValue::from_str(name).ok()),
            streams: Rc::new(SampleStreams::new(config.streams.clone())),
        })
    }

    /// Returns the server's current readiness.
    pub(super) fn readiness(&self) -> ServerReadiness {
        if self.draining.get() || self.started.elapsed() < self.ready_after {
            ServerReadiness::NotReady
        } else {
            ServerReadiness::Ready
        }
    }

    /// Returns true if a request is meant to fail. Failures are evenly spaced and match the share; probes never fail.
    pub(super) fn is_to_fail(&self, path: &str) -> bool {
        if is_of_a_probe(path) {
            return false;
        }
        let n = self.counted.get();
        self.counted.set(n + 1);
        let failed = |n: u64| (n as f64 * self.fail_share).floor();
        failed(n + 1) > failed(n)
    }

    /// Returns the response for a path and query.
    pub(super) fn answer(&self, path: &str, query: Option<&str>) -> UnsentResponse {
        match self.is_to_fail(path) {
            true => UnsentResponse::failure(),
            false => answer(path, query, self.readiness(), &self.index),
        }
    }

    /// Waits before a response for as long as its path and the configuration require.
    pub(super) async fn delay(&self, own: Duration) {
        let delay = own + self.response_time;
        if !delay.is_zero() {
            sleep(delay).await;
        }
    }

    /// Returns the connection header fields. While draining, the server closes each connection after a response.
    pub(super) fn connection_fields(&self) -> HeaderMap {
        let close = (CONNECTION, HeaderValue::from_static("close"));
        HeaderMap::from_iter(self.draining.get().then_some(close))
    }

    /// Returns a response that names the pod.
    pub(super) fn response<B>(&self, status: StatusCode, fields: HeaderMap, body: B) -> Response<B> {
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = fields;
        if let Some(pod) = &self.pod {
            response.headers_mut().insert(POD, pod.clone());
        }
        response
    }

    /// Logs a signal or the resumption of the process, and returns the signal if it can be given a habit.
    pub(super) fn log_signal(&self, noticed: Noticed) -> Option<StopSignal> {
        match noticed {
            Noticed::Signal(signal) => {
                self.log.write(ServerEvent::Signal { name: &signal.to_string() });
                if signal.means_stop() {
                    self.streams.note_stop_signal();
                }
                Some(signal)
            }
            Noticed::Continued => {
                self.log.write(ServerEvent::Continued);
                None
            }
        }
    }
}
