//! Programs that the run starts on the user's machine.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use futures::FutureExt;
use futures::future::LocalBoxFuture;

/// Runs programs on the user's machine.
pub(crate) trait Programs {
    /// Runs a program until it exits. The error is the reason why it could not be run.
    fn run<'a>(&'a self, words: &'a [String]) -> LocalBoxFuture<'a, Result<ExitStatus, String>>;
}

/// Refuses to run any program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoPrograms;

impl Programs for NoPrograms {
    fn run<'a>(&'a self, _words: &'a [String]) -> LocalBoxFuture<'a, Result<ExitStatus, String>> {
        async { Err("programs cannot be run here".to_owned()) }.boxed_local()
    }
}

/// Returns the exit code of a program, or the signal that killed it.
pub(crate) fn codes(status: ExitStatus) -> (Option<i32>, Option<i32>) {
    (status.code(), status.signal())
}
