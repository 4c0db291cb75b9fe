//! A container's first process is process 1. The tests compare its handling of signals with that of process 1 in a
//! PID namespace made by the test, and cover signals that a hook may send.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::harness::{LIMIT, Process, VENV, process_tree, wait_for};
use crate::pods::{self, PODS, log_of, log_with, on, wait_for_async};
use crate::termination::lab::{Lab, Seen};

const SIGNALS: [Signal; 9] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGHUP,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGSTOP,
    Signal::SIGKILL,
];

const SERVERS: [&str; 5] = ["sh", "bash", "node", "python", "ours"];

/// Time that a server has to exit after a signal, before it is killed.
const GRACE: Duration = Duration::from_secs(12);

/// Returns a command that prints `up` once its signal handlers are set. The last word of the command is a mark.
fn server(name: &str, mark: &str) -> Vec<String> {
    let venv = |program: &str| format!("{VENV}/{program}");
    let shell = "echo up; while :; do sleep 0.05; done";
    let node = "require('http').createServer().listen(0, '127.0.0.1', () => console.log('up'))";
    let python = "from http.server import *\n\
                  server = HTTPServer(('127.0.0.1', 0), BaseHTTPRequestHandler)\n\
                  print('up', flush=True)\n\
                  server.serve_forever()";
    let binary = env!("CARGO_BIN_EXE_rolldrop");
    let ours = "workload --listen 127.0.0.1:0 --on-sigterm exit --log - --pod-name";
    let words: Vec<String> = match name {
        "node" => vec![venv("node"), "-e".into(), node.into()],
        "python" => vec![venv("python"), "-c".into(), python.into()],
        "ours" => [binary].into_iter().chain(ours.split(' ')).map(str::to_owned).collect(),
        shell_name => vec![shell_name.into(), "-c".into(), shell.into()],
    };
    words.into_iter().chain([mark.to_owned()]).collect()
}

/// Returns true if the line shows that the server is up.
fn is_up(line: &str) -> bool {
    line.contains("up") || line.contains("listening")
}

fn mark(server: &str, signal: Signal) -> String {
    format!("{server}-{}", signal.as_str().to_lowercase())
}

/// Returns the process whose last argument is this mark.
fn marked<'a>(tree: &'a [Process], mark: &str) -> Option<&'a Process> {
    tree.iter().find(|process| process.arguments().last().is_some_and(|last| last == mark))
}

/// Returns the fate of a real process 1: `stopped`, or `exit CODE`, after SIGKILL if it does not exit otherwise.
/// Process 1 is the first child of the process that `unshare` runs; a shell reports its status.
fn really(server_name: &str, signal: Signal) -> String {
    let mark = format!("real-{}", mark(server_name, signal));
    let mut command = Command::new("unshare");
    if !nix::unistd::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command.args(["--pid", "sh", "-c", r#""$@"; echo "exit $?""#, "sh"]);
    // Signal dispositions are as under a container runtime, whatever the test inherited.
    command.args(["env", "--default-signal=HUP,INT,QUIT"]).args(server(server_name, &mark));
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut shell = command.spawn().expect("util-linux");
    let (said, lines) = mpsc::channel();
    let stdout = BufReader::new(shell.stdout.take().expect("its stdout"));
    thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| said.send(line)));
    lines.iter().find(|line| is_up(line)).unwrap_or_else(|| panic!("{mark} is not up"));
    let tree = process_tree(shell.id());
    let first = marked(&tree[1..], &mark).expect("process 1");
    first.signal(signal);
    let became = if signal == Signal::SIGSTOP {
        let stopped = || first.is_stopped().then(|| "stopped".to_owned());
        let became = wait_for(&mark, LIMIT, stopped);
        first.kill();
        became
    } else {
        let is_end = |line: &String| line.starts_with("exit ");
        let deadline = Instant::now() + GRACE;
        let by_itself = std::iter::from_fn(|| {
            lines.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
        })
        .find(is_end);
        by_itself.unwrap_or_else(|| {
            first.kill();
            lines.iter().find(is_end).expect("an exit status")
        })
    };
    shell.wait().expect("its exit status");
    became
}

/// Returns the fate of a container's first process when it gets the signal as its stop signal.
async fn in_the_lab(lab: &Lab, server_name: &str, signal: Signal) -> String {
    let mark = mark(server_name, signal);
    // The process must not be killed before the signal alone has ended or stopped it.
    let grace = match signal {
        Signal::SIGKILL | Signal::SIGSTOP => 10 * LIMIT.as_secs(),
        _ => GRACE.as_secs(),
    };
    let container = json!({
        "name": "app", "image": "host", "command": server(server_name, &mark),
        "lifecycle": {"stopSignal": signal.as_str()},
    });
    let spec = json!({
        "os": {"name": "linux"}, "restartPolicy": "Never", "terminationGracePeriodSeconds": grace,
        "containers": [container],
    });
    pods::run(lab, &mark, spec).await;
    wait_for_async(async || log_of(lab, &mark, "app").is_some_and(|log| is_up(&log))).await;
    lab.call("DELETE", &format!("{PODS}/{mark}"), None).await;
    if signal == Signal::SIGSTOP {
        let tree = || process_tree(lab.pid());
        wait_for_async(async || marked(&tree(), &mark).is_some_and(Process::is_stopped)).await;
        return "stopped".to_owned();
    }
    let code = |seen: &[Seen]| {
        let pods = seen.iter().filter(|seen| seen.kind() == "Pod" && seen.name() == mark);
        let mut states = pods.map(|seen| &seen.object["status"]["containerStatuses"][0]["state"]);
        states.find_map(|state| state["terminated"]["exitCode"].as_i64())
    };
    format!("exit {}", lab.until("default", &mark, code).await)
}

