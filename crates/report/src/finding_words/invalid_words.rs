//! Puts the reasons why a measurement is invalid or its record incomplete into words.

use std::collections::BTreeMap;

use super::super::format::{count, counted, either, percent};
use super::{Words, not_sent_words, reasons_in_words, words};
use rolldrop_explain::model::FindingKind;
use rolldrop_explain::model::account::{Incomplete, Invalid, MeasuredQuantity, Missing, RecordContradiction};
use rolldrop_record::run_info::Rows;
use rolldrop_record::{Outcome, Phase};

/// Describes a reason why a measurement is invalid.
pub fn invalid(reason: &Invalid) -> String {
    match reason {
        Invalid::Aborted(why) => was_aborted(why),
        Invalid::NotAllSent { not_sent, scheduled, limit, by_reason } => {
            let because = match by_reason.is_empty() {
                true => String::new(),
                false => format!("; {}", reasons_in_words(by_reason)),
            };
            format!(
                "{} of {} requests were not sent ({}, limit {}){because}",
                count(*not_sent),
                count(*scheduled),
                percent(*not_sent as f64 / (*scheduled).max(1) as f64),
                percent(*limit)
            )
        }
        Invalid::NothingRecorded => "no request was recorded".to_owned(),
        Invalid::FellBehind { lag_ms, limit_ms } => format!(
            "1 % of the requests were sent at least {lag_ms:.0} ms late (limit {limit_ms:.0} ms): the load generator \
             fell behind"
        ),
        Invalid::Drowned { measured, lag_ms, limit_ms } => {
            let (what, measured_ms) = match measured {
                MeasuredQuantity::Windows(ms) => ("median window", *ms),
                MeasuredQuantity::Latency(ms) => ("99th percentile of the response time", *ms),
            };
            format!(
                "1 % of the requests were sent at least {lag_ms:.0} ms late (limit {limit_ms:.0} ms), which is too \
                 much compared with a {what} of {measured_ms:.0} ms: the lag is the load generator's own"
            )
        }
        Invalid::Contradiction(found) => contradiction(found),
        Invalid::Steal { source, share, limit } => format!(
            "the hypervisor took {:.0} % of the CPU time where {source} ran (limit {:.0} %)",
            share * 100.0,
            limit * 100.0
        ),
        Invalid::Starved { source, waiting, limit } => format!(
            "on average {waiting:.2} threads of {source} waited for a CPU (limit {limit:.1}): the machine was \
             overloaded"
        ),
        Invalid::Busy { share, limit } => format!(
            "CPU usage was {:.0} % on the machine that sent the load (limit {:.0} %): delays may be its own, not the \
             cluster's",
            share * 100.0,
            limit * 100.0
        ),
        Invalid::WatchGap { resource, pod, length_s } => {
            format!("the watch of {resource} saw nothing for {length_s:.2} s while pod {pod} ended")
        }
        Invalid::BlindAtEnd { length_s } => {
            format!("the watch of pods saw nothing in the last {length_s:.2} s of the load")
        }
        Invalid::StoodStill { source, from_s, to_s } => format!(
            "{} stalled for {:.1} s, from {from_s:.1} to {to_s:.1} s",
            source.as_deref().unwrap_or("the embedded cluster"),
            to_s - from_s
        ),
    }
}

/// Describes why a measurement is invalid, with the consequence and the remedy.
pub(super) fn not_valid(reason: &Invalid) -> Words {
    let (why, remedy) = match reason.kind() {
        FindingKind::Corrupt => (
            "the record contradicts itself, so no figure can be relied on",
            "look for files that were copied, changed or mixed with another run's, or repeat the run",
        ),
        _ => (
            "the figures of this run would describe the measurement, not the cluster",
            "repeat it with a lower rate or on a less busy machine",
        ),
    };
    let own = match reason {
        Invalid::NotAllSent { by_reason, .. } if !by_reason.is_empty() => not_sent_words::remedy(by_reason),
        Invalid::StoodStill { source: Some(_), .. } => {
            "repeat the run without stopping or suspending its processes; a lower rate changes nothing".to_owned()
        }
        Invalid::StoodStill { source: None, .. } => {
            "repeat the run without stopping or suspending the embedded cluster; a lower rate changes nothing unless \
             the machine was busy"
                .to_owned()
        }
        _ => remedy.to_owned(),
    };
    words(invalid(reason), why, own)
}

/// Describes a reason why a record is incomplete.
pub(super) fn incomplete(reason: &Incomplete) -> String {
    match reason {
        Incomplete::Interrupted => "the run was interrupted".to_owned(),
        Incomplete::Aborted(why) => was_aborted(why),
        Incomplete::NotCompleted => "the run did not complete".to_owned(),
        Incomplete::Torn(part) | Incomplete::Corrupt(part) => part.clone(),
        Incomplete::Missing(part) => missing(part),
    }
}

/// Describes a missing part of a record, with the consequence and the remedy.
pub(super) fn not_whole(reason: &Incomplete) -> Words {
    let why = match reason.kind() {
        FindingKind::Corrupt => "it changed after it was written, so no figure includes it",
        _ => "no figure includes the missing part",
    };
    words(incomplete(reason), why, "treat the counts as lower bounds, or repeat the run")
}

