//! Expectations of a scenario: the limits that the gate checks. A scenario's `expect:`, the `--expect` file,
//! `--set expect.` and run.json all use the same keys, which `docs/expect.md` lists.

mod contradiction;
mod limit_list;
mod quantity;
mod reading;
mod worse;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::names::{named, sparse};
use super::stage::{Stage, StartStage};
use super::{Cause, Outcome};
pub use crate::units::Span;
pub use contradiction::Contradiction;
pub use quantity::{Amount, LatencyLimit, Margin, Share};
pub use worse::{Kind, Part, Worse};

sparse! {
    /// Expectations of a scenario. Empty expectations set no limits.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    pub struct Expect {
        /// Limits for keys that are not set.
        pub limits: Option<Limits> = default,
        /// Limits on dropped requests.
        pub dropped: Option<DroppedLimits> = default,
        /// Limits on app errors: unsuccessful responses that came from the app, not from a gateway.
        pub app_errors: Option<AppErrorLimits> = default,
        /// Limits on successful requests and on requests that were not sent.
        pub requests: Option<RequestLimits> = default,
        /// Limits on dropped requests by cause.
        #[serde(deserialize_with = "reading::causes")]
        pub causes: BTreeMap<Cause, Bounds<Amount>> = default,
        /// Limits on requests by outcome.
        #[serde(deserialize_with = "reading::outcomes")]
        pub outcomes: BTreeMap<Outcome, Bounds<Amount>> = default,
        /// Limits on streams that ended incomplete.
        pub streams: Option<StreamLimits> = default,
        /// Limits on the number of terminations measured.
        pub terminations: Option<Bounds<u64>> = default,
        /// Limits on containers that exited on their own in pods that were not terminating.
        pub restarts: Option<Bounds<u64>> = default,
        /// Limits on the number of pods killed by SIGKILL when their grace period expired.
        pub killed: Option<Bounds<u64>> = default,
        /// Limits on the number of terminated pods with a failed preStop hook.
        pub failed_hooks: Option<Bounds<u64>> = default,
        /// Limits on the times at which terminations reached a given stage.
        #[serde(deserialize_with = "reading::stages")]
        pub stages: BTreeMap<Stage, Bounds<Span>> = default,
        /// Limits on terminations by the exit code of the pod's main container.
        #[serde(deserialize_with = "reading::exits")]
        pub exits: BTreeMap<u8, Bounds<u64>> = default,
        /// Limits on endpoint-propagation windows.
        pub windows: Option<WindowLimits> = default,
        /// Limits on the longest outage.
        pub outage: Option<Bounds<Span>> = default,
        /// Limits on the dead seconds of each termination.
        pub dead_seconds: Option<Bounds<Span>> = default,
        /// Limits on the latencies of requests that got a response.
        pub latency: Option<LatencyLimits> = default,
        /// Limits on starting pods.
        pub starts: Option<StartLimits> = default,
        /// Limits on the duration of each rollout.
        pub rollout: Option<Bounds<Span>> = default,
        /// Limits on the configured preStop sleep.
        pub pre_stop: Option<PreStopLimits> = default,
        /// Expectation that every request is accounted for.
        pub accounting: Option<Accounting> = default,
        /// Required validity of the measurement.
        pub validity: Option<Validity> = default,
        /// Expectations for the requests routed by a single consumer, keyed by the consumer or its target's name.
        pub consumers: BTreeMap<String, Expect> = default,
        /// Expectations for the requests to a single target, keyed by target name.
        pub targets: BTreeMap<String, Expect> = default,
    }
}

impl Expect {
    /// Returns true if nothing is expected.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the default gate, which applies if no expectations are given.
    pub fn default_gate() -> Self {
        Self { limits: Some(Limits::Default), ..Self::default() }
    }

    /// Adds the default gate's limits if `limits` asks for them. Limits set under their own keys take precedence. The
    /// default limit on dropped requests is part of the gate itself, because it does not count all dropped requests.
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

/// Share of app errors that the default gate allows. Even a working app may produce a few errors, and terminations
/// should not be blamed for them.
const APP_ERRORS: Share = Share(0.001);

named! {
    /// Limits for keys that are not set.
    pub enum Limits {
        /// The limits of the default gate ([`Expect::with_default_limits`]).
        Default = "default",
    }
}

/// Inclusive bounds on a figure. A `min` makes the run a positive control: it must show the fault that it is designed
/// to show.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds<T> {
    /// Smallest value that passes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<T>,
    /// Largest value that passes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<T>,
    /// Margin by which the figure may be worse than in the baseline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worse: Option<Margin>,
}

