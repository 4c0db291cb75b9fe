//! `rolldrop watch --out` and `rolldrop watch report`: a history that survives kills.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use crate::harness::{Finished, LIMIT, Rolldrop, signal, wait_for};
use crate::pods::{PODS, on_with, run, shell};
use crate::termination::lab::{Lab, now_ns};
use crate::watch::{DEPLOYMENTS, PROMPT, Watching, deployment, ready_pods};

/// Number of watches that are killed.
const KILLS: u32 = 8;

fn files(history: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(history).expect("a history").flatten().map(|entry| entry.path());
    let mut files: Vec<_> = entries.filter(|path| path.extension().is_some_and(|e| e == "jsonl")).collect();
    files.sort();
    files
}

/// Returns the records of a history.
fn records(history: &Path) -> Vec<Value> {
    let text: String = files(history).iter().map(|file| fs::read_to_string(file).expect("a file")).collect();
    assert!(text.ends_with('\n'), "{text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value}")).to_owned()
}

/// Returns the spans, in Unix nanoseconds.
fn spans<'a>(records: impl IntoIterator<Item = &'a Value>) -> Vec<(i64, i64)> {
    let at = |record: &Value, name: &str| record[name].as_i64().expect("a time");
    records.into_iter().map(|record| (at(record, "from_ns"), at(record, "to_ns"))).collect()
}

fn is_in(spans: &[(i64, i64)], at: i64) -> bool {
    spans.iter().any(|(from, to)| (*from..=*to).contains(&at))
}

/// A cluster, with a history of its terminations.
struct Kept {
    lab: Lab,
    kubeconfig: String,
    history: PathBuf,
    /// Times at which pods were deleted: before and after each call, by UID.
    deleted: BTreeMap<String, (i64, i64)>,
}

impl Kept {
    fn new(lab: Lab, history: &Path) -> Self {
        let kubeconfig = fs::read_to_string(lab.dir().join("kubeconfig")).expect("a kubeconfig");
        Self { lab, kubeconfig, history: history.to_owned(), deleted: BTreeMap::new() }
    }

    fn watch(&self) -> Watching {
        let out = self.history.to_str().expect("a path");
        Watching::begin(&["-n", "default", "--format", "json", "--out", out], &self.kubeconfig)
    }

    fn refused(&self, out: &Path) -> Finished {
        let args = ["watch", "--kubeconfig", "kubeconfig", "-n", "default", "--out"];
        let watch = Rolldrop::new(args).args([out]).file("kubeconfig", &self.kubeconfig);
        watch.finish().expect_code(2)
    }

    fn report(&self, format: &str) -> String {
        let picture = self.history.with_extension("png");
        let report = Rolldrop::new(["watch", "report", "--format", format, "--png"]);
        let shown = report.args([&picture, &self.history]).finish().expect_code(0).stdout();
        assert!(std::fs::read(picture).expect("a picture").starts_with(b"\x89PNG"));
        shown
    }

    async fn delete(&mut self, pod: &str) {
        let found = self.lab.call("DELETE", &format!("{PODS}/{pod}"), None).await;
        self.deleted.insert(text(&found.body["metadata"]["uid"]), (found.sent_ns, found.answered_ns));
    }

    async fn delete_one(&mut self) {
        let (pod, _) = ready_pods(&self.lab, "steady", 3).await.remove(0);
        self.delete(&pod).await;
    }

