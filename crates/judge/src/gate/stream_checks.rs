//! Checks on streams that ended incomplete.

use super::known::Keyed;
use super::request_checks::{CheckedRequests, amount};
use crate::judgements::basis::{Basis, Measured};
use crate::judgements::gate_check::Check;
use rolldrop_explain::model::{LossGroup, StreamResult, Unit};
use rolldrop_record::Outcome;
use rolldrop_record::expect::StreamLimits;

/// Checks the numbers of incomplete streams and their shares of all streams, and the events that these streams had
/// delivered.
pub(super) fn checks(
    requests: &CheckedRequests<'_>,
    streams: Option<&StreamResult>,
    limits: &StreamLimits,
) -> Vec<Check> {
    let mut checks = Vec::new();
    for (key, outcome, bounds) in limits.outcomes() {
        let of_group = |group: &LossGroup| group.by_outcome.get(&outcome).copied().unwrap_or(0);
        let share = |limit: f64| match sent(streams) {
            Some(sent) => requests.share(ended(sent, outcome), sent.total, of_group, limit),
            None => Measured::unknown(Unit::Share, Basis::NoStream),
        };
        checks.extend(amount(key, bounds, &number(streams, |sent| ended(sent, outcome)), share));
    }
    if let Some(bounds) = limits.events_lost {
        checks.extend(events_lost(streams).within(StreamLimits::EVENTS_LOST, bounds.map(|n| n as f64)));
    }
    checks
}

/// Returns the figures that can be compared with a baseline.
pub(super) fn figures(streams: Option<&StreamResult>) -> Keyed {
    let of = |(key, outcome): (&str, Outcome)| {
        (key.to_owned(), number(streams, |sent| ended(sent, outcome)).most())
    };
    let mut figures: Keyed = StreamLimits::OUTCOMES.into_iter().map(of).collect();
    figures.insert(StreamLimits::EVENTS_LOST.to_owned(), events_lost(streams).most());
    figures
}

fn events_lost(streams: Option<&StreamResult>) -> Measured {
    number(streams, |sent| sent.lost.events_lost)
}

/// Returns the streams, if there were any.
fn sent(streams: Option<&StreamResult>) -> Option<&StreamResult> {
    streams.filter(|streams| streams.total > 0)
}

fn number(streams: Option<&StreamResult>, of: impl Fn(&StreamResult) -> u64) -> Measured {
    match sent(streams) {
        Some(sent) => Measured::count(of(sent)),
        None => Measured::unknown(Unit::Count, Basis::NoStream),
    }
}

/// Returns the number of streams that ended with one of the outcomes in [`StreamLimits::OUTCOMES`].
const fn ended(streams: &StreamResult, outcome: Outcome) -> u64 {
    match outcome {
        Outcome::StreamUnfinished => streams.unfinished,
        Outcome::StreamAborted => streams.aborted,
        Outcome::StreamStalled => streams.stalled,
        _ => streams.cut,
    }
}
