//! Progress on stderr: a bar on a terminal, plain lines elsewhere, nothing when quiet.

mod echo;

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::{Instant, interval_at};
use tokio_util::sync::CancellationToken;

use super::signals::Interrupts;
use echo::NoControlEcho;
use rolldrop_load as load;
use rolldrop_record::{Outcome, shown};

/// How often a bar is redrawn.
const REDRAWN: Duration = Duration::from_millis(200);
/// How often the state of a load is told in a line.
const TOLD: Duration = Duration::from_secs(1);
/// The same for one that is part of a longer task.
const PART_TOLD: Duration = Duration::from_secs(10);

/// What is known of a load before it starts.
#[derive(Clone, Copy, Default)]
pub(super) struct Planned<'a> {
    /// How many requests there will be.
    requests: Option<u64>,
    /// How long they will take to be sent.
    length: Option<Duration>,
    /// What the load is part of: said in place of these, and less often.
    part_of: Option<&'a dyn Fn() -> String>,
}

impl<'a> Planned<'a> {
    /// What a plan says.
    pub(super) fn of(plan: &load::Plan) -> Self {
        Self { requests: plan.requests(), length: plan.length(), part_of: None }
    }

    /// A load whose end is not known, as part of what this says.
    pub(super) fn part_of(what: Option<&'a dyn Fn() -> String>) -> Self {
        Self { requests: None, length: None, part_of: what }
    }

    /// The remaining time. Requests are counted a moment late: as long as some are missing, so is time.
    fn left(self, scheduled: u64, elapsed: Duration) -> Option<Duration> {
        let left = self.length?.saturating_sub(elapsed);
        let is_complete = self.requests.is_none_or(|all| scheduled >= all);
        Some(if is_complete { left } else { left.max(Duration::from_nanos(1)) })
    }
}

/// Shows the progress of a command. The bar is removed with it, also when the command fails.
#[derive(Debug)]
pub(super) enum Progress {
    /// A block that is redrawn.
    Bar {
        /// The block.
        bar: ProgressBar,
        _terminal: NoControlEcho,
    },
    /// A line for each step, and one a second while the load runs.
    Lines,
    /// Nothing.
    Quiet,
}

impl Progress {
    /// The form that fits stderr.
    pub(super) fn new(quiet: bool) -> Self {
        if quiet {
            Self::Quiet
        } else if std::io::stderr().is_terminal() {
            let bar = ProgressBar::no_length().with_style(ProgressStyle::default_spinner());
            bar.enable_steady_tick(REDRAWN);
            Self::Bar { bar, _terminal: NoControlEcho::begin() }
        } else {
            Self::Lines
        }
    }

    /// A step begins.
    pub(super) fn step(&self, what: &str) {
        let what = shown::one_line(what);
        match self {
            Self::Bar { bar, .. } => {
                bar.unset_length();
                bar.set_style(ProgressStyle::default_spinner());
                bar.enable_steady_tick(REDRAWN);
                bar.set_message(what.into_owned());
            }
            Self::Lines => eprintln!("rolldrop: {what}"),
            Self::Quiet => {}
        }
    }

    /// A notice, which stays on the screen and is shown even when quiet.
    pub(super) fn note(&self, what: &str) {
        let line = format!("rolldrop: {}", shown::lines(what));
        match self {
            Self::Bar { bar, .. } => bar.suspend(|| eprintln!("{line}")),
            Self::Lines | Self::Quiet => eprintln!("{line}"),
        }
    }

    /// Runs `act` while the progress does not draw on stderr.
    pub(super) fn hidden<T>(&self, act: impl FnOnce() -> T) -> T {
        match self {
            Self::Bar { bar, .. } => {
                // Its steady tick would draw over a question.
                bar.disable_steady_tick();
                bar.suspend(act)
            }
            Self::Lines | Self::Quiet => act(),
        }
    }

