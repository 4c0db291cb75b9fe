//! Reads the rows of load sources side by side, and adds them up.
//!
//! Each lane has a sum of its own, and sees the rows that it gets in their order. A sum must not depend on where one
//! lane ends and the next begins.

use super::requests::Request;
use rolldrop_record::parts::{Lane, PartError, Wanted};
use rolldrop_record::{Phase, RequestRow, RowSource, Stamp};

/// A lane with its sum.
struct Summing<'a, S, A> {
    /// Request that each row is read into; other fields are from the row before.
    request: Request,
    sum: S,
    add: &'a A,
    wanted: Wanted,
}

impl<S: Send, A: Fn(&mut S, &mut Request) + Sync> Lane<RequestRow> for Summing<'_, S, A> {
    fn wanted(&self) -> Wanted {
        self.wanted
    }

    fn row(&mut self) -> &mut RequestRow {
        &mut self.request.row
    }

    fn take(&mut self) {
        (self.add)(&mut self.sum, &mut self.request);
    }
}

/// Adds up all rows with these columns, as they are in the files. `merge` adds the sum of rows that come later.
pub(super) fn add_up<S: Send>(
    rows: &dyn RowSource,
    wanted: Wanted,
    begin: impl Fn() -> S,
    add: impl Fn(&mut S, &mut Request) + Sync,
    mut merge: impl FnMut(&mut S, S),
) -> Result<S, PartError> {
    let lane = |_| Summing { request: blank(), sum: begin(), add: &add, wanted };
    let mut lanes: Vec<_> = (1..rows.lanes()).map(lane).collect();
    let mut first = lane(0);
    let mut given: Vec<&mut dyn Lane<RequestRow>> = vec![&mut first];
    given.extend(lanes.iter_mut().map(|lane| lane as &mut dyn Lane<RequestRow>));
    rows.requests(&mut given)?;
    let mut sum = first.sum;
    lanes.into_iter().for_each(|lane| merge(&mut sum, lane.sum));
    Ok(sum)
}

/// Returns an empty request, for before the first is read.
pub(super) fn blank() -> Request {
    let at = Stamp::default();
    Request::of(RequestRow::not_sent("".into(), 0, "".into(), Phase::Main, at, at))
}
