//! How long requests failed one after the other, by intended send time.

use crate::timeline::Request;
use rolldrop_record::Stamp;

/// The failures of a run, and where answers came between them.
#[derive(Debug, Default)]
pub(super) struct Outages<'a>(Vec<Failure<'a>>);

#[derive(Debug)]
struct Failure<'a> {
    request: &'a Request,
    /// The first that was answered between this failure and the next.
    answered: Option<Stamp>,
}

impl<'a> Outages<'a> {
    /// Of failures, in order.
    pub(super) fn of(failures: impl Iterator<Item = &'a Request>) -> Self {
        Self(failures.map(|request| Failure { request, answered: None }).collect())
    }

    /// Adds a request that was answered.
    pub(super) fn answered(&mut self, r: &Request) {
        let before = self.0.partition_point(|failure| failure.request.order() < r.order());
        if let Some(last) = before.checked_sub(1).and_then(|last| self.0.get_mut(last)) {
            let at = r.row.scheduled;
            last.answered = Some(last.answered.map_or(at, |first| first.min(at)));
        }
    }

    /// Adds the answers that another one of the same failures was given.
    pub(super) fn merge(&mut self, other: Self) {
        for (own, other) in self.0.iter_mut().zip(other.0) {
            own.answered = own.answered.into_iter().chain(other.answered).min();
        }
    }

    /// From the first request of a row of failures to the next success.
    pub(super) fn longest_s(&self) -> f64 {
        let mut longest = 0.0f64;
        let mut since = None;
        for Failure { request, answered } in &self.0 {
            let at = request.row.scheduled;
            let from = *since.get_or_insert(at);
            longest = longest.max(answered.unwrap_or(at).seconds_since(from));
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
    fn an_outage_lasts_until_the_next_answer_or_the_last_failure() {
        let failures: Vec<_> = (0..).zip([3, 4, 6, 9, 12]).map(|(seq, at)| request(seq, at)).collect();
        let longest = |answers: &[i64]| {
            let mut outages = Outages::of(failures.iter());
            answers.iter().for_each(|at| outages.answered(&request(99, *at)));
            outages.longest_s()
        };
        assert_eq!(longest(&[]), 9.0);
        assert_eq!(longest(&[14, 13, 1]), 10.0);
        assert_eq!(longest(&[10, 11, 5]), 4.0);
        // Of the same time as a failure, and after it by number.
        assert_eq!(longest(&[9, 4]), 3.0);
        assert_eq!(Outages::of([].iter()).longest_s(), 0.0);
    }
}