fn was_aborted(why: &str) -> String {
    format!("the run was aborted: {why}")
}

fn missing(part: &Missing) -> String {
    match part {
        Missing::LoadStarted => "events.jsonl does not say when the load began (load_started)".to_owned(),
        Missing::LoadEnded => "events.jsonl does not say when the load ended (load_ended)".to_owned(),
        Missing::Scheduled(source) => {
            format!("events.jsonl does not say how many requests {source} scheduled (load_scheduled)")
        }
        Missing::ClockSample(source) => {
            format!("events.jsonl has no clock comparison for {source} (clock_sample)")
        }
        Missing::Requests { source, phase, scheduled, rows } => requests(source, *phase, *scheduled, *rows),
        Missing::Served { proxy, received, rows } => served(proxy, *received, *rows),
        Missing::Rows { scheduled, recorded } => {
            format!("{} requests were scheduled, but {} were recorded", count(*scheduled), count(*recorded))
        }
        Missing::HandedOver { source, rows, by_count } => not_handed_over(source, *rows, by_count.as_ref()),
        Missing::OfProxy { proxy, rows } => rows_of_proxy(proxy, *rows),
        Missing::Answered { pod, requests } => {
            format!(
                "{} that pod {pod} answered {} no row from its proxy",
                counted(*requests, "request"),
                either(*requests, "has", "have")
            )
        }
    }
}

fn contradiction(found: &RecordContradiction) -> String {
    match found {
        RecordContradiction::Altered(file) => file.clone(),
        RecordContradiction::Untimely(event) => {
            format!("{event} in events.jsonl is outside the time of the run and was ignored")
        }
        RecordContradiction::TooLate { days } => {
            format!("requests ended more than {days} days after the load began")
        }
        RecordContradiction::Requests { source, phase, scheduled, rows } => {
            requests(source, *phase, *scheduled, *rows)
        }
        RecordContradiction::Served { proxy, received, rows } => served(proxy, *received, *rows),
        RecordContradiction::Twice { source, requests, first } => format!(
            "{} from {source} {} more than one row (the first is number {first}): is a file in requests/ duplicated?",
            counted(*requests, "request"),
            either(*requests, "has", "have")
        ),
        RecordContradiction::Disordered { source, rows, first } => {
            format!(
                "{} from {source} {} timestamps that are out of order (the first is number {first})",
                counted(*rows, "row"),
                either(*rows, "has", "have")
            )
        }
        RecordContradiction::DisorderedServed { proxy, rows } => {
            let (rows, have) = (counted(*rows, "row"), either(*rows, "has", "have"));
            format!("{rows} from proxy {proxy} {have} timestamps that are out of order")
        }
        RecordContradiction::Impossible { proxy, impossible, compared, worst_s } => format!(
            "according to the timestamps, proxy {proxy} read {impossible} of {compared} requests before they were sent \
             or after they were answered, by up to {worst_s:.3} s: its clock or the load's is wrong"
        ),
        RecordContradiction::Clock(of) => format!("the clock samples of {of} contradict each other"),
    }
}

fn requests(source: &str, phase: Phase, scheduled: u64, rows: u64) -> String {
    let phase = match phase {
        Phase::Warmup => "the warm-up",
        Phase::Main => "the counted part",
    };
    format!("{source} scheduled {scheduled} requests in {phase}, but {rows} have a row")
}

fn served(proxy: &str, received: u64, rows: u64) -> String {
    let were = either(received, "was", "were");
    format!("{} from proxy {proxy} {were} received, but served/ has {rows}", counted(received, "row"))
}

/// Describes requests that a load source had recorded or in flight, but that did not arrive.
fn not_handed_over(source: &str, rows: Rows, by_count: Option<&BTreeMap<Outcome, u64>>) -> String {
    let Rows { recorded, known, in_flight, received } = rows;
    let known = recorded.map_or_else(|| format!("at least {}", count(known)), count);
    let counted = by_count.map_or_else(String::new, |by_count| {
        let each: Vec<_> = by_count.iter().map(|(o, n)| format!("{} {}", count(*n), o.as_str())).collect();
        format!(
            "; for requests without a row, only these counts arrived, which no figure includes: {}",
            each.join(", ")
        )
    });
    let flying = match in_flight {
        0 => String::new(),
        _ => format!("; {} were in flight at its last report", count(in_flight)),
    };
    format!(
        "rows arrived for {} of {known} requests from {source}, mostly for those that were not ok, so all shares \
         overstate failures{counted}{flying}",
        count(received)
    )
}

/// Describes requests that a proxy had recorded or in flight, but that did not arrive.
fn rows_of_proxy(proxy: &str, rows: Rows) -> String {
    let Rows { recorded, known, in_flight, received } = rows;
    match recorded {
        None => format!(
            "proxy {proxy} ended without handing over all its rows: {} arrived, at least {} did not, and {} requests \
             were in flight at its last report",
            count(received),
            count(known.saturating_sub(received)),
            count(in_flight)
        ),
        // Requests that finish while a proxy reports its total are included in its rows, but not in the total.
        Some(recorded) => {
            format!("proxy {proxy} recorded {} rows, but {} arrived", count(recorded), count(received))
        }
    }
}
