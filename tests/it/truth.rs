//! Compares the tool's statements with the ground truth, from logs that are independent of the measurement.
//!
//! The embedded Service proxy logs when it stopped routing to a pod, and the sample server logs its treatment of each
//! request.

use std::collections::{BTreeMap, HashMap};
use std::fs;

use rolldrop_record::{EventKind, Mode, Outcome, RequestRow};
use serde_json::Value;

use crate::harness::written;
use crate::machine::{figure, measured};
use crate::runs::{self, Dataplane, MeasuredRun, json_lines, seconds, stopped_routing};

/// Probability of a false failure when testing a bound that must always hold.
pub(crate) const ALPHA: f64 = 1e-6;
/// Maximum share of wrong bounds among those stated at 95 %.
pub(crate) const STATED_ALPHA: f64 = 0.05;
/// Maximum difference between the clocks of two processes on one machine, in seconds.
pub(crate) const CLOCK_TOLERANCE_S: f64 = 0.001;

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[test]
fn bounds_contain_end_of_routing() {
    measured(|| runs::all().for_each(bounds_hold));
}

/// Returns the time at which the counted part of the load began, in Unix seconds.
pub(crate) fn zero_s(run: &MeasuredRun) -> f64 {
    let started = run.records.events.iter().find_map(|event| match event.kind {
        EventKind::LoadStarted { warmup_s, .. } => Some(event.at.unix_ns() as f64 / 1e9 + warmup_s),
        _ => None,
    });
    started.expect("the start of the load")
}

/// Returns the maximum send delay in seconds among the requests due between these times.
fn late_s(run: &MeasuredRun, from_s: f64, to_s: f64) -> f64 {
    let rows = run.records.requests.iter().filter_map(|row| {
        let begun = row.connect_start.or(row.sent)?;
        let due_s = row.scheduled.unix_ns() as f64 / 1e9;
        (from_s..to_s).contains(&due_s).then(|| begun.seconds_since(row.scheduled))
    });
    rows.fold(0.0, f64::max)
}

/// Compares the windows of a run with the Service proxy's log. An upper bound depends on when the next request arrives,
/// and a load that is late sends none until then. The machine may delay other things too, so the result is a figure.
pub(crate) fn bounds_hold(run: &MeasuredRun) {
    let stopped = stopped_routing(run);
    let zero = zero_s(run);
    for termination in &run.result.terminations {
        let (before, after) = stopped[&termination.pod];
        let window = termination.windows.first().expect("a window");
        let t0_latest = zero + termination.t0_s;
        let t0_earliest = t0_latest - termination.t0_uncertainty_s;
        let said =
            format!("{}: {window:?}, truth {:.6}\n{}", termination.pod, after - t0_latest, run.finished);
        // A window that may be empty is only known not to end before it begins.
        let lower = window.lower_s.map_or(t0_earliest, |lower_s| t0_latest + lower_s);
        assert!(lower <= after + CLOCK_TOLERANCE_S, "below the lower bound: {said}");
        // Latest time of the pod's next arrival after one at this time, at an error probability lowered by this factor.
        let next_arrival = |from: f64, factor: f64| {
            let on_time = from + factor.ln() / window.rate_before;
            on_time + late_s(run, t0_earliest, on_time)
        };
        let reported = t0_earliest + window.upper_s.unwrap_or_else(|| panic!("no upper bound: {said}"));
        // Where terminations overlap, the end of routing stays uncertain for longer, because some losses may belong to
        // another pod.
        let upper = match termination.mode {
            Mode::Isolated => next_arrival(t0_latest + window.lower_s.unwrap_or(0.0), 1.0 / ALPHA),
            _ => next_arrival(reported, STATED_ALPHA / ALPHA),
        };
        figure(run.finished.taken, before <= upper + CLOCK_TOLERANCE_S, || {
            format!("above the upper bound at {ALPHA}: {said}")
        });
        assert!(reported <= upper + CLOCK_TOLERANCE_S, "wider than its statistics allow: {said}");
    }
}

/// Returns the sample servers' actions on each request id, for all pods: `received`, then `answered` or `aborted`.
fn server_log(run: &MeasuredRun) -> HashMap<String, Vec<String>> {
    let mut did: HashMap<String, Vec<String>> = HashMap::new();
    for pod in fs::read_dir(run.path.join("cluster/pods")).expect("pod logs").flatten() {
        let log = written(&fs::read_to_string(pod.path().join("app.log")).expect("a log"));
        for line in log.lines().filter(|line| line.starts_with('{')) {
            let line: Value = serde_json::from_str(line).expect("JSON");
            if !line["id"].is_string() {
                continue;
            }
            did.entry(text(&line["id"])).or_default().push(text(&line["event"]));
        }
    }
    did
}

#[test]
fn outcomes_match_server_log() {
    for run in runs::all() {
        let did = server_log(run);
        for row in &run.records.requests {
            let id = run.records.info.request_id(row).to_string();
            let events = did.get(&id).map_or(&[][..], Vec::as_slice);
            let fits = match row.outcome {
                Outcome::Ok => events == ["received", "answered"],
                // The request was lost before, in, or on the way back from the server, but never counted as answered.
                _ => events != ["received", "answered"],
            };
            assert!(fits, "{id}: {} but the server logged {events:?}\n{}", row.outcome, run.finished);
        }
    }
}

/// Pods to which the userspace dataplane's Service proxy sent connections, by the client's port.
pub(crate) struct Routes(HashMap<u16, Vec<(f64, String)>>);

pub(crate) fn routes(run: &MeasuredRun) -> Routes {
    let mut routes: HashMap<u16, Vec<(f64, String)>> = HashMap::new();
    for line in json_lines(&run.path.join("cluster/service-proxy.jsonl")) {
        if line["kind"] == "connection" {
            let port = text(&line["client"]).rsplit(':').next().and_then(|p| p.parse().ok()).expect("a port");
            routes.entry(port).or_default().push((seconds(&line["t_ns"]), text(&line["pod"])));
        }
    }
    Routes(routes)
}

impl Routes {
    /// Returns the pod to which the fresh connection of this request was sent.
    pub(crate) fn of(&self, row: &RequestRow) -> &str {
        let begun = row.connect_start.expect("a fresh connection").unix_ns() as f64 / 1e9;
        let routed = &self.0[&row.local_port.expect("a port")];
        &routed.iter().find(|(at, _)| *at >= begun - CLOCK_TOLERANCE_S).expect("a route").1
    }
}

#[test]
fn drops_match_connection_routes() {
    // The kernel dataplane does not log which pod a connection goes to.
    let of_userspace = |run: &&MeasuredRun| run.dataplane == Dataplane::Userspace;
    let run = runs::naive_exit().iter().find(of_userspace).expect("a run");
    let routes = routes(run);
    // The pods that truly lost a request, by the route of its connection.
    let mut lost: BTreeMap<String, u64> = BTreeMap::new();
    for row in run.records.requests.iter().filter(|row| row.outcome != Outcome::Ok) {
        let pod = routes.of(row);
        *lost.entry(pod.to_owned()).or_default() += 1;
    }
    let said: BTreeMap<String, u64> = run
        .result
        .terminations
        .iter()
        .filter(|t| t.requests.dropped.at_most > 0)
        .map(|t| {
            assert!(t.requests.dropped.is_exact(), "{t:?}\n{}", run.finished);
            (t.pod.clone(), t.requests.dropped.at_most)
        })
        .collect();
    assert_eq!(said, lost, "{}", run.finished);
}
