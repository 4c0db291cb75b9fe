//! Decides which lines of a reopened log are new, and whether lines may be missing. Pure: no clock, no I/O.
//!
//! A log can only be reopened at a whole second, and an API server's view of a pod lags, so neither times nor restart
//! counts tell where to continue. The lines themselves do. A reopened log begins with lines that were delivered before,
//! and the last of those proves that nothing is missing. If that line is missing, the log was rotated, or belongs to a
//! later run of the container.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use rolldrop_record::Stamp;

/// Longest time by which a line may be older than the one before it. Runtimes timestamp stdout and stderr separately.
const DISORDER: Duration = Duration::from_secs(1);
/// Interval at which the kubelet looks for logs to rotate (`containerLogMonitorInterval`).
const ROTATION_NS: i64 = 10 * SECOND_NS;
const SECOND_NS: i64 = 1_000_000_000;

/// Identity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LineMark {
    /// Time at which the runtime read the line.
    pub(super) written: Stamp,
    /// Hash of the text.
    pub(super) hash: u64,
}

/// Position at which a log has to be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogStart {
    /// The oldest line that is kept.
    Oldest,
    /// The first line written in or after this second, in Unix seconds.
    Second(i64),
    /// After the newest line.
    End,
}

/// Decision on a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineDecision {
    /// The line was delivered before, or is older than the earliest line that is wanted.
    Known,
    /// The line follows those that were delivered.
    New,
    /// The line is new, but lines between it and the last one may have been skipped.
    AfterSkip,
    /// The line is new, and nothing shows that it follows those that were delivered. It has not been taken.
    Unproven,
}

/// Lines that were delivered from one container's log.
#[derive(Debug)]
pub(super) struct Continuity {
    /// Earliest line that is wanted.
    since: Option<Stamp>,
    last: Option<LineMark>,
    /// Latest time of any line. It is later than the last line's time if lines are out of order.
    newest: Stamp,
    /// Delivered lines that the log shows again when it is reopened. Their number is bounded by the limit on the rate.
    repeated: VecDeque<LineMark>,
    /// The repeated lines that the open log has yet to show, with their counts, because lines may be identical.
    pending: HashMap<LineMark, u32>,
    /// True if the open log was shown to continue the delivered lines.
    is_proven: bool,
    /// Time until which no line is missing, if none was delivered.
    covered_until: Stamp,
    /// Time at which the log was last opened.
    opened: Stamp,
    /// Delay of the last line, and the smallest delay, in nanoseconds. The smallest includes the offset between clocks.
    delay_ns: i64,
    least_delay_ns: i64,
}

impl Continuity {
    /// Begins before the first line. Lines older than `since` are not wanted, and none is missing before `begun`.
    pub(super) fn begin(since: Option<Stamp>, begun: Stamp) -> Self {
        Self {
            since,
            last: None,
            newest: Stamp::from_unix_ns(i64::MIN),
            repeated: VecDeque::new(),
            pending: HashMap::new(),
            is_proven: false,
            covered_until: begun,
            opened: begun,
            delay_ns: i64::MAX,
            least_delay_ns: i64::MAX,
        }
    }

    /// Returns the position at which to open the log.
    pub(super) fn start(&self) -> LogStart {
        match self.since {
            _ if self.is_set_back() => LogStart::End,
            _ if self.last.is_some() => LogStart::Second(second_of(self.overlap())),
            Some(since) => LogStart::Second(second_of(since)),
            None => LogStart::Oldest,
        }
    }

    /// Notes that the log has been opened again at [`Continuity::start`].
    pub(super) fn open(&mut self, now: Stamp) {
        self.opened = now;
        self.is_proven = false;
        self.pending.clear();
        for mark in &self.repeated {
            *self.pending.entry(*mark).or_default() += 1;
        }
    }

    /// Notes that the log was open until now, or did not exist.
    pub(super) fn cover(&mut self, until: Stamp) {
        self.covered_until = self.covered_until.max(until);
    }

