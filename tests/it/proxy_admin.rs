//! The recording proxy's admin port, tested on a proxy process: responses, readers and address.

use std::io::{BufRead, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::harness::{LIMIT, Rolldrop, cpu_s, fed, own_host, wait_for};
use crate::sample_server::Server;

/// A running proxy.
struct Proxy {
    child: Child,
    /// Pid of the proxy itself; the child may be a program that started the proxy.
    pid: u32,
    data: SocketAddr,
    admin: SocketAddr,
    _dir: tempfile::TempDir,
}

impl Proxy {
    /// Starts a proxy that answers everyone or, if there is a token, only readers with the token.
    fn start(upstream: &str, admin: &str, token: &str) -> Self {
        let (command, token_file) = (Self::command(upstream, admin), "token.txt");
        Self::started(match token {
            "" => command.args(["--open-admin"]),
            _ => command.file(token_file, token).args(["--admin-token-file", token_file]),
        })
    }

    fn command(upstream: &str, admin: &str) -> Rolldrop {
        Self::listening_at("127.0.0.1:0", upstream, admin)
    }

    fn listening_at(data: &str, upstream: &str, admin: &str) -> Rolldrop {
        Rolldrop::new(["proxy", "--listen", data, "--upstream", upstream, "--admin", admin, "--pod", "web-1"])
    }

    fn started(command: Rolldrop) -> Self {
        let (child, dir) = command.start();
        Self::at(child, dir)
    }

    fn at(child: Child, dir: tempfile::TempDir) -> Self {
        let [data, admin] = wait_for("its ports", LIMIT, || {
            let said = std::fs::read_to_string(dir.path().join("stderr.log")).ok()?;
            let (_, said) = said.lines().find_map(|line| line.split_once("proxy on "))?;
            let (data, admin) = said.split_once(", admin on ")?;
            Some([data.parse().ok()?, admin.parse().ok()?])
        });
        let pid = child.id();
        Self { child, pid, data, admin, _dir: dir }
    }

    fn admin(&self, path: &str) -> (u16, String) {
        get(self.admin, path, "")
    }

    /// Runs the preStop hook of the proxy's container, prefixed by the command `before`. The error is the hook's
    /// message.
    fn pre_stop(&self, before: &[&str]) -> Result<(), String> {
        let admin = self.admin.to_string();
        let hook = [env!("CARGO_BIN_EXE_rolldrop"), "proxy-pre-stop", "--admin", &admin];
        let words = [before, &hook].concat();
        let output = Command::new(words[0]).args(&words[1..]).output().expect("the hook starts");
        if output.status.success() {
            Ok(())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// Returns the metrics as parsed by Prometheus' own client library.
    fn metrics(&self) -> Value {
        let (status, text) = self.admin("/metrics");
        assert_eq!(status, 200, "{text}");
        let python = concat!(env!("CARGO_MANIFEST_DIR"), "/target/test-venv/bin/python");
        let output = fed(Command::new(python).args(["-c", PARSE]), &text);
        assert!(output.status.success(), "{text}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Returns the number of requests with this outcome in this phase.
    fn count(&self, outcome: &str, phase: &str) -> f64 {
        let labels = json!({"outcome": outcome, "phase": phase});
        let metrics = self.metrics();
        let samples = metrics["rolldrop_proxy_requests"]["samples"].as_array().cloned().expect("samples");
        let sample = samples.iter().find(|sample| sample[1] == labels);
        sample.unwrap_or_else(|| panic!("no {labels}")).as_array().expect("three values")[2]
            .as_f64()
            .expect("a number")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let pid = Pid::from_raw(i32::try_from(self.pid).expect("a pid"));
        // The proxy may have exited already.
        let _ = kill(pid, Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

/// Script that prints each metric family's type, help and samples with name, labels and value.
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

/// Header that makes the app log a request.
const ID: &str = "rolldrop-id: t-1\r\n";

/// Sends a GET request; returns the status and body of the response.
pub(crate) fn get(address: SocketAddr, path: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n").expect("sent");
    let mut answer = String::new();
    // A connection that is reset yields no response.
    let _ = stream.read_to_string(&mut answer);
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    (status, body.to_owned())
}

/// Returns the first `count` rows from the admin port.
fn rows(admin: SocketAddr, headers: &str, count: usize) -> Vec<Value> {
    let mut stream = TcpStream::connect(admin).expect("a connection");
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    write!(stream, "GET /rows HTTP/1.1\r\nhost: x\r\n{headers}\r\n").expect("sent");
    let lines = std::io::BufReader::new(stream).lines().map_while(Result::ok);
    let read = lines.filter_map(|line| serde_json::from_str::<Value>(&line).ok());
    read.filter_map(|line| Some(line.get("row")?.clone())).take(count).collect()
}

#[test]
fn metrics_count_requests_by_outcome_and_phase() {
    let mut app = Server::start("exit", &[]);
    let proxy = Proxy::start(&app.address, "127.0.0.1:0", "");
    let ask = |times: usize| {
        for _ in 0..times {
            get(proxy.data, "/", "");
        }
    };
    ask(5);
    wait_for("the rows", LIMIT, || (proxy.count("complete", "serving") == 5.0).then_some(()));
    proxy.pre_stop(&[]).expect("a mark");
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
        ("rolldrop_proxy_made_room", "counter"),
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

/// In this phase, the proxy checks continuously whether the app still listens, and a slow check would hold up the
/// relay.
#[test]
fn listener_watch_costs_little_cpu() {
    let app = Server::start("exit", &[]);
    let proxy = Proxy::start(&app.address, "127.0.0.1:0", "");
    proxy.pre_stop(&[]).expect("a mark");
    let before_s = cpu_s(proxy.child.id());
    std::thread::sleep(Duration::from_secs(2));
    let took_s = cpu_s(proxy.child.id()) - before_s;
    assert!(took_s < 0.3, "{took_s:.2} s within 2 s");
}

#[test]
fn pre_stop_mark_rejects_other_users_and_containers() {
    let app = Server::start("exit", &[]);
    let proxy = Proxy::start(&app.address, "127.0.0.1:0", "");
    let phase = |proxy: &Proxy| {
        let metrics = proxy.metrics();
        let samples = metrics["rolldrop_proxy_phase"]["samples"].as_array().cloned().expect("samples");
        let now = samples.into_iter().find(|sample| sample[2] == 1.0).expect("a phase");
        now[1]["phase"].as_str().expect("a name").to_owned()
    };
    // In an earlier version, anyone could request this path.
    assert_eq!(proxy.admin("/prestop").0, 404);
    let error = proxy
        .pre_stop(&["setpriv", "--reuid=65534", "--clear-groups"])
        .expect_err("an error about another user");
    assert!(error.contains("belongs to another container or user"), "{error}");
    assert_eq!(phase(&proxy), "serving");
    proxy.pre_stop(&[]).expect("a mark");
    assert_eq!(phase(&proxy), "pre_stop");

    // The caller is in another container. From inside its own PID namespace, the proxy cannot see who calls.
    let directory = tempfile::tempdir().expect("a directory");
    let log = directory.path().join("stderr.log");
    let script = "exec unshare --pid --fork --kill-child \"$0\" \"$@\"";
    let mut apart = Command::new("sh");
    apart.args(["-c", script, env!("CARGO_BIN_EXE_rolldrop"), "proxy", "--listen", "127.0.0.1:0"]);
    apart.args(["--upstream", &app.address, "--admin", "127.0.0.1:0", "--pod", "web-1", "--open-admin"]);
    let child = apart.stderr(std::fs::File::create(log).expect("a file")).spawn().expect("it starts");
    let mut apart = Proxy::at(child, directory);
    let below = format!("/proc/{0}/task/{0}/children", apart.child.id());
    let below = std::fs::read_to_string(below).expect("children");
    apart.pid = below.trim().parse().expect("a pid");
    let error = apart.pre_stop(&[]).expect_err("an error about another container");
    assert!(error.contains("did not confirm the preStop call"), "{error}");
    assert_eq!(phase(&apart), "serving");
    let target = format!("--target={}", apart.pid);
    apart.pre_stop(&["nsenter", &target, "--pid"]).expect("a mark in its own container");
    assert_eq!(phase(&apart), "pre_stop");
}

#[test]
fn closed_admin_port_serves_only_health() {
    let app = Server::start("exit", &[]);
    let closed = Proxy::started(Proxy::command(&app.address, "127.0.0.1:0"));
    for (path, status) in [
        ("/healthz", 200),
        ("/readyz", 200),
        ("/metrics", 401),
        ("/clock", 401),
        ("/rows", 401),
        ("/nothing", 401),
    ] {
        assert_eq!(closed.admin(path).0, status, "{path}");
    }
    // Even if the port is opened to everyone, it does not reveal the clients' addresses.
    for (token, header) in [("", ""), ("s3cret", "rolldrop-token: s3cret\r\n")] {
        let proxy = Proxy::start(&app.address, "127.0.0.1:0", token);
        get(proxy.data, "/", "");
        let rows = rows(proxy.admin, header, 1);
        let addresses: Vec<_> = rows.iter().map(|row| row["peer_addr"].as_str().expect("a string")).collect();
        let is_told = addresses[0].starts_with("127.0.0.1:");
        assert_eq!((is_told, addresses[0].is_empty()), (!token.is_empty(), token.is_empty()), "{rows:?}");
    }
}

#[test]
fn token_guards_all_but_kubelet_paths() {
    let app = Server::start("exit", &[]);
    let proxy = Proxy::start(&app.address, "127.0.0.1:0", "s3cret-w0rd\n");
    for path in ["/healthz", "/readyz"] {
        assert_eq!(proxy.admin(path).0, 200, "{path}");
    }
    for path in ["/metrics", "/clock", "/rows", "/prestop", "/nothing"] {
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
fn admin_and_data_ports_stay_separate() {
    let app = Server::start("exit", &[]);
    // Nothing else listens on these two addresses.
    let [data, admin] = [(); 2].map(|()| own_host());
    let command = Proxy::listening_at(&format!("{data}:0"), &app.address, &format!("{admin}:0"));
    let proxy = Proxy::started(command.args(["--open-admin"]));
    assert_eq!(proxy.admin.ip(), admin);
    assert_eq!(proxy.admin("/healthz"), (200, "ok\n".to_owned()));
    let elsewhere = SocketAddr::new(proxy.data.ip(), proxy.admin.port());
    let refused = TcpStream::connect_timeout(&elsewhere, LIMIT).expect_err("a refusal");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    let received = || app.log().iter().filter(|line| line["event"] == "received").count();
    let before = received();
    let paths = ["/healthz", "/readyz", "/clock", "/rows", "/metrics"];
    for path in paths {
        let own: SocketAddr = app.address.parse().expect("an address");
        let (through, direct) = (get(proxy.data, path, ID), get(own, path, ID));
        assert_eq!(through, direct, "{path}");
    }
    assert_eq!(received(), before + 2 * paths.len());
    // The app does not see requests to the admin port.
    for path in paths.into_iter().filter(|path| *path != "/rows") {
        get(proxy.admin, path, ID);
    }
    assert_eq!(received(), before + 2 * paths.len());
}
