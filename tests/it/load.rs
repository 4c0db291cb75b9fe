//! `rolldrop load` against a server that records its requests.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::harness::{Finished, LIMIT, Rolldrop, wait_for};

/// A request as the server read it.
#[derive(Clone, Debug)]
pub(crate) struct Got {
    line: String,
    pub(crate) headers: BTreeMap<String, String>,
    body: String,
}

/// A server that answers every request, except that it closes the connection on `/lost`, and on `/flaky` unless it is a
/// retry.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    got: Arc<Mutex<Vec<Got>>>,
    loses_all: Arc<AtomicBool>,
}

impl Server {
    /// Starts a server that runs until the test process exits.
    pub(crate) fn start() -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").expect("a port"))
    }

    /// Starts a server that closes the connection on every request.
    pub(crate) fn losing() -> Self {
        let server = Self::start();
        server.loses_all.store(true, Ordering::Relaxed);
        server
    }

    /// Starts a server on this listener.
    pub(crate) fn on(listener: TcpListener) -> Self {
        let loses_all = Arc::new(AtomicBool::new(false));
        let address = listener.local_addr().expect("an address");
        let got = Arc::new(Mutex::new(Vec::new()));
        let (log, loses) = (Arc::clone(&got), Arc::clone(&loses_all));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, loses) = (Arc::clone(&log), Arc::clone(&loses));
                std::thread::spawn(move || serve(stream, &log, &loses));
            }
        });
        Self { address, got, loses_all }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn got(&self) -> Vec<Got> {
        self.got.lock().expect("the log").clone()
    }
}

fn serve(stream: TcpStream, log: &Mutex<Vec<Got>>, loses_all: &AtomicBool) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut writer = stream;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
        let mut headers = BTreeMap::new();
        loop {
            let mut field = String::new();
            reader.read_line(&mut field).ok().filter(|count| *count > 0)?;
            let Some((name, value)) = field.trim_end().split_once(": ") else { break };
            headers.insert(name.to_owned(), value.to_owned());
        }
        let length = headers.get("content-length").map_or(0, |length| length.parse().expect("a length"));
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let is_retry = headers.contains_key("rolldrop-retry-of");
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let got = Got { line: line.trim_end().to_owned(), headers, body: String::from_utf8(body).ok()? };
        log.lock().ok()?.push(got);
        if loses_all.load(Ordering::Relaxed) || path == "/lost" || path == "/flaky" && !is_retry {
            return None;
        }
        writer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").ok()?;
    }
}

pub(crate) fn json(finished: &Finished) -> Value {
    serde_json::from_str(&finished.stdout()).unwrap_or_else(|e| panic!("{e}\n{finished}"))
}

#[test]
fn load_follows_weights_and_hides_secrets() {
    let server = Server::start();
    let targets = format!(
        "# weight: 3\nGET {}\n\nPOST {}\nContent-Type: text/plain\n@body.txt\n",
        server.url("/a?n={{seq}}"),
        server.url("/b")
    );
    let finished = Rolldrop::new(["load", "--targets", "targets.txt", "--template", "-r", "400", "-n", "40"])
        .args(["-H", "@headers.txt", "--out", "run", "--format", "json", "--connect-timeout", "60s"])
        .args(["--response-timeout", "60s", "--record", "csv=rows.csv", "--record", "vegeta-csv=hits.csv"])
        .args(["--record", "vegeta-json=hits.json", "--hgrm", "latency.hgrm"])
        .file("targets.txt", &targets)
        .file("headers.txt", "Authorization: Bearer hush\n")
        .file("body.txt", "number {{seq}} of {{random:4}}")
        .finish()
        .expect_code(0);
    let result = json(&finished);
    let got = server.got();
    assert_eq!((got.len(), &result["requests"]["ok"]), (40, &Value::from(40)), "{finished}");
    let to_a = got.iter().filter(|got| got.line.starts_with("GET /a?n=")).count();
    assert_eq!(to_a, 30, "{finished}");
    for got in &got {
        assert_eq!(got.headers["authorization"], "Bearer hush");
        let seq = got.headers["rolldrop-id"].rsplit_once('-').expect("an id").1;
        let is_filled = match got.line.strip_prefix("GET ") {
            Some(rest) => rest.starts_with(&format!("/a?n={seq} ")),
            None => got.body.starts_with(&format!("number {seq} of ")),
        };
        assert!(is_filled, "{got:?}");
    }
    let read = |name: &str| std::fs::read_to_string(finished.dir().join(name)).expect("a file");
    assert!(!read("run/run.json").contains("hush") && read("run/run.json").contains("Authorization"));
    assert_eq!(read("rows.csv").lines().count(), 41, "{finished}");
    assert!(read("hits.csv").lines().all(|line| line.split(',').nth(1) == Some("200")), "{finished}");
    assert_eq!(read("hits.json").lines().count(), 40, "{finished}");
    assert!(read("latency.hgrm").contains("Total count    =           40]"), "{finished}");
}