impl<T> Default for Bounds<T> {
    fn default() -> Self {
        Self { min: None, max: None, worse: None }
    }
}

impl<T> Bounds<T> {
    /// Converts the bounds to another unit.
    pub fn map<U>(self, mut to: impl FnMut(T) -> U) -> Bounds<U> {
        Bounds { min: self.min.map(&mut to), max: self.max.map(&mut to), worse: self.worse }
    }
}

sparse! {
    /// Limits on dropped requests.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    pub struct DroppedLimits {
        /// Minimum for the whole run.
        pub min: Option<Amount> = default,
        /// Maximum for the whole run.
        pub max: Option<Amount> = default,
        /// Margin by which the number may exceed the baseline's.
        pub worse: Option<Margin> = default,
        /// Limits for each termination.
        pub per_termination: Option<Bounds<u64>> = default,
        /// Limits for each group of terminations that share losses.
        pub per_group: Option<Bounds<u64>> = default,
    }
}

impl DroppedLimits {
    /// Returns the bounds for the whole run.
    pub fn total(&self) -> Bounds<Amount> {
        Bounds { min: self.min, max: self.max, worse: self.worse }
    }
}

sparse! {
    /// Limits on app errors: unsuccessful responses that came from the app, not from a gateway.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    pub struct AppErrorLimits {
        /// Minimum for the whole run.
        pub min: Option<Amount> = default,
        /// Maximum for the whole run.
        pub max: Option<Amount> = default,
        /// Margin by which the number may exceed the baseline's.
        pub worse: Option<Margin> = default,
        /// Limits on 5xx responses from terminating pods.
        pub while_ending: Option<Bounds<Amount>> = default,
    }
}

impl AppErrorLimits {
    /// Returns the bounds for the whole run.
    pub fn total(&self) -> Bounds<Amount> {
        Bounds { min: self.min, max: self.max, worse: self.worse }
    }

    /// Adds the default gate's limit for each key that is not set.
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

sparse! {
    /// Limits on requests that succeeded or were not sent.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    pub struct RequestLimits {
        /// Limits on the success rate of requests outside terminations.
        pub ok: Option<Bounds<Share>> = default,
        /// Limits on requests that were scheduled but not sent.
        pub not_sent: Option<Bounds<Amount>> = default,
    }
}

sparse! {
    /// Limits on streams that ended incomplete. Shares are of all streams.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    pub struct StreamLimits {
        /// Limits on streams whose transport broke.
        pub cut: Option<Bounds<Amount>> = default,
        /// Limits on streams with a clean end, but without the event that completes them.
        pub unfinished: Option<Bounds<Amount>> = default,
        /// Limits on streams that the app aborted with a message.
        pub aborted: Option<Bounds<Amount>> = default,
        /// Limits on streams that were silent for longer than the stall timeout.
        pub stalled: Option<Bounds<Amount>> = default,
        /// Limits on the events that incomplete streams had delivered.
        pub events_lost: Option<Bounds<u64>> = default,
    }
}

impl StreamLimits {
    /// Key of [`Self::events_lost`].
    pub const EVENTS_LOST: &str = "streams.eventsLost";
    /// Keys of the limits on incomplete streams, each with the outcome that it limits.
    pub const OUTCOMES: [(&str, Outcome); 4] = [
        ("streams.cut", Outcome::StreamCut),
        ("streams.unfinished", Outcome::StreamUnfinished),
        ("streams.aborted", Outcome::StreamAborted),
        ("streams.stalled", Outcome::StreamStalled),
    ];

    /// Returns the limits on incomplete streams that are set, each with its key and its outcome.
    pub fn outcomes(&self) -> impl Iterator<Item = (&'static str, Outcome, Bounds<Amount>)> {
        let bounds = [self.cut, self.unfinished, self.aborted, self.stalled];
        let all = Self::OUTCOMES.into_iter().zip(bounds);
        all.filter_map(|((key, outcome), bounds)| Some((key, outcome, bounds?)))
    }
}

