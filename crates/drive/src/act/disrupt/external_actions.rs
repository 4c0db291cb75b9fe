//! Disruptions that the run does not cause through its own calls: programs that it starts, and terminations by others
//! that it observes.

use std::time::Duration;

use tokio::time::sleep;

use super::acting::{Acting, Refusal};
use super::programs::codes;
use crate::error::CoordinatorError;
use crate::observe::rollout_wait::{await_rollout, until_rolled_out, workloads};
use crate::viewer::Wait;
use rolldrop_record::EventKind;
use rolldrop_scenario::{Repeat, Until};

impl Acting<'_> {
    /// Runs a program and waits until its changes have settled.
    pub(super) async fn exec(&self, words: &[String]) -> Result<usize, Refusal> {
        let before = workloads(self.changer.caller).await?;
        let disruption = Some(self.index);
        let command = words.to_vec();
        self.observer.recorder().record(EventKind::CommandStarted { command, disruption });
        let status = self.programs.run(words).await;
        let (code, signal) = match &status {
            Ok(status) => codes(*status),
            // The exit code that a shell returns for a missing command.
            Err(_) => (Some(127), None),
        };
        self.observer.recorder().record(EventKind::CommandEnded { code, signal, disruption });
        if let Err(why) = status {
            return Err(Refusal(format!("failed to run {}: {why}", words.join(" "))));
        }
        match self
            .waits(Wait::Rollout, await_rollout(self.changer.caller, self.observer, &before, disruption))
            .await
        {
            // An interruption is reported elsewhere.
            Ok(()) | Err(CoordinatorError::Interrupted) => {}
            Err(error) => self.observer.recorder().warn(error.to_string()),
        }
        Ok((code == Some(0)).into())
    }

    /// Observes what others do, for this long or until the goal is reached.
    pub(super) async fn observe(&self, lasts: Option<Duration>) {
        let watched = async {
            match (self.disruption.repeat, lasts) {
                (_, Some(lasts)) => sleep(lasts).await,
                (Repeat::Until(Until::RolloutComplete), None) => {
                    until_rolled_out(self.changer.caller, self.observer).await
                }
                (Repeat::Until(until), None) => {
                    let wanted = self.observer.pods_ended() + until.terminations().unwrap_or(usize::MAX);
                    self.observer.views().wait_until(|view| view.ended.len() >= wanted).await;
                }
                (Repeat::Times(_), None) => {}
            }
        };
        // If the load ends first, the caller reports it.
        let _ = self.while_loaded(watched).await;
    }
}