    /// Shows the load's progress until `running` ends, and passes interruptions on to it: the first ends the
    /// schedule, the second cuts off what is in flight.
    pub(super) async fn follow<T>(
        &self,
        running: impl Future<Output = T>,
        control: &load::Control,
        planned: Planned<'_>,
        interrupts: &Interrupts,
    ) -> T {
        let period = match (self, planned.part_of) {
            (Self::Bar { .. }, _) => REDRAWN,
            (_, Some(_)) => PART_TOLD,
            (_, None) => TOLD,
        };
        let mut ticks = interval_at(Instant::now() + period, period);
        let began = Instant::now();
        let mut rate = Rate::begin();
        let mut is_stopped = false;
        let never = CancellationToken::new();
        let (mut stop, mut abort) = (&interrupts.stop, &interrupts.abort);
        let mut running = std::pin::pin!(running);
        loop {
            tokio::select! {
                ended = &mut running => return ended,
                _ = ticks.tick() => {
                    let progress = control.progress();
                    rate.follow(Instant::now(), &progress);
                    let left = match is_stopped {
                        true => Some(Duration::ZERO),
                        false => planned.left(progress.scheduled, began.elapsed()),
                    };
                    let position = match planned.part_of {
                        Some(what) => what(),
                        None => position(progress.scheduled, planned.requests, left),
                    };
                    self.load(&progress, &rate, planned.requests, &position);
                }
                () = stop.cancelled() => {
                    control.stop();
                    stop = &never;
                    is_stopped = true;
                    self.say("stopping: waiting for requests in flight; Ctrl-C again cuts them off");
                }
                () = abort.cancelled() => {
                    control.abort();
                    abort = &never;
                }
            }
        }
    }

    /// A warning, which is shown even when quiet.
    pub(super) fn warn(&self, message: &str) {
        self.note(&format!("warning: {message}"));
    }

    /// A line that stays.
    pub(super) fn say(&self, message: &str) {
        let message = shown::lines(message);
        match self {
            Self::Bar { bar, .. } => bar.println(&*message),
            Self::Lines => eprintln!("rolldrop: {message}"),
            Self::Quiet => {}
        }
    }

    fn load(&self, progress: &load::Progress, rate: &Rate, planned: Option<u64>, position: &str) {
        match self {
            Self::Bar { bar, .. } => {
                let (_, columns) = console::Term::stderr().size();
                let columns = usize::from(columns);
                // Where there is little room, words go before pictures.
                let (template, bar_width) = match planned {
                    Some(_) if columns >= 70 => ("{bar:20} {msg}", 21),
                    _ => ("{msg}", 0),
                };
                let style = ProgressStyle::with_template(template);
                bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
                if let Some(planned) = planned {
                    bar.set_length(planned);
                }
                bar.set_position(progress.scheduled.min(planned.unwrap_or(u64::MAX)));
                bar.set_message(block(position, &parts(progress, rate), columns, bar_width));
            }
            Self::Lines => eprintln!("rolldrop: {position}; {}", parts(progress, rate).join("; ")),
            Self::Quiet => {}
        }
    }

    /// Nothing more to show.
    pub(super) fn done(&self) {
        if let Self::Bar { bar, .. } = self {
            bar.finish_and_clear();
        }
    }
}

/// The rates of about the last second, so that they can be read.
struct Rate {
    since: Instant,
    due: u64,
    not_sent: u64,
    offered_per_s: f64,
    sent_per_s: f64,
}

impl Rate {
    const INTERVAL: Duration = Duration::from_millis(900);

    fn begin() -> Self {
        Self { since: Instant::now(), due: 0, not_sent: 0, offered_per_s: 0.0, sent_per_s: 0.0 }
    }

    fn follow(&mut self, now: Instant, progress: &load::Progress) {
        let elapsed = now.duration_since(self.since);
        if elapsed < Self::INTERVAL {
            return;
        }
        let not_sent = progress.outcomes.of(Outcome::NotSent);
        let per_s = |requests: u64| requests as f64 / elapsed.as_secs_f64();
        let offered = progress.scheduled.saturating_sub(self.due);
        self.offered_per_s = per_s(offered);
        self.sent_per_s = per_s(offered.saturating_sub(not_sent.saturating_sub(self.not_sent)));
        (self.since, self.due, self.not_sent) = (now, progress.scheduled, not_sent);
    }
}

/// How many requests of a load are done, and the remaining time.
fn position(scheduled: u64, planned: Option<u64>, left: Option<Duration>) -> String {
    let of = planned.map(|planned| format!("/{planned}")).unwrap_or_default();
    let left = match left {
        Some(left) if left.is_zero() => ", waiting for the last answers".to_owned(),
        Some(left) => format!(", {} s left", left.as_secs() + u64::from(left.subsec_nanos() > 0)),
        None => String::new(),
    };
    format!("{scheduled}{of} requests{left}")
}

