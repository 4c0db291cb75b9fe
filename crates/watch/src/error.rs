//! Errors that end a watch.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use rolldrop_drive::error::CoordinatorError;
use rolldrop_record::parts::PartError;
use rolldrop_record::termination_store::StoreError;

/// Error that ends a watch.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The cluster cannot be watched.
    #[error(transparent)]
    Cluster(#[from] CoordinatorError),
    /// The logs cannot be followed.
    #[error("failed to follow the logs")]
    Logs(#[source] CoordinatorError),
    /// The pods with sidecars cannot be followed.
    #[error("failed to follow the pods with sidecars")]
    Sidecars(#[source] CoordinatorError),
    /// The first lines of a log are not in its format.
    #[error("none of the first {tried} lines of the log {log} is in the format {format}: {why}")]
    LogFormat { tried: u64, log: String, format: String, why: String },
    /// The requests near a termination cannot be read.
    #[error(transparent)]
    Requests(#[from] PartError),
    /// The port for metrics cannot be opened.
    #[error("failed to open the port {address} for metrics")]
    MetricsPort { address: SocketAddr, source: io::Error },
    /// The history cannot be opened.
    #[error("failed to open the history in {}", .dir.display())]
    History { dir: PathBuf, source: StoreError },
    /// The history is that of another cluster.
    #[error(
        "{} contains the history of {other}: choose another directory for {cluster}", .dir.display()
    )]
    OtherCluster { dir: PathBuf, other: String, cluster: String },
    /// The history cannot be written.
    #[error(
        "failed to write the history: pods that were terminated after {since} may be missing from it; make room, and \
         start the watch again"
    )]
    HistoryLost { since: String, source: StoreError },
    /// The output cannot be written.
    #[error("failed to write to stdout")]
    Output(#[source] io::Error),
}

/// Result of a step that can end a watch.
pub(crate) type Result<T> = std::result::Result<T, WatchError>;
