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
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::{Instant, interval};

use echo::NoControlEcho;
use live::LiveState;
use load::{Figures, Rate};
use rolldrop_campaign::ByClass;
use rolldrop_drive::viewer::{Loading, Standing, Viewer};
use rolldrop_explain::model::figures::count;
use rolldrop_record::{Clock, Event, shown};
use rolldrop_scenario::Disruption;
use screen::Screen;

/// Interval at which the block is redrawn.
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
    display: Arc<Display>,
    /// With a block only.
    _terminal: Option<NoControlEcho>,
}

/// View of a command's progress, which the tasks of a run keep up to date.
#[derive(Debug)]
struct Display {
    form: Form,
    clock: Clock,
    live: Mutex<LiveState>,
    said: Mutex<Said>,
}

#[derive(Debug)]
enum Form {
    /// A block that is redrawn.
    Block(ProgressBar),
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
    /// Rate of the load, from its first sample to its end.
    rate: Option<Rate>,
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

impl Progress {
    /// Chooses the form that fits stderr.
    pub(super) fn new(quiet: bool, clock: Clock) -> Self {
        let form = if quiet {
            Form::Quiet
        } else if io::stderr().is_terminal() {
            let bar = ProgressBar::no_length().with_style(ProgressStyle::default_spinner());
            bar.enable_steady_tick(REDRAWN);
            Form::Block(bar)
        } else {
            Form::Lines
        };
        let _terminal = matches!(form, Form::Block(_)).then(NoControlEcho::begin);
        let display = Display { form, clock, live: Mutex::default(), said: Mutex::default() };
        Self { display: Arc::new(display), _terminal }
    }

    /// Returns the viewer of the runs whose progress this is.
    pub(super) fn viewer(&self) -> Arc<dyn Viewer> {
        Arc::clone(&self.display) as Arc<dyn Viewer>
    }

    /// Shows the progress of a command until it ends.
    pub(super) async fn show<T>(&self, command: impl Future<Output = T>) -> T {
        tokio::select! {
            biased;
            ended = command => ended,
            never = self.display.keep_showing() => match never {},
        }
    }

    /// Ends the display. Warnings that came more than once are shown with their counts.
    pub(super) fn done(&self) {
        let repeated = self.display.said().take_repeated();
        repeated.iter().for_each(|text| self.display.note(text));
        if let Form::Block(bar) = &self.display.form {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.done();
    }
}

impl Viewer for Display {
    fn recorded(&self, event: &Event) {
        self.live().apply(event);
    }

    fn stands(&self, index: u32, disruption: &Disruption, standing: Standing) {
        self.live().stands(index, disruption, standing);
    }

    fn unsettled(&self, what: Option<&str>) {
        self.live().unsettled(what);
    }

    fn unready(&self, why: &str) {
        self.live().unready(why);
    }

    fn awaits_silence(&self, silence: Option<Duration>) {
        self.live().awaits_silence(silence);
    }

    fn loads(&self, load: Option<&Loading<'_>>) {
        let Some(load) = load else {
            self.live().tell_loss();
            let mut said = self.said();
            (said.load, said.rate) = (None, None);
            return;
        };
        let progress = &load.progress;
        let dropped = ByClass::dropped(&progress.outcomes, &progress.error_statuses);
        self.live().dropped(self.clock.now(), dropped, load::is_warmup(load));
        let mut said = self.said();
        if let (Form::Block(bar), None) = (&self.form, &said.rate) {
            bar.set_style(template("{msg}"));
        }
        let rate = said.rate.get_or_insert_with(Rate::begin);
        rate.follow(Instant::now(), progress);
        let rate = *rate;
        said.load = Some(Figures { position: load::position(load), progress: progress.clone(), rate });
    }

    fn begins(&self) {
        *self.live() = LiveState::default();
        self.said().told_next = Some(Instant::now() + TOLD);
    }

    fn ends(&self) {
        self.tell_news();
        *self.live() = LiveState::default();
        self.said().told_next = None;
    }

    fn step(&self, what: &str) {
        let what = shown::one_line(what);
        self.tell_news();
        let mut said = self.said();
        said.step = what.clone().into_owned();
        said.is_hidden = false;
        drop(said);
        match &self.form {
            Form::Block(bar) => {
                bar.set_style(ProgressStyle::default_spinner());
                bar.enable_steady_tick(REDRAWN);
                self.draw(bar);
            }
            Form::Lines => eprintln!("{PREFIX}{what}"),
            Form::Quiet => {}
        }
    }

    fn say(&self, message: &str) {
        self.tell_news();
        let message = shown::message(message);
        match &self.form {
            Form::Block(bar) => bar.println(&*message),
            Form::Lines => eprintln!("{PREFIX}{message}"),
            Form::Quiet => {}
        }
    }

    /// Shows a message, which stays on the screen, even when quiet.
    fn note(&self, message: &str) {
        self.tell_news();
        let line = format!("{PREFIX}{}", shown::message(message));
        match &self.form {
            Form::Block(bar) => bar.suspend(|| eprintln!("{line}")),
            Form::Lines | Form::Quiet => eprintln!("{line}"),
        }
    }

    /// Shows a warning once, and at the end the number of times that it came.
    fn warn(&self, message: &str) {
        let is_new = self.said().is_new_warning(message);
        if is_new {
            self.note(&format!("warning: {message}"));
        }
    }

    /// Nothing is drawn from here to the next step: the answer appears beside the question.
    fn ask(&self, question: &str) -> io::Result<()> {
        self.said().is_hidden = true;
        let ask = || write!(io::stderr(), "{PREFIX}{question} ");
        match &self.form {
            Form::Block(bar) => {
                // Its steady tick would draw over a question.
                bar.disable_steady_tick();
                bar.suspend(ask)
            }
            Form::Lines | Form::Quiet => ask(),
        }
    }
}

impl Display {
    async fn keep_showing(&self) -> Infallible {
        let mut ticks = interval(if matches!(self.form, Form::Block(_)) { REDRAWN } else { FOLDED });
        loop {
            let now = ticks.tick().await;
            if self.said().is_hidden {
                continue;
            }
            match &self.form {
                Form::Block(bar) => self.draw(bar),
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
        let news = self.live().take_news();
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
            self.screen(&said, &self.live()).line(news::COLUMNS - PREFIX.len())
        };
        eprintln!("{PREFIX}{line}");
    }

    fn draw(&self, bar: &ProgressBar) {
        let (rows, columns) = console::Term::stderr().size();
        let block = {
            let (said, mut state) = (self.said(), self.live());
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

    fn live(&self) -> MutexGuard<'_, LiveState> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
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
