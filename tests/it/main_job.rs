//! Checks that the built-in scenarios show the effects that they were made for.

use std::process::Command;

use rolldrop_record::{Cause, EventKind, Outcome, Phase};

use crate::machine::measured;
use crate::runs::{self, Dataplane, MeasuredRun};

#[test]
fn naive_exit_drops_are_attributed() {
    for run in runs::naive_exit() {
        let requests = &run.result.requests;
        assert!(requests.dropped > 0, "{}", run.finished);
        assert_eq!(run.result.terminations.len(), 3);
        let attributed: u64 = run.result.groups.iter().map(|group| group.dropped).sum();
        // Lost requests in a group with an undecided cause count in both numbers.
        assert!(attributed <= requests.dropped, "{}", run.finished);
        assert!(attributed + requests.unattributed >= requests.dropped, "{}", run.finished);
        let killed_in_flight = requests.by_cause.get(&Cause::KilledInFlight).copied().unwrap_or(0);
        assert!(requests.outside_window <= killed_in_flight, "{}", run.finished);
        let dataplane = match run.dataplane {
            Dataplane::Kernel => "nftables",
            Dataplane::Userspace => "userspace",
        };
        assert_eq!(run.result.cluster.dataplane, dataplane.into());
    }
}

#[test]
fn run_without_sidecar_sees_refusals_and_timeouts() {
    measured(|| {
        let run = runs::no_sidecar();
        assert!(run.records.served.is_empty(), "{}", run.finished);
        let requests = &run.result.requests;
        let outcomes = |outcome| requests.by_outcome.get(&outcome).copied().unwrap_or(0);
        assert!(outcomes(Outcome::ConnectRefused) > 0, "{}", run.finished);
        assert!(outcomes(Outcome::ConnectTimeout) > 0, "{}", run.finished);
        assert_eq!(run.result.terminations.len(), 4, "{}", run.finished);
        run.finished.figure(run.result.terminations.iter().all(|t| t.windows[0].upper_s.is_some()));
        let attributed: u64 = run.result.groups.iter().map(|group| group.dropped).sum();
        // Lost requests in a group with an undecided cause count in both numbers.
        assert!(attributed <= requests.dropped, "{}", run.finished);
        assert!(attributed + requests.unattributed >= requests.dropped, "{}", run.finished);
    });
}

#[test]
fn lossless_runs_still_measure_windows() {
    measured(|| {
        for run in runs::prestop_sleep().iter().chain(runs::drain_in_app()) {
            assert_eq!(run.result.requests.dropped, 0, "{}", run.finished);
            for termination in &run.result.terminations {
                let window = termination.windows.first().expect("a window");
                run.finished.figure(window.upper_s.is_some());
            }
            // A single window can be shorter than the time between two arrivals, but not all three.
            let late: u64 = run.result.terminations.iter().map(|t| t.windows[0].late_arrivals).sum();
            run.finished.figure(late > 0);
        }
    });
}

#[test]
fn short_grace_period_kills_requests_in_flight() {
    measured(|| {
        let run = runs::killed_in_flight();
        let requests = &run.result.requests;
        assert!(requests.dropped > 0, "{}", run.finished);
        run.finished.figure(is_main_cause(run, Cause::KilledInFlight));
        assert!(run.result.terminations.iter().all(|t| t.exit_code == Some(137)), "{}", run.finished);
        let findings: String =
            run.result.findings.iter().map(|f| format!("{} {}\n", f.what, f.remedy)).collect();
        assert!(findings.contains("3 pods were killed by SIGKILL (exit code 137)"), "{findings}");
        assert!(
            findings.contains("terminationGracePeriodSeconds above preStop plus the longest request"),
            "{findings}"
        );
    });
}

#[test]
fn idle_close_race_drops_requests() {
    measured(|| {
        let run = runs::idle_close();
        let requests = &run.result.requests;
        assert!(requests.dropped > 0, "{}", run.finished);
        run.finished.figure(is_main_cause(run, Cause::IdleCloseRace));
        assert!(
            run.result.findings.iter().any(|f| f.remedy.contains("Connection: close")),
            "{}",
            run.finished
        );
    });
}

/// Returns true if most dropped requests have this cause. A busy machine adds a few with other causes.
fn is_main_cause(run: &MeasuredRun, cause: Cause) -> bool {
    let requests = &run.result.requests;
    requests.by_cause.get(&cause).is_some_and(|count| count * 2 > requests.dropped)
}

