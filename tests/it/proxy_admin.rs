//! The admin port of the recording proxy, as a process: what it tells, whom, and where.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::harness::{Rolldrop, cpu_s, fed, wait_for};
use crate::sample_server::{LIMIT, Server};

/// A proxy that runs.
struct Proxy {
    child: Child,
    data: SocketAddr,
    admin: SocketAddr,
    _dir: tempfile::TempDir,
}

impl Proxy {
    fn start(upstream: &str, admin: &str, token: &str) -> Self {
        let args =
            ["proxy", "--listen", "127.0.0.1:0", "--upstream", upstream, "--admin", admin, "--pod", "web-1"];
        let (mut command, token_file) = (Rolldrop::new(args), "token.txt");
        if !token.is_empty() {
            command = command.file(token_file, token).args(["--admin-token-file", token_file]);
        }
        let (child, dir) = command.start();
        let [data, admin] = wait_for("its ports", LIMIT, || {
            let said = std::fs::read_to_string(dir.path().join("stderr.log")).ok()?;
            let (_, said) = said.lines().next()?.split_once("proxy on ")?;
            let (data, admin) = said.split_once(", admin on ")?;
            Some([data.parse().ok()?, admin.parse().ok()?])
        });
        Self { child, data, admin, _dir: dir }
    }

    fn admin(&self, path: &str) -> (u16, String) {
        get(self.admin, path, "")
    }

