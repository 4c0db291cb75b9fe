//! Reasons why a load could not be started or completed.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::conntrack_listener::ConntrackError;
use super::load_plan::PlanError;
use rolldrop_record::RunDirError;
use rolldrop_record::parts::PartError;

/// Result of a step in starting or running a load.
pub(super) type Result<T, E = LoadError> = std::result::Result<T, E>;

/// Reason why a load could not be started or completed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum LoadError {
    /// A target's name does not resolve.
    #[error("failed to resolve {host}: {why}")]
    Resolve { host: String, why: String },
    /// The Unix socket does not exist.
    #[error("{path} is not a Unix socket: {why}")]
    NoSocket { path: PathBuf, why: String },
    /// The target does not respond to requests from here.
    #[error("{url} did not answer within {limit:?}: {why}")]
    NoAnswer { url: String, limit: Duration, why: String },
    /// The load is not possible on this machine.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The operating system refused to create a thread, a runtime or a timer.
    #[error("failed to run a load worker{}", remedy(.0))]
    Worker(#[source] io::Error),
    /// A worker or the recorder panicked.
    #[error("a load generator thread panicked")]
    Panicked,
    /// The interval log could not be written.
    #[error("failed to write {path}")]
    LatencyLog { path: PathBuf, source: io::Error },
    /// A row file could not be written.
    #[error("failed to write {path}")]
    Record { path: PathBuf, source: io::Error },
    /// The run directory could not be created.
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// The requested evidence is not available.
    #[error(transparent)]
    Conntrack(#[from] ConntrackError),
    /// Rows could not be written.
    #[error(transparent)]
    Part(#[from] PartError),
}

impl LoadError {
    /// Returns the error for a failed write to the interval log.
    pub(super) fn latency_log(source: io::Error) -> Self {
        LoadError::LatencyLog { path: PathBuf::from("latency.hlog"), source }
    }
}

/// Returns the error and its causes as one line of text.
pub fn in_words(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words.push_str(&format!(": {error}"));
        cause = error.source();
    }
    words
}

/// Returns a remedy for the error message if the system has run out of threads.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::WouldBlock => {
            ": raise the limit on processes and threads (ulimit -u, or pids.max of the container)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_limit_error_names_pids_max() {
        let said = |kind| LoadError::Worker(io::Error::from(kind)).to_string();
        assert!(said(io::ErrorKind::WouldBlock).contains("pids.max"));
        assert_eq!(said(io::ErrorKind::OutOfMemory), "failed to run a load worker");
    }
}