    /// Lets time pass while changing a pod, because a watch is known to work only if it shows something.
    async fn pass(&self, ms: u64) {
        let until = Instant::now() + Duration::from_millis(ms);
        while Instant::now() < until {
            let note = json!({"metadata": {"annotations": {"now": now_ns().to_string()}}});
            self.lab.call("PATCH", &format!("{PODS}/slow"), Some(&note)).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Returns the time at which each deleted pod disappeared, as seen by the test's own watch, by UID.
    fn gone(&self) -> BTreeMap<String, i64> {
        let seen = self.lab.seen("default").into_iter();
        let gone = seen.filter(|seen| seen.event == "DELETED" && seen.kind() == "Pod");
        gone.map(|seen| (text(&seen.object["metadata"]["uid"]), seen.at_ns)).collect()
    }

    /// Waits until all deleted pods are gone, except these.
    async fn settle(&self, except: &BTreeSet<String>) {
        let wanted: Vec<String> = self.deleted.keys().filter(|uid| !except.contains(*uid)).cloned().collect();
        let are_gone = || {
            let gone = self.gone();
            wanted.iter().all(|uid| gone.contains_key(uid)).then_some(())
        };
        wait_for("the pods to be gone", LIMIT, are_gone);
    }
}

fn kill(mut watch: Watching) {
    signal(&watch.process, Signal::SIGKILL);
    watch.process.wait().expect("its exit status");
}

/// Deletes pods at random moments under watches that are killed at random moments, and between these watches. Returns
/// the UID of a pod that outlives them.
async fn kill_watches(kept: &mut Kept, rng: &mut StdRng) -> BTreeSet<String> {
    let mut slow = BTreeSet::new();
    for round in 0..KILLS {
        let watch = kept.watch();
        if round == 4 {
            let said = watch.read("stderr.log");
            assert!(
                said.contains("ends in the middle of line") && said.contains("that record is lost"),
                "{said}"
            );
        }
        if round == 5 {
            kept.delete("slow").await;
            slow.extend(kept.deleted.keys().filter(|uid| !kept.gone().contains_key(*uid)).cloned());
            kept.settle(&slow).await;
        }
        for _ in 0..rng.random_range(1..4) {
            kept.delete_one().await;
            kept.pass(rng.random_range(0..2000)).await;
        }
        kept.pass(rng.random_range(0..8000)).await;
        kill(watch);
        kept.settle(&slow).await;
        if round % 2 == 0 {
            kept.delete_one().await;
            kept.settle(&slow).await;
        }
        if round == 3 {
            let last = files(&kept.history).pop().expect("a file");
            let mut file = OpenOptions::new().append(true).open(last).expect("a file");
            file.write_all(b"{\"schema_version\":1,\"recor").expect("a torn line");
        }
    }
    slow
}

/// Compares the history and its reports with what the test did.
fn compare(kept: &Kept) {
    let (records, gone) = (records(&kept.history), kept.gone());
    let of = |kind: &str| records.iter().filter(|record| record["kind"] == *kind).collect::<Vec<_>>();
    let ends = of("termination");
    for end in &ends {
        let (sent, answered) = kept
            .deleted
            .get(&text(&end["uid"]))
            .unwrap_or_else(|| panic!("the test did not delete this pod: {end}"));
        let at = |name: &str| end[name].as_i64().expect("a time");
        assert!(
            at("t0_earliest_ns") <= *answered && *sent <= at("t0_latest_ns"),
            "{sent} to {answered}: {end}"
        );
    }
    let recorded: BTreeSet<String> = ends.iter().map(|end| text(&end["uid"])).collect();
    assert_eq!(recorded.len(), ends.len(), "no termination is recorded twice: {ends:#?}");
    let watched = spans(of("watched"));
    for (uid, at) in &gone {
        assert!(recorded.contains(uid) || !is_in(&watched, *at), "{uid} at {at} is missing: {watched:?}");
    }

    let report: Value = serde_json::from_str(&kept.report("json")).expect("JSON");
    assert_eq!(report["terminations"], json!(ends.len()), "{report}");
    let scope = &report["watched"][0];
    assert_eq!(
        (&scope["namespace"], report["watched"].as_array().map(Vec::len)),
        (&json!("default"), Some(1))
    );
    let unwatched = spans(scope["unwatched"].as_array().expect("spans"));
    let missing: Vec<i64> =
        gone.iter().filter(|(uid, _)| !recorded.contains(*uid)).map(|(_, at)| *at).collect();
    assert!(missing.len() >= (KILLS / 2) as usize, "{missing:?}");
    let from = report["from_ns"].as_i64().expect("a time");
    let is_said = |at: &i64| *at < from || is_in(&unwatched, *at);
    assert!(missing.iter().all(is_said), "{missing:?}: {unwatched:?}");
    let share = scope["share"].as_f64().expect("a share");
    assert!(share > 0.0 && share < 1.0, "{scope}");

    let said = kept.report("text");
    // The docs show this output as an example.
    println!("{said}");
    for part in [
        format!("{} terminations of 2 workloads from ", ends.len()),
        "namespace default: watched for ".to_owned(),
        "not watched from ".to_owned(),
        "default Deployment steady".to_owned(),
    ] {
        assert!(said.contains(&part), "{part}\n{said}");
    }
    judge(&kept.history);
    let html = kept.report("html");
    assert!(html.starts_with("<!DOCTYPE html>") && html.contains("default Deployment steady"), "{html}");
    assert!(!html.contains("src=\"http") && !html.contains("href=\"http"), "{html}");
    assert!(kept.report("markdown").contains("| default Deployment steady |"));
}

/// Judges a history with periods in which no watch ran.
fn judge(history: &Path) {
    let gate = |args: &[&str]| Rolldrop::new(["gate"]).args([history]).args(args).finish();
    gate(&["--set", "expect.terminations.min=1", "--workload", "default/steady"]).expect_code(0);
    let said = gate(&["--set", "expect.killed.max=0"]).expect_code(3).stdout();
    assert!(said.contains("killed.max: at least 0 (limit at most 0): for "), "{said}");
    let said = gate(&["--workload", "default/staedy"]).expect_code(2).stderr();
    assert!(said.contains("no termination of default/staedy; it has default/steady"), "{said}");
}

#[test]
fn history_survives_killed_watches() {
    on_with("userspace", json!({}), async |lab| {
        let dir = tempfile::tempdir().expect("a directory");
        let release = dir.path().join("release");
        lab.create(DEPLOYMENTS, &deployment("steady", 3, 20, &shell("app", PROMPT))).await;
        let script = format!(
            "trap 'while ! [ -e {} ]; do sleep 0.05; done; exit 0' TERM; while :; do sleep 0.05; done",
            release.display()
        );
        run(
            &lab,
            "slow",
            json!({"terminationGracePeriodSeconds": 600, "containers": [shell("app", &script)]}),
        )
        .await;
        ready_pods(&lab, "steady", 3).await;
        let mut kept = Kept::new(lab, &dir.path().join("history"));
        let seed = u64::try_from(now_ns()).expect("a time");
        println!("seed {seed}");
        kill_watches(&mut kept, &mut StdRng::seed_from_u64(seed)).await;

        let mut watch = kept.watch();
        let said = watch.read("stderr.log");
        assert!(said.contains("continues; no watch is known to have run from "), "{said}");
        let said = kept.refused(&kept.history).stderr();
        assert!(said.contains("another `rolldrop watch` is writing to "), "{said}");
        fs::write(&release, "").expect("a file");
        kept.delete_one().await;
        watch.terminations("Deployment steady", 1);
        let is_over = || watch.lines("termination").iter().any(|end| end["pod"] == "slow").then_some(());
        wait_for("the slow pod", LIMIT, is_over);
        watch.end();
        compare(&kept);

        let elsewhere = dir.path().join("elsewhere");
        fs::create_dir(&elsewhere).expect("a directory");
        let other = json!({"schema_version": 1, "recorded_ns": 1, "kind": "watched", "from_ns": 1, "to_ns": 2,
            "namespace": null, "cluster": "another one", "of_tomorrow": true});
        fs::write(elsewhere.join("terminations-000001.jsonl"), format!("{other}\n")).expect("a file");
        let said = kept.refused(&elsewhere).stderr();
        assert!(said.contains("contains the history of another one: choose another directory"), "{said}");
        let said = kept.refused(&release.join("below")).stderr();
        assert!(said.contains("failed to open the history in "), "{said}");
    });
}

/// A pod that was shut down with its node is not deleted, so a later watch sees it again.
#[test]
fn history_lists_remaining_pod_once() {
    on_with("userspace", json!({"nodes": 2}), async |lab| {
        let dir = tempfile::tempdir().expect("a directory");
        let app = json!({"nodeName": "node-2", "containers": [shell("app", PROMPT)]});
        run(&lab, "remains", app).await;
        run(&lab, "goes", json!({"nodeName": "node-1", "containers": [shell("app", PROMPT)]})).await;
        let are_running = |seen: &[crate::termination::lab::Seen]| {
            let is_running = |name: &str| {
                seen.iter().any(|seen| seen.name() == name && seen.object["status"]["phase"] == "Running")
            };
            (is_running("remains") && is_running("goes")).then_some(())
        };
        lab.until("default", "the pods", are_running).await;
        let mut kept = Kept::new(lab, &dir.path().join("history"));
        let watch = kept.watch();
        let down = kept.lab.call("POST", "/api/v1/nodes/node-2/proxy/shutdown?grace=5", None).await;
        assert!(down.status < 300, "{down:?}");
        wait_for("the pod's termination", LIMIT, || (!watch.lines("termination").is_empty()).then_some(()));
        assert_eq!(watch.lines("termination")[0]["mode"], "node_shutdown");
        kill(watch);

        let mut watch = kept.watch();
        kept.delete("goes").await;
        let is_over = || watch.lines("termination").iter().any(|end| end["pod"] == "goes").then_some(());
        wait_for("the other pod's termination", LIMIT, is_over);
        watch.end();
        let all = records(&kept.history);
        let pods: Vec<_> = all.iter().filter(|of| of["kind"] == "termination").map(|of| &of["pod"]).collect();
        assert_eq!(pods, ["remains", "goes"], "{all:#?}");
        assert_eq!(watch.lines("summary")[0]["terminations"], 1);
    });
}
