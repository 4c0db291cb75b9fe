//! Programs started by a run.

use rolldrop_record::{EventKind, Mode, Stamp};

/// Program started by the run.
#[derive(Clone, Debug)]
pub struct RunCommand {
    /// Index of the scenario's disruption that runs the program; `None` for a program from the command line.
    pub disruption: Option<u32>,
    /// Program and arguments.
    pub words: Vec<String>,
    /// Time the program was started.
    pub started: Stamp,
    /// Time the program exited, if it did so during the run.
    pub ended: Option<Stamp>,
    /// Exit code of the program.
    pub code: Option<i32>,
    /// Signal that killed the program.
    pub signal: Option<i32>,
    /// Mode of the terminations caused by the program; `None` if the run finished before that was known.
    pub mode: Option<Mode>,
    /// Changes that had not settled when the run stopped waiting.
    pub unsettled: Option<String>,
}

/// Collects the events about programs.
#[derive(Debug, Default)]
pub(super) struct CommandCollector(pub(super) Vec<RunCommand>);

impl CommandCollector {
    pub(super) fn observe(&mut self, at: Stamp, kind: &EventKind) {
        match kind {
            EventKind::CommandStarted { command: words, disruption } => self.0.push(RunCommand {
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

    fn last(&mut self, disruption: Option<u32>) -> Option<&mut RunCommand> {
        self.0.iter_mut().rfind(|command| command.disruption == disruption)
    }
}
