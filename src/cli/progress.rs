//! Progress on stderr: a block on a terminal, lines elsewhere, nothing when quiet.
//!
//! [`live`] derives the state of a run from what it records, [`load`] puts the figures of a load into words, [`screen`]
//! makes a block or a line of both, and [`news`] says what has happened in lines.

mod echo;
mod live;
mod load;
mod news;
mod screen;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::{Instant, interval};
use tokio_util::sync::CancellationToken;

use super::classes::ByClass;
use super::signals::Interrupts;
use crate::coordinator::{Standing, Viewer};
use echo::NoControlEcho;
use live::LiveState;
pub(super) use load::Planned;
use load::{End, Figures, Rate};
use rolldrop_explain::model::figures::count;
use rolldrop_load::Control;
use rolldrop_record::{Clock, Event, shown};
use rolldrop_scenario::Disruption;
use screen::Screen;

/// Interval at which the block is redrawn and the load is sampled.
const REDRAWN: Duration = Duration::from_millis(200);
/// Period of news that is told together in lines.
const FOLDED: Duration = Duration::from_secs(1);
/// Interval between lines about the state.
const TOLD: Duration = Duration::from_secs(10);
/// Prefix of each line.
const PREFIX: &str = "rolldrop: ";

/// Progress of a command, as it is shown. The block is removed with it, also when the command fails.
#[derive(Debug)]
pub(super) struct Progress {
    form: Form,
    clock: Clock,
    live: Arc<Live>,
    said: Mutex<Said>,
}

#[derive(Debug)]
enum Form {
    /// A block that is redrawn.
    Block { bar: ProgressBar, _terminal: NoControlEcho },
    /// A line when something happens, and one now and then.
    Lines,
    /// Nothing.
    Quiet,
}

/// State that the command itself has reported.
#[derive(Debug, Default)]
struct Said {
    step: String,
    load: Option<Figures>,
    /// True while something else uses the terminal, until the next step.
    is_hidden: bool,
    /// Earliest time of the next line about the state.
    told_next: Option<Instant>,
    /// Number of times each warning came, by its text.
    warnings: BTreeMap<String, u64>,
}

impl Said {
    /// Counts a warning, and returns true if it is the first with its text.
    fn is_new_warning(&mut self, message: &str) -> bool {
        let times = self.warnings.entry(message.to_owned()).or_default();
        *times += 1;
        *times == 1
    }

    /// Takes the warnings that came more than once, with their counts.
    fn take_repeated(&mut self) -> Vec<String> {
        let warnings = std::mem::take(&mut self.warnings).into_iter().filter(|(_, times)| *times > 1);
        warnings
            .map(|(message, times)| format!("{} times in all: warning: {message}", count(times)))
            .collect()
    }
}

/// The state of the run, which its tasks keep up to date.
#[derive(Debug, Default)]
struct Live(Mutex<LiveState>);

impl Live {
    fn state(&self) -> MutexGuard<'_, LiveState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Viewer for Live {
    fn recorded(&self, event: &Event) {
        self.state().apply(event);
    }

    fn stands(&self, index: u32, disruption: &Disruption, standing: Standing) {
        self.state().stands(index, disruption, standing);
    }

    fn unsettled(&self, what: Option<&str>) {
        self.state().unsettled(what);
    }

    fn unready(&self, why: &str) {
        self.state().unready(why);
    }
}

impl Progress {
    /// Chooses the form that fits stderr.
    pub(super) fn new(quiet: bool, clock: Clock) -> Self {
        let form = if quiet {
            Form::Quiet
        } else if std::io::stderr().is_terminal() {
            let bar = ProgressBar::no_length().with_style(ProgressStyle::default_spinner());
            bar.enable_steady_tick(REDRAWN);
            Form::Block { bar, _terminal: NoControlEcho::begin() }
        } else {
            Form::Lines
        };
        Self { form, clock, live: Arc::default(), said: Mutex::default() }
    }

    /// Returns the viewer of the run whose progress this is.
    pub(super) fn viewer(&self) -> Arc<dyn Viewer> {
        Arc::clone(&self.live) as Arc<dyn Viewer>
    }

    /// Begins a step.
    pub(super) fn step(&self, what: &str) {
        let what = shown::one_line(what);
        self.tell_news();
        let mut said = self.said();
        said.step = what.clone().into_owned();
        said.is_hidden = false;
        drop(said);
        match &self.form {
            Form::Block { bar, .. } => {
                bar.set_style(ProgressStyle::default_spinner());
                bar.enable_steady_tick(REDRAWN);
                self.draw(bar);
            }
            Form::Lines => eprintln!("{PREFIX}{what}"),
            Form::Quiet => {}
        }
    }

    /// Shows a notice, which stays on the screen and is shown even when quiet.
    pub(super) fn note(&self, what: &str) {
        self.tell_news();
        let line = format!("{PREFIX}{}", shown::message(what));
        match &self.form {
            Form::Block { bar, .. } => bar.suspend(|| eprintln!("{line}")),
            Form::Lines | Form::Quiet => eprintln!("{line}"),
        }
    }

    /// Runs `act`, which uses the terminal: nothing is drawn there until the next step.
    pub(super) fn hidden<T>(&self, act: impl FnOnce() -> T) -> T {
        self.said().is_hidden = true;
        match &self.form {
            Form::Block { bar, .. } => {
                // Its steady tick would draw over a question.
                bar.disable_steady_tick();
                bar.suspend(act)
            }
            Form::Lines | Form::Quiet => act(),
        }
    }

