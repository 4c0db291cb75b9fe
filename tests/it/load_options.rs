//! The effects of single options of `rolldrop load`, as the server and the rows show them.

use std::cell::RefCell;
use std::net::TcpListener;

use rolldrop_record::parts::read_table;
use rolldrop_record::{Outcome, Phase, RequestRow, Stamp};

use crate::harness::{Finished, Rolldrop, again_while_invalid};
use crate::load::{Server, json};
use crate::machine::measured;

/// Timeouts so long that a slow machine causes no failures.
const PATIENT: [&str; 4] = ["--connect-timeout", "60s", "--response-timeout", "60s"];

fn load(url: &str, args: &[&str]) -> Finished {
    Rolldrop::new(["load", url, "--out", "run", "--format", "json"]).args(PATIENT).args(args).finish()
}

fn rows(finished: &Finished) -> Vec<RequestRow> {
    read_table(&finished.dir().join("run")).expect("rows")
}

#[test]
fn max_age_limits_connection_reuse() {
    let server = Server::start();
    // Returns the rows of each connection, in order.
    let connections = |age: &[&str]| {
        let finished = load(
            &server.url("/"),
            &[&["-r", "20", "-n", "30", "--connections", "keepalive", "-c", "1"], age].concat(),
        )
        .expect_code(0);
        let mut rows = rows(&finished);
        // While the only connection is in use, no other request is sent.
        rows.retain(|row| row.outcome != Outcome::NotSent);
        rows.sort_by_key(|row| row.seq);
        let of_one = |one: &RequestRow, other: &RequestRow| one.conn == other.conn;
        rows.chunk_by(of_one).map(<[_]>::to_vec).collect::<Vec<_>>()
    };
    // 30 requests take a second and a half.
    assert_eq!(connections(&[]).len(), 1);
    let aged = connections(&["--max-age", "300ms"]);
    assert!(aged.len() >= 2, "{aged:?}");
    let age_s = |row: &RequestRow, at: Option<Stamp>| {
        at.expect("a stamp").seconds_since(row.connected.expect("a connection"))
    };
    for (one, next) in aged.iter().zip(&aged[1..]) {
        // However slow the machine is, the load reuses no connection that is too old, and abandons none that is not.
        let (first, last) = (&one[0], &one[one.len() - 1]);
        let at_most_s = 0.3 + age_s(first, first.sent);
        assert!(age_s(first, Some(last.scheduled)) < at_most_s, "{one:?}");
        assert!(age_s(first, next[0].connect_start) >= 0.3, "{one:?}, then {next:?}");
    }
}

/// A load that started with the previous load's ports would hit that load's stale flows.
#[test]
fn next_load_continues_source_ports() {
    let (server, dir) = (Server::start(), tempfile::tempdir().expect("a directory"));
    let mut used = Vec::new();
    for _ in 0..4 {
        let load = Rolldrop::new(["load", &server.url("/"), "-r", "200", "-n", "50", "--out", "run"])
            .args(["--source-ports", "20000-20299"])
            .args(PATIENT)
            .env("TMPDIR", dir.path().to_str().expect("a path"));
        let rows = rows(&load.finish().expect_code(0));
        used.extend(rows.iter().map(|row| row.local_port.expect("a port")));
    }
    let all = used.len();
    used.sort_unstable();
    used.dedup();
    assert_eq!((all, used.len()), (200, 200));
}

#[test]
fn env_header_reaches_server_not_disk() {
    let server = Server::start();
    let finished = Rolldrop::new(["load", &server.url("/"), "-r", "100", "-n", "5", "--out", "run"])
        .args(["--header-from-env", "Authorization=TOKEN"])
        .args(PATIENT)
        .env("TOKEN", "Bearer hush")
        .finish()
        .expect_code(0);
    assert!(server.got().iter().all(|got| got.headers["authorization"] == "Bearer hush"), "{finished}");
    let mut files = vec![finished.dir().to_owned()];
    let mut seen = 0;
    while let Some(path) = files.pop() {
        if path.is_dir() {
            files.extend(std::fs::read_dir(&path).expect("a folder").flatten().map(|entry| entry.path()));
        } else {
            let bytes = std::fs::read(&path).expect("a file");
            assert!(!bytes.windows(4).any(|text| text == b"hush"), "{} has the secret", path.display());
            seen += 1;
        }
    }
    assert!(
        seen >= 3 && !finished.stdout().contains("hush") && !finished.stderr().contains("hush"),
        "{finished}"
    );
}

