//! Computes the due time of each request in closed form.
//!
//! The integral of the rate over time is the number of requests due by a given time; request i is due when the integral
//! reaches i, independently of earlier requests. The warm-up and the counted part each count from their own start.
//! Worker k of N owns the requests with i ≡ k (mod N) and numbers its own from 0, so workers need not communicate.

use super::random::Random;
use rolldrop_record::load::{Arrivals, RateStage};
use rolldrop_record::{Phase, Stamp};

/// Intended send times of a whole run, relative to the run's zero.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Schedule {
    warmup: Profile,
    main: Profile,
    arrivals: Arrivals,
    seed: u64,
}

impl Schedule {
    /// Creates a schedule with a warm-up at one rate, followed by the counted part. The number of requests in each is
    /// the rounded integral of its rate.
    pub(super) fn new(warmup: RateStage, main: &[RateStage], arrivals: Arrivals, seed: u64) -> Self {
        Self { warmup: Profile::new(&[warmup]), main: Profile::new(main), arrivals, seed }
    }

    /// Returns the number of warm-up requests.
    pub(super) fn warmup(&self) -> u64 {
        self.warmup.count
    }

    /// Returns the number of requests in the counted part.
    pub(super) fn main(&self) -> u64 {
        self.main.count
    }

    /// Returns the share for worker number `worker` of `workers`, in a run that begins at `zero`.
    pub(super) fn share(&self, worker: usize, workers: usize, zero: Stamp) -> ScheduleShare {
        ScheduleShare {
            schedule: self.clone(),
            zero,
            workers: workers as u64,
            index: worker as u64,
            seq: 0,
            arrivals: PoissonArrivals {
                random: Random::new(self.seed),
                phase: Phase::Warmup,
                drawn: 0,
                ln_left: 0.0,
            },
        }
    }
}

/// A rate over time.
#[derive(Clone, Debug, PartialEq)]
struct Profile {
    pieces: Vec<PlacedStage>,
    /// Integral of the rate.
    requests: f64,
    /// The integral, rounded to a whole number.
    count: u64,
    length_s: f64,
}

/// A stage, with its start time and the number of requests before it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PlacedStage {
    stage: RateStage,
    start_s: f64,
    /// Number of requests due before the stage.
    before: f64,
}

impl Profile {
    fn new(stages: &[RateStage]) -> Self {
        let (mut start_s, mut before) = (0.0, 0.0);
        let mut pieces = Vec::with_capacity(stages.len());
        for stage in stages {
            pieces.push(PlacedStage { stage: *stage, start_s, before });
            start_s += stage.duration.as_secs_f64();
            before += stage.requests();
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "rates and durations are positive, and their products sum to far less than 2^53"
        )]
        let count = before.round() as u64;
        Self { pieces, requests: before, count, length_s: start_s }
    }

    /// Returns the time at which the integral of the rate reaches `requests`, in seconds from the start of the profile.
    fn reached_s(&self, requests: f64) -> f64 {
        // A request never falls due in a stage without requests.
        let next = self.pieces.partition_point(|piece| piece.before <= requests);
        let candidates = self.pieces[..next].iter().rev();
        match candidates.into_iter().find(|piece| piece.stage.requests() > 0.0) {
            Some(piece) => piece.start_s + reached_s(piece.stage, requests - piece.before),
            None => self.length_s,
        }
    }
}

/// Returns the time at which the integral over the stage reaches `requests`, in seconds from the start of the stage.
fn reached_s(stage: RateStage, requests: f64) -> f64 {
    let length_s = stage.duration.as_secs_f64();
    let slope = (stage.to - stage.from) / length_s;
    // The root of from × t + slope × t² / 2 = requests, in the form that avoids cancellation.
    let root = (stage.from * stage.from + 2.0 * slope * requests).max(0.0).sqrt();
    if requests > 0.0 { (2.0 * requests / (stage.from + root)).min(length_s) } else { 0.0 }
}

/// One worker's requests, in order.
#[derive(Clone, Debug)]
pub(super) struct ScheduleShare {
    schedule: Schedule,
    zero: Stamp,
    workers: u64,
    /// Number of the next request within the whole run.
    index: u64,
    seq: u64,
    arrivals: PoissonArrivals,
}

