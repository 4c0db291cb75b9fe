//! Ctrl-C and SIGTERM: the first ends the run in good order, the second at once.

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// Listens for signals while it lives.
#[derive(Debug)]
pub(super) struct Interrupts {
    /// Cancelled by the first signal.
    pub(super) stop: CancellationToken,
    /// Cancelled by the second.
    pub(super) abort: CancellationToken,
    _listener: AbortOnDropHandle<()>,
}

impl Interrupts {
    /// Begins to listen. Needs a tokio runtime.
    pub(super) fn listen() -> std::io::Result<Self> {
        let (stop, abort) = (CancellationToken::new(), CancellationToken::new());
        let mut signals = Signals::new()?;
        let tokens = [stop.clone(), abort.clone()];
        let listener = tokio::spawn(async move {
            for token in tokens {
                signals.next().await;
                token.cancel();
            }
        });
        Ok(Self { stop, abort, _listener: AbortOnDropHandle::new(listener) })
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
