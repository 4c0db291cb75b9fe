//! The admin port of a proxy in a pod, reached through the API server's pod proxy.

use std::sync::Arc;
use std::time::Duration;

use futures::AsyncReadExt;
use http::Request;
use kube::Client;
use tokio::time::{Instant, sleep, timeout_at};

use super::proxy_listener::{ProxyListener, ProxyNews};
use crate::api::{Pauses, TimeLimits};
use crate::error::is_passing;
use rolldrop_kubernetes::guard::object_names::in_path;
use rolldrop_record::wire::{AdminToken, CLOCK_PATH, ClockAnswer, TOKEN_HEADER, TOKEN_WANTED};

/// Time after which the run gives up on a response that has not begun, or on a silent stream that should have more
/// rows.
pub(super) const SILENCE: Duration = Duration::from_secs(5);
/// Maximum length of a proxy's response about its clock, in bytes.
const CLOCK_BYTES: u64 = 4096;

/// Everything that is needed to follow a proxy.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) client: Client,
    pub(super) listener: Arc<dyn ProxyListener>,
    /// Token for the admin ports.
    pub(super) admin_token: Option<AdminToken>,
    pub(super) wanted: WantedRows,
}

/// Rows to read from each proxy.
#[derive(Clone, Copy)]
pub(super) enum WantedRows {
    /// All rows. Proxies that are gone are remembered, because a run needs their counts.
    All,
    /// This many rows from before the first contact, and all later ones. Proxies that are gone are forgotten.
    Latest(u64),
}

/// Admin port of a proxy, reached through the API server.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(super) context: Context,
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) uid: String,
    pub(super) port: u16,
}

impl Endpoint {
    pub(super) async fn ask_clock(&self) -> kube::Result<ClockAnswer> {
        let request = self.get(CLOCK_PATH).map_err(kube::Error::HttpError)?;
        let answer = self.context.client.request_stream(request).await?;
        let mut text = Vec::new();
        let read = answer.take(CLOCK_BYTES).read_to_end(&mut text).await;
        read.map_err(kube::Error::ReadEvents)?;
        serde_json::from_slice(&text).map_err(kube::Error::SerdeError)
    }

    /// Asks for the proxy's clock one last time. If the API server is down, waits for it.
    pub(super) async fn last_clock(&self, limits: &TimeLimits) -> Option<ClockAnswer> {
        let (soon, give_up) = (Instant::now() + limits.hand_over, Instant::now() + limits.outage);
        let mut pauses = Pauses::default();
        loop {
            let asked = timeout_at(give_up, self.ask_clock()).await.ok()?;
            let is_away = match asked {
                Ok(answer) => return Some(answer),
                // The API server was up but could not reach the proxy.
                Err(kube::Error::Api(status)) if [404, 502, 503].contains(&status.code) => false,
                Err(error) if wants_token(&error) => return None,
                Err(error) => is_passing(&error),
            };
            let pause = pauses.next();
            if Instant::now() + pause >= if is_away { give_up } else { soon } {
                return None;
            }
            sleep(pause).await;
        }
    }

    /// Passes news about the recorder with this source name on to the listener.
    pub(super) fn tell(&self, source: &str, news: ProxyNews) {
        self.context.listener.take(self, source, news);
    }

    pub(super) fn get(&self, path: &str) -> http::Result<Request<Vec<u8>>> {
        let Self { namespace, pod, port, .. } = self;
        let (namespace, pod) = (in_path(namespace), in_path(pod));
        let uri = format!("/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy{path}");
        let mut request = Request::get(uri);
        if let Some(token) = &self.context.admin_token {
            request = request.header(TOKEN_HEADER, token.as_str());
        }
        request.body(Vec::new())
    }
}

/// Returns true if a proxy's admin port requires the token.
pub(super) fn wants_token(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 401 && status.message == TOKEN_WANTED)
}