/// A request of a share, with its due time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DueRequest {
    /// Index within the whole run.
    pub(super) index: u64,
    /// Index within the worker's share.
    pub(super) seq: u64,
    /// Phase of the load: warm-up or counted part.
    pub(super) phase: Phase,
    /// Intended send time.
    pub(super) at: Stamp,
}

impl Iterator for ScheduleShare {
    type Item = DueRequest;

    fn next(&mut self) -> Option<DueRequest> {
        let Schedule { warmup, main, .. } = &self.schedule;
        let (phase, profile, start_s, number) = match self.index.checked_sub(warmup.count) {
            None => (Phase::Warmup, warmup, 0.0, self.index),
            Some(number) => (Phase::Main, main, warmup.length_s, number),
        };
        if number >= profile.count {
            return None;
        }
        let position = match self.schedule.arrivals {
            Arrivals::Even => number as f64,
            Arrivals::Poisson => {
                if phase == Phase::Main && self.arrivals.phase == Phase::Warmup {
                    self.arrivals.skip(warmup.count);
                    self.arrivals.phase = phase;
                    (self.arrivals.drawn, self.arrivals.ln_left) = (0, 0.0);
                }
                self.arrivals.position(number, profile)
            }
        };
        #[expect(clippy::cast_possible_truncation, reason = "the cast saturates, at 292 years")]
        let ns = ((start_s + profile.reached_s(position)) * 1e9).round() as i64;
        let due = DueRequest { index: self.index, seq: self.seq, phase, at: self.zero.shifted_ns(ns) };
        self.index += self.workers;
        self.seq += 1;
        Some(due)
    }
}

/// Arrivals of a Poisson process conditioned on their number; they are distributed like that many independent points in
/// sorted order. Each worker draws the same sequence, and uses its own arrivals.
#[derive(Clone, Debug)]
struct PoissonArrivals {
    random: Random,
    phase: Phase,
    /// Number of arrivals drawn so far in the phase.
    drawn: u64,
    /// Logarithm of the fraction of the profile that remains after the last arrival drawn.
    ln_left: f64,
}

impl PoissonArrivals {
    /// Returns the position of arrival `number` in the profile, as an integral of the rate.
    fn position(&mut self, number: u64, profile: &Profile) -> f64 {
        while self.drawn <= number {
            // The minimum of the remaining points, each of which is uniform over the rest.
            self.ln_left += self.random.unit().ln() / (profile.count - self.drawn) as f64;
            self.drawn += 1;
        }
        -self.ln_left.exp_m1() * profile.requests
    }

