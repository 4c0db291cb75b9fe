//! New connections to a target around terminations, by millisecond.
//!
//! Every connection routed elsewhere is evidence of whether a Service still routes to a pod. There are too many
//! connections to hold each one, and only those begun while a pod terminates, or soon after, matter.

use std::sync::Arc;

use crate::timeline::periods::Periods;
use crate::timeline::{TimeSpan, Timeline};
use rolldrop_record::{Outcome, Stamp};

const MS_NS: i64 = 1_000_000;
/// Minimum time after a pod is gone for which connections are kept.
const AFTER_NS: i64 = 10_000_000_000;
/// Connections are also kept for the time in which the load opens this many new connections per endpoint.
const AFTER_CONNECTIONS: f64 = 15.0;

/// Answered connections that began in one millisecond.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AnsweredConnections {
    /// Number answered by a named pod.
    pub named: u32,
    /// Number answered by an unnamed pod.
    pub unnamed: u32,
}

/// New connection that was not answered, or whose outcome is unknown.
#[derive(Clone, Debug)]
pub(crate) struct UnansweredConnection {
    /// Time the connection began.
    pub at: Stamp,
    /// Index among the requests that did not plainly succeed.
    pub request: usize,
    /// Pod that the connection was routed to, if known.
    pub pod: Option<Arc<str>>,
    /// Outcome of the connection.
    pub outcome: Outcome,
}

/// Event about new connections at one time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Try<'a> {
    /// Counts of answered connections.
    Answered(AnsweredConnections),
    /// Connection that was not answered.
    Lost(&'a UnansweredConnection),
}

#[derive(Clone, Debug)]
struct AnswerZone {
    from: Stamp,
    /// Length of the zone, in milliseconds.
    length: usize,
    /// Answered connections per millisecond. The list ends at the last one: if the pod was never seen to be gone, the
    /// zone lasts until the end of the run.
    answered: Vec<AnsweredConnections>,
}

impl AnswerZone {
    /// Creates the part of a zone that is inside a span. Its milliseconds are aligned with those of the whole zone.
    fn within(span: TimeSpan, from: Stamp, to: Stamp) -> Self {
        let before_ms = span.from.max(from).ns_since(from) / MS_NS;
        let from = from.shifted_ns(before_ms * MS_NS);
        let length = usize::try_from(to.min(span.until).ns_since(from) / MS_NS + 1).unwrap_or(0);
        Self { from, length, answered: Vec::new() }
    }

    fn at(&mut self, bin: usize) -> Option<&mut AnsweredConnections> {
        if bin >= self.length {
            return None;
        }
        if bin >= self.answered.len() {
            self.answered.resize(bin + 1, AnsweredConnections::default());
        }
        self.answered.get_mut(bin)
    }
}

/// New connections to one target.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tries {
    zones: Vec<AnswerZone>,
    /// Connections that were not answered, ordered by start time.
    pub losses: Vec<UnansweredConnection>,
    /// Number of all connections, and the start times of the first and the last.
    all: Option<(u64, Stamp, Stamp)>,
}

impl Tries {
    /// Creates an empty collection with room for the connections near the terminations.
    pub(crate) fn new(timeline: &Timeline) -> Self {
        let per_s = timeline.info.load.rate;
        let endpoints = timeline.endpoints.most(None).max(1) as f64;
        let after_ns = if per_s > 0.0 { AFTER_CONNECTIONS * endpoints / per_s * 1e9 } else { 0.0 };
        #[expect(clippy::cast_possible_truncation, reason = "a time of at most an hour, in nanoseconds")]
        let after_ns = (after_ns.min(3.6e12) as i64).max(AFTER_NS);
        let last = timeline.load_ended.shifted_ns(MS_NS);
        let near = |(from, gone): &(Stamp, Stamp)| (*from, gone.shifted_ns(after_ns).min(last));
        let near = Periods::of(timeline.endings.iter().map(near).filter(|(from, to)| to > from));
        let zones = near.iter().filter(|(from, to)| timeline.span.meets(*from, *to));
        let zone = |(from, to)| AnswerZone::within(timeline.span, from, to);
        Self { zones: zones.map(zone).collect(), losses: Vec::new(), all: None }
    }