/// The state of a load: its rates, the outcomes of its requests, its latest latencies.
fn parts(progress: &load::Progress, rate: &Rate) -> Vec<String> {
    let failed = |(outcome, n): (Outcome, u64)| (outcome != Outcome::Ok).then(|| format!("{n} {outcome}"));
    let failed: Vec<_> = progress.outcomes.iter().filter_map(failed).collect();
    let failed =
        if failed.is_empty() { "none failed".to_owned() } else { format!("failed: {}", failed.join(", ")) };
    let Rate { offered_per_s, sent_per_s, .. } = rate;
    let mut parts = vec![
        format!("offered {offered_per_s:.0}/s, sent {sent_per_s:.0}/s, {} in flight", progress.in_flight),
        format!("{} ok, {failed}", progress.outcomes.of(Outcome::Ok)),
    ];
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    parts.extend(
        progress.recent.map(|recent| format!("p50 {:.1} ms, p99 {:.1} ms", ms(recent.p50), ms(recent.p99))),
    );
    parts
}

/// The parts on lines of their own, none wider than the terminal; a bar precedes the first.
fn block(position: &str, parts: &[String], columns: usize, bar_width: usize) -> String {
    let fit = |text: &str, width: usize| console::truncate_str(text, width.max(1), "…").into_owned();
    let mut lines = vec![fit(position, columns.saturating_sub(bar_width + 1))];
    lines.extend(parts.iter().map(|part| fit(part, columns.saturating_sub(1))));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy() -> load::Progress {
        let mut progress = load::Progress { scheduled: 400, in_flight: 3, ..load::Progress::default() };
        progress.outcomes.add(Outcome::Ok, 380);
        progress.outcomes.add(Outcome::ConnectRefused, 7);
        progress.outcomes.add(Outcome::NotSent, 10);
        progress.recent =
            Some(load::Recent { p50: Duration::from_micros(1500), p99: Duration::from_millis(20) });
        progress
    }

    #[test]
    fn rates_failures_by_class_latency_and_time_left_are_told() {
        let mut rate = Rate::begin();
        rate.follow(rate.since + Duration::from_secs(2), &busy());
        assert_eq!(
            parts(&busy(), &rate),
            [
                "offered 200/s, sent 195/s, 3 in flight",
                "380 ok, failed: 7 connect_refused, 10 not_sent",
                "p50 1.5 ms, p99 20.0 ms"
            ]
        );
        assert_eq!(parts(&load::Progress::default(), &rate)[1], "0 ok, none failed");
        let left = |ms| position(400, Some(600), Some(Duration::from_millis(ms)));
        assert_eq!(left(9_100), "400/600 requests, 10 s left");
        assert_eq!(left(0), "400/600 requests, waiting for the last answers");
        assert_eq!(position(400, None, None), "400 requests");
        let planned = Planned { requests: Some(600), length: Some(Duration::from_secs(3)), part_of: None };
        let left = |scheduled, s| position(scheduled, None, planned.left(scheduled, Duration::from_secs(s)));
        assert_eq!(left(400, 3), "400 requests, 1 s left");
        assert_eq!(left(600, 3), "600 requests, waiting for the last answers");
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let rate = Rate::begin();
        for columns in [10, 30, 40, 80, 200] {
            let block = block("400/600 requests, 10 s left", &parts(&busy(), &rate), columns, 0);
            let widths: Vec<usize> = block.lines().map(|line| line.chars().count()).collect();
            assert_eq!(widths.len(), 4);
            assert!(widths.iter().all(|width| *width < columns.max(2)), "{columns}: {block}");
        }
    }

    #[test]
    fn the_rate_is_that_of_about_a_second() {
        let mut rate = Rate::begin();
        let start = rate.since;
        let mut at = |ms, scheduled| {
            let progress = load::Progress { scheduled, ..load::Progress::default() };
            rate.follow(start + Duration::from_millis(ms), &progress);
            rate.offered_per_s
        };
        assert_eq!([at(200, 50), at(1000, 300), at(1200, 400), at(2000, 500)], [0.0, 300.0, 300.0, 200.0]);
    }
}
