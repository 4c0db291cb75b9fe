//! Losses by termination: counts known to lie between two limits, and the terminations that share losses.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use rolldrop_record::{Cause, Outcome, Stamp, named};

/// Smallest share that counts as 1, because sums of fractions have rounding errors.
const CERTAIN: f64 = 1.0 - 1e-9;

/// Count known to lie between two limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bounded {
    /// Requests that certainly belong to the count, as nothing else explains them.
    pub at_least: u64,
    /// Requests that may belong to the count.
    pub at_most: u64,
    /// Best estimate between the two limits.
    pub estimate: f64,
}

impl Bounded {
    /// Creates a count that is known exactly.
    pub fn exactly(n: u64) -> Self {
        Self { at_least: n, at_most: n, estimate: n as f64 }
    }

    /// Returns true if the count is known exactly.
    pub fn is_exact(&self) -> bool {
        self.at_least == self.at_most
    }

    /// Returns the count; `None` if it is 0, but some requests may be hidden.
    #[must_use]
    pub fn unless_hidden(self, may_be_hidden: bool) -> Option<Self> {
        (self.at_most > 0 || !may_be_hidden).then_some(self)
    }

    /// Adds other requests, which are counted independently.
    pub fn merge(&mut self, other: &Self) {
        self.at_least += other.at_least;
        self.at_most += other.at_most;
        self.estimate += other.estimate;
    }

    /// Returns the sum of both counts.
    #[must_use]
    pub fn plus(mut self, other: &Self) -> Self {
        self.merge(other);
        self
    }

    /// Adds a request with this share: 1 if nothing else explains it.
    pub fn add(&mut self, share: f64) {
        self.at_least += u64::from(share >= CERTAIN);
        self.add_possible(share);
    }

    /// Adds a request that may have another explanation, whatever its share.
    pub fn add_possible(&mut self, share: f64) {
        self.at_most += 1;
        self.estimate += share;
    }
}

/// Requests that concern a pod from t0 on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TerminationRequests {
    /// Requests known to have reached the pod: those that it answered, and lost ones that nothing else explains; `None`
    /// if nothing identifies the requests' pods.
    pub seen: Option<u64>,
    /// Dropped requests.
    pub dropped: Bounded,
    /// Dropped requests by outcome.
    pub by_outcome: BTreeMap<Outcome, Bounded>,
    /// Dropped requests by cause.
    pub by_cause: BTreeMap<Cause, Bounded>,
}

/// Terminations that share dropped requests, directly or through others. Their total is exact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossGroup {
    /// Indices into [`super::RunResult::terminations`], in order; a single index if the termination shares no losses.
    pub terminations: Vec<usize>,
    /// Requests dropped by one of the terminations.
    pub dropped: u64,
    /// Dropped requests of the group, by outcome.
    pub by_outcome: BTreeMap<Outcome, u64>,
    /// Dropped requests of the group, by cause.
    pub by_cause: BTreeMap<Cause, u64>,
    /// Minimum duration of at least one of the windows, by consumer.
    pub windows: Vec<GroupWindow>,
}

/// Evidence from a group's losses about its windows for one consumer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupWindow {
    /// Name of the consumer, as in `run.json`.
    pub consumer: String,
    /// Minimum duration of at least one window in the group, in seconds since its t0; `None` if nothing shows it.
    pub lower_s: Option<f64>,
}

/// Termination that may explain a dropped request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TerminationCandidate {
    /// Index into [`super::RunResult::terminations`].
    pub termination: usize,
    /// Estimated probability that this termination caused the loss. The shares of all candidates sum to 1, minus the
    /// share of other causes that may also explain the loss.
    pub share: f64,
    /// Reason why this termination may have caused the loss.
    pub why: CandidateReason,
}

named! {
    /// Reason why a termination may explain a dropped request.
    pub enum CandidateReason {
        /// The client's row or the proxy beside the pod names the pod.
        Named = "named",
        /// The kernel's connection tracking names the pod.
        Conntrack = "conntrack",
        /// The connection was refused, so the pod's address was still there.
        Refused = "refused",
        /// Nothing answered the connection, so the pod's address was gone.
        Unreachable = "unreachable",
        /// The connection was cut off as the pod exited.
        CutOff = "cut_off",
        /// The pod was terminating, and there is no gateway in between that could have answered for it.
        Answered = "answered",
        /// A gateway failed while the pod was terminating.
        Gateway = "gateway",
        /// The pod was terminating at that time.
        Time = "time",
    }
}

impl CandidateReason {
    /// Returns true if this reason alone identifies the pod.
    pub const fn is_certain(self) -> bool {
        matches!(self, CandidateReason::Named | CandidateReason::Conntrack)
    }
}

/// Reason why no cause is given.
#[derive(Clone, Debug, PartialEq)]
pub enum Unclear {
    /// Several causes compete: each with its share, the largest first.
    Competing(Vec<(Cause, f64)>),
    /// The pod that the request reached was not terminating, and nothing else explains the loss.
    PodWasWell,
    /// The terminations of the pods that may have lost the request do not explain its outcome.
    NoFit,
    /// No pod that the request could have reached was terminating or starting.
    NothingNear,
}

impl Unclear {
    /// Returns the kind of reason, as a name for programs.
    pub const fn kind(&self) -> &'static str {
        match self {
            Unclear::Competing(_) => "competing",
            Unclear::PodWasWell => "pod_was_well",
            Unclear::NoFit => "no_fit",
            Unclear::NothingNear => "nothing_near",
        }
    }
}

/// Dropped request with its conclusion: a row of `lost.csv`.
#[derive(Clone, Debug, PartialEq)]
pub struct LostRequest {
    /// Load source.
    pub source: Arc<str>,
    /// Number of the request in its load source.
    pub seq: u64,
    /// The target's name.
    pub target: Arc<str>,
    /// Intended send time, on the coordinator's clock like the two times below.
    pub scheduled: Stamp,
    /// Time the request began to connect, or was sent on a reused connection.
    pub begun: Stamp,
    /// Time the request ended.
    pub ended: Stamp,
    /// Time the request began, in seconds since the counted part of the load began.
    pub begun_s: f64,
    /// Outcome of the request.
    pub outcome: Outcome,
    /// Response status.
    pub status: Option<u16>,
    /// Cause of the loss.
    pub cause: Cause,
    /// Reason why no cause is given; `None` if there is one.
    pub unclear: Option<Unclear>,
    /// True if the request is inside the window of every termination that may explain the loss.
    pub in_window: bool,
    /// Terminations that may explain the loss.
    pub candidates: Vec<TerminationCandidate>,
}

impl LostRequest {
    /// Returns the termination that alone explains the loss.
    pub fn only(&self) -> Option<usize> {
        match self.candidates[..] {
            [only] if only.share >= CERTAIN => Some(only.termination),
            _ => None,
        }
    }

    /// Returns true if this termination may explain the loss.
    pub fn may_be(&self, termination: usize) -> bool {
        self.candidates.iter().any(|candidate| candidate.termination == termination)
    }
}
