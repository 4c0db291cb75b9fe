//! Load with a clock other than the coordinator's.

use rand::{RngExt, SeedableRng};

use super::*;
use rolldrop_record::ClockOffset;
use rolldrop_record::run_info::{Role, Source};

/// Half the round-trip time of a clock exchange.
const HALF_NS: i64 = 2 * MS;
/// Interval between the run's requests.
const REQUEST_EVERY_NS: i64 = 10 * MS / 3;

/// Returns the run of [`three_pods`] with a load whose clock is initially `offset_ns` ahead and drifts.
fn on_another_clock(offset_ns: i64, drift_ppm: i64) -> Records {
    let mut records = three_pods();
    let reading =
        |true_at: Stamp| true_at.shifted_ns(offset_ns + true_at.ns_since(at(0)) * drift_ppm / 1_000_000);
    for row in &mut records.requests {
        let stages = [&mut row.connect_start, &mut row.connected, &mut row.sent, &mut row.head];
        for stamp in stages.into_iter().flatten().chain([&mut row.scheduled, &mut row.end]) {
            *stamp = reading(*stamp);
        }
    }
    let mut rng = rand::rngs::SmallRng::seed_from_u64(3);
    for ms in (-500..11_000).step_by(2000) {
        let (sent, answered) = (at(ms), at(ms).shifted_ns(2 * HALF_NS));
        let read = reading(sent.shifted_ns(rng.random_range(0..=2 * HALF_NS)));
        let sample = EventKind::clock_sample("load-0", ClockOffset::of_exchange(sent, read, answered));
        records.events.push(Event::new(sent, "coordinator", sample));
    }
    let uncertainty = Some(HALF_NS);
    records.info.sources.push(Source {
        name: "load-0".into(),
        role: Role::Load,
        clock_offset_ns: offset_ns,
        clock_uncertainty_ns: uncertainty,
        rows: None,
    });
    records
}

#[test]
fn windows_stay_correct_despite_skewed_clocks() {
    let truth = analysed(three_pods()).result;
    for (offset_ns, drift_ppm, most_ms) in
        [(3000 * MS, 0, 3), (-3000 * MS, 0, 3), (0, 400, 3), (-3000 * MS, -2000, 12), (3000 * MS, 5000, 30)]
    {
        let said = format!("{offset_ns} ns, {drift_ppm} ppm");
        let (records, true_rows) = (on_another_clock(offset_ns, drift_ppm), three_pods().requests);
        let (timeline, requests) = Timeline::build(records.log(), records).unwrap();
        let mut stated_ns = 0;
        for placed in requests.in_memory().unwrap() {
            stated_ns = placed.uncertainty_ns.max(stated_ns);
            let true_row = &true_rows[usize::try_from(placed.row.seq).unwrap()];
            let off_ns = placed.row.scheduled.ns_since(true_row.scheduled).abs();
            assert!(off_ns <= placed.uncertainty_ns, "{said}: {placed:?}");
        }
        assert!(stated_ns <= most_ms * MS, "{said}: ± {stated_ns}");
        let result = analyse(&timeline, &requests, None).unwrap().result;
        // The set of requests near the termination may differ by those within the uncertainty of its two ends.
        let [outside, truly_outside] = [&result, &truth].map(|result| result.requests.outside_terminations);
        let at_the_ends = 2 * (1 + stated_ns / REQUEST_EVERY_NS).unsigned_abs();
        assert!(
            outside.ok.abs_diff(truly_outside.ok) <= at_the_ends,
            "{said}: {outside:?}, {truly_outside:?}"
        );
        let requests = RequestCounts { outside_terminations: truly_outside, ..result.requests };
        assert_eq!(requests, truth.requests, "{said}");
        let (window, true_window) = (&result.terminations[0].windows[0], &truth.terminations[0].windows[0]);
        // Allow a millisecond for the rate, which drifts with the clock.
        let (stated_s, slack_s) = (stated_ns as f64 / 1e9, 0.001);
        let [true_lower_s, lower_s] = [true_window, window].map(|w| w.lower_s.expect("a lower bound"));
        let lower = true_lower_s - 2.0 * stated_s..=true_lower_s;
        assert!(lower.contains(&lower_s), "{said}: {window:?}, {true_window:?}");
        let true_upper_s = true_window.upper_s.expect("an upper bound");
        let upper = true_upper_s - slack_s..=true_upper_s + 2.0 * stated_s + slack_s;
        assert!(
            upper.contains(&window.upper_s.expect("an upper bound")),
            "{said}: {window:?}, {true_window:?}"
        );
    }
}
