//! Apps that shut down like real apps, most of them on third-party servers. Each report states the lost requests, their
//! cause, and a remedy for this workload, and no sentence in it contradicts the figures. Each app is a row in
//! `docs/findings.md`.
//!
//! The apps are in `servers`; `scripts/venv` installs the programs they need.

use rolldrop_explain::model::FindingText;
use rolldrop_record::Cause;
use serde_json::{Value, json};

use crate::harness::{Finished, Rolldrop, VENV};
use crate::machine::measured;
use crate::runs::{self, Dataplane, MeasuredRun};
use crate::web::Web;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/servers");
const NODE_MODULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/test-venv/node_modules");

/// Connection settings: half of the requests use kept-alive connections.
const MIXED: &str = ", connections: {mode: mixed, share: 0.5}, podHeader: x-pod";
const KEPT: &str = ", connections: {mode: keepalive}, podHeader: x-pod";

/// Command for a Python server with 8 threads.
const GUNICORN: [&str; 5] =
    ["gunicorn", "--bind=0.0.0.0:8080", "--threads=8", "--no-control-socket", "wsgi:app"];

/// Returns three pods with an app from `servers`, run by this command.
fn served_by(command: &[&str]) -> Web {
    let [program, args @ ..] = command else { panic!("a program") };
    let fields = json!({
        "image": "host",
        "command": [format!("{VENV}/{program}")],
        "args": args,
        "workingDir": FOLDER,
        "readinessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 1},
    });
    let variable = |name, value| json!({"name": name, "value": value});
    let web = Web::new(3).named().app(fields);
    web.env(variable("NODE_PATH", NODE_MODULES)).env(variable("PYTHONDONTWRITEBYTECODE", "1"))
}

fn node(ends: &str) -> Web {
    served_by(&["node", "node.js"]).env(json!({"name": "ENDS", "value": ends}))
}

fn sleeps(seconds: u32) -> Value {
    json!({"lifecycle": {"preStop": {"sleep": {"seconds": seconds}}}})
}

fn grace(seconds: u32) -> Value {
    json!({"terminationGracePeriodSeconds": seconds})
}

/// Returns the sample server, which exits as soon as it gets SIGTERM.
fn exits() -> Web {
    Web::new(3).args(&["--on-sigterm=exit"])
}

/// Runs a scenario that restarts the app once under load.
fn restarted(web: &Web, load: &str) -> MeasuredRun {
    let scenario = web.scenario(
        "servers",
        &format!(
            "
  cluster: {{embedded: {{nodes: 1}}}}
  target: {{service: web}}
  load: {{rate: 200, warmup: 1s, duration: 60s{load}}}
  disruptions: [{{at: 2s, action: rollingRestart, workload: deployment/web, until: rolloutComplete}}]
"
        ),
    );
    let run = runs::measure(&scenario, Dataplane::Kernel, &[]);
    println!("{}", run.finished.stdout());
    names_no_gateway(&run);
    has_no_negative_time(&run);
    run
}

/// Returns all findings, as text.
fn said(run: &MeasuredRun) -> String {
    let line = |f: &FindingText| format!("{}: {}: {}: {}\n", f.severity, f.what, f.why, f.remedy);
    run.result.findings.iter().map(line).collect()
}

#[track_caller]
fn says(run: &MeasuredRun, parts: &[&str]) {
    let said = said(run);
    let is_said = said.lines().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(is_said, "no finding contains {parts:?}\n{said}\n{}", run.finished);
}

#[track_caller]
fn says_not(run: &MeasuredRun, part: &str) {
    let said = said(run);
    assert!(!said.contains(part), "{part} in\n{said}\n{}", run.finished);
}

/// Checks that no finding names a gateway.
#[track_caller]
fn names_no_gateway(run: &MeasuredRun) {
    let text = run.finished.stdout();
    assert!(!text.contains("gateway"), "{}", run.finished);
    says_not(run, "gateway");
}

