//! Far more objects than the embedded cluster is made for, and malicious requests: the cluster stays small, fast and
//! available. For slow and silent clients see `api`, for hidden processes see `pods`.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use crate::api::Server;
use crate::harness::{LIMIT, wait_for};
use crate::kubectl::SharedCluster;

const CLIENTS: usize = 4;
const PER_CLIENT: usize = 2500;
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Path of the objects that the test created.
const OURS: &str = "/api/v1/namespaces/default/configmaps?labelSelector=crowd";
/// Memory limit: a few times what the server needs in a debug build.
const LIMIT_KIB: u64 = 400 * 1024;

/// Creates objects over one connection, some at a time.
fn create(server: &Server, client: usize) {
    let mut stream = server.connect();
    let mut buffer = vec![0; 1 << 16];
    for batch in 0..PER_CLIENT / 50 {
        let requests = (0..50).map(|n| {
            let labels = json!({"crowd": "yes"});
            let name = format!("map-{client}-{batch}-{n}");
            let body =
                json!({"metadata": {"name": name, "labels": labels}, "data": {"text": "x".repeat(200)}})
                    .to_string();
            let length = body.len();
            format!(
                "POST {MAPS} HTTP/1.1\r\nHost: api\r\nAuthorization: Bearer {}\r\n\
                 Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}",
                server.token
            )
        });
        stream.write_all(requests.collect::<String>().as_bytes()).expect("they are sent");
        let mut answers = String::new();
        while answers.matches("HTTP/1.1 201").count() < 50 {
            let read = stream.read(&mut buffer).expect("answers");
            assert!(read > 0, "closed after {answers}");
            answers.push_str(&String::from_utf8_lossy(&buffer[..read]));
        }
    }
}

/// Returns the current or peak memory of a process: `VmRSS` or `VmHWM`.
pub(crate) fn memory_kib(pid: u32, which: &str) -> u64 {
    memory_kib_if_alive(pid, which).expect("its memory")
}

/// Returns the same as `memory_kib`, or `None` if the process has exited.
pub(crate) fn memory_kib_if_alive(pid: u32, which: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with(which))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn listed(server: &Server, path: &str) -> (usize, String) {
    let list = server.get_json(path);
    let next = list["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
    (list["items"].as_array().expect("a list").len(), next)
}

#[test]
fn server_memory_stays_small_with_10000_objects() {
    const TOTAL: usize = CLIENTS * PER_CLIENT;
    let cluster = SharedCluster::start("hostile-cluster");
    let server = Server::of(&cluster);
    // This client requests everything, and never reads.
    let mut silent = server.connect();
    let head =
        format!("GET {MAPS}?watch=1 HTTP/1.1\r\nHost: api\r\nAuthorization: Bearer {}\r\n\r\n", server.token);
    silent.write_all(head.as_bytes()).expect("it is sent");
    let version = server.get_json(MAPS)["metadata"]["resourceVersion"].clone();
    let version = version.as_str().expect("a version");
    // This client keeps reading.
    let watch = format!("GET {OURS}&watch=1&timeoutSeconds=600&resourceVersion={version} HTTP/1.0");
    let mut reading = server.connect();
    write!(reading, "{watch}\r\nAuthorization: Bearer {}\r\n\r\n", server.token).expect("it is sent");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let lines = std::io::BufRead::lines(std::io::BufReader::new(&mut reading));
            let added = lines.map_while(Result::ok).filter(|line| line.starts_with("{\"type\":\"ADDED\""));
            assert_eq!(added.take(TOTAL).count(), TOTAL);
        });
        for client in 0..CLIENTS {
            let server = &server;
            scope.spawn(move || create(server, client));
        }
    });
    assert_eq!(listed(&server, OURS), (TOTAL, String::new()));
    let (mut paged, mut next) = (0, String::new());
    loop {
        let (count, token) = listed(&server, &format!("{OURS}&limit=1000&continue={next}"));
        paged += count;
        next = token;
        if next.is_empty() {
            break;
        }
    }
    assert_eq!(paged, TOTAL);
    let full = memory_kib(cluster.pid(), "VmRSS");
    assert!(full < LIMIT_KIB, "{full} KiB");

    // Other clients are served while the objects are deleted one by one.
    let (deleted, mut others) = (AtomicBool::new(false), 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(server.request(&format!("DELETE {OURS}"), "", "").code, 200);
            deleted.store(true, Ordering::SeqCst);
        });
        while !deleted.load(Ordering::SeqCst) {
            assert_eq!(server.request(&format!("GET {MAPS}/kube-root-ca.crt"), "", "").code, 200);
            others += 1;
        }
    });
    assert!(others > 5, "{others} answers meanwhile");
    assert_eq!(listed(&server, OURS), (0, String::new()));
    // Once the controllers collect the last object, they have seen all earlier changes.
    let owner = json!({"metadata": {"name": "owner"}}).to_string();
    let uid = server.request(&format!("POST {MAPS}"), "", &owner).json()["metadata"]["uid"].clone();
    let references = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}]);
    let owned =
        json!({"metadata": {"name": "owned", "labels": {"crowd": "yes"}, "ownerReferences": references}})
            .to_string();
    assert_eq!(server.request(&format!("POST {MAPS}"), "", &owned).code, 201);
    assert_eq!(server.request(&format!("DELETE {MAPS}/owner"), "", "").code, 200);
    wait_for("the dependent to be collected", LIMIT, || (listed(&server, OURS).0 == 0).then_some(()));
    let peak = memory_kib(cluster.pid(), "VmHWM");
    assert!(peak < LIMIT_KIB, "{peak} KiB");
    assert_eq!(server.request("GET /version", "", "").code, 200);
    drop(silent);
}

