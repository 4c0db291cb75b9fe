//! Simulated runs whose responses are streams.

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rolldrop_record::event::Change;
use rolldrop_record::{Event, EventKind, Outcome, Records, StreamEnd, StreamRow};

use super::{MS, at, delete, pod_event, records, request};

/// Interval in milliseconds at which streams begin, on the three pods in turn.
const EVERY_MS: i64 = 20;
/// Duration of a complete stream in milliseconds, with an event every 100 ms.
const LENGTH_MS: i64 = 2000;

/// Termination of a pod that has streams.
#[derive(Clone, Copy, Debug)]
pub struct StreamPodEnd {
    /// Grace period in seconds.
    pub grace_s: i64,
    /// Exit code of the app.
    pub exit_code: i32,
    /// Outcome of the streams that the app does not complete, and the time at which they end, in milliseconds after the
    /// deletion.
    pub cut: (Outcome, i64),
}

/// Returns a run of 10 s. Pod `b` is deleted at 5 s, and streams go to it until then.
pub fn streams(end: StreamPodEnd) -> Records {
    let mut records = records();
    delete(&mut records, 5000, "b");
    finish(&mut records, "b", end, 5000);
    for begun in (0..8000).step_by(20) {
        let pod = match ["a", "b", "c"][usize::try_from(begun / EVERY_MS % 3).unwrap()] {
            "b" if begun > 5000 => "a",
            pod => pod,
        };
        let cut_at = 5000 + end.cut.1;
        let is_cut = pod == "b" && begun + LENGTH_MS > cut_at;
        let (outcome, ended) = if is_cut { (end.cut.0, cut_at) } else { (Outcome::Ok, begun + LENGTH_MS) };
        stream(&mut records, pod, outcome, (begun, ended));
    }
    records
}

/// Returns a run of 150 s with streams of random lengths (exponential, 8 s on average). Three pods with a preStop sleep
/// of 5 s and a grace period of 20 s are deleted and replaced one after another. The first serves its streams until it
/// is killed, the second tells every other client at SIGTERM that it is ending the stream, and the third cuts all
/// streams at SIGTERM. The run ends with streams open.
pub fn drained_streams() -> Records {
    const SLEEP_MS: i64 = 5000;
    const GRACE_MS: i64 = 20_000;
    let old = ["web-7d4b9c6f5-2xkqp", "web-7d4b9c6f5-m8zrt", "web-7d4b9c6f5-vc4hd"];
    let new = ["web-59c7d8b44-7hqwn", "web-59c7d8b44-fx2lk", "web-59c7d8b44-zzd9s"];
    let deleted = [60_000, 90_000, 120_000];
    let mut records = records();
    records.events.retain(|event| !matches!(event.kind, EventKind::Pod(_)));
    for (i, pod) in old.iter().enumerate() {
        records.events.push(pod_event(-1000, pod, Change::Applied));
        records.events.push(pod_event(deleted[i] - 2000, new[i], Change::Applied));
        delete(&mut records, deleted[i], pod);
        let (exit_code, after) = if i < 2 { (137, GRACE_MS) } else { (0, SLEEP_MS) };
        let end = StreamPodEnd { grace_s: GRACE_MS / 1000, exit_code, cut: (Outcome::StreamCut, after) };
        finish(&mut records, pod, end, deleted[i]);
    }
    for event in &mut records.events {
        if let EventKind::Pod(pod) = &mut event.kind {
            pod.containers[0].pre_stop_sleep_s = Some(SLEEP_MS / 1000);
        }
    }
    let mut random = StdRng::seed_from_u64(1);
    for (n, begun) in (0..150_000).step_by(50).enumerate() {
        let place = n % 3;
        let is_old = begun < deleted[place];
        let pod = if is_old { old[place] } else { new[place] };
        let length_s = -8.0 * (1.0 - random.random::<f64>()).ln();
        #[expect(clippy::cast_possible_truncation, reason = "a few minutes")]
        let whole = begun + (length_s * 1e3) as i64 + 1;
        let (sigterm, killed) = (deleted[place] + SLEEP_MS, deleted[place] + GRACE_MS);
        let (outcome, ended) = match place {
            0 | 1 if is_old && whole > killed => (Outcome::StreamCut, killed),
            1 if is_old && whole > sigterm && n % 2 == 0 => (Outcome::StreamAborted, sigterm + 40),
            2 if is_old && whole > sigterm => (Outcome::StreamCut, sigterm + 10),
            _ if whole > 153_000 => (Outcome::Cancelled, 153_000),
            _ => (Outcome::Ok, whole),
        };
        stream(&mut records, pod, outcome, (begun, ended));
    }
    let (rate, duration_s) = (20.0, 150.0);
    let started = EventKind::LoadStarted { rate, duration_s, warmup_s: 0.0 };
    let ended = EventKind::LoadEnded { scheduled: records.requests.len() as u64 };
    records.events.retain(|event| !matches!(event.kind, EventKind::LoadStarted { .. }));
    records.events.insert(0, Event::new(at(0), "coordinator", started));
    records.events.push(Event::new(at(150_000), "coordinator", ended));
    records.events.sort_by_key(|event| event.at);
    (records.info.load.rate, records.info.load.duration_s) = (rate, duration_s);
    records.info.ended = Some(at(153_000));
    records
}

/// Sets how a pod that is deleted at `deleted` milliseconds terminates.
fn finish(records: &mut Records, name: &str, end: StreamPodEnd, deleted: i64) {
    for event in &mut records.events {
        let EventKind::Pod(pod) = &mut event.kind else { continue };
        if pod.name != name {
            continue;
        }
        pod.grace_s = end.grace_s;
        if pod.change == Change::Deleted {
            let app = &mut pod.containers[0];
            (app.state, app.exit_code) = (Some("terminated".into()), Some(end.exit_code));
            event.at = at(deleted + end.cut.1 + 50);
        }
    }
}

/// Adds a stream on a pod that began and ended at these times, in milliseconds.
pub fn stream(records: &mut Records, pod: &str, outcome: Outcome, (begun, ended): (i64, i64)) {
    request(records, begun * MS, outcome, Some(pod));
    let row = records.requests.last_mut().unwrap();
    (row.head, row.end) = (Some(at(begun + 1)), at(ended));
    let events = u64::try_from((ended - begun) / 100).unwrap();
    records.streams.push(StreamRow {
        source: Arc::clone(&row.source),
        seq: row.seq,
        first_event: Some(at(begun + 100)),
        last_event: Some(at(ended)),
        events,
        bytes: 64 * events,
        tokens: None,
        longest_gap: Some(MS.unsigned_abs() * 100),
        gap_start: Some(at(begun + 100)),
        terminal: StreamEnd::Cancelled,
        goodbye: None,
    });
}
