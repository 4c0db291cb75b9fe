//! The programs that a run started.

use rolldrop_record::{EventKind, Mode, Stamp};

/// A program that the run started.
#[derive(Clone, Debug)]
pub struct Command {
    /// Disruption of the scenario that it is; `None` for the command line's.
    pub disruption: Option<u32>,
    /// Program and arguments.
    pub words: Vec<String>,
    /// Time at which it was started.
    pub started: Stamp,
    /// Time at which it ended, if it did while the run lasted.
    pub ended: Option<Stamp>,
    /// Its exit code.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Mode of the pods that it ended; `None` if the run ended before that was known.
    pub mode: Option<Mode>,
    /// Changes that had not settled when the run stopped waiting.
    pub unsettled: Option<String>,
}

/// Takes the events of the programs.
#[derive(Debug, Default)]
pub(super) struct Collector(pub(super) Vec<Command>);

impl Collector {
    pub(super) fn observe(&mut self, at: Stamp, kind: &EventKind) {
        match kind {
            EventKind::CommandStarted { command: words, disruption } => self.0.push(Command {
                disruption: *disruption,
                words: words.clone(),
                started: at,
                ended: None,
                code: None,
                signal: None,
                mode: None,
                unsettled: None,
            }),
            EventKind::CommandEnded { code, signal, disruption } => {
                if let Some(command) = self.last(*disruption) {
                    (command.ended, command.code, command.signal) = (Some(at), *code, *signal);
                }
            }
            EventKind::CommandSettled { mode, disruption, unsettled } => {
                if let Some(command) = self.last(*disruption) {
                    (command.mode, command.unsettled) = (Some(*mode), unsettled.clone());
                }
            }
            _ => {}
        }
    }

    fn last(&mut self, disruption: Option<u32>) -> Option<&mut Command> {
        self.0.iter_mut().rfind(|command| command.disruption == disruption)
    }
}
