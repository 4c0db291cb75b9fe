//! Replacements of parts of a text.

use std::ops::Range;

/// A change of a text.
#[derive(Debug)]
pub(super) struct Splice {
    pub(super) range: Range<usize>,
    pub(super) text: String,
}

/// Makes splices; none if they overlap. Of two at the same place, the first is made first.
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