#[track_caller]
fn has_no_negative_time(run: &MeasuredRun) {
    let said = said(run);
    let is_negative = |word: &str| {
        word.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    assert!(!said.split([' ', '(']).any(is_negative), "{said}\n{}", run.finished);
}

/// Returns the number of responses with this status.
fn answered(run: &MeasuredRun, status: u16) -> u64 {
    run.records.requests.iter().filter(|row| row.status == Some(status)).count() as u64
}

fn lost(run: &MeasuredRun, cause: Cause) -> u64 {
    run.result.requests.by_cause.get(&cause).copied().unwrap_or(0)
}

/// Runs the default gate on the run.
fn gate(run: &MeasuredRun) -> Finished {
    Rolldrop::new(["gate".as_ref(), run.path.as_os_str()]).finish()
}

/// Checks that no format of the report suggests a sleep.
#[track_caller]
fn suggests_no_sleep(run: &MeasuredRun) {
    let text = run.finished.stdout();
    assert!(!text.contains("{preStop: {sleep:"), "{}", run.finished);
    says_not(run, "preStop sleep of");
}

#[test]
fn app_errors_during_termination_fail_gate() {
    measured(|| {
        let run = restarted(&node("500").app(sleeps(3)).pod(grace(8)), MIXED);
        let errors = answered(&run, 500);
        assert!(errors > 0, "{}", run.finished);
        assert_eq!(run.result.requests.app_errors_while_ending, errors, "{}", run.finished);
        let of_pods: u64 = run.result.terminations.iter().map(|t| t.app_errors_after_t0.unwrap_or(0)).sum();
        assert_eq!(of_pods, errors, "{}", run.finished);
        says(&run, &["error", &errors.to_string(), "5xx"]);
        let headline = run.finished.stdout().lines().next().unwrap_or_default().to_owned();
        assert!(headline.contains(&errors.to_string()), "{}", run.finished);
        says_not(&run, "no request was dropped");
        let gate = gate(&run);
        let fails = |line: &str| line.starts_with("FAIL") && line.contains("appErrors.whileEnding");
        assert!(gate.code() == Some(1) && gate.stdout().lines().any(fails), "{gate}");
    });
}

#[test]
fn terminating_pod_503s_count_as_refusals() {
    measured(|| {
        let run = restarted(&node("503").app(sleeps(3)).pod(grace(8)), MIXED);
        let refused = answered(&run, 503);
        assert!(refused > 0, "{}", run.finished);
        assert_eq!(lost(&run, Cause::RefusedWhileEnding), refused, "{}", run.finished);
        says(&run, &["refused_while_ending", "503", "Connection: close"]);
        suggests_no_sleep(&run);
    });
}

#[test]
fn closing_fastify_refuses_requests() {
    measured(|| {
        let fastify = served_by(&["node", "fastify.js"]).env(json!({"name": "CLOSING", "value": "2000"}));
        let run = restarted(&fastify, MIXED);
        let refused = answered(&run, 503);
        assert!(refused > 0, "{}", run.finished);
        // Nothing names the pod that a new connection reached. If several pods fit, a refusal has no cause. The number
        // of such refusals depends on how the rollout's pods overlap.
        assert!(lost(&run, Cause::RefusedWhileEnding) > 0, "{}", run.finished);
        assert_eq!(lost(&run, Cause::GatewayError), 0, "{}", run.finished);
        says(&run, &["refused_while_ending", "Connection: close"]);
    });
}

#[test]
fn sigkill_finding_blames_kept_connections() {
    measured(|| {
        let run = restarted(&node("close").pod(grace(5)), KEPT);
        let killed = run.result.terminations.iter().filter(|t| t.exit_code == Some(137)).count();
        assert!(killed > 0, "{}", run.finished);
        says(&run, &["SIGKILL", "open connections", "5 s", "Connection: close"]);
        says_not(&run, "stops as soon as it gets SIGTERM");
        says_not(&run, "set terminationGracePeriodSeconds above");
    });
}

#[test]
fn finding_names_shell_without_exec() {
    measured(|| {
        // Python's built-in server has a queue of only 5 connections, which fills up on a busy machine.
        let server = format!("{VENV}/gunicorn {}; true", GUNICORN[1..].join(" "));
        let shell = served_by(&GUNICORN).app(json!({"command": ["/bin/sh", "-c", server], "args": []}));
        let run = restarted(&shell.pod(grace(8)), "");
        assert!(run.result.terminations.iter().all(|t| t.exit_code == Some(137)), "{}", run.finished);
        says(&run, &["no handler for SIGTERM", "a shell that does not exec", "8 s"]);
        says_not(&run, "stops as soon as it gets SIGTERM");
        assert_eq!(lost(&run, Cause::RoutedToDeadPod), 0, "{}", run.finished);
    });
}

#[test]
fn draining_servers_exit_before_sigkill() {
    measured(|| {
        let run = restarted(&node("drain").app(sleeps(3)), MIXED);
        // An idle connection may be closed just as the client uses it.
        assert_eq!(run.result.requests.dropped, lost(&run, Cause::IdleCloseRace), "{}", run.finished);
        assert!(run.result.terminations.iter().all(|t| t.exit_code == Some(0)), "{}", run.finished);
    });
}

#[test]
fn run_measures_grpc_core_server() {
    measured(|| {
        let probe = json!({"readinessProbe": {"tcpSocket": {"port": "http"}, "periodSeconds": 1}});
        let run =
            restarted(&served_by(&["python", "grpc_echo.py"]).app(probe), ", grpc: {method: test.Echo/Say}");
        assert!(run.result.requests.ok > 500, "{}", run.finished);
        assert!(run.records.requests.iter().any(|row| row.grpc_status == Some(0)), "{}", run.finished);
    });
}

#[test]
fn abrupt_python_servers_get_sleep_remedy() {
    let uvicorn = ["uvicorn", "--host=0.0.0.0", "--port=8080", "--no-access-log", "asgi:app"];
    for server in [&GUNICORN[..], &uvicorn[..]] {
        measured(|| {
            let run = restarted(&served_by(server), MIXED);
            assert!(lost(&run, Cause::RoutedToDeadPod) > 0, "{}", run.finished);
            says(&run, &["routed_to_dead_pod", "preStop sleep of"]);
        });
    }
}

#[test]
fn recreate_strategy_gets_rolling_update_remedy() {
    measured(|| {
        let recreate = exits().deployment(json!({"strategy": {"type": "Recreate"}}));
        let run = restarted(&recreate, "");
        assert!(run.result.requests.dropped > 0, "{}", run.finished);
        says(&run, &["Recreate", "RollingUpdate"]);
        suggests_no_sleep(&run);
        says_not(&run, "PodDisruptionBudget");
        says_not(&run, "preStop sleep that outlasts");
    });
}

#[test]
fn finding_names_failed_pre_stop_hooks() {
    measured(|| {
        let hook = json!({"lifecycle": {"preStop": {"exec": {"command": ["/bin/no-such-sleep", "5"]}}}});
        let run = restarted(&exits().app(hook), "");
        says(&run, &["preStop hook of container app failed", "3 of 3 pods", "/bin/no-such-sleep", "sleep"]);
        says_not(&run, "nothing waits until");
    });
}

#[test]
fn slow_starts_do_not_inflate_sleep() {
    measured(|| {
        let slow = exits().args(&["--listen-after=4s"]).app(json!({
            "readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1},
        }));
        let surge = json!({"strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}});
        let run = restarted(&slow.deployment(surge), "");
        assert!(lost(&run, Cause::NotReadyYet) > 0, "{}", run.finished);
        suggests_no_sleep(&run);
        says(&run, &["not_ready_yet", "readinessProbe"]);
    });
}
