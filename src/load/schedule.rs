//! When each request is due, in closed form.
//!
//! Request i of the run is due at zero + i/rate, whatever became of the ones
//! before it. Worker k of N owns the requests with i ≡ k (mod N) and numbers
//! its own from 0, so that workers need not speak to each other.

use std::time::Duration;

use crate::record::{Phase, Stamp};

/// The intended send times of a whole run, relative to its zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Schedule {
    rate: f64,
    warmup: u64,
    main: u64,
}

impl Schedule {
    /// `rate` requests per second through the warm-up and the counted part, each
    /// with rate × length requests, rounded.
    pub(super) fn new(rate: f64, warmup: Duration, duration: Duration) -> Self {
        Self { rate, warmup: requests_in(rate, warmup), main: requests_in(rate, duration) }
    }

    /// Requests of the warm-up.
    pub(super) fn warmup(&self) -> u64 {
        self.warmup
    }

    /// Requests of the counted part.
    pub(super) fn main(&self) -> u64 {
        self.main
    }

    /// The share of worker `worker` of `workers`.
    pub(super) fn share(self, worker: usize, workers: usize) -> Share {
        Share { schedule: self, worker: worker as u64, workers: workers as u64 }
    }

    fn due_ns(&self, index: u64) -> i64 {
        #[expect(clippy::cast_possible_truncation, reason = "the cast saturates, at 292 years")]
        let ns = (index as f64 * 1e9 / self.rate).round() as i64;
        ns
    }
}

/// One worker's requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    schedule: Schedule,
    worker: u64,
    workers: u64,
}

/// One request of a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Due {
    /// Its number in the whole run.
    pub(super) index: u64,
    /// Its number within the worker's share.
    pub(super) seq: u64,
    /// Whether it counts.
    pub(super) phase: Phase,
    /// Its intended send time.
    pub(super) at: Stamp,
}

impl Share {
    /// The worker's request number `seq`, in a run that begins at `zero`; `None` past the last.
    pub(super) fn request(&self, seq: u64, zero: Stamp) -> Option<Due> {
        let index = seq.checked_mul(self.workers)?.checked_add(self.worker)?;
        if index >= self.schedule.warmup + self.schedule.main {
            return None;
        }
        let phase = if index < self.schedule.warmup { Phase::Warmup } else { Phase::Main };
        Some(Due { index, seq, phase, at: zero.shifted_ns(self.schedule.due_ns(index)) })
    }
}

fn requests_in(rate: f64, length: Duration) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a plan's rates and durations are positive and far below 2^53 together"
    )]
    let requests = (rate * length.as_secs_f64()).round() as u64;
    requests
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_counted_part_has_exactly_rate_times_duration_requests() {
        let schedule = Schedule::new(0.1, Duration::from_secs(20), Duration::from_secs(30));
        assert_eq!((schedule.warmup(), schedule.main()), (2, 3));
        let share = schedule.share(0, 1);
        let zero = Stamp::from_unix_ns(7);
        let due: Vec<_> = (0..).map_while(|seq| share.request(seq, zero)).collect();
        let at: Vec<_> = due.iter().map(|d| d.at.ns_since(zero) / 1_000_000_000).collect();
        assert_eq!(at, [0, 10, 20, 30, 40]);
        let phases: Vec<_> = due.iter().map(|d| d.phase.as_str()).collect();
        assert_eq!(phases, ["warmup", "warmup", "main", "main", "main"]);
    }

    proptest! {
        #[test]
        fn the_shares_together_are_the_schedule(
            rate in 0.5f64..50_000.0,
            warmup_ms in 0u64..50,
            duration_ms in 1u64..200,
            workers in 1usize..9,
        ) {
            let duration = Duration::from_millis(duration_ms);
            let schedule = Schedule::new(rate, Duration::from_millis(warmup_ms), duration);
            let zero = Stamp::from_unix_ns(1_700_000_000_000_000_000);
            let mut all = Vec::new();
            for worker in 0..workers {
                let share = schedule.share(worker, workers);
                let own: Vec<_> = (0..).map_while(|seq| share.request(seq, zero)).collect();
                prop_assert!(own.iter().zip(0..).all(|(due, seq)| due.seq == seq));
                all.extend(own);
            }
            all.sort_by_key(|due| due.index);
            prop_assert!(all.iter().zip(0..).all(|(due, index)| due.index == index));
            prop_assert!(all.windows(2).all(|pair| pair[0].at <= pair[1].at));
            prop_assert_eq!(all.len() as u64, schedule.warmup() + schedule.main());
            let main = all.iter().filter(|due| due.phase == Phase::Main).count();
            prop_assert!((main as f64 - rate * duration.as_secs_f64()).abs() <= 0.5);
            for due in all {
                let exact = due.index as f64 / rate * 1e9;
                prop_assert!((due.at.ns_since(zero) as f64 - exact).abs() <= 1.0);
            }
        }
    }
}
