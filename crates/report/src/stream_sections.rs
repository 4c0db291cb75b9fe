//! The contents of the section on streams, for all formats. Runs without streams have no such section.

use super::format::{NONE, count, counted, len, list, millis_unit, or_none, plain, seconds_unit};
use super::words;
use rolldrop_explain::model::{
    Percentiles, PredictedCut, PredictedMean, RunResult, SettingsOrigin, StreamEnds, StreamPhase,
    StreamResult, Termination, TerminationStreams,
};

/// Maximum number of terminations in text and in Markdown.
pub(super) const LISTED: usize = 12;

/// Columns of the table of streams by termination and phase.
pub(super) const BY_PHASE: [&str; 8] =
    ["pod", "at t0", "later", "phase", "complete", "told", "cut", "last end"];
/// Columns that contain numbers.
pub(super) const NUMBERS: [usize; 6] = [1, 2, 4, 5, 6, 7];
/// Explanation of the columns.
pub(super) const BY_PHASE_NOTE: &str = "Streams that were open at t0, when the pod's deletion took effect, or began later on the same pod. They completed, were \
     told (the app ended them with a message), or were cut. The last end counts from t0.";
/// Columns of the table of times.
pub(super) const TIMES: [&str; 4] = ["", "number", "p50", "p99"];

/// Returns the streams, if the run has any.
pub(super) fn streams(result: &RunResult) -> Option<&StreamResult> {
    result.streams.as_ref().filter(|streams| streams.total > 0)
}

/// Describes what became of the streams.
pub(super) fn sentence(streams: &StreamResult) -> String {
    let ends = [
        (streams.ok, "complete"),
        (streams.cut, "cut"),
        (streams.unfinished, "unfinished"),
        (streams.aborted, "aborted by the app"),
        (streams.stalled, "stalled"),
        (streams.cancelled, "still open when the run ended"),
    ];
    let all = counted(streams.total, "stream");
    let ends: Vec<String> =
        ends.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{} {what}", count(*n))).collect();
    let open = format!("Up to {} were open at the same time.", count(streams.open_max));
    let told = match streams.ok == streams.total {
        true => format!("{all}, all of them complete. {open}"),
        false => format!("{all}: {}. {open}", list(&ends)),
    };
    let lost = &streams.lost;
    if lost.events_lost + lost.bytes_lost == 0 {
        return told;
    }
    let mut delivered = vec![counted(lost.events_lost, "event")];
    delivered.extend(lost.tokens_lost.map(|n| counted(n, "token")));
    delivered.push(counted(lost.bytes_lost, "byte"));
    format!("{told} The incomplete streams had delivered {}.", list(&delivered))
}

/// Describes what one further termination would cut, as far as it is known.
pub(super) fn predicted(streams: &StreamResult) -> Option<String> {
    let known: Vec<(PredictedMean, String)> =
        streams.predicted.iter().filter_map(cut_with_settings).collect();
    let (of, _) = known.first()?;
    let rate = plain(of.rate_per_pod);
    let cuts: Vec<&str> = known.iter().map(|(_, cut)| cut.as_str()).collect();
    Some(format!(
        "At {rate} streams per pod per second, one further termination would cut on average {} (95 % bounds).",
        list(&cuts)
    ))
}

fn cut_with_settings(of: &PredictedCut) -> Option<(PredictedMean, String)> {
    let (mean, sleep, grace) = (of.cut?, of.pre_stop_seconds?, of.grace_period_seconds?);
    let settings = match of.settings {
        SettingsOrigin::Current => "as now",
        SettingsOrigin::Advised => "as advised",
    };
    let PredictedMean { estimate, lower, upper, .. } = mean;
    let cut = format!(
        "{estimate:.2} ({lower:.2} to {upper:.2}) with a preStop sleep of {sleep} s and a grace period of {grace} s, {settings}"
    );
    Some((mean, cut))
}

/// Returns the streams of all terminated pods together; `None` if nothing names the streams' pods.
pub(super) fn of_all_terminations(result: &RunResult) -> Option<TerminationStreams> {
    result.terminations.iter().filter_map(|t| t.streams.as_ref()).fold(None, |sum, of| {
        let mut sum: TerminationStreams = sum.unwrap_or_default();
        sum.alive_at_t0 += of.alive_at_t0;
        sum.began_later += of.began_later;
        sum.open_at_end += of.open_at_end;
        sum.last_ended_s = sum.last_ended_s.into_iter().chain(of.last_ended_s).reduce(f64::max);
        for (phase, ends) in of.phases() {
            *sum.phase_mut(phase) += ends;
        }
        Some(sum)
    })
}

