//! The embedded cluster's API as seen by plain HTTP clients, well-behaved and hostile.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::harness::{LIMIT, wait_for};
use crate::kubectl::{Kubectl, SharedCluster, pod};
use crate::web::Web;

/// API server's address, and everything a client needs to connect to it.
pub(crate) struct Server {
    address: String,
    authority: Vec<u8>,
    pub(crate) token: String,
}

pub(crate) type Tls = StreamOwned<ClientConnection, TcpStream>;

/// A response: status, head and body.
pub(crate) struct Answer {
    pub(crate) code: u16,
    head: String,
    body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

impl Server {
    fn get() -> Self {
        Self::of(SharedCluster::get())
    }

    pub(crate) fn of(cluster: &SharedCluster) -> Self {
        let text = std::fs::read_to_string(cluster.kubeconfig()).expect("a kubeconfig");
        let config: Value = serde_json::from_str(&text).expect("it is JSON");
        let cluster = &config["clusters"][0]["cluster"];
        let text = |value: &Value| value.as_str().expect("a string").to_owned();
        let authority = BASE64_STANDARD.decode(text(&cluster["certificate-authority-data"])).expect("base64");
        Self {
            address: text(&cluster["server"]).replace("https://", ""),
            authority,
            token: text(&config["users"][0]["user"]["token"]),
        }
    }

    /// Returns the number of connections open on the server's side, excluding those in TIME_WAIT.
    pub(crate) fn connections(&self) -> usize {
        const LISTEN: &str = "0A";
        const TIME_WAIT: &str = "06";
        let port = self.address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or(0_u16);
        let table = std::fs::read_to_string("/proc/net/tcp").expect("the kernel's table");
        let is_open = |line: &&str| {
            let mut fields = line.split_whitespace().skip(1);
            let local = fields.next().is_some_and(|local| local.ends_with(&format!(":{port:04X}")));
            local && fields.nth(1).is_some_and(|state| state != LISTEN && state != TIME_WAIT)
        };
        table.lines().skip(1).filter(is_open).count()
    }

    pub(crate) fn connect(&self) -> Tls {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(&self.authority).expect("a certificate"))
            .expect("it is valid");
        let provider = tokio_rustls::rustls::crypto::ring::default_provider();
        let config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .expect("protocol versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("127.0.0.1").expect("a name");
        let session = ClientConnection::new(Arc::new(config), name).expect("a session");
        let stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
        StreamOwned::new(session, stream)
    }

    /// Sends one request with these header lines, on a connection of its own.
    fn send(&self, line: &str, headers: &str, body: &[u8]) -> Answer {
        let mut stream = self.connect();
        let length = body.len();
        let head = format!(
            "{line} HTTP/1.1\r\nHost: api\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
        );
        // The server may respond and close before it has read everything.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        read_answer(&mut stream)
    }

    pub(crate) fn request(&self, line: &str, headers: &str, body: &str) -> Answer {
        let headers = format!("Authorization: Bearer {}\r\n{headers}", self.token);
        self.send(line, &headers, body.as_bytes())
    }

