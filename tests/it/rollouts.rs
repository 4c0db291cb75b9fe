//! A rollout of an app that does not shut down gracefully, compared with the Service proxy's own log. This is the short
//! form of `scripts/proofs/rollouts`.

use std::collections::{BTreeMap, HashMap};
use std::fs;

use rolldrop_explain::model::NoBound;
use rolldrop_record::{Outcome, RequestRow};
use serde_json::json;

use crate::runs::{Dataplane, MeasuredRun, json_lines, measure, stopped_routing};
use crate::truth::{ALPHA, CLOCK_TOLERANCE_S, STATED_ALPHA, routes, zero_s};
use crate::web::Web;

const RATE: f64 = 200.0;
/// Maximum number of endpoints, including the surge.
const MOST_ENDPOINTS: f64 = 6.0;

/// Returns a scenario without a sidecar, whose app does not name its pod. The userspace Service proxy logs each
/// connection's destination.
fn scenario() -> String {
    let web = Web::new(4).args(&["--on-sigterm", "exit"]);
    let surge = json!({"rollingUpdate": {"maxSurge": "50%", "maxUnavailable": "25%"}});
    web.deployment(json!({"strategy": surge})).scenario(
        "rollout",
        "
  cluster: {embedded: {nodes: 1}}
  target: {service: web}
  load: {rate: 200, warmup: 1s, duration: 60s, connections: {mode: fresh}}
  disruptions: [{at: 2s, action: rollingRestart, workload: deployment/web, until: {terminations: 4}}]
",
    )
}

/// Returns the pods that may explain each lost request, by source and number: `lost.csv`.
fn candidates(run: &MeasuredRun) -> HashMap<(String, u64), Vec<String>> {
    let text = fs::read_to_string(run.path.join("lost.csv")).expect("lost.csv");
    let (header, rows) = text.split_once('\n').expect("a header");
    let column = |name| header.split(',').position(|other| other == name).expect(name);
    let (source, seq, pods) = (column("source"), column("seq"), column("pods"));
    let row = |line: &str| {
        let cells: Vec<&str> = line.split(',').collect();
        let id = (cells[source].to_owned(), cells[seq].parse().expect("a number"));
        (id, cells[pods].split(';').map(str::to_owned).collect())
    };
    rows.lines().map(row).collect()
}

#[test]
fn rollout_result_matches_service_proxy_log() {
    let run = measure(&scenario(), Dataplane::Userspace, &[]);
    let (stopped, zero, routes) = (stopped_routing(&run), zero_s(&run), routes(&run));
    let lost: Vec<&RequestRow> = run.records.requests.iter().filter(|r| r.outcome != Outcome::Ok).collect();
    assert!(!lost.is_empty(), "nothing was lost\n{}", run.finished);

    let candidates = candidates(&run);
    let mut of_pod: BTreeMap<&str, u64> = BTreeMap::new();
    for row in &lost {
        let pod = routes.of(row);
        let said = &candidates[&(row.source.to_string(), row.seq)];
        assert!(said.iter().any(|other| other == pod), "{pod} is not in {said:?}: {row:?}\n{}", run.finished);
        *of_pod.entry(pod).or_default() += 1;
    }
    assert_eq!(run.result.terminations.len(), 4, "{}", run.finished);
    for termination in &run.result.terminations {
        let (before, after) = stopped[&termination.pod];
        let window = termination.windows.first().expect("a window");
        let latest = zero + termination.t0_s;
        let earliest = latest - termination.t0_uncertainty_s;
        let said = format!("{}: {window:?}, truth {:.6}\n{}", termination.pod, after - latest, run.finished);
        let lower = window.lower_s.map_or(earliest, |lower_s| latest + lower_s);
        assert!(lower <= after + CLOCK_TOLERANCE_S, "below the lower bound: {said}");
        // Time for enough answers from other pods to lower the error probability from the stated one to ALPHA.
        let more_s = (STATED_ALPHA / ALPHA).ln() * MOST_ENDPOINTS / RATE;
        let upper = earliest + window.upper_s.unwrap_or_else(|| panic!("no upper bound: {said}")) + more_s;
        assert!(before <= upper + CLOCK_TOLERANCE_S, "above the upper bound at {ALPHA}: {said}");
        let dropped = termination.requests.dropped;
        let of_this = of_pod.get(termination.pod.as_str()).copied().unwrap_or(0);
        assert!(
            (dropped.at_least..=dropped.at_most).contains(&of_this),
            "{of_this}, not {dropped:?}: {said}"
        );
    }
    for group in &run.result.groups {
        let pods = group.terminations.iter().map(|&number| run.result.terminations[number].pod.as_str());
        let total: u64 = pods.filter_map(|pod| of_pod.get(pod)).sum();
        assert_eq!(group.dropped, total, "{group:?}\n{}", run.finished);
    }
}

/// Service proxies in real clusters have session affinity, too. With it, responses from other pods do not show when
/// routing to a pod stopped.
#[test]
fn session_affinity_leaves_window_unbounded() {
    let web = Web::new(3).args(&["--on-sigterm", "exit"]).service(json!({"sessionAffinity": "ClientIP"}));
    let scenario = web.scenario(
        "affinity",
        "
  cluster: {embedded: {nodes: 1}}
  target: {service: web}
  load: {rate: 100, warmup: 1s, duration: 60s, connections: {mode: fresh}}
  disruptions: [{at: 2s, action: rollingRestart, workload: deployment/web, until: rolloutComplete}]
",
    );
    for dataplane in [Dataplane::Kernel, Dataplane::Userspace] {
        let run = measure(&scenario, dataplane, &[]);
        let affinity = "its Service has session affinity: each client stays with one pod";
        let windows: Vec<_> = run.result.terminations.iter().flat_map(|t| &t.windows).collect();
        assert_eq!(windows.len(), 3, "{}", run.finished);
        for window in windows {
            assert!(window.upper_s.is_none(), "{window:?}\n{}", run.finished);
            assert_eq!(window.censored_reason, Some(NoBound::NotRandom), "{window:?}\n{}", run.finished);
        }
        let is_said = run.result.findings.iter().any(|finding| finding.why.contains(affinity));
        assert!(is_said, "{}", run.finished);
        if dataplane == Dataplane::Userspace {
            // All requests come from a single client.
            let log = json_lines(&run.path.join("cluster/service-proxy.jsonl"));
            let web =
                log.iter().filter(|line| line["kind"] == "connection" && line["service"] == "default/web");
            let pods: Vec<&str> = web.filter_map(|line| line["pod"].as_str()).collect();
            // A connection routed just as its pod was removed may be logged after the first connection to the next pod.
            let mut seen = Vec::new();
            let mut late = 0;
            for pod in pods {
                match seen.iter().position(|other| *other == pod) {
                    None => seen.push(pod),
                    Some(place) => late += usize::from(place + 1 < seen.len()),
                }
            }
            assert!(late <= 3, "{late} connections came back to a pod: {seen:?}\n{}", run.finished);
        }
    }
}
