//! Programs that the run starts where the user is.

use std::process::ExitStatus;

use futures::FutureExt;
use futures::future::LocalBoxFuture;

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

/// The exit code, or the signal, by which a program ended.
pub(crate) fn codes(status: ExitStatus) -> (Option<i32>, Option<i32>) {
    #[cfg(unix)]
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    #[cfg(not(unix))]
    let signal = None;
    (status.code(), signal)
}
