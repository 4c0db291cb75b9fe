//! What a scenario expects of its result: the limits that the gate checks. The same vocabulary stands in a scenario's
//! `expect:`, in the file of `--expect`, behind `--set expect.`, and in run.json. `docs/expect.md` lists it.

mod contradiction;
mod quantity;
mod reading;
mod worse;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::names::named;
use super::stage::{Stage, StartStage};
use super::{Cause, Outcome};
pub use contradiction::Contradiction;
pub use quantity::{Amount, LatencyLimit, Margin, Share, Span};
pub(super) use reading::recorded;
pub use worse::{Kind, Part, Worse};

/// The expectations of a scenario. An empty one expects nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expect {
    /// What holds for keys that are not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
    /// The dropped requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<DroppedLimits>,
    /// Answers of the app that are neither success nor a gateway's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_errors: Option<AppErrorLimits>,
    /// Requests that succeeded, and requests that were not sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<RequestLimits>,
    /// Dropped requests of single causes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "reading::causes")]
    pub causes: BTreeMap<Cause, Bounds<Amount>>,
    /// Requests of single outcome classes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "reading::outcomes")]
    pub outcomes: BTreeMap<Outcome, Bounds<Amount>>,
    /// The number of terminations measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminations: Option<Bounds<u64>>,
    /// Containers that ended in pods that stay, without the run having asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<Bounds<u64>>,
    /// When each termination reached single stages.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "reading::stages")]
    pub stages: BTreeMap<Stage, Bounds<Span>>,
    /// Terminations by the exit code of the pod's main container.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "reading::exits")]
    pub exits: BTreeMap<u8, Bounds<u64>>,
    /// The endpoint-propagation windows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub windows: Option<WindowLimits>,
    /// The longest outage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outage: Option<Bounds<Span>>,
    /// The dead seconds of each termination.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_seconds: Option<Bounds<Span>>,
    /// The latencies of answered requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<LatencyLimits>,
    /// Starting pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts: Option<StartLimits>,
    /// How long each rollout took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<Bounds<Span>>,
    /// The preStop sleep that is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_stop: Option<PreStopLimits>,
    /// Whether every request must be accounted for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accounting: Option<Accounting>,
    /// How far the measurement must be believable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validity: Option<Validity>,
    /// The same of what single consumers route, by consumer or by the name of its target.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub consumers: BTreeMap<String, Expect>,
    /// The same of single targets, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub targets: BTreeMap<String, Expect>,
}

impl Expect {
    /// Whether nothing is expected.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The default gate: what is judged where nothing is asked for.
    pub fn default_gate() -> Self {
        Self { limits: Some(Limits::Default), ..Self::default() }
    }

    /// With the limits of the default gate, if it asks for them. Each gives way to its own key. The one of dropped
    /// requests is the gate's own, as it does not count all of them.
    pub fn with_default_limits(self) -> Self {
        match self.limits {
            None => self,
            Some(Limits::Default) => Self {
                app_errors: Some(self.app_errors.unwrap_or_default().or_default()),
                restarts: self.restarts.or(Some(Bounds { max: Some(0), ..Bounds::default() })),
                ..self
            },
        }
    }
}

/// The share of requests that an app may answer with an error in the default gate: an app that works may have single
/// ones, and no termination is to be blamed for those.
const APP_ERRORS: Share = Share(0.001);

named! {
    /// What holds for keys that are not set.
    pub enum Limits {
        /// The limits of the default gate ([`Expect::with_default_limits`]).
        Default = "default",
    }
}

/// Inclusive bounds on a figure. A `min` makes a positive control: the run must
/// show the fault that it is meant to show.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds<T> {
    /// The smallest figure that passes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<T>,
    /// The largest figure that passes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<T>,
    /// How much worse than the baseline's it may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worse: Option<Margin>,
}

impl<T> Default for Bounds<T> {
    fn default() -> Self {
        Self { min: None, max: None, worse: None }
    }
}

impl<T> Bounds<T> {
    /// The same bounds in another unit.
    pub fn map<U>(self, mut to: impl FnMut(T) -> U) -> Bounds<U> {
        Bounds { min: self.min.map(&mut to), max: self.max.map(&mut to), worse: self.worse }
    }
}

/// Limits on dropped requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DroppedLimits {
    /// The fewest of the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<Amount>,
    /// The most of the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Amount>,
    /// How many more than in the baseline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worse: Option<Margin>,
    /// Those of each termination.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_termination: Option<Bounds<u64>>,
    /// Those of each group of terminations that share losses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_group: Option<Bounds<u64>>,
}

impl DroppedLimits {
    /// The bounds on the whole run.
    pub fn total(&self) -> Bounds<Amount> {
        Bounds { min: self.min, max: self.max, worse: self.worse }
    }
}

/// Limits on answers of the app that are neither success nor a gateway's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AppErrorLimits {
    /// The fewest of the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<Amount>,
    /// The most of the whole run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Amount>,
    /// Allowed surplus over the baseline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worse: Option<Margin>,
    /// Answers of 5xx by pods that were ending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub while_ending: Option<Bounds<Amount>>,
}

