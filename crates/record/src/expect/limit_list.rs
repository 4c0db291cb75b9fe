//! All limits on numbers in one list, which defines the key of each limit and the kind of its figure.

use std::fmt::Display;

use super::contradiction::{Contradiction, wrong};
use super::{Amount, Bounds, Expect, Kind, LatencyFigures, LatencyLimit, Margin, StreamLimits};
use crate::Outcome;

/// A limit, whatever the type of its figure.
pub(super) struct Limit {
    /// Key, relative to `expect` or to a part, such as `latency.p99`.
    pub(super) key: String,
    /// Kind of figure.
    pub(super) kind: Kind,
    /// Margin by which the figure may be worse than in a baseline.
    pub(super) worse: Option<Margin>,
    /// Reason why no run can meet the limit.
    pub(super) fault: Option<Contradiction>,
}

impl Expect {
    /// Returns the limits on numbers, excluding those for single consumers and targets.
    pub(super) fn limits_on_numbers(&self) -> Vec<Limit> {
        let mut found = LimitList(Vec::new());
        if let Some(limits) = &self.dropped {
            found.amount("dropped", given(limits.total()));
            found.put("dropped.perTermination", Kind::Most, limits.per_termination);
            found.put("dropped.perGroup", Kind::Most, limits.per_group);
        }
        if let Some(limits) = &self.app_errors {
            found.amount("appErrors", given(limits.total()));
            found.amount("appErrors.whileEnding", limits.while_ending);
        }
        if let Some(limits) = &self.requests {
            found.put("requests.ok", Kind::Share, limits.ok);
            found.amount("requests.notSent", limits.not_sent);
        }
        for (cause, bounds) in &self.causes {
            found.amount(format!("causes.{cause}"), Some(*bounds));
        }
        for (outcome, bounds) in &self.outcomes {
            found.amount(format!("outcomes.{outcome}"), Some(*bounds));
            if let (Outcome::Ok, Some(limit)) = (outcome, found.0.last_mut()) {
                limit.kind = Kind::Neither;
            }
        }
        if let Some(limits) = &self.streams {
            for (key, _, bounds) in limits.outcomes() {
                found.amount(key, Some(bounds));
            }
            found.put(StreamLimits::EVENTS_LOST, Kind::Most, limits.events_lost);
        }
        found.put("terminations", Kind::Neither, self.terminations);
        found.put("restarts", Kind::Total, self.restarts);
        found.put("killed", Kind::Total, self.killed);
        found.put("failedHooks", Kind::Total, self.failed_hooks);
        for (stage, bounds) in &self.stages {
            found.put(format!("stages.{stage}"), Kind::Neither, Some(*bounds));
        }
        for (code, bounds) in &self.exits {
            found.put(format!("exits.{code}"), Kind::Neither, Some(*bounds));
        }
        if let Some(limits) = &self.windows {
            let longest = Bounds { min: None, max: limits.max, worse: limits.worse };
            found.put("windows", Kind::Time, given(longest));
            for (name, _, bounds) in limits.quantiles() {
                found.put(format!("windows.{name}"), Kind::Time, Some(bounds));
            }
        }
        found.put("outage", Kind::Time, self.outage);
        found.put("deadSeconds", Kind::Time, self.dead_seconds);
        if let Some(limits) = &self.latency {
            found.latency("latency", &limits.all(), false);
            found.latency("latency.steady", &limits.steady.unwrap_or_default(), false);
            found.latency("latency.disrupted", &limits.disrupted.unwrap_or_default(), true);
        }
        if let Some(limits) = &self.starts {
            found.put("starts.firstRequest", Kind::Time, limits.first_request);
            found.amount("starts.dropped", limits.dropped);
            for (stage, bounds) in &limits.stages {
                found.put(format!("starts.stages.{stage}"), Kind::Neither, Some(*bounds));
            }
        }
        found.put("rollout", Kind::Time, self.rollout);
        found.0
    }
}

/// Returns bounds whose keys appear beside other keys; `None` if none of them is set.
fn given<T: PartialEq>(bounds: Bounds<T>) -> Option<Bounds<T>> {
    Some(bounds).filter(|bounds| *bounds != Bounds::default())
}

struct LimitList(Vec<Limit>);

impl LimitList {
    fn put<T: PartialOrd + Display>(
        &mut self,
        key: impl Into<String>,
        kind: Kind,
        bounds: Option<Bounds<T>>,
    ) {
        let Some(Bounds { min, max, worse }) = bounds else { return };
        let key = key.into();
        let fault = match (min, max) {
            (Some(min), Some(max)) if min > max => Some(format!("min {min} is above max {max}")),
            (None, None) if worse.is_none() => Some("needs min, max or worse".to_owned()),
            _ => None,
        };
        let fault = fault.map(|why| wrong(&key, why));
        self.0.push(Limit { key, kind, worse, fault });
    }

    /// Adds a limit on a number or a share. A maximum share of 0 is a fault, because no sample can prove it.
    fn amount(&mut self, key: impl Into<String>, bounds: Option<Bounds<Amount>>) {
        self.put(key, Kind::Total, bounds);
        if let (Some(Amount::Share(share)), Some(limit)) = (bounds.and_then(|b| b.max), self.0.last_mut())
            && share.0 == 0.0
        {
            let why = "no run can prove a share of 0%: write the number 0";
            limit.fault.get_or_insert_with(|| wrong(&format!("{}.max", limit.key), why));
        }
    }

    fn latency(&mut self, part: &str, figures: &LatencyFigures, takes_multiples: bool) {
        for (figure, bounds) in figures.set() {
            let key = format!("{part}.{figure}");
            self.put(key.as_str(), Kind::Latency, Some(bounds));
            let has_multiple =
                [bounds.min, bounds.max].iter().any(|limit| matches!(limit, Some(LatencyLimit::Times(_))));
            if let Some(limit) = self.0.last_mut()
                && has_multiple
                && !takes_multiples
            {
                let why = "a multiple compares disrupted with steady latency: use it only in latency.disrupted, \
                           or write a duration such as 250ms";
                limit.fault.get_or_insert_with(|| wrong(&key, why));
            }
        }
    }
}
