//! A load sent by pods in the cluster: an Indexed Job of workers.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Child;

use http::Request;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use rolldrop_explain::model::Mode;
use rolldrop_record::run_info::Role;
use rolldrop_record::{EventKind, Outcome, RunDir};
use serde_json::json;

use crate::harness::{LIMIT, Process, Rolldrop, process_tree, wait_for};
use crate::lab::Setup;
use crate::machine::measured;
use crate::runs::{self, Dataplane, json_lines, result, turn};
use crate::web::Web;

/// Returns a scenario with three pods behind a Service on two nodes, and a worker on each node.
fn scenario() -> String {
    web().scenario("from-the-cluster", FROM_CLUSTER)
}

fn web() -> Web {
    Web::new(3).pod(json!({"terminationGracePeriodSeconds": 2}))
}

const FROM_CLUSTER: &str = "
  cluster: {embedded: {nodes: 2}}
  target: {service: web}
  load: {rate: 100, duration: 14s, from: cluster}
  sidecar: {inject: true}
  disruptions:
  - {at: 2s, action: deletePod, selector: app=web, every: 4s, repeat: 2}
  - {at: 10s, action: drain, node: node-2, allowOutage: true}
";

#[test]
fn cluster_load_has_consumer_per_node() {
    measured(|| {
        let run = runs::measure(&scenario(), Dataplane::Kernel, &[]);
        let info = &run.records.info;
        let load = |name: &str| info.sources.iter().any(|s| s.name == name && s.role == Role::Load);
        assert!(load("load-0") && load("load-1"), "{:?}", info.sources);
        for source in info.sources.iter().filter(|source| source.role == Role::Load) {
            let uncertainty_ns = source.clock_uncertainty_ns.expect("a measured uncertainty");
            run.finished.figure(uncertainty_ns < 100_000_000);
        }
        let targets: Vec<_> = info.targets.iter().map(|t| (t.name.as_str(), t.consumer.as_str())).collect();
        let consumers = [
            ("web@node-1", "Service web (Service proxy of node node-1)"),
            ("web@node-2", "Service web (Service proxy of node node-2)"),
        ];
        assert_eq!(targets, consumers);

        // Every scheduled request has a row from exactly one worker, and that row was handed over.
        for source in info.sources.iter().filter(|source| source.role == Role::Load) {
            let rows = source.rows.expect("the rows were handed over");
            assert_eq!((rows.recorded, rows.received), (Some(700), 700), "{source:?}");
        }
        assert!(!run.path.join("live").exists(), "rows sent earlier are in the parts");
        assert_eq!(run.records.requests.len(), 1400);
        let of = |source: &str| run.records.requests.iter().filter(|row| &*row.source == source).count();
        assert_eq!((of("load-0"), of("load-1")), (700, 700));
        let seen: BTreeSet<_> = run.records.requests.iter().map(|row| (&*row.source, &*row.target)).collect();
        assert_eq!(seen.len(), 2, "each worker runs on one node: {seen:?}");
        let r = &run.result.requests;
        assert_eq!(r.total, 1400);
        assert_eq!(r.total, r.ok + r.dropped + r.app_errors + r.not_sent + r.cancelled, "{r:?}");
        assert_eq!(r.dropped, r.in_window + r.outside_window, "{r:?}");

        // Draining a node does not affect the load worker on it.
        let of_mode = |mode| run.result.terminations.iter().filter(move |t| t.mode == mode);
        assert!(of_mode(Mode::Drain).count() >= 1, "{}", run.finished);
        // On a slow machine, the second deletion may be skipped, or overlap with the drain.
        let deleted = run.result.terminations.iter().filter(|t| t.mode != Mode::Drain);
        assert!(deleted.clone().count() >= 1, "{}", run.finished);
        for termination in deleted {
            let windows: Vec<_> = termination.windows.iter().map(|w| w.consumer.as_str()).collect();
            assert_eq!(windows, consumers.map(|(_, consumer)| consumer));
            for window in &termination.windows {
                println!("{window:?}");
                assert!(window.upper_s.is_none_or(|upper| window.lower_s <= Some(upper)), "{window:?}");
                run.finished
                    .figure(window.rate_before > 5.0 && window.upper_s.is_some_and(|upper| upper < 4.0));
            }
        }
        let changes = fs::read_to_string(run.path.join("changes.jsonl")).expect("changes.jsonl");
        for removed in ["Job rolldrop-load-from-the-cluster-", "Secret rolldrop-load-from-the-cluster-"] {
            let undone = changes.lines().any(|line| {
                line.contains("\"undone\"")
                    && line.contains(removed)
                    && (line.contains("removed") || line.contains("gone"))
            });
            assert!(undone, "{removed}: {changes}");
        }
    });
}