impl AppErrorLimits {
    /// The bounds on the whole run.
    pub fn total(&self) -> Bounds<Amount> {
        Bounds { min: self.min, max: self.max, worse: self.worse }
    }

    /// With the default gate's limit for each key that is not set.
    fn or_default(self) -> Self {
        let is_set = self.total() != Bounds::default();
        let none = Bounds { max: Some(Amount::Count(0)), ..Bounds::default() };
        Self {
            max: self.max.or((!is_set).then_some(Amount::Share(APP_ERRORS))),
            while_ending: self.while_ending.or(Some(none)),
            ..self
        }
    }
}

/// Limits on how requests fared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RequestLimits {
    /// The share that succeeded, of the requests outside terminations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ok: Option<Bounds<Share>>,
    /// Those that were scheduled and not sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_sent: Option<Bounds<Amount>>,
}

/// Limits on windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowLimits {
    /// No window may be longer than this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Span>,
    /// How much longer than the baseline's the longest may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worse: Option<Margin>,
    /// The median of the windows to come, at 95 % confidence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50: Option<Bounds<Span>>,
    /// Their 90th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p90: Option<Bounds<Span>>,
    /// Their 95th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p95: Option<Bounds<Span>>,
    /// Their 99th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99: Option<Bounds<Span>>,
}

impl WindowLimits {
    /// The quantiles, each with its name and its share.
    pub const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)];

    /// The limits on quantiles, each with its name and its share.
    pub fn quantiles(&self) -> impl Iterator<Item = (&'static str, f64, Bounds<Span>)> {
        let bounds = [self.p50, self.p90, self.p95, self.p99];
        let all = Self::QUANTILES.into_iter().zip(bounds);
        all.filter_map(|((name, share), bounds)| Some((name, share, bounds?)))
    }
}

/// Limits on latencies: of all requests, and of those near terminations and away from them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatencyLimits {
    /// The mean of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean: Option<Bounds<LatencyLimit>>,
    /// The median of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50: Option<Bounds<LatencyLimit>>,
    /// The 90th percentile of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p90: Option<Bounds<LatencyLimit>>,
    /// The 95th percentile of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p95: Option<Bounds<LatencyLimit>>,
    /// The 99th percentile of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99: Option<Bounds<LatencyLimit>>,
    /// The 99.9th percentile of all.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "p99.9")]
    pub p99_9: Option<Bounds<LatencyLimit>>,
    /// The same of requests away from any termination.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steady: Option<LatencyFigures>,
    /// The same of requests near one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disrupted: Option<LatencyFigures>,
}

impl LatencyLimits {
    /// The limits on all requests.
    pub fn all(&self) -> LatencyFigures {
        let Self { mean, p50, p90, p95, p99, p99_9, .. } = *self;
        LatencyFigures { mean, p50, p90, p95, p99, p99_9 }
    }
}

/// Limits on the latencies of one part of the requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatencyFigures {
    /// The mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean: Option<Bounds<LatencyLimit>>,
    /// The median.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50: Option<Bounds<LatencyLimit>>,
    /// The 90th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p90: Option<Bounds<LatencyLimit>>,
    /// The 95th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p95: Option<Bounds<LatencyLimit>>,
    /// The 99th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99: Option<Bounds<LatencyLimit>>,
    /// The 99.9th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "p99.9")]
    pub p99_9: Option<Bounds<LatencyLimit>>,
}

named! {
    /// A figure of a latency.
    pub enum LatencyFigure {
        /// The mean.
        Mean = "mean",
        /// The median.
        P50 = "p50",
        /// The 90th percentile.
        P90 = "p90",
        /// The 95th percentile.
        P95 = "p95",
        /// The 99th percentile.
        P99 = "p99",
        /// The 99.9th percentile.
        P99_9 = "p99_9",
    }
}

impl LatencyFigures {
    /// The limits that are set.
    pub fn set(&self) -> impl Iterator<Item = (LatencyFigure, Bounds<LatencyLimit>)> {
        [
            (LatencyFigure::Mean, self.mean),
            (LatencyFigure::P50, self.p50),
            (LatencyFigure::P90, self.p90),
            (LatencyFigure::P95, self.p95),
            (LatencyFigure::P99, self.p99),
            (LatencyFigure::P99_9, self.p99_9),
        ]
        .into_iter()
        .filter_map(|(figure, bounds)| Some((figure, bounds?)))
    }
}

/// Limits on starting pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StartLimits {
    /// From a pod's creation to the first request that it answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_request: Option<Bounds<Span>>,
    /// Requests lost to pods that were not ready yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped: Option<Bounds<Amount>>,
    /// When each of them reached single stages.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "reading::start_stages")]
    pub stages: BTreeMap<StartStage, Bounds<Span>>,
}

/// Limits on the preStop sleep that is set.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreStopLimits {
    /// The share of the terminations to come whose windows it must outlast, at 95 % confidence.
    pub suffices: Share,
}

named! {
    /// What is expected of the accounting.
    pub enum Accounting {
        /// Every scheduled request is in exactly one count, and all rows arrived.
        Closes = "closes",
    }
}

named! {
    /// How far a measurement must be believable.
    pub enum Validity {
        /// It must be valid and complete.
        Valid = "valid",
        /// It must not be invalid; it may be partial.
        Partial = "partial",
    }
}
