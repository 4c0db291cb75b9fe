//! Periods in which the pods behind a Service explain losses at its address, and periods in which they do not.

use super::{MARGIN_NS, PodHistory, SECOND_NS};
use crate::timeline::TimeSpan;
use rolldrop_record::Stamp;
use rolldrop_record::event::Change;

/// Time for which a pod may be ready without listening if no readiness probe connects to it.
const MAY_START_NS: i64 = 300 * SECOND_NS;
/// Time around a restart or a loss of readiness in which a pod that is not terminating may accept no connections.
const UNWELL_NS: i64 = 60 * SECOND_NS;
/// Time within which all nodes route to a pod that has become ready.
const ROUTED_WITHIN_NS: i64 = 5 * SECOND_NS;

/// Time of a change, with the changes in the number of pods in some state and in the number of pods in a state that
/// rules the period out.
type PodChange = (Stamp, [i64; 2]);

/// Returns the periods in `within` in which at least one of these pods was ready, none was terminating, and none had
/// been terminating shortly before.
pub(super) fn well<'p>(pods: impl Iterator<Item = &'p PodHistory>, within: TimeSpan) -> Vec<TimeSpan> {
    let mut changes = Vec::new();
    for pod in pods {
        add_ready(pod, 0, &mut changes);
        if let Some(deleting) = pod.deleting {
            let gone = pod.gone.unwrap_or(within.until).shifted_ns(MARGIN_NS);
            changes.extend(while_it_lasts(deleting.shifted_ns(-MARGIN_NS), gone, [0, 1]));
        }
    }
    spans(changes, within)
}

/// Returns the periods in `within` in which only the termination of one of these pods explains why no connection was
/// accepted: another pod was ready, and all others had shown that they listen.
pub(super) fn refused_by_terminating<'p>(
    pods: impl Iterator<Item = &'p PodHistory>,
    within: TimeSpan,
) -> Vec<TimeSpan> {
    let mut changes = Vec::new();
    for pod in pods {
        add_ready(pod, ROUTED_WITHIN_NS, &mut changes);
        let was_listed =
            pod.events.first().is_some_and(|(_, first)| first.change == Change::Listed && first.ready);
        if let Some(ready) = pod.ready.filter(|_| !was_listed && !is_probed(pod)) {
            changes.extend(while_it_lasts(ready, ready.shifted_ns(MAY_START_NS), [0, 1]));
        }
        for at in unwell_times(pod) {
            changes.extend(while_it_lasts(at.shifted_ns(-UNWELL_NS), at.shifted_ns(UNWELL_NS), [0, 1]));
        }
    }
    spans(changes, within)
}

/// Adds the period in which a pod was ready and not being deleted. It begins `later_ns` after the pod became ready, or
/// immediately if a list already had the pod.
fn add_ready(pod: &PodHistory, later_ns: i64, changes: &mut Vec<PodChange>) {
    if let Some(ready) = pod.ready {
        let was_listed = pod.events.first().is_some_and(|(_, first)| first.change == Change::Listed);
        let from = if was_listed { ready } else { ready.shifted_ns(later_ns) };
        let until = pod.left().unwrap_or(Stamp::from_unix_ns(i64::MAX));
        changes.extend(while_it_lasts(from, until.max(from), [1, 0]));
    }
}

fn while_it_lasts(from: Stamp, until: Stamp, by: [i64; 2]) -> [PodChange; 2] {
    [(from, by), (until, by.map(|by| -by))]
}

/// Returns true if readiness probes connect to the pod, so that one has succeeded once the pod is ready.
fn is_probed(pod: &PodHistory) -> bool {
    let containers = || pod.events.iter().flat_map(|(_, event)| &event.containers);
    containers().any(|container| !container.sidecar && container.readiness_probe == Some(true))
}

/// Returns the times at which a pod that was not being deleted was shown as restarted, or as no longer ready.
fn unwell_times(pod: &PodHistory) -> impl Iterator<Item = Stamp> {
    let restarts = |number: usize| pod.events[number].1.containers.iter().map(|of| of.restarts).sum::<i32>();
    (1..pod.events.len()).filter_map(move |number| {
        let (at, event) = &pod.events[number];
        let is_unready = pod.events[number - 1].1.ready && !event.ready;
        let is_unwell = is_unready || restarts(number) > restarts(number - 1);
        (is_unwell && event.deletion_timestamp.is_none() && event.change != Change::Deleted).then_some(*at)
    })
}

