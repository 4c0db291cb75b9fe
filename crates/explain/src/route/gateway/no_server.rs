//! Finds periods in which a gateway had no server although pods were ready.
//!
//! Failing health checks remove a server from a gateway. A gateway with no server left does not dial: it answers each
//! request immediately with the same status until a check passes again. HAProxy in front of one NodePort does so as
//! soon as its checks reach dead pods through that port (`<NOSRV>` in its log). This accounts for 306 of the 377
//! requests lost in a recorded rollout of three pods, in one period of 1.5 s, while at least one of the three was
//! ready.
//!
//! Such a period contains no other response. If the gateway were still dialling pods, each dial would reach a dead one
//! with a probability of at most the share of dead pods it may know; the product over the period shows that it dialled
//! none. Pods count as ready only if the gateway has known them for some time, because a gateway that has not learned
//! of any new pod yet dials only dead ones.

use super::{LONGEST_PAUSE_NS, MAY_BE_RETRIED_NS, PASSED_OVER, TABLE_AGE_NS, is_gateways, sent};
use crate::timeline::drop_policy::OutcomeClass;
use crate::timeline::{PodLife, Request, Timeline};
use rolldrop_record::run_info::Target;
use rolldrop_record::{RequestRow, Stamp};

/// Time later than any time in a run.
const NEVER: Stamp = Stamp::from_unix_ns(i64::MAX);

/// Returns the status of a response that arrived so fast that the gateway cannot have waited for a pod.
fn refusal(row: &RequestRow) -> Option<u16> {
    let is_quick = row.end.ns_since(sent(row)) < MAY_BE_RETRIED_NS;
    row.status.filter(|_| {
        is_quick && row.pod.is_none() && is_gateways(row) && OutcomeClass::of(row) == OutcomeClass::Dropped
    })
}

/// The gateway's own quick responses, collected while its target's requests are read.
#[derive(Clone, Debug, Default)]
pub(super) struct Refusals {
    /// Send time and status of each quick response, in order.
    all: Vec<(Stamp, u16)>,
    /// For each quick response: true if a request with another outcome was sent since the previous one.
    interrupted: Vec<bool>,
}

impl Refusals {
    /// Collects the quick responses for one target from its requests that did not plainly succeed.
    pub(super) fn new<'a>(of_target: impl Iterator<Item = &'a Request> + Clone) -> Self {
        let is_own = |r: &&Request| r.served.is_none() && r.other_attempts.is_empty();
        let refused = of_target.clone().filter(is_own);
        let mut all: Vec<(Stamp, u16)> =
            refused.filter_map(|r| Some((sent(&r.row), refusal(&r.row)?))).collect();
        all.sort_unstable();
        let mut refusals = Self { interrupted: vec![false; all.len()], all };
        for r in of_target.filter(|r| is_gateways(&r.row) && !(is_own(r) && refusal(&r.row).is_some())) {
            refusals.interrupt(sent(&r.row));
        }
        refusals
    }

    /// Records that a request with another outcome was sent.
    pub(super) fn interrupt(&mut self, sent: Stamp) {
        if let Some(interrupted) = self.interrupted.get_mut(self.all.partition_point(|(at, _)| *at < sent)) {
            *interrupted = true;
        }
    }

    /// Adds the interruptions seen in later requests.
    pub(super) fn merge(&mut self, later: &Self) {
        self.interrupted.iter_mut().zip(&later.interrupted).for_each(|(own, later)| *own |= later);
    }

    /// Returns the periods in which the gateway had no server.
    pub(super) fn stretches(&self, pods: &[KnownPod]) -> Vec<(Stamp, Stamp)> {
        let mut stretches = Vec::new();
        let mut first = 0;
        for next in 1..=self.all.len() {
            let goes_on = self
                .all
                .get(next)
                .is_some_and(|(_, status)| *status == self.all[first].1 && !self.interrupted[next]);
            if goes_on {
                continue;
            }
            let stretch = &self.all[first..next];
            let (from, until) = (stretch[0].0, stretch[stretch.len() - 1].0);
            let dialled: f64 = stretch.iter().map(|(at, _)| dead_share(pods, *at).ln()).sum();
            // If all pods are healthy, the gateway has another reason for giving up.
            if dialled <= PASSED_OVER.ln() && pods.iter().any(|pod| pod.is_ending_near(from, until)) {
                stretches.push((from, until));
            }
            first = next;
        }
        stretches
    }
}

/// Pod that a gateway may know.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownPod {
    /// Time the pod was first ready.
    pub(super) ready: Stamp,
    /// Time from which the gateway certainly knows the pod.
    pub(super) known: Stamp,
    /// Time until which the pod answered its requests.
    pub(super) stops: Stamp,
    /// Time from which the gateway has certainly forgotten the pod.
    pub(super) forgotten: Stamp,
}

impl KnownPod {
    /// Returns the pods that may be behind a target.
    pub(super) fn of_target(timeline: &Timeline, target: &Target) -> Vec<Self> {
        let ended: Vec<&str> = timeline.ends.iter().map(|end| end.pod.as_str()).collect();
        let is_behind =
            |life: &&PodLife| timeline.endpoints.are_together(target.service.as_deref(), &life.name, &ended);
        timeline.pods.iter().filter(is_behind).filter_map(|life| Self::of(timeline, life)).collect()
    }