    /// Decides on the next line of the open log.
    pub(super) fn take(&mut self, line: LineMark, arrived: Stamp) -> LineDecision {
        if let Some(count) = self.pending.get_mut(&line) {
            *count -= 1;
            if *count == 0 {
                self.pending.remove(&line);
            }
            self.is_proven |= self.last == Some(line);
            return LineDecision::Known;
        }
        if self.since.is_some_and(|since| line.written < since) {
            return LineDecision::Known;
        }
        if !self.is_proven {
            return LineDecision::Unproven;
        }
        let is_after_skip = self.may_have_skipped(line);
        self.remember(line, arrived);
        if is_after_skip { LineDecision::AfterSkip } else { LineDecision::New }
    }

    /// Accepts the open log as the continuation of the delivered lines, even without proof.
    pub(super) fn settle(&mut self) {
        self.is_proven = true;
    }

    pub(super) fn is_proven(&self) -> bool {
        self.is_proven
    }

    /// Returns true if the log was not read for so long that its first lines may have been rotated away.
    pub(super) fn is_late(&self) -> bool {
        self.opened.ns_since(self.covered_until) >= ROTATION_NS
    }

    /// Returns the last delivered line.
    pub(super) fn last(&self) -> Option<LineMark> {
        self.last
    }

    /// Returns true if the clock of the log was set back, so that times do not tell which lines are new.
    pub(super) fn is_set_back(&self) -> bool {
        self.last.is_some_and(|last| last.written < self.overlap())
    }

    /// Returns the period in which lines may be missing before the next line of the open log, which has all lines since
    /// it was opened.
    pub(super) fn gap_before(&self, next: Stamp) -> (Stamp, Stamp) {
        self.gap_until(next.min(self.opened))
    }

    /// Returns the period from the last delivered line until this time.
    pub(super) fn gap_until(&self, to: Stamp) -> (Stamp, Stamp) {
        (self.last.map_or(self.covered_until, |last| last.written).min(to), to)
    }

    /// Returns true if the kubelet may have skipped a file before this line. A kubelet that is behind reads a rotated
    /// file to its end, and then the current one. If the log was rotated twice in the meantime, it skips the file in
    /// between. It must therefore be behind by at least [`ROTATION_NS`], and the file must cover at least that time.
    fn may_have_skipped(&self, line: LineMark) -> bool {
        let is_behind = self.delay_ns.saturating_sub(self.least_delay_ns) >= ROTATION_NS;
        is_behind && self.last.is_some_and(|last| line.written.ns_since(last.written) >= ROTATION_NS)
    }

    fn remember(&mut self, line: LineMark, arrived: Stamp) {
        self.delay_ns = arrived.ns_since(line.written);
        self.least_delay_ns = self.least_delay_ns.min(self.delay_ns);
        self.last = Some(line);
        self.newest = self.newest.max(line.written);
        let overlap = self.overlap();
        // A line that is too old will not be shown again.
        if line.written >= overlap {
            self.repeated.push_back(line);
        }
        while self.repeated.front().is_some_and(|first| first.written < overlap) {
            self.repeated.pop_front();
        }
    }

    /// Returns the time of the earliest line to ask for again.
    fn overlap(&self) -> Stamp {
        Stamp::from_unix_ns(second_of(self.newest - DISORDER).saturating_mul(SECOND_NS))
    }
}