/// Names a phase of a termination.
const fn phase(phase: StreamPhase) -> &'static str {
    match phase {
        StreamPhase::BeforeSigterm => "before SIGTERM",
        StreamPhase::AfterSigterm => "after SIGTERM",
        StreamPhase::AtGraceEnd => "at grace end",
    }
}

/// Returns the rows of a pod's streams, or of several pods' streams: one row per phase in which streams ended. Only the
/// first row has the numbers that apply to all phases.
fn rows_of(name: &str, streams: &TerminationStreams) -> Vec<[String; 8]> {
    let mut phases: Vec<(String, [String; 3])> = streams
        .phases()
        .into_iter()
        .filter(|(_, ends)| *ends != StreamEnds::default())
        .map(|(at, ends)| (phase(at).to_owned(), [ends.completed, ends.told, ends.cut].map(count)))
        .collect();
    if streams.open_at_end > 0 {
        phases.push((format!("still open: {}", count(streams.open_at_end)), [NONE; 3].map(str::to_owned)));
    }
    if phases.is_empty() {
        phases.push((NONE.to_owned(), [0; 3].map(count)));
    }
    let row = |(i, (phase, [completed, told, cut])): (usize, (String, [String; 3]))| {
        let of_pod = |text: String| if i == 0 { text } else { String::new() };
        [
            name.to_owned(),
            of_pod(count(streams.alive_at_t0)),
            of_pod(count(streams.began_later)),
            phase,
            completed,
            told,
            cut,
            of_pod(or_none(streams.last_ended_s, seconds_unit)),
        ]
    };
    phases.into_iter().enumerate().map(row).collect()
}

/// Returns the rows of at most `most` terminations, those with the most cut streams first if there are more, and the
/// number of those left out. If there are several terminations, rows for all of them together come first.
pub(super) fn by_phase(result: &RunResult, most: usize) -> (Vec<[String; 8]>, usize) {
    let mut of: Vec<(&Termination, &TerminationStreams)> =
        result.terminations.iter().filter_map(|t| Some((t, t.streams.as_ref()?))).collect();
    let left_out = of.len().saturating_sub(most);
    if left_out > 0 {
        of.sort_by_key(|(_, streams)| std::cmp::Reverse(streams.ends().cut));
    }
    let all = of_all_terminations(result).filter(|_| of.len() > 1);
    let all = all.iter().flat_map(|all| rows_of(&format!("all {}", counted(len(of.len()), "pod")), all));
    let each = of.iter().take(most).flat_map(|(t, streams)| rows_of(&t.pod, streams));
    (all.chain(each).collect(), left_out)
}

/// Returns the reason why there are no streams by termination, if pods ended.
pub(super) fn unnamed(result: &RunResult) -> Option<&'static str> {
    let is_unnamed = result.terminations.iter().all(|t| t.streams.is_none());
    (is_unnamed && !result.terminations.is_empty()).then_some(
        "Nothing shows which pod served a stream. To see what each termination did to its streams, have responses name \
         their pod (sidecar or pod header).",
    )
}

/// Describes the terminations that are not listed.
pub(super) fn more(left_out: usize) -> Option<String> {
    (left_out > 0).then(|| format!("and {} with no more cut streams", counted(len(left_out), "more pod")))
}

/// Returns the names and values of the table rows for first events and gaps.
fn named_times(streams: &StreamResult) -> Vec<(&'static str, Percentiles)> {
    let (first, longest) = (&streams.first_event_ms, &streams.longest_gap_ms);
    let gap = streams.gap_ms.unwrap_or_default();
    let mut rows = vec![
        ("first event, steady", first.steady),
        ("first event, while a pod ended", first.disrupted),
        ("between events, steady", gap.steady),
        ("between events, while a pod ended", gap.disrupted),
        ("longest gap, steady", longest.steady),
        ("longest gap, while a pod ended", longest.disrupted),
    ];
    rows.retain(|(_, p)| p.n > 0);
    rows
}

/// Returns the table rows for first events and gaps.
pub(super) fn times(streams: &StreamResult) -> Vec<[String; 4]> {
    let row = |(name, p): (&str, Percentiles)| {
        let [p50, p99] = words::FEW_PERCENTILES.map(|figure| words::latency_figure(&p, figure, millis_unit));
        [name.to_owned(), count(p.n), p50, p99]
    };
    named_times(streams).into_iter().map(row).collect()
}