#[test]
fn malicious_requests_leave_no_residue() {
    const JSON: &str = "Content-Type: application/json\r\n";
    const YAML: &str = "Content-Type: application/yaml\r\n";
    const APPLY: &str = "Content-Type: application/apply-patch+yaml\r\n";
    const MERGE: &str = "Content-Type: application/merge-patch+json\r\n";
    /// Limit on peak memory in a debug build; it leaves no room for a body of 50 MB.
    const PEAK_KIB: u64 = 150 * 1024;

    let cluster = SharedCluster::start("hurt-cluster");
    let server = Server::of(&cluster);
    let one = server.connect();
    // The client that waited for the cluster may still be closing its own connection.
    wait_for("the only connection", LIMIT, || (server.connections() == 1).then_some(()));
    drop(one);

    let post = format!("POST {MAPS}");
    let patch = format!("PATCH {MAPS}/kube-root-ca.crt?fieldManager=test");
    let nested = |open: &str, close: &str| format!("{}1{}", open.repeat(100_000), close.repeat(100_000));
    let in_data = |value: String| format!("{{\"metadata\": {{\"name\": \"x\"}}, \"data\": {value}}}");
    let gzip = "Content-Encoding: gzip\r\nContent-Type: application/json\r\n";
    let bodies = [
        (&post, JSON, "x".repeat(50_000_000), 413),
        (&post, YAML, "x".repeat(50_000_000), 413),
        (&patch, MERGE, "x".repeat(50_000_000), 413),
        (&post, JSON, in_data(nested("[", "]")), 400),
        (&post, JSON, in_data(nested("{\"a\":", "}")), 400),
        (&post, YAML, in_data(nested("[", "]")), 400),
        (&post, YAML, "- ".repeat(100_000), 400),
        (&patch, MERGE, nested("{\"data\":", "}"), 400),
        (&patch, APPLY, nested("{data: ", "}"), 400),
        // Nothing is decompressed; the body is read as sent.
        (&post, gzip, "\u{1f}\u{8b}\u{8}".to_owned(), 400),
        (&post, JSON, in_data("1".repeat(1_000_000)), 400),
    ];
    for (line, headers, body, code) in bodies {
        let answer = server.request(line, headers, &body);
        let told = (answer.code, answer.json()["kind"].as_str().map(str::to_owned));
        assert_eq!(told, (code, Some("Status".to_owned())), "{line} {headers}{:.40}", body);
    }

    let flood: String = (0..10_000).map(|n| format!("X-{n}: {}\r\n", "x".repeat(90))).collect();
    assert!(matches!(server.request("GET /version", &flood, "").code, 0 | 400 | 431));
    let long = format!("GET /version?x={}", "x".repeat(1 << 20));
    assert!(matches!(server.request(&long, "", "").code, 0 | 400 | 414 | 431));

    for (query, codes) in [
        ("limit=-1", &[400][..]),
        ("limit=99999999999999999999999", &[400]),
        ("limit=18446744073709551615", &[200]),
        ("limit=1&continue=..%2F..%2Fetc", &[400]),
        ("limit=1&continue=eyJ2IjotMX0", &[400, 410]),
        ("resourceVersion=x", &[400]),
        ("resourceVersion=-1", &[400]),
        ("resourceVersion=18446744073709551615&resourceVersionMatch=Exact", &[400]),
        ("resourceVersion=18446744073709551615", &[200]),
        ("watch=1&resourceVersion=99999999999999999999999", &[400]),
        ("watch=1&timeoutSeconds=-5", &[200, 400]),
        ("watch=1&timeoutSeconds=99999999999999999999", &[400]),
        ("labelSelector=%00%ff%28%28", &[400]),
        ("fieldSelector=%3D%3D%3D", &[400]),
    ] {
        let answer = server.request(&format!("GET {MAPS}?{query}"), "", "");
        assert!(codes.contains(&answer.code), "{query}: {}", answer.code);
    }
    for path in [
        "/api/v1/namespaces/default/configmaps/..%2f..%2fsecrets",
        "/api/v1/namespaces/%2e%2e/pods/x/log",
        "/api/v1/namespaces/default/pods/%2e%2e%2f%2e%2e%2fetc%2fpasswd/log",
        "/api/v1/namespaces/default/pods/x%00y/log?container=%00",
        "/api/v1/namespaces/default/pods/..:80/proxy/%2e%2e/%2e%2e/etc/passwd",
        "/api/v1/namespaces/default/services/%2e%2e:80/proxy/..%2f..",
        "/api/v1/nodes/%2e%2e%2fnode-1/proxy/restart",
    ] {
        let answer = server.request(&format!("GET {path}"), "", "");
        assert!(matches!(answer.code, 400 | 404 | 405), "{path}: {}", answer.code);
    }

    assert_eq!(server.request("GET /version", "", "").code, 200);
    let peak = memory_kib(cluster.pid(), "VmHWM");
    assert!(peak < PEAK_KIB, "{peak} KiB");
    wait_for("all connections are closed", LIMIT, || (server.connections() == 0).then_some(()));
}
