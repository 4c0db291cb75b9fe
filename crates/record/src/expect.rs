//! Expectations of a scenario: the limits that the gate checks. A scenario's `expect:`, the file of `--expect`,
//! `--set expect.` and run.json use the same vocabulary. `docs/expect.md` lists it.

mod contradiction;
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
        /// Limits that apply to keys that are not set.
        pub limits: Option<Limits> = default,
        /// Limits on dropped requests.
        pub dropped: Option<DroppedLimits> = default,
        /// Limits on answers of the app that are neither success nor a gateway's.
        pub app_errors: Option<AppErrorLimits> = default,
        /// Limits on requests that succeeded, and on requests that were not sent.
        pub requests: Option<RequestLimits> = default,
        /// Limits on dropped requests with a certain cause.
        #[serde(deserialize_with = "reading::causes")]
        pub causes: BTreeMap<Cause, Bounds<Amount>> = default,
        /// Limits on requests with a certain outcome.
        #[serde(deserialize_with = "reading::outcomes")]
        pub outcomes: BTreeMap<Outcome, Bounds<Amount>> = default,
        /// Limits on the number of terminations measured.
        pub terminations: Option<Bounds<u64>> = default,
        /// Limits on containers that ended, in pods that stayed, without the run having asked for it.
        pub restarts: Option<Bounds<u64>> = default,
        /// Limits on the time at which each termination reached a certain stage.
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
        /// Limits on the latencies of answered requests.
        pub latency: Option<LatencyLimits> = default,
        /// Limits on starting pods.
        pub starts: Option<StartLimits> = default,
        /// Limits on the duration of each rollout.
        pub rollout: Option<Bounds<Span>> = default,
        /// Limits on the preStop sleep that is set.
        pub pre_stop: Option<PreStopLimits> = default,
        /// Expectation that every request is accounted for.
        pub accounting: Option<Accounting> = default,
        /// Validity that the measurement must have.
        pub validity: Option<Validity> = default,
        /// Expectations for the requests that a single consumer routes, by the consumer or its target's name.
        pub consumers: BTreeMap<String, Expect> = default,
        /// Expectations for the requests to a single target, by its name.
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

    /// Adds the limits of the default gate if `limits` asks for them. A limit that is set under its own key takes
    /// precedence. The gate itself has the default limit on dropped requests, because that one does not count all of
    /// them.
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

/// Share of requests that an app may answer with an error in the default gate. A working app may produce a few
/// errors, which should not be blamed on a termination.
const APP_ERRORS: Share = Share(0.001);

named! {
    /// Limits that apply to keys that are not set.
    pub enum Limits {
        /// The limits of the default gate ([`Expect::with_default_limits`]).
        Default = "default",
    }
}

/// Inclusive bounds on a figure. A `min` makes a positive control: the run must show the fault that it is designed to
/// show.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds<T> {
    /// Smallest value that passes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<T>,
    /// Largest value that passes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<T>,
    /// Margin by which the figure may be worse than the baseline's.
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
        /// Margin by which there may be more than in the baseline.
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
    /// Limits on answers of the app that are neither success nor a gateway's.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    pub struct AppErrorLimits {
        /// Minimum for the whole run.
        pub min: Option<Amount> = default,
        /// Maximum for the whole run.
        pub max: Option<Amount> = default,
        /// Margin by which there may be more than in the baseline.
        pub worse: Option<Margin> = default,
        /// Limits on 5xx answers by pods that were terminating.
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
        /// Limits on the share that succeeded, of the requests outside terminations.
        pub ok: Option<Bounds<Share>> = default,
        /// Limits on requests that were scheduled but not sent.
        pub not_sent: Option<Bounds<Amount>> = default,
    }
}

sparse! {
    /// Limits on windows.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct WindowLimits {
        /// Maximum length of any window.
        pub max: Option<Span> = default,
        /// Margin by which the longest window may be longer than the baseline's.
        pub worse: Option<Margin> = default,
        /// Limits on the median of future windows, at 95 % confidence.
        pub p50: Option<Bounds<Span>> = default,
        /// Limits on their 90th percentile.
        pub p90: Option<Bounds<Span>> = default,
        /// Limits on their 95th percentile.
        pub p95: Option<Bounds<Span>> = default,
        /// Limits on their 99th percentile.
        pub p99: Option<Bounds<Span>> = default,
    }
}

impl WindowLimits {
    /// Quantiles, each with its name and its share.
    pub const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)];

    /// Returns the limits on quantiles that are set, each with its name and its share.
    pub fn quantiles(&self) -> impl Iterator<Item = (&'static str, f64, Bounds<Span>)> {
        let bounds = [self.p50, self.p90, self.p95, self.p99];
        let all = Self::QUANTILES.into_iter().zip(bounds);
        all.filter_map(|((name, share), bounds)| Some((name, share, bounds?)))
    }
}

sparse! {
    /// Limits on latencies: of all requests, of those near terminations, and of those away from them.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct LatencyLimits {
        /// The mean of all.
        pub mean: Option<Bounds<LatencyLimit>> = default,
        /// The median of all.
        pub p50: Option<Bounds<LatencyLimit>> = default,
        /// The 90th percentile of all.
        pub p90: Option<Bounds<LatencyLimit>> = default,
        /// The 95th percentile of all.
        pub p95: Option<Bounds<LatencyLimit>> = default,
        /// The 99th percentile of all.
        pub p99: Option<Bounds<LatencyLimit>> = default,
        /// The 99.9th percentile of all.
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
    /// Limits on the latencies of one part of the requests.
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
        /// Limits on the time from a pod's creation to the first request that it answered.
        pub first_request: Option<Bounds<Span>> = default,
        /// Limits on requests lost to pods that were not ready yet.
        pub dropped: Option<Bounds<Amount>> = default,
        /// Limits on the time at which each of these pods reached a certain stage.
        #[serde(deserialize_with = "reading::start_stages")]
        pub stages: BTreeMap<StartStage, Bounds<Span>> = default,
    }
}

/// Limits on the preStop sleep that is set.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreStopLimits {
    /// Share of future terminations whose windows the sleep must outlast, at 95 % confidence.
    pub suffices: Share,
}

named! {
    /// Expectation of the accounting.
    pub enum Accounting {
        /// Every scheduled request is in exactly one count, and all rows arrived.
        Closes = "closes",
    }
}

named! {
    /// Validity that a measurement must have.
    pub enum Validity {
        /// It must be valid and complete.
        Valid = "valid",
        /// It must not be invalid, but may be partial.
        Partial = "partial",
    }
}
