//! Ctrl-C and SIGTERM: the first signal stops the run gracefully, the second immediately.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::task::AbortOnDropHandle;

use super::progress::ProgressDisplay;
use rolldrop_drive::{Interrupts, Operator};

/// Listener for signals, active until it is dropped.
#[derive(Debug)]
pub(super) struct SignalListener {
    pub(super) interrupts: Interrupts,
    _listening: AbortOnDropHandle<()>,
}

impl SignalListener {
    /// Starts listening. Needs a tokio runtime.
    pub(super) fn begin() -> std::io::Result<Self> {
        let interrupts = Interrupts::default();
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let tokens = [interrupts.stop.clone(), interrupts.abort.clone()];
        let listening = tokio::spawn(async move {
            for token in tokens {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                token.cancel();
            }
        });
        Ok(Self { interrupts, _listening: AbortOnDropHandle::new(listening) })
    }

    /// Returns the operator of a command whose progress is displayed here.
    pub(super) fn operator(&self, progress: &ProgressDisplay) -> Operator {
        Operator { interrupts: self.interrupts.clone(), viewer: progress.viewer() }
    }
}
