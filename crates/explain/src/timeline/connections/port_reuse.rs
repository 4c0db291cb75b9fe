//! Source port reuse. An earlier connection from the same port to the same address may have left a connection-tracking
//! entry that routes the next connection.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use foldhash::{HashMap, HashSet};

use crate::timeline::Request;
use crate::timeline::by_name::ValuesByRun;
use rolldrop_record::{Outcome, RequestRow, Stamp};

/// Lifetime of a connection-tracking entry after an unanswered SYN: Linux's `nf_conntrack_tcp_timeout_syn_sent`.
const STALE_FOR_NS: i64 = 120_000_000_000;
/// Lifetime of a connection-tracking entry after the peer reset the connection: `nf_conntrack_tcp_timeout_close`.
const RESET_FOR_NS: i64 = 10_000_000_000;

/// Load source, source port and destination address.
type FlowKey<'a> = (&'a Arc<str>, u16, &'a Arc<str>);

/// Returns the flow of a request that opened a connection.
fn flow(r: &Request) -> Option<FlowKey<'_>> {
    let RequestRow { source, local_port, remote_addr, .. } = &r.row;
    let flow = (source, (*local_port)?, remote_addr.as_ref()?);
    r.is_new_connection().then_some(flow)
}

/// Connection attempts of requests that did not plainly succeed.
#[derive(Debug)]
pub(crate) struct FlowAttempts<'a> {
    others: &'a [Request],
    /// Indices of the connection attempts in `others`, grouped by flow and in order.
    connects: Vec<usize>,
    /// Range of a port's connects, by load source and source port.
    ports: HashMap<&'a str, HashMap<u16, Range<usize>>>,
}

/// Requests whose connects were followed by an established connection before the flow's next connect in
/// [`FlowAttempts`].
#[derive(Clone, Debug, Default)]
pub(crate) struct EndedFlows(HashSet<usize>);

impl EndedFlows {
    pub(crate) fn merge(&mut self, others: Self) {
        self.0.extend(others.0);
    }
}

fn order(r: &Request) -> (Stamp, Stamp, u64) {
    (r.begun(), r.row.scheduled, r.row.seq)
}

impl<'a> FlowAttempts<'a> {
    /// Collects the connects of all requests that did not plainly succeed.
    pub(crate) fn of(others: &'a [Request]) -> Self {
        let mut connects: Vec<usize> = (0..others.len()).filter(|r| flow(&others[*r]).is_some()).collect();
        let key = |number: &usize| (flow(&others[*number]), order(&others[*number]));
        connects.sort_unstable_by(|a, b| key(a).cmp(&key(b)));
        let mut ports: HashMap<&str, HashMap<u16, Range<usize>>> = HashMap::default();
        for (place, number) in connects.iter().enumerate() {
            let Some((source, port, _)) = flow(&others[*number]) else { continue };
            let of_port = ports.entry(source).or_default().entry(port).or_insert(place..place);
            of_port.end = place + 1;
        }
        Self { others, connects, ports }
    }

    /// Returns true if some request would be [stale](Self::stale) without any established connection; only then do the
    /// established connections matter.
    pub(crate) fn may_be_stale(&self) -> bool {
        self.stale(&EndedFlows::default()).contains(&true)
    }

    /// Records an established connection: once closed, it leaves an entry of its own.
    pub(crate) fn answered(&self, r: &Request, ended: &mut EndedFlows) {
        let Some(flow_of_r) = flow(r) else { return };
        let of_port = self.of_port(flow_of_r);
        let is_before = |number: &usize| {
            let other = &self.others[*number];
            (flow(other), order(other)) < (Some(flow_of_r), order(r))
        };
        let last = of_port.partition_point(is_before).checked_sub(1).map(|last| of_port[last]);
        ended.0.extend(last.filter(|last| flow(&self.others[*last]) == Some(flow_of_r)));
    }

    fn of_port(&self, (source, port, _): FlowKey<'_>) -> &[usize] {
        let range = self.ports.get(&**source).and_then(|ports| ports.get(&port));
        range.map_or(&[], |range| &self.connects[range.clone()])
    }

