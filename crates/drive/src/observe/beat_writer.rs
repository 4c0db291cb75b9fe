//! Beats: writes to the run's own ConfigMap, whose resource versions help to date writes by others.
//!
//! The timestamp of a deletion by others is in whole seconds. The deletion's version is between the versions of two
//! beats, so its time is between their times. This is true only if ConfigMaps and pods share one store, which
//! Kubernetes does not guarantee. Therefore, the run also lists pods between beats, which shows the version of the
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
use crate::api::{Caller, Pauses, is_passing, is_too_many, retry_after};
use crate::error::{CoordinatorError, Result};
use rolldrop_record::EventKind;

/// Time from one beat to the next. A shorter period would hardly improve the precision of a deletion's time, because
/// the API server needs some time for each beat.
const PERIOD: Duration = Duration::from_millis(100);
/// Longest time from one beat to the next, if the API server asks for fewer requests.
const LONGEST_PERIOD: Duration = Duration::from_secs(2);
/// Number of consecutive beats without a refusal after which the rate doubles.
const GOOD_BEATS: u32 = 50;
/// Time after which the run gives up on a response. A slower response would give little information.
const LONGEST_ANSWER: Duration = Duration::from_secs(5);
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

/// Writes to the run's own ConfigMap about ten times a second, while the future is awaited. If this is not allowed,
/// records a warning and stops writing; the run continues.
pub(crate) async fn beat(
    caller: &Caller,
    recorder: &RecorderHandle,
    own: impl Future<Output = Result<&OwnerReference>>,
) -> Infallible {
    let beating = async { beat_until_refused(caller, recorder, &own.await?.name).await };
    if let Err(why) = beating.await {
        recorder.warn(format!(
            "stopped writing beats: {why}; from now on, deletions by others are known only to the second"
        ));
    }
    pending().await
}

async fn beat_until_refused(caller: &Caller, recorder: &RecorderHandle, name: &str) -> Result<()> {
    let config_maps = caller.api::<ConfigMap>();
    let pods = caller.api::<Pod>();
    let mut pace = BeatPace { period: PERIOD, good: 0 };
    let mut pauses = Pauses::default();
    for number in 0u64.. {
        let begun = Instant::now();
        let patch = Patch::Merge(json!({"data": {"beat": number.to_string()}}));
        let params = PatchParams::default();
        let sent = recorder.clock().now();
        let answer = timeout(LONGEST_ANSWER, config_maps.patch_metadata(name, &params, &patch)).await;
        let answered = recorder.clock().now();
        let pause = match answer {
            Ok(Ok(object)) => {
                let version = object.resource_version().unwrap_or_default();
                recorder.event(sent, EventKind::Beat { answered, version });
                pace.taken();
                pauses = Pauses::default();
                if number < FIRST_CHECKS || number.is_multiple_of(BEATS_PER_CHECK) {
                    check_beats(recorder, &pods).await;
                }
                pace.period.saturating_sub(begun.elapsed())
            }
            Ok(Err(error)) if is_too_many(&error) => {
                pace.refused();
                retry_after(&error).unwrap_or(pace.period)
            }
            Ok(Err(error)) if !is_passing(&error) => {
                return Err(CoordinatorError::api(&format!("patch ConfigMap {name}"), &error));
            }
            Ok(Err(_)) | Err(_) => pauses.next(),
        };
        sleep(pause).await;
    }
    Ok(())
}

/// Records the version of the pods' store, taken from a list.
async fn check_beats(recorder: &RecorderHandle, pods: &Api<Pod>) {
    let params = ListParams::default().limit(1);
    let sent = recorder.clock().now();
    let listed = timeout(LONGEST_ANSWER, pods.list_metadata(&params)).await;
    let answered = recorder.clock().now();
    if let Ok(Ok(list)) = listed {
        let version = list.metadata.resource_version.unwrap_or_default();
        recorder.event(sent, EventKind::BeatCheck { answered, version });
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