/// Returns the load worker with this index among a process's descendants.
fn worker_of(child: &Child, index: &str) -> Option<Process> {
    let tree = process_tree(child.id());
    tree.into_iter().find(|process| {
        process.runs("load-worker") && process.variable("JOB_COMPLETION_INDEX").as_deref() == Some(index)
    })
}

fn said(dir: &Path) -> String {
    fs::read_to_string(dir.join("stderr.log")).unwrap_or_default()
}

/// Returns the number of requests, out of `of`, that were due according to the last progress line.
fn sent(dir: &Path, of: u64) -> u64 {
    let (said, of) = (said(dir), format!("/{of} requests"));
    let last = said.lines().rev().find_map(|line| line.split_once(&of));
    last.and_then(|(before, _)| before.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}

#[test]
fn load_pods_return_stream_records() {
    let from_cluster = "
  cluster: {embedded: {nodes: 1}}
  target: {service: web, path: '/events?length=fixed:200ms'}
  load: {rate: 40, duration: 3s, from: cluster, stream: {kind: sse}}
";
    let scenario = web().scenario("streams-from-the-cluster", from_cluster);
    measured(|| {
        let run = runs::measure(&scenario, Dataplane::Kernel, &[]);
        let ids = |sources: &mut dyn Iterator<Item = (&str, u64)>| {
            sources.map(|(s, n)| (s.to_owned(), n)).collect()
        };
        let records = &run.records;
        let requests: BTreeSet<_> = ids(&mut records.requests.iter().map(|row| (&*row.source, row.seq)));
        let streams: BTreeSet<_> = ids(&mut records.streams.iter().map(|row| (&*row.source, row.seq)));
        assert_eq!((requests.len(), &streams), (120, &requests));
        assert!(records.streams.iter().all(|row| row.events > 0), "{:?}", records.streams);
        let counted = run.result.streams.as_ref().expect("streams");
        run.finished.figure((counted.total, counted.ok) == (120, 120));
    });
}

#[test]
fn dead_load_worker_does_not_stop_others() {
    let _turn = turn();
    let run = Rolldrop::run(&scenario()).on(Dataplane::Kernel);
    let (mut child, dir) = run.set(&["load.duration=8s", "disruptions=[]"]).start();
    let run_dir = dir.path().join("run");
    wait_for("the load", LIMIT, || (sent(dir.path(), 800) >= 250).then_some(()));
    worker_of(&child, "1").expect("the second worker").kill();
    let status = wait_for("the run to exit", LIMIT, || child.try_wait().expect("its state"));
    let said = said(dir.path());
    assert_eq!(status.code(), Some(3), "{said}");
    let named =
        said.lines().find(|line| line.contains("lost load worker")).unwrap_or_else(|| panic!("{said}"));
    assert!(named.contains("load worker rolldrop-load-from-the-cluster-"), "{named}");
    assert!(named.contains("(load-1): its container exited with code 137"), "{named}");

    let records = RunDir::open(&run_dir).and_then(|run| run.read()).expect("the run directory reads");
    let of = |source: &str| records.requests.iter().filter(|row| &*row.source == source).count();
    assert_eq!(of("load-0"), 400, "the other worker completes its share\n{said}");
    assert!(of("load-1") < 400);
    let killed = records.info.sources.iter().find(|source| source.name == "load-1").and_then(|s| s.rows);
    let killed = killed.expect("its row counts");
    assert!(killed.recorded.is_none() && killed.known > 0, "{killed:?}");
    assert_eq!(killed.received, of("load-1") as u64, "received rows are kept");
    let warned = |kind: &EventKind| matches!(kind, EventKind::Warning { message } if message.contains("lost load worker"));
    assert!(records.events.iter().any(|event| warned(&event.kind)));
    // The result contains the outcomes of the other requests and all other figures.
    let result = result(&run_dir);
    let requests = &result.requests;
    assert_eq!(requests.total, 400 + killed.received, "{requests:?}");
    let without: Vec<_> = requests.without_rows.keys().map(String::as_str).collect();
    assert_eq!(without, ["load-1"]);
    let by_count = &requests.without_rows["load-1"];
    assert_eq!(by_count.values().sum::<u64>(), killed.known - killed.received, "{by_count:?}");
    let told = serde_json::to_string(&result).expect("JSON");
    let (_, arrived) = told.split_once(&format!("rows arrived for {} of ", killed.received)).expect(&told);
    let (_, mostly) = arrived.split_once(" requests from ").expect(&told);
    assert!(mostly.starts_with("load-1, mostly for those that were not ok"), "{told}");
    assert!(told.contains(&format!(
        "only these counts arrived, which no figure includes: {} ok",
        by_count[&Outcome::Ok]
    )));
}

#[test]
fn unready_load_workers_abort_run() {
    // On this dataplane, pods cannot mount anything.
    let run = Rolldrop::run(&scenario()).on(Dataplane::Userspace);
    let finished = run.set(&["load.job.startLimit=3s", "sidecar.inject=false"]).finish().expect_code(2);
    let said = finished.stderr();
    assert!(said.contains("no load worker became ready within 3s: load worker rolldrop-load-"), "{said}");
    assert!(said.contains("FailedMount"), "{said}");
    let run = finished.dir().join("run");
    let disrupted = json_lines(&run.join("events.jsonl")).into_iter().any(|event| event["kind"] == "action");
    assert!(!disrupted && !run.join("run.json").exists(), "{finished}");
    let changes = json_lines(&run.join("changes.jsonl"));
    let of = |kind: &str| changes.iter().filter(move |line| line["entry"] == kind).count();
    assert!(of("change") >= 5 && of("change") == of("undone"), "{changes:?}");
}

#[test]
fn cleanup_removes_orphaned_load_workers() {
    let _turn = turn();
    let cluster = Setup::on(Dataplane::Kernel).nodes(2).start();
    let text = fs::read_to_string(cluster.kubeconfig()).expect("a kubeconfig");
    let real = cluster.kubeconfig_as_of_a_real_one();
    let would_make_a_job = |target: &str, config: &str| {
        let run = Rolldrop::new(["run", "--dry-run", "--kubeconfig", "config", "--target", target]);
        run.file("config", config)
            .finish()
            .expect_code(0)
            .stdout()
            .contains("an Indexed Job of 2 load workers")
    };
    cluster.kubectl("create service clusterip web --tcp=80:8080");
    assert!(would_make_a_job("svc/web", &real));
    assert!(!would_make_a_job("http://web.example/", &real));
    assert!(!would_make_a_job("svc/web", &text));
    cluster.kubectl("delete service web");
    let (mut child, dir) = cluster.run(&scenario()).set(&["cluster=null"]).start();
    wait_for("the load", LIMIT, || said(dir.path()).contains("/1400 requests").then_some(()));
    let workers = || {
        let tree = process_tree(cluster.pid());
        tree.into_iter().filter(|process| process.runs("load-worker")).count()
    };
    assert_eq!(workers(), 2);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let secrets = runtime.block_on(async {
        let secrets = Api::<Secret>::default_namespaced(cluster.client().await);
        secrets
            .list(&ListParams::default().labels("rolldrop.dev/component=load"))
            .await
            .expect("a list")
            .items
    });
    let owners: Vec<_> = secrets.iter().flat_map(ResourceExt::owner_references).collect();
    assert!(matches!(&owners[..], [job] if job.kind == "Job"), "it is deleted with the Job: {owners:?}");
    child.kill().expect("it exists");
    child.wait().expect("its exit status");
    assert_eq!(workers(), 2, "the workers have not noticed yet");
    let cleanup = Rolldrop::new(["cleanup"]).args([dir.path().join("run")]).finish().expect_code(0);
    let said = cleanup.stdout() + &cleanup.stderr();
    assert!(said.contains("Job rolldrop-load-from-the-cluster-"), "{said}");
    wait_for("the workers to be gone", LIMIT, || (workers() == 0).then_some(()));
}

#[test]
fn run_skips_unready_workers_and_lets_others_dial_in() {
    let _turn = turn();
    let cluster = Setup::on(Dataplane::Kernel).nodes(3).start();
    let kubeconfig = cluster.kubeconfig();
    // Nothing starts the pod on the third node, and nothing terminates it before the run removes it.
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let client = runtime.block_on(cluster.client());
    let ask = async |client: &kube::Client, what: &str| {
        let path = format!("/api/v1/nodes/node-3/proxy/{what}");
        client.request_text(Request::post(path).body(Vec::new()).expect("a request")).await
    };
    runtime.block_on(ask(&client, "stop")).expect("the agent stops");
    let handle = runtime.handle().clone();
    let back = std::thread::spawn(move || {
        let pods: Api<Pod> = Api::all(client.clone());
        let on_node = ListParams::default().fields("spec.nodeName=node-3");
        wait_for("the removal of the pod there", LIMIT, || {
            let pods = handle.block_on(pods.list(&on_node)).expect("the pods");
            pods.iter().any(|pod| pod.metadata.deletion_timestamp.is_some()).then_some(())
        });
        handle.block_on(ask(&client, "restart")).expect("the agent is back");
    });
    let scenario = web().pod(json!({"nodeName": "node-1"})).scenario("from-the-cluster", FROM_CLUSTER);
    // The run is on a node of the cluster, which pods can connect to.
    let inside = ["cluster", "exec", "--kubeconfig"].map(OsStr::new);
    let run = ["--", env!("CARGO_BIN_EXE_rolldrop"), "run", "scenario.yaml", "--out", "run", "--yes"];
    let settings = ["cluster=null", "load.duration=5s", "disruptions=[]", "load.job.startLimit=8s"];
    let settings = settings.into_iter().flat_map(|setting| ["--set", setting]);
    let listen = ["--collect-listen", "10.0.0.1:0", "--kubeconfig", "inside"];
    // Inside, the API server has the address that pods use.
    let server = cluster.ready()["server"].as_str().expect("its URL");
    let as_inside =
        fs::read_to_string(&kubeconfig).expect("a kubeconfig").replace(server, "https://10.96.0.1");
    let look = ["--", "curl", "-sk", "https://10.96.0.1/version"];
    let look = || Rolldrop::new(inside).args([&kubeconfig]).args(look).finish();
    wait_for("the API server's Service", LIMIT, || look().stdout().contains("kind").then_some(()));
    let finished = Rolldrop::new(inside)
        .args([&kubeconfig])
        .args(run)
        .args(settings)
        .args(listen)
        .file("inside", &as_inside)
        .file("scenario.yaml", &scenario)
        .finish();
    back.join().expect("the agent is back");
    let records = RunDir::open(&finished.dir().join("run")).and_then(|run| run.read());
    let records = records.unwrap_or_else(|e| panic!("{e}\n{finished}"));
    let loads = records.info.sources.iter().filter(|source| source.role == Role::Load);
    let rows: Vec<_> = loads.filter_map(|source| source.rows).map(|r| (r.recorded, r.received)).collect();
    // The other pods sent the requests intended for the pod on the third node.
    assert_eq!(rows, [(Some(250), 250), (Some(250), 250)], "{finished}");
    assert_eq!(records.requests.len(), 500, "{finished}");
    let warned = records.events.iter().filter_map(|event| match &event.kind {
        EventKind::Warning { message } if message.contains("is not ready") => Some(message.as_str()),
        _ => None,
    });
    let warned: Vec<_> = warned.collect();
    let [one] = warned[..] else { panic!("{warned:?}\n{finished}") };
    assert!(one.contains("node-3") && one.ends_with("; the other workers send its share"), "{one}");
    assert!(finished.stderr().contains("the load comes from 2 pods, on node-1, node-2"), "{finished}");
    assert!(finished.dir().join("run/latency.hlog").is_file() && !finished.dir().join("run/live").exists());
}
