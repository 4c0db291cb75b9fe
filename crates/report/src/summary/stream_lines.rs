//! The section on streams for a terminal.

use super::super::stream_sections::{
    BY_PHASE, LISTED, NUMBERS, TIMES, by_phase, missing_times, more, predicted, sentence, streams, times,
    unnamed,
};
use super::{TextPage, columns};
use rolldrop_canvas::shorten;
use rolldrop_explain::model::RunResult;

/// Explanation of the columns.
const TEXT_NOTE: &str =
    "By termination and phase. Told: the app ended it with a message. The last end counts from t0.";

/// Writes the section for a terminal.
pub(super) fn text(page: &mut TextPage, result: &RunResult) {
    let Some(streams) = streams(result) else { return };
    page.heading("STREAMS", "");
    for told in std::iter::once(sentence(streams)).chain(predicted(streams)) {
        page.paragraph("", 2, None, &told);
    }
    let (rows, left_out) = by_phase(result, LISTED);
    if !rows.is_empty() {
        page.line("");
        page.paragraph("", 2, None, TEXT_NOTE);
        phase_lines(page, &rows);
    }
    for note in unnamed(result).map(str::to_owned).into_iter().chain(more(left_out)) {
        page.paragraph("", 2, None, &note);
    }
    let times = times(streams);
    if !times.is_empty() {
        page.line("");
        let rows: Vec<[String; 4]> = std::iter::once(TIMES.map(str::to_owned)).chain(times).collect();
        for line in columns(&rows, &[1, 2, 3]) {
            page.line(&format!("  {line}"));
        }
        if let Some(why) = missing_times(streams) {
            page.paragraph("", 2, None, &why);
        }
    }
}

/// Writes the table of phases. A pod's name is written once, and shortened if there is not enough room.
fn phase_lines(page: &mut TextPage, rows: &[[String; 8]]) {
    let rows: Vec<[String; 8]> =
        std::iter::once(BY_PHASE.map(str::to_owned)).chain(rows.iter().cloned()).collect();
    let bare: Vec<[String; 7]> = rows.iter().map(|row| std::array::from_fn(|i| row[i + 1].clone())).collect();
    let lines = columns(&bare, &NUMBERS.map(|column| column - 1));
    let names: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
    let width = page.name_width(&names, &lines);
    for (i, line) in lines.iter().enumerate() {
        let is_repeated = i > 0 && names[i] == names[i - 1];
        let name = if is_repeated { String::new() } else { shorten(names[i], width) };
        page.line(&format!("  {name:width$}  {line}"));
    }
}
