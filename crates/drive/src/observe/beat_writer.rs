//! Beats: writes to a dedicated ConfigMap, whose resource versions help to date writes by others.
//!
//! The timestamp of a deletion by others is in whole seconds. The deletion's version is between the versions of two
//! beats, so its time is between their times. This is true only if ConfigMaps and pods share one store, which
//! Kubernetes does not guarantee. Therefore, the writer also lists pods between beats, which shows the version of the
//! pods' own store at that time. `timeline::beats` judges whether the assumption is correct.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use super::event_recorder::RecorderHandle;
use super::list_watch::WatchListener;
use crate::api::{Caller, Pauses, is_too_many, retry_after};
use crate::error::{CoordinatorError, Result, is_passing};
use rolldrop_record::EventKind;

/// Time from one beat to the next. A shorter period would hardly improve the precision of a deletion's time, because
/// the API server needs some time for each beat.
const PERIOD: Duration = Duration::from_millis(100);
/// Longest time from one beat to the next, if the API server asks for fewer requests.
const LONGEST_PERIOD: Duration = Duration::from_secs(2);
/// Number of consecutive beats without a refusal after which the rate doubles.
const GOOD_BEATS: u32 = 50;
/// Time after which the writer gives up on a response. A slower response would give little information.
const LONGEST_ANSWER: Duration = Duration::from_secs(5);
/// Pause before the next attempt after a refusal. An API server that has just started may refuse for a while what it
/// will allow.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);
/// Number of initial beats that are each followed by a check of the pods' own versions; later, every tenth beat is.
const FIRST_CHECKS: u64 = 25;
const BEATS_PER_CHECK: u64 = 10;

/// Rate of the beats.
#[derive(Debug)]
struct BeatPace {
    period: Duration,
    good: u32,
}

impl BeatPace {
    fn taken(&mut self) {
        self.good += 1;
        if self.good >= GOOD_BEATS && self.period > PERIOD {
            *self = Self { period: (self.period / 2).max(PERIOD), good: 0 };
        }
    }

    /// Halves the rate, because the API server asks for fewer requests.
    fn refused(&mut self) {
        *self = Self { period: (self.period * 2).min(LONGEST_PERIOD), good: 0 };
    }
}

/// Writes beats to a dedicated ConfigMap.
pub(super) struct BeatWriter<'a> {
    listener: &'a dyn WatchListener,
    pub(super) config_maps: Api<ConfigMap>,
    pub(super) name: String,
    /// Pods whose store the beats are compared with.
    pods: Api<Pod>,
    progress: BeatProgress,
}

/// Success of the beats so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BeatProgress {
    /// No beat has been written.
    Untried,
    /// The latest beat was written.
    Written,
    /// Beats were written before, but are refused now, which has been reported.
    Refused,
}

/// Writes to the run's own ConfigMap about ten times a second, while the future is awaited. A refusal is recorded as a
/// warning, and the run continues. If no beat was ever allowed, stops writing.
pub(crate) async fn beat(
    caller: &Caller,
    recorder: &RecorderHandle,
    own: impl Future<Output = Result<&OwnerReference>>,
) -> Infallible {
    match own.await {
        Ok(own) => {
            let name = own.name.clone();
            let (config_maps, pods) = (caller.api(), caller.api());
            let mut writer = BeatWriter::new(recorder, config_maps, name, pods);
            loop {
                let why = writer.beat_until_refused().await;
                if !writer.outlast_refusal(&writer.refusal(&why)).await {
                    break;
                }
            }
        }
        Err(why) => recorder.warn(stopped(&why)),
    }
    pending().await
}

fn stopped(why: &CoordinatorError) -> String {
    format!("stopped writing beats: {why}; without beats, deletions by others are known only to the second")
}

impl<'a> BeatWriter<'a> {
    /// Creates a writer that has not written a beat.
    pub(super) const fn new(
        listener: &'a dyn WatchListener,
        config_maps: Api<ConfigMap>,
        name: String,
        pods: Api<Pod>,
    ) -> Self {
        Self { listener, config_maps, name, pods, progress: BeatProgress::Untried }
    }

    /// Reports a refusal, once until the next beat is written, and pauses until beats should be tried again. Returns
    /// false if none was ever allowed.
    pub(super) async fn outlast_refusal(&mut self, why: &CoordinatorError) -> bool {
        if self.progress != BeatProgress::Refused {
            let message = stopped(why);
            self.listener.take(self.listener.clock().now(), None, EventKind::Warning { message });
        }
        if self.progress == BeatProgress::Untried {
            return false;
        }
        self.progress = BeatProgress::Refused;
        sleep(REFUSED_PAUSE).await;
        true
    }

    pub(super) fn refusal(&self, why: &kube::Error) -> CoordinatorError {
        CoordinatorError::api(&format!("patch ConfigMap {}", self.name), why)
    }

    /// Writes about ten times a second, and returns the first error that retrying would not fix.
    pub(super) async fn beat_until_refused(&mut self) -> kube::Error {
        let clock = self.listener.clock();
        let mut pace = BeatPace { period: PERIOD, good: 0 };
        let mut pauses = Pauses::default();
        let mut number = 0u64;
        loop {
            let begun = Instant::now();
            let sent = clock.now();
            // Each beat has a new value, because the API server skips a write that changes nothing.
            let patch = Patch::Merge(json!({"data": {"beat": sent.unix_ns().to_string()}}));
            let params = PatchParams::default();
            let answer =
                timeout(LONGEST_ANSWER, self.config_maps.patch_metadata(&self.name, &params, &patch)).await;
            let answered = clock.now();
            let pause = match answer {
                Ok(Ok(object)) => {
                    let version = object.resource_version().unwrap_or_default();
                    self.listener.take(sent, None, EventKind::Beat { answered, version });
                    pace.taken();
                    (pauses, self.progress) = (Pauses::default(), BeatProgress::Written);
                    if number < FIRST_CHECKS || number.is_multiple_of(BEATS_PER_CHECK) {
                        self.check().await;
                    }
                    pace.period.saturating_sub(begun.elapsed())
                }
                Ok(Err(error)) if is_too_many(&error) => {
                    pace.refused();
                    retry_after(&error).unwrap_or(pace.period)
                }
                Ok(Err(error)) if !is_passing(&error) => return error,
                Ok(Err(_)) | Err(_) => pauses.next(),
            };
            number += 1;
            sleep(pause).await;
        }
    }

    /// Records the version of the pods' store, taken from a list.
    async fn check(&self) {
        let clock = self.listener.clock();
        let params = ListParams::default().limit(1);
        let sent = clock.now();
        let listed = timeout(LONGEST_ANSWER, self.pods.list_metadata(&params)).await;
        let answered = clock.now();
        if let Ok(Ok(list)) = listed {
            let version = list.metadata.resource_version.unwrap_or_default();
            self.listener.take(sent, None, EventKind::BeatCheck { answered, version });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beat_period_adapts_to_refusals() {
        let mut pace = BeatPace { period: PERIOD, good: 0 };
        pace.refused();
        assert_eq!(pace.period, 2 * PERIOD);
        (0..GOOD_BEATS - 1).for_each(|_| pace.taken());
        assert_eq!(pace.period, 2 * PERIOD);
        pace.taken();
        assert_eq!(pace.period, PERIOD);
        (0..10).for_each(|_| pace.refused());
        assert_eq!(pace.period, LONGEST_PERIOD);
    }
}
