//! Bounds on the difference between a gateway's clock and the watch's, derived from log lines alone.

use std::collections::VecDeque;

use rolldrop_record::{ClockOffset, Stamp};

/// Time within which the API server passes a change to all of its watches, even when it is busy.
const PASSED_ON_WITHIN_NS: i64 = 500_000_000;
/// Number of lines of which at least one is written and read soon after its request ended. Even if a gateway buffers
/// its lines, some requests end just before it writes them.
const MANY: u64 = 100;
/// Maximum delay until the fastest of [`MANY`] lines is read. This is an assumption, as is the next limit.
const READ_WITHIN_NS: i64 = 500_000_000;
/// Maximum delay until the fastest line is read if there are fewer lines.
const FEW_READ_WITHIN_NS: i64 = 10_000_000_000;
/// Length of the periods for which bounds are kept.
const PERIOD_NS: i64 = 60_000_000_000;
/// Number of periods to keep.
const PERIODS: usize = 12;

/// Bounds derived from the lines of several minutes.
#[derive(Debug, Default)]
pub(super) struct LogClock(VecDeque<PeriodBounds>);

/// Bounds on the gateway's clock minus the watch's, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct PeriodBounds {
    period: i64,
    lines: u64,
    /// Lower bound, from the times at which lines were read.
    least_ns: i64,
    /// Lower bound, from the ends of pods.
    least_by_ends_ns: i64,
    most_ns: i64,
}

impl LogClock {
    /// Adds a line whose request ended at `ended` on the gateway's clock. A line cannot be read before it is written.
    pub(super) fn ended_before(&mut self, ended: Stamp, read: Stamp) {
        let bounds = self.of_period(read);
        bounds.lines += 1;
        bounds.least_ns = bounds.least_ns.max(ended.ns_since(read));
    }

    /// Adds a request that began at `begun` on the gateway's clock, at a pod that the watch showed as ready at `ready`.
    /// A gateway uses a pod only once the API server reports it as ready.
    pub(super) fn begun_after(&mut self, begun: Stamp, ready: Stamp, read: Stamp) {
        let bounds = self.of_period(read);
        bounds.most_ns = bounds.most_ns.min(begun.ns_since(ready.shifted_ns(-PASSED_ON_WITHIN_NS)));
    }

    /// Adds a request that began at `begun` on the gateway's clock, and was answered by a pod that was gone at `gone`.
    pub(super) fn begun_before(&mut self, begun: Stamp, gone: Stamp, now: Stamp) {
        let bounds = self.of_period(now);
        bounds.least_by_ends_ns = bounds.least_by_ends_ns.max(begun.ns_since(gone));
    }

    fn of_period(&mut self, read: Stamp) -> &mut PeriodBounds {
        let period = read.unix_ns() / PERIOD_NS;
        if self.0.back().is_none_or(|last| last.period < period) {
            if self.0.len() >= PERIODS {
                self.0.pop_front();
            }
            let (lines, least_ns, most_ns) = (0, i64::MIN, i64::MAX);
            self.0.push_back(PeriodBounds { period, lines, least_ns, least_by_ends_ns: i64::MIN, most_ns });
        }
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    /// Returns the offset of the gateway's clock.
    pub(super) fn offset(&self) -> ClockOffset {
        let least_ns = self.0.iter().map(|bounds| bounds.least_ns).max().unwrap_or(0);
        let most_ns = self.0.iter().map(|bounds| bounds.most_ns).min().unwrap_or(0);
        let is_many = self.0.iter().map(|bounds| bounds.lines).sum::<u64>() >= MANY;
        let read_within_ns = if is_many { READ_WITHIN_NS } else { FEW_READ_WITHIN_NS };
        let by_ends_ns = self.0.iter().map(|bounds| bounds.least_by_ends_ns).max().unwrap_or(i64::MIN);
        let assumed_ns = least_ns.saturating_add(read_within_ns);
        let most_ns = match by_ends_ns > assumed_ns {
            // All lines are late, or something else now has a pod's address.
            true => by_ends_ns.max(most_ns.min(by_ends_ns.saturating_add(FEW_READ_WITHIN_NS))),
            false => most_ns.min(assumed_ns),
        };
        // If a gateway uses pods before they are ready, the bounds contradict each other; the offset may then be
        // anything in between.
        let (least_ns, most_ns) = (least_ns.min(most_ns), least_ns.max(most_ns));
        let uncertainty_ns = most_ns.saturating_sub(least_ns) / 2;
        ClockOffset { offset_ns: least_ns.saturating_add(uncertainty_ns), uncertainty_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    fn at(ms: i64) -> Stamp {
        Stamp::from_unix_ns(1_800_000_000_000_000_000 + ms * MS)
    }

    /// Returns the smallest and the largest possible offset, in milliseconds.
    fn bounds_ms(clock: &LogClock) -> (i64, i64) {
        let ClockOffset { offset_ns, uncertainty_ns } = clock.offset();
        ((offset_ns - uncertainty_ns) / MS, (offset_ns + uncertainty_ns) / MS)
    }

    #[test]
    fn lines_and_starts_bound_clock() {
        let mut clock = LogClock::default();
        // The gateway's clock is 300 ms ahead. Lines are read 20 to 400 ms after the requests ended.
        for delay in [400, 20, 90] {
            clock.ended_before(at(1000 + 300), at(1000 + delay));
        }
        assert_eq!(bounds_ms(&clock), (280, 10_280));
        for _ in 0..97 {
            clock.ended_before(at(1300), at(1200));
        }
        assert_eq!(bounds_ms(&clock), (280, 780));
        // At 5.1 s the watch showed that a pod had become ready, at most 0.5 s before; the pod got a request at 4.7 s.
        clock.begun_after(at(4700 + 300), at(5100), at(5300));
        assert_eq!(bounds_ms(&clock), (280, 400));
    }

    #[test]
    fn late_lines_do_not_move_clock() {
        let mut clock = LogClock::default();
        for _ in 0..100 {
            clock.ended_before(at(1000), at(21_000));
        }
        assert_eq!(bounds_ms(&clock), (-20_000, -19_500));
        // A pod responded to a request that began at 30.0 s, and was gone at 30.4 s.
        clock.begun_before(at(30_000), at(30_400), at(60_000));
        assert_eq!(bounds_ms(&clock), (-20_000, 9_600));
        clock.begun_after(at(40_000), at(39_900), at(60_000));
        assert_eq!(bounds_ms(&clock), (-20_000, 600));
    }

    #[test]
    fn contradiction_keeps_both_bounds() {
        let mut clock = LogClock::default();
        clock.ended_before(at(1000), at(1000));
        clock.begun_after(at(2000), at(9000), at(9001));
        assert_eq!(bounds_ms(&clock), (-6500, 0));
    }

    #[test]
    fn old_bounds_expire() {
        let mut clock = LogClock::default();
        clock.ended_before(at(5000), at(0));
        for minute in 1..=PERIODS as i64 {
            clock.ended_before(at(minute * 60_000), at(minute * 60_000 + 10));
        }
        assert_eq!(bounds_ms(&clock).0, -10, "the clock was set back since then");
    }
}
