//! Streams in `result.json`: their outcomes, and the effect of each termination on its pod's streams.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use super::{MissingShare, Percentiles, SurvivalStep};

/// Streams in the counted part: requests whose response began as a stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StreamResult {
    /// `ok + cut + unfinished + aborted + stalled + cancelled`.
    pub total: u64,
    /// Complete, with a clean end.
    pub ok: u64,
    /// The transport broke first.
    pub cut: u64,
    /// A clean end without the event that completes the stream.
    pub unfinished: u64,
    /// The app said that it would not complete the stream.
    pub aborted: u64,
    /// Silent for longer than the stall timeout.
    pub stalled: u64,
    /// Still open when the run ended.
    pub cancelled: u64,
    /// Data that incomplete streams had delivered. A client that starts over needs it again. The
    /// amount that the server would still have sent is unknown.
    #[serde(flatten)]
    pub lost: LostData,
    /// Largest number of streams open at one time.
    pub open_max: u64,
    /// Share of the stationary population that was missing when the steady part began; `None` if it is unknown.
    pub missing: Option<MissingShare>,
    /// Time from the actual send time to the first event.
    pub first_event_ms: StreamTimes,
    /// Longest time between two events of each complete stream.
    pub longest_gap_ms: StreamTimes,
    /// Time between two successive events of any stream, accurate to within 1.6 %; absent if the run did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap_ms: Option<StreamTimes>,
    /// Share of streams that are still open at each age, while their pods are not terminating.
    pub survival: Vec<SurvivalStep>,
    /// Streams that one further termination would cut; filled in by `judge`. Empty if no pod with streams was
    /// terminated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub predicted: Vec<PredictedCut>,
    /// Uneven distribution of the streams over the pods when the load ended, if chance does not explain it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uneven: Option<UnevenStreams>,
}

/// Data delivered by streams that did not complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostData {
    /// Number of events.
    pub events_lost: u64,
    /// Number of tokens; `None` if the kind of stream does not report them.
    pub tokens_lost: Option<u64>,
    /// Bytes of the bodies.
    pub bytes_lost: u64,
}

/// Times of streams, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StreamTimes {
    /// Away from any termination.
    pub steady: Percentiles,
    /// Between a pod's t0 and the time the pod was gone or its window had ended.
    pub disrupted: Percentiles,
}

/// Streams of one pod during its termination.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TerminationStreams {
    /// Streams open at t0.
    pub alive_at_t0: u64,
    /// Streams that began later.
    pub began_later: u64,
    /// Streams that ended before SIGTERM.
    pub before_sigterm: StreamEnds,
    /// Streams that ended after SIGTERM, within the grace period.
    pub after_sigterm: StreamEnds,
    /// Streams that ended when the grace period ran out.
    pub at_grace_end: StreamEnds,
    /// Streams that were still open when the run ended.
    pub open_at_end: u64,
    /// Data that the incomplete streams had delivered.
    #[serde(flatten)]
    pub lost: LostData,
    /// Time at which the pod's last stream ended, in seconds since t0 latest.
    pub last_ended_s: Option<f64>,
}

/// Ends of streams, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamEnds {
    /// Complete streams.
    pub completed: u64,
    /// Streams that the app aborted with a message.
    pub told: u64,
    /// Streams that were cut, unfinished or stalled.
    pub cut: u64,
}

impl AddAssign for StreamEnds {
    fn add_assign(&mut self, others: Self) {
        self.completed += others.completed;
        self.told += others.told;
        self.cut += others.cut;
    }
}

/// Phase of a termination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamPhase {
    /// Before the app could have received SIGTERM.
    BeforeSigterm,
    /// After that, within the grace period.
    AfterSigterm,
    /// At the end of the grace period.
    AtGraceEnd,
}

impl TerminationStreams {
    /// Returns the ends in a phase.
    pub fn phase_mut(&mut self, phase: StreamPhase) -> &mut StreamEnds {
        match phase {
            StreamPhase::BeforeSigterm => &mut self.before_sigterm,
            StreamPhase::AfterSigterm => &mut self.after_sigterm,
            StreamPhase::AtGraceEnd => &mut self.at_grace_end,
        }
    }

    /// Returns the ends in each phase, in order.
    pub const fn phases(&self) -> [(StreamPhase, StreamEnds); 3] {
        [
            (StreamPhase::BeforeSigterm, self.before_sigterm),
            (StreamPhase::AfterSigterm, self.after_sigterm),
            (StreamPhase::AtGraceEnd, self.at_grace_end),
        ]
    }

    /// Returns the ends in all phases together.
    pub fn ends(&self) -> StreamEnds {
        let mut all = StreamEnds::default();
        self.phases().into_iter().for_each(|(_, ends)| all += ends);
        all
    }
}

rolldrop_record::named! {
    /// Origin of the settings that a prediction is for.
    pub enum SettingsOrigin {
        /// Settings of the terminated pods.
        Current = "current",
        /// Settings that would cut few streams.
        Advised = "advised",
    }
}

/// Mean number of streams that one further termination would cut, with one pair of settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictedCut {
    /// Origin of the settings.
    pub settings: SettingsOrigin,
    /// Seconds of preStop sleep; `None` if unknown.
    pub pre_stop_seconds: Option<u64>,
    /// Grace period in seconds; `None` if unknown.
    pub grace_period_seconds: Option<u64>,
    /// The mean; `None` if unknown.
    pub cut: Option<PredictedMean>,
    /// Reason why the mean is unknown, in words.
    pub unknown_because: Option<String>,
}

/// Predicted mean with bounds that each hold at 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictedMean {
    /// Best estimate. It counts undecided streams as cut.
    pub estimate: f64,
    /// Lower bound.
    pub lower: f64,
    /// Upper bound.
    pub upper: f64,
    /// Rate of new streams per pod per second for which the prediction is valid.
    pub rate_per_pod: f64,
}

/// Pods that held more or fewer streams than chance explains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnevenStreams {
    /// Number of pods that were serving.
    pub pods: usize,
    /// Streams open on all of them.
    pub open: u64,
    /// Pod with the most streams, and their number.
    pub most: (String, u64),
    /// Pod with the fewest streams, and their number.
    pub fewest: (String, u64),
    /// Time between the last termination and the end of the load, in seconds.
    pub after_s: f64,
}

/// Streams open at one time, by how they ended later.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OpenStreamCounts {
    /// Seconds since the counted part of the load began.
    pub at_s: f64,
    /// Streams that ended later.
    pub ends: StreamEnds,
    /// Streams still open when the run ended.
    pub open_at_end: u64,
}

impl OpenStreamCounts {
    /// Returns the number of streams open at this time.
    pub const fn open(&self) -> u64 {
        self.ends.completed + self.ends.told + self.ends.cut + self.open_at_end
    }
}