    /// Adds a connection that was answered.
    pub(crate) fn answered(&mut self, at: Stamp, is_named: bool) {
        self.count(at);
        let Some(zone) = self.zones.partition_point(|zone| zone.from <= at).checked_sub(1) else { return };
        let zone = &mut self.zones[zone];
        let bin = usize::try_from(at.ns_since(zone.from) / MS_NS).unwrap_or(usize::MAX);
        if let Some(bin) = zone.at(bin) {
            *if is_named { &mut bin.named } else { &mut bin.unnamed } += 1;
        }
    }

    /// Adds a connection that was not answered.
    pub(crate) fn lost(&mut self, loss: UnansweredConnection) {
        self.count(loss.at);
        self.losses.push(loss);
    }

    /// Adds the answered connections from other rows.
    pub(crate) fn merge(&mut self, others: &Self) {
        for (own, others) in self.zones.iter_mut().zip(&others.zones) {
            own.answered
                .resize(own.answered.len().max(others.answered.len()), AnsweredConnections::default());
            for (own, other) in own.answered.iter_mut().zip(&others.answered) {
                own.named += other.named;
                own.unnamed += other.unnamed;
            }
        }
        let all = self.all.into_iter().chain(others.all);
        self.all = all.reduce(|a, b| (a.0 + b.0, a.1.min(b.1), a.2.max(b.2)));
    }

    /// Counts a connection without keeping it.
    pub(super) fn count(&mut self, at: Stamp) {
        let (n, first, last) = self.all.unwrap_or((0, at, at));
        self.all = Some((n + 1, first.min(at), last.max(at)));
    }

    /// Returns the rate of new connections per second over the whole run; 0 for fewer than two.
    pub(crate) fn rate(&self) -> f64 {
        match self.all {
            Some((n, first, last)) if last > first => (n - 1) as f64 / last.seconds_since(first),
            _ => 0.0,
        }
    }

    /// Sorts the losses, once all have been added.
    pub(crate) fn sort(&mut self) {
        self.losses.sort_by_key(|loss| (loss.at, loss.request));
    }

    /// Returns true if the pods of some lost connections are known.
    pub(crate) fn names_losses(&self) -> bool {
        self.losses.iter().any(|loss| loss.pod.is_some())
    }

    /// Returns the index of the first loss at or after `from`.
    pub(crate) fn first_loss(&self, from: Stamp) -> usize {
        self.losses.partition_point(|loss| loss.at < from)
    }

    /// Returns all events from `from` on, in order. Within one millisecond, losses come first.
    pub(crate) fn since(&self, from: Stamp) -> impl Iterator<Item = (Stamp, Try<'_>)> {
        let zones = &self.zones[self.zones.partition_point(|zone| zone.from <= from).saturating_sub(1)..];
        let bins = zones.iter().flat_map(move |zone| {
            let first = usize::try_from(from.ns_since(zone.from).max(0) / MS_NS).unwrap_or(0);
            let bins = zone.answered.iter().enumerate().skip(first);
            let bins = bins.filter(|(_, answered)| answered.named + answered.unnamed > 0);
            bins.map(move |(bin, answered)| {
                let ms = i64::try_from(bin).unwrap_or(i64::MAX / MS_NS);
                (zone.from.shifted_ns(ms * MS_NS).max(from), *answered)
            })
        });
        let first = self.first_loss(from);
        let mut losses = self.losses[first..].iter().peekable();
        let mut bins = bins.peekable();
        std::iter::from_fn(move || {
            let is_loss_next = match (losses.peek(), bins.peek()) {
                (Some(loss), Some((at, _))) => loss.at < at.shifted_ns(MS_NS),
                (loss, _) => loss.is_some(),
            };
            if is_loss_next {
                let loss = losses.next()?;
                Some((loss.at, Try::Lost(loss)))
            } else {
                let (at, answered) = bins.next()?;
                Some((at, Try::Answered(answered)))
            }
        })
    }
}