    /// Draws as many random numbers as the arrivals up to `count` would need.
    fn skip(&mut self, count: u64) {
        for _ in self.drawn..count {
            self.random.next();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const ZERO: Stamp = Stamp::from_unix_ns(1_700_000_000_000_000_000);

    fn stage(from: f64, to: f64, ms: u64) -> RateStage {
        RateStage { from, to, duration: Duration::from_millis(ms) }
    }

    fn all(schedule: &Schedule, workers: usize) -> Vec<DueRequest> {
        let mut all: Vec<DueRequest> = Vec::new();
        for worker in 0..workers {
            let own: Vec<_> = schedule.share(worker, workers, ZERO).collect();
            assert!(own.iter().zip(0..).all(|(due, seq)| due.seq == seq));
            all.extend(own);
        }
        all.sort_by_key(|due| due.index);
        all
    }

    fn seconds(due: &DueRequest) -> f64 {
        due.at.ns_since(ZERO) as f64 / 1e9
    }

    #[test]
    fn request_count_is_rate_times_duration() {
        let schedule = Schedule::new(stage(0.1, 0.1, 20_000), &[stage(0.1, 0.1, 30_000)], Arrivals::Even, 0);
        assert_eq!((schedule.warmup(), schedule.main()), (2, 3));
        let due = all(&schedule, 1);
        assert_eq!(due.iter().map(seconds).collect::<Vec<_>>(), [0.0, 10.0, 20.0, 30.0, 40.0]);
        let phases: Vec<_> = due.iter().map(|d| d.phase.as_str()).collect();
        assert_eq!(phases, ["warmup", "warmup", "main", "main", "main"]);
    }

    #[test]
    fn main_phase_starts_after_warmup() {
        let schedule = Schedule::new(stage(3.0, 3.0, 500), &[stage(3.0, 3.0, 1_000)], Arrivals::Even, 0);
        let due = all(&schedule, 1);
        let main: Vec<_> = due.iter().filter(|due| due.phase == Phase::Main).map(seconds).collect();
        assert_eq!((main.len(), main[0]), (3, 0.5));
    }

    #[test]
    fn zero_rate_stage_delays_next_stage() {
        let stages = [stage(2.0, 2.0, 1_000), stage(0.0, 0.0, 5_000), stage(2.0, 2.0, 1_000)];
        let schedule = Schedule::new(stage(2.0, 2.0, 0), &stages, Arrivals::Even, 0);
        assert_eq!(all(&schedule, 1).iter().map(seconds).collect::<Vec<_>>(), [0.0, 0.5, 6.0, 6.5]);
    }

    #[test]
    fn poisson_arrivals_follow_seed_and_distribution() {
        let schedule = |seed| {
            Schedule::new(stage(1.0, 1.0, 0), &[stage(1000.0, 1000.0, 100_000)], Arrivals::Poisson, seed)
        };
        let due = all(&schedule(1), 1);
        assert_eq!(due, all(&schedule(1), 1));
        assert_ne!(due, all(&schedule(2), 1));
        // The gaps of a Poisson process have equal mean and standard deviation. With 100,000 gaps, each is accurate to
        // 0.3 %.
        let gaps: Vec<f64> = due.windows(2).map(|pair| seconds(&pair[1]) - seconds(&pair[0])).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean * 1000.0 - 1.0).abs() < 0.01, "{mean}");
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.03, "{variance}");
        // The first quarter of the time contains a quarter of the requests.
        let early = due.iter().filter(|due| seconds(due) < 25.0).count();
        assert!((24_000..26_000).contains(&early), "{early}");
    }

    prop_compose! {
        fn stages()(stages in proptest::collection::vec((0.0f64..20_000.0, 0.0f64..20_000.0, 1u64..200), 1..5))
            -> Vec<RateStage> {
            stages.into_iter().map(|(from, to, ms)| stage(from, to, ms)).collect()
        }
    }

    proptest! {
        #[test]
        fn worker_shares_add_up_to_schedule(
            stages in stages(),
            warmup in (0.5f64..20_000.0, 0u64..50),
            poisson: bool,
            seed: u64,
            workers in 1usize..9,
        ) {
            let arrivals = if poisson { Arrivals::Poisson } else { Arrivals::Even };
            let schedule = Schedule::new(stage(warmup.0, warmup.0, warmup.1), &stages, arrivals, seed);
            let all = all(&schedule, workers);
            prop_assert_eq!(all.len() as u64, schedule.warmup() + schedule.main());
            prop_assert!(all.iter().zip(0..).all(|(due, index)| due.index == index));
            prop_assert!(all.windows(2).all(|pair| pair[0].at <= pair[1].at));
            let main = all.iter().filter(|due| due.phase == Phase::Main).count();
            let requests: f64 = stages.iter().map(RateStage::requests).sum();
            prop_assert!((main as f64 - requests).abs() <= 0.5);
            let end_s = warmup.1 as f64 / 1e3 + stages.iter().map(|s| s.duration.as_secs_f64()).sum::<f64>();
            prop_assert!(all.iter().all(|due| seconds(due) <= end_s + 1e-8));
            // The distribution of requests over time does not depend on the number of workers.
            prop_assert_eq!(all, super::tests::all(&schedule, 1).into_iter().map(|due| DueRequest {
                seq: due.index / workers as u64, ..due
            }).collect::<Vec<_>>());
        }

        #[test]
        fn due_requests_match_rate_integral(stages in stages()) {
            let schedule = Schedule::new(stage(1.0, 1.0, 0), &stages, Arrivals::Even, 0);
            for due in all(&schedule, 1) {
                // The integral of the rate up to the due time equals the request's number.
                let (mut left, mut requests) = (seconds(&due), 0.0);
                for stage in &stages {
                    let length_s = stage.duration.as_secs_f64();
                    let spent = left.min(length_s);
                    requests += stage.from * spent + (stage.to - stage.from) / length_s * spent * spent / 2.0;
                    left -= spent;
                }
                let peak = stages.iter().map(|s| s.from.max(s.to)).fold(0.0, f64::max);
                // Allows for a nanosecond of rounding at the highest rate.
                prop_assert!((requests - due.index as f64).abs() <= 2e-9 * peak + 1e-6, "{requests} {due:?}");
            }
        }
    }
}
