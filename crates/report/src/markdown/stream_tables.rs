//! The section on streams in Markdown.

use super::super::stream_sections::{
    BY_PHASE, BY_PHASE_NOTE, LISTED, NUMBERS, TIMES, by_phase, missing_times, more, predicted, sentence,
    streams, times, unnamed,
};
use super::{escape, section, table};
use rolldrop_explain::model::RunResult;

/// Writes the section as Markdown.
pub(super) fn markdown(out: &mut String, result: &RunResult) {
    let Some(streams) = streams(result) else { return };
    section(out, &format!("## Streams\n\n{}", sentence(streams)));
    section(out, &predicted(streams).unwrap_or_default());
    let (rows, left_out) = by_phase(result, LISTED);
    if !rows.is_empty() {
        section(out, BY_PHASE_NOTE);
        let named = |mut row: [String; 8]| {
            row[0] = escape(&row[0]);
            row.to_vec()
        };
        table(out, &BY_PHASE, &NUMBERS, rows.into_iter().map(named));
    }
    section(out, unnamed(result).unwrap_or_default());
    section(out, &more(left_out).map(|more| format!("… {more}.")).unwrap_or_default());
    let times = times(streams);
    if !times.is_empty() {
        table(out, &TIMES, &[1, 2, 3], times.into_iter().map(|row| row.to_vec()));
        section(out, &missing_times(streams).map(|why| format!("{why}.")).unwrap_or_default());
    }
}
