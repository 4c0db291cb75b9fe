//! Reads one stream: a response made up of events, with an end that the protocol defines.
//!
//! A [`StreamReader`] receives the body's bytes with their arrival times, and collects the facts for the stream's row.
//! It has no clock and reads no socket. Its caller reports how the transport ended, and then asks for the row and the
//! outcome. With thousands of open streams, most are between two events, and their readers use only a few hundred bytes
//! each.
//!
//! `terminal_events` lists the events that end a stream. `stream_outcome` decides from them and from the end of the
//! transport whether a stream was complete, cut, unfinished, stalled or aborted. `media_fault` checks the
//! headers for a response that is not such a stream. `tokens` counts tokens, and `json` finds values without parsing.

mod json;
mod media_fault;
mod stream_outcome;
mod terminal_events;
#[cfg(test)]
mod tests;
mod tokens;

use std::sync::Arc;

use rolldrop_record::load::{StreamKind, StreamSettings};
use rolldrop_record::{Stamp, StreamRow};
use rolldrop_wire::answer_events::TooLong;
use rolldrop_wire::answer_events::ndjson::Lines;
use rolldrop_wire::answer_events::sse::Parser;
use serde::de::IgnoredAny;

pub use media_fault::MediaFault;
pub use stream_outcome::TransportEnd;
use terminal_events::{Decision, StreamEvent};
use tokens::Tokens;

/// A stream that is being read.
#[derive(Debug)]
pub struct StreamReader {
    settings: Arc<StreamSettings>,
    parser: AnyParser,
    progress: StreamProgress,
}

#[derive(Debug)]
enum AnyParser {
    Sse(Parser),
    Ndjson(Lines),
    Bytes,
}

#[derive(Debug, Default)]
struct StreamProgress {
    /// Arrival times of the first and the last event.
    span: Option<(Stamp, Stamp)>,
    events: u64,
    bytes: u64,
    tokens: Tokens,
    longest_gap: Option<Gap>,
    /// Decision made by the first event that ends the stream.
    decision: Option<Decision>,
}

#[derive(Clone, Copy, Debug)]
struct Gap {
    start: Stamp,
    ns: i64,
}

impl StreamReader {
    /// Creates a reader for a stream whose body has not begun.
    pub fn new(settings: Arc<StreamSettings>) -> Self {
        let parser = match settings.kind {
            StreamKind::OpenAi | StreamKind::Anthropic | StreamKind::Sse => AnyParser::Sse(Parser::default()),
            StreamKind::Ndjson => AnyParser::Ndjson(Lines::default()),
            StreamKind::Bytes => AnyParser::Bytes,
        };
        Self { settings, parser, progress: StreamProgress::default() }
    }

    /// Adds body bytes that arrived at `now`.
    ///
    /// # Errors
    /// Returns an error if an event is too long. The caller must then close the connection and report
    /// [`TransportEnd::EventTooLong`].
    pub fn push(&mut self, now: Stamp, bytes: &[u8]) -> Result<(), TooLong> {
        let Self { settings, parser, progress } = self;
        progress.bytes += bytes.len() as u64;
        match parser {
            AnyParser::Sse(parser) => parser
                .push(bytes, |event| progress.add(settings, now, StreamEvent::of_sse(settings.kind, &event))),
            AnyParser::Ndjson(lines) => lines
                .push(bytes, |line| progress.add(settings, now, StreamEvent { of_type: b"", data: line })),
            AnyParser::Bytes => {
                if !bytes.is_empty() {
                    progress.count(now);
                }
                Ok(())
            }
        }
    }

    /// Adds the last event of a body that ended at `now`; a last line that is a whole value needs no line ending (JSON
    /// Lines).
    pub fn finish(&mut self, now: Stamp, end: TransportEnd) {
        let Self { settings, parser: AnyParser::Ndjson(lines), progress } = self else { return };
        let is_clean =
            matches!(end, TransportEnd::LastChunk | TransportEnd::ContentLength | TransportEnd::Close);
        if is_clean && serde_json::from_slice::<IgnoredAny>(lines.rest()).is_ok() {
            progress.add(settings, now, StreamEvent { of_type: b"", data: lines.rest() });
            *lines = Lines::default();
        }
    }

    /// Returns the row for a request's stream, given how its transport ended. With [`TransportEnd::Cancelled`], the
    /// stream may still be open.
    pub fn row(&self, source: Arc<str>, seq: u64, end: TransportEnd) -> StreamRow {
        let StreamProgress { span, events, bytes, tokens, longest_gap, decision } = &self.progress;
        let (terminal, goodbye) = match decision {
            None => (end.into(), None),
            Some(Decision::Complete(by)) => (*by, None),
            Some(Decision::Aborted { by, goodbye }) => (*by, Some(Arc::clone(goodbye))),
        };
        StreamRow {
            source,
            seq,
            first_event: span.map(|(first, _)| first),
            last_event: span.map(|(_, last)| last),
            events: *events,
            bytes: *bytes,
            tokens: tokens.total(self.settings.kind),
            longest_gap: longest_gap.and_then(|gap| u64::try_from(gap.ns).ok()),
            gap_start: longest_gap.map(|gap| gap.start),
            terminal,
            goodbye,
        }
    }

    /// Returns the number of events so far, and the arrival time of the last one.
    pub(super) fn events(&self) -> (u64, Option<Stamp>) {
        (self.progress.events, self.progress.span.map(|(_, last)| last))
    }

    fn is_mid_event(&self) -> bool {
        match &self.parser {
            AnyParser::Sse(parser) => parser.is_mid_event(),
            AnyParser::Ndjson(lines) => lines.is_mid_event(),
            AnyParser::Bytes => false,
        }
    }
}

impl StreamProgress {
    fn add(&mut self, settings: &StreamSettings, now: Stamp, event: StreamEvent<'_>) {
        self.count(now);
        self.tokens.add(settings.kind, event);
        if self.decision.is_none() {
            self.decision = terminal_events::decision(settings, event);
        }
    }

    fn count(&mut self, now: Stamp) {
        self.events += 1;
        let Some((_, last)) = &mut self.span else {
            self.span = Some((now, now));
            return;
        };
        let gap = Gap { start: *last, ns: now.ns_since(*last) };
        *last = now;
        if self.longest_gap.is_none_or(|longest| gap.ns > longest.ns) {
            self.longest_gap = Some(gap);
        }
    }
}