sparse! {
    /// Limits on windows.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct WindowLimits {
        /// Maximum length of any window.
        pub max: Option<Span> = default,
        /// Margin by which the longest window may exceed the baseline's.
        pub worse: Option<Margin> = default,
        /// Limits on the median of future windows, at 95 % confidence.
        pub p50: Option<Bounds<Span>> = default,
        /// Limits on the 90th percentile of future windows.
        pub p90: Option<Bounds<Span>> = default,
        /// Limits on the 95th percentile of future windows.
        pub p95: Option<Bounds<Span>> = default,
        /// Limits on the 99th percentile of future windows.
        pub p99: Option<Bounds<Span>> = default,
    }
}

impl WindowLimits {
    /// Quantiles by name.
    pub const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)];

    /// Returns the quantile limits that are set, each with the quantile's name and value.
    pub fn quantiles(&self) -> impl Iterator<Item = (&'static str, f64, Bounds<Span>)> {
        let bounds = [self.p50, self.p90, self.p95, self.p99];
        let all = Self::QUANTILES.into_iter().zip(bounds);
        all.filter_map(|((name, share), bounds)| Some((name, share, bounds?)))
    }
}

sparse! {
    /// Limits on the latencies of all requests, of requests near terminations, and of requests away from terminations.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct LatencyLimits {
        /// Mean over all requests.
        pub mean: Option<Bounds<LatencyLimit>> = default,
        /// Median over all requests.
        pub p50: Option<Bounds<LatencyLimit>> = default,
        /// 90th percentile over all requests.
        pub p90: Option<Bounds<LatencyLimit>> = default,
        /// 95th percentile over all requests.
        pub p95: Option<Bounds<LatencyLimit>> = default,
        /// 99th percentile over all requests.
        pub p99: Option<Bounds<LatencyLimit>> = default,
        /// 99.9th percentile over all requests.
        #[serde(alias = "p99.9")]
        pub p99_9: Option<Bounds<LatencyLimit>> = default,
        /// Limits for requests away from any termination.
        pub steady: Option<LatencyFigures> = default,
        /// Limits for requests near a termination.
        pub disrupted: Option<LatencyFigures> = default,
    }
}

impl LatencyLimits {
    /// Returns the limits on all requests.
    pub fn all(&self) -> LatencyFigures {
        let Self { mean, p50, p90, p95, p99, p99_9, .. } = *self;
        LatencyFigures { mean, p50, p90, p95, p99, p99_9 }
    }
}

sparse! {
    /// Limits on the latencies of a subset of the requests.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct LatencyFigures {
        /// The mean.
        pub mean: Option<Bounds<LatencyLimit>> = default,
        /// The median.
        pub p50: Option<Bounds<LatencyLimit>> = default,
        /// The 90th percentile.
        pub p90: Option<Bounds<LatencyLimit>> = default,
        /// The 95th percentile.
        pub p95: Option<Bounds<LatencyLimit>> = default,
        /// The 99th percentile.
        pub p99: Option<Bounds<LatencyLimit>> = default,
        /// The 99.9th percentile.
        #[serde(alias = "p99.9")]
        pub p99_9: Option<Bounds<LatencyLimit>> = default,
    }
}

named! {
    /// A latency statistic.
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
    /// Returns the limits that are set, each with its statistic.
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

sparse! {
    /// Limits on starting pods.
    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    pub struct StartLimits {
        /// Limits on the time from a pod's creation to the first request that the pod answered.
        pub first_request: Option<Bounds<Span>> = default,
        /// Limits on requests lost to pods that were not yet ready.
        pub dropped: Option<Bounds<Amount>> = default,
        /// Limits on the times at which starting pods reached a given stage.
        #[serde(deserialize_with = "reading::start_stages")]
        pub stages: BTreeMap<StartStage, Bounds<Span>> = default,
    }
}

/// Limits on the configured preStop sleep.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreStopLimits {
    /// Share of future terminations whose windows must be shorter than the sleep, at 95 % confidence.
    pub suffices: Share,
}

named! {
    /// Expected state of the request accounting.
    pub enum Accounting {
        /// Every scheduled request is counted exactly once, and all rows arrived.
        Closes = "closes",
    }
}

named! {
    /// Required validity of a measurement.
    pub enum Validity {
        /// The measurement must be valid and complete.
        Valid = "valid",
        /// The measurement may be partial, but not invalid.
        Partial = "partial",
    }
}
