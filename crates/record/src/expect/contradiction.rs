//! Limits that contradict each other, or that no run can meet.

use super::{AppErrorLimits, DroppedLimits, Expect, StreamLimits};

/// A mistake in expectations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contradiction {
    /// Key of the limit, relative to `expect`, such as `dropped.perGroup`.
    pub key: String,
    /// Explanation of the mistake, with a remedy.
    pub why: String,
}

pub(super) fn wrong(key: &str, why: impl Into<String>) -> Contradiction {
    Contradiction { key: key.to_owned(), why: why.into() }
}

impl Expect {
    /// Checks for limits that contradict each other.
    ///
    /// # Errors
    /// Returns the first contradiction found.
    pub fn check(&self) -> Result<(), Contradiction> {
        if self.dropped == Some(DroppedLimits::default()) {
            return Err(wrong("dropped", "needs min, max, worse, perTermination or perGroup"));
        }
        if self.app_errors == Some(AppErrorLimits::default()) {
            return Err(wrong("appErrors", "needs min, max, worse or whileEnding"));
        }
        if self.streams == Some(StreamLimits::default()) {
            return Err(wrong("streams", "needs cut, unfinished, aborted, stalled or eventsLost"));
        }
        if let Some(fault) = self.limits_on_numbers().into_iter().find_map(|limit| limit.fault) {
            return Err(fault);
        }
        if self.pre_stop.is_some_and(|limits| !(0.0 < limits.suffices.0 && limits.suffices.0 < 1.0)) {
            return Err(wrong("preStop.suffices", "must be above 0% and below 100%, such as 95%"));
        }
        for worse in self.worse_of_all() {
            if let Some(why) = worse.mistake() {
                return Err(wrong(&format!("{}.worse", worse.key), why));
            }
        }
        let consumers = self.consumers.iter().map(|part| ("consumers", part));
        for (kind, (name, part)) in consumers.chain(self.targets.iter().map(|part| ("targets", part))) {
            let below = |found: Contradiction| wrong(&format!("{kind}.{name}.{}", found.key), found.why);
            part.check_is_of_part().and_then(|()| part.check()).map_err(below)?;
        }
        Ok(())
    }

    /// Rejects limits that make no sense for a subset of the requests.
    fn check_is_of_part(&self) -> Result<(), Contradiction> {
        let whole = [
            ("limits", self.limits.is_some()),
            ("streams", self.streams.is_some()),
            ("restarts", self.restarts.is_some()),
            ("killed", self.killed.is_some()),
            ("failedHooks", self.failed_hooks.is_some()),
            ("terminations", self.terminations.is_some()),
            ("stages", !self.stages.is_empty()),
            ("exits", !self.exits.is_empty()),
            ("deadSeconds", self.dead_seconds.is_some()),
            ("starts", self.starts.is_some()),
            ("rollout", self.rollout.is_some()),
            ("accounting", self.accounting.is_some()),
            ("validity", self.validity.is_some()),
            ("consumers", !self.consumers.is_empty()),
            ("targets", !self.targets.is_empty()),
        ];
        match whole.iter().find(|(_, is_set)| *is_set) {
            Some((key, _)) => Err(wrong(key, "applies to the whole run: put it directly under expect")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_rejects_unsatisfiable_limits() {
        let found = |json: serde_json::Value| {
            let expect: Expect = serde_json::from_value(json).unwrap();
            expect.check().map_err(|c| format!("{}: {}", c.key, c.why))
        };
        let error = |json| found(json).unwrap_err();
        use serde_json::json;
        assert_eq!(found(json!({"dropped": {"min": 1, "max": "0.1%", "perGroup": {"max": 2}}})), Ok(()));
        assert_eq!(found(json!({"dropped": {"perTermination": {"max": 2}}})), Ok(()));
        assert_eq!(
            error(json!({"dropped": {}})),
            "dropped: needs min, max, worse, perTermination or perGroup"
        );
        assert_eq!(found(json!({"appErrors": {"whileEnding": {"max": 0}}})), Ok(()));
        assert_eq!(error(json!({"appErrors": {}})), "appErrors: needs min, max, worse or whileEnding");
        assert_eq!(
            error(json!({"appErrors": {"whileEnding": {"max": "0%"}}})),
            "appErrors.whileEnding.max: no run can prove a share of 0%: write the number 0"
        );
        assert_eq!(error(json!({"dropped": {"min": 2, "max": 1}})), "dropped: min 2 is above max 1");
        assert_eq!(
            error(json!({"appErrors": {"max": "0%"}})),
            "appErrors.max: no run can prove a share of 0%: write the number 0"
        );
        assert_eq!(
            error(json!({"latency": {"p99": {"max": "1.5x"}}})).split(": ").next(),
            Some("latency.p99")
        );
        assert_eq!(found(json!({"latency": {"disrupted": {"p99.9": {"max": "1.5x"}}}})), Ok(()));
        assert_eq!(
            error(json!({"windows": {"p95": {"min": "2s", "max": "1s"}}})),
            "windows.p95: min 2s is above max 1s"
        );
        assert_eq!(found(json!({"streams": {"cut": {"max": "1%"}, "eventsLost": {"max": 0}}})), Ok(()));
        assert_eq!(
            error(json!({"streams": {}})),
            "streams: needs cut, unfinished, aborted, stalled or eventsLost"
        );
        assert_eq!(
            error(json!({"streams": {"stalled": {"max": "0%"}}})),
            "streams.stalled.max: no run can prove a share of 0%: write the number 0"
        );
        assert_eq!(
            error(json!({"streams": {"eventsLost": {"min": 2, "max": 1}}})),
            "streams.eventsLost: min 2 is above max 1"
        );
        assert_eq!(
            error(json!({"targets": {"web": {"streams": {"cut": {"max": 0}}}}})),
            "targets.web.streams: applies to the whole run: put it directly under expect"
        );
        assert_eq!(error(json!({"outcomes": {"ok": {}}})), "outcomes.ok: needs min, max or worse");
        assert!(error(json!({"preStop": {"suffices": "100%"}})).contains("below 100%"));
        assert_eq!(found(json!({"consumers": {"ingress": {"dropped": {"max": 0}}}})), Ok(()));
        assert_eq!(
            error(json!({"targets": {"web": {"outage": {}}}})),
            "targets.web.outage: needs min, max or worse"
        );
        assert_eq!(
            error(json!({"stages": {"pod_deleted": {"min": "2s", "max": "1s"}}})),
            "stages.pod_deleted: min 2s is above max 1s"
        );
        assert_eq!(error(json!({"exits": {"137": {}}})), "exits.137: needs min, max or worse");
        assert_eq!(
            error(json!({"starts": {"stages": {"ready": {"worse": "10%"}}}})),
            "starts.stages.ready.worse: a larger value of this figure is neither better nor worse: use min or max"
        );
        assert_eq!(
            error(json!({"consumers": {"web": {"exits": {"0": {"min": 1}}}}})),
            "consumers.web.exits: applies to the whole run: put it directly under expect"
        );
        assert_eq!(
            error(json!({"targets": {"web": {"rollout": {"max": "1m"}}}})),
            "targets.web.rollout: applies to the whole run: put it directly under expect"
        );
    }
}
