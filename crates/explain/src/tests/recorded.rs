//! Recorded runs on a real cluster, with further records of each (`tests/reference/runs`).
#![expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "reads a recorded run")]

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::*;
use crate::model::LostRequest;
use rolldrop_record::RunDir;

fn recorded(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/runs").join(name)
}

/// Analyses a recorded run; also returns the source port of each lost request.
fn read(name: &str) -> (Analysis, HashMap<u64, u16>) {
    let (log, rows) = RunDir::open(&recorded(name).join("run")).unwrap().recorded().unwrap();
    let Analysed { requests, analysis, .. } = Analysed::of(log, rows).unwrap();
    let ports = requests.others.iter().filter_map(|r| Some((r.row.seq, r.row.local_port?))).collect();
    (analysis, ports)
}

/// Returns a table from a recorded run: the columns of each line.
fn table(name: &str, file: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(recorded(name).join(file)).unwrap();
    text.lines().skip(1).map(|line| line.split(',').map(str::to_owned).collect()).collect()
}

#[test]
fn haproxy_no_server_losses_are_blamed_on_no_pod() {
    let (analysis, ports) = read("gw-ha-5");
    let log = table("gw-ha-5", "gateway.csv");
    let no_server: HashMap<u16, bool> =
        log.iter().map(|line| (line[1].parse().unwrap(), line[2] == "<NOSRV>")).collect();
    let is_said = |lost: &&LostRequest| lost.cause == Cause::GatewayNoServer;
    let is_true = |lost: &&LostRequest| no_server[&ports[&lost.seq]];
    let (said, others): (Vec<&LostRequest>, Vec<&LostRequest>) =
        analysis.lost.iter().partition(|lost| is_said(lost));
    let [right, wrong] =
        [said.iter().filter(|l| is_true(l)).count(), said.iter().filter(|l| !is_true(l)).count()];
    let all = analysis.lost.iter().filter(is_true).count();
    assert_eq!((analysis.lost.len(), all), (377, 306));
    assert!(right * 100 >= 95 * all && wrong * 100 <= 5 * (analysis.lost.len() - all), "{right}, {wrong}");
    assert!(said.iter().all(|lost| lost.candidates.is_empty() && !lost.in_window));
    assert!(others.iter().all(|lost| lost.cause == Cause::GatewayToDeadPod));

    // kube-proxy removed each pod from its rules 0.22 to 0.81 s after its deletion.
    for termination in &analysis.result.terminations {
        let lower_s = termination.windows[0].lower_s.unwrap_or(0.0);
        assert!(lower_s < 0.85, "{termination:?}");
    }
}

#[test]
fn earlier_run_flows_count_as_stale() {
    let (analysis, _) = read("tune-conntrack-cluster-stale");
    let requests = &analysis.result.requests;
    assert_eq!(requests.by_cause, BTreeMap::from([(Cause::StaleFlow, 53)]));
    assert_eq!((requests.lost(), requests.unattributed), (0, 0));
}
