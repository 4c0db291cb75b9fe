//! Server-sent events (WHATWG HTML, 9.2.5 and 9.2.6): the format `text/event-stream`.
//!
//! An event is reported with the line end that completes it, even if that is a CR that may be the first half of a CRLF.
//! An event without its blank line at the end of the body is not reported, as the standard requires. Bytes that are not
//! UTF-8 pass unchanged.

#[cfg(any(test, fuzzing))]
pub(crate) mod reference;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::mem;

use super::{MAX_EVENT_BYTES, TooLong};

/// Type of an event that has no name.
pub const MESSAGE: &[u8] = b"message";

const BOM: &[u8] = b"\xef\xbb\xbf";

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SseEvent<'a> {
    /// Type of the event; [`MESSAGE`] if the server named none.
    pub name: &'a [u8],
    /// Data lines, joined with LF.
    pub data: &'a [u8],
    /// Last event ID of the stream, possibly from an earlier event; empty if there is none.
    pub last_id: &'a [u8],
}

/// Position in a stream of events.
#[derive(Debug, Default)]
pub struct Parser {
    /// Beginning of the next event; `None` if none of it has arrived.
    begun: Option<Box<Fields<'static>>>,
    last_id: Vec<u8>,
    retry_ms: Option<u64>,
    /// True once the place for a byte order mark has passed.
    is_past_bom: bool,
    /// True if the last byte was a CR: an LF that follows belongs to it.
    is_after_cr: bool,
}

/// Fields of an event whose end has not arrived, borrowed from the bytes at hand where possible.
#[derive(Debug, Default)]
struct Fields<'a> {
    name: Cow<'a, [u8]>,
    data: Option<Cow<'a, [u8]>>,
    id: Option<Cow<'a, [u8]>>,
    /// First part of a line whose end has not arrived. For a comment, only its colon.
    line: Vec<u8>,
    /// Size of all complete lines, except comments.
    size: usize,
}

impl Parser {
    /// Takes the next bytes, and passes each event that they complete to `each`.
    ///
    /// # Errors
    ///
    /// Fails if an event is too long.
    pub fn push(&mut self, bytes: &[u8], mut each: impl FnMut(SseEvent<'_>)) -> Result<(), TooLong> {
        let Some(first) = bytes.first() else { return Ok(()) };
        let mut rest = if self.is_after_cr && *first == b'\n' { &bytes[1..] } else { bytes };
        self.is_after_cr = bytes.ends_with(b"\r");
        let mut fields: Fields<'_> = self.begun.take().map_or_else(Fields::default, |begun| *begun);
        while let Some(end) = memchr::memchr2(b'\r', b'\n', rest) {
            let (piece, line_end) = rest.split_at(end);
            rest = line_end.strip_prefix(b"\r\n").unwrap_or(&line_end[1..]);
            let line = self.after_bom(fields.line_with(piece));
            self.is_past_bom = true;
            if line.is_empty() {
                self.dispatch(mem::take(&mut fields), &mut each);
            } else if line[0] != b':' {
                fields.count(line.len())?;
                self.add(&mut fields, line);
            }
        }
        if !rest.is_empty() {
            fields.line = self.after_bom(fields.line_with(rest)).into_owned();
        }
        if fields.line.starts_with(b":") {
            fields.line.truncate(1);
            fields.line.shrink_to_fit();
        }
        if !fields.is_empty() {
            fields.check(fields.line.len())?;
            self.begun = Some(Box::new(fields.into_owned()));
        }
        Ok(())
    }

    /// Returns true if data or part of a line has arrived, but not the end of the event.
    pub fn is_mid_event(&self) -> bool {
        let has_part = |fields: &Fields<'_>| !matches!(fields.line.first(), None | Some(b':'));
        self.begun.as_ref().is_some_and(|fields| fields.data.is_some() || has_part(fields))
    }

    /// Returns the last event ID, which a client sends when it reconnects; empty if there is none.
    pub fn last_id(&self) -> &[u8] {
        &self.last_id
    }

    /// Returns the time in milliseconds after which the server asks clients to reconnect.
    pub fn retry_ms(&self) -> Option<u64> {
        self.retry_ms
    }

    /// Removes the byte order mark from the first line, as soon as enough of it has arrived.
    fn after_bom<'a>(&mut self, line: Cow<'a, [u8]>) -> Cow<'a, [u8]> {
        if self.is_past_bom || BOM.starts_with(&line) && line.len() < BOM.len() {
            return line;
        }
        self.is_past_bom = true;
        if line.starts_with(BOM) { without_first(line, BOM.len()) } else { line }
    }

    /// Adds a line that is neither blank nor a comment.
    fn add<'a>(&mut self, fields: &mut Fields<'a>, line: Cow<'a, [u8]>) {
        let colon = memchr::memchr(b':', &line).unwrap_or(line.len());
        let space = usize::from(line.get(colon + 1) == Some(&b' '));
        let value_at = (colon + 1 + space).min(line.len());
        match &line[..colon] {
            b"data" => {
                let value = without_first(line, value_at);
                match &mut fields.data {
                    Some(data) => {
                        let data = data.to_mut();
                        data.push(b'\n');
                        data.extend_from_slice(&value);
                    }
                    none => *none = Some(value),
                }
            }
            b"event" => fields.name = without_first(line, value_at),
            b"id" if !line[value_at..].contains(&0) => fields.id = Some(without_first(line, value_at)),
            b"retry" => self.retry_ms = milliseconds(&line[value_at..]).or(self.retry_ms),
            _ => {}
        }
    }

    fn dispatch(&mut self, fields: Fields<'_>, each: &mut impl FnMut(SseEvent<'_>)) {
        if let Some(id) = &fields.id {
            self.last_id.clear();
            self.last_id.extend_from_slice(id);
        }
        if let Some(data) = &fields.data {
            let name = if fields.name.is_empty() { MESSAGE } else { &fields.name };
            each(SseEvent { name, data, last_id: &self.last_id });
        }
    }
}

impl<'a> Fields<'a> {
    /// Returns the line so far, with these bytes at its end.
    fn line_with(&mut self, piece: &'a [u8]) -> Cow<'a, [u8]> {
        if self.line.is_empty() {
            return Cow::Borrowed(piece);
        }
        let mut line = mem::take(&mut self.line);
        line.extend_from_slice(piece);
        Cow::Owned(line)
    }

    fn check(&self, further: usize) -> Result<(), TooLong> {
        if self.size + further > MAX_EVENT_BYTES { Err(TooLong) } else { Ok(()) }
    }

    fn count(&mut self, line: usize) -> Result<(), TooLong> {
        self.check(line)?;
        self.size += line;
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.size == 0 && self.line.is_empty()
    }

    fn into_owned(self) -> Fields<'static> {
        let owned = |text: Cow<'_, [u8]>| Cow::Owned(text.into_owned());
        Fields {
            name: owned(self.name),
            data: self.data.map(owned),
            id: self.id.map(owned),
            line: self.line,
            size: self.size,
        }
    }
}

fn without_first(line: Cow<'_, [u8]>, count: usize) -> Cow<'_, [u8]> {
    match line {
        Cow::Borrowed(line) => Cow::Borrowed(&line[count..]),
        Cow::Owned(mut line) => {
            line.drain(..count);
            Cow::Owned(line)
        }
    }
}

/// Parses a number that consists of digits only. Chromium and Firefox also ignore an empty one.
fn milliseconds(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let append = |ms: u64, digit: &u8| ms.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
    is_number.then(|| digits.iter().fold(0, append))
}
