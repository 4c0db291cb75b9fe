//! With the settings chosen by `rolldrop tune`, an independent client loses no requests in rolling restarts.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rolldrop_record::run_info::Role;
use rolldrop_record::{RoundsEnd, RunDir, RunInfo};
use serde_json::json;

use crate::drive::tune::tuning;
use crate::harness::{LIMIT, Rolldrop, wait_for};
use crate::kubectl::ROLLED_OUT;
use crate::lab::{Cluster, Setup};
use crate::machine::{Meanwhile, figure, measured};
use crate::runs::{Dataplane, turn};
use crate::web::Web;

const CLIENT: &str = include_str!("tuned/client.py");
/// Client's connections per second.
const RATE: u32 = 200;
const SECONDS: u32 = 12;

/// Restarts the workload repeatedly while a pod sends requests through its Service. Returns the client's final numbers
/// of answered and unanswered requests.
fn restarted_under_a_client(cluster: &Cluster, name: &str) -> (u32, u32, String) {
    let command = json!([
        "python3",
        "-c",
        CLIENT,
        "web.default.svc.cluster.local",
        "80",
        SECONDS.to_string(),
        RATE.to_string()
    ]);
    let container = json!({"name": "client", "image": "host", "command": command});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    });
    cluster.apply(&pod.to_string());
    let phase = || cluster.kubectl(&format!("get pod {name} -o jsonpath={{.status.phase}}"));
    wait_for("the client", LIMIT, || (phase() == "Running").then_some(()));
    let mut restarts = 0;
    while phase() == "Running" {
        cluster.kubectl("rollout restart deployment/web");
        cluster.kubectl(ROLLED_OUT);
        restarts += 1;
    }
    assert!(restarts > 1);
    let said = cluster.kubectl(&format!("logs {name}"));
    let counts = said.lines().last().and_then(|line| line.split_once(' ')).expect("counts");
    let [answered, failed] = [counts.0, counts.1].map(|count| count.parse().expect("a number"));
    (answered, failed, said)
}

/// Returns the run.json of each run in a tuning, by run name.
fn infos(tuning: &Path) -> BTreeMap<String, RunInfo> {
    let dirs = fs::read_dir(tuning).expect("the tuning").flatten();
    let runs = dirs.filter(|dir| dir.path().join("run.json").exists());
    let info = |dir: fs::DirEntry| {
        let info = RunDir::open(&dir.path()).and_then(|run| run.info()).expect("run.json");
        (dir.file_name().into_string().expect("a name"), info)
    };
    runs.map(info).collect()
}

/// This is the short form of scripts/proofs/tuned. As by default on a real cluster, pods send the load, and their rows
/// arrive while they send.
#[test]
fn chosen_sleep_prevents_client_losses() {
    measured(|| {
        let _turn = turn();
        let cluster = Setup::on(Dataplane::Kernel).nodes(2).start();
        cluster.deploy(&Web::new(3).args(&["--on-sigterm=exit"]));
        let meanwhile = Meanwhile::begins();
        let (answered, failed, said) = restarted_under_a_client(&cluster, "before");
        assert_eq!(answered + failed, SECONDS * RATE, "{said}");
        figure(meanwhile.taken(), failed > 0, || format!("no request was lost without the sleep: {said}"));

        let tuned = Rolldrop::new(["tune", "svc/web", "--out", "tuning", "--quiet"])
            .args(["--rate", "100", "--coverage", "50%", "--max-busy", "100%"])
            .file("real", &cluster.kubeconfig_as_of_a_real_one())
            .on_cluster(Path::new("real"))
            .measured();
        let out = tuned.dir().join("tuning");
        assert!(out.join("tune.json").exists(), "{tuned}");
        let found = tuning(tuned.dir());
        tuned.figure(found["outcome"]["state"] == "proven");
        let infos = infos(&out);
        let workers =
            infos.values().flat_map(|run| &run.sources).filter(|source| source.role == Role::Load).count();
        let rounds = infos.values().filter_map(|run| run.rounds.as_ref());
        rounds.clone().for_each(|rounds| tuned.figure(rounds.ended != RoundsEnd::MostRounds));
        let rounds = rounds.count();
        let last =
            found["steps"].as_array().and_then(|steps| steps.last()?["run"].as_str()).expect("a proof");
        let proof = infos[last].rounds.as_ref().expect("rounds");
        tuned.figure(proof.ended == RoundsEnd::Covered);
        assert!(proof.counted >= proof.needed, "{proof:?}");
        assert!(
            workers > 0 && rounds > 0,
            "{workers} sources of load, {rounds} runs of several rounds\n{tuned}"
        );

        cluster.kubectl(&format!("patch deployment/web --patch-file {}", out.join("patch.yaml").display()));
        cluster.kubectl(ROLLED_OUT);
        let meanwhile = Meanwhile::begins();
        let (_, failed, said) = restarted_under_a_client(&cluster, "after");
        figure(meanwhile.taken(), failed == 0, || format!("with the chosen sleep: {said}\n{tuned}"));
    });
}
