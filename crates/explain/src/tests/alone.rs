//! Explains single terminations from the requests in a span around each.
#![expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "reads recorded runs")]

use std::path::Path;

use super::*;
use crate::timeline::{PodEnd, TimeSpan};
use rolldrop_record::RunDir;

/// Length of the span before t0, and after the pod was gone. In the recorded runs, all terminations come out the same
/// with 5 s before and 5 s after; with 2 s before, 5 of 105 differ, and with 2 s after, 11 differ.
const MARGIN_NS: i64 = 10_000 * MS;

/// Returns the span from which a termination is explained on its own.
fn around(timeline: &Timeline, end: &PodEnd) -> TimeSpan {
    let gone = end.gone().unwrap_or(timeline.load_ended);
    TimeSpan { from: end.t0.earliest.shifted_ns(-MARGIN_NS), until: gone.shifted_ns(MARGIN_NS) }
}

/// Asserts that each termination explained on its own, from rows in memory, is the same as in the whole run. Returns
/// the number of terminations.
fn same_alone(Analysed { timeline, analysis, .. }: &Analysed, records: Records, run: &str) -> usize {
    let (mut log, rows) = (records.log(), Arc::new(records));
    // Use the consumers as inferred from all responses.
    log.info.targets.clone_from(&timeline.info.targets);
    let terminations = &analysis.result.terminations;
    for (termination, end) in terminations.iter().zip(&timeline.ends) {
        let together = terminations.iter().filter(|other| other.mode == termination.mode).count();
        let span = around(timeline, end);
        let rows: Arc<dyn RowSource> = Arc::<Records>::clone(&rows);
        let alone = super::termination(log.clone(), rows, &end.uid, span, together).unwrap();
        assert_eq!(alone.as_ref(), Some(termination), "{run}: {}", end.pod);
    }
    terminations.len()
}

#[test]
fn lone_termination_matches_whole_run() {
    let runs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/runs");
    let mut terminations = 0;
    for run in std::fs::read_dir(runs).unwrap() {
        let run = run.unwrap().path();
        let dir = RunDir::open(&run.join("run")).unwrap();
        let (log, tables) = dir.recorded().unwrap();
        let whole = Analysed::of(log, tables).unwrap();
        terminations += same_alone(&whole, dir.read().unwrap(), &run.to_string_lossy());
    }
    assert!(terminations >= 105, "{terminations}");
}

/// Returns a run in which every tenth request is lost, and one load source finishes long before the termination.
fn lossy() -> Records {
    let mut records = three_pods();
    for row in records.requests.iter_mut().step_by(10) {
        (row.outcome, row.pod) = (Outcome::ResponseTimeout, None);
    }
    for row in records.requests.iter_mut().take(30) {
        row.source = "load-9".into();
    }
    for (source, main) in [("load-0", 3000), ("load-9", 30)] {
        let scheduled = EventKind::LoadScheduled { of: source.into(), warmup: 0, main };
        records.events.push(Event::new(at(9000), source, scheduled));
    }
    records.requests.iter_mut().skip(30).for_each(|row| row.seq += 1 << 20);
    ended(records)
}

#[test]
fn span_holds_only_its_requests() {
    let (records, span) = (lossy(), TimeSpan { from: at(4000), until: at(6000) });
    let (timeline, requests) = Unread::of(records.log(), span).build(Arc::new(records)).unwrap();
    // A tenth of the span's 600 requests, and the refused ones.
    assert!((60..70).contains(&requests.others.len()), "{}", requests.others.len());
    assert!(requests.others.iter().all(|r| span.has(&r.row)));
    assert_eq!(requests.all, 3000);
    assert_eq!(timeline.integrity.holes, [], "requests outside the span are not missing");
}

#[test]
fn unrelated_span_explains_no_termination() {
    let records = lossy();
    let explained = |uid: &str, from: i64, until: i64, together| {
        let span = TimeSpan { from: at(from), until: at(until) };
        super::termination(records.log(), Arc::new(records.clone()), uid, span, together).unwrap()
    };
    assert_eq!(explained("uid-b", 1000, 4900, 1), None);
    assert_eq!(explained("uid-a", 1000, 9000, 1), None);
    let upper_s = |together| explained("uid-b", 1000, 9000, together).unwrap().windows[0].upper_s.unwrap();
    assert!(upper_s(1) < upper_s(30), "fewer simultaneous bounds are tighter");
}