/// Explains the times that the table lacks, if any.
pub(super) fn missing_times(streams: &StreamResult) -> Option<String> {
    let rows = named_times(streams);
    let values = rows.iter().map(|(_, p)| p);
    words::missing_figures(values, &words::FEW_PERCENTILES, "there are too few values")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use rolldrop_explain::model::{LostData, StreamTimes};

    #[test]
    fn sentence_names_each_end_once() {
        let lost = LostData { events_lost: 1234, tokens_lost: Some(1), bytes_lost: 45_678 };
        let streams = StreamResult {
            total: 400,
            ok: 380,
            cut: 17,
            aborted: 2,
            cancelled: 1,
            lost,
            open_max: 34,
            ..StreamResult::default()
        };
        assert_eq!(
            sentence(&streams),
            "400 streams: 380 complete, 17 cut, 2 aborted by the app and 1 still open when the run ended. Up to 34 were open \
             at the same time. The incomplete streams had delivered 1,234 events, 1 token and 45,678 bytes."
        );
        let whole = StreamResult { total: 5, ok: 5, open_max: 2, ..StreamResult::default() };
        assert_eq!(sentence(&whole), "5 streams, all of them complete. Up to 2 were open at the same time.");
    }

    #[test]
    fn rows_by_phase_add_up_to_result() {
        let result = samples::streams().result;
        let (rows, left_out) = by_phase(&result, LISTED);
        assert_eq!(left_out, 0);
        let sum = |column: usize, all: bool| -> u64 {
            let rows = rows.iter().filter(|row| row[0].starts_with("all 3 pods") == all);
            rows.filter_map(|row| row[column].replace(',', "").parse::<u64>().ok()).sum()
        };
        let of_pods = of_all_terminations(&result).unwrap().ends();
        for all in [true, false] {
            assert_eq!(
                [4, 5, 6].map(|column| sum(column, all)),
                [of_pods.completed, of_pods.told, of_pods.cut]
            );
            let ended = sum(4, all) + sum(5, all) + sum(6, all);
            assert_eq!(sum(1, all) + sum(2, all), ended, "{rows:?}");
        }
        let streams = result.streams.as_ref().unwrap();
        assert_eq!((of_pods.told, of_pods.cut), (streams.aborted, streams.cut));
        let (few, left_out) = by_phase(&result, 1);
        assert_eq!((few.len() < rows.len(), left_out), (true, 2));
    }

    #[test]
    fn times_include_recorded_gaps() {
        let disrupted = Percentiles { n: 7, p50: 100.0, p99: 900.0, ..Percentiles::default() };
        let gap_ms = Some(StreamTimes { disrupted, ..StreamTimes::default() });
        let streams = StreamResult { gap_ms, ..StreamResult::default() };
        assert_eq!(times(&streams), [["between events, while a pod ended", "7", "100 ms", "–"]]);
    }

    #[test]
    fn missing_times_are_explained_once() {
        let with = |first: u64, gaps: u64| {
            let of = |n| StreamTimes {
                steady: Percentiles { n, ..Percentiles::default() },
                ..StreamTimes::default()
            };
            StreamResult { first_event_ms: of(first), longest_gap_ms: of(gaps), ..StreamResult::default() }
        };
        let few = "– where there are too few values: p99 needs 100";
        assert_eq!(missing_times(&with(99, 2)).as_deref(), Some(few));
        let one = "– where there are too few values: p50 needs 2 and p99 needs 100";
        assert_eq!(missing_times(&with(1, 500)).as_deref(), Some(one));
        for without_dashes in [with(100, 500), with(0, 0)] {
            assert_eq!(missing_times(&without_dashes), None);
        }
    }

    #[test]
    fn every_format_explains_missing_times() {
        let few = "– where there are too few values: p99 needs 100";
        for (n, is_told) in [(100, false), (99, true)] {
            let mut analysis = samples::streams();
            let steady = Percentiles { n, ..Percentiles::default() };
            let streams = analysis.result.streams.as_mut().unwrap();
            streams.first_event_ms = StreamTimes { steady, ..StreamTimes::default() };
            (streams.gap_ms, streams.longest_gap_ms) = Default::default();
            let text = crate::text(&analysis, &crate::TextOptions::default());
            for text in [text, crate::markdown(&analysis), crate::html(&analysis, &[])] {
                assert_eq!(text.contains(few), is_told, "{text}");
            }
        }
    }

    #[test]
    fn report_states_why_pods_of_streams_are_unknown() {
        let mut result = samples::streams().result;
        assert_eq!(unnamed(&result), None);
        result.terminations.iter_mut().for_each(|t| t.streams = None);
        assert!(
            unnamed(&result).unwrap().ends_with("have responses name their pod (sidecar or pod header).")
        );
        assert!(by_phase(&result, LISTED).0.is_empty());
        result.terminations.clear();
        assert_eq!(unnamed(&result), None);
    }
}
