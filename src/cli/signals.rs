//! Ctrl-C and SIGTERM: the first signal stops the run gracefully, the second at once.

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
    /// Starts to listen. Needs a tokio runtime.
    pub(super) fn begin() -> std::io::Result<Self> {
        let interrupts = Interrupts::default();
        let mut signals = Signals::new()?;
        let tokens = [interrupts.stop.clone(), interrupts.abort.clone()];
        let listening = tokio::spawn(async move {
            for token in tokens {
                signals.next().await;
                token.cancel();
            }
        });
        Ok(Self { interrupts, _listening: AbortOnDropHandle::new(listening) })
    }

    /// Returns the operator of a command whose progress this displays.
    pub(super) fn operator(&self, progress: &ProgressDisplay) -> Operator {
        Operator { interrupts: self.interrupts.clone(), viewer: progress.viewer() }
    }
}

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
