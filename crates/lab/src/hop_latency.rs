//! The model's delays: every hop that takes time on a real cluster, by name.
//!
//! A [`HopLatency`] is a distribution given by four points, [`HopLatencies`] names one per hop, and a [`Sampler`] draws
//! from them. The defaults were measured on a real Kubernetes v1.36.2 cluster, between the two observations that each
//! field names. They are never tuned to produce a particular scenario outcome.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::duration;
use super::link_consumer::LinkConsumer;
use super::sync::lock;

/// A delay whose inverse cumulative distribution is piecewise linear through
/// (0, min), (0.5, median), (0.95, p95) and (1, max).
///
/// In YAML and JSON it is either one duration (a constant), such as `20ms`, or all four points: `{min: 5ms, median:
/// 20ms, p95: 40ms, max: 60ms}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WrittenLatency", into = "WrittenLatency")]
pub struct HopLatency {
    min: Duration,
    median: Duration,
    p95: Duration,
    max: Duration,
}

impl HopLatency {
    /// No delay at all.
    pub const ZERO: Self = Self::constant(Duration::ZERO);

    /// Returns a constant delay.
    pub const fn constant(delay: Duration) -> Self {
        Self { min: delay, median: delay, p95: delay, max: delay }
    }

    /// Creates the distribution through four points, in microseconds.
    const fn from_micros([min, median, p95, max]: [u64; 4]) -> Self {
        Self {
            min: Duration::from_micros(min),
            median: Duration::from_micros(median),
            p95: Duration::from_micros(p95),
            max: Duration::from_micros(max),
        }
    }

    /// Returns the shortest delay.
    pub const fn min(&self) -> Duration {
        self.min
    }

    /// Returns the longest delay.
    pub const fn max(&self) -> Duration {
        self.max
    }

    /// Returns the given quantile (0 to 1) of the delay.
    pub fn quantile(&self, quantile: f64) -> Duration {
        let (from, to, share) = if quantile < 0.5 {
            (self.min, self.median, quantile / 0.5)
        } else if quantile < 0.95 {
            (self.median, self.p95, (quantile - 0.5) / 0.45)
        } else {
            (self.p95, self.max, (quantile - 0.95) / 0.05)
        };
        from + (to - from).mul_f64(share.clamp(0.0, 1.0))
    }
}

impl fmt::Display for HopLatency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [min, median, p95, max] = [self.min, self.median, self.p95, self.max].map(duration::to_text);
        if self.min == self.max { f.write_str(&min) } else { write!(f, "{min} / {median} / {p95} / {max}") }
    }
}

