//! The server's log of its actions, one JSON line for each event.
//!
//! Every line is one unbuffered append, so that an instant exit loses none.

use std::cell::RefCell;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;
use std::rc::Rc;

use serde::Serialize;

use super::WorkloadError;

/// Reads the time: nanoseconds since the Unix epoch, on one clock that never jumps.
pub type NowNs = Box<dyn Fn() -> i64>;

/// Destination of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// The standard output.
    Stdout,
    /// Appended to a file.
    File(PathBuf),
}

/// An event of a request, or of the server itself.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Entry<'a> {
    /// A request's head was read.
    Received { id: &'a str },
    /// The whole answer was handed to the kernel.
    Answered { id: &'a str, status: u16 },
    /// The request ended before its answer was handed over.
    Aborted { id: &'a str },
    /// The server accepts connections.
    Listening { address: &'a str },
    /// A signal arrived.
    Signal { name: &'a str },
    /// The process continues after it was stopped (SIGCONT).
    Continued,
    /// The API server answered the server's request.
    ApiAnswered,
    /// The API server answered that the server has no right to this request.
    ApiRefused { why: &'a str },
    /// The API server did not answer, or with another error.
    ApiFailed { why: &'a str },
    /// The listener was closed.
    StoppedAccepting,
    /// The process is about to end.
    Exiting,
}

#[derive(Serialize)]
struct Line<'a> {
    t_ns: i64,
    #[serde(flatten)]
    entry: Entry<'a>,
}

/// The log; copies write to the same place.
#[derive(Clone)]
pub(super) struct Log(Rc<Inner>);

struct Inner {
    now: NowNs,
    sink: Option<RefCell<Box<dyn Write>>>,
}

impl Log {
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
        Ok(Self(Rc::new(Inner { now, sink: sink.map(RefCell::new) })))
    }

    /// Writes one line. A log that cannot be written must not change how the
    /// server behaves, so failures go to stderr only.
    pub(super) fn write(&self, entry: Entry<'_>) {
        let Some(sink) = &self.0.sink else { return };
        let line = Line { t_ns: (self.0.now)(), entry };
        let written = serde_json::to_vec(&line).map_err(io::Error::from).and_then(|mut bytes| {
            bytes.push(b'\n');
            sink.borrow_mut().write_all(&bytes)
        });
        if let Err(error) = written {
            eprintln!("rolldrop workload: write log: {error}");
        }
    }
}

/// One request from its arrival to its end. If it is dropped before [`Exchange::answered`], it is logged as aborted.
pub(super) struct Exchange {
    log: Log,
    /// The client's request id; a request without one leaves no line.
    id: Option<String>,
    status: u16,
    /// Share in the requests that its connection has in flight.
    _share: Option<Rc<()>>,
}

impl Exchange {
    pub(super) fn received(log: &Log, id: Option<String>) -> Self {
        if let Some(id) = &id {
            log.write(Entry::Received { id });
        }
        Self { log: log.clone(), id, status: 0, _share: None }
    }

    /// Holds a share of this until the exchange has ended.
    pub(super) fn with_share_of(mut self, in_flight: Rc<()>) -> Self {
        self._share = Some(in_flight);
        self
    }

    /// Keeps the status that the answer will carry.
    pub(super) fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    /// Notes that the kernel has the whole answer.
    pub(super) fn answered(mut self) {
        if let Some(id) = self.id.take() {
            self.log.write(Entry::Answered { id: &id, status: self.status });
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if let Some(id) = &self.id {
            self.log.write(Entry::Aborted { id });
        }
    }
}