/// Returns true if the lab reports that a real process 1 would have a different fate from the pod's.
fn is_told(lab: &Lab, cell: &(&str, &str)) -> bool {
    let pod = format!("{}-{}", cell.0, cell.1.to_lowercase());
    lab.seen("default").iter().any(|seen| {
        let event = &seen.object;
        event["reason"] == "NotModelled" && event["involvedObject"]["name"] == pod.as_str()
    })
}

/// Fate of each server after each signal.
type Table = BTreeMap<(&'static str, &'static str), String>;

fn cells() -> impl Iterator<Item = (&'static str, Signal)> {
    SERVERS.into_iter().flat_map(|server| SIGNALS.map(|signal| (server, signal)))
}

fn real_table() -> Table {
    let started: Vec<_> = cells()
        .map(|(server, signal)| ((server, signal.as_str()), thread::spawn(move || really(server, signal))))
        .collect();
    started.into_iter().map(|(cell, thread)| (cell, thread.join().expect("a table cell"))).collect()
}

async fn lab_table(lab: &Lab) -> Table {
    let all = cells()
        .map(async |(server, signal)| ((server, signal.as_str()), in_the_lab(lab, server, signal).await));
    futures::future::join_all(all).await.into_iter().collect()
}

#[test]
fn first_process_handles_signals_like_init() {
    let real = real_table();
    for ((server, signal), became) in &real {
        println!("{server} {signal}: {became}");
    }
    for dataplane in ["kernel", "userspace"] {
        on(dataplane, async |lab| {
            let ours = lab_table(&lab).await;
            let differs = |cell: &&(&'static str, &'static str)| ours[*cell] != real[*cell];
            let said = |cell| format!("{cell:?}: {}, really {}", ours[cell], real[cell]);
            let (told, silent): (Vec<_>, Vec<_>) =
                real.keys().filter(differs).partition(|cell| is_told(&lab, cell));
            assert!(
                silent.is_empty(),
                "{dataplane}: {:#?}",
                silent.into_iter().map(said).collect::<Vec<_>>()
            );
            // The handler re-raises the signal, which kills any process except process 1.
            let gives_back: &[_] =
                if dataplane == "kernel" { &[] } else { &[("node", "SIGINT"), ("node", "SIGTERM")] };
            assert!(told.iter().copied().eq(gives_back), "{dataplane}: {told:?}");
        });
    }
}

#[test]
fn hook_signal_reaches_only_own_app() {
    for dataplane in ["kernel", "userspace"] {
        on(dataplane, async |lab| {
            let script = "trap 'echo got QUIT; exit 0' QUIT; trap 'echo got TERM; exit 0' TERM; echo up; \
                          while :; do sleep 0.05; done";
            let mut app = pods::shell("app", script);
            app["lifecycle"] = json!({"preStop": {"exec": {"command": ["kill", "-QUIT", "1"]}}});
            pods::run(&lab, "signalled", json!({"restartPolicy": "Never", "containers": [app]})).await;
            for other in ["beside", "other"] {
                pods::run(&lab, other, json!({"containers": [pods::shell("app", script)]})).await;
                log_with(&lab, other, "app", "up");
            }
            log_with(&lab, "signalled", "app", "up");
            lab.call("DELETE", &format!("{PODS}/signalled"), None).await;
            let deleted = |seen: &[Seen]| {
                seen.iter().any(|seen| seen.event == "DELETED" && seen.name() == "signalled").then_some(())
            };
            lab.until("default", "the end of the pod", deleted).await;
            let events = lab.seen("default");
            let failed: Vec<_> = events
                .iter()
                .filter(|seen| seen.object["reason"] == "FailedPreStopHook")
                .map(|seen| seen.object["message"].as_str().unwrap_or_default())
                .collect();
            let log = log_with(&lab, "signalled", "app", "got");
            if dataplane == "kernel" {
                // The hook kills its own container, and exits with it.
                assert!(log.contains("got QUIT"), "{log}");
            } else {
                assert!(log.contains("got TERM"), "{log}");
                assert!(failed.len() == 1 && failed[0].contains("use the kernel dataplane"), "{failed:?}");
            }
            for other in ["beside", "other"] {
                let log = log_with(&lab, other, "app", "up");
                assert!(!log.contains("got"), "{dataplane}: {log}");
            }
        });
    }
}
