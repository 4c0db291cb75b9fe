//! Groups successive terminations of a workload, such as those in a rollout.

use std::collections::BTreeMap;

use super::workload_ranking::{RankedWorkload, WorkloadRanking};
use crate::model::WatchedTermination;
use rolldrop_record::Stamp;

/// Time without a further termination after which a group is complete.
const QUIET_NS: i64 = 60_000_000_000;

/// Groups that may still grow, by namespace and workload.
#[derive(Debug, Default)]
pub struct TerminationGroups(BTreeMap<(String, Option<String>), OpenGroup>);

#[derive(Debug)]
struct OpenGroup {
    terminations: WorkloadRanking,
    first: Stamp,
    last: Stamp,
    added: Stamp,
}

/// Successive terminations of one workload.
#[derive(Clone, Debug, PartialEq)]
pub struct TerminationGroup {
    /// The workload, with figures for this group alone.
    pub workload: RankedWorkload,
    /// Latest t0 of the first termination.
    pub first: Stamp,
    /// Latest t0 of the last one.
    pub last: Stamp,
}

impl TerminationGroups {
    /// Adds a termination.
    pub fn add(&mut self, now: Stamp, end: &WatchedTermination) {
        let t0 = end.t0_latest_ns;
        let new = || OpenGroup { terminations: WorkloadRanking::default(), first: t0, last: t0, added: now };
        let group = self.0.entry((end.namespace.clone(), end.workload.clone())).or_insert_with(new);
        group.terminations.add(end);
        (group.first, group.last, group.added) = (group.first.min(t0), group.last.max(t0), now);
    }

    /// Returns the groups that are complete. Each group is returned once.
    pub fn complete(&mut self, now: Stamp) -> Vec<TerminationGroup> {
        let is_complete = |group: &OpenGroup| now.ns_since(group.added) >= QUIET_NS;
        let complete = self.0.extract_if(.., |_, group| is_complete(group)).map(|(_, group)| group);
        let group = |OpenGroup { terminations, first, last, .. }: OpenGroup| {
            let mut ranked = terminations.ranked().into_iter();
            Some(TerminationGroup { workload: ranked.next()?, first, last })
        };
        complete.filter_map(group).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{T0Basis, WatchedMode};

    fn at(s: i64) -> Stamp {
        Stamp::from_unix_ns(s * 1_000_000_000)
    }

    fn end(workload: &str, s: i64) -> WatchedTermination {
        WatchedTermination {
            namespace: "shop".to_owned(),
            workload: Some(workload.to_owned()),
            pod: "web-1".to_owned(),
            uid: "u".to_owned(),
            node: None,
            mode: WatchedMode::Rollout,
            cause: None,
            t0_earliest_ns: at(s),
            t0_latest_ns: at(s),
            t0_basis: T0Basis::Timestamp,
            has_beats: false,
            grace_s: 10,
            pre_stop_sleep_s: None,
            ended_ns: None,
            grace_use: None,
            killed_at_grace_end: None,
            containers: Vec::new(),
            restarts: 0,
            failed_hooks: None,
            ready_while_terminating_s: None,
            traffic: None,
        }
    }

    #[test]
    fn quiet_minute_completes_group() {
        let mut groups = TerminationGroups::default();
        groups.add(at(10), &end("Deployment web", 5));
        groups.add(at(60), &end("Deployment web", 55));
        groups.add(at(100), &end("Deployment api", 99));
        assert_eq!(groups.complete(at(119)), []);
        let complete = groups.complete(at(120));
        let [group] = &complete[..] else { panic!("{complete:?}") };
        assert_eq!((group.first, group.last, group.workload.terminations), (at(5), at(55), 2));
        assert_eq!(groups.complete(at(130)), [], "each is returned once");
        groups.add(at(131), &end("Deployment web", 130));
        assert_eq!(groups.complete(at(200)).len(), 2);
    }
}