#[test]
fn request_accounting_adds_up() {
    for run in runs::all() {
        let r = &run.result.requests;
        let scheduled: u64 = run
            .records
            .events
            .iter()
            .find_map(|e| match e.kind {
                EventKind::LoadEnded { scheduled } => Some(scheduled),
                _ => None,
            })
            .expect("the end of the load");
        assert_eq!(run.records.requests.len() as u64, scheduled);
        assert_eq!(r.warmup + r.total, scheduled);
        assert_eq!(r.total, r.ok + r.dropped + r.app_errors + r.not_sent + r.cancelled);
        assert_eq!(r.total, r.by_outcome.values().sum::<u64>());
        assert_eq!(r.dropped, r.in_window + r.outside_window);
        assert_eq!(r.dropped, r.by_cause.values().sum::<u64>());
        let planned = run.records.info.load.rate * run.records.info.load.duration_s;
        assert_eq!(r.total as f64, planned.round());
    }
}

#[test]
fn ok_requests_match_served_rows() {
    for run in runs::with_sidecar() {
        let mut seen = std::collections::HashSet::new();
        assert!(run.records.requests.iter().all(|row| seen.insert((row.source.clone(), row.seq))));
        // Each answered request was served by the pod that the response names.
        let served: std::collections::HashMap<_, _> =
            run.records.served.iter().filter_map(|row| Some((row.request.clone()?, row))).collect();
        for row in run.records.requests.iter().filter(|row| row.outcome == Outcome::Ok) {
            let id = run.records.info.request_id(row);
            let twin = served.get(&id).unwrap_or_else(|| panic!("{id} was not served\n{}", run.finished));
            assert_eq!(row.pod.as_deref(), Some(&*twin.pod));
        }
    }
}

#[test]
fn proxies_deliver_every_row() {
    for run in runs::with_sidecar() {
        let ends = run.records.events.iter().filter_map(|e| match &e.kind {
            EventKind::ProxyEnded { pod, rows, .. } => Some((pod, rows.recorded, rows.received)),
            _ => None,
        });
        let ends: Vec<_> = ends.collect();
        assert_eq!(ends.len(), 6, "three pods terminated, three survived: {ends:?}\n{}", run.finished);
        for (pod, recorded, received) in ends {
            assert_eq!(recorded, Some(received), "{pod}");
        }
    }
}

#[test]
fn summary_names_drops_and_remedy() {
    measured(|| {
        let [run, _] = runs::naive_exit();
        let text = run.finished.stdout();
        for part in ["dropped", "preStop", "window", "report.html", "charts"] {
            assert!(text.contains(part), "{part:?} is missing\n{}", run.finished);
        }
        run.expect_valid();
        for file in [
            "report.html",
            "summary.md",
            "junit.xml",
            "latency.hlog",
            "charts/drops.png",
            "charts/rollout.png",
            "charts/timeline.png",
            "charts/windows.png",
            "charts/latency.png",
        ] {
            assert!(run.path.join(file).is_file(), "{file}");
        }
    });
}

#[test]
fn report_reproduces_result_from_disk() {
    let [run, _] = runs::naive_exit();
    let result = run.path.join("result.json");
    let before = std::fs::read(&result).expect("result.json");
    let again = crate::harness::Rolldrop::new(["report".as_ref(), run.path.as_os_str()]).finish();
    assert_eq!(again.code(), run.finished.code(), "{again}");
    assert_eq!(std::fs::read(&result).expect("result.json"), before, "{again}");
}

#[test]
fn duckdb_reads_result_tables() {
    let [run, _] = runs::naive_exit();
    let python = concat!(env!("CARGO_MANIFEST_DIR"), "/target/test-venv/bin/python");
    let query = "
import duckdb, sys
run = sys.argv[1]
print(duckdb.sql(f\"select phase, outcome, count(*) from '{run}/requests/*.parquet' group by all order by all\").fetchall())
print(duckdb.sql(f\"select count(*) from '{run}/served/*.parquet' where request_seq is not null\").fetchall()[0][0])
";
    let output = Command::new(python)
        .args(["-c", query])
        .arg(&run.path)
        .output()
        .unwrap_or_else(|e| panic!("{python}: {e}; scripts/test installs it"));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], expected_groups(run));
    assert_eq!(lines[1], run.records.served.iter().filter(|r| r.request.is_some()).count().to_string());
}

/// Returns the groups in the order in which Python prints them: main before warmup, outcomes by name.
fn expected_groups(run: &MeasuredRun) -> String {
    let mut groups = std::collections::BTreeMap::new();
    for row in &run.records.requests {
        let phase = if row.phase == Phase::Main { "main" } else { "warmup" };
        *groups.entry((phase, row.outcome.as_str())).or_insert(0u64) += 1;
    }
    let groups: Vec<_> = groups.iter().map(|((p, o), n)| format!("('{p}', '{o}', {n})")).collect();
    format!("[{}]", groups.join(", "))
}
