//! Progress on stderr: a block on a terminal, lines elsewhere, nothing when quiet.
//!
//! [`live_state`] derives a run's state from its recorded events, [`load_progress`] describes a load's figures,
//! [`screen`] renders both as a block or a line, and [`news`] renders events as lines.

mod echo;
mod live_state;
mod load_progress;
mod news;
mod screen;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::{Instant, interval};

use super::say::{PREFIX, say, say_line};
use echo::NoControlEcho;
use live_state::LiveState;
use load_progress::{LoadSnapshot, RecentRate};
use rolldrop_campaign::ByClass;
use rolldrop_drive::viewer::{DisruptionStage, Loading, Viewer};
use rolldrop_explain::model::figure_text::count;
use rolldrop_record::{Clock, Event, shown};
use rolldrop_scenario::Disruption;
use screen::Screen;

/// Interval at which the block is redrawn.
const REDRAWN: Duration = Duration::from_millis(200);
/// Period over which news is combined into lines.
const FOLDED: Duration = Duration::from_secs(1);
/// Interval between status lines.
const TOLD: Duration = Duration::from_secs(10);

/// Progress display of a command. Dropping it removes the block, even if the command fails.
#[derive(Debug)]
pub(super) struct ProgressDisplay {
    display: Arc<Display>,
    /// `Some` only if the display is a block.
    _terminal: Option<NoControlEcho>,
}

/// Progress display that the tasks of a run update.
#[derive(Debug)]
struct Display {
    form: ProgressForm,
    clock: Clock,
    live: Mutex<LiveState>,
    said: Mutex<Said>,
}

#[derive(Debug)]
enum ProgressForm {
    /// A block that is redrawn.
    Block(ProgressBar),
    /// A line for each event, and a status line at intervals.
    Lines,
    /// No display.
    Quiet,
}

/// State reported by the command itself.
#[derive(Debug, Default)]
struct Said {
    step: String,
    load: Option<LoadSnapshot>,
    /// True from when something else uses the terminal until the next step.
    is_hidden: bool,
    /// Earliest time of the next status line.
    told_next: Option<Instant>,
    /// Number of times each warning occurred, by text.
    warnings: BTreeMap<String, u64>,
}

impl Said {
    /// Counts a warning. Returns true if its text is new.
    fn is_new_warning(&mut self, message: &str) -> bool {
        let times = self.warnings.entry(message.to_owned()).or_default();
        *times += 1;
        *times == 1
    }

    /// Takes the warnings that occurred more than once, with their counts.
    fn take_repeated(&mut self) -> Vec<String> {
        let warnings = std::mem::take(&mut self.warnings).into_iter().filter(|(_, times)| *times > 1);
        warnings
            .map(|(message, times)| format!("warning, {} times in total: {message}", count(times)))
            .collect()
    }
}

impl ProgressDisplay {
    /// Chooses a form that suits stderr.
    pub(super) fn new(quiet: bool, clock: Clock) -> Self {
        let form = if quiet {
            ProgressForm::Quiet
        } else if io::stderr().is_terminal() {
            let bar = ProgressBar::no_length().with_style(ProgressStyle::default_spinner());
            bar.enable_steady_tick(REDRAWN);
            ProgressForm::Block(bar)
        } else {
            ProgressForm::Lines
        };
        let _terminal = matches!(form, ProgressForm::Block(_)).then(NoControlEcho::begin);
        let display = Display { form, clock, live: Mutex::default(), said: Mutex::default() };
        Self { display: Arc::new(display), _terminal }
    }

    /// Returns the viewer to pass to the runs that this displays.
    pub(super) fn viewer(&self) -> Arc<dyn Viewer> {
        Arc::clone(&self.display) as Arc<dyn Viewer>
    }

    /// Shows the progress of a command until the command finishes.
    pub(super) async fn show<T>(&self, command: impl Future<Output = T>) -> T {
        tokio::select! {
            biased;
            ended = command => ended,
            never = self.display.keep_showing() => match never {},
        }
    }
}

impl Drop for ProgressDisplay {
    /// Shows warnings that occurred more than once, with their counts, and removes the block.
    fn drop(&mut self) {
        let repeated = self.display.said().take_repeated();
        repeated.iter().for_each(|text| self.display.note(text));
        if let ProgressForm::Block(bar) = &self.display.form {
            bar.finish_and_clear();
        }
    }
}

