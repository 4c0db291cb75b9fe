//! Watches the proxy's own pod object, from inside the pod, through the pod's entire termination.
//!
//! This requires a service account with permission to list and watch the pod. Without it, everything else works the
//! same.

use std::env;
use std::pin::pin;
use std::sync::Arc;

use futures::StreamExt;
use http::Response;
use http_body_util::Limited;
use k8s_openapi::api::core::v1::Pod;
use kube::client::ClientBuilder;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use tower::util::MapResponseLayer;

use super::ProxyState;
use crate::observed::pod_event;
use rolldrop_record::event::{Change, ProxyPhase};

/// Maximum number of bytes to read from one response, including a watch. A pod object has at most 1.5 MiB, and
/// termination changes it only a few times.
const ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// Setting for watching the proxy's own pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchPod {
    /// Watch if the proxy runs in a pod with a service account.
    Auto,
    /// Never watch.
    Off,
}

/// Returns a client with the pod's service account; `None` outside a pod, and in a pod without one.
pub(super) async fn client() -> Option<Client> {
    env::var_os("KUBERNETES_SERVICE_HOST")?;
    // Uses the kubeconfig named by the environment variable, if any, otherwise the files that every pod with a service
    // account has in the standard place.
    let mut config = kube::Config::infer().await.ok()?;
    // The API server is inside the cluster.
    config.proxy_url = None;
    let bounded =
        MapResponseLayer::new(|answer: Response<_>| answer.map(|body| Limited::new(body, ANSWER_BYTES)));
    Some(ClientBuilder::try_from(config).ok()?.with_layer(&bounded).build())
}

/// Watches the pod until the API server denies access.
pub(super) async fn watch(client: Client, shared: Arc<ProxyState>) {
    let name = format!("metadata.name={}", shared.pod);
    let config = watcher::Config::default().fields(&name);
    let mut events = pin!(watcher(Api::<Pod>::default_namespaced(client), config).default_backoff());
    let mut own = OwnPod { shared, uid: None, is_ending: false };
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::InitApply(pod)) => own.seen(Change::Listed, &pod),
            Ok(Event::Apply(pod)) => own.seen(Change::Applied, &pod),
            Ok(Event::Delete(pod)) => own.seen(Change::Deleted, &pod),
            Ok(Event::Init | Event::InitDone) => {}
            Err(error) if is_refused(&error) => {
                let pod = &own.shared.pod;
                tracing::warn!(%error, "the sidecar cannot watch its own pod {pod}: it lacks permission to list and watch pods");
                return;
            }
            Err(error) => tracing::debug!(%error, "the watch of the proxy's own pod was interrupted"),
        }
    }
}

fn is_refused(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => matches!(status.code, 401 | 403),
        _ => false,
    }
}

struct OwnPod {
    shared: Arc<ProxyState>,
    /// UID of the first pod with this name; a later pod with the same name is a different one.
    uid: Option<String>,
    is_ending: bool,
}

impl OwnPod {
    /// Records the pod when it is first seen, and every change during its termination. Earlier changes would accumulate
    /// without bound, and other recorders observe them anyway.
    fn seen(&mut self, change: Change, pod: &Pod) {
        let at = self.shared.clock.now();
        let uid = pod.uid().unwrap_or_default();
        let is_first = self.uid.is_none();
        if *self.uid.get_or_insert_with(|| uid.clone()) != uid {
            return;
        }
        if !self.is_ending && pod.metadata.deletion_timestamp.is_some() {
            self.is_ending = true;
            self.shared.journal.phase(ProxyPhase::DeletionSeen, at);
            self.shared.ending.cancel();
        }
        if is_first || self.shared.ending.is_cancelled() {
            self.shared.journal.own_pod(pod_event(change, pod), at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Mutex;
    use std::time::Duration;

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::super::{Proxy, ProxyConfig};
    use super::*;
    use rolldrop_record::Clock;

    #[tokio::test]
    async fn forbidden_watch_stops_after_one_request() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = asked.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            seen.lock().unwrap().push(request.uri().to_string());
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403,
                "reason": "Forbidden", "message": "pods is forbidden"});
            async move { Response::builder().status(403).body(Body::from(status.to_string().into_bytes())) }
        });
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let config = ProxyConfig::bare(local);
        let shared = Proxy::bind(config, Clock::start()).unwrap().shared;
        let watched = watch(Client::new(service, "shop"), shared.clone());
        tokio::time::timeout(Duration::from_secs(20), watched).await.expect("it gives up");
        let asked = asked.lock().unwrap().clone();
        let [uri] = &asked[..] else { panic!("{asked:?}") };
        assert!(uri.starts_with("/api/v1/namespaces/shop/pods?"), "{uri}");
        assert!(uri.contains("fieldSelector=metadata.name%3Dweb-1"), "{uri}");
        assert!(!shared.ending.is_cancelled());
    }
}
