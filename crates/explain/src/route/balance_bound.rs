//! Detects whether a Service still routed to a terminated pod, from the outcomes of the connections it routed.
//!
//! A Service proxy that balances at random sends a new connection to a given endpoint with probability 1/n, where n is
//! the number of endpoints in its rules. Its rules always correspond to an earlier state of the EndpointSlices, and it
//! applies these states in order. So while the rules still list pod A, they also list every pod that the slices dropped
//! later, and the failure probability of a new connection is at least the share of pods known to be dead. Answered
//! connections are evidence against this.
//!
//! The evidence is a likelihood ratio, which compares the pod's presence in the rules until now with its removal at the
//! best-fitting earlier time. It is summed over connections and reset at 0 (Page's CUSUM). While the pod is still in
//! the rules, the sum exceeds ln(1/α) with probability at most α: backwards from the true time it is a martingale
//! (Ville's inequality). So the last time at which the sum is below ln(1/α) bounds the window from above at confidence
//! 1 − α.
//!
//! Any connection may make the evidence wrongly show that the pod is out, and a long window has many connections. So
//! the search continues past the limit, because losses that nothing else explains reduce the evidence again. The search
//! stops when the evidence, after n connections, is 2 ln(n + 1) above its limit, as Σ 1/(n + 1)² is below 1.
//!
//! For one dead pod this reduces to the simple rule that k consecutive answered connections leave probability (1 −
//! 1/n)^k. The method assumes random balancing, which [`rolldrop_record::run_info`] must state.

use crate::route::death::Death;
use crate::route::tries::{AnsweredConnections, Tries, Try};
use crate::timeline::PodEnd;
use crate::timeline::endpoint_history::UsableEndpoints;
use rolldrop_record::{Outcome, Stamp};

/// Evidence beyond which a pod counts as removed from the rules (e⁻⁹·² is 10⁻⁴). This is stricter than the bounds
/// themselves, because a loss that is not attributed to the pod that caused it is missing from the pod's count.
const OUT: f64 = 9.2;
/// Maximum age of the rules' state at t0, in nanoseconds. Older states would matter only through the number of
/// endpoints, if pods were replaced shortly before t0.
const OLDEST_NS: i64 = 3_000_000_000;
/// Upper limit for the share of failing connections. Even if every endpoint in the rules is dead, some connections may
/// be answered, because the rules may have just been replaced, or the watch may show a pod late.
const SURE: f64 = 0.95;
/// Share of the losses that only this pod would explain, but that have another cause.
const STRAY: f64 = 1.0 / 50.0;
/// Share of cases in which a pod may be silent while its address should exist, or may refuse connections when its
/// address should be gone, because networks differ.
const UNEXPECTED: f64 = 0.2;
/// Share of lost connections without a named pod, if others are named.
const UNNAMED: f64 = 0.05;
const MS_NS: i64 = 1_000_000;

/// History of one pod in a Service's slices.
#[derive(Debug)]
pub(super) struct SliceHistory<'a> {
    /// States that the rules can be in while they list the pod.
    holding: Vec<&'a UsableEndpoints>,
    /// State after the last one that lists the pod.
    after: Option<&'a UsableEndpoints>,
    /// True if the slices dropped the pod for good, without ever adding it back.
    is_dropped_once: bool,
}

impl<'a> SliceHistory<'a> {
    /// Derives the history from the slices' states; `None` if the pod was never seen as a usable endpoint.
    pub(super) fn of(end: &PodEnd, states: &'a [UsableEndpoints]) -> Option<Self> {
        // Another pod may reuse the name.
        let gone = end.gone().unwrap_or(Stamp::from_unix_ns(i64::MAX));
        let own = &states[..states.partition_point(|state| state.from <= gone)];
        let last = own.iter().rposition(|state| state.holds(&end.pod))?;
        let from = end.t0.earliest.shifted_ns(-OLDEST_NS);
        let first = own.partition_point(|state| state.from <= from).saturating_sub(1).min(last);
        let span = &own[first..=last];
        let since = span.iter().rposition(|state| !state.holds(&end.pod)).map_or(0, |gap| gap + 1);
        // A pod that was only briefly dropped, and added again before its termination, does not count as dropped.
        let was_dropped =
            span[..since].iter().any(|state| state.from >= end.t0.earliest && !state.holds(&end.pod));
        Some(Self {
            holding: span.iter().filter(|state| state.holds(&end.pod)).collect(),
            after: states.get(last + 1),
            is_dropped_once: !was_dropped,
        })
    }