    /// Shows the progress of a run until it ends.
    pub(super) async fn show<T>(&self, run: impl Future<Output = T>) -> T {
        *self.live.state() = LiveState::default();
        self.said().told_next = Some(Instant::now() + TOLD);
        let ended = tokio::select! {
            biased;
            ended = run => ended,
            never = self.keep_showing() => match never {},
        };
        self.tell_news();
        *self.live.state() = LiveState::default();
        ended
    }

    /// Follows a load until `running` ends, and passes interruptions on to it: the first ends the schedule, the second
    /// cuts off what is in flight.
    pub(super) async fn follow<T>(
        &self,
        running: impl Future<Output = T>,
        control: &Control,
        planned: Planned<'_>,
        interrupts: &Interrupts,
    ) -> T {
        let mut ticks = interval(REDRAWN);
        let (began, mut rate, mut end) = (Instant::now(), Rate::begin(), End::Planned);
        let never = CancellationToken::new();
        let (mut stop, mut abort) = (&interrupts.stop, &interrupts.abort);
        let mut running = std::pin::pin!(running);
        if let Form::Block { bar, .. } = &self.form {
            bar.set_style(template("{msg}"));
        }
        let ended = loop {
            tokio::select! {
                ended = &mut running => break ended,
                _ = ticks.tick() => {
                    let progress = control.progress();
                    rate.follow(Instant::now(), &progress);
                    let dropped = ByClass::dropped(&progress.outcomes, &progress.error_statuses);
                    self.live.state().dropped(self.clock.now(), dropped, planned.is_warmup(began.elapsed()));
                    let position =
                        planned.position(progress.scheduled, progress.warmup.total(), began.elapsed(), end);
                    self.said().load = Some(Figures { position, progress, rate });
                }
                () = stop.cancelled() => {
                    control.stop();
                    stop = &never;
                    end = End::Stopped;
                    self.say("stopping: waiting for requests in flight; Ctrl-C again cuts them off");
                }
                () = abort.cancelled() => {
                    control.abort();
                    abort = &never;
                }
            }
        };
        self.live.state().tell_loss();
        self.said().load = None;
        ended
    }

    /// Sets the time without losses that the run waits for; `None` if it no longer waits.
    pub(super) fn awaits_silence(&self, silence: Option<Duration>) {
        self.live.state().awaits_silence(silence);
    }

    /// Shows a warning, even when quiet: once, with the number of times that it came at the end.
    pub(super) fn warn(&self, message: &str) {
        let is_new = self.said().is_new_warning(message);
        if is_new {
            self.note(&format!("warning: {message}"));
        }
    }

    /// Prints a line that stays.
    pub(super) fn say(&self, message: &str) {
        self.tell_news();
        let message = shown::message(message);
        match &self.form {
            Form::Block { bar, .. } => bar.println(&*message),
            Form::Lines => eprintln!("{PREFIX}{message}"),
            Form::Quiet => {}
        }
    }

    /// Ends the display. Warnings that came more than once are shown with their counts.
    pub(super) fn done(&self) {
        let repeated = self.said().take_repeated();
        repeated.iter().for_each(|text| self.note(text));
        if let Form::Block { bar, .. } = &self.form {
            bar.finish_and_clear();
        }
    }

    async fn keep_showing(&self) -> Infallible {
        let mut ticks = interval(if matches!(self.form, Form::Block { .. }) { REDRAWN } else { FOLDED });
        loop {
            let now = ticks.tick().await;
            if self.said().is_hidden {
                continue;
            }
            match &self.form {
                Form::Block { bar, .. } => self.draw(bar),
                Form::Lines => {
                    self.tell_news();
                    self.tell_state(now);
                }
                // Without this, news would pile up.
                Form::Quiet => self.tell_news(),
            }
        }
    }

    /// Prints the news since the last call, if progress is shown as lines.
    fn tell_news(&self) {
        let news = self.live.state().take_news();
        if matches!(self.form, Form::Lines) {
            for line in news::lines(&news, news::COLUMNS - PREFIX.len()) {
                eprintln!("{PREFIX}{}", shown::one_line(&line));
            }
        }
    }

    fn tell_state(&self, now: Instant) {
        let line = {
            let mut said = self.said();
            if said.told_next.is_none_or(|next| now < next) {
                return;
            }
            said.told_next = Some(now + TOLD);
            self.screen(&said, &self.live.state()).line(news::COLUMNS - PREFIX.len())
        };
        eprintln!("{PREFIX}{line}");
    }

    fn draw(&self, bar: &ProgressBar) {
        let (rows, columns) = console::Term::stderr().size();
        let block = {
            let (said, mut state) = (self.said(), self.live.state());
            // The block shows it.
            state.take_news();
            // A spinner precedes the first line of a step.
            let spinner = if said.load.is_none() { 2 } else { 0 };
            self.screen(&said, &state).block(usize::from(columns).saturating_sub(spinner), rows.into())
        };
        // The locks are released: a terminal may be slow, and the tasks of the run do not wait for it.
        bar.set_message(block.join("\n"));
    }

    fn screen<'a>(&self, said: &'a Said, state: &'a LiveState) -> Screen<'a> {
        Screen { step: &said.step, load: said.load.as_ref(), state, now: self.clock.now() }
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.done();
    }
}

fn template(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_warning_prints_once_with_count() {
        let mut said = Said::default();
        let new = ["busy", "late", "busy", "busy"].map(|message| said.is_new_warning(message));
        assert_eq!(new, [true, true, false, false]);
        assert_eq!(said.take_repeated(), ["3 times in all: warning: busy"]);
        assert_eq!(said.take_repeated(), Vec::<String>::new(), "it is said once");
    }
}