fn second_of(at: Stamp) -> i64 {
    at.unix_ns().div_euclid(SECOND_NS)
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::LineDecision::{AfterSkip, Known, New, Unproven};
    use super::*;

    const START_MS: i64 = 1_000_000;

    /// Returns a line written this many milliseconds after the start.
    fn line(ms: i64, text: u64) -> LineMark {
        LineMark { written: at(ms), hash: text }
    }

    fn at(ms: i64) -> Stamp {
        Stamp::from_unix_ns((START_MS + ms) * 1_000_000)
    }

    /// Opens the log, and returns the decisions on these lines, which arrive at once.
    fn read(log: &mut Continuity, lines: &[LineMark]) -> Vec<LineDecision> {
        let now = lines.iter().map(|line| line.written).max().unwrap_or(at(0));
        log.open(now);
        lines.iter().map(|line| log.take(*line, now)).collect()
    }

    /// Returns a log from which these lines were delivered.
    fn after(lines: &[LineMark]) -> Continuity {
        let mut log = Continuity::begin(None, at(0));
        log.open(at(0));
        log.settle();
        assert!(lines.iter().all(|line| log.take(*line, line.written) == New));
        log
    }

    #[test]
    fn reopened_log_shows_only_new_lines() {
        let mut log = after(&[line(0, 1), line(5, 2), line(2500, 3)]);
        assert_eq!(log.start(), LogStart::Second(1001), "up to a second of disorder, and whole seconds");
        assert_eq!(read(&mut log, &[line(2500, 3), line(2600, 4)]), [Known, New]);
        assert_eq!(read(&mut log, &[line(2500, 3), line(2600, 4), line(2600, 5)]), [Known, Known, New]);
    }

    #[test]
    fn identical_lines_are_counted() {
        let twice = [line(0, 1), line(0, 1)];
        let mut log = after(&twice);
        // The third was written while nobody was reading.
        let again = [twice[0], twice[1], line(0, 1), line(0, 2)];
        assert_eq!(read(&mut log, &again), [Known, Known, New, New]);
        assert_eq!(read(&mut log, &again), [Known; 4]);
    }

    #[test]
    fn lines_out_of_order_are_not_lost() {
        let mut log = after(&[line(2000, 1), line(1950, 2), line(1999, 3)]);
        let shown = [line(2000, 1), line(1950, 2), line(1999, 3), line(1400, 4)];
        assert_eq!(read(&mut log, &shown), [Known, Known, Known, New]);
    }

    #[test]
    fn line_after_rotation_is_unproven() {
        let mut log = after(&[line(0, 1), line(10, 2)]);
        assert_eq!(read(&mut log, &[line(30, 3)]), [Unproven]);
        assert_eq!(log.gap_before(at(30)), (at(10), at(30)));
        log.settle();
        assert_eq!(log.take(line(30, 3), at(30)), New);
        // Some of the delivered lines are enough if they include the last one.
        let mut log = after(&[line(0, 1), line(10, 2)]);
        assert_eq!(read(&mut log, &[line(10, 2), line(30, 3)]), [Known, New]);
        // The first of two lines proves nothing.
        let mut log = after(&[line(0, 1), line(10, 2)]);
        assert_eq!(read(&mut log, &[line(0, 1), line(30, 3)]), [Known, Unproven]);
    }

    #[test]
    fn gap_ends_when_empty_log_is_opened() {
        let mut log = after(&[line(0, 1)]);
        log.open(at(20_000));
        let much_later = line(3_600_000, 2);
        assert_eq!(log.take(much_later, much_later.written), Unproven);
        assert_eq!(log.gap_before(much_later.written), (at(0), at(20_000)));
    }

    #[test]
    fn log_opened_late_may_lack_lines() {
        let mut log = Continuity::begin(None, at(0));
        log.cover(at(60_000));
        log.open(at(60_100));
        assert!(!log.is_late(), "the container has just started");
        log.open(at(70_000));
        assert!(log.is_late());
        assert_eq!(log.gap_before(at(69_500)), (at(60_000), at(69_500)));
    }

    #[test]
    fn lines_before_requested_start_are_skipped() {
        let mut log = Continuity::begin(Some(at(500)), at(500));
        assert_eq!(log.start(), LogStart::Second(1000));
        log.open(at(500));
        assert_eq!(log.take(line(400, 1), at(600)), Known);
        assert_eq!(log.take(line(600, 2), at(600)), Unproven);
        log.settle();
        assert_eq!(log.take(line(600, 2), at(600)), New);
        // The overlap would begin earlier.
        assert_eq!(read(&mut log, &[line(400, 1), line(600, 2), line(700, 3)]), [Known, Known, New]);
    }

    #[test]
    fn clock_set_back_causes_gap_not_duplicates() {
        let mut log = after(&[line(60_000, 1)]);
        assert_eq!(log.take(line(0, 2), at(0)), New);
        assert!(log.is_set_back());
        assert_eq!(log.start(), LogStart::End, "times would show the first line again");
        assert_eq!(read(&mut log, &[line(10, 3)]), [Unproven]);
        log.settle();
        for ms in 10..100 {
            assert_eq!(log.take(line(ms, 3), at(ms)), New);
        }
        assert_eq!(log.repeated.len(), 1, "memory is bounded");
        // The clock has caught up.
        assert_eq!(log.take(line(60_500, 4), at(60_500)), New);
        assert_eq!(read(&mut log, &[line(60_000, 1), line(60_500, 4), line(61_000, 5)]), [Known, Known, New]);
    }

    #[test]
    fn pause_while_behind_may_hide_skipped_file() {
        let mut log = after(&[line(0, 1)]);
        assert_eq!(log.take(line(30_000, 2), at(30_000)), New, "the gateway had no requests");
        assert_eq!(log.take(line(30_001, 3), at(42_000)), New);
        assert_eq!(log.take(line(30_002, 4), at(43_000)), New);
        assert_eq!(log.take(line(41_000, 5), at(43_000)), AfterSkip);
        assert_eq!(log.take(line(60_000, 6), at(60_000)), New);
    }

    /// Returns a log with pauses, equal times and lines out of order. Equal lines occur only if asked for: after a
    /// rotation between two of them, nothing tells them apart.
    fn random_log(random: &mut StdRng, has_equal: bool) -> Vec<LineMark> {
        let mut ms = 0;
        let mut line = |number| {
            ms += [0, 0, 0, 1, 300, 900, 4000][random.random_range(0..7)];
            let early = [0, 0, 500][random.random_range(0..3)];
            line(ms - early, if has_equal { random.random_range(0..2) } else { number })
        };
        (0..60).map(&mut line).collect()
    }

    #[test]
    fn continuity_survives_any_interruption() {
        for seed in 0..2000 {
            let random = &mut StdRng::seed_from_u64(seed);
            let is_rotated = seed % 2 == 0;
            let lines = random_log(random, !is_rotated);
            let mut log = Continuity::begin(None, at(0));
            // The log has the lines from `kept` to `written`.
            let (mut kept, mut written, mut delivered, mut gaps) = (0, 0, Vec::new(), Vec::new());
            while delivered.last() != Some(&(lines.len() - 1)) {
                written = random.random_range(written..=lines.len());
                if is_rotated && random.random_range(0..3) == 0 {
                    kept = random.random_range(kept..=written.min(lines.len() - 1).max(kept));
                }
                let since = match log.start() {
                    LogStart::Oldest => i64::MIN,
                    LogStart::Second(second) => second * SECOND_NS,
                    LogStart::End => panic!("the clock was not set back"),
                };
                log.open(at(1_000_000));
                let shown = (kept..written).filter(|n| lines[*n].written.unix_ns() >= since);
                for number in shown.take(random.random_range(0..60)).collect::<Vec<_>>() {
                    let mut decision = log.take(lines[number], lines[number].written);
                    if decision == Unproven {
                        gaps.extend(log.last().map(|_| (number, log.gap_before(lines[number].written))));
                        log.settle();
                        decision = log.take(lines[number], lines[number].written);
                    }
                    if decision != Known {
                        delivered.push(number);
                    }
                }
            }
            let missing: Vec<_> = (0..lines.len()).filter(|number| !delivered.contains(number)).collect();
            assert!(delivered.is_sorted_by(|a, b| a < b), "{seed}: {delivered:?}");
            assert!(is_rotated || (missing.is_empty() && gaps.is_empty()), "{seed}: {missing:?} {gaps:?}");
            let first = delivered[0];
            let mut holes = delivered.windows(2).filter(|pair| pair[1] != pair[0] + 1);
            let is_said = |pair: &[usize]| {
                let Some((_, (from, to))) = gaps.iter().find(|(next, _)| *next == pair[1]) else {
                    return false;
                };
                let covered = (*from - DISORDER)..=(*to + DISORDER);
                pair[1] > first
                    && (pair[0] + 1..pair[1]).all(|missed| covered.contains(&lines[missed].written))
            };
            assert!(holes.all(is_said), "{seed}: {missing:?} {gaps:?}");
        }
    }

    #[test]
    fn memory_is_limited_to_two_seconds_of_lines() {
        let lines: Vec<_> = (0..10_000).map(|ms| line(ms, 0)).collect();
        let log = after(&lines);
        assert!(log.repeated.len() <= 2000, "{}", log.repeated.len());
        assert!(log.pending.is_empty());
    }
}
