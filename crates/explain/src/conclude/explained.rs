//! Derives the terminations with their losses from the totals over all rows, module by module in the order of `lib.rs`.

use std::sync::Arc;

use crate::attribute::judged::{self, JudgedRequest};
use crate::attribute::solve::{Attribution, solve};
use crate::conclude::termination_entries::terminations;
use crate::count::stream_records::StreamRecord;
use crate::count::stream_totals::StreamTotals;
use crate::count::sums::Sums;
use crate::count::while_ending::{self, ErrorWhileEnding};
use crate::model::{Mode, StreamTimes, Termination, Unbounded};
use crate::route::facts::Facts;
use crate::route::observations::ObservedTotals;
use crate::route::window;
use crate::timeline::periods::Periods;
use crate::timeline::{Requests, Timeline};
use rolldrop_record::parts::PartError;

/// Terminations of a run or a span, with their losses.
pub(crate) struct Explained<'a> {
    pub facts: Facts<'a>,
    /// As in [`crate::model::account::Account::unbounded`].
    pub unbounded: Vec<Vec<Option<Unbounded>>>,
    pub disrupted: Periods,
    pub sums: Sums<'a>,
    pub errors: Vec<ErrorWhileEnding>,
    pub judged: Vec<JudgedRequest<'a>>,
    pub streams: Option<StreamTotals>,
    pub terminations: Vec<Termination>,
}

impl<'a> Explained<'a> {
    /// Derives the terminations from the facts. `modes` holds the mode of each termination, and `alpha` the probability
    /// that its upper bounds are too small.
    pub(crate) fn of(
        timeline: &'a Timeline,
        requests: &'a Requests,
        (observed, sums): (ObservedTotals<'a>, Sums<'a>),
        (modes, alpha): (&[Mode], &'a [f64]),
    ) -> Result<Self, PartError> {
        let facts = Facts::of(timeline, requests, alpha, observed)?;
        let Attribution { explanations, tails } = solve(&facts);
        let (windows, unbounded) = window::windows(timeline, &tails, alpha);
        let disrupted = window::disrupted(timeline, &windows);
        let sums = Sums::of(&facts, requests, &disrupted, sums)?;
        let errors = while_ending::errors(timeline, &requests.others, &explanations);
        let stream_rows = requests.streams()?;
        let judged = judged::judge(&facts, explanations, &tails, &windows, (sums.load(), &stream_rows));
        let mut terminations = terminations(&facts, modes, &sums, (&judged, &errors), (windows, &tails));
        let records = StreamRecord::read(requests, &stream_rows, |r| facts.pod(r).map(Arc::clone))?;
        let gaps = StreamTimes::between_events(requests, &disrupted)?;
        let streams = StreamTotals::of(timeline, &disrupted, &records, gaps);
        let by_termination = streams.iter().flat_map(|streams| &streams.by_termination);
        for (termination, streams) in terminations.iter_mut().zip(by_termination) {
            termination.streams = Some(streams.clone());
        }
        Ok(Self { facts, unbounded, disrupted, sums, errors, judged, streams, terminations })
    }
}