#[test]
fn load_accepts_ipv6_target() {
    // If this machine has no IPv6, the rows show it.
    match TcpListener::bind("[::1]:0") {
        Ok(listener) => {
            let server = Server::on(listener);
            let finished = load(&server.url("/"), &["-r", "100", "-n", "5"]).expect_code(0);
            let host = format!("[::1]:{}", server.address.port());
            assert!(server.got().iter().all(|got| got.headers["host"] == host), "{finished}");
            let rows = rows(&finished);
            assert!(rows.iter().all(|row| row.outcome == Outcome::Ok), "{finished}");
            assert!(rows.iter().all(|row| row.remote_addr.as_deref() == Some(&host)), "{finished}");
        }
        Err(_) => {
            let finished = load("http://[::1]:9/", &["-r", "100", "-n", "5"]).expect_code(0);
            assert_eq!(json(&finished)["requests"]["dropped"], 5, "{finished}");
        }
    }
}

#[test]
fn success_option_decides_ok_statuses() {
    let server = Server::start();
    let requests = |success: &str| {
        let finished = load(&server.url("/"), &["-r", "100", "-n", "5", "--success", success]).expect_code(0);
        let requests = &json(&finished)["requests"];
        (requests["ok"].as_u64(), requests["app_errors"].as_u64())
    };
    assert_eq!(requests("200"), (Some(5), Some(0)));
    assert_eq!(requests("201-299,404"), (Some(0), Some(5)));
}

#[test]
fn warmup_is_recorded_but_uncounted() {
    let server = Server::start();
    let finished =
        load(&server.url("/"), &["-r", "40", "-n", "20", "--warmup", "500ms", "--record", "csv=rows.csv"])
            .expect_code(0);
    let result = json(&finished);
    let requests = &result["requests"];
    assert_eq!((&requests["warmup"], &requests["total"]), (&20.into(), &20.into()), "{finished}");
    assert_eq!(result["latency_ms"]["response"]["n"], 20, "{finished}");
    let warm = rows(&finished).iter().filter(|row| row.phase == Phase::Warmup).count();
    assert_eq!((warm, server.got().len()), (20, 40), "{finished}");
}

#[test]
fn limits_decide_exit_status() {
    let server = Server::start();
    let with =
        |limit: &str, path: &str| load(&server.url(path), &["-r", "100", "-n", "5", "--fail-on", limit]);
    with("p50>60s", "/").expect_code(0);
    let finished = with("p99>60s", "/").expect_code(3);
    let few = "--fail-on p99>60s: unknown, because only 5 requests were answered; this percentile needs 100";
    assert!(finished.stderr().contains(few), "{finished}");
    with("dropped>0.1%", "/").expect_code(0);
    let finished = with("max>0ms", "/").expect_code(1);
    assert!(finished.stderr().contains("--fail-on max>0ms"), "{finished}");
    with("eof_before_response>4", "/lost").expect_code(1);
    let finished = with("p50>1s", "/lost").expect_code(1);
    assert!(finished.stderr().contains("no request was answered"), "{finished}");
}

#[test]
fn closed_loop_takes_count_or_duration() {
    let server = Server::start();
    let finished = load(&server.url("/"), &["-r", "max", "-n", "50", "-c", "2"]).expect_code(0);
    assert_eq!(json(&finished)["requests"]["total"], 50, "{finished}");
    let finished = load(&server.url("/"), &["-r", "max", "-d", "200ms", "-c", "2"]).expect_code(0);
    assert!(json(&finished)["requests"]["total"].as_u64() > Some(0), "{finished}");
    let both = load(&server.url("/"), &["-r", "max", "-n", "50", "-d", "1s"]).expect_code(2);
    assert!(both.stderr().contains("cannot be used with"), "{both}");
}

#[test]
fn spinning_worker_sends_nothing_early() {
    let server = Server::start();
    let finished =
        load(&server.url("/"), &["-r", "100", "-n", "50", "--spin", "5ms", "--connections", "keepalive"])
            .expect_code(0);
    let rows = rows(&finished);
    assert_eq!(rows.len(), 50, "{finished}");
    assert!(rows.iter().all(|row| row.outcome == Outcome::Ok && row.sent >= Some(row.scheduled)), "{rows:?}");
    let closed = load(&server.url("/"), &["-r", "max", "-n", "50", "--spin", "5ms"]).expect_code(2);
    assert!(closed.stderr().contains("a closed loop has no schedule: remove either spin"), "{closed}");
}

