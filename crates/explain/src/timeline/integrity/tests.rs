//! Intact records, and ways to break them.

use crate::model::account::{Missing, RecordContradiction};
use crate::timeline::Timeline;
use rolldrop_record::run_info::{Role, Rows, Source};
use rolldrop_record::{
    ClockOffset, Event, EventKind, Outcome, Phase, Records, RequestId, RequestRow, ServedEnd, ServedRow,
    Stamp,
};
use rolldrop_simulation::{info, run, served_at};

const MS: i64 = 1_000_000;

fn at(ms: i64) -> Stamp {
    Stamp::from_unix_ns(1_800_000_000_000_000_000 + ms * MS)
}

fn request(seq: u64) -> RequestRow {
    let ms = i64::try_from(seq).unwrap() * 10;
    let phase = if seq < 20 { Phase::Warmup } else { Phase::Main };
    let row = RequestRow::not_sent("load-0".into(), seq, "web".into(), phase, at(ms), at(ms + 5));
    RequestRow {
        connect_start: Some(at(ms)),
        connected: Some(at(ms + 1)),
        sent: Some(at(ms + 1)),
        head: Some(at(ms + 5)),
        outcome: Outcome::Ok,
        pod: Some("a".into()),
        ..row
    }
}

fn served(seq: u64) -> ServedRow {
    let ms = i64::try_from(seq).unwrap() * 10;
    let times = [1, 2, 4].map(|later| at(ms + later));
    let id = RequestId::new(&run(), "load-0", seq);
    ServedRow { status: Some(200), conn: seq, ..served_at(times, id, "a", ServedEnd::Complete) }
}

fn sample(of: &str, ms: i64, offset_ms: i64) -> Event {
    let offset = ClockOffset { offset_ns: offset_ms * MS, uncertainty_ns: MS };
    Event::new(at(ms), "coordinator", EventKind::clock_sample(of, offset))
}

/// Returns a complete run with 100 requests.
fn whole() -> Records {
    let source = |name: &str, role, rows| Source {
        name: name.into(),
        role,
        clock_offset_ns: 0,
        clock_uncertainty_ns: Some(MS),
        rows,
    };
    let received = Rows { recorded: Some(100), known: 100, in_flight: 0, received: 100 };
    let sources = vec![source("load-0", Role::Load, None), source("a", Role::Proxy, Some(received))];
    let totals = EventKind::LoadScheduled { of: "load-0".into(), warmup: 20, main: 80 };
    let started = EventKind::LoadStarted { rate: 100.0, duration_s: 0.8, warmup_s: 0.2 };
    let mut events = vec![
        Event::new(at(0), "coordinator", started),
        Event::new(at(1000), "load-0", totals),
        Event::new(at(1000), "coordinator", EventKind::LoadEnded { scheduled: 100 }),
    ];
    for source in ["load-0", "a"] {
        events.extend([sample(source, 0, 0), sample(source, 900, 0)]);
    }
    let mut info = info(100.0, 0.8, (at(0), at(1000)));
    (info.targets, info.load.warmup_s, info.sources) = (Vec::new(), 0.2, sources);
    Records {
        info,
        events,
        requests: (0..100).map(request).collect(),
        streams: vec![],
        gaps: vec![],
        served: (0..100).map(served).collect(),
        torn: Vec::new(),
        corrupt: Vec::new(),
        altered: Vec::new(),
    }
}

/// Returns the missing parts and the contradictions.
fn found(records: Records) -> (Vec<Missing>, Vec<RecordContradiction>) {
    let (timeline, _) = Timeline::build(records.log(), records).unwrap();
    (timeline.integrity.missing, timeline.integrity.contradictions)
}

fn broken(how: impl FnOnce(&mut Records)) -> (Vec<Missing>, Vec<RecordContradiction>) {
    let mut records = whole();
    how(&mut records);
    found(records)
}

#[test]
fn complete_record_has_no_findings() {
    assert_eq!(found(whole()), (Vec::new(), Vec::new()));
}

#[test]
fn open_row_is_not_counted() {
    let open = ServedRow { ended: ServedEnd::Open, ..served(99) };
    assert_eq!(broken(|records| records.served.push(open)), (Vec::new(), Vec::new()));
}

#[test]
fn record_needs_every_required_event() {
    type Is = fn(&EventKind) -> bool;
    let each: [(Is, Missing); 4] = [
        (|kind| matches!(kind, EventKind::LoadStarted { .. }), Missing::LoadStarted),
        (|kind| matches!(kind, EventKind::LoadEnded { .. }), Missing::LoadEnded),
        (|kind| matches!(kind, EventKind::LoadScheduled { .. }), Missing::Scheduled("load-0".into())),
        (
            |kind| matches!(kind, EventKind::ClockSample { of, .. } if of == "a"),
            Missing::ClockSample("a".into()),
        ),
    ];
    for (is, what) in each {
        let without = |records: &mut Records| records.events.retain(|event| !is(&event.kind));
        let (missing, contradictions) = broken(without);
        assert_eq!((missing, contradictions), (vec![what], Vec::new()));
        let unfinished = broken(|records| {
            without(records);
            records.info.ended = None;
        });
        assert_eq!(unfinished.0, [], "a look at an unfinished run");
    }
}