    fn of(timeline: &Timeline, life: &PodLife) -> Option<Self> {
        // The slices may have been listed before the pods.
        let ready = life.endpoint_ready.or(life.listed.then_some(life.created))?;
        let known = if life.listed { ready } else { ready.shifted_ns(TABLE_AGE_NS) };
        let end = timeline.ends.iter().find(|end| end.uid == life.uid);
        let gone = end.and_then(|end| end.gone().max(end.stages.endpoint_removed));
        Some(Self {
            ready,
            known,
            stops: end.map_or(NEVER, |end| end.may_stop_from()),
            forgotten: gone.map_or(NEVER, |at| at.shifted_ns(TABLE_AGE_NS)),
        })
    }

    fn is_ending_near(&self, from: Stamp, until: Stamp) -> bool {
        self.stops <= until && (self.stops >= from || from.ns_since(self.stops) <= LONGEST_PAUSE_NS)
    }
}

/// Returns the share of dead pods among those that a gateway may know at `at`, counting at least one as dead.
fn dead_share(pods: &[KnownPod], at: Stamp) -> f64 {
    let known: Vec<&KnownPod> = pods.iter().filter(|pod| pod.ready <= at && at < pod.forgotten).collect();
    let well = known.iter().filter(|pod| pod.known <= at && at < pod.stops).count();
    match known.len() {
        0 => 1.0,
        all => (all - well).max(1) as f64 / all.max(2) as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rolldrop_record::{Outcome, Phase};

    const MS: i64 = 1_000_000;

    fn at(ms: i64) -> Stamp {
        Stamp::from_unix_ns(ms * MS)
    }

    fn answer(ms: i64, status: u16, lasts_ms: i64) -> Request {
        let row =
            RequestRow::not_sent("load-0".into(), 0, "gate".into(), Phase::Main, at(ms), at(ms + lasts_ms));
        let outcome = if status < 400 { Outcome::Ok } else { Outcome::HttpError };
        Request::of(RequestRow { outcome, status: Some(status), sent: Some(at(ms)), ..row })
    }

    /// Returns three pods that existed from the start, two of which terminate one after the other, and one new pod.
    fn pods() -> Vec<KnownPod> {
        let pod = |ready: i64, known: i64, stops: i64, forgotten: i64| KnownPod {
            ready: at(ready),
            known: at(known),
            stops: at(stops),
            forgotten: at(forgotten),
        };
        let never = 1 << 40;
        vec![
            pod(0, 0, 10_000, 16_000),
            pod(0, 0, 12_000, 18_000),
            pod(0, 0, never, never),
            pod(11_500, 16_500, never, never),
        ]
    }

    /// Returns the periods found with a request every 10 ms. Requests in the periods `refused` are refused after
    /// `waits_ms`.
    fn stretches(pods: &[KnownPod], refused: &[[i64; 2]], waits_ms: i64) -> Vec<(Stamp, Stamp)> {
        let is_refused = |ms: &i64| refused.iter().any(|[from, until]| (from..until).contains(&ms));
        let all = (0..30_000).step_by(10);
        let others: Vec<Request> =
            all.clone().filter(is_refused).map(|ms| answer(ms, 503, waits_ms)).collect();
        let mut refusals = Refusals::new(others.iter());
        all.filter(|ms| !is_refused(ms)).for_each(|ms| refusals.interrupt(at(ms)));
        refusals.stretches(pods)
    }

    #[test]
    fn only_unbroken_refusals_form_stretch() {
        let from_to = |from, to| vec![(at(from), at(to))];
        assert_eq!(stretches(&pods(), &[[11_000, 13_000]], 1), from_to(11_000, 12_990));
        // Single refusals, or a few in a row, occur when it is the dead pod's turn.
        assert_eq!(stretches(&pods(), &[[11_000, 11_010], [11_030, 11_040], [11_060, 11_120]], 1), []);
        assert_eq!(stretches(&pods(), &[[11_000, 13_000]], 300), [], "a gateway that waits has dialled");
        assert_eq!(stretches(&pods(), &[[5_000, 7_000]], 1), [], "no pod was terminating");
    }

    #[test]
    fn refusals_without_healthy_pod_form_no_stretch() {
        let mut dying = pods();
        dying[2].stops = at(10_500);
        dying[1].stops = at(10_500);
        assert_eq!(stretches(&dying, &[[10_500, 13_500]], 1), []);
        // A period that began while a pod was healthy counts as one state until it ends.
        assert_eq!(stretches(&dying, &[[10_100, 13_500]], 1), [(at(10_100), at(13_490))]);
    }

    #[test]
    fn status_change_ends_stretch() {
        let mut others: Vec<Request> = (11_000..12_000).step_by(10).map(|ms| answer(ms, 503, 1)).collect();
        others.extend((12_000..13_000).step_by(10).map(|ms| answer(ms, 502, 1)));
        others.push(answer(11_505, 500, 1));
        let found = Refusals::new(others.iter()).stretches(&pods());
        assert_eq!(found, [(at(11_000), at(11_500)), (at(11_510), at(11_990)), (at(12_000), at(12_990))]);
    }
}
