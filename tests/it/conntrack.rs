//! `--evidence conntrack`, compared with the kernel's own record, as written by another program, and the apps' logs.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rolldrop_explain::Analysed;
use rolldrop_explain::timeline::Request;
use rolldrop_record::{EventKind, Outcome, RunDir};

use crate::harness::{LIMIT, Rolldrop, again_while_invalid, wait_for, written};
use crate::kernel::unprivileged;
use crate::runs;
use crate::web::Web;

/// Returns the scenario of a rollout in which only the kernel can name the pods.
fn scenario() -> String {
    let web = Web::new(4).args(&["--on-sigterm", "exit", "--log", "-"]);
    web.scenario(
        "kernel-record",
        "
  cluster: {embedded: {nodes: 1, dataplane: kernel}}
  target: {service: web}
  load: {rate: 200, warmup: 3s, duration: 15s, evidence: conntrack}
  disruptions: [{at: 1s, action: rollingRestart, workload: deployment/web}]
",
    )
}

/// A new connection, as shown by `conntrack -E`.
struct Shown {
    at_s: f64,
    to: String,
    routed_to: String,
}

/// Returns the connections by source port, in chronological order.
fn shown(log: &Path) -> HashMap<u16, Vec<Shown>> {
    let mut all: HashMap<u16, Vec<Shown>> = HashMap::new();
    let log = fs::read_to_string(log).expect("conntrack's output");
    for line in log.lines().filter(|line| line.contains("[NEW]")) {
        let values = |name: &str| -> Vec<&str> {
            line.split_whitespace().filter_map(|word| word.strip_prefix(name)?.strip_prefix('=')).collect()
        };
        let [from, to, sources] = [values("sport"), values("dport"), values("src")];
        let time = line.trim_start().trim_start_matches('[').split(']').next().unwrap_or_default();
        let (Ok(at_s), [_, answers]) = (time.trim().parse(), &sources[..]) else { panic!("{line}") };
        let shown = Shown {
            at_s,
            to: format!("{}:{}", values("dst")[0], to[0]),
            routed_to: format!("{answers}:{}", from[1]),
        };
        all.entry(from[0].parse().expect("a port")).or_default().push(shown);
    }
    all
}

/// Output and messages of the other program, in the directory of the test.
const EVENTS: &str = "conntrack.log";
const MESSAGES: &str = "conntrack.err";

/// Starts another program that records the kernel's connection events on the load's node.
fn listen_beside(dir: &Path) -> Child {
    let kubeconfig = dir.join("run/cluster/kubeconfig");
    let exec = |command: &[&str], out: Stdio, messages: Stdio| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_rolldrop"));
        program.args(["cluster", "exec", "--kubeconfig"]).arg(&kubeconfig).arg("--").args(command);
        program.stdin(Stdio::null()).stdout(out).stderr(messages).spawn().expect("the binary starts")
    };
    wait_for("the cluster", LIMIT, || {
        let enter = || exec(&["true"], Stdio::null(), Stdio::null()).wait().expect("its exit status");
        (kubeconfig.exists() && enter().success()).then_some(())
    });
    let [events, messages] = [EVENTS, MESSAGES].map(|name| File::create(dir.join(name)).expect("a file"));
    // Output is line-buffered.
    let record = ["stdbuf", "-oL", "conntrack", "-E", "-e", "NEW", "-p", "tcp", "-o", "timestamp"];
    exec(&record, events.into(), messages.into())
}

/// Returns the pod whose app answered each request, by request id.
fn answered_by(run: &Path) -> HashMap<String, String> {
    let mut pods = HashMap::new();
    for pod in fs::read_dir(run.join("cluster/pods")).expect("pod logs").flatten() {
        let folder = pod.file_name().to_string_lossy().into_owned();
        let log = written(&fs::read_to_string(pod.path().join("app.log")).expect("a log"));
        for line in log.lines().filter(|line| line.starts_with('{')) {
            let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
            if line["event"] == "answered" && line["id"].is_string() {
                pods.insert(line["id"].as_str().unwrap_or_default().to_owned(), folder.clone());
            }
        }
    }
    pods
}

/// Runs the scenario once beside the other program.
fn run_beside_conntrack() -> tempfile::TempDir {
    let (mut run, dir) = Rolldrop::run(&scenario()).args(["--quiet"]).start();
    let mut listening = listen_beside(dir.path());
    let status = wait_for("the run to exit", LIMIT, || run.try_wait().expect("its state"));
    let _ = listening.kill();
    let _ = listening.wait();
    let said = fs::read_to_string(dir.path().join("stderr.log")).expect("a log");
    // A busy machine makes a run invalid, but the kernel's record is still correct.
    assert!(matches!(status.code(), Some(0 | 3)), "{status}\n{said}");
    dir
}

