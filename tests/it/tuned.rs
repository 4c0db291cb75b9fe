//! Settings that `rolldrop tune` has chosen, applied: rolling restarts lose nothing of a client that is not rolldrop's.

use std::fs;
use std::path::{Path, PathBuf};

use rolldrop_record::run_info::Role;
use rolldrop_record::{RoundsEnd, RunDir};
use serde_json::{Value, json};

use crate::harness::{LIMIT, Rolldrop, wait_for};
use crate::kubectl::ROLLED_OUT;
use crate::lab::{Cluster, Setup};
use crate::machine::{Meanwhile, figure, measured};
use crate::runs::{Dataplane, turn};
use crate::web::Web;

const CLIENT: &str = include_str!("tuned/client.py");
/// The client's connections in a second.
const RATE: u32 = 200;
const SECONDS: u32 = 12;

/// The cluster's kubeconfig without the mark of an embedded one: rolldrop takes it for one whose Services it cannot reach.
fn as_a_real_one(cluster: &Cluster) -> PathBuf {
    let text = fs::read_to_string(cluster.kubeconfig()).expect("a kubeconfig");
    let mut config: Value = serde_saphyr::from_str(&text).expect("YAML");
    config["clusters"][0]["cluster"]["extensions"].take();
    let path = cluster.dir().join("real");
    fs::write(&path, config.to_string()).expect("a file");
    path
}

/// Restarts the workload again and again while a pod sends requests through its Service. Returns what the client says last: how
/// many were answered, and how many were not.
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

/// The runs of a tuning.
fn infos(tuning: &Path) -> Vec<rolldrop_record::RunInfo> {
    let dirs = fs::read_dir(tuning).expect("the tuning").flatten().map(|entry| entry.path());
    let runs = dirs.filter(|dir| dir.join("run.json").exists());
    runs.map(|dir| RunDir::open(&dir).and_then(|run| run.info()).expect("run.json")).collect()
}

/// The small form of scripts/proofs/tuned: tuned as by default on a real cluster, from its pods, whose rows cross while they
/// send.
#[test]
fn chosen_sleep_saves_what_a_client_lost_before() {
    measured(|| {
        let _turn = turn();
        let cluster = Setup::on(Dataplane::Kernel).nodes(2).start();
        cluster.deploy(&Web::new(3).args(&["--on-sigterm=exit"]));
        let meanwhile = Meanwhile::begins();
        let (answered, failed, said) = restarted_under_a_client(&cluster, "before");
        assert_eq!(answered + failed, SECONDS * RATE, "{said}");
        figure(meanwhile.taken(), failed > 0, || format!("nothing is to be saved: {said}"));

        let tuned = Rolldrop::new(["tune", "svc/web", "--out", "tuning", "--quiet"])
            .args(["--rate", "100", "--coverage", "50%", "--max-busy", "100%"])
            .on_cluster(&as_a_real_one(&cluster))
            .measured();
        let tuning = tuned.dir().join("tuning");
        assert!(tuning.join("tune.json").exists(), "{tuned}");
        let found: Value =
            serde_json::from_str(&fs::read_to_string(tuning.join("tune.json")).expect("tune.json"))
                .expect("JSON");
        tuned.figure(found["outcome"]["state"] == "proven");
        let (mut workers, mut rounds) = (0, 0);
        for run in infos(&tuning) {
            workers += run.sources.iter().filter(|source| source.role == Role::Load).count();
            if let Some(rounds_of) = &run.rounds {
                rounds += 1;
                tuned.figure(rounds_of.ended != RoundsEnd::MostRounds);
            }
        }
        assert!(
            workers > 0 && rounds > 0,
            "{workers} sources of load, {rounds} runs of several rounds\n{tuned}"
        );

        cluster
            .kubectl(&format!("patch deployment/web --patch-file {}", tuning.join("patch.yaml").display()));
        cluster.kubectl(ROLLED_OUT);
        let meanwhile = Meanwhile::begins();
        let (_, failed, said) = restarted_under_a_client(&cluster, "after");
        figure(meanwhile.taken(), failed == 0, || format!("with the chosen sleep: {said}\n{tuned}"));
    });
}
