//! Log of the server's actions, with one JSON line per event.
//!
//! Every line is one unbuffered append, so an immediate exit loses no line.

mod stream_entry;

use std::cell::RefCell;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;
use std::rc::Rc;

use serde::Serialize;

use super::WorkloadError;
pub(super) use stream_entry::{ServedStreamEnd, StreamEntry};

/// Source of the current time: nanoseconds since the Unix epoch, on one clock that never jumps.
pub type NowNs = Box<dyn Fn() -> i64>;

/// Destination of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// Standard output.
    Stdout,
    /// File that the log is appended to.
    File(PathBuf),
}

/// Event in the life of a request or of the server itself.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum ServerEvent<'a> {
    /// The head of a request was read.
    Received { id: &'a str },
    /// The whole response was handed to the kernel.
    Answered { id: &'a str, status: u16 },
    /// The request ended before its response was handed over.
    Aborted { id: &'a str },
    /// A stream stopped sending because of a stall fault.
    StreamStalled { id: &'a str },
    /// A stream ended.
    StreamEnded(StreamEntry<'a>),
    /// The server accepts connections.
    Listening { address: &'a str },
    /// A signal arrived.
    Signal { name: &'a str },
    /// The process was resumed after a stop (SIGCONT).
    Continued,
    /// The API server answered the server's request.
    ApiAnswered,
    /// The API server responded that the server lacks permission for this request.
    ApiRefused { why: &'a str },
    /// The API server did not respond, or responded with another error.
    ApiFailed { why: &'a str },
    /// The listener was closed.
    StoppedAccepting,
    /// The process is about to exit.
    Exiting,
}

#[derive(Serialize)]
struct LogLine<'a> {
    t_ns: i64,
    #[serde(flatten)]
    entry: ServerEvent<'a>,
}

/// The log; clones write to the same place.
#[derive(Clone)]
pub(super) struct WorkloadLog(Rc<LogSink>);

struct LogSink {
    now: NowNs,
    sink: Option<RefCell<Box<dyn Write>>>,
}

impl WorkloadLog {
    pub(super) fn open(target: Option<&LogTarget>, now: NowNs) -> Result<Self, WorkloadError> {
        let sink: Option<Box<dyn Write>> = match target {
            None => None,
            Some(LogTarget::Stdout) => Some(Box::new(io::stdout())),
            Some(LogTarget::File(path)) => {
                let file = OpenOptions::new().create(true).append(true).open(path);
                let opened = file.map_err(|source| WorkloadError::OpenLog { path: path.clone(), source })?;
                Some(Box::new(opened))
            }
        };
        Ok(Self(Rc::new(LogSink { now, sink: sink.map(RefCell::new) })))
    }

    /// Returns the current time.
    pub(super) fn now_ns(&self) -> i64 {
        (self.0.now)()
    }

    /// Writes one line. Failures go to stderr only, because a log that cannot be written must not change the server's
    /// behaviour.
    pub(super) fn write(&self, entry: ServerEvent<'_>) {
        let Some(sink) = &self.0.sink else { return };
        let line = LogLine { t_ns: self.now_ns(), entry };
        let written = serde_json::to_vec(&line).map_err(io::Error::from).and_then(|mut bytes| {
            bytes.push(b'\n');
            sink.borrow_mut().write_all(&bytes)
        });
        if let Err(error) = written {
            let _ = writeln!(io::stderr(), "rolldrop workload: failed to write the log: {error}");
        }
    }
}

/// One request from its arrival to its end. If dropped before [`LoggedExchange::answered`], it is logged as aborted.
pub(super) struct LoggedExchange {
    log: WorkloadLog,
    /// Request id from the client; a request without one is not logged.
    id: Option<String>,
    status: u16,
    /// Handle that counts this exchange among the connection's requests in flight.
    _share: Option<Rc<()>>,
}

impl LoggedExchange {
    pub(super) fn received(log: &WorkloadLog, id: Option<String>) -> Self {
        if let Some(id) = &id {
            log.write(ServerEvent::Received { id });
        }
        Self { log: log.clone(), id, status: 0, _share: None }
    }

    /// Holds a clone of `in_flight` until the exchange is over.
    pub(super) fn with_share_of(mut self, in_flight: Rc<()>) -> Self {
        self._share = Some(in_flight);
        self
    }

    /// Sets the status of the response.
    pub(super) fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    pub(super) fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Records that the kernel has accepted the whole response.
    pub(super) fn answered(mut self) {
        if let Some(id) = self.id.take() {
            self.log.write(ServerEvent::Answered { id: &id, status: self.status });
        }
    }
}

impl Drop for LoggedExchange {
    fn drop(&mut self) {
        if let Some(id) = &self.id {
            self.log.write(ServerEvent::Aborted { id });
        }
    }
}
