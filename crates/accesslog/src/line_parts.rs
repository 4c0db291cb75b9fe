//! Reads a line of text part by part.

use std::sync::Arc;

use crate::LineError;

/// The unread part of a line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LineParts<'a>(pub(crate) &'a str);

impl<'a> LineParts<'a> {
    /// Returns the text before `end`, and continues after `end`.
    pub(crate) fn until(&mut self, end: &str, field: &'static str) -> Result<&'a str, LineError> {
        let (part, rest) = self.0.split_once(end).ok_or(LineError::Field(field))?;
        self.0 = rest;
        Ok(part)
    }

    /// Returns the next word, and continues after the space that follows it.
    pub(crate) fn word(&mut self) -> &'a str {
        let (word, rest) = self.0.split_once(' ').unwrap_or((self.0, ""));
        self.0 = rest;
        word
    }

    /// Returns the text after the last `start`, and cuts both off the line.
    pub(crate) fn last(&mut self, start: &str, field: &'static str) -> Result<&'a str, LineError> {
        let (rest, part) = self.0.rsplit_once(start).ok_or(LineError::Field(field))?;
        self.0 = rest;
        Ok(part)
    }
}

/// Returns a name from the gateway's configuration, such as a route's; `None` if it is not set.
pub(crate) fn read_name(text: &str, field: &'static str) -> Result<Option<Arc<str>>, LineError> {
    const LONGEST: usize = 512;
    if text.len() > LONGEST || text.contains(|c: char| c.is_control() || c == char::REPLACEMENT_CHARACTER) {
        return Err(LineError::Field(field));
    }
    Ok(is_set(text).then(|| text.into()))
}

/// Returns true unless the gateway had nothing to log here.
pub(crate) fn is_set(text: &str) -> bool {
    !matches!(text, "" | "-")
}
