//! Observations that follow from individual requests, collected while they are read.

use crate::route::arrivals::{ArrivalTail, PodArrivals, arrives};
use crate::route::tries::Tries;
use crate::timeline::by_name::ValuesByName;
use crate::timeline::{Lives, Request, Timeline};
use rolldrop_record::run_info::Balances;
use rolldrop_record::{Outcome, Stamp};

/// Totals of the observations.
#[derive(Debug)]
pub(crate) struct ObservedTotals<'a> {
    /// Named arrivals at the pod, by termination, then by target.
    pub(super) tails: Vec<Vec<ArrivalTail>>,
    /// Named arrivals before t0, by termination, then by target.
    pub(super) before: Vec<Vec<PodArrivals>>,
    /// New connections, by target.
    pub(super) tries: Vec<Tries>,
    /// Send time of the first request that each pod answered successfully.
    pub(super) first_served: Vec<Option<Stamp>>,
    /// Time of the last attempted request, and uncertainty of the clients' clocks, by target.
    pub(super) until: Vec<(Option<Stamp>, i64)>,
    met: ValuesByName<Lives<'a>>,
}

impl<'a> ObservedTotals<'a> {
    /// Creates empty totals.
    pub(crate) fn new(timeline: &Timeline) -> Self {
        let (ends, targets) = (timeline.ends.len(), timeline.info.targets.len());
        Self {
            tails: vec![vec![ArrivalTail::default(); targets]; ends],
            before: vec![vec![PodArrivals::default(); targets]; ends],
            tries: vec![Tries::new(timeline); targets],
            first_served: vec![None; timeline.pods.len()],
            until: vec![(None, 0); targets],
            met: ValuesByName::default(),
        }
    }

    /// Adds a request that is not held, because it plainly succeeded or is outside the span.
    pub(crate) fn unheld(&mut self, timeline: &'a Timeline, r: &Request) {
        let target = timeline.target_of(&r.row);
        self.add(timeline, target, r);
        let Some(target) = target.filter(|_| r.is_new_connection()) else { return };
        match r.row.outcome {
            Outcome::NotSent => {}
            Outcome::Ok | Outcome::HttpError => self.tries[target].answered(r.begun(), r.pod().is_some()),
            _ => self.tries[target].count(r.begun()),
        }
    }

    /// Adds the arrival of any request to the target with this index, if the run has its target.
    pub(super) fn add(&mut self, timeline: &'a Timeline, target: Option<usize>, r: &Request) {
        let lives = r.pod().map(|pod| *self.met.get(pod, || timeline.lives_of(pod)));
        if r.row.outcome == Outcome::Ok
            && let Some(life) = lives.and_then(|lives| lives.number_at(r.begun()))
        {
            let first = &mut self.first_served[life];
            *first = Some(first.map_or(r.begun(), |first| first.min(r.begun())));
        }
        let Some(target) = target else { return };
        let balances = timeline.info.targets[target].balances;
        if r.row.outcome == Outcome::NotSent || !arrives(r, balances) {
            return;
        }
        let (until, uncertainty_ns) = &mut self.until[target];
        *until = (*until).max(Some(r.begun()));
        *uncertainty_ns = r.uncertainty_ns.max(*uncertainty_ns);
        let Some(end) = lives.and_then(|lives| lives.end_at(r.begun())) else { return };
        let t0 = timeline.ends[end].t0;
        if r.begun() < t0.earliest {
            self.before[end][target].add(r.begun());
        }
        let tail = &mut self.tails[end][target];
        tail.arrival(r.begun(), t0.latest, r.named().is_none());
        if balances == Balances::Connections && matches!(r.row.outcome, Outcome::Ok | Outcome::HttpError) {
            tail.last_accepted = tail.last_accepted.max(Some(r.begun().shifted_ns(-r.uncertainty_ns)));
        }
    }

    /// Adds the observations from later requests.
    pub(crate) fn merge(&mut self, later: Self) {
        for (own, later) in self.tails.iter_mut().flatten().zip(later.tails.iter().flatten()) {
            own.merge(later);
        }
        for (own, later) in self.before.iter_mut().flatten().zip(later.before.iter().flatten()) {
            own.merge(later);
        }
        for (own, later) in self.tries.iter_mut().zip(&later.tries) {
            own.merge(later);
        }
        for (own, later) in self.first_served.iter_mut().zip(later.first_served) {
            *own = own.iter().copied().chain(later).min();
        }
        for ((until, uncertainty_ns), later) in self.until.iter_mut().zip(later.until) {
            (*until, *uncertainty_ns) = ((*until).max(later.0), later.1.max(*uncertainty_ns));
        }
    }
}