    /// Returns the largest possible number of endpoints in the rules while they listed the pod.
    fn most(&self) -> usize {
        self.holding.iter().map(|state| state.pods.len()).max().unwrap_or(1)
    }

    /// Returns the shares of connections that fail at `at`, both while the rules list the dead pod and after they
    /// dropped it.
    fn shares<'d>(
        &self,
        end: (&str, &'d Death),
        at: Stamp,
        dead: &impl Fn(&str, Stamp) -> Option<&'d Death>,
    ) -> Shares {
        let (pod, own) = end;
        let fail = |state: &UsableEndpoints, holds: bool| {
            let death = |other: &String| if holds && *other == pod { Some(own) } else { dead(other, at) };
            let each = 1.0 / state.pods.len().max(1) as f64;
            let deaths = state.pods.iter().filter_map(death);
            deaths.fold([0.0; 3], |[all, refused, silent], death| {
                let fits = |outcome| each * death.fits(outcome, at).max(UNEXPECTED);
                [all + each, refused + fits(Outcome::ConnectRefused), silent + fits(Outcome::ConnectTimeout)]
            })
        };
        let held = self.holding.iter().map(|state| fail(state, true));
        let least = held.clone().map(|[all, ..]| all).fold(SURE, f64::min);
        let most =
            held.fold([0.0; 3], |most, share| std::array::from_fn(|class| share[class].max(most[class])));
        let [all, classes @ ..] = self.after.map_or([0.0; 3], |state| fail(state, false));
        let freed = all.min(0.9 * least).max(STRAY * least);
        let of_class =
            |share: f64| if all > 0.0 { freed * share / (classes[0] + classes[1]) } else { freed / 2.0 };
        Shares {
            least,
            most,
            freed,
            freed_by_class: classes.map(of_class),
            own: 1.0 / self.most().max(1) as f64,
        }
    }
}

/// Shares of new connections that fail: in total, refused, and unanswered.
#[derive(Clone, Copy, Debug)]
struct Shares {
    /// Smallest and largest share while the rules list the pod, including the pod itself.
    least: f64,
    most: [f64; 3],
    /// Shares while the rules do not list the pod, in total and by class.
    freed: f64,
    freed_by_class: [f64; 2],
    /// Share of the pod itself.
    own: f64,
}

impl Shares {
    /// Returns the evidence that an answered connection provides against the pod being in the rules.
    fn answered(self) -> f64 {
        ((1.0 - self.freed) / (1.0 - self.least)).ln()
    }

    /// Returns the evidence given by a lost connection without a named pod. A dead pod refuses connections while its
    /// address exists, and is silent afterwards.
    fn lost(self, outcome: Outcome, part: f64) -> f64 {
        let (held, freed) = match outcome {
            Outcome::ConnectRefused => (self.most[1], self.freed_by_class[0]),
            Outcome::ConnectTimeout | Outcome::ConnectUnreachable => (self.most[2], self.freed_by_class[1]),
            _ => (self.most[0], self.freed),
        };
        (part * freed / held.max(f64::MIN_POSITIVE)).ln()
    }

    /// Returns the evidence given by a connection lost to another dead pod. It is negative if the rules dropped that
    /// pod together with this one.
    fn lost_to_another(self) -> f64 {
        let others = (self.most[0] - self.own).max(f64::MIN_POSITIVE);
        ((1.0 - UNNAMED) * self.freed / others).ln()
    }
}

/// Period in which connections may have been routed to a pod.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    /// Time from which no new connection was routed to the pod.
    pub until: Option<Stamp>,
    /// Time after which the pod was not in the rules, with probability 1 − α; `None` if the connections do not show it.
    pub upper: Option<Stamp>,
    /// Time at which the slices dropped the pod, if they did.
    pub dropped: Option<Stamp>,
    /// True if the slices dropped the pod for good, so the rules listed it until they applied that change.
    pub is_in_order: bool,
    /// Index of the first loss considered; `against` holds the evidence against the pod at each loss from there.
    first: usize,
    against: Vec<f64>,
}

