//! Repairs quoted text that continues on a line with too little indentation. YAML forbids this, but kubectl accepts it
//! (as libyaml does), and the official Gateway API CRDs contain it.
//!
//! Leading space on such a line has no meaning. The lines are therefore indented further and parsed again, and later
//! positions are mapped back to the original text.

use std::borrow::Cow;

/// Text from some position to its end, with lines indented where necessary.
#[derive(Debug)]
pub(super) struct Repaired<'t> {
    base: usize,
    text: Cow<'t, str>,
    gaps: Vec<InsertedSpace>,
}

/// Inserted space, which the original does not have.
#[derive(Debug)]
struct InsertedSpace {
    start: usize,
    end: usize,
    /// Number of bytes inserted up to here, including all earlier gaps.
    total: usize,
}

/// Reason why nothing was indented.
#[derive(Debug)]
pub(super) enum Unrepaired {
    NoQuotes,
    /// Quoted text that begins here is not closed, or another document begins inside it.
    Unclosed(usize),
}

impl<'t> Repaired<'t> {
    pub(super) fn from(text: &'t str, base: usize) -> Self {
        Self { base, text: Cow::Borrowed(&text[base..]), gaps: Vec::new() }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Maps a position in this text back to the original.
    pub(super) fn original(&self, place: usize) -> usize {
        let before = self.gaps.partition_point(|gap| gap.end <= place);
        let place = self.gaps.get(before).map_or(place, |gap| place.min(gap.start));
        let longer = before.checked_sub(1).map_or(0, |last| self.gaps[last].total);
        self.base + place - longer
    }

    /// Indents the lines of the quoted text around `place`. Everything before `read` has already been read.
    ///
    /// # Errors
    /// Fails if there is no such text, or it is not closed.
    pub(super) fn indent(&mut self, read: usize, place: usize) -> Result<(), Unrepaired> {
        let (open, close) = quoted(&self.text, read, place).ok_or(Unrepaired::NoQuotes)?;
        let close = close.ok_or(Unrepaired::Unclosed(open))?;
        let line = self.text[..open].rfind('\n').map_or(0, |end| end + 1);
        let depth = self.text[line..open].chars().count() + 1;
        let (before, quoted) = self.text.split_at(open);
        let (quoted, after) = quoted.split_at(close - open);
        let (mut text, space) = (before.to_owned(), " ".repeat(depth));
        let mut total = self.gaps.last().map_or(0, |gap| gap.total);
        for line in quoted.split_inclusive('\n') {
            if text.len() > open && is_separator(line) {
                return Err(Unrepaired::Unclosed(open));
            }
            if text.len() > open {
                let start = text.len();
                text.push_str(&space);
                total += depth;
                self.gaps.push(InsertedSpace { start, end: text.len(), total });
            }
            text.push_str(line);
        }
        text.push_str(after);
        self.text = text.into();
        Ok(())
    }
}

/// Returns true if a line begins or ends a document, even inside quotes.
fn is_separator(line: &str) -> bool {
    let rest = line.strip_prefix("---").or_else(|| line.strip_prefix("..."));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
}

/// Finds the quoted text around `place`, including its quotes; the end is `None` if the text is not closed. Only keys,
/// tags, comments and plain values lie between `from` and the quoted text.
fn quoted(text: &str, from: usize, place: usize) -> Option<(usize, Option<usize>)> {
    let bytes = text.as_bytes();
    let is_blank = |at: usize| bytes.get(at).is_none_or(u8::is_ascii_whitespace);
    let line_end = |at: usize| text[at..].find('\n').map_or(text.len(), |length| at + length);
    let mut at = from;
    while at < place {
        at = match bytes[at] {
            b' ' | b'\t' | b'\r' | b'\n' => at + 1,
            b'-' | b'?' | b':' if is_blank(at + 1) => at + 1,
            b'#' => line_end(at),
            b'!' | b'&' => (at..).find(|at| is_blank(*at))?,
            quote @ (b'"' | b'\'') => match closing(bytes, at, quote) {
                Some(close) if close <= place => close,
                close => return Some((at, close)),
            },
            _ => {
                let end = line_end(at);
                (at..end).find(|at| bytes[*at] == b':' && is_blank(at + 1)).unwrap_or(end)
            }
        };
    }
    None
}

/// Returns the position after the quote that closes the one at `open`.
fn closing(bytes: &[u8], open: usize, quote: u8) -> Option<usize> {
    let mut at = open + 1;
    loop {
        match (*bytes.get(at)?, quote) {
            (b'\\', b'"') => at += 2,
            (b'\'', b'\'') if bytes.get(at + 1) == Some(&b'\'') => at += 2,
            (byte, quote) if byte == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
}
