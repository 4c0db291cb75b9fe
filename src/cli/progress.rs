//! Progress on stderr: a bar on a terminal, plain lines elsewhere, nothing when quiet.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::{Instant, interval_at};
use tokio_util::sync::CancellationToken;

use super::signals::Interrupts;
use crate::load;
use crate::record::Outcome;

/// Shows how a command gets on. The bar goes away with it, also when the command fails.
#[derive(Debug)]
pub(super) enum Progress {
    /// A line that is redrawn.
    Bar(ProgressBar),
    /// A line for each step, and one a second while the load runs.
    Lines,
    /// Nothing.
    Quiet,
}

impl Progress {
    /// What fits where stderr goes.
    pub(super) fn new(quiet: bool) -> Self {
        if quiet {
            Self::Quiet
        } else if std::io::stderr().is_terminal() {
            let bar = ProgressBar::no_length();
            bar.enable_steady_tick(Duration::from_millis(200));
            Self::Bar(bar)
        } else {
            Self::Lines
        }
    }

    /// A step begins.
    pub(super) fn step(&self, what: &str) {
        match self {
            Self::Bar(bar) => {
                bar.unset_length();
                bar.set_style(ProgressStyle::default_spinner());
                bar.set_message(what.to_owned());
            }
            Self::Lines => eprintln!("rolldrop: {what}"),
            Self::Quiet => {}
        }
    }

    /// Something to know, which stays on the screen. Said even when quiet: it is no progress.
    pub(super) fn note(&self, what: &str) {
        let line = format!("rolldrop: {what}");
        match self {
            Self::Bar(bar) => bar.suspend(|| eprintln!("{line}")),
            Self::Lines | Self::Quiet => eprintln!("{line}"),
        }
    }

    /// Shows the load's progress until `running` answers, and passes interruptions on to it:
    /// the first ends the schedule, the second cuts off what is in flight. `planned` requests
    /// are to be scheduled, where that is known beforehand.
    pub(super) async fn follow<T>(
        &self,
        running: impl Future<Output = T>,
        control: &load::Control,
        planned: Option<u64>,
        interrupts: &Interrupts,
    ) -> T {
        let period = Duration::from_millis(if matches!(self, Self::Bar(_)) { 200 } else { 1000 });
        let mut ticks = interval_at(Instant::now() + period, period);
        let mut rate = Rate::begin();
        let never = CancellationToken::new();
        let (mut stop, mut abort) = (&interrupts.stop, &interrupts.abort);
        let mut running = std::pin::pin!(running);
        loop {
            tokio::select! {
                ended = &mut running => return ended,
                _ = ticks.tick() => {
                    let progress = control.progress();
                    self.load(&progress, rate.at(Instant::now(), progress.scheduled), planned);
                }
                () = stop.cancelled() => {
                    control.stop();
                    stop = &never;
                    self.say("stopping: waiting for requests in flight; Ctrl-C again cuts them off");
                }
                () = abort.cancelled() => {
                    control.abort();
                    abort = &never;
                }
            }
        }
    }

    /// Something that is to be known beside the progress, also when that is not shown.
    pub(super) fn warn(&self, message: &str) {
        let line = format!("warning: {message}");
        match self {
            Self::Bar(bar) => bar.println(format!("rolldrop: {line}")),
            Self::Lines | Self::Quiet => eprintln!("rolldrop: {line}"),
        }
    }

    /// A line that stays.
    pub(super) fn say(&self, message: &str) {
        match self {
            Self::Bar(bar) => bar.println(message),
            Self::Lines => eprintln!("rolldrop: {message}"),
            Self::Quiet => {}
        }
    }

    fn load(&self, progress: &load::Progress, per_s: f64, planned: Option<u64>) {
        match self {
            Self::Bar(bar) => {
                if bar.length() != planned || bar.message().is_empty() {
                    let style = match planned {
                        Some(planned) => {
                            bar.set_length(planned);
                            ProgressStyle::with_template("{bar:20} {pos}/{len}, {eta} left; {wide_msg}")
                        }
                        None => ProgressStyle::with_template("{spinner} {pos}; {wide_msg}"),
                    };
                    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
                }
                bar.set_position(progress.scheduled.min(planned.unwrap_or(u64::MAX)));
                bar.set_message(line(progress, per_s));
            }
            Self::Lines => {
                let of = planned.map(|planned| format!("/{planned}")).unwrap_or_default();
                eprintln!("rolldrop: {}{of} requests; {}", progress.scheduled, line(progress, per_s));
            }
            Self::Quiet => {}
        }
    }

    /// Nothing more to show.
    pub(super) fn done(&self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

/// The rate of about the last second, so that it can be read.
struct Rate {
    since: Instant,
    scheduled: u64,
    per_s: f64,
}

impl Rate {
    const INTERVAL: Duration = Duration::from_millis(900);

    fn begin() -> Self {
        Self { since: Instant::now(), scheduled: 0, per_s: 0.0 }
    }

    fn at(&mut self, now: Instant, scheduled: u64) -> f64 {
        let elapsed = now.duration_since(self.since);
        if elapsed >= Self::INTERVAL {
            self.per_s = scheduled.saturating_sub(self.scheduled) as f64 / elapsed.as_secs_f64();
            (self.since, self.scheduled) = (now, scheduled);
        }
        self.per_s
    }
}

/// What a load does, in one line.
fn line(progress: &load::Progress, per_s: f64) -> String {
    let failed = |(outcome, n): (Outcome, u64)| (outcome != Outcome::Ok).then(|| format!("{n} {outcome}"));
    let failed: Vec<_> = progress.outcomes.iter().filter_map(failed).collect();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let recent =
        |recent: load::Recent| format!(", p50 {:.1} ms, p99 {:.1} ms", ms(recent.p50), ms(recent.p99));
    format!(
        "{per_s:.0}/s, {} in flight, {} ok, {}{}{}",
        progress.in_flight,
        progress.outcomes.of(Outcome::Ok),
        if failed.is_empty() { "none failed" } else { "failed: " },
        failed.join(", "),
        progress.recent.map(recent).unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_rate_failures_by_class_and_latency() {
        let mut progress = load::Progress { scheduled: 400, in_flight: 3, ..load::Progress::default() };
        assert_eq!(line(&progress, 199.6), "200/s, 3 in flight, 0 ok, none failed");
        progress.outcomes.add(Outcome::Ok, 390);
        progress.outcomes.add(Outcome::ConnectRefused, 7);
        progress.recent =
            Some(load::Recent { p50: Duration::from_micros(1500), p99: Duration::from_millis(20) });
        assert_eq!(
            line(&progress, 200.0),
            "200/s, 3 in flight, 390 ok, failed: 7 connect_refused, p50 1.5 ms, p99 20.0 ms"
        );
    }

    #[test]
    fn the_rate_is_that_of_about_a_second() {
        let mut rate = Rate::begin();
        let start = rate.since;
        assert_eq!(rate.at(start + Duration::from_millis(200), 50), 0.0);
        assert_eq!(rate.at(start + Duration::from_secs(1), 300), 300.0);
        assert_eq!(rate.at(start + Duration::from_millis(1200), 400), 300.0);
        assert_eq!(rate.at(start + Duration::from_secs(2), 500), 200.0);
    }
}