    /// The metrics as Prometheus' own client library reads them.
    fn metrics(&self) -> Value {
        let (status, text) = self.admin("/metrics");
        assert_eq!(status, 200, "{text}");
        let python = concat!(env!("CARGO_MANIFEST_DIR"), "/target/test-venv/bin/python");
        let output = fed(Command::new(python).args(["-c", PARSE]), &text);
        assert!(output.status.success(), "{text}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// How many requests ended so in a phase.
    fn count(&self, outcome: &str, phase: &str) -> f64 {
        let labels = json!({"outcome": outcome, "phase": phase});
        let metrics = self.metrics();
        let samples = metrics["rolldrop_proxy_requests"]["samples"].as_array().cloned().expect("samples");
        let sample = samples.iter().find(|sample| sample[1] == labels);
        sample.unwrap_or_else(|| panic!("no {labels}")).as_array().expect("three")[2]
            .as_f64()
            .expect("a number")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"));
        // It may have ended already.
        let _ = kill(pid, Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

/// By family: its type, its help, and its samples, each with name, labels and value.
const PARSE: &str = r"
import json, sys
from prometheus_client.parser import text_string_to_metric_families
families = text_string_to_metric_families(sys.stdin.read())
print(json.dumps({
    family.name: {
        'type': family.type,
        'help': family.documentation,
        'samples': [[sample.name, sample.labels, sample.value] for sample in family.samples],
    } for family in families
}))
";

/// By which the app writes a request down.
const ID: &str = "rolldrop-id: t-1\r\n";

/// Status and body of what an address answers.
fn get(address: SocketAddr, path: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n").expect("sent");
    let mut answer = String::new();
    // One that is reset has no answer.
    let _ = stream.read_to_string(&mut answer);
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status, body.to_owned())
}

#[test]
fn prometheus_reads_requests_by_outcome_and_phase_and_a_latency_histogram() {
    let mut app = Server::start("exit", &[]);
    let proxy = Proxy::start(&app.address, "127.0.0.1:0", "");
    let ask = |times: usize| {
        for _ in 0..times {
            get(proxy.data, "/", "");
        }
    };
    ask(5);
    wait_for("the rows", LIMIT, || (proxy.count("complete", "serving") == 5.0).then_some(()));
    assert_eq!(proxy.admin("/prestop").0, 200);
    ask(3);
    wait_for("the rows", LIMIT, || (proxy.count("complete", "pre_stop") == 3.0).then_some(()));
    app.signal(Signal::SIGTERM);
    app.end();
    ask(2);
    wait_for("the rows", LIMIT, || (proxy.count("upstream_refused", "listener_closed") == 2.0).then_some(()));

    let metrics = proxy.metrics();
    let kinds = [
        ("rolldrop_proxy_requests", "counter"),
        ("rolldrop_proxy_request_duration_seconds", "histogram"),
        ("rolldrop_proxy_rejected", "counter"),
        ("rolldrop_proxy_rows_handed_over", "counter"),
        ("rolldrop_proxy_rows_dropped", "counter"),
        ("rolldrop_proxy_unrecorded", "counter"),
        ("rolldrop_proxy_in_flight", "gauge"),
        ("rolldrop_proxy_connections", "gauge"),
        ("rolldrop_proxy_held_bytes", "gauge"),
        ("rolldrop_proxy_phase", "gauge"),
    ];
    assert_eq!(metrics.as_object().expect("families").len(), kinds.len(), "{metrics}");
    for (name, kind) in kinds {
        assert_eq!(metrics[name]["type"], kind, "{name}");
        assert!(metrics[name]["help"].as_str().is_some_and(|help| help.ends_with('.')), "{name}");
    }
    let samples = |family: &str, name: &str| -> Vec<(Value, f64)> {
        let all = metrics[family]["samples"].as_array().expect("samples");
        let own = all.iter().filter(|sample| sample[0] == name);
        own.map(|sample| (sample[1].clone(), sample[2].as_f64().unwrap_or(f64::NAN))).collect()
    };
    let requests = samples("rolldrop_proxy_requests", "rolldrop_proxy_requests_total");
    assert_eq!(requests.iter().map(|(_, count)| count).sum::<f64>(), 10.0, "{metrics}");
    let duration = "rolldrop_proxy_request_duration_seconds";
    let buckets = samples(duration, &format!("{duration}_bucket"));
    assert!(buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{buckets:?}");
    assert_eq!(buckets.last(), Some(&(json!({"le": "+Inf"}), 10.0)));
    assert_eq!(samples(duration, &format!("{duration}_count")), [(json!({}), 10.0)]);
    assert!(samples(duration, &format!("{duration}_sum"))[0].1 > 0.0);
    let phase = samples("rolldrop_proxy_phase", "rolldrop_proxy_phase");
    let current: Vec<_> = phase.iter().filter(|(_, value)| *value == 1.0).map(|(labels, _)| labels).collect();
    assert_eq!(current, [&json!({"phase": "listener_closed"})]);
}

/// Whether the app still listens is looked at all the time then, and whatever took long would hold up the relay.
#[test]
fn a_proxy_whose_pod_ends_takes_hardly_any_processor_time_to_see_the_app_go() {
    let app = Server::start("exit", &[]);
    let proxy = Proxy::start(&app.address, "127.0.0.1:0", "");
    assert_eq!(proxy.admin("/prestop").0, 200);
    let before_s = cpu_s(proxy.child.id());
    std::thread::sleep(Duration::from_secs(2));
    let took_s = cpu_s(proxy.child.id()) - before_s;
    assert!(took_s < 0.3, "{took_s:.2} s within 2 s");
}

#[test]
fn with_a_token_only_the_kubelets_paths_answer_without_it() {
    let app = Server::start("exit", &[]);
    let proxy = Proxy::start(&app.address, "127.0.0.1:0", "s3cret-w0rd\n");
    for path in ["/healthz", "/readyz", "/prestop"] {
        assert_eq!(proxy.admin(path).0, 200, "{path}");
    }
    for path in ["/metrics", "/clock", "/rows", "/nothing"] {
        for wrong in [
            "",
            "authorization: Bearer s3cret\r\n",
            "authorization: Basic s3cret-w0rd\r\n",
            "rolldrop-token: \r\n",
        ] {
            assert_eq!(get(proxy.admin, path, wrong).0, 401, "{path} {wrong}");
        }
    }
    for right in [
        "authorization: Bearer s3cret-w0rd\r\n",
        "Authorization: bearer s3cret-w0rd\r\n",
        "rolldrop-token: s3cret-w0rd\r\n",
    ] {
        for path in ["/metrics", "/clock"] {
            let (status, body) = get(proxy.admin, path, right);
            assert!(status == 200 && !body.contains("s3cret"), "{path} {right}: {status} {body}");
        }
        assert_eq!(get(proxy.admin, "/nothing", right).0, 404, "{right}");
    }
    for (file, why) in [("none.txt", "No such file"), ("two.txt", "one word of printable ASCII")] {
        let args =
            ["proxy", "--listen", "127.0.0.1:0", "--upstream", "127.0.0.1:1", "--admin", "127.0.0.1:0"];
        let command = Rolldrop::new(args).args(["--pod", "web-1", "--admin-token-file", file]);
        let finished = command.file("two.txt", "two words").finish().expect_code(2);
        assert!(finished.stderr().contains(&format!("failed to read a token from {file}")), "{finished}");
        assert!(finished.stderr().contains(why), "{finished}");
    }
}

#[test]
fn the_admin_port_is_where_it_is_told_to_be_and_the_data_port_is_the_apps_alone() {
    let app = Server::start("exit", &[]);
    let proxy = Proxy::start(&app.address, "127.0.0.2:0", "");
    assert_eq!(proxy.admin.ip().to_string(), "127.0.0.2");
    assert_eq!(proxy.admin("/healthz"), (200, "ok\n".to_owned()));
    let elsewhere = SocketAddr::new(proxy.data.ip(), proxy.admin.port());
    let refused = TcpStream::connect_timeout(&elsewhere, Duration::from_secs(5)).expect_err("a refusal");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    let received = || app.log().iter().filter(|line| line["event"] == "received").count();
    let before = received();
    let paths = ["/healthz", "/readyz", "/clock", "/prestop", "/rows", "/metrics"];
    for path in paths {
        let own: SocketAddr = app.address.parse().expect("an address");
        let (through, direct) = (get(proxy.data, path, ID), get(own, path, ID));
        assert_eq!(through, direct, "{path}");
    }
    assert_eq!(received(), before + 2 * paths.len());
    assert!(
        proxy.admin("/metrics").1.contains("rolldrop_proxy_phase{phase=\"serving\"} 1"),
        "a client's /prestop"
    );
    // What the admin port is asked, the app does not hear of.
    for path in paths.into_iter().filter(|path| *path != "/rows") {
        get(proxy.admin, path, ID);
    }
    assert_eq!(received(), before + 2 * paths.len());
}