/// Returns true if the other program says that it missed events, as on a machine so busy that it did not run for a
/// second.
fn has_missed_events(dir: &tempfile::TempDir) -> bool {
    fs::read_to_string(dir.path().join(MESSAGES)).expect("its messages").contains("losing events")
}

/// Runs the scenario, and returns it with all of conntrack's events.
fn measured() -> (runs::Turn, tempfile::TempDir, HashMap<u16, Vec<Shown>>) {
    let turn = runs::turn();
    let dir = again_while_invalid(run_beside_conntrack, has_missed_events);
    assert!(!has_missed_events(&dir), "conntrack missed events in each run");
    let shown = shown(&dir.path().join(EVENTS));
    (turn, dir, shown)
}

#[test]
fn conntrack_identifies_pod_per_connection() {
    let (_turn, dir, shown) = measured();
    let path = dir.path().join("run");
    let (log, tables) = RunDir::open(&path).and_then(|run| run.recorded()).expect("the run reads");
    let ended = log.events.iter().find_map(|event| match &event.kind {
        EventKind::ConntrackEnded { connections, routed, .. } => Some((*connections, *routed)),
        _ => None,
    });
    let (connections, routed) = ended.expect("the kernel's totals");
    let Analysed { timeline, requests, .. } = Analysed::of(log, tables).expect("the rows read");
    let answered_by = answered_by(&path);
    // Connections opened before that program started are not in its log.
    let first_s = shown.values().flatten().map(|shown| shown.at_s).fold(f64::MAX, f64::min);
    let (mut with_entry, mut lost_with_entry, mut confirmed) = (0_u64, 0_u64, 0_u64);
    let mut lost = 0_u64;
    let mut each = |request: &Request| {
        let row = &request.row;
        let (Some(start), Some(port)) = (row.connect_start, row.local_port) else { return };
        let start_s = start.unix_ns() as f64 / 1e9 - 0.001;
        if start_s < first_s {
            return;
        }
        let to = row.remote_addr.as_deref().unwrap_or_default();
        let is_own = |shown: &&Shown| shown.at_s >= start_s && shown.to == to;
        let entry = shown.get(&port).and_then(|all| all.iter().find(is_own));
        let routed_to = row.routed_to.map(|address| address.to_string());
        assert_eq!(routed_to.as_deref(), entry.map(|entry| entry.routed_to.as_str()), "{row:?}");
        lost += u64::from(row.outcome != Outcome::Ok);
        let Some(_) = entry else { return };
        with_entry += 1;
        lost_with_entry += u64::from(row.outcome != Outcome::Ok);
        let pod = request.pod().unwrap_or_else(|| panic!("no pod: {row:?}"));
        assert!(row.pod.is_none(), "the app names itself: {row:?}");
        let id = timeline.info.request_id(row).to_string();
        if let Some(folder) = answered_by.get(&id) {
            assert!(folder.contains(&**pod), "{folder} answered, {pod} is named: {row:?}");
            confirmed += 1;
        }
    };
    requests.in_memory().expect("the rows read").iter().for_each(&mut each);
    assert!(lost > 0 && lost_with_entry > 0, "{lost} lost, {lost_with_entry} with an entry");
    assert!(confirmed > 1_000 && with_entry > confirmed, "{confirmed} of {with_entry}");
    assert!(connections >= with_entry && routed <= connections, "{routed} of {connections}");
    let tracked = timeline.tracked.expect("conntrack data");
    assert!(tracked.gaps.is_empty() && tracked.agreement.disagreed == 0, "{tracked:?}");
    let result = runs::result(&path);
    let says = |finding: &str| result.findings.iter().any(|found| found.what.contains(finding));
    assert!(says("the kernel shows where"), "{:?}", result.findings);
}

#[test]
fn userspace_proxy_refuses_conntrack_evidence() {
    let _turn = runs::turn();
    let args = ["run", "no-sidecar", "--out", "run", "--dataplane", "userspace", "--evidence", "conntrack"];
    let finished = Rolldrop::new(args).finish().expect_code(2);
    assert!(finished.stderr().contains("the Service proxy is in userspace mode"), "{finished}");
    assert!(!finished.stderr().contains("deploying"), "{finished}");
}

#[test]
fn conntrack_load_needs_net_admin() {
    let (program, _dir) = unprivileged();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a listener");
    let url = format!("http://{}/", listener.local_addr().expect("its address"));
    let output =
        program.command().args(["load", &url, "--evidence", "conntrack"]).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("needs CAP_NET_ADMIN"), "{said}");
    assert!(listener.accept().is_err(), "something was sent");
}