/// Returns the periods in `within` in which the first number is above zero and the second is zero.
fn spans(mut changes: Vec<PodChange>, within: TimeSpan) -> Vec<TimeSpan> {
    changes.sort_unstable();
    let (mut spans, mut numbers, mut begun) = (Vec::new(), [0, 0], None);
    let mut end = |from: Stamp, until: Stamp| {
        let span = TimeSpan { from: from.max(within.from), until: until.min(within.until) };
        if span.from < span.until {
            spans.push(span);
        }
    };
    for (number, (at, by)) in changes.iter().enumerate() {
        numbers = [numbers[0] + by[0], numbers[1] + by[1]];
        if changes.get(number + 1).is_some_and(|(next, _)| next == at) {
            continue;
        }
        match (numbers[0] > 0 && numbers[1] == 0, begun) {
            (true, None) => begun = Some(*at),
            (false, Some(from)) => {
                begun = None;
                end(from, *at);
            }
            _ => {}
        }
    }
    if let Some(from) = begun {
        end(from, within.until);
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::super::tests::pod_event;
    use super::*;
    use rolldrop_record::event::PodEvent;

    fn at(s: i64) -> Stamp {
        Stamp::from_unix_ns(s * SECOND_NS)
    }

    /// Second at which an event shows the pod, and a function that changes the event.
    type ShownPod<'a> = (i64, &'a dyn Fn(&mut PodEvent));

    /// Returns a pod that was shown by these events.
    fn pod(shown: &[ShownPod<'_>]) -> PodHistory {
        let mut history = PodHistory::default();
        for (s, change) in shown {
            let mut event: PodEvent =
                serde_json::from_value(pod_event("a", "uid-a", "10.0.0.1", "applied")).unwrap();
            change(&mut event);
            history.observe(at(*s), &event);
        }
        history
    }

    fn seconds(spans: &[TimeSpan]) -> Vec<(i64, i64)> {
        let seconds = |at: Stamp| at.unix_ns() / SECOND_NS;
        spans.iter().map(|span| (seconds(span.from), seconds(span.until))).collect()
    }

    const ALL: TimeSpan =
        TimeSpan { from: Stamp::from_unix_ns(0), until: Stamp::from_unix_ns(600 * SECOND_NS) };

    fn is_listed(event: &mut PodEvent) {
        event.change = Change::Listed;
    }

    fn is_deleting(event: &mut PodEvent) {
        event.deletion_timestamp = Some(at(130));
    }

    fn is_gone(event: &mut PodEvent) {
        is_deleting(event);
        event.change = Change::Deleted;
    }

    #[test]
    fn service_is_healthy_while_no_pod_terminates() {
        let stays = pod(&[(20, &|_| {})]);
        let ends = pod(&[(0, &is_listed), (100, &is_deleting), (110, &is_gone)]);
        let well = |pods: &[&PodHistory]| seconds(&well(pods.iter().copied(), ALL));
        assert_eq!(well(&[&stays]), [(20, 600)]);
        assert_eq!(well(&[&stays, &ends]), [(0, 90), (120, 600)]);
        assert_eq!(well(&[&ends]), [(0, 90)], "then it has no pod");
        assert!(well(&[]).is_empty());
    }

    #[test]
    fn pods_not_known_to_listen_leave_refusals_ambiguous() {
        let ends = pod(&[(0, &is_listed), (100, &is_deleting), (110, &is_gone)]);
        let certain = |other: &PodHistory| seconds(&refused_by_terminating([&ends, other].into_iter(), ALL));
        let stays = pod(&[(0, &is_listed)]);
        assert_eq!(certain(&stays), [(0, 600)]);
        assert_eq!(certain(&pod(&[])), [(0, 100)], "without a ready pod, a Service refuses connections");
        assert_eq!(certain(&pod(&[(105, &|_| {})])), [(0, 100), (405, 600)]);
        let is_probed = |event: &mut PodEvent| event.containers[0].readiness_probe = Some(true);
        assert_eq!(certain(&pod(&[(105, &is_probed)])), [(0, 100), (110, 600)]);
        let has_restarted = |event: &mut PodEvent| event.containers[0].restarts = 1;
        assert_eq!(certain(&pod(&[(0, &is_listed), (200, &has_restarted)])), [(0, 140), (260, 600)]);
        let is_unready = |event: &mut PodEvent| event.ready = false;
        assert_eq!(certain(&pod(&[(0, &is_listed), (200, &is_unready)])), [(0, 140), (260, 600)]);
    }
}
