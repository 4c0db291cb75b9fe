//! Sends a stream's events on schedule, as the body of its response.
//!
//! Each event waits until the kernel has accepted the previous one. The journal can therefore record how far a cut
//! stream got, and a client that does not read slows down its stream.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, LocalBoxStream};
use hyper::body::{Body, Frame, SizeHint};
use rolldrop_record::LengthLaw;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::event_format::{EventFormat, Piece, ToldError};
use super::stream_journal::{StreamJournal, WrittenSoFar};
use super::stream_plan::{EventTimes, StreamPlan};
use super::{SampleStreamKind, SampleStreams, StopAct, StreamFault, StreamFraming};
use crate::response_flush::Unflushed;
use crate::workload_log::{LoggedExchange, ServedStreamEnd, WorkloadLog};

/// Request for a stream.
pub(crate) struct StreamRequest {
    pub(crate) kind: SampleStreamKind,
    /// Time at which the head of the request was read.
    pub(crate) accepted_ns: i64,
    /// Requested length.
    pub(crate) length: Option<LengthLaw>,
}

/// Error that ends a body early and says how to close its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StreamCut {
    /// Close the connection normally.
    #[error("stream cut by FIN")]
    Close,
    /// Reset the connection.
    #[error("stream cut by RST")]
    Reset,
}

/// Body of a stream's response.
pub(crate) struct StreamBody {
    frames: LocalBoxStream<'static, Result<BodyFrame, StreamCut>>,
    /// True after the last frame.
    is_over: bool,
    content_length: Option<u64>,
}

enum BodyFrame {
    More(Bytes),
    Last(Bytes),
}

impl StreamBody {
    /// Begins a stream.
    pub(crate) fn begin(
        streams: &Rc<SampleStreams>,
        log: &WorkloadLog,
        unflushed: Unflushed,
        request: StreamRequest,
        exchange: LoggedExchange,
    ) -> Self {
        let StreamRequest { kind, accepted_ns, length } = request;
        let settings = &streams.settings;
        let number = streams.next_number();
        let plan = StreamPlan::draw(settings, kind, number, length.as_ref());
        let format = EventFormat {
            kind,
            stream: number,
            created_s: log.now_ns() / 1_000_000_000,
            event_bytes: settings.event_bytes,
        };
        let content_length = (kind == SampleStreamKind::Download
            && settings.framing == StreamFraming::ContentLength)
            .then(|| format.bytes_until(plan.times.clone().count() as u64 + 1));
        let journal = StreamJournal {
            log: log.clone(),
            streams: streams.clone(),
            exchange: Some(exchange),
            kind,
            accepted_ns,
            length: plan.length,
            progress: Cell::new(WrittenSoFar::default()),
            end: Cell::new(None),
        };
        let began = Instant::now();
        let sender = EventSender {
            journal: Rc::new(journal),
            unflushed,
            flushed: Rc::new(Notify::new()),
            format,
            began,
            times: plan.times,
            sent: 0,
            end: began + plan.length,
            fault: plan.fault.map(|(fault, time)| (fault, began + time)),
        };
        let frames = stream::unfold(Some(sender), |sender| async move { sender?.next().await });
        Self { frames: frames.boxed_local(), is_over: false, content_length }
    }
}