/// Serialised form of a [`HopLatency`].
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "a duration such as 20ms, or {min, median, p95, max}")]
enum WrittenLatency {
    Constant(#[serde(with = "duration")] Duration),
    Points(Points),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Points {
    #[serde(with = "duration")]
    min: Duration,
    #[serde(with = "duration")]
    median: Duration,
    #[serde(with = "duration")]
    p95: Duration,
    #[serde(with = "duration")]
    max: Duration,
}

impl TryFrom<WrittenLatency> for HopLatency {
    type Error = &'static str;

    fn try_from(written: WrittenLatency) -> Result<Self, Self::Error> {
        match written {
            WrittenLatency::Constant(delay) => Ok(Self::constant(delay)),
            WrittenLatency::Points(Points { min, median, p95, max }) => {
                if min <= median && median <= p95 && p95 <= max {
                    Ok(Self { min, median, p95, max })
                } else {
                    Err("a latency needs min <= median <= p95 <= max")
                }
            }
        }
    }
}

impl From<HopLatency> for WrittenLatency {
    fn from(latency: HopLatency) -> Self {
        let HopLatency { min, median, p95, max } = latency;
        if min == max { Self::Constant(min) } else { Self::Points(Points { min, median, p95, max }) }
    }
}

macro_rules! latencies {
    ($($(#[doc = $doc:literal])+ $field:ident = $text:literal [$($micros:literal),+ $(,)?];)+) => {
        /// One delay per hop in the model.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default, rename_all = "camelCase", deny_unknown_fields)]
        pub struct HopLatencies {
            $($(#[doc = $doc])+ pub $field: HopLatency,)+
            /// One-way delays between a consumer and the pods that it connects to. Consumers without an entry have no
            /// delay.
            pub link: BTreeMap<LinkConsumer, HopLatency>,
        }

        impl Default for HopLatencies {
            fn default() -> Self {
                Self { $($field: HopLatency::from_micros([$($micros),+]),)+ link: BTreeMap::new() }
            }
        }

        impl HopLatencies {
            /// No delay anywhere, for tests of logic.
            pub const ZERO: Self = Self { $($field: HopLatency::ZERO,)+ link: BTreeMap::new() };

            /// Returns the delay of every hop, with its name in a scenario file.
            pub fn named(&self) -> Vec<(&'static str, HopLatency)> {
                vec![$(($text, self.$field),)+]
            }

            /// Returns the description of each delay, including the source of its default, with the delay's name.
            pub fn descriptions() -> Vec<(&'static str, &'static str)> {
                vec![$(($text, concat!($($doc),+).trim_ascii_start()),)+]
            }
        }
    };
}

latencies! {
    /// API server: from a pod's DELETE to the deletionTimestamp that watchers see, including the
    /// kubelet (timings.csv, A, A0 and B: "DELETE sent → kubelet: SyncLoop DELETE", n = 60; the
    /// recorder, another client on a busy machine, saw it after 6.0 / 10.3 / 24.4 / 43.7 ms).
    pod_delete = "podDelete" [6_200, 9_100, 18_200, 21_500];
    /// API server: from marking a pod with grace 0 (by a forced DELETE, or the kubelet's last one)
    /// to its DELETED event (recorded events of 190 terminations; the maximum omits one outlier of
    /// 169 ms).
    marked_to_deleted = "markedToDeleted" [0, 6_100, 15_200, 30_000];
    /// API server: from a pod's POST to the response (row "POST sent → POST answered").
    pod_create = "podCreate" [5_500, 10_800, 14_700, 18_500];
    /// Scheduler: from a pod's ADDED event to its nodeName.
    created_to_scheduled = "createdToScheduled" [2_800, 7_600, 12_600, 31_600];
    /// Kubelet and runtime: from nodeName to PodReadyToStartContainers (sandbox, network, volumes).
    scheduled_to_sandbox = "scheduledToSandbox" [480_300, 515_700, 561_900, 832_100];
    /// Kubelet and runtime: from PodReadyToStartContainers to the start of the process.
    sandbox_to_process_start = "sandboxToProcessStart" [36_000, 89_500, 105_900, 111_500];
    /// Kubelet: from the start of the process to "container Running". The measured minimum is −31.4
    /// ms (the process logged its own line late), taken as 0.
    process_start_to_running = "processStartToRunning" [0, 32_900, 47_400, 54_900];
    /// Kubelet: from the start of the process to the first probe, if the prober's first tick finds
    /// the container (75 of 90 starts in timings.csv, cases F and the replacements of A and C: all
    /// below 0.5 s). `firstProbeMissed` covers the other 15.
    process_start_to_first_probe = "processStartToFirstProbe" [2_900, 13_600, 29_900, 191_700];
    /// Kubelet: from the exit of a container, outside a pod's termination, to its detection: the
    /// rest of the current relist period (1 s, `genericPlegRelistPeriod` in
    /// `pkg/kubelet/kubelet.go`).
    process_exit_to_seen = "processExitToSeen" [0, 500_000, 950_000, 1_000_000];
    /// Node agent: from its exit to its next start during a restart (assumed, not measured).
    node_agent_restart = "nodeAgentRestart" [1_000_000, 1_000_000, 1_000_000, 1_000_000];
    /// Kubelet: from a successful probe to Ready (row "first probe → Ready seen").
    probe_to_ready = "probeToReady" [18_200, 45_700, 77_200, 109_500];
    /// EndpointSlice controller: from "container Running" to the pod's first entry in the slice.
    running_to_endpoint = "runningToEndpoint" [6_200, 14_300, 27_700, 28_200];
    /// EndpointSlice controller: from a change to the pod's Ready condition to the slice that shows it (row "Ready seen
    /// → slice ready seen").
    ready_to_slice = "readyToSlice" [2_300, 13_000, 19_700, 22_300];
    /// EndpointSlice controller: from the deletionTimestamp to the slice that shows the endpoint as terminating.
    deletion_to_slice = "deletionToSlice" [5_700, 35_800, 83_600, 122_500];
    /// EndpointSlice controller: from a pod that is terminal, gone or no longer selected to the
    /// removal of its endpoint from the slice (row "container terminated in pod status seen →
    /// endpoint removed").
    terminated_to_slice = "terminatedToSlice" [5_400, 12_300, 29_900, 34_700];
    /// Service proxy: from a slice change to the programmed rule, on an idle proxy, without the
    /// throttle. The measured minimum is −14.2 ms (the recorder's line came late), taken as 0.
    slice_to_rule = "sliceToRule" [0, 39_800, 89_700, 113_700];
    /// Service proxy: from a slice change that changes no rule to the end of the idle proxy's sync,
    /// when the period starts. Derived from case F's row "endpoint first in slice seen → nft rule
    /// with the pod", where the rule had to wait for such a sync (25 of 30: 1041.2 / 1062.6 /
    /// 1072.2 / 1077.0 ms), minus the period of 1 s and the median of `throttledSync`.
    unchanged_sync = "unchangedSync" [1_200, 22_600, 32_200, 37_000];
    /// Service proxy: from the start of a sync that had to wait for its slot to the programmed
    /// rule; the changes are already known. The second of two such rewrites came 1.01 to 1.08 s
    /// after the first, in case F 1.02 to 1.06 s; the middle and end of the latter range are the
    /// median and the 95th percentile.
    throttled_sync = "throttledSync" [10_000, 40_000, 60_000, 80_000];
    /// DNS: from a change to a Service or slice to answers that show it. Not measured directly: CoreDNS answers from
    /// its watch, so this is the lag of one watcher behind another (row "pod MODIFIED with deletionTimestamp seen →
    /// kubelet: SyncLoop DELETE", negative values taken as 0).
    dns_propagation = "dnsPropagation" [0, 0, 4_400, 6_700];
    /// Kubelet: from its sync loop's DELETE to the stop signal, without a preStop hook.
    kubelet_delete_to_stop_signal = "kubeletDeleteToStopSignal" [8_300, 15_600, 34_500, 38_400];
    /// Kubelet: from its sync loop's DELETE to the start of the preStop hook (row "SyncLoop DELETE
    /// → Killing container with a grace period").
    kubelet_delete_to_pre_stop = "kubeletDeleteToPreStop" [400, 700, 5_100, 6_400];
    /// Kubelet: from the start of an httpGet preStop hook to the arrival of its request in the
    /// container (row "Killing container with a grace period → preStop httpGet/exec arrived").
    pre_stop_to_http_request = "preStopToHttpRequest" [5_200, 8_400, 27_900, 27_900];
    /// Kubelet: from the end of the preStop hook to the stop signal (timings.csv, B: "Running
    /// preStop hook → SIGTERM received" of the 10 sleeps and "preStop httpGet/exec arrived →
    /// SIGTERM received" of the 10 requests, minus the 3 s that each took).
    pre_stop_to_stop_signal = "preStopToStopSignal" [8_500, 12_500, 15_900, 17_000];
    /// Kubelet and runtime: from the exit of the last container that must end before a sidecar to
    /// the sidecar's stop signal (four terminations of the recorded cases with a sidecar).
    container_gone_to_sidecar_stop_signal = "containerGoneToSidecarStopSignal" [68_900, 170_500, 219_900, 219_900];
    /// Kubelet: from the deletionTimestamp to the pod status that shows the new generation as
    /// observed (recorded events of cases A, A0, B and C).
    deletion_to_observed_generation = "deletionToObservedGeneration" [30_300, 81_200, 159_700, 281_200];
    /// Runtime: from the exit of all processes to the removal of the pod's sandbox and address
    /// (kernel dataplane). The midpoint between the last refused and the first stalled connection in
    /// each termination of case C in timings.csv (22 of 30 terminations have both).
    process_gone_to_address_gone = "processGoneToAddressGone" [100_500, 147_500, 186_500, 201_000];
    /// Kubelet: from the exit of all processes to the terminal status.
    process_gone_to_status = "processGoneToStatus" [159_000, 221_500, 288_600, 396_600];
    /// Kubelet: from the terminal status to its DELETE with grace 0 (its relist of 1 s).
    terminated_to_final_delete = "terminatedToFinalDelete" [69_800, 577_300, 964_800, 994_600];
}

impl HopLatencies {
    /// Returns the delay for clients that connect from node `index` (from 0).
    pub(crate) fn link_of_node(&self, index: u8) -> HopLatency {
        self.link.get(&LinkConsumer::Node(u32::from(index) + 1)).copied().unwrap_or(HopLatency::ZERO)
    }

    /// Returns the consumer's delay for a pod with these labels (an object, or null).
    pub(crate) fn link_of_pod(&self, labels: &Value) -> Option<HopLatency> {
        self.link.iter().find(|(consumer, _)| consumer.is_pod_with(labels)).map(|(_, delay)| *delay)
    }

    /// Returns a link whose consumers are pods, if there is one.
    pub(crate) fn link_of_pods(&self) -> Option<&LinkConsumer> {
        self.link.keys().find(|consumer| matches!(consumer, LinkConsumer::Pods { .. }))
    }
}

/// Average lateness of a tokio timer. Both its deadline and the time that the kernel is asked to wait are rounded up to
/// a whole millisecond.
const TIMER_IS_LATE: Duration = Duration::from_millis(1);

/// Source of random delays. Clones share one random number generator.
#[derive(Clone, Debug)]
pub(crate) struct Sampler {
    rng: Arc<Mutex<StdRng>>,
}

impl Sampler {
    /// Returns a sampler whose draws differ from run to run.
    pub(crate) fn random() -> Self {
        Self::seeded(rand::random())
    }

    /// Returns a sampler that always draws the same sequence.
    pub(crate) fn seeded(seed: u64) -> Self {
        Self { rng: Arc::new(Mutex::new(StdRng::seed_from_u64(seed))) }
    }

    /// Draws one delay for a timer, reduced by the average lateness of timers.
    pub(crate) fn sample(&self, latency: &HopLatency) -> Duration {
        let drawn = latency.quantile(lock(&self.rng).random());
        drawn.saturating_sub(TIMER_IS_LATE)
    }

    /// Returns true with this probability (0 to 1).
    pub(crate) fn happens(&self, share: f64) -> bool {
        lock(&self.rng).random::<f64>() < share
    }

    /// Draws one of `n` choices (0 if there are none).
    pub(crate) fn index(&self, n: usize) -> usize {
        if n == 0 { 0 } else { lock(&self.rng).random_range(0..n) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantiles_interpolate_four_points() {
        let latency = HopLatency::from_micros([5_700, 35_800, 83_600, 122_500]);
        assert_eq!(latency.quantile(0.0), Duration::from_micros(5_700));
        assert_eq!(latency.quantile(0.5), Duration::from_micros(35_800));
        assert_eq!(latency.quantile(0.95), Duration::from_micros(83_600));
        assert_eq!(latency.quantile(1.0), Duration::from_micros(122_500));
        assert_eq!(latency.quantile(0.25), Duration::from_micros(20_750));
    }

    #[test]
    fn latency_parses_from_one_or_four_durations() {
        let constant: HopLatency = serde_json::from_str("\"20ms\"").unwrap();
        assert_eq!(constant, HopLatency::constant(Duration::from_millis(20)));
        let text = r#"{"min":"1ms","median":"2ms","p95":"3ms","max":"1s"}"#;
        let four: HopLatency = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&four).unwrap(), text);
        let backwards = r#"{"min":"3ms","median":"2ms","p95":"3ms","max":"1s"}"#;
        let error = serde_json::from_str::<HopLatency>(backwards).unwrap_err();
        assert!(error.to_string().contains("min <= median"), "{error}");
    }

    #[test]
    fn latency_names_match_serde_keys() {
        let json = serde_json::to_value(HopLatencies::default()).unwrap();
        let named = HopLatencies::default().named();
        // `link` is not a hop.
        assert_eq!(json.as_object().unwrap().len(), named.len() + 1);
        for (name, latency) in named {
            assert_eq!(json[name], serde_json::to_value(latency).unwrap(), "{name}");
        }
    }

    proptest! {
        #[test]
        fn samples_stay_within_bounds(mut points in proptest::array::uniform4(0_u64..10_000_000), seed: u64) {
            points.sort_unstable();
            let latency = HopLatency::from_micros(points);
            let sampler = Sampler::seeded(seed);
            for _ in 0..100 {
                let delay = sampler.sample(&latency);
                prop_assert!(delay + TIMER_IS_LATE >= latency.min() && delay <= latency.max());
            }
        }
    }
}
