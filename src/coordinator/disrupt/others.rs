//! What the run does not do itself: programs that it starts, and what others do in the meantime.

use std::process::ExitStatus;
use std::time::Duration;

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use tokio::time::sleep;

use super::super::CoordinatorError;
use super::{Acting, Disrupted, counted};
use crate::scenario::{Repeat, Until};
use rolldrop_record::{EventKind, Mode};

/// Runs programs where the user is.
pub(crate) trait Programs {
    /// Runs one to its end. An error says why it could not be run.
    fn run<'a>(&'a self, words: &'a [String]) -> LocalBoxFuture<'a, Result<ExitStatus, String>>;
}

/// Runs none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoPrograms;

impl Programs for NoPrograms {
    fn run<'a>(&'a self, _words: &'a [String]) -> LocalBoxFuture<'a, Result<ExitStatus, String>> {
        async { Err("no programs are run here".to_owned()) }.boxed_local()
    }
}

impl Acting<'_> {
    /// Runs a program, and waits until its changes have settled.
    pub(super) async fn exec(&self, words: &[String]) -> Disrupted {
        let before = match self.session.workloads().await {
            Ok(before) => before,
            Err(error) => return self.refused(Some(Mode::Other), error.to_string()),
        };
        let disruption = Some(self.index);
        let command = words.to_vec();
        self.session.record(EventKind::CommandStarted { command, disruption });
        let status = self.programs.run(words).await;
        let (code, signal) = match &status {
            Ok(status) => codes(*status),
            // The form that a shell uses.
            Err(_) => (Some(127), None),
        };
        self.session.record(EventKind::CommandEnded { code, signal, disruption });
        if let Err(why) = status {
            return self.refused(Some(Mode::Other), format!("failed to run {}: {why}", words.join(" ")));
        }
        match self.session.await_rollout(&before, disruption).await {
            // If the run is stopped, that is reported elsewhere.
            Ok(()) | Err(CoordinatorError::Interrupted) => {}
            Err(error) => self.session.record(EventKind::Warning { message: error.to_string() }),
        }
        counted(code == Some(0))
    }

    /// Watches what others do, for this long, or until the goal is reached.
    pub(super) async fn observe(&self, lasts: Option<Duration>) -> Disrupted {
        let watched = async {
            match (self.disruption.repeat, lasts) {
                (_, Some(lasts)) => sleep(lasts).await,
                (Repeat::Until(Until::RolloutComplete), None) => self.session.until_rolled_out().await,
                (Repeat::Until(until), None) => {
                    let wanted = self.pods_ended() + until.terminations().unwrap_or(usize::MAX);
                    self.session.views.wait_until(|view| view.ended.len() >= wanted).await;
                }
                (Repeat::Times(_), None) => {}
            }
        };
        // If the load ends first, the caller reports it.
        let _ = self.while_loaded(watched).await;
        Disrupted::default()
    }
}

/// The exit code, or the signal, by which a program ended.
pub(crate) fn codes(status: ExitStatus) -> (Option<i32>, Option<i32>) {
    #[cfg(unix)]
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    #[cfg(not(unix))]
    let signal = None;
    (status.code(), signal)
}
