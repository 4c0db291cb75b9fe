//! Follows gateway access logs: those of pods, through `pods/log`, and local files.
//!
//! Each line is delivered once, as bytes; nothing here reads its content. Where lines may be missing, a gap says so.
//! [`log_source`] names the sources, [`gateway_pods`] finds a source's pods, [`followed_container`] follows one container
//! and [`followed_file`] one file; [`continuity`] decides which lines are new.

mod continuity;
mod followed_container;
mod followed_file;
mod gateway_pods;
mod log_lines;
mod log_source;

use std::sync::Arc;

use kube::Client;
use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::error::{CoordinatorError, Result};
use crate::tasks::BackgroundTasks;
use followed_file::FollowedFile;
use gateway_pods::LogOrder;
use log_lines::RawLine;
pub use log_source::{LogPods, LogSource};
use rolldrop_record::{Clock, Stamp};

/// Maximum number of deliveries that wait to be received. While that many wait, no log is read further.
const WAITING: usize = 256;

/// Stream of lines from gateway logs, as they arrive. Dropping it stops the reading.
#[derive(Debug)]
pub struct GatewayLogs {
    _tasks: BackgroundTasks,
    deliveries: Receiver<LogDelivery>,
}

/// Line of a log, or a fact about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogDelivery {
    /// Index of the source in the list that was given.
    pub number: usize,
    /// `NAMESPACE/POD/CONTAINER`, or the file; `NAMESPACE/KIND/NAME` for a gap in the watch of pods.
    pub source: Arc<str>,
    /// The line or fact.
    pub kind: LogDeliveryKind,
}

/// Kind of a [`LogDelivery`], with its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogDeliveryKind {
    /// A line.
    Line {
        /// Time at which the container runtime read the line, by its node's clock; `None` for a file.
        written: Option<Stamp>,
        /// Time at which the line arrived here.
        arrived: Stamp,
        /// The line without its line ending.
        bytes: Box<[u8]>,
    },
    /// A line of more than 64 KiB, which was dropped.
    LongLine {
        /// Same as for a line.
        written: Option<Stamp>,
        /// Same as for a line.
        arrived: Stamp,
        /// Length of the line, in bytes.
        length: usize,
    },
    /// A period in which lines may be missing.
    Gap {
        /// Time of the last line before the gap, or time from which the log should have been read.
        from: Stamp,
        /// Time from which lines are complete again.
        to: Stamp,
        /// Reason.
        why: &'static str,
    },
    /// The log cannot be read at the moment. Lines may arrive later.
    Interrupted {
        /// Time of the last line that was read.
        from: Stamp,
    },
    /// The log is being read again.
    Resumed,
    /// The source is no longer read.
    Stopped {
        /// Reason.
        why: String,
    },
}

/// Reason that a log is no longer read, although it may continue.
enum LogStop {
    /// The log must not or cannot be read.
    Because(String),
    /// The receiver of the lines is gone.
    Unheard,
}

impl GatewayLogs {
    /// Starts to follow the logs. Leaves out lines written before `since`; files are read only from their current end.
    /// Stops reading the log of a container that writes more than `max_rate` lines per second. Needs a tokio
    /// runtime.
    ///
    /// # Errors
    /// Fails if a workload, its pods or a file cannot be found.
    pub async fn begin(
        client: &Client,
        sources: &[LogSource],
        since: Stamp,
        max_rate: u32,
        clock: Clock,
    ) -> Result<Self> {
        let (sender, deliveries) = mpsc::channel(WAITING);
        let mut tasks = BackgroundTasks::default();
        for (number, source) in sources.iter().enumerate() {
            match source {
                LogSource::File(path) => {
                    let outlet = LogOutlet::of(number, path.display().to_string(), clock, &sender);
                    let opened = FollowedFile::open(path.clone(), outlet).await;
                    let failed = |source| CoordinatorError::LogFile { path: path.clone(), source };
                    tasks.spawn(opened.map_err(failed)?.follow());
                }
                LogSource::Pods { namespace, pods, container } => {
                    let (client, sender) = (client.clone(), sender.clone());
                    let (namespace, container) = (namespace.clone(), container.clone());
                    let order =
                        LogOrder { number, client, namespace, container, since, max_rate, clock, sender };
                    gateway_pods::follow(order, pods, &mut tasks).await?;
                }
            }
        }
        Ok(Self { _tasks: tasks, deliveries })
    }

    /// Returns the next line or fact; `None` once no source is being read. Safe to cancel.
    pub async fn next(&mut self) -> Option<LogDelivery> {
        self.deliveries.recv().await
    }
}

/// Delivers the lines of one log.
#[derive(Clone)]
struct LogOutlet {
    number: usize,
    source: Arc<str>,
    clock: Clock,
    sender: Sender<LogDelivery>,
}

impl LogOutlet {
    fn of(number: usize, source: String, clock: Clock, sender: &Sender<LogDelivery>) -> Self {
        Self { number, source: source.into(), clock, sender: sender.clone() }
    }

    fn now(&self) -> Stamp {
        self.clock.now()
    }

    async fn line(&self, line: RawLine<'_>, written: Option<Stamp>, arrived: Stamp) -> Result<(), LogStop> {
        let length = line.length;
        self.send(if line.is_too_long() {
            LogDeliveryKind::LongLine { written, arrived, length }
        } else {
            LogDeliveryKind::Line { written, arrived, bytes: line.bytes.into() }
        })
        .await
    }

    async fn gap(&self, (from, to): (Stamp, Stamp), why: &'static str) -> Result<(), LogStop> {
        self.send(LogDeliveryKind::Gap { from, to, why }).await
    }

    /// Delivers the reason why a log is no longer read, if it was not read to its end.
    async fn end(&self, stop: LogStop) {
        if let LogStop::Because(why) = stop {
            // If the receiver is gone, the reason no longer matters.
            let _ = self.send(LogDeliveryKind::Stopped { why }).await;
        }
    }

    async fn send(&self, kind: LogDeliveryKind) -> Result<(), LogStop> {
        let delivery = LogDelivery { number: self.number, source: Arc::clone(&self.source), kind };
        self.sender.send(delivery).await.map_err(|_| LogStop::Unheard)
    }
}
