//! The runtime for commands that need several threads. If the system could not provide them, tokio would panic.

use std::io;
use std::sync::mpsc;
use std::thread;

use anyhow::Context;
use tokio::runtime::{Builder, Runtime};

/// Number of threads that a command needs besides the runtime's workers.
const BESIDES: usize = 2;

/// Makes a runtime with this many threads.
///
/// # Errors
/// Fails if the system does not allow that many threads.
pub(super) fn with_threads(workers: usize) -> anyhow::Result<Runtime> {
    check(workers + BESIDES, |thread| thread::Builder::new().spawn(thread).map(drop))?;
    Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        .build()
        .context("failed to start a runtime")
}

/// Checks that this many threads can run at the same time. Each waits until all have started.
fn check(
    threads: usize,
    mut spawn: impl FnMut(Box<dyn FnOnce() + Send>) -> io::Result<()>,
) -> anyhow::Result<()> {
    let mut waiting = Vec::new();
    for number in 1..=threads {
        let (end, ended) = mpsc::channel::<()>();
        // The thread exits when the sender is dropped.
        let wait = move || _ = ended.recv();
        spawn(Box::new(wait)).with_context(|| {
            format!(
                "failed to start thread {number} of {threads}: raise the limit on processes and threads (ulimit -u, or \
                 pids.max of the container)"
            )
        })?;
        waiting.push(end);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_limit_returns_error() {
        let mut started = 0;
        let refused = check(3, |_| {
            started += 1;
            if started < 3 { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
        });
        let why = refused.unwrap_err().to_string();
        assert!(why.starts_with("failed to start thread 3 of 3: raise the limit"), "{why}");
        assert!(with_threads(1).is_ok());
    }
}
