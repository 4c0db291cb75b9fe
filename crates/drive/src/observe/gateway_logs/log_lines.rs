//! Splits a log's bytes into lines, and limits their number and length. Pure: no clock, no I/O.

use std::time::Duration;

use jiff::Timestamp;
use memchr::memchr;

use rolldrop_record::Stamp;

/// Maximum length of a line with its timestamp, in bytes.
const LINE_BYTES: usize = 64 * 1024;
/// Length of the periods in which lines are counted. A log may exceed its rate for a shorter time.
const RATE_PERIOD: Duration = Duration::from_secs(10);

/// Line of a log without its line ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RawLine<'a> {
    /// The line, or the start of one that is too long.
    pub(super) bytes: &'a [u8],
    /// Length of the whole line.
    pub(super) length: usize,
}

impl<'a> RawLine<'a> {
    /// Splits off the timestamp that the kubelet puts before a line. Returns `None` if there is none: then the line is
    /// a message from the kubelet, or the end of a line whose start is too old.
    pub(super) fn stamped(self) -> Option<(Stamp, Self)> {
        let space = memchr(b' ', self.bytes)?;
        let time: Timestamp = std::str::from_utf8(&self.bytes[..space]).ok()?.parse().ok()?;
        Some((stamp_of(time)?, Self { bytes: &self.bytes[space + 1..], length: self.length - space - 1 }))
    }

    pub(super) fn is_too_long(self) -> bool {
        self.length > self.bytes.len()
    }
}

/// Converts a time; `None` if it is not within 292 years of 1970.
pub(super) fn stamp_of(time: Timestamp) -> Option<Stamp> {
    Some(Stamp::from_unix_ns(i64::try_from(time.as_nanosecond()).ok()?))
}

/// Splits chunks into lines. Copies only lines that are spread over several chunks. Text without a line ending is not a
/// line.
#[derive(Debug, Default)]
pub(super) struct LineSplitter {
    /// Start of a line whose end has not arrived.
    held: Vec<u8>,
    length: usize,
    /// True if `held` was returned as a line.
    is_returned: bool,
}

impl LineSplitter {
    /// Removes the next line from the start of a chunk, and returns it. Returns `None` after the last complete line, once
    /// the chunk is empty.
    pub(super) fn next<'a, 'c: 'a>(&'a mut self, chunk: &mut &'c [u8]) -> Option<RawLine<'a>> {
        if std::mem::take(&mut self.is_returned) {
            self.clear();
        }
        let end = memchr(b'\n', chunk);
        let (piece, rest) = end.map_or((*chunk, &[][..]), |end| (&chunk[..end], &chunk[end + 1..]));
        *chunk = rest;
        if end.is_some() && self.length == 0 && piece.len() <= LINE_BYTES {
            return Some(RawLine { bytes: piece, length: piece.len() });
        }
        self.length += piece.len();
        let room = piece.len().min(LINE_BYTES - self.held.len());
        self.held.extend_from_slice(&piece[..room]);
        self.is_returned = end.is_some();
        self.is_returned.then_some(RawLine { bytes: &self.held, length: self.length })
    }

    /// Forgets a line whose end has not arrived.
    pub(super) fn clear(&mut self) {
        self.held.clear();
        self.length = 0;
    }
}

/// Counts the lines of a log by the time at which they were written, so that catching up does not count as excess.
#[derive(Debug)]
pub(super) struct LineRate {
    limit: u32,
    begun: Stamp,
    lines: u32,
}

impl LineRate {
    /// Creates a count that allows `limit` lines per second.
    pub(super) fn new(limit: u32) -> Self {
        Self { limit, begun: Stamp::default(), lines: 0 }
    }

    /// Counts a line.
    ///
    /// # Errors
    /// Fails with a message if there are more lines than the limit allows.
    pub(super) fn count(&mut self, written: Stamp) -> Result<(), String> {
        let is_within = self.begun - RATE_PERIOD < written && written < self.begun + RATE_PERIOD;
        if !is_within {
            (self.begun, self.lines) = (written, 0);
        }
        self.lines = self.lines.saturating_add(1);
        if u64::from(self.lines) > u64::from(self.limit) * RATE_PERIOD.as_secs() {
            return Err(format!("it writes more than {} lines per second", self.limit));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(chunks: &[&[u8]]) -> Vec<(String, usize)> {
        let (mut splitter, mut found) = (LineSplitter::default(), Vec::new());
        for chunk in chunks {
            let mut rest = *chunk;
            while let Some(line) = splitter.next(&mut rest) {
                found.push((String::from_utf8_lossy(line.bytes).into_owned(), line.length));
            }
        }
        found
    }

    #[test]
    fn line_splitter_ignores_chunk_boundaries() {
        let text = b"one\n\ntwo three\nfour";
        let whole = lines_of(&[text]);
        let expected: Vec<_> = ["one", "", "two three"].map(|line| (line.to_owned(), line.len())).into();
        assert_eq!(whole, expected);
        for cut in 0..text.len() {
            assert_eq!(lines_of(&[&text[..cut], &text[cut..]]), expected, "{cut}");
        }
        let bytes: Vec<_> = text.chunks(1).collect();
        assert_eq!(lines_of(&bytes), expected);
    }

    #[test]
    fn overlong_line_is_cut_but_reports_full_length() {
        let long = vec![b'x'; 3 * LINE_BYTES];
        for size in [LINE_BYTES / 3, LINE_BYTES, 10 * LINE_BYTES] {
            let mut text = long.clone();
            text.extend_from_slice(b"\nnext\n");
            let found = lines_of(&text.chunks(size).collect::<Vec<_>>());
            let lengths: Vec<_> = found.iter().map(|(bytes, length)| (bytes.len(), *length)).collect();
            assert_eq!(lengths, [(LINE_BYTES, 3 * LINE_BYTES), (4, 4)], "{size}");
        }
    }

    #[test]
    fn kubelet_timestamp_is_split_off() {
        let line = |text: &'static str| RawLine { bytes: text.as_bytes(), length: text.len() };
        let (written, rest) = line("2026-01-01T00:00:00.000000007Z  a b").stamped().unwrap();
        assert_eq!((written.unix_ns() % 1_000_000_000, rest.bytes), (7, &b" a b"[..]));
        assert_eq!(line("2026-01-01T01:00:00+01:00 ").stamped().unwrap().1.bytes, b"");
        for other in
            ["", "a b", "unable to retrieve container logs for containerd://1", "2026-01-01T00:00:00Z"]
        {
            assert_eq!(line(other).stamped(), None, "{other}");
        }
    }

    #[test]
    fn line_rate_allows_bursts_and_catching_up() {
        let at = |ms: i64| Stamp::from_unix_ns(1_000_000_000_000 + ms * 1_000_000);
        let mut rate = LineRate::new(100);
        assert!((0..1000).all(|_| rate.count(at(0)).is_ok()), "ten seconds' worth at once");
        assert_eq!(rate.count(at(9_999)).unwrap_err(), "it writes more than 100 lines per second");
        assert!(rate.count(at(10_000)).is_ok());
        let mut rate = LineRate::new(100);
        assert!((0..100_000).all(|n| rate.count(at(n * 10)).is_ok()), "any number over time");
        let mut rate = LineRate::new(100);
        assert!((0..2_000).any(|n| rate.count(at(n * 5)).is_err()));
    }
}
