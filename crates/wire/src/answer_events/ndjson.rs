//! Lines of JSON, one value per line (NDJSON, JSON Lines). Lines end in LF or CRLF; blank lines are not events.

use std::mem;

use super::{MAX_EVENT_BYTES, TooLong};

/// Position in a body of lines.
#[derive(Debug, Default)]
pub struct Lines {
    /// First part of a line whose end has not arrived.
    begun: Vec<u8>,
}

impl Lines {
    /// Takes the next bytes, and passes each line that they complete to `each`, without its line end.
    ///
    /// # Errors
    ///
    /// Fails if a line is too long.
    pub fn push(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8])) -> Result<(), TooLong> {
        let mut rest = bytes;
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let (piece, after) = (&rest[..end], &rest[end + 1..]);
            rest = after;
            self.check(piece)?;
            let begun = mem::take(&mut self.begun);
            match begun.is_empty() {
                true => report(piece, &mut each),
                false => report(&[&begun, piece].concat(), &mut each),
            }
        }
        self.check(rest)?;
        self.begun.extend_from_slice(rest);
        Ok(())
    }

    /// Returns true if part of a line has arrived, but not its end.
    pub fn is_mid_event(&self) -> bool {
        !self.begun.trim_ascii().is_empty()
    }

    /// Returns the part of a line whose end has not arrived.
    pub fn rest(&self) -> &[u8] {
        &self.begun
    }

    fn check(&self, piece: &[u8]) -> Result<(), TooLong> {
        if self.begun.len() + piece.len() > MAX_EVENT_BYTES { Err(TooLong) } else { Ok(()) }
    }
}

fn report(line: &[u8], each: &mut impl FnMut(&[u8])) {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if !line.trim_ascii().is_empty() {
        each(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = b"{\"a\": 1}\n\r\n  \n{\"b\": \"\xc3\xa4\"}\r\n{\"c\":";

    fn lines<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Vec<u8>>, bool) {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        for piece in pieces {
            lines.push(piece, |line| found.push(line.to_vec())).unwrap();
        }
        (found, lines.is_mid_event())
    }

    #[test]
    fn lines_do_not_depend_on_segmentation() {
        let whole = lines([BODY]);
        assert_eq!(whole, (vec![b"{\"a\": 1}".to_vec(), b"{\"b\": \"\xc3\xa4\"}".to_vec()], true));
        for cut in 0..BODY.len() {
            assert_eq!(lines([&BODY[..cut], &BODY[cut..]]), whole, "cut at {cut}");
        }
        assert_eq!(lines(BODY.chunks(1)), whole);
    }

    #[test]
    fn last_line_needs_line_ending() {
        assert_eq!(lines([b"1\n2" as &[u8]]), (vec![b"1".to_vec()], true));
        assert_eq!(lines([b"1\n2\n" as &[u8]]), (vec![b"1".to_vec(), b"2".to_vec()], false));
        assert_eq!(lines([b"1\n \r" as &[u8]]), (vec![b"1".to_vec()], false));
    }

    #[test]
    fn idle_line_parser_holds_no_memory() {
        let mut lines = Lines::default();
        lines.push(b"{\"a\"", |_| {}).unwrap();
        assert_ne!(lines.begun.capacity(), 0);
        lines.push(b": 1}\n", |_| {}).unwrap();
        assert_eq!(lines.begun.capacity(), 0);
    }

    #[test]
    fn long_line_is_rejected() {
        let fits = [&vec![b'1'; MAX_EVENT_BYTES][..], b"\n"].concat();
        let mut count = 0;
        assert_eq!(Lines::default().push(&fits, |_| count += 1), Ok(()));
        assert_eq!(count, 1);
        let long = [b"1", &fits[..]].concat();
        assert_eq!(Lines::default().push(&long, |_| {}), Err(TooLong));
        let mut lines = Lines::default();
        assert_eq!(long.chunks(4096).try_for_each(|piece| lines.push(piece, |_| {})), Err(TooLong));
        assert!(lines.begun.len() <= MAX_EVENT_BYTES);
    }
}