    /// Finds the requests misrouted by a connection-tracking entry: failed connects that reuse the source port of an
    /// earlier unanswered or reset connect to the same address while its entry still exists.
    pub(crate) fn stale(&self, ended: &EndedFlows) -> Vec<bool> {
        let mut stale = vec![false; self.others.len()];
        let is_one_flow = |a: &usize, b: &usize| flow(&self.others[*a]) == flow(&self.others[*b]);
        for connects in self.connects.chunk_by(is_one_flow) {
            let mut entry_until: Option<Stamp> = None;
            for number in connects {
                let r = &self.others[*number];
                let entry_stands = entry_until.is_some_and(|until| r.begun() <= until);
                entry_until = match r.row.outcome {
                    // The SYN, or its retransmission, renews the entry. An unreachable host does not answer a SYN
                    // either.
                    Outcome::ConnectTimeout | Outcome::ConnectUnreachable => {
                        stale[*number] = entry_stands;
                        Some(r.row.end.shifted_ns(STALE_FOR_NS))
                    }
                    // A refusal removes the entry.
                    Outcome::ConnectRefused => {
                        stale[*number] = entry_stands;
                        None
                    }
                    // A reset by the peer leaves the entry of an established connection.
                    Outcome::ResetBeforeResponse | Outcome::ResetMidResponse => {
                        Some(r.row.end.shifted_ns(RESET_FOR_NS))
                    }
                    Outcome::StreamCut if r.row.errno.is_some() => Some(r.row.end.shifted_ns(RESET_FOR_NS)),
                    _ => None,
                };
                entry_until = entry_until.filter(|_| !ended.0.contains(number));
            }
        }
        stale
    }
}

/// Start and end of a period in which connects used a port, in Unix nanoseconds. Consecutive connects in it are at most
/// [`STALE_FOR_NS`] apart.
type Period = [i64; 2];

/// Marker for no period; nothing connected at the beginning of 1970.
const NONE: Period = [0; 2];

/// Periods of all ports, from one source to one address. Two periods of the same port are more than [`STALE_FOR_NS`]
/// apart.
#[derive(Debug)]
struct PortPeriods {
    /// Last period of each port. They begin as zeros so that the kernel allocates their memory only when they change.
    last: Vec<Period>,
    /// End of each earlier period, by port and start.
    others: BTreeMap<(u16, i64), i64>,
}

impl Default for PortPeriods {
    fn default() -> Self {
        Self { last: vec![NONE; 1 << u16::BITS], others: BTreeMap::new() }
    }
}

impl PortPeriods {
    /// Adds a period of a port.
    fn add(&mut self, port: u16, period: Period) {
        let last = &mut self.last[usize::from(port)];
        if *last == NONE {
            *last = period;
        } else if period[0] < last[0] {
            self.add_out_of_order(port, period);
        } else if !extends(last, period) {
            self.others.insert((port, last[0]), last[1]);
            *last = period;
        }
    }

    /// Adds a period that began before its port's last period.
    fn add_out_of_order(&mut self, port: u16, period: Period) {
        let of_port = self.others.range((port, i64::MIN)..=(port, i64::MAX));
        let mut all: Vec<Period> = of_port.map(|((_, from), until)| [*from, *until]).collect();
        all.extend([self.last[usize::from(port)], period]);
        all.sort_unstable();
        self.others.retain(|(of, _), _| *of != port);
        self.last[usize::from(port)] = NONE;
        all.into_iter().for_each(|period| self.add(port, period));
    }

    fn all(&self) -> impl Iterator<Item = (u16, Period)> {
        let last = (0..=u16::MAX).zip(&self.last).filter(|(_, period)| **period != NONE);
        let others = self.others.iter().map(|((port, from), until)| (*port, [*from, *until]));
        others.chain(last.map(|(port, period)| (port, *period)))
    }
}

/// Merges a period into the earlier one if it begins soon enough after it. Returns true if it did.
fn extends(earlier: &mut Period, later: Period) -> bool {
    let is_near = later[0].saturating_sub(earlier[1]) <= STALE_FOR_NS;
    if is_near {
        earlier[1] = earlier[1].max(later[1]);
    }
    is_near
}

/// Connects that reused a source port to the same address so soon that the previous connect's entry could still exist.
#[derive(Debug, Default)]
pub(crate) struct Reuses {
    connects: u64,
    /// Periods by load source and address. The first connect in each period is not a reuse.
    periods: ValuesByRun<ValuesByRun<PortPeriods>>,
}

impl Reuses {
    /// Adds a request.
    pub(crate) fn add(&mut self, r: &Request) {
        let Some((source, port, to)) = flow(r) else { return };
        self.connects += 1;
        let at = r.begun().unix_ns();
        self.periods.get(source).get(to).add(port, [at, at]);
    }

