//! Claims that need load, checked on the runs of the built-in scenarios.

use rolldrop_explain::model::Termination;
use rolldrop_record::{Cause, EventKind, Outcome, RequestRow};

use crate::machine::measured;
use crate::runs::{self, MeasuredRun};

/// Returns the requests that a pod answered, with their send times in seconds since the pod's t0.
fn answered_by<'a>(run: &'a MeasuredRun, termination: &'a Termination) -> Vec<(f64, &'a RequestRow)> {
    let zero = run.records.events.iter().find_map(|event| match event.kind {
        EventKind::LoadStarted { warmup_s, .. } => Some(event.at.unix_ns() as f64 / 1e9 + warmup_s),
        _ => None,
    });
    let t0 = zero.expect("the start of the load") + termination.t0_s;
    let rows = run.records.requests.iter().filter(|row| row.outcome == Outcome::Ok);
    let rows = rows.filter(|row| row.pod.as_deref() == Some(&termination.pod));
    rows.map(|row| (row.sent.expect("it was sent").unix_ns() as f64 / 1e9 - t0, row)).collect()
}

#[test]
fn c02_traffic_outlasts_pod_shutdown() {
    measured(|| {
        // While it shuts down: new connections after the deletion, answered by the pod itself.
        for run in runs::prestop_sleep() {
            let fresh_after_t0 = |termination| {
                answered_by(run, termination).iter().filter(|(at, row)| *at > 0.0 && !row.conn_reused).count()
            };
            let late: usize = run.result.terminations.iter().map(fresh_after_t0).sum();
            run.finished.figure(late > 0);
        }
        // After the pod is gone, connections are still routed to it, and fail.
        for run in runs::naive_exit() {
            assert!(run.result.requests.by_cause[&Cause::RoutedToDeadPod] > 0, "{}", run.finished);
        }
    });
}

#[test]
fn c16_early_exit_drops_requests() {
    for run in runs::naive_exit() {
        let requests = &run.result.requests;
        assert!(requests.dropped > 0, "{}", run.finished);
        assert_eq!(requests.dropped, requests.in_window + requests.outside_window);
    }
}

#[test]
fn c17_serving_past_sigterm_drops_no_requests() {
    for run in runs::drain_in_app() {
        assert_eq!((run.result.terminations.len(), run.result.requests.dropped), (3, 0), "{}", run.finished);
    }
}

#[test]
fn c18_pre_stop_sleep_drops_no_requests() {
    for run in runs::prestop_sleep() {
        assert_eq!((run.result.terminations.len(), run.result.requests.dropped), (3, 0), "{}", run.finished);
    }
}

#[test]
fn c19_removed_endpoint_gets_no_connections() {
    measured(|| {
        for run in runs::prestop_sleep().iter().chain(runs::drain_in_app()) {
            for termination in &run.result.terminations {
                run.finished.figure(termination.windows[0].upper_s.is_some());
                let upper = termination.windows[0].upper_s.expect("an upper bound");
                let rows = answered_by(run, termination);
                let last_new = rows.iter().filter(|(_, row)| !row.conn_reused).map(|(at, _)| *at);
                let last_new = last_new.fold(f64::NEG_INFINITY, f64::max);
                // The bound holds with 95 % confidence; the pod kept running for 3 s.
                println!("{}: a new one after {last_new:.3} s", termination.pod);
                run.finished.figure(last_new < upper + 0.5);
                assert_eq!(
                    termination.requests.dropped.at_most, 0,
                    "it finished its requests in flight\n{}",
                    run.finished
                );
            }
        }
    });
}
