//! Draws the course of a stream from the seed: its length, the times of its events, and its fault.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rolldrop_record::LengthLaw;

use super::{SampleStreamKind, SampleStreamSettings, StreamFault};

/// Shortest gap between two events, equal to the resolution of the timer.
const SHORTEST_GAP: Duration = Duration::from_millis(1);
/// Longest stream, because instants cannot be arbitrarily far in the future.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Course of one stream. Times count from its beginning.
#[derive(Clone, Debug)]
pub(super) struct StreamPlan {
    /// Time at which the stream ends.
    pub(super) length: Duration,
    /// Fault, with its time.
    pub(super) fault: Option<(StreamFault, Duration)>,
    /// Times of the events before the end; the first one is 0.
    pub(super) times: EventTimes,
}

impl StreamPlan {
    /// Draws the course of the server's stream number `number`. `asked` is the length that its request specifies.
    pub(super) fn draw(
        settings: &SampleStreamSettings,
        kind: SampleStreamKind,
        number: u64,
        asked: Option<&LengthLaw>,
    ) -> Self {
        let mut random = SmallRng::seed_from_u64(settings.seed ^ (number << 32));
        let fault = fault(&settings.faults, random.random()).filter(|fault| kind.can_have(*fault));
        let moment: f64 = random.random();
        let length = asked.unwrap_or(&settings.length).sample(&mut random).min(LONGEST);
        let times = EventTimes { random, gap: settings.gap.clone(), length, next: Some(Duration::ZERO) };
        Self { length, fault: fault.map(|fault| (fault, length.mul_f64(moment))), times }
    }
}

/// Returns the fault for a random number from 0 to 1.
fn fault(faults: &[(StreamFault, f64)], drawn: f64) -> Option<StreamFault> {
    let mut reached = 0.0;
    faults.iter().find_map(|(fault, share)| {
        reached += share;
        (drawn < reached).then_some(*fault)
    })
}

/// Iterator over the times of a stream's events.
#[derive(Clone, Debug)]
pub(super) struct EventTimes {
    random: SmallRng,
    gap: LengthLaw,
    length: Duration,
    next: Option<Duration>,
}

impl Iterator for EventTimes {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let time = self.next.take()?;
        let gap = self.gap.sample(&mut self.random).max(SHORTEST_GAP);
        self.next = time.checked_add(gap).filter(|next| *next < self.length);
        Some(time)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{StreamFraming, StreamStopHabit};
    use super::*;

    fn settings() -> SampleStreamSettings {
        SampleStreamSettings {
            length: "lognormal:10s,1.0".parse().unwrap(),
            gap: "exp:50ms".parse().unwrap(),
            event_bytes: 16,
            seed: 3,
            faults: vec![(StreamFault::CutFin, 0.25), (StreamFault::Abort, 0.25)],
            framing: StreamFraming::Chunked,
            on_stop: StreamStopHabit::Finish,
        }
    }

    fn drawn(settings: &SampleStreamSettings, number: u64) -> StreamPlan {
        StreamPlan::draw(settings, SampleStreamKind::Chat, number, None)
    }

    #[test]
    fn same_seed_produces_same_course() {
        let course = |settings: &SampleStreamSettings| -> Vec<_> {
            let all = (1..=50).map(|number| drawn(settings, number));
            all.map(|plan| (plan.length, plan.fault, plan.times.collect::<Vec<_>>())).collect()
        };
        assert_eq!(course(&settings()), course(&settings()));
        assert_ne!(course(&settings()), course(&SampleStreamSettings { seed: 4, ..settings() }));
    }

    #[test]
    fn stream_lengths_follow_law() {
        let settings = settings();
        let mut lengths: Vec<_> = (1..=10_001).map(|number| drawn(&settings, number).length).collect();
        lengths.sort();
        let median = lengths[5_000].as_secs_f64();
        assert!((9.5..10.5).contains(&median), "{median}");
    }

    #[test]
    fn requested_length_overrides_law() {
        let asked = LengthLaw::Fixed(Duration::from_millis(3200));
        let plan = StreamPlan::draw(&settings(), SampleStreamKind::Chat, 1, Some(&asked));
        assert_eq!(plan.length, Duration::from_millis(3200));
    }

    #[test]
    fn faults_occur_at_configured_shares() {
        let settings = settings();
        let plans: Vec<_> = (1..=10_000).map(|number| drawn(&settings, number)).collect();
        for fault in [StreamFault::CutFin, StreamFault::Abort] {
            let hit = plans.iter().filter(|plan| plan.fault.is_some_and(|(drawn, _)| drawn == fault)).count();
            assert!((2_300..2_700).contains(&hit), "{fault}: {hit}");
        }
        assert!(plans.iter().all(|plan| plan.fault.is_none_or(|(_, time)| time <= plan.length)));
    }

    #[test]
    fn downloads_have_only_transport_faults() {
        let of = |fault| {
            let settings = SampleStreamSettings { faults: vec![(fault, 1.0)], ..settings() };
            StreamPlan::draw(&settings, SampleStreamKind::Download, 1, None).fault.map(|(fault, _)| fault)
        };
        for fault in StreamFault::ALL {
            let possible = matches!(fault, StreamFault::CutFin | StreamFault::CutRst | StreamFault::Stall);
            assert_eq!(of(*fault), possible.then_some(*fault));
        }
    }

    #[test]
    fn event_times_stay_within_stream_length() {
        let plan = |length: &str, gap: &str| {
            let settings = SampleStreamSettings { gap: gap.parse().unwrap(), ..settings() };
            StreamPlan::draw(&settings, SampleStreamKind::Events, 1, Some(&length.parse().unwrap()))
        };
        let times = |length, gap| plan(length, gap).times.map(|time| time.as_millis()).collect::<Vec<_>>();
        assert_eq!(times("100ms", "30ms"), [0, 30, 60, 90]);
        assert_eq!(times("90ms", "30ms"), [0, 30, 60]);
        assert_eq!(times("0s", "30ms"), [0]);
        // A gap of 0 would produce endless events.
        assert_eq!(times("3ms", "0s"), [0, 1, 2]);
    }
}
