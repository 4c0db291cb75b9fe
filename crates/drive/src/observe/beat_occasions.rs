//! Decides when a watch writes beats: only while pods are terminating, or may soon be.
//!
//! A beat helps to date a deletion only if it was written before the deletion. Therefore, events that precede deletions
//! count as signs: changes to workloads, cordoned nodes, and new pods, which replace others once they are ready.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep_until};

use super::beat_writer::BeatWriter;
use super::list_watch::WatchListener;
use crate::error::CoordinatorError;
use rolldrop_record::EventKind;
use rolldrop_record::event::{Change, PodEvent};

/// Time for which pods may still be terminated after the last sign.
const HOLD: Duration = Duration::from_secs(60);
/// Longest time for which a pod that has not become ready counts as a sign: the default of progressDeadlineSeconds.
const LONGEST_START: Duration = Duration::from_secs(600);

/// ConfigMap that a watch writes beats to.
#[derive(Clone, Debug)]
pub struct BeatObject {
    /// Namespace of the ConfigMap.
    pub namespace: String,
    /// Name of the ConfigMap.
    pub name: String,
}

/// Signs that pods are terminating, or may soon be.
#[derive(Debug)]
pub(super) struct BeatOccasions {
    until: Instant,
    /// New pods that have not become ready, by UID, each with the time until which it counts.
    starting: HashMap<String, Instant>,
}

impl BeatOccasions {
    /// Begins with the assumption that pods may soon terminate, so that the beats are checked before they are needed.
    pub(super) fn begin(now: Instant) -> Self {
        Self { until: now + HOLD, starting: HashMap::new() }
    }

    /// Processes an event. Returns true if it is a sign.
    pub(super) fn observe(&mut self, now: Instant, kind: &EventKind) -> bool {
        let is_sign = match kind {
            EventKind::Pod(pod) => self.observe_pod(now, pod),
            EventKind::Workload(workload) => workload.change != Change::Listed,
            EventKind::Node(node) => node.change == Change::Applied && node.unschedulable,
            _ => false,
        };
        if is_sign {
            self.until = now + HOLD;
        }
        is_sign
    }

    fn observe_pod(&mut self, now: Instant, pod: &PodEvent) -> bool {
        let is_gone = pod.change == Change::Deleted;
        if is_gone || pod.ready {
            // A pod that has just become ready replaces another one.
            if self.starting.remove(&pod.uid).is_some() {
                return true;
            }
        } else if pod.change == Change::Applied && pod.phase == "Pending" && !is_of_job(pod) {
            self.starting.entry(pod.uid.clone()).or_insert(now + LONGEST_START);
            return true;
        }
        let has_finished = matches!(pod.phase.as_str(), "Succeeded" | "Failed");
        !has_finished && (is_gone || pod.deletion_timestamp.is_some() || pod.disruption_target.is_some())
    }

    /// Returns the time until which pods may terminate.
    fn until(&self) -> Instant {
        self.starting.values().copied().fold(self.until, Instant::max)
    }
}

/// Returns true for a pod that replaces no other pod.
fn is_of_job(pod: &PodEvent) -> bool {
    pod.owner.as_ref().is_some_and(|owner| owner.starts_with("Job/"))
}

/// Writes beats while pods are terminating, or may soon be. If this was never allowed, reports a warning and returns.
pub(super) async fn beat_while_pods_end(
    client: &Client,
    object: &BeatObject,
    pods: Api<Pod>,
    listener: &dyn WatchListener,
    mut occasions: Receiver<BeatOccasions>,
) {
    let config_maps = Api::namespaced(client.clone(), &object.namespace);
    let mut writer = BeatWriter::new(listener, config_maps, object.name.clone(), pods);
    // The sender lives as long as the listener.
    while occasions.wait_for(|occasions| occasions.until() > Instant::now()).await.is_ok() {
        let quiet = async {
            loop {
                let until = occasions.borrow().until();
                if until <= Instant::now() {
                    break;
                }
                sleep_until(until).await;
            }
        };
        let refused = tokio::select! {
            refused = writer.beat_until_refused() => refused,
            () = quiet => continue,
        };
        let made = match &refused {
            kube::Error::Api(status) if status.code == 404 => make(&writer).await,
            _ => Err(writer.refusal(&refused)),
        };
        if let Err(why) = made
            && !writer.outlast_refusal(&why).await
        {
            break;
        }
    }
}

