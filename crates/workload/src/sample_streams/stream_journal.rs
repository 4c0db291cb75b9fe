//! Logs a stream when it ends, with the part that the kernel had accepted.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use super::event_format::Piece;
use super::{SampleStreamKind, SampleStreams};
use crate::workload_log::{LoggedExchange, ServedStreamEnd, ServerEvent, StreamEntry, WorkloadLog};

/// One stream, from its request to its end. The stream's body and the connection's unflushed pieces share it; when
/// the last of them is gone, the stream is logged.
pub(super) struct StreamJournal {
    pub(super) log: WorkloadLog,
    pub(super) streams: Rc<SampleStreams>,
    pub(super) exchange: Option<LoggedExchange>,
    pub(super) kind: SampleStreamKind,
    pub(super) accepted_ns: i64,
    pub(super) length: Duration,
    pub(super) progress: Cell<WrittenSoFar>,
    /// End chosen by the server; `None` while the stream is open.
    pub(super) end: Cell<Option<ServedStreamEnd>>,
}

/// Part of a stream that the kernel has accepted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WrittenSoFar {
    started_ns: Option<i64>,
    events: u64,
    bytes: u64,
    last_event: u64,
}

impl StreamJournal {
    /// Records that the kernel has accepted a whole piece.
    pub(super) fn record(&self, piece: &Piece) {
        let WrittenSoFar { started_ns, events, bytes, last_event } = self.progress.get();
        self.progress.set(WrittenSoFar {
            started_ns: started_ns.or_else(|| Some(self.log.now_ns())),
            events: events + piece.events,
            bytes: bytes + piece.bytes.len() as u64,
            last_event: piece.number.unwrap_or(last_event),
        });
    }

    /// Records that nothing more will be sent.
    pub(super) fn stall(&self) {
        self.end.set(Some(ServedStreamEnd::Stalled));
        if let Some(id) = self.exchange.as_ref().and_then(LoggedExchange::id) {
            self.log.write(ServerEvent::StreamStalled { id });
        }
    }

    /// Returns how the stream ended.
    fn ended(&self) -> ServedStreamEnd {
        match self.end.get() {
            // The process exits while the connection is open.
            None | Some(ServedStreamEnd::Stalled) if self.streams.exiting.get() => {
                ServedStreamEnd::CutAtSigterm
            }
            None => ServedStreamEnd::ClientGone,
            Some(end) => end,
        }
    }
}

impl Drop for StreamJournal {
    fn drop(&mut self) {
        let WrittenSoFar { started_ns, events, bytes, last_event } = self.progress.get();
        let exchange = self.exchange.take();
        let end = self.ended();
        self.log.write(ServerEvent::StreamEnded(StreamEntry {
            id: exchange.as_ref().and_then(LoggedExchange::id),
            path: self.kind.path(),
            accepted_ns: self.accepted_ns,
            started_ns,
            ended_ns: self.log.now_ns(),
            length_ns: u64::try_from(self.length.as_nanos()).unwrap_or(u64::MAX),
            events,
            bytes,
            last_event,
            end,
            after_stop_signal: self.streams.after_stop_signal.get(),
        }));
        if let Some(exchange) = exchange.filter(|_| end.is_clean()) {
            exchange.answered();
        }
    }
}
