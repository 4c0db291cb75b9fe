//! Losses by termination: counts that are known between two limits, and the terminations that share losses.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use rolldrop_record::{Cause, Outcome, Stamp, named};

/// Smallest share that counts as 1: sums of fractions are rounded.
const CERTAIN: f64 = 1.0 - 1e-9;

/// A count that is known between two limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bounded {
    /// Requests that nothing else explains.
    pub at_least: u64,
    /// Requests that it may explain.
    pub at_most: u64,
    /// Best estimate, between the two.
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

    /// Adds a request with this share: 1 if nothing else explains it.
    pub fn add(&mut self, share: f64) {
        self.at_least += u64::from(share >= CERTAIN);
        self.at_most += 1;
        self.estimate += share;
    }
}

/// The requests that concern a pod from t0 on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TerminationRequests {
    /// Requests that are known to have reached the pod: those that it answered, and the lost ones that nothing else
    /// explains; `None` if nothing names the pod of a request.
    pub seen: Option<u64>,
    /// The dropped ones.
    pub dropped: Bounded,
    /// The dropped ones, by outcome.
    pub by_outcome: BTreeMap<Outcome, Bounded>,
    /// The dropped ones, by cause.
    pub by_cause: BTreeMap<Cause, Bounded>,
}

/// Terminations that share dropped requests, directly or through others. Their total is exact.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossGroup {
    /// Indices into [`super::RunResult::terminations`], in order; a single one if it shares no losses.
    pub terminations: Vec<usize>,
    /// Requests dropped by one of them.
    pub dropped: u64,
    /// Dropped requests of the group, by outcome.
    pub by_outcome: BTreeMap<Outcome, u64>,
    /// Dropped requests of the group, by cause.
    pub by_cause: BTreeMap<Cause, u64>,
    /// By consumer, the time that at least one of the windows lasted.
    pub windows: Vec<GroupWindow>,
}

/// Evidence from a group's losses about its windows towards one consumer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupWindow {
    /// The consumer, as in `run.json`.
    pub consumer: String,
    /// Time that at least one window of the group lasted, in seconds since its t0; `None` if nothing shows it.
    pub lower_s: Option<f64>,
}

/// A termination that may explain a dropped request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// Index into [`super::RunResult::terminations`].
    pub termination: usize,
    /// Best estimate of the chance that it was this one. The shares of all candidates sum to 1, less the share of other
    /// causes that may explain the request as well.
    pub share: f64,
    /// Reason why it may be this one.
    pub why: Why,
}

named! {
    /// Reason why a termination may explain a dropped request.
    pub enum Why {
        /// The client's row or the proxy beside the pod names it.
        Named = "named",
        /// The kernel's connection tracking names it.
        Conntrack = "conntrack",
        /// The connection was refused: the pod's address was still there.
        Refused = "refused",
        /// Nothing answered the connection: the pod's address was gone.
        Unreachable = "unreachable",
        /// The connection was cut off as the pod ended.
        CutOff = "cut_off",
        /// The pod was ending, and no gateway is between that could have answered for it.
        Answered = "answered",
        /// A gateway failed while the pod was ending.
        Gateway = "gateway",
        /// The pod was ending at that time.
        Time = "time",
    }
}

impl Why {
    /// Returns true if this reason alone identifies the pod.
    pub const fn is_certain(self) -> bool {
        matches!(self, Why::Named | Why::Conntrack)
    }
}

/// Reason why no cause is given.
#[derive(Clone, Debug, PartialEq)]
pub enum Unclear {
    /// Several causes compete: each with its share, the largest first.
    Competing(Vec<(Cause, f64)>),
    /// The pod that it reached was not ending, and nothing else explains it.
    PodWasWell,
    /// The ends of the pods that may have lost it do not explain its outcome.
    NoFit,
    /// No pod was ending or starting that it could have reached.
    NothingNear,
}

impl Unclear {
    /// Returns the kind, as programs may want to tell it from others.
    pub const fn kind(&self) -> &'static str {
        match self {
            Unclear::Competing(_) => "competing",
            Unclear::PodWasWell => "pod_was_well",
            Unclear::NoFit => "no_fit",
            Unclear::NothingNear => "nothing_near",
        }
    }
}

/// A dropped request and its conclusion: a row of `lost.csv`.
#[derive(Clone, Debug, PartialEq)]
pub struct Lost {
    /// Load source.
    pub source: Arc<str>,
    /// Number of the request in its load source.
    pub seq: u64,
    /// The target's name.
    pub target: Arc<str>,
    /// Intended send time, on the coordinator's clock as the two below.
    pub scheduled: Stamp,
    /// Time at which it connected, or was sent on a reused connection.
    pub begun: Stamp,
    /// Time at which it ended.
    pub ended: Stamp,
    /// Time at which it was begun, in seconds since the counted part of the load began.
    pub begun_s: f64,
    /// Outcome of the request.
    pub outcome: Outcome,
    /// The status of its answer.
    pub status: Option<u16>,
    /// Cause of its loss.
    pub cause: Cause,
    /// Reason why no cause is given; `None` if there is one.
    pub unclear: Option<Unclear>,
    /// True if it lies inside the window of each termination that may explain it.
    pub in_window: bool,
    /// Terminations that may explain it.
    pub candidates: Vec<Candidate>,
}

impl Lost {
    /// Returns the termination that alone explains it.
    pub fn only(&self) -> Option<usize> {
        match self.candidates[..] {
            [only] if only.share >= CERTAIN => Some(only.termination),
            _ => None,
        }
    }

    /// Returns true if this termination may explain it.
    pub fn may_be(&self, termination: usize) -> bool {
        self.candidates.iter().any(|candidate| candidate.termination == termination)
    }
}
