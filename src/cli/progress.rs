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
        let never = CancellationToken::new();
        let (mut stop, mut abort) = (&interrupts.stop, &interrupts.abort);
        let mut running = std::pin::pin!(running);
        loop {
            tokio::select! {
                ended = &mut running => return ended,
                _ = ticks.tick() => self.load(&control.progress(), planned),
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

    fn load(&self, progress: &load::Progress, planned: Option<u64>) {
        let line = || {
            let failed = |(outcome, n): (Outcome, u64)| {
                (outcome != Outcome::Ok && n > 0).then(|| format!("{n} {outcome}"))
            };
            let failed: Vec<_> = progress.outcomes.iter().filter_map(failed).collect();
            let recent = progress.recent.map(|recent| {
                format!(
                    ", p50 {:.1} ms, p99 {:.1} ms",
                    recent.p50.as_secs_f64() * 1e3,
                    recent.p99.as_secs_f64() * 1e3
                )
            });
            format!(
                "{} ok, {}{}, {} in flight{}",
                progress.outcomes.of(Outcome::Ok),
                if failed.is_empty() { "none failed" } else { "failed: " },
                failed.join(", "),
                progress.in_flight,
                recent.unwrap_or_default()
            )
        };
        match self {
            Self::Bar(bar) => match planned {
                Some(planned) => {
                    if bar.length() != Some(planned) {
                        bar.set_length(planned);
                        let style = ProgressStyle::with_template(
                            "{bar:20} {pos}/{len} requests, {eta} left; {wide_msg}",
                        );
                        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
                    }
                    bar.set_position(progress.scheduled.min(planned));
                    bar.set_message(line());
                }
                None => bar.set_message(format!("{} requests; {}", progress.scheduled, line())),
            },
            Self::Lines => {
                let of = planned.map(|planned| format!("/{planned}")).unwrap_or_default();
                eprintln!("rolldrop: {}{of} requests; {}", progress.scheduled, line());
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