#[test]
fn reports_cover_closed_loops_and_poisson_loads() {
    measured(|| {
        let server = Server::start();
        let report = |args: &[&str]| {
            let loaded = RefCell::new(None);
            let run = || {
                let finished = load(&server.url("/"), args).expect_code(0);
                let run = finished.dir().join("run");
                loaded.replace(Some(finished));
                Rolldrop::new(["report".as_ref(), run.as_os_str()]).finish()
            };
            let report =
                again_while_invalid(run, |report| report.stdout().contains("INVALID")).expect_code(0);
            let run = loaded.borrow().as_ref().expect("a load").dir().join("run");
            let events = std::fs::read_to_string(run.join("events.jsonl")).expect("events.jsonl");
            let result = std::fs::read_to_string(run.join("result.json")).expect("result.json");
            (report.stdout(), events, serde_json::from_str::<serde_json::Value>(&result).expect("JSON"))
        };
        let (text, _, result) = report(&["-r", "max", "-n", "50", "-c", "1"]);
        assert!(text.contains("service time of answered requests, from the actual send time"), "{text}");
        assert_eq!(
            (&result["latency_ms"]["response"]["n"], &result["latency_ms"]["service"]["n"]),
            (&0.into(), &50.into())
        );
        assert!(result["load"]["rate"].as_f64() > Some(0.0), "{result}");
        let (text, events, result) = report(&["--poisson", "--stage", "0-100:500ms", "--stage", "50:500ms"]);
        assert!(text.contains("50 requests"), "{text}");
        assert_eq!(result["requests"]["ok"], 50);
        let stages: Vec<&str> = events.lines().filter(|line| line.contains("load_stage")).collect();
        assert!(
            stages.len() == 2 && stages[0].contains(r#""from":0.0,"to":100.0,"duration_s":0.5"#),
            "{events}"
        );
    });
}

#[test]
fn result_is_split_by_target_status_and_second() {
    let server = Server::start();
    let two = |format: &str| {
        let urls = [server.url("/"), server.url("/lost")];
        let args = ["load", &urls[0], &urls[1], "-r", "100", "-n", "150", "--format", format];
        Rolldrop::new(args).args(PATIENT).finish().expect_code(0)
    };
    let finished = two("json");
    let result = json(&finished);
    assert_eq!(
        (&result["schema_version"], &result["tool"]["name"]),
        (&1.into(), &"rolldrop".into()),
        "{result}"
    );
    assert!(result["start"].as_str().is_some_and(|start| start.ends_with('Z')), "{result}");
    assert_eq!(result["requests"]["statuses"], serde_json::json!({"200": 75}), "{result}");
    let targets = result["targets"].as_array().expect("targets");
    let of = |path: &str| {
        let url = server.url(path);
        targets.iter().find(|target| target["name"] == url.as_str()).expect("the target")
    };
    assert_eq!((&of("/")["ok"], &of("/lost")["dropped"]), (&75.into(), &75.into()), "{result}");
    assert_eq!(of("/lost")["service_ms"]["n"], 0, "{result}");
    // The server's response has 40 bytes, of which the head has 38.
    assert_eq!(result["bytes"]["received"], 75 * 40, "{result}");
    assert!(result["latency_ms"]["connect"]["n"].as_u64() >= Some(150), "{result}");
    assert!(result["latency_ms"]["tls"].is_null(), "{result}");
    let seconds = result["seconds"].as_array().expect("seconds");
    let total: u64 = seconds.iter().filter_map(|second| second["total"].as_u64()).sum();
    assert!(total == 150 && seconds.len() >= 2, "{result}");
    let text = two("text").stdout();
    assert!(text.lines().any(|line| line.starts_with("status 200") && line.contains(" 75 ")), "{text}");
    assert!(text.lines().any(|line| line.ends_with(&server.url("/lost"))), "{text}");
    assert!(finished.stderr().contains("Ctrl-C ends the load and keeps the results"), "{finished}");
}

#[test]
fn closed_loop_reuses_connections_by_default() {
    let server = Server::start();
    let first_line = |args: &[&str]| {
        let url = server.url("/");
        let finished = Rolldrop::new(["load", &url, "-n", "40", "-c", "1"])
            .args(args)
            .args(PATIENT)
            .args(["-r", "max", "--out", "run"])
            .finish();
        let finished = finished.expect_code(0);
        let connections: std::collections::BTreeSet<_> = rows(&finished).iter().map(|row| row.conn).collect();
        (finished.stdout().lines().next().expect("a line").to_owned(), connections.len())
    };
    let (line, connections) = first_line(&[]);
    assert!(line.contains("keepalive connections") && connections == 1, "{line}: {connections}");
    let (line, connections) = first_line(&["--connections", "fresh"]);
    assert!(line.contains("fresh connections") && connections == 40, "{line}: {connections}");
}
