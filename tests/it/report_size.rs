//! The memory of a report: what was answered is added up, not held. `scripts/proofs/report` is the long form
//! (docs/performance.md).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rolldrop_analysis::RunResult;
use rolldrop_record::event::{Action, ActionName, Change, PodEvent};
use rolldrop_record::{Clock, Event, EventKind, Mode, Outcome, Phase, RequestRow, RunDir, Stamp};

use crate::harness::Rolldrop;
use crate::hostile::memory_kib_if_alive;
use crate::runs;

/// Requests per second of one worker.
const PER_SECOND: u64 = 10_000;
/// Of so many requests one is lost.
const ONE_LOST_OF: u64 = 1000;
const PODS: u64 = 10;
/// What 100,000 more requests may take; held they would take 70,000.
const MOST_GROWTH_KIB: u64 = 24 * 1024;

#[test]
fn a_report_takes_no_more_memory_for_more_requests() {
    if let Some(run) = std::env::var_os("REPORT_RUN") {
        let number = |name| std::env::var(name).map_or(1, |text| text.parse().expect("a number"));
        return write(&PathBuf::from(run), number("REPORT_WORKERS"), number("REPORT_SECONDS"));
    }
    let [few, many] = [2, 12].map(|seconds| {
        let dir = tempfile::tempdir().expect("a directory");
        let run = dir.path().join("run");
        write(&run, 1, seconds);
        let peak_kib = report(&run);
        let result = std::fs::read_to_string(run.join("result.json")).expect("a result");
        let result: RunResult = serde_json::from_str(&result).expect("a result");
        let (all, lost) = (seconds * PER_SECOND, seconds * PER_SECOND / ONE_LOST_OF);
        assert_eq!((result.requests.total, result.requests.dropped), (all, lost));
        peak_kib
    });
    println!("{few} KiB for 20,000 requests, {many} KiB for 120,000");
    assert!(many < few + MOST_GROWTH_KIB, "{few} KiB for 20,000 requests, {many} KiB for 120,000");
}

/// Makes the report, and answers the most memory that was seen in use, in KiB.
fn report(run: &Path) -> u64 {
    let (mut child, _dir) = Rolldrop::new(["report".as_ref(), run.as_os_str()]).start();
    let mut peak_kib = 0;
    while child.try_wait().expect("a child").is_none() {
        peak_kib = memory_kib_if_alive(child.id(), "VmHWM").unwrap_or(0).max(peak_kib);
        std::thread::sleep(Duration::from_millis(2));
    }
    peak_kib
}

/// A run of so many workers on fresh connections, in which one pod is deleted halfway.
fn write(path: &Path, workers: u64, seconds: u64) {
    let run_dir = RunDir::create(path).expect("a new directory");
    let clock = Clock::start();
    let zero = clock.now();
    let pods: Vec<Arc<str>> = (0..PODS).map(|number| format!("web-{number}").into()).collect();
    describe(&run_dir, zero, workers, seconds, &pods);
    let (target, to): (Arc<str>, Arc<str>) = ("web".into(), "10.96.0.10:80".into());
    for worker in 0..workers {
        let source: Arc<str> = format!("load-{worker}").into();
        let mut parts = run_dir.part_writer::<RequestRow>(&source, clock).expect("a table");
        for second in 0..seconds {
            let rows: Vec<RequestRow> = (second * PER_SECOND..(second + 1) * PER_SECOND)
                .map(|seq| {
                    let ns = i64::try_from(seq * (1_000_000_000 / PER_SECOND)).expect("a time");
                    let at = |us: i64| zero.shifted_ns(ns + 1000 * us);
                    // Latencies between 1 and 3 ms, without a pattern.
                    let took_us =
                        1000 + i64::try_from(seq.wrapping_mul(2_654_435_761) % 2000).expect("a time");
                    let is_lost = seq % ONE_LOST_OF == 0;
                    // The first pod gets none from halfway on.
                    let pod = if second < seconds / 2 { seq % PODS } else { 1 + seq % (PODS - 1) };
                    let outcome = if is_lost { Outcome::ConnectRefused } else { Outcome::Ok };
                    RequestRow {
                        connect_start: Some(at(50)),
                        connected: (!is_lost).then(|| at(250)),
                        sent: (!is_lost).then(|| at(260)),
                        head: (!is_lost).then(|| at(took_us - 10)),
                        outcome,
                        final_outcome: outcome,
                        status: (!is_lost).then_some(200),
                        conn: Some(seq),
                        local_port: u16::try_from(32_768 + seq % 28_000).ok(),
                        remote_addr: Some(Arc::clone(&to)),
                        bytes_sent: 120,
                        bytes_received: if is_lost { 0 } else { 160 },
                        pod: (!is_lost).then(|| Arc::clone(&pods[usize::try_from(pod).expect("a pod")])),
                        ..RequestRow::not_sent(
                            Arc::clone(&source),
                            seq,
                            Arc::clone(&target),
                            Phase::Main,
                            at(0),
                            at(took_us),
                        )
                    }
                })
                .collect();
            parts.extend(&rows).expect("rows");
        }
        parts.finish().expect("the last part");
    }
}

/// run.json and events.jsonl.
fn describe(run_dir: &RunDir, zero: Stamp, workers: u64, seconds: u64, pods: &[Arc<str>]) {
    let rate = (workers * PER_SECOND) as f64;
    let (duration, halfway) = (Duration::from_secs(seconds), zero + Duration::from_secs(seconds / 2));
    let info = runs::synthetic(rate, duration.as_secs_f64(), (zero, zero + duration));
    run_dir.write_info(&info).expect("run.json");
    let pod = |name: &str, change| {
        EventKind::Pod(PodEvent {
            change,
            namespace: "default".into(),
            name: name.into(),
            uid: format!("uid-{name}"),
            resource_version: "1".into(),
            node: None,
            ip: None,
            phase: "Running".into(),
            ready: true,
            deletion_timestamp: None,
            deletion_grace_s: None,
            grace_s: 30,
            disruption_target: None,
            disruption_message: None,
            reason: None,
            owner: None,
            containers: Vec::new(),
        })
    };
    let started = EventKind::LoadStarted { rate, duration_s: duration.as_secs_f64(), warmup_s: 0.0 };
    let deleted = Action {
        is_undone: false,
        disruption: 0,
        action: ActionName::DeletePod,
        mode: Some(Mode::Isolated),
        pod: Some(pods[0].to_string()),
        uid: Some(format!("uid-{}", pods[0])),
        answered: halfway + Duration::from_millis(10),
        status: Some(200),
        error: None,
    };
    let gone = halfway + Duration::from_millis(500);
    let mut events = vec![(zero, started)];
    events.extend(pods.iter().map(|name| (zero, pod(name, Change::Listed))));
    events.push((halfway, EventKind::Action(deleted)));
    events.push((gone, pod(&pods[0], Change::Deleted)));
    events.push((zero + duration, EventKind::LoadEnded { scheduled: workers * seconds * PER_SECOND }));
    let mut log = run_dir.event_log().expect("a log");
    for (at, kind) in events {
        log.append(&Event::new(at, "coordinator", kind)).expect("an event");
    }
}