impl Viewer for Display {
    fn recorded(&self, event: &Event) {
        self.live().apply(event);
    }

    fn stands(&self, index: u32, disruption: &Disruption, standing: DisruptionStage) {
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
            self.said().load = None;
            return;
        };
        let progress = &load.progress;
        let dropped = ByClass::dropped(&progress.outcomes, &progress.error_statuses);
        self.live().dropped(self.clock.now(), dropped, load_progress::is_warmup(load));
        let mut said = self.said();
        let mut rate = match &said.load {
            Some(figures) => figures.rate,
            None => {
                if let ProgressForm::Block(bar) = &self.form {
                    bar.set_style(template("{msg}"));
                }
                RecentRate::begin()
            }
        };
        rate.follow(Instant::now(), progress);
        said.load =
            Some(LoadSnapshot { position: load_progress::position(load), progress: progress.clone(), rate });
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
            ProgressForm::Block(bar) => {
                bar.set_style(ProgressStyle::default_spinner());
                bar.enable_steady_tick(REDRAWN);
                self.draw(bar);
            }
            ProgressForm::Lines => say_line(&what),
            ProgressForm::Quiet => {}
        }
    }

    fn say(&self, message: &str) {
        self.tell_news();
        match &self.form {
            ProgressForm::Block(bar) => bar.println(shown::message(message)),
            ProgressForm::Lines => say(message),
            ProgressForm::Quiet => {}
        }
    }

    /// Shows a message that stays on the screen. It is shown even in quiet mode.
    fn note(&self, message: &str) {
        self.tell_news();
        match &self.form {
            ProgressForm::Block(bar) => bar.suspend(|| say(message)),
            ProgressForm::Lines | ProgressForm::Quiet => say(message),
        }
    }

    /// Shows a warning once; its count is shown at the end.
    fn warn(&self, message: &str) {
        let is_new = self.said().is_new_warning(message);
        if is_new {
            self.note(&format!("warning: {message}"));
        }
    }

    /// Draws nothing from here until the next step, because the user's answer appears beside the question.
    fn ask(&self, question: &str) -> io::Result<()> {
        self.said().is_hidden = true;
        let ask = || write!(io::stderr(), "{PREFIX}{question} ");
        match &self.form {
            ProgressForm::Block(bar) => {
                // The steady tick would draw over the question.
                bar.disable_steady_tick();
                bar.suspend(ask)
            }
            ProgressForm::Lines | ProgressForm::Quiet => ask(),
        }
    }
}

impl Display {
    async fn keep_showing(&self) -> Infallible {
        let mut ticks = interval(if matches!(self.form, ProgressForm::Block(_)) { REDRAWN } else { FOLDED });
        loop {
            let now = ticks.tick().await;
            if self.said().is_hidden {
                continue;
            }
            match &self.form {
                ProgressForm::Block(bar) => self.draw(bar),
                ProgressForm::Lines => {
                    self.tell_news();
                    self.tell_state(now);
                }
                // Without this, unread news would accumulate.
                ProgressForm::Quiet => self.tell_news(),
            }
        }
    }

    /// Prints the news since the last call, if progress is shown as lines.
    fn tell_news(&self) {
        let news = self.live().take_news();
        if matches!(self.form, ProgressForm::Lines) {
            for line in news::lines(&news, news::COLUMNS - PREFIX.len()) {
                say_line(&shown::one_line(&line));
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
        say_line(&line);
    }

    fn draw(&self, bar: &ProgressBar) {
        let (rows, columns) = console::Term::stderr().size();
        let block = {
            let (said, mut state) = (self.said(), self.live());
            // The block shows the state instead.
            state.take_news();
            // A spinner precedes the first line of a step.
            let spinner = if said.load.is_none() { 2 } else { 0 };
            self.screen(&said, &state).block(usize::from(columns).saturating_sub(spinner), rows.into())
        };
        // The locks are released here, because a terminal may be slow and must not hold up the tasks of the run.
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
        assert_eq!(said.take_repeated(), ["warning, 3 times in total: busy"]);
        assert_eq!(said.take_repeated(), Vec::<String>::new(), "it appears once");
    }
}
