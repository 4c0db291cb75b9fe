//! Reads the rows of load sources in parallel and aggregates them.
//!
//! Each lane has its own total and sees its rows in order. A total must not depend on where one lane ends and the next
//! begins.

use super::requests::Request;
use rolldrop_record::parts::{Lane, PartError, Wanted};
use rolldrop_record::{Phase, RequestRow, RowSource, Stamp};

/// Lane with its total.
struct Summing<'a, S, A> {
    /// Request that each row is read into; its other fields are left over from the previous row.
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

/// Aggregates all rows with these columns, in file order. `merge` adds the total over later rows.
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

/// Returns an empty request, used before the first one is read.
pub(super) fn blank() -> Request {
    let at = Stamp::default();
    Request::of(RequestRow::not_sent("".into(), 0, "".into(), Phase::Main, at, at))
}