    /// Adds the reuses found in other rows.
    pub(crate) fn merge(&mut self, others: Self) {
        self.connects += others.connects;
        for (source, by_address) in others.periods {
            for (to, periods) in by_address {
                let own = self.periods.get(&source).get(&to);
                periods.all().for_each(|(port, period)| own.add(port, period));
            }
        }
    }

    /// Returns the number of reuses.
    pub(crate) fn count(&self) -> u64 {
        let periods = self.periods.iter().flat_map(|(_, of)| of.iter());
        self.connects - periods.map(|(_, periods)| periods.all().count() as u64).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::timeline::requests::is_plain;
    use rolldrop_record::Phase;

    /// Returns a connect at this second from a port to a fixed address.
    fn connect(seq: u64, second: i64, port: u16, outcome: Outcome) -> Request {
        let at = Stamp::from_unix_ns(second * 1_000_000_000);
        let row = RequestRow {
            connect_start: Some(at),
            outcome,
            local_port: Some(port),
            remote_addr: Some("10.0.0.9:80".into()),
            ..RequestRow::not_sent("load-0".into(), seq, "web".into(), Phase::Main, at, at)
        };
        Request::of(row)
    }

    /// Compares each connect with the previous one from the same port.
    fn one_by_one(requests: &[Request]) -> (Vec<bool>, u64) {
        let mut before: HashMap<u16, (Stamp, Option<Stamp>)> = HashMap::default();
        let (mut stale, mut reuses) = (Vec::new(), 0);
        for r in requests {
            let port = r.row.local_port.unwrap();
            let last = before.get(&port).copied();
            reuses += u64::from(last.is_some_and(|(at, _)| r.begun().ns_since(at) <= STALE_FOR_NS));
            let stands = last.and_then(|(_, until)| until).is_some_and(|until| r.begun() <= until);
            let (may_be_stale, entry_ns) = match r.row.outcome {
                Outcome::ConnectTimeout => (true, Some(STALE_FOR_NS)),
                Outcome::ConnectRefused => (true, None),
                Outcome::ResetBeforeResponse => (false, Some(RESET_FOR_NS)),
                _ => (false, None),
            };
            stale.push(may_be_stale && stands);
            before.insert(port, (r.begun(), entry_ns.map(|ns| r.row.end.shifted_ns(ns))));
        }
        (stale, reuses)
    }

    proptest! {
        #[test]
        fn shuffled_flows_match_sequential_replay(
            drawn in prop::collection::vec((0_i64..80, 0_u16..3, 0_usize..5), 0..40),
            shuffled in any::<prop::sample::Index>(),
            cut in any::<prop::sample::Index>(),
        ) {
            let outcomes = [
                Outcome::Ok,
                Outcome::ConnectTimeout,
                Outcome::ConnectRefused,
                Outcome::ResetBeforeResponse,
                Outcome::ProtocolError,
            ];
            let mut at = 1;
            let requests: Vec<Request> = (0..)
                .zip(&drawn)
                .map(|(seq, (gap, port, outcome))| {
                    at += gap;
                    connect(seq, at, *port, outcomes[*outcome])
                })
                .collect();
            let (stale, reuses) = one_by_one(&requests);
            let mut mixed: Vec<&Request> = requests.iter().collect();
            if !mixed.is_empty() {
                mixed.rotate_left(shuffled.index(requests.len()));
                mixed.sort_by_key(|r| r.row.seq % 3);
            }
            let (mut counted, mut later) = (Reuses::default(), Reuses::default());
            let (first, rest) = mixed.split_at(cut.index(mixed.len() + 1));
            first.iter().for_each(|r| counted.add(r));
            rest.iter().for_each(|r| later.add(r));
            counted.merge(later);
            prop_assert_eq!(counted.count(), reuses);

            let others: Vec<Request> = requests.iter().filter(|r| !is_plain(&r.row)).cloned().collect();
            let (flows, mut ended) = (FlowAttempts::of(&others), EndedFlows::default());
            mixed.iter().filter(|r| is_plain(&r.row)).for_each(|r| flows.answered(r, &mut ended));
            let of_others = requests.iter().zip(stale).filter(|(r, _)| !is_plain(&r.row));
            let expected: Vec<bool> = of_others.map(|(_, stale)| stale).collect();
            prop_assert_eq!(flows.stale(&ended), expected);
        }
    }
}