/// Creates the ConfigMap.
async fn make(writer: &BeatWriter<'_>) -> Result<(), CoordinatorError> {
    let name = Some(writer.name.clone());
    let object = ConfigMap { metadata: ObjectMeta { name, ..ObjectMeta::default() }, ..ConfigMap::default() };
    match writer.config_maps.create(&PostParams::default(), &object).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        made => made
            .map(drop)
            .map_err(|error| CoordinatorError::api(&format!("create ConfigMap {}", writer.name), &error)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use http::Method;
    use serde_json::{Value, json};

    use super::*;
    use crate::session::tests::{api, status};
    use rolldrop_record::{Clock, Stamp};

    fn pod(changes: &Value) -> EventKind {
        let mut pod = json!({"kind": "pod", "change": "applied", "namespace": "shop", "name": "web", "uid": "u",
            "resource_version": "1", "node": "n1", "ip": null, "phase": "Running", "ready": true,
            "deletion_timestamp": null, "deletion_grace_s": null, "grace_s": 30, "disruption_target": null,
            "containers": []});
        pod.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        serde_json::from_value(pod).unwrap()
    }

    fn workload(change: &str) -> EventKind {
        let event = json!({"kind": "workload", "change": change, "workload": "Deployment/web", "replicas": 2,
            "template": "a"});
        serde_json::from_value(event).unwrap()
    }

    #[test]
    fn only_signs_of_terminations_extend_beats() {
        let now = Instant::now();
        let listed = || {
            let mut occasions = BeatOccasions::begin(now);
            assert!(!occasions.observe(now, &pod(&json!({"change": "listed"}))));
            occasions
        };
        let at = |s| now + Duration::from_secs(s);
        for (kind, is_sign) in [
            (pod(&json!({})), false),
            (pod(&json!({"ready": false})), false),
            (pod(&json!({"deletion_timestamp": Stamp::default()})), true),
            (pod(&json!({"disruption_target": "EvictionByEvictionAPI"})), true),
            (pod(&json!({"change": "deleted"})), true),
            (pod(&json!({"change": "deleted", "phase": "Succeeded"})), false),
            (pod(&json!({"uid": "v", "phase": "Pending", "ready": false})), true),
            (pod(&json!({"uid": "v", "phase": "Pending", "ready": false, "owner": "Job/once"})), false),
            (workload("listed"), false),
            (workload("applied"), true),
            (workload("deleted"), true),
        ] {
            let mut occasions = listed();
            assert_eq!(occasions.observe(at(300), &kind), is_sign, "{kind:?}");
            assert_eq!(occasions.until() > at(359), is_sign, "{kind:?}");
        }
        let mut occasions = listed();
        occasions.observe(at(100), &pod(&json!({"uid": "v", "phase": "Pending", "ready": false})));
        occasions.observe(at(200), &pod(&json!({"uid": "v", "phase": "Pending", "ready": false})));
        assert_eq!(occasions.until(), at(700), "it may never become ready");
        occasions.observe(at(300), &pod(&json!({"uid": "v"})));
        assert_eq!(occasions.until(), at(360), "it replaces another pod now");
    }

    struct Kept(Mutex<Vec<EventKind>>, Clock);

    impl WatchListener for Kept {
        fn clock(&self) -> Clock {
            self.1
        }

        fn take(&self, _: Stamp, _: Option<String>, kind: EventKind) {
            self.0.lock().unwrap().push(kind);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn beats_pause_at_rest_and_while_refused() {
        let [exists, is_allowed] = [false, true].map(|is| Arc::new(AtomicBool::new(is)));
        let (allowed, version) = (Arc::clone(&is_allowed), Arc::new(AtomicUsize::new(100)));
        let (client, calls) = api(move |method, path| {
            let version = version.fetch_add(1, Ordering::SeqCst).to_string();
            let metadata = json!({"name": "own", "resourceVersion": version});
            match *method {
                Method::GET => {
                    let list = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                        "metadata": metadata, "items": []});
                    (200, list.to_string())
                }
                Method::POST => {
                    exists.store(true, Ordering::SeqCst);
                    (201, json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata}).to_string())
                }
                _ if !allowed.load(Ordering::SeqCst) => status(403, "Forbidden", "configmaps is forbidden"),
                _ if !exists.load(Ordering::SeqCst) => status(404, "NotFound", "no such ConfigMap"),
                _ => {
                    assert_eq!(path, "/api/v1/namespaces/shop/configmaps/own");
                    let object = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                        "metadata": metadata});
                    (200, object.to_string())
                }
            }
        });
        let patched = || {
            let calls = calls.lock().unwrap();
            calls.iter().filter(|(method, ..)| *method == Method::PATCH).count()
        };
        let kept = Kept(Mutex::default(), Clock::start());
        let (occasions, known) = tokio::sync::watch::channel(BeatOccasions::begin(Instant::now()));
        let refused = known.clone();
        let object = BeatObject { namespace: "shop".to_owned(), name: "own".to_owned() };
        let beating = beat_while_pods_end(&client, &object, Api::all(client.clone()), &kept, known);
        let acting = async {
            tokio::time::sleep(HOLD + Duration::from_secs(1)).await;
            let at_rest = patched();
            assert!(at_rest > 500, "{at_rest}");
            tokio::time::sleep(10 * HOLD).await;
            assert_eq!(patched(), at_rest);
            occasions.send_modify(|occasions| _ = occasions.observe(Instant::now(), &workload("applied")));
            tokio::time::sleep(Duration::from_secs(10)).await;
            assert!(patched() > at_rest, "a rollout");
            is_allowed.store(false, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_secs(25)).await;
            is_allowed.store(true, Ordering::SeqCst);
            let in_vain = patched();
            tokio::time::sleep(Duration::from_secs(15)).await;
            assert!(patched() > in_vain + 20, "the refusal has passed");
            is_allowed.store(false, Ordering::SeqCst);
        };
        tokio::select! {
            () = beating => panic!("beats that were allowed once are tried again"),
            () = acting => {}
        }
        // Where no beat was ever allowed, none is tried again.
        beat_while_pods_end(&client, &object, Api::all(client.clone()), &kept, refused).await;
        let events = kept.0.lock().unwrap();
        let warnings = events.iter().filter_map(|kind| match kind {
            EventKind::Warning { message } => Some(message.as_str()),
            _ => None,
        });
        let warnings: Vec<&str> = warnings.collect();
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings.iter().all(|why| why.contains("configmaps is forbidden")), "{warnings:?}");
    }
}