#[test]
fn retries_stay_separate_from_first_outcome() {
    let server = Server::start();
    let finished = Rolldrop::new(["load", &server.url("/flaky"), &server.url("/lost"), "--retry", "2"])
        .args(["-r", "200", "-n", "20", "--format", "json", "--out", "run", "--fail-on", "dropped>19"])
        .args(["--connect-timeout", "60s", "--response-timeout", "60s"])
        .finish()
        .expect_code(1);
    let requests = &json(&finished)["requests"];
    assert_eq!(requests["by_outcome"]["eof_before_response"], 20, "{finished}");
    assert_eq!(requests["with_retries"]["ok"], 10, "{finished}");
    assert_eq!(requests["go_hidden"], 0, "on fresh connections Go retries nothing\n{finished}");
    assert!(finished.stderr().contains("--fail-on dropped>19: 20.000 requests"), "{finished}");
    let got = server.got();
    let retries = got.iter().filter(|got| got.headers.contains_key("rolldrop-retry-of")).count();
    assert_eq!((got.len(), retries), (20 + 10 + 20, 30), "{finished}");
    let rows = rolldrop_record::parts::read_table::<rolldrop_record::RequestRow>(&finished.dir().join("run"))
        .expect("rows");
    for row in rows {
        let is_lost = row.target.ends_with("/lost");
        assert_eq!(row.attempts, if is_lost { 3 } else { 2 });
        assert_eq!(row.final_outcome.as_str(), if is_lost { "eof_before_response" } else { "ok" });
    }
}

#[test]
fn max_requests_limits_each_connection() {
    let server = Server::start();
    let port = server.address.port();
    let elsewhere = format!("web.example:80:127.0.0.1:{port}");
    let finished = Rolldrop::new(["load", "http://web.example/", "--connect-to", &elsewhere, "-r", "max"])
        .args(["-n", "100", "-c", "1", "--connections", "keepalive", "--max-requests", "7", "--out", "run"])
        .args(["--connect-timeout", "60s", "--response-timeout", "60s"])
        .finish()
        .expect_code(0);
    assert!(finished.stdout().contains("CLOSED LOOP"), "{finished}");
    assert!(!finished.stdout().contains("\nresponse "), "{finished}");
    assert!(server.got().iter().all(|got| got.headers["host"] == "web.example"), "{finished}");
    let rows = rolldrop_record::parts::read_table::<rolldrop_record::RequestRow>(&finished.dir().join("run"))
        .expect("rows");
    let mut carried: BTreeMap<_, u64> = BTreeMap::new();
    rows.iter().for_each(|row| *carried.entry(row.conn).or_default() += 1);
    assert_eq!((rows.len(), carried.len(), carried.values().max()), (100, 15, Some(&7)), "{finished}");
}

/// This is the short form of `scripts/bench-load memory`: memory is bounded however many requests are recorded, and
/// every request has a row.
#[test]
fn load_memory_stays_bounded() {
    const REQUESTS: usize = 50_000;
    const LIMIT_KIB: u64 = 200 * 1024;
    let server = Server::start();
    let (mut load, dir) = Rolldrop::new(["load", &server.url("/"), "-r", "max", "-n", &REQUESTS.to_string()])
        .args(["-c", "20", "--connections", "keepalive", "--workers", "1", "--out", "run", "--quiet"])
        .args(["--connect-timeout", "60s", "--response-timeout", "60s"])
        .start();
    let mut peak_kib = 0;
    let status = wait_for("the end of the load", LIMIT, || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", load.id())).unwrap_or_default();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        // An exited process has no memory.
        peak_kib = peak.map_or(peak_kib, |peak| peak.trim().parse().expect("a number"));
        load.try_wait().expect("its status")
    });
    assert!(status.success(), "{status}");
    assert!((1..LIMIT_KIB).contains(&peak_kib), "{peak_kib} KiB");
    let rows = rolldrop_record::parts::read_table::<rolldrop_record::RequestRow>(&dir.path().join("run"))
        .expect("rows");
    let seqs: BTreeSet<u64> = rows.iter().map(|row| row.seq).collect();
    assert_eq!((rows.len(), seqs.len(), server.got().len()), (REQUESTS, REQUESTS, REQUESTS));
}

