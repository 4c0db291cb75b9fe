//! Outages: periods of consecutive failed requests, by intended send time.

use std::cmp::Ordering;

use crate::timeline::Request;
use rolldrop_record::Stamp;

/// Failures in a run, with the responses between them.
#[derive(Debug, Default)]
pub(crate) struct Outages<'a> {
    failures: Vec<OutageFailure<'a>>,
    /// Number of failures before the last response added. It is usually the same for the next response.
    before: usize,
}

#[derive(Debug)]
struct OutageFailure<'a> {
    /// Intended send time of the failure, which usually decides the order.
    at: Stamp,
    request: &'a Request,
    /// Intended send time of the first answered request between this failure and the next.
    answered: Option<Stamp>,
}

impl<'a> Outages<'a> {
    /// Collects the failures, in order.
    pub(crate) fn of(failures: impl Iterator<Item = &'a Request>) -> Self {
        let of = |request: &'a Request| OutageFailure { at: request.row.scheduled, request, answered: None };
        Self { failures: failures.map(of).collect(), before: 0 }
    }

    /// Adds a request that was answered.
    pub(crate) fn answered(&mut self, r: &Request) {
        let at = r.row.scheduled;
        let is_before = |failure: &OutageFailure<'_>| match failure.at.cmp(&at) {
            Ordering::Equal => failure.request.order() < r.order(),
            order => order.is_lt(),
        };
        let Self { failures, before } = self;
        let (earlier, later) = failures.split_at(*before);
        let is_here = earlier.last().is_none_or(is_before) && !later.first().is_some_and(is_before);
        if !is_here {
            *before = failures.partition_point(is_before);
        }
        if let Some(last) = before.checked_sub(1).and_then(|last| failures.get_mut(last)) {
            last.answered = Some(last.answered.map_or(at, |first| first.min(at)));
        }
    }

    /// Adds the responses collected by another part for the same failures.
    pub(crate) fn merge(&mut self, other: Self) {
        for (own, other) in self.failures.iter_mut().zip(other.failures) {
            own.answered = own.answered.into_iter().chain(other.answered).min();
        }
    }

    /// Returns true if no success followed the last failure: its outage may have lasted longer than the load.
    pub(crate) fn are_open(&self) -> bool {
        self.failures.last().is_some_and(|last| last.answered.is_none())
    }

    /// Returns the longest time, in seconds, from the first of several consecutive failures to the next success or, if
    /// there is none, to the last failure.
    pub(crate) fn longest_s(&self) -> f64 {
        let mut longest = 0.0f64;
        let mut since = None;
        for OutageFailure { at, answered, .. } in &self.failures {
            let from = *since.get_or_insert(*at);
            longest = longest.max(answered.unwrap_or(*at).seconds_since(from));
            if answered.is_some() {
                since = None;
            }
        }
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rolldrop_record::{Phase, RequestRow};

    fn request(seq: u64, second: i64) -> Request {
        let at = Stamp::from_unix_ns(second * 1_000_000_000);
        let row = RequestRow::not_sent("load-0".into(), seq, "web".into(), Phase::Main, at, at);
        Request::of(row)
    }

    #[test]
    fn outage_lasts_until_next_answer() {
        let failures: Vec<_> = (0..).zip([3, 4, 6, 9, 12]).map(|(seq, at)| request(seq, at)).collect();
        let longest = |answers: &[i64]| {
            let mut outages = Outages::of(failures.iter());
            answers.iter().for_each(|at| outages.answered(&request(99, *at)));
            (outages.longest_s(), outages.are_open())
        };
        assert_eq!(longest(&[]), (9.0, true));
        assert_eq!(longest(&[14, 13, 1]), (10.0, false));
        assert_eq!(longest(&[10, 11, 5]), (4.0, true));
        // The response has the same time as a failure, and a higher number.
        assert_eq!(longest(&[9, 4]), (3.0, true));
        let none = Outages::of([].iter());
        assert_eq!((none.longest_s(), none.are_open()), (0.0, false));
    }
}
