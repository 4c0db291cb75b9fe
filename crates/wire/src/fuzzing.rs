//! Fuzz targets: any body as a stream of events.

use rolldrop_testing::pieces;

use crate::answer_events::ndjson::Lines;
use crate::answer_events::sse::Parser;
use crate::answer_events::sse::reference::{self, Told};

rolldrop_testing::targets! {
    answer_sse: super::sse,
    answer_ndjson: super::ndjson,
}

/// Reads a stream in pieces. The input must be shorter than the maximum event size.
pub(crate) fn told<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Told, bool) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (mut parser, mut told) = (Parser::default(), Told::default());
    for piece in pieces {
        let pushed = parser.push(piece, |event| {
            told.events.push([event.name, event.data, event.last_id].map(text));
        });
        assert_eq!(pushed, Ok(()));
    }
    told.last_id = text(parser.last_id());
    told.retry_ms = parser.retry_ms();
    (told, parser.is_mid_event())
}

/// Checks that a stream has the events that the standard defines, however its bytes are split.
pub(crate) fn sse(input: &[u8]) {
    let (whole, pieces) = pieces(input);
    let at_once = told(std::iter::once(whole));
    assert_eq!(at_once.0, reference::read(whole));
    assert_eq!(told(pieces), at_once);
}

/// Checks that a body has the same lines, however its bytes are split, and that no line is lost.
fn ndjson(input: &[u8]) {
    let (whole, pieces) = pieces(input);
    let (mut lines, mut found) = (Lines::default(), Vec::new());
    for piece in pieces {
        assert_eq!(lines.push(piece, |line| found.push(line.to_vec())), Ok(()));
    }
    let mut expected: Vec<&[u8]> = whole.split(|byte| *byte == b'\n').collect();
    let rest = expected.pop().unwrap_or_default();
    expected.retain(|line| !line.trim_ascii().is_empty());
    let expected = expected.iter().map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    assert!(expected.eq(found.iter().map(Vec::as_slice)));
    assert_eq!(lines.is_mid_event(), !rest.trim_ascii().is_empty());
}
