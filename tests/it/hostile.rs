//! Far more objects than the embedded cluster is made for: it stays small, quick, and there.

use std::io::{Read, Write};

use serde_json::json;

use crate::api::Server;
use crate::harness::wait_for;
use crate::kubectl::{LIMIT, SharedCluster};

const CLIENTS: usize = 4;
const PER_CLIENT: usize = 2500;
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// Those that the test has made.
const OURS: &str = "/api/v1/namespaces/default/configmaps?labelSelector=crowd";
/// A few times what is needed, in a debug build.
const LIMIT_KIB: u64 = 400 * 1024;

/// Creates objects on one connection, some at a time.
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

/// How much memory a process has.
fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it is there");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

fn listed(server: &Server, path: &str) -> (usize, String) {
    let list = server.get_json(path);
    let next = list["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
    (list["items"].as_array().expect("a list").len(), next)
}

#[test]
fn ten_thousand_objects_come_and_go() {
    const TOTAL: usize = CLIENTS * PER_CLIENT;
    let cluster = SharedCluster::start("hostile-cluster");
    let server = Server::of(&cluster);
    // It asks for everything, and never reads.
    let mut silent = server.connect();
    let head =
        format!("GET {MAPS}?watch=1 HTTP/1.1\r\nHost: api\r\nAuthorization: Bearer {}\r\n\r\n", server.token);
    silent.write_all(head.as_bytes()).expect("it is sent");
    let version = server.get_json(MAPS)["metadata"]["resourceVersion"].clone();
    let version = version.as_str().expect("a version");
    // This one reads along.
    let watch = format!("GET {OURS}&watch=1&timeoutSeconds=120&resourceVersion={version} HTTP/1.0");
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
    let full = resident_kib(cluster.pid());
    assert!(full < LIMIT_KIB, "{full} KiB");

    assert_eq!(server.request(&format!("DELETE {OURS}"), "", "").code, 200);
    assert_eq!(listed(&server, OURS), (0, String::new()));
    // The controllers have seen all that when they collect what came last.
    let owner = json!({"metadata": {"name": "owner"}}).to_string();
    let uid = server.request(&format!("POST {MAPS}"), "", &owner).json()["metadata"]["uid"].clone();
    let references = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}]);
    let owned =
        json!({"metadata": {"name": "owned", "labels": {"crowd": "yes"}, "ownerReferences": references}})
            .to_string();
    assert_eq!(server.request(&format!("POST {MAPS}"), "", &owned).code, 201);
    assert_eq!(server.request(&format!("DELETE {MAPS}/owner"), "", "").code, 200);
    wait_for("the dependent collected", LIMIT, || (listed(&server, OURS).0 == 0).then_some(()));
    let empty = resident_kib(cluster.pid());
    assert!(empty < LIMIT_KIB, "{empty} KiB");
    assert_eq!(server.request("GET /version", "", "").code, 200);
    drop(silent);
}
