//! A worker's next request: the next one in its schedule or, in a closed loop, one for each free connection.

use std::time::Duration;

use super::load_plan::{Plan, Timing, part_of};
use super::schedule::{DueRequest, ScheduleShare};
use rolldrop_record::load::Length;
use rolldrop_record::{Outcome, Phase, RequestRow, Stamp};

/// Delay in a closed loop after a request that could not be sent.
const AFTER_NOT_SENT: Duration = Duration::from_millis(10);

/// Source of a worker's requests.
#[derive(Debug)]
pub(super) enum RequestFeed {
    /// Open loop: each request is due at its own time, regardless of the others.
    Open {
        /// Requests after the next one.
        share: ScheduleShare,
        /// Next request; `None` after the last one and after a stop.
        next: Option<DueRequest>,
    },
    /// Closed loop: the next request is due as soon as a connection is free.
    Closed(ClosedLoopFeed),
}

impl RequestFeed {
    /// Returns the requests for worker number `worker` of `workers`, in a load that begins at `zero`.
    pub(super) fn new(plan: &Plan, worker: usize, workers: usize, zero: Stamp) -> Self {
        match &plan.timing {
            Timing::Schedule(schedule) => {
                let mut share = schedule.share(worker, workers, zero);
                let next = share.next();
                RequestFeed::Open { share, next }
            }
            Timing::OnDemand(length) => {
                let main = zero + plan.settings.warmup;
                let (end, left) = match length {
                    Length::Time(duration) => (Some(main + *duration), u64::MAX),
                    Length::Requests(all) => (None, part_of(*all, worker, workers)),
                };
                let (worker, workers) = (worker as u64, workers as u64);
                RequestFeed::Closed(ClosedLoopFeed {
                    worker,
                    workers,
                    seq: 0,
                    main,
                    end,
                    left,
                    not_before: zero,
                })
            }
        }
    }

    /// Returns the next request, if any. A closed loop has one only if `is_free` returns true, which means that a
    /// connection could take the request.
    pub(super) fn next(&self, now: Stamp, is_free: impl FnOnce() -> bool) -> Option<DueRequest> {
        match self {
            RequestFeed::Open { next, .. } => *next,
            RequestFeed::Closed(closed) => closed.next(now).filter(|_| is_free()),
        }
    }

    /// Returns true if there will be no more requests.
    pub(super) fn is_over(&self, now: Stamp) -> bool {
        match self {
            RequestFeed::Open { next, .. } => next.is_none(),
            RequestFeed::Closed(closed) => closed.next(now).is_none(),
        }
    }

    /// Returns true if requests have intended send times.
    pub(super) fn is_open_loop(&self) -> bool {
        matches!(self, RequestFeed::Open { .. })
    }

    /// Advances to the request after `taken`.
    pub(super) fn advance(&mut self, taken: DueRequest) {
        match self {
            RequestFeed::Open { share, next } => *next = share.next(),
            RequestFeed::Closed(closed) => {
                closed.seq += 1;
                if taken.phase == Phase::Main {
                    closed.left -= 1;
                }
            }
        }
    }

    /// Handles the end of a request. In a closed loop, a request that was not sent delays the next one.
    pub(super) fn ended(&mut self, row: &RequestRow) {
        if let RequestFeed::Closed(closed) = self
            && row.outcome == Outcome::NotSent
        {
            closed.not_before = row.end + AFTER_NOT_SENT;
        }
    }

    /// Ends the feed; there will be no more requests.
    pub(super) fn end(&mut self) {
        match self {
            RequestFeed::Open { next, .. } => *next = None,
            RequestFeed::Closed(closed) => closed.left = 0,
        }
    }
}

/// Requests of a closed loop.
#[derive(Debug)]
pub(super) struct ClosedLoopFeed {
    worker: u64,
    workers: u64,
    seq: u64,
    /// Time the counted part begins.
    main: Stamp,
    end: Option<Stamp>,
    /// Remaining requests of the counted part.
    left: u64,
    not_before: Stamp,
}

impl ClosedLoopFeed {
    fn next(&self, now: Stamp) -> Option<DueRequest> {
        let at = now.max(self.not_before);
        if self.left == 0 || self.end.is_some_and(|end| at >= end) {
            return None;
        }
        let index = self.seq * self.workers + self.worker;
        let phase = if at < self.main { Phase::Warmup } else { Phase::Main };
        Some(DueRequest { index, seq: self.seq, phase, at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Load, Pace};

    fn closed(length: Length, workers: usize, worker: usize) -> RequestFeed {
        let settings = Load { pace: Pace::Closed(length), ..Load::new("http://127.0.0.1:1/") };
        RequestFeed::new(&Plan::new(settings).unwrap(), worker, workers, Stamp::from_unix_ns(0))
    }

    #[test]
    fn closed_loop_feeds_free_connections() {
        let mut feed = closed(Length::Time(Duration::from_secs(1)), 2, 1);
        let now = Stamp::from_unix_ns(5);
        assert_eq!(feed.next(now, || false), None);
        let due = feed.next(now, || true).unwrap();
        assert_eq!((due.at, due.seq, due.index), (now, 0, 1));
        feed.advance(due);
        let due = feed.next(now, || true).unwrap();
        assert_eq!((due.seq, due.index), (1, 3));
        let not_sent = RequestRow::not_sent("load-1".into(), 1, "web".into(), Phase::Main, now, now);
        feed.ended(&not_sent);
        assert_eq!(feed.next(now, || true).map(|due| due.at), Some(now + AFTER_NOT_SENT));
        let end = Stamp::from_unix_ns(1_000_000_000);
        assert!(feed.is_over(end) && feed.next(end, || true).is_none());
        feed.end();
        assert!(feed.is_over(now));
    }

    #[test]
    fn workers_split_request_count_exactly() {
        for requests in [1, 7, 100] {
            let mut sent = 0;
            for worker in 0..3 {
                let mut feed = closed(Length::Requests(requests), 3, worker);
                while let Some(due) = feed.next(Stamp::from_unix_ns(9), || true) {
                    feed.advance(due);
                    sent += 1;
                }
            }
            assert_eq!(sent, requests);
        }
    }
}
