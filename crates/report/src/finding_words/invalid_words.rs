//! Puts the reasons why a measurement is invalid or its record incomplete into words.

use std::collections::BTreeMap;

use super::super::format::{count, either};
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
                "{} of {} requests were not sent ({:.2} %, limit {:.2} %){because}",
                count(*not_sent),
                count(*scheduled),
                *not_sent as f64 / (*scheduled).max(1) as f64 * 100.0,
                limit * 100.0
            )
        }
        Invalid::NothingRecorded => "no request was recorded".to_owned(),
        Invalid::FellBehind { lag_ms, limit_ms } => format!(
            "1 % of the requests were sent {lag_ms:.0} ms late or more (limit {limit_ms:.0} ms): the load generator fell \
             behind"
        ),
        Invalid::Drowned { measured, lag_ms, limit_ms } => {
            let (what, measured_ms) = match measured {
                MeasuredQuantity::Windows(ms) => ("median window", *ms),
                MeasuredQuantity::Latency(ms) => ("99th percentile of the response time", *ms),
            };
            format!(
                "1 % of the requests were sent {lag_ms:.0} ms late or more, and the {what} is {measured_ms:.0} ms (limit \
                 {limit_ms:.0} ms): the lag is the load generator's own"
            )
        }
        Invalid::Contradiction(found) => contradiction(found),
        Invalid::Steal { source, share, limit } => format!(
            "the hypervisor took {:.0} % of the CPU time where {source} ran (limit {:.0} %)",
            share * 100.0,
            limit * 100.0
        ),
        Invalid::Starved { source, waiting, limit } => format!(
            "{waiting:.2} threads of {source} waited for a CPU on average (limit {limit:.1}): the machine was starved"
        ),
        Invalid::Busy { share, limit } => format!(
            "{:.0} % of the processors' time was in use on the machine that sent the load (limit {:.0} %): what is late by \
             that is not the cluster's",
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
            "{} stood still for {:.1} s, from {from_s:.1} to {to_s:.1} s",
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
            "look for parts that were copied, changed or mixed with another run's, or repeat the run",
        ),
        _ => (
            "the figures of this run would describe the measurement, not the cluster",
            "repeat it with a lower rate or on a less busy machine",
        ),
    };
    let own = match reason {
        Invalid::NotAllSent { by_reason, .. } if !by_reason.is_empty() => not_sent_words::remedy(by_reason),
        Invalid::StoodStill { source: Some(_), .. } => {
            "repeat it, and do not stop or suspend its processes; a lower rate changes nothing".to_owned()
        }
        Invalid::StoodStill { source: None, .. } => {
            "repeat it, and do not stop or suspend the embedded cluster; a lower rate changes nothing unless the machine \
             was busy"
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
        FindingKind::Corrupt => "it has changed since it was written, and is in no figure",
        _ => "the missing part is in no figure",
    };
    words(incomplete(reason), why, "read the counts as lower bounds, or repeat the run")
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
            format!("events.jsonl has no comparison of the clock of {source} (clock_sample)")
        }
        Missing::Requests { source, phase, scheduled, rows } => requests(source, *phase, *scheduled, *rows),
        Missing::Served { proxy, received, rows } => served(proxy, *received, *rows),
        Missing::Rows { scheduled, recorded } => {
            format!("{} requests were scheduled, {} were recorded", count(*scheduled), count(*recorded))
        }
        Missing::HandedOver { source, rows, by_count } => not_handed_over(source, *rows, by_count.as_ref()),
        Missing::OfProxy { proxy, rows } => rows_of_proxy(proxy, *rows),
        Missing::Answered { pod, requests } => {
            format!("{} requests that pod {pod} answered have no row of its proxy", count(*requests))
        }
    }
}

fn contradiction(found: &RecordContradiction) -> String {
    match found {
        RecordContradiction::Altered(file) => file.clone(),
        RecordContradiction::Untimely(event) => {
            format!("{event} in events.jsonl is not in the time of the run: it is left out")
        }
        RecordContradiction::TooLate { days } => {
            format!("requests have ended later than {days} days after the load began")
        }
        RecordContradiction::Requests { source, phase, scheduled, rows } => {
            requests(source, *phase, *scheduled, *rows)
        }
        RecordContradiction::Served { proxy, received, rows } => served(proxy, *received, *rows),
        RecordContradiction::Twice { source, requests, first } => format!(
            "{requests} requests of {source} have more than one row (the first is number {first}): is a part of requests/ \
             there twice?"
        ),
        RecordContradiction::Disordered { source, rows, first } => {
            format!("{rows} rows of {source} have stamps that are out of order (the first is number {first})")
        }
        RecordContradiction::DisorderedServed { proxy, rows } => {
            format!("{rows} rows of the proxy {proxy} have stamps that are out of order")
        }
        RecordContradiction::Impossible { proxy, impossible, compared, worst_s } => format!(
            "by their timestamps the proxy {proxy} read {impossible} of {compared} requests before they were sent or after \
             they were answered, by up to {worst_s:.3} s: its clock or that of the load is not what it is said to be"
        ),
        RecordContradiction::Clock(of) => format!("the samples of the clock of {of} contradict each other"),
    }
}

fn requests(source: &str, phase: Phase, scheduled: u64, rows: u64) -> String {
    let phase = match phase {
        Phase::Warmup => "the warm-up",
        Phase::Main => "the counted part",
    };
    format!("{source} scheduled {scheduled} requests in {phase}, {rows} have a row")
}

fn served(proxy: &str, received: u64, rows: u64) -> String {
    let were = either(received, "was", "were");
    format!("{received} rows of the proxy {proxy} {were} received, and served/ has {rows}")
}

/// Describes requests that a load source had recorded or in flight, but that did not arrive.
fn not_handed_over(source: &str, rows: Rows, by_count: Option<&BTreeMap<Outcome, u64>>) -> String {
    let Rows { recorded, known, in_flight, received } = rows;
    let known = recorded.map_or_else(|| format!("at least {}", count(known)), count);
    let counted = by_count.map_or_else(String::new, |by_count| {
        let each: Vec<_> = by_count.iter().map(|(o, n)| format!("{} {}", count(*n), o.as_str())).collect();
        format!("; known only as counts, in no figure: {}", each.join(", "))
    });
    let flying = match in_flight {
        0 => String::new(),
        _ => format!("; {} were in flight at its last report", count(in_flight)),
    };
    format!(
        "of {known} requests of {source} the rows of {} arrived, above all of those that were not ok, which weigh too much \
         in all shares{counted}{flying}",
        count(received)
    )
}

/// Describes requests that a proxy had recorded or in flight, but that did not arrive.
fn rows_of_proxy(proxy: &str, rows: Rows) -> String {
    let Rows { recorded, known, in_flight, received } = rows;
    match recorded {
        None => format!(
            "the proxy {proxy} ended without handing over all its rows: {} arrived, at least {} did not, and {} requests \
             were under way when it was last heard of",
            count(received),
            count(known.saturating_sub(received)),
            count(in_flight)
        ),
        // Requests that finish while a proxy reports its total are included in its rows, but not in the total.
        Some(recorded) => {
            format!("the proxy {proxy} recorded {} rows, {} arrived", count(recorded), count(received))
        }
    }
}
