//! Simulated run directories, with as many requests and terminations as the size tests need.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rolldrop_record::event::{Action, ActionName, Change, PodEvent};
use rolldrop_record::{Clock, Event, EventKind, Mode, Outcome, Phase, RequestRow, RunDir, Stamp};

use crate::runs;

/// Requests per second of one worker.
pub(crate) const PER_SECOND: u64 = 10_000;
/// Number of pods that serve at a time.
const PODS: u64 = 10;

/// A run on fresh connections, in which pods are deleted and replaced one by one.
pub(crate) struct Synthetic {
    pub(crate) workers: u64,
    pub(crate) seconds: u64,
    /// Number of deletions, spread evenly over the run.
    pub(crate) deletions: u64,
    /// Number of requests per lost request.
    pub(crate) one_lost_of: u64,
}

impl Synthetic {
    /// Writes its run directory.
    pub(crate) fn write(&self, path: &Path) {
        let &Self { workers, seconds, deletions, one_lost_of } = self;
        let run_dir = RunDir::create(path).expect("a new directory");
        let clock = Clock::start();
        let zero = clock.now();
        let pods: Vec<Arc<str>> =
            (0..PODS + deletions).map(|number| format!("web-7d4b9c6f58-{number:05}").into()).collect();
        self.describe(&run_dir, zero, &pods);
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
                        let is_lost = seq % one_lost_of == 0;
                        // Ten pods serve at a time; a deleted pod gets no requests.
                        let deleted = seq * (deletions + 1) / (seconds * PER_SECOND);
                        let pod = deleted + seq % PODS;
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

    /// Writes run.json and events.jsonl.
    fn describe(&self, run_dir: &RunDir, zero: Stamp, pods: &[Arc<str>]) {
        let &Self { workers, seconds, deletions, .. } = self;
        let rate = (workers * PER_SECOND) as f64;
        let duration = Duration::from_secs(seconds);
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
        let deletion = |pod: &Arc<str>, at: Stamp| {
            EventKind::Action(Action {
                is_undone: false,
                disruption: 0,
                action: ActionName::DeletePod,
                mode: Some(Mode::Isolated),
                pod: Some(pod.to_string()),
                uid: Some(format!("uid-{pod}")),
                answered: at + Duration::from_millis(10),
                status: Some(200),
                error: None,
            })
        };
        let mut events = vec![(zero, started)];
        let (first, later) = pods.split_at(usize::try_from(PODS).expect("a small number"));
        events.extend(first.iter().map(|name| (zero, pod(name, Change::Listed))));
        for (number, (old, new)) in (1..).zip(pods.iter().zip(later)) {
            let at = zero + duration * number / u32::try_from(deletions + 1).expect("a number");
            events.push((at, deletion(old, at)));
            events.push((at + Duration::from_millis(20), pod(new, Change::Applied)));
            events.push((at + Duration::from_millis(500), pod(old, Change::Deleted)));
        }
        events.sort_by_key(|event| event.0);
        events.push((zero + duration, EventKind::LoadEnded { scheduled: workers * seconds * PER_SECOND }));
        let mut log = run_dir.event_log().expect("a log");
        for (at, kind) in events {
            log.append(&Event::new(at, "coordinator", kind)).expect("an event");
        }
    }
}
