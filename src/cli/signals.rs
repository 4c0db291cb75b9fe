//! Ctrl-C, SIGTERM and the loss of the terminal: the first signal stops the run gracefully, the second immediately.

use std::future;

use nix::sys::signal::Signal as SignalNumber;
use tokio::signal::unix::{Signal, SignalKind, signal};
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
        let mut hangup = is_hangup_fatal().then(|| signal(SignalKind::hangup())).transpose()?;
        let tokens = [interrupts.stop.clone(), interrupts.abort.clone()];
        let listening = tokio::spawn(async move {
            for token in tokens {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    () = first(&mut hangup) => {}
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

/// Waits for the first hangup: the kernel and the shell both send one when a terminal is closed.
async fn first(hangup: &mut Option<Signal>) {
    match hangup {
        Some(signals) => _ = signals.recv().await,
        None => future::pending().await,
    }
    *hangup = None;
}

/// Returns true if a hangup would kill this process. Under `nohup` it is ignored, and stays so. Elsewhere than on Linux
/// nobody can tell without unsafe code, so nothing is changed.
fn is_hangup_fatal() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|status| !ignores(&status, SignalNumber::SIGHUP))
}

/// Returns true if a process with this `/proc/PID/status` ignores a signal.
fn ignores(status: &str, signal: SignalNumber) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (signal as u32 - 1)) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_status() {
        // `nohup sleep 1`, and Rust's own SIGPIPE.
        let status =
            "Name:\tsleep\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000000\n";
        let ignored = |signal| ignores(status, signal);
        assert!(ignored(SignalNumber::SIGHUP) && ignored(SignalNumber::SIGPIPE));
        assert!(!ignored(SignalNumber::SIGINT) && !ignored(SignalNumber::SIGTERM));
    }
}