impl Body for StreamBody {
    type Data = Bytes;
    type Error = StreamCut;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StreamCut>>> {
        let frame = ready!(self.frames.poll_next_unpin(cx));
        self.is_over = !matches!(frame, Some(Ok(BodyFrame::More(_))));
        let bytes = |frame| match frame {
            BodyFrame::More(bytes) | BodyFrame::Last(bytes) => bytes,
        };
        Poll::Ready(frame.map(|frame| frame.map(|frame| Frame::data(bytes(frame)))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over
    }

    fn size_hint(&self) -> SizeHint {
        self.content_length.map(SizeHint::with_exact).unwrap_or_default()
    }
}

/// Sender of one stream's events.
struct EventSender {
    journal: Rc<StreamJournal>,
    unflushed: Unflushed,
    /// Notified when the kernel has accepted the last event.
    flushed: Rc<Notify>,
    format: EventFormat,
    began: Instant,
    times: EventTimes,
    /// Number of events sent so far.
    sent: u64,
    end: Instant,
    fault: Option<(StreamFault, Instant)>,
}

/// Next step of a stream.
enum Turn {
    Event,
    End,
    Fault(StreamFault),
    Stop(StopAct),
}

type NextFrame = Option<(Result<BodyFrame, StreamCut>, Option<EventSender>)>;

impl EventSender {
    /// Waits for the next frame, and returns it with the sender if more frames follow.
    async fn next(mut self) -> NextFrame {
        match self.turn().await {
            Turn::Event => {
                let bytes = self.event();
                Some((Ok(BodyFrame::More(bytes)), Some(self)))
            }
            Turn::End => {
                let terminal = self.format.terminal(self.sent + 1);
                self.last(terminal, ServedStreamEnd::Complete)
            }
            Turn::Fault(fault) => self.fail(fault).await,
            Turn::Stop(StopAct::Goodbye) if self.format.kind != SampleStreamKind::Download => {
                let error = self.format.error(ToldError::ShuttingDown);
                self.last(error, ServedStreamEnd::Goodbye)
            }
            Turn::Stop(_) => self.cut(StreamCut::Close, ServedStreamEnd::CutAtSigterm).await,
        }
    }

    async fn turn(&mut self) -> Turn {
        let due = self.times.next().map(|time| self.began + time);
        if self.sent == 0 {
            // Every stream sends a first event, whatever happens later.
            return Turn::Event;
        }
        let next = async {
            self.flushed.notified().await;
            sleep_until(due.unwrap_or(self.end)).await;
        };
        tokio::select! {
            biased;
            act = self.journal.streams.stop_act() => Turn::Stop(act),
            fault = occurrence(self.fault) => Turn::Fault(fault),
            () = next => if due.is_some() { Turn::Event } else { Turn::End },
        }
    }

    /// Returns the next event.
    fn event(&mut self) -> Bytes {
        self.sent += 1;
        let piece = self.format.event(self.sent);
        let bytes = piece.bytes.clone();
        let (journal, flushed) = (self.journal.clone(), self.flushed.clone());
        self.unflushed.then(move || {
            journal.record(&piece);
            flushed.notify_one();
        });
        bytes
    }

    /// Ends the stream cleanly, with a last piece.
    fn last(self, piece: Piece, end: ServedStreamEnd) -> NextFrame {
        let bytes = piece.bytes.clone();
        let journal = self.journal;
        self.unflushed.then(move || {
            journal.record(&piece);
            journal.end.set(Some(end));
        });
        Some((Ok(BodyFrame::Last(bytes)), None))
    }

    /// Ends the stream in the middle of its response.
    async fn cut(self, how: StreamCut, end: ServedStreamEnd) -> NextFrame {
        // Let the connection flush an event that it has just received.
        tokio::task::yield_now().await;
        self.journal.end.set(Some(end));
        Some((Err(how), None))
    }

    async fn fail(self, fault: StreamFault) -> NextFrame {
        match fault {
            StreamFault::CutFin => self.cut(StreamCut::Close, ServedStreamEnd::CutFin).await,
            StreamFault::CutRst => self.cut(StreamCut::Reset, ServedStreamEnd::CutRst).await,
            StreamFault::Unfinished => {
                let journal = self.journal;
                self.unflushed.then(move || journal.end.set(Some(ServedStreamEnd::Unfinished)));
                None
            }
            StreamFault::Abort => {
                let piece = self.format.abort();
                self.last(piece, ServedStreamEnd::Aborted)
            }
            StreamFault::ErrorEvent => {
                let piece = self.format.error(ToldError::Failed);
                self.last(piece, ServedStreamEnd::ErrorEvent)
            }
            StreamFault::Stall => {
                self.journal.stall();
                self.journal.streams.stop_act().await;
                self.cut(StreamCut::Close, ServedStreamEnd::CutAtSigterm).await
            }
        }
    }
}

/// Waits for a fault. Never returns if there is none.
async fn occurrence(fault: Option<(StreamFault, Instant)>) -> StreamFault {
    match fault {
        Some((fault, time)) => {
            sleep_until(time).await;
            fault
        }
        None => std::future::pending().await,
    }
}