impl Reach {
    /// Returns the pod's weight as an explanation of a loss: the likelihood that it was still in the rules relative to
    /// having been removed.
    pub(crate) fn weight(&self, loss: usize) -> f64 {
        match loss.checked_sub(self.first) {
            Some(number) => self.against.get(number).map_or(0.0, |against| (-against).exp()),
            None => 1.0,
        }
    }
}

/// Evaluates the connections from `from` on, which is t0 or the last connection that was certainly routed to the pod.
///
/// `dead` returns a pod's death if the pod certainly accepts no connections at that time. `may_be_another` returns true
/// if another pod may have lost a connection begun then.
pub(super) fn reach<'d>(
    end: (&PodEnd, &'d Death),
    route: &SliceHistory<'_>,
    tries: &Tries,
    from: Stamp,
    alpha: f64,
    dead: &impl Fn(&str, Stamp) -> Option<&'d Death>,
    may_be_another: impl Fn(Stamp) -> bool,
) -> Reach {
    let (end, death) = end;
    let bound = (1.0 / alpha).ln();
    // Weight of a connection routed elsewhere while the pod is alive.
    let elsewhere = elsewhere(route.most());
    let unnamed_part = if tries.names_losses() { UNNAMED } else { 1.0 };
    let first = tries.first_loss(from);
    let mut reach = Reach {
        until: None,
        upper: None,
        dropped: route.after.map(|state| state.from),
        is_in_order: route.is_dropped_once,
        first,
        against: Vec::new(),
    };
    let mut against = 0.0f64;
    let mut connections = 0;
    let mut below = true;
    let mut shares: Option<(Stamp, Shares)> = None;
    for (at, what) in tries.since(from) {
        if below {
            // Connections are counted per millisecond, and may have begun at its end.
            reach.upper = Some(at.shifted_ns(MS_NS));
        }
        let is_sure = death.is_sure(at);
        let shares = match shares {
            // The set of dead pods changes slowly.
            Some((since, known)) if at.ns_since(since) < 5_000_000 => known,
            _ => {
                let known = route.shares((&end.pod, death), at, dead);
                shares = Some((at, known));
                known
            }
        };
        match what {
            Try::Answered(AnsweredConnections { named, unnamed }) => {
                connections += named + unnamed;
                let answered = if is_sure { shares.answered() } else { 0.0 };
                against += f64::from(named) * answered.max(elsewhere) + f64::from(unnamed) * answered;
            }
            Try::Lost(loss) => {
                connections += 1;
                reach.against.push(against);
                let says = match &loss.pod {
                    Some(pod) if **pod == *end.pod => f64::NEG_INFINITY,
                    Some(_) if reach.until.is_some() => 0.0,
                    None if reach.until.is_some() && may_be_another(at) => 0.0,
                    Some(pod) if is_sure && dead(pod, at).is_some() => {
                        shares.lost_to_another().min(elsewhere)
                    }
                    Some(_) => elsewhere,
                    None if at < death.earliest => 0.0,
                    None => shares.lost(loss.outcome, unnamed_part),
                };
                against = (against + says).max(0.0);
            }
        }
        below = against < bound;
        if below {
            reach.until = None;
        } else if against >= OUT.max(bound) {
            reach.until.get_or_insert(at);
        }
        if against >= surely_out(connections).max(bound) {
            break;
        }
    }
    if below {
        reach.upper = None;
    }
    reach
}

/// Returns the evidence beyond which, after this many connections, no later one can show that a pod was still in the
/// rules.
fn surely_out(connections: u32) -> f64 {
    2.0 * f64::from(connections).ln_1p() + OUT
}

/// Returns the evidence that a connection routed elsewhere provides against one of `n` endpoints being in the rules.
fn elsewhere(n: usize) -> f64 {
    -(1.0 - 1.0 / n.max(1) as f64).max(1.0 - SURE).ln()
}

/// Returns the time by which enough consecutive connections since `from` were answered to show that none of `n` pods
/// still refused them.
pub(crate) fn quiet_since(tries: &Tries, from: Stamp, n: usize) -> Option<Stamp> {
    let each = elsewhere(n);
    let mut against = 0.0;
    for (at, what) in tries.since(from) {
        match what {
            Try::Answered(AnsweredConnections { named, unnamed }) => {
                against += each * f64::from(named + unnamed)
            }
            Try::Lost(..) => against = 0.0,
        }
        if against >= OUT {
            return Some(at);
        }
    }
    None
}