#[test]
fn bad_options_fail_before_first_request() {
    let server = Server::start();
    let url = server.url("/");
    let said = |args: &[&str]| {
        let finished = Rolldrop::new(["load"].iter().chain(args)).file("bad.txt", "GET\n").finish();
        finished.expect_code(2).stderr()
    };
    assert!(said(&["nonsense"]).contains("cannot use URL \"nonsense\""));
    assert!(said(&["localhost:8080"]).contains("no scheme; write it as http://localhost:8080"));
    assert!(said(&[&url, "-r", "-5"]).contains("rate -5 is out of range"));
    assert!(said(&[&url, "--max-requests", "5"]).contains("a fresh connection carries one request"));
    assert!(said(&[&url, "--hgrm", "no/such/table"]).contains("failed to write no/such/table"));
    let foreign = said(&[&url, "--source-address", "192.0.2.7"]);
    assert!(foreign.contains("from 192.0.2.7: Cannot assign requested address"), "{foreign}");
    let family = said(&[&url, "--source-address", "::1"]);
    assert!(family.contains("from ::1: "), "{family}");
    // A name that does not resolve leaves no directory behind that would block the next attempt.
    let unknown = Rolldrop::new(["load", "http://no-such-name.invalid/", "--out", "run"]).finish();
    assert!(!unknown.dir().join("run").exists(), "{unknown}");
    unknown.expect_code(2);
    assert!(said(&[&url, "-r", "0"]).contains("rate 0 is out of range"));
    assert!(said(&[&url, "-r", "fast"]).contains("needs a number of requests per second, or max"));
    assert!(said(&[&url, "-d", "5"]).contains("add a unit: 5s for seconds"));
    assert!(said(&[&url, "-z", "30s"]).contains("set the length of a load with -d, such as -d 30s"));
    assert!(said(&[&url, "-q", "500"]).contains("for 500 requests/s, use -r 500"));
    assert!(said(&[&url, "-d", "-5s"]).contains("expected a number with a unit"));
    assert!(said(&[&url, "--grpc", "a.B/C", "-m", "PUT"]).contains("cannot be used with"));
    assert!(said(&[&url, "--grpc", "a.B/C", "--success", "200"]).contains("cannot be used with"));
    assert!(said(&[&url, "--stage", "5"]).contains("neither RATE:DURATION"));
    assert!(said(&[&url, "--stage", "5:1s", "-d", "5s"]).contains("cannot be used with"));
    assert!(
        said(&[&url, "-H", "nonsense"]).contains("header number 1 (-H) does not have the form 'Name: value'")
    );
    assert!(said(&[&url, "-H", "@missing"]).contains("failed to read the headers in missing"));
    assert!(said(&[&url, "--header-from-env", "A=ROLLDROP_UNSET"]).contains("ROLLDROP_UNSET"));
    assert!(said(&[&url, "--body-file", "missing"]).contains("failed to read the body file missing"));
    assert!(said(&[&url, "--template", "--body", "{{x}}"]).contains("placeholder \"{{x}}\""));
    assert!(said(&["--targets", "bad.txt"]).contains("line 1: this is not a target"));
    let secret = said(&["http://user:hush@127.0.0.1:port/"]);
    assert!(secret.contains("***@127.0.0.1:port") && !secret.contains("hush"), "{secret}");
    assert!(said(&[&url, "--fail-on", "p99>5"]).contains("expected METRIC>LIMIT"));
    assert!(said(&[&url, "--record", "rows.csv"]).contains("is not FORMAT=FILE"));
    assert!(said(&[&url, "--record", "csv=no/such/rows"]).contains("failed to write no/such/rows"));
    assert!(said(&[&url, "--connect-to", "web"]).contains("HOST1:PORT1:HOST2:PORT2"));
    assert!(said(&[&url, "--success", "2xx"]).contains("expected statuses"));
    // Over loopback, one second's worth of ports is enough; elsewhere, a minute's worth is needed (TIME_WAIT).
    let few = ["--source-ports", "41000-41099", "-d", "10m"];
    let ports = said(&[&[url.as_str(), "-r", "400"], few.as_slice()].concat());
    assert!(
        ports.contains("400 fresh connections/s to 127.0.0.1:") && ports.contains("there are only 100 ("),
        "{ports}"
    );
    assert!(ports.contains("--connections keepalive") && ports.contains("--reuse-ports"), "{ports}");
    let ports = said(&[&["http://192.0.2.1/", "-r", "2"], few.as_slice()].concat());
    assert!(ports.contains("need 120 source ports, but there are only"), "{ports}");
    assert_eq!(server.got().len(), 0);
}
