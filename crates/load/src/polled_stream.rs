//! A stream whose socket the worker's poller reads (`stream_poller`), with its position in the body.

use std::net::TcpStream;

use tokio::sync::oneshot;

use super::answer_stream::StreamReader;
use super::body_end::{ReadEnd, take_body};
use rolldrop_record::Stamp;
use rolldrop_wire::http1::Body;

/// Stream while the poller reads it.
#[derive(Debug)]
pub(super) struct PolledStream {
    pub(super) body: PolledBody,
    /// Time at which bytes last arrived.
    pub(super) last_read: Stamp,
    /// Sender to the task that waits for the end of the body.
    pub(super) ended: oneshot::Sender<(PolledBody, ReadEnd)>,
}

/// Body of a stream, with the socket on which it arrives.
#[derive(Debug)]
pub(super) struct PolledBody {
    pub(super) socket: TcpStream,
    pub(super) body: Body,
    /// Bytes after the end of the body.
    pub(super) rest: Vec<u8>,
}

impl PolledBody {
    /// Passes the bytes on to the reader of the stream; returns the end of the body if they reach it.
    pub(super) fn take(&mut self, now: Stamp, bytes: &[u8], reader: &mut StreamReader) -> Option<ReadEnd> {
        match take_body(&mut self.body, bytes, |piece| reader.push(now, piece)) {
            Ok(taken) if self.body.is_done() => {
                self.rest.extend_from_slice(&bytes[taken..]);
                Some(ReadEnd::Complete)
            }
            Ok(_) => None,
            Err(end) => Some(end),
        }
    }
}
