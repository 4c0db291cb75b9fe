//! The page's section on streams.

use maud::{Markup, html};

use super::super::stream_sections::{
    BY_PHASE, BY_PHASE_NOTE, NUMBERS, TIMES, by_phase, missing_times, predicted, sentence, streams, times,
    unnamed,
};
use super::{HtmlCell, scrolled, table_body};
use rolldrop_explain::model::RunResult;

/// Renders the section of the page.
pub(super) fn html(result: &RunResult) -> Markup {
    let Some(streams) = streams(result) else { return Markup::default() };
    let (rows, _) = by_phase(result, usize::MAX);
    let times = times(streams);
    let cell = |is_number: bool, text: String| {
        if is_number { HtmlCell::number(text) } else { HtmlCell::text(&text) }
    };
    let cells = |numbers: &'static [usize]| {
        move |row: Vec<String>| -> Vec<HtmlCell> {
            let cells = row.into_iter().enumerate();
            cells
                .map(
                    |(i, text)| if i == 0 { HtmlCell::head(&text) } else { cell(numbers.contains(&i), text) },
                )
                .collect()
        }
    };
    let phases = rows.into_iter().map(|row| row.to_vec()).map(cells(&NUMBERS));
    let times: Vec<Vec<HtmlCell>> =
        times.into_iter().map(|row| row.to_vec()).map(cells(&[1, 2, 3])).collect();
    let phases: Vec<Vec<HtmlCell>> = phases.collect();
    html! {
        h2 #streams { "Streams" }
        p { (sentence(streams)) }
        @if let Some(predicted) = predicted(streams) { p { (predicted) } }
        @if !phases.is_empty() {
            p { (BY_PHASE_NOTE) }
            (scrolled("Streams by termination and phase", table_body(&BY_PHASE, phases)))
        }
        @if let Some(unnamed) = unnamed(result) { p { (unnamed) } }
        @if !times.is_empty() {
            p { "Time to the first event, between two events, and the longest time between two events in each complete stream:" }
            (scrolled("Stream times", table_body(&TIMES, times)))
            @if let Some(why) = missing_times(streams) { p { (why) "." } }
        }
    }
}
