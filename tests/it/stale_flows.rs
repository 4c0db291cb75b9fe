//! Stale flows on the kernel dataplane: they occur when source ports are reused early, are distinguished from the
//! window, and are avoided by cycling through the ports.

use rolldrop_record::{Cause, Outcome, RequestRow};

use crate::harness::Rolldrop;
use crate::machine::measured;
use crate::runs::{Dataplane, MeasuredRun, measure, stopped_routing};
use crate::web::Web;

/// Returns a scenario in which the second pod is deleted while the Service proxy's throttle delays its removal, so for
/// seconds, connections are routed to an address that no longer exists.
fn scenario() -> String {
    let web = Web::new(3).named().args(&["--on-sigterm", "exit", "--log", "-"]);
    web.scenario(
        "stale-flows",
        "
  cluster: {embedded: {nodes: 1, serviceProxy: {minSyncPeriod: 5s}}}
  target: {service: web}
  load: {rate: 100, warmup: 2s, duration: 16s}
  disruptions:
  - {at: 1s, action: deletePod, selector: app=web}
  - {at: 2s, action: deletePod, selector: app=web, allowOutage: true}
",
    )
}

/// Maximum time for swapping a table, plus the difference between two clocks.
const TOLERANCE_S: f64 = 0.05;

/// Returns the failed connection attempts that began after the last rule for a deleted pod was removed.
fn failed_by_right_rules(run: &MeasuredRun) -> Vec<&RequestRow> {
    // The other pods are removed only by the run's own cleanup, after the load.
    let is_measured = |pod: &str| run.result.terminations.iter().any(|termination| *termination.pod == *pod);
    let stopped = stopped_routing(run).into_iter().filter(|(pod, _)| is_measured(pod));
    let gone = stopped.map(|(_, (_, after))| after).fold(0.0, f64::max);
    let begun = |row: &RequestRow| row.connect_start.map_or(0.0, |at| at.unix_ns() as f64 / 1e9);
    let failed = |row: &&RequestRow| row.outcome != Outcome::Ok && begun(row) > gone + TOLERANCE_S;
    run.records.requests.iter().filter(failed).collect()
}

#[test]
fn source_port_shortage_refuses_run() {
    for more in [&["--dry-run"][..], &[]] {
        let run = Rolldrop::run("naive-exit").on(Dataplane::Kernel).args(more);
        let refused = run.set(&["load.sourcePorts=40000-40099", "load.rate=50"]).finish().expect_code(2);
        let why =
            "spec.load: 50 fresh connections/s to target web need 1100 source ports, but there are only";
        assert!(refused.stderr().contains(why), "{refused}");
        assert!(!refused.dir().join("run/run.json").exists(), "{refused}");
    }
}

#[test]
fn early_port_reuse_hits_stale_flows() {
    measured(|| {
        let run = measure(
            &scenario(),
            Dataplane::Kernel,
            &["--set", "load.sourcePorts=40000-40299", "--set", "load.reusePorts=true"],
        );
        assert!(run.finished.stderr().contains("the load reuses source ports after 3 s"), "{}", run.finished);
        let failed = failed_by_right_rules(&run);
        let stale = run.result.requests.by_cause.get(&Cause::StaleFlow).copied().unwrap_or(0);
        run.finished.figure(!failed.is_empty());
        assert!(stale >= failed.len() as u64, "{stale} of {}\n{}", failed.len(), run.finished);
        assert!(run.result.requests.outside_window >= failed.len() as u64, "{}", run.finished);

        let zero = run.records.requests.iter().map(|row| row.scheduled).min().expect("rows").unix_ns() as f64
            / 1e9
            + run.records.info.load.warmup_s;
        let stopped = stopped_routing(&run);
        for termination in &run.result.terminations {
            let window = termination.windows.first().expect("a window");
            let (_, after) = stopped[&termination.pod];
            let lower = zero + termination.t0_s + window.lower_s.unwrap_or(0.0);
            assert!(lower <= after + TOLERANCE_S, "{window:?}\n{}", run.finished);
        }
    });
}

#[test]
fn cycled_source_ports_avoid_stale_flows() {
    measured(|| {
        let run = measure(&scenario(), Dataplane::Kernel, &[]);
        let timeouts = run.result.requests.by_outcome.get(&Outcome::ConnectTimeout).copied().unwrap_or(0);
        run.finished.figure(timeouts > 0);
        let failed = failed_by_right_rules(&run);
        assert!(failed.is_empty(), "{failed:?}\n{}", run.finished);
        assert_eq!(run.result.requests.by_cause.get(&Cause::StaleFlow), None, "{}", run.finished);
    });
}