#[test]
fn altered_events_count_as_contradiction() {
    let (missing, contradictions) = broken(|records| records.altered.push("changed".into()));
    assert_eq!((missing, contradictions), (Vec::new(), vec![RecordContradiction::Altered("changed".into())]));
}

#[test]
fn hole_counts_missing_requests() {
    let mut records = whole();
    records.requests.retain(|row| !(15..=24).contains(&row.seq));
    let (timeline, _) = Timeline::build(records.log(), records).unwrap();
    let [hole] = &timeline.integrity.holes[..] else { panic!("{:?}", timeline.integrity) };
    assert_eq!((hole.from, hole.to, hole.requests), (at(140), at(250), 10));
    let missing =
        |phase, scheduled, rows| Missing::Requests { source: "load-0".into(), phase, scheduled, rows };
    let missing = [missing(Phase::Warmup, 20, 15), missing(Phase::Main, 80, 75)];
    assert_eq!(timeline.integrity.missing, missing);
    assert_eq!(timeline.hole_in(at(200), at(210)), Some(hole));
    assert_eq!(timeline.hole_in(at(260), at(300)), None);
}

#[test]
fn rowless_source_leaves_full_hole() {
    let mut records = whole();
    let totals = EventKind::LoadScheduled { of: "load-1".into(), warmup: 0, main: 7 };
    records.events.push(Event::new(at(1000), "load-1", totals));
    let (timeline, _) = Timeline::build(records.log(), records).unwrap();
    let [hole] = &timeline.integrity.holes[..] else { panic!("{:?}", timeline.integrity) };
    assert_eq!((hole.source.as_str(), hole.requests), ("load-1", 7));
    assert!(hole.from <= at(0) && hole.to >= at(990), "{hole:?}");
    let (source, phase) = ("load-1".to_owned(), Phase::Main);
    let missing = Missing::Requests { source, phase, scheduled: 7, rows: 0 };
    assert_eq!(timeline.integrity.missing, [missing]);
}

#[test]
fn truncated_source_leaves_final_hole() {
    let mut records = whole();
    records.requests.truncate(90);
    let (timeline, _) = Timeline::build(records.log(), records).unwrap();
    let [hole] = &timeline.integrity.holes[..] else { panic!("{:?}", timeline.integrity) };
    assert_eq!((hole.from, hole.requests), (at(890), 10));
    assert!(hole.to >= hole.from);
}

#[test]
fn duplicated_part_counts_as_contradiction() {
    let (_, requests) = broken(|records| records.requests.extend((40..60).map(request)));
    let (source, phase) = ("load-0".to_owned(), Phase::Main);
    let more = RecordContradiction::Requests { source, phase, scheduled: 80, rows: 100 };
    let twice = RecordContradiction::Twice { source: "load-0".into(), requests: 20, first: 40 };
    assert_eq!(requests, [more, twice]);
    let (_, proxies) = broken(|records| records.served.extend((40..60).map(served)));
    assert_eq!(proxies, [RecordContradiction::Served { proxy: "a".into(), received: 100, rows: 120 }]);
}

#[test]
fn equal_row_count_hides_no_duplicate() {
    let (_, contradictions) = broken(|records| records.requests[50] = request(51));
    let twice = RecordContradiction::Twice { source: "load-0".into(), requests: 1, first: 51 };
    assert_eq!(contradictions[0], twice);
}

#[test]
fn lost_proxy_rows_count_as_missing() {
    let (missing, contradictions) = broken(|records| records.served.clear());
    assert_eq!(missing, [Missing::Served { proxy: "a".into(), received: 100, rows: 0 }]);
    assert!(contradictions.is_empty(), "{contradictions:?}");
}

#[test]
fn disordered_stamps_count_as_contradiction() {
    let (_, requests) = broken(|records| records.requests[7].end = at(60));
    assert_eq!(requests[0], RecordContradiction::Disordered { source: "load-0".into(), rows: 1, first: 7 });
    let (_, proxies) = broken(|records| records.served[7].end = at(60));
    assert_eq!(proxies[0], RecordContradiction::DisorderedServed { proxy: "a".into(), rows: 1 });
}

#[test]
fn acausal_timestamps_count_as_contradiction() {
    for offset_ms in [-300, 300] {
        let (_, contradictions) = broken(|records| {
            let rows = records.requests.iter_mut();
            rows.for_each(|row| {
                let move_ = |stamp: &mut Stamp| *stamp = stamp.shifted_ns(offset_ms * MS);
                let stages = [&mut row.connect_start, &mut row.connected, &mut row.sent, &mut row.head];
                stages.into_iter().flatten().for_each(move_);
                [&mut row.scheduled, &mut row.end].into_iter().for_each(move_);
            });
        });
        assert!(
            matches!(
                contradictions[..],
                [RecordContradiction::Impossible { impossible: 100, compared: 100, .. }]
            ),
            "{offset_ms}: {contradictions:?}"
        );
    }
    // A single waiting thread does not mean that a clock is wrong.
    let (_, one) = broken(|records| {
        records.served[3].end = at(1000);
        records.served[3].head = Some(at(900));
    });
    assert!(one.is_empty(), "{one:?}");
}

#[test]
fn conflicting_clock_samples_are_found() {
    let (_, contradictions) = broken(|records| records.events.push(sample("load-0", 450, 300)));
    assert!(contradictions.contains(&RecordContradiction::Clock("load-0".into())), "{contradictions:?}");
}
