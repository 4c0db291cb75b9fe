//! Sample streams: chat completions, server-sent events and downloads. They are drawn from a seed, may have faults, and
//! have their own reaction when the server stops.
//!
//! `stream_plan` draws the course of a stream, `event_format` encodes its events, `stream_body` sends them on schedule,
//! and `stream_journal` logs how far the stream got.

mod event_format;
mod stream_body;
mod stream_journal;
mod stream_plan;

use std::cell::Cell;
use std::time::Duration;

use rolldrop_record::LengthLaw;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

pub(super) use event_format::SampleStreamKind;
pub(super) use stream_body::{StreamBody, StreamCut, StreamRequest};

/// Settings of the streams.
#[derive(Clone, Debug)]
pub struct SampleStreamSettings {
    /// Length of a stream whose request does not specify one.
    pub length: LengthLaw,
    /// Gap between two events; at least a millisecond.
    pub gap: LengthLaw,
    /// Content size of an event or a piece of a download.
    pub event_bytes: usize,
    /// Seed from which lengths, gaps and faults are drawn.
    pub seed: u64,
    /// Faults, each with its share of the streams, from 0 to 1.
    pub faults: Vec<(StreamFault, f64)>,
    /// Way in which the end of a response is marked.
    pub framing: StreamFraming,
    /// Reaction of open streams when a signal starts the server's shutdown.
    pub on_stop: StreamStopHabit,
}

rolldrop_record::named! {
    /// Fault that hits a stream at a random moment. Downloads have only transport faults.
    pub enum StreamFault else UnknownStreamFault
        "{0:?} is not one of cut-fin, cut-rst, unfinished, abort, error-event and stall"
    {
        /// The server closes the connection.
        CutFin = "cut-fin",
        /// The server resets the connection.
        CutRst = "cut-rst",
        /// The response ends properly, without the terminal event.
        Unfinished = "unfinished",
        /// The finish reason is `abort`, and the stream ends properly.
        Abort = "abort",
        /// The last event is an error event, and the response ends properly.
        ErrorEvent = "error-event",
        /// Nothing more is sent until the connection is closed.
        Stall = "stall",
    }
}

rolldrop_record::named! {
    /// Way in which the end of a stream's response is marked.
    pub enum StreamFraming else UnknownStreamFraming "{0:?} is not one of chunked, close-delimited and content-length" {
        /// The last chunk.
        Chunked = "chunked",
        /// The end of the connection. Such a response is HTTP/1.0.
        CloseDelimited = "close-delimited",
        /// `Content-Length` for downloads, the last chunk for other streams.
        ContentLength = "content-length",
    }
}

/// Reaction of open streams when a signal starts the server's shutdown. Streams that begin later react in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamStopHabit {
    /// Streams run to their end, and the server waits for them.
    Finish,
    /// The server closes their connections after this time.
    CutAfter(Duration),
    /// Streams end properly with an error event; downloads are cut.
    Goodbye,
}

/// Streams of one server.
pub(super) struct SampleStreams {
    settings: SampleStreamSettings,
    /// Number of streams so far.
    begun: Cell<u64>,
    after_stop_signal: Cell<bool>,
    /// Time at which a signal started the server's shutdown.
    stopped: Cell<Option<Instant>>,
    stopping: CancellationToken,
    exiting: Cell<bool>,
}

/// Reaction of a stream when the server stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StopAct {
    Cut,
    Goodbye,
}

impl SampleStreams {
    pub(super) fn new(settings: SampleStreamSettings) -> Self {
        Self {
            settings,
            begun: Cell::new(0),
            after_stop_signal: Cell::new(false),
            stopped: Cell::new(None),
            stopping: CancellationToken::new(),
            exiting: Cell::new(false),
        }
    }

    pub(super) fn framing(&self) -> StreamFraming {
        self.settings.framing
    }

    /// Records that a stop signal has arrived, whatever the server's habit.
    pub(super) fn note_stop_signal(&self) {
        self.after_stop_signal.set(true);
    }

    /// Begins the reaction to a signal that eventually stops the server.
    pub(super) fn stop(&self) {
        self.note_stop_signal();
        self.stopped.set(Some(Instant::now()));
        self.stopping.cancel();
    }

    /// Records that the process is exiting immediately. Streams that end now count as cut by the server.
    pub(super) fn exit(&self) {
        self.exiting.set(true);
    }

    /// Returns the number of a new stream, counting from 1.
    fn next_number(&self) -> u64 {
        self.begun.set(self.begun.get() + 1);
        self.begun.get()
    }

    /// Waits until streams must end because the server is stopping. Never returns if they may finish.
    async fn stop_act(&self) -> StopAct {
        self.stopping.cancelled().await;
        let stopped = self.stopped.get().unwrap_or_else(Instant::now);
        match self.settings.on_stop {
            StreamStopHabit::Finish => std::future::pending().await,
            StreamStopHabit::Goodbye => StopAct::Goodbye,
            StreamStopHabit::CutAfter(wait) => {
                sleep_until(stopped + wait).await;
                StopAct::Cut
            }
        }
    }
}