    pub(crate) fn get_json(&self, path: &str) -> Value {
        self.request(&format!("GET {path}"), "", "").json()
    }
}

fn read_answer(stream: &mut impl Read) -> Answer {
    let mut bytes = Vec::new();
    // A connection closed without a TLS close_notify is fine, too.
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    Answer { code, head: head.to_ascii_lowercase(), body: body.to_owned() }
}

#[test]
fn api_server_rejects_invalid_tokens() {
    let server = Server::get();
    for headers in ["", "Authorization: Bearer guess\r\n", "Authorization: Basic YTpi\r\n"] {
        let answer = server.send("GET /api/v1/pods", headers, b"");
        assert_eq!(answer.code, 401, "{headers}");
        assert_eq!(answer.json()["reason"], "Unauthorized");
    }
    // The server listens only on loopback, and speaks only TLS.
    assert!(server.address.starts_with("127.0.0.1:"));
    let mut plain = TcpStream::connect(&server.address).expect("it listens");
    plain.write_all(b"GET /version HTTP/1.1\r\nHost: api\r\n\r\n").expect("it is sent");
    assert_eq!(read_answer(&mut plain).code, 0);
}

#[test]
fn accept_header_selects_response_format() {
    let server = Server::get();
    let get = |accept: &str| server.request("GET /api/v1/namespaces", &format!("Accept: {accept}\r\n"), "");
    assert_eq!(get("application/vnd.kubernetes.protobuf, application/json").json()["kind"], "NamespaceList");
    let metadata = get("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").json();
    assert_eq!(metadata["kind"], "PartialObjectMetadataList");
    assert!(metadata["items"][0]["spec"].is_null());
    let table = get("application/json;as=Table;g=meta.k8s.io;v=v1").json();
    assert_eq!(table["columnDefinitions"][0]["name"], "Name");
    assert_eq!(table["columnDefinitions"][1]["description"], "The status of the namespace");
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(get("text/html").code, 406);
    let unknown = server.request("GET /apis/nosuch/v1/things", "", "");
    assert_eq!((unknown.code, unknown.body.as_str()), (404, "404 page not found\n"));
}

#[test]
fn bodies_must_be_json_or_yaml() {
    let kubectl = Kubectl::in_namespace("api");
    let server = Server::get();
    let post = format!("POST /api/v1/namespaces/{}/configmaps", kubectl.namespace());
    let send = |content_type: &str, body: &str| {
        server.request(&post, &format!("Content-Type: {content_type}\r\n"), body)
    };
    assert_eq!(send("application/json", r#"{"metadata": {"name": "a"}}"#).code, 201);
    assert_eq!(send("application/yaml", "metadata:\n  name: b\n").code, 201);
    let refused = send("text/plain", "x");
    assert_eq!((refused.code, refused.json()["reason"].as_str()), (415, Some("UnsupportedMediaType")));
    for nonsense in ["{nope", "", "[1]", "\"text\"", "null", "{\"metadata\": 1}"] {
        let refused = send("application/json", nonsense);
        assert_eq!(refused.code, 400, "{nonsense}: {}", refused.body);
        assert_eq!(refused.json()["reason"], "BadRequest", "{nonsense}");
    }
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(send("application/json", &format!("{{\"data\": {deep}}}")).code, 400);
    let bombs = [
        "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n",
    ];
    for bomb in bombs {
        assert_eq!(send("application/yaml", bomb).code, 400);
    }
    let patch = format!("PATCH /api/v1/namespaces/{}/configmaps/a", kubectl.namespace());
    assert_eq!(server.request(&patch, "Content-Type: text/plain\r\n", "x").code, 415);
    let unknown = server.request(
        &format!("{post}?fieldValidation=Warn"),
        "Content-Type: application/json\r\n",
        r#"{"metadata": {"name": "c"}, "typo": "x"}"#,
    );
    assert_eq!(unknown.code, 201);
    assert!(unknown.head.contains("warning: 299 - \"unknown field \\\"typo\\\"\""), "{}", unknown.head);
}

#[test]
fn field_validation_covers_patches_and_yaml() {
    let kubectl = Kubectl::in_namespace("api-fields");
    let server = Server::get();
    let maps = format!("/api/v1/namespaces/{}/configmaps", kubectl.namespace());
    let send = |request: &str, validation: &str, content_type: &str, body: &str| {
        let request = format!("{request}?fieldManager=test&fieldValidation={validation}");
        server.request(&request, &format!("Content-Type: application/{content_type}\r\n"), body)
    };
    let post = |validation: &str| {
        send(&format!("POST {maps}"), validation, "yaml", "metadata:\n  name: a\ntypo: x\n")
    };
    let strict = post("Strict");
    assert_eq!(strict.code, 400);
    assert_eq!(
        strict.json()["message"],
        "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: strict decoding error: unknown field \"typo\""
    );
    let warned = post("Warn");
    assert_eq!(warned.code, 201);
    assert!(warned.head.contains("unknown field \\\"typo\\\""), "{}", warned.head);

    let patch = |validation: &str, content_type: &str, body: &str| {
        send(&format!("PATCH {maps}/a"), validation, content_type, body)
    };
    let message = |answer: &Answer| answer.json()["message"].as_str().unwrap_or_default().to_owned();
    let bodies = [
        ("strategic-merge-patch+json", r#"{"typo": "x"}"#),
        ("merge-patch+json", r#"{"typo": "x"}"#),
        ("json-patch+json", r#"[{"op": "add", "path": "/typo", "value": "x"}]"#),
        ("apply-patch+yaml", "metadata: {name: a}\ntypo: x\n"),
    ];
    for (content_type, body) in bodies {
        let refused = patch("Strict", content_type, body);
        assert_eq!(refused.code, 422, "{content_type}");
        let told = "strict decoding error: unknown field \"typo\"";
        assert!(message(&refused).ends_with(told), "{}", refused.body);
        let warned = patch("Warn", content_type, body);
        assert_eq!(warned.code, 200, "{content_type}");
        assert!(warned.head.contains("unknown field \\\"typo\\\""), "{}", warned.head);
    }
    let ignored = patch("Ignore", "merge-patch+json", r#"{"typo": "x"}"#);
    assert!(ignored.code == 200 && !ignored.head.contains("warning"), "{}", ignored.head);
    let nonsense = patch("Nonsense", "merge-patch+json", "{}");
    assert_eq!(nonsense.code, 422);
    assert!(message(&nonsense).contains("fieldValidation: Unsupported value: \"Nonsense\""));
}

#[test]
fn uid_precondition_blocks_deletion() {
    let kubectl = Kubectl::in_namespace("api-preconditions");
    let server = Server::get();
    let maps = format!("/api/v1/namespaces/{}/configmaps", kubectl.namespace());
    let json = "Content-Type: application/json\r\n";
    let send = |request: &str, body: &str| server.request(request, json, body);
    let created = send(&format!("POST {maps}"), r#"{"metadata": {"name": "a"}}"#).json();
    let uid = created["metadata"]["uid"].as_str().expect("a uid").to_owned();
    let refused = send(&format!("DELETE {maps}/a"), r#"{"preconditions": {"uid": "another"}}"#);
    assert_eq!(refused.code, 409, "{}", refused.body);
    let refused = refused.json();
    assert_eq!(refused["details"]["kind"], "ConfigMap");
    let told = format!(
        "the UID in the precondition (another) does not match the UID in record ({uid}). \
         The object might have been deleted and then recreated"
    );
    assert_eq!(refused["message"], format!("Operation cannot be fulfilled on ConfigMap \"a\": {told}"));
    let version = send(&format!("DELETE {maps}/a"), r#"{"preconditions": {"resourceVersion": "1"}}"#);
    assert_eq!(version.code, 409);
    let meant = format!(r#"{{"preconditions": {{"uid": "{uid}"}}}}"#);
    assert_eq!(send(&format!("DELETE {maps}/a"), &meant).code, 200);
}

#[test]
fn oversized_body_gets_413() {
    let server = Server::get();
    let body = format!("{{\"data\": \"{}\"}}", "x".repeat(4 << 20));
    let answer = server.request(
        "POST /api/v1/namespaces/default/configmaps",
        "Content-Type: application/json\r\n",
        &body,
    );
    assert_eq!((answer.code, answer.json()["reason"].as_str()), (413, Some("RequestEntityTooLarge")));
}

#[test]
fn api_server_disconnects_slow_clients() {
    let server = Server::get();
    let started = Instant::now();
    // One client sends no TLS hello, one never completes its head, one never sends its body.
    let mut silent = TcpStream::connect(&server.address).expect("it listens");
    silent.set_read_timeout(Some(LIMIT)).expect("a timeout");
    let mut half = server.connect();
    half.write_all(b"GET /version HTTP/1.1\r\nHost: api\r\nX-Slow: ").expect("it is sent");
    let mut bodiless = server.connect();
    let head = format!(
        "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: api\r\nAuthorization: Bearer {}\r\n\
         Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{",
        server.token
    );
    bodiless.write_all(head.as_bytes()).expect("it is sent");
    read_answer(&mut silent);
    read_answer(&mut half);
    let mut first = [0; 12];
    bodiless.read_exact(&mut first).expect("a response");
    assert_eq!(&first, b"HTTP/1.1 504");
    assert!(started.elapsed() < LIMIT);
}

#[test]
fn api_server_blocks_path_traversal() {
    let kubectl = Kubectl::in_namespace("api");
    kubectl.apply(&pod("idle", "exec sleep 1000"));
    kubectl.ok("wait pod/idle --for=condition=Ready --timeout=300s");
    let server = Server::get();
    let pods = format!("/api/v1/namespaces/{}/pods", kubectl.namespace());
    for path in [
        format!("{pods}/idle/log?container=../../../../etc/passwd"),
        format!("{pods}/idle/log?container=..%2F..%2Fcluster"),
        format!("{pods}/..%2F..%2F..%2Fetc/log"),
        format!("{pods}/%2e%2e/log"),
        "/api/v1/namespaces/../../etc/pods/passwd/log".to_owned(),
        format!("{pods}/../../../../etc/passwd"),
    ] {
        let answer = server.request(&format!("GET {path}"), "", "");
        assert!(matches!(answer.code, 400 | 404), "{path}: {} {}", answer.code, answer.body);
        assert!(!answer.body.contains("root:"), "{path}");
    }
    // A proxied path always goes to the pod, and nowhere else.
    let answer = server.request(&format!("GET {pods}/idle:1/proxy/../../../../../version"), "", "");
    assert_eq!((answer.code, answer.json()["reason"].as_str()), (503, Some("ServiceUnavailable")));
}

#[test]
fn proxy_subresource_reaches_pods() {
    let kubectl = Kubectl::in_namespace("api");
    kubectl.apply(&Web::new(1).manifests());
    kubectl.ok("rollout status deployment web --timeout=300s");
    let server = Server::get();
    let namespace = format!("/api/v1/namespaces/{}", kubectl.namespace());
    let pod = kubectl.field("pods", ".items[0].metadata.name");
    for path in [
        format!("{namespace}/pods/{pod}:8080/proxy/"),
        format!("{namespace}/pods/{pod}:http/proxy/?with=query"),
        format!("{namespace}/pods/{pod}/proxy"),
    ] {
        assert_eq!(server.request(&format!("GET {path}"), "", "").code, 200, "{path}");
        assert_eq!(server.request(&format!("POST {path}"), "", "hello").code, 200, "{path}");
    }
    assert_eq!(server.request(&format!("GET {namespace}/pods/{pod}:nosuch/proxy/"), "", "").code, 400);
}

/// Starts the watch at `path`; returns its events.
fn watch(server: &Server, path: &str) -> impl Iterator<Item = Value> + use<> {
    let mut stream = server.connect();
    // The response to HTTP/1.0 is not chunked.
    let head = format!("GET {path} HTTP/1.0\r\nAuthorization: Bearer {}\r\n\r\n", server.token);
    stream.write_all(head.as_bytes()).expect("it is sent");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(stream)).map_while(Result::ok);
    lines.by_ref().find(|line| line.is_empty()).expect("the end of the head");
    lines.map(|line| serde_json::from_str(&line).expect("an event"))
}

#[test]
fn watch_resumes_or_reports_expiry() {
    let kubectl = Kubectl::in_namespace("api");
    let server = Server::get();
    let maps = format!("/api/v1/namespaces/{}/configmaps", kubectl.namespace());
    let version =
        |object: &Value| object["metadata"]["resourceVersion"].as_str().expect("a version").to_owned();
    // A controller creates a ConfigMap in each new namespace.
    let settled = || {
        let list = server.get_json(&maps);
        list["items"].as_array().is_some_and(|items| !items.is_empty()).then_some(list)
    };
    let start = version(&wait_for("the namespace's own ConfigMap", LIMIT, settled));
    for name in ["a", "b", "c"] {
        let body = json!({"metadata": {"name": name}}).to_string();
        assert_eq!(server.request(&format!("POST {maps}"), "", &body).code, 201);
    }
    let path = |version: &str| format!("{maps}?watch=1&timeoutSeconds=5&resourceVersion={version}");
    let names = |events: &[Value]| {
        events.iter().map(|event| event["object"]["metadata"]["name"].clone()).collect::<Vec<_>>()
    };
    let all: Vec<_> = watch(&server, &path(&start)).take(3).collect();
    assert_eq!(names(&all), ["a", "b", "c"]);
    let rest: Vec<_> = watch(&server, &path(&version(&all[0]["object"]))).take(2).collect();
    assert_eq!(names(&rest), ["b", "c"]);

    let initial = format!(
        "{maps}?watch=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&timeoutSeconds=5"
    );
    let bookmark = watch(&server, &initial).find(|event| event["type"] == "BOOKMARK").expect("a bookmark");
    assert_eq!(bookmark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");

    // Makes more changes than the server remembers.
    let patch = |n: usize| {
        let body = json!({"data": {"n": n.to_string()}}).to_string();
        format!(
            "PATCH {maps}/a HTTP/1.1\r\nHost: api\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/merge-patch+json\r\nContent-Length: {}\r\n\r\n{body}",
            server.token,
            body.len()
        )
    };
    let mut writer = server.connect();
    for batch in 0..90 {
        let requests: String = (0..100).map(|n| patch(batch * 100 + n)).collect();
        writer.write_all(requests.as_bytes()).expect("they are sent");
        let (mut answers, mut buffer) = (Vec::new(), [0; 65536]);
        let count = |answers: &[u8]| answers.windows(12).filter(|window| window == b"HTTP/1.1 200").count();
        while count(&answers) < 100 {
            let read = writer.read(&mut buffer).expect("answers");
            assert!(read > 0, "closed after {}", String::from_utf8_lossy(&answers));
            answers.extend_from_slice(&buffer[..read]);
        }
    }
    let answer = server.request(&format!("GET {}", path(&start)), "", "");
    assert_eq!((answer.code, answer.json()["reason"].as_str()), (410, Some("Expired")));
}

#[test]
fn idle_connections_yield_to_requests() {
    // This test needs its own cluster, because other tests would lose their connections.
    let cluster = SharedCluster::start("idle-cluster");
    let server = Server::of(&cluster);
    assert!(crate::strangers::files() > 2000, "each connection needs a file descriptor");
    let idle: Vec<_> = (0..700).map_while(|_| TcpStream::connect(&server.address).ok()).collect();
    assert!(idle.len() > 600, "{}", idle.len());
    // Silent clients occupy all slots for longer than this client would wait.
    for _ in 0..20 {
        assert_eq!(server.request("GET /version", "", "").code, 200);
    }
    drop(idle);
}

#[test]
fn watch_sends_only_requested_bookmarks() {
    let kubectl = Kubectl::in_namespace("api");
    let server = Server::get();
    let maps = format!("/api/v1/namespaces/{}/configmaps", kubectl.namespace());
    let version = server.get_json(&maps)["metadata"]["resourceVersion"].clone();
    let version = version.as_str().expect("a version");
    let path = format!("{maps}?watch=1&timeoutSeconds=30&resourceVersion={version}");
    let with = watch(&server, &format!("{path}&allowWatchBookmarks=true"));
    let bookmarks: Vec<_> = with.filter(|event| event["type"] == "BOOKMARK").take(2).collect();
    let number = |bookmark: &Value| -> u64 {
        let version = bookmark["object"]["metadata"]["resourceVersion"].as_str();
        version.and_then(|version| version.parse().ok()).expect("a version")
    };
    assert!(number(&bookmarks[0]) >= version.parse().expect("a number"));
    assert!(number(&bookmarks[1]) >= number(&bookmarks[0]));
    assert_eq!(bookmarks[0]["object"]["kind"], "ConfigMap");
    assert_eq!(bookmarks.len(), 2);
    let without = path.replace("timeoutSeconds=30", "timeoutSeconds=3");
    assert!(watch(&server, &without).all(|event| event["type"] != "BOOKMARK"));
}

#[test]
fn slow_watcher_gets_expired_error() {
    let kubectl = Kubectl::in_namespace("api");
    let server = Server::get();
    let maps = format!("/api/v1/namespaces/{}/configmaps", kubectl.namespace());
    let large = json!({"metadata": {"name": "large"}, "data": {"filler": "x".repeat(900_000)}}).to_string();
    assert_eq!(server.request(&format!("POST {maps}"), "", &large).code, 201);
    let mut slow = server.connect();
    let head = format!("GET {maps}?watch=1 HTTP/1.0\r\nAuthorization: Bearer {}\r\n\r\n", server.token);
    slow.write_all(head.as_bytes()).expect("it is sent");
    let mut read = vec![0; 64 * 1024];
    slow.read_exact(&mut read).expect("the start of a response");
    // Each change is as large as the object. Far more changes arrive than the server remembers, while the watcher reads
    // only a little.
    for n in 0..60 {
        let body = json!({"data": {"n": n.to_string()}}).to_string();
        let patch = "Content-Type: application/merge-patch+json\r\n";
        assert_eq!(server.request(&format!("PATCH {maps}/large"), patch, &body).code, 200);
        let mut more = [0; 64 * 1024];
        slow.read_exact(&mut more).expect("more of the response");
        read.extend_from_slice(&more);
    }
    slow.read_to_end(&mut read).ok();
    let text = String::from_utf8(read).expect("text");
    let last = text.lines().last().expect("a line");
    let last: Value = serde_json::from_str(last).expect("an event");
    assert_eq!((&last["type"], &last["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert_eq!(last["object"]["reason"], "Expired");
}

#[test]
fn api_server_disconnects_stalled_watcher() {
    let kubectl = Kubectl::in_namespace("api");
    let server = Server::get();
    let maps = format!("/api/v1/namespaces/{}/configmaps", kubectl.namespace());
    let filler = "x".repeat(200_000);
    for n in 0..40 {
        let body = json!({"metadata": {"name": format!("m{n}")}, "data": {"filler": filler}}).to_string();
        assert_eq!(server.request(&format!("POST {maps}"), "", &body).code, 201);
    }
    let mut stream = server.connect();
    let head =
        format!("GET {maps}?watch=1 HTTP/1.1\r\nHost: api\r\nAuthorization: Bearer {}\r\n\r\n", server.token);
    stream.write_all(head.as_bytes()).expect("it is sent");
    // 8 MB are in flight, more than any socket buffer holds. The client reads only once.
    stream.read_exact(&mut [0; 100]).expect("the start of a response");
    let port = |address: std::io::Result<std::net::SocketAddr>| address.expect("an address").port();
    let (server_port, own_port) = (port(stream.sock.peer_addr()), port(stream.sock.local_addr()));
    assert!(is_connected(server_port, own_port));
    wait_for("the server to close the connection", LIMIT, || {
        (!is_connected(server_port, own_port)).then_some(())
    });
}

/// Returns true if the connection between two ports on 127.0.0.1 is open, as seen from the first port's side.
fn is_connected(local: u16, remote: u16) -> bool {
    const ESTABLISHED: &str = "01";
    let table = std::fs::read_to_string("/proc/net/tcp").expect("the table of connections");
    let ends = [format!("0100007F:{local:04X}"), format!("0100007F:{remote:04X}")];
    table.lines().any(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        words.get(1..4).is_some_and(|words| words == [&ends[0], &ends[1], ESTABLISHED])
    })
}
