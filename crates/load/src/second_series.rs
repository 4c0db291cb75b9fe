//! The counted part as a series of seconds, by the time at which requests ended.
//!
//! A second is summarised once its rows have arrived, so that the series of a long load uses little memory.

use std::collections::BTreeMap;

use super::control::Recent;
use super::latency_log::interval_of;
use super::tally::{self, ErrorStatuses, OutcomeCounts, Times};
use rolldrop_record::{Phase, RequestRow, Stamp};

/// Requests of the counted part that ended within one second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadSecond {
    /// Number of the second, counted from the schedule's zero.
    pub number: i64,
    /// Request counts by outcome.
    pub outcomes: OutcomeCounts,
    /// Counts of the statuses of complete responses outside the success set.
    pub error_statuses: ErrorStatuses,
    /// Number of bytes read.
    pub bytes_received: u64,
    /// Response times of the requests with a complete response, if any.
    pub response: Option<Recent>,
    /// Service times of the requests with a complete response, if any.
    pub service: Option<Recent>,
}

/// Seconds so far.
pub(super) struct SecondSeries {
    zero: Stamp,
    /// Open seconds by number.
    open: BTreeMap<i64, OpenSecond>,
    ended: Vec<LoadSecond>,
    /// Number of the first second not yet summarised; a later row for an earlier second is counted here.
    first_open: i64,
}

/// A second whose rows are still arriving.
#[derive(Default)]
struct OpenSecond {
    outcomes: OutcomeCounts,
    error_statuses: ErrorStatuses,
    bytes_received: u64,
    response: Times,
    service: Times,
}

impl OpenSecond {
    fn end(self, number: i64) -> LoadSecond {
        let Self { outcomes, error_statuses, bytes_received, response, service } = self;
        let (response, service) = (Recent::of(&response), Recent::of(&service));
        LoadSecond { number, outcomes, error_statuses, bytes_received, response, service }
    }
}

impl SecondSeries {
    /// Creates the series for a schedule with this zero.
    pub(super) fn new(zero: Stamp) -> Self {
        Self { zero, open: BTreeMap::new(), ended: Vec::new(), first_open: i64::MIN }
    }

    /// Adds rows of ended requests.
    pub(super) fn add(&mut self, rows: &[RequestRow]) {
        for row in rows.iter().filter(|row| row.phase == Phase::Main) {
            let number = interval_of(row.end, self.zero).max(self.first_open);
            let second = self.open.entry(number).or_default();
            second.outcomes.add(row.outcome, 1);
            second.error_statuses.add(row);
            second.bytes_received += row.bytes_received;
            if let (Some(service_ns), true) = (row.service_ns(), tally::is_answered(row)) {
                second.response.record(row.response_ns());
                second.service.record(service_ns);
            }
        }
    }

    /// Summarises the seconds that were complete at this time.
    pub(super) fn end_before(&mut self, time: Stamp) {
        let first_open = interval_of(time, self.zero).max(self.first_open);
        let open = self.open.split_off(&first_open);
        self.take(first_open, open);
    }

    /// Returns all seconds from the first to the last, including those in which no request ended.
    pub(super) fn finish(mut self) -> Vec<LoadSecond> {
        self.take(i64::MAX, BTreeMap::new());
        self.ended
    }

    fn take(&mut self, first_open: i64, open: BTreeMap<i64, OpenSecond>) {
        for (number, second) in std::mem::replace(&mut self.open, open) {
            let next = self.ended.last().map_or(number, |last| last.number + 1);
            self.ended.extend((next..number).map(|empty| OpenSecond::default().end(empty)));
            self.ended.push(second.end(number));
        }
        self.first_open = first_open;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use rolldrop_record::Outcome;

    #[test]
    fn series_counts_requests_and_empty_seconds() {
        let at = |ms: i64| Stamp::from_unix_ns(ms * 1_000_000);
        let row = |phase, outcome, end| RequestRow {
            sent: Some(at(end - 4)),
            outcome,
            bytes_received: 50,
            ..RequestRow::not_sent("load-0".into(), 0, "web".into(), phase, at(end - 8), at(end))
        };
        let mut series = SecondSeries::new(at(500));
        series.add(&[row(Phase::Warmup, Outcome::Ok, 600), row(Phase::Main, Outcome::Ok, 1_600)]);
        series.end_before(at(2_600));
        // This row arrives late, after its second has been summarised.
        series.add(&[row(Phase::Main, Outcome::ResetBeforeResponse, 1_700)]);
        series.add(&[row(Phase::Main, Outcome::HttpError, 5_000)]);
        let seconds = series.finish();
        let counts: Vec<_> = seconds.iter().map(|second| (second.number, second.outcomes.total())).collect();
        assert_eq!(counts, [(1, 1), (2, 1), (3, 0), (4, 1)]);
        let ms = |time: Duration| (time.as_secs_f64() * 1e3).round();
        let of = |recent: Option<Recent>| recent.map(|recent| (ms(recent.p50), ms(recent.p99)));
        assert_eq!((of(seconds[0].response), of(seconds[0].service)), (Some((8.0, 8.0)), Some((4.0, 4.0))));
        assert_eq!((of(seconds[1].response), seconds[1].bytes_received), (None, 50), "it was not answered");
    }
}
