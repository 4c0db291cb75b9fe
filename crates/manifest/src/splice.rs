//! Replacement of parts of the text.

use std::ops::Range;

/// Replacement of a range of the text.
#[derive(Debug)]
pub(super) struct Splice {
    pub(super) range: Range<usize>,
    pub(super) text: String,
}

/// Applies splices; returns `None` if they overlap. Splices at the same position keep their order.
pub(super) fn spliced(text: &str, within: Range<usize>, mut splices: Vec<Splice>) -> Option<String> {
    splices.sort_by_key(|splice| splice.range.start);
    let (mut out, mut end) = (String::new(), within.start);
    for splice in splices {
        out.push_str(text.get(end..splice.range.start)?);
        out.push_str(&splice.text);
        end = splice.range.end;
    }
    out.push_str(text.get(end..within.end)?);
    Some(out)
}
