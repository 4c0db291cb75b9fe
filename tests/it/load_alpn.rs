//! `rolldrop load` over TLS against nginx, which chooses the protocol: HTTP/2 where it is offered and configured,
//! HTTP/1.1 elsewhere. The rows are compared with nginx's own log.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rcgen::{CertificateParams, SanType};
use rolldrop_record::parts::read_table;
use rolldrop_record::{Outcome, RequestRow};

use crate::harness::{LIMIT, OWN_PORT, Rolldrop, own_host, wait_for};
use crate::load_tls::Authority;

/// nginx in the foreground, in its own directory, until it is dropped.
struct Nginx {
    process: Child,
    dir: tempfile::TempDir,
    host: Ipv4Addr,
    /// Ports for HTTP/2 or 1.1, for 1.1 only, and for HTTP/2 with client certificates.
    ports: [u16; 3],
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Nginx {
    /// Starts nginx, configured to close a connection after this many requests.
    fn start(requests: u64) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let authority = Authority::new();
        let host = own_host();
        let named =
            |params: &mut CertificateParams| params.subject_alt_names.push(SanType::IpAddress(host.into()));
        let (server, client) = (authority.sign(named), authority.sign(|_| {}));
        // No other process takes the ports before nginx does.
        let ports = [OWN_PORT, OWN_PORT + 1, OWN_PORT + 2];
        let [either, only1, known] = ports;
        let config = format!(
            "daemon off; master_process off; pid nginx.pid; error_log error.log;
             events {{ worker_connections 512; }}
             http {{
               log_format ids '$http_rolldrop_id $server_protocol $status';
               access_log access.log ids;
               client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;
               ssl_certificate server.pem; ssl_certificate_key server.key; keepalive_requests {requests};
               server {{ listen {host}:{either} ssl http2; location / {{ return 200 'hello'; }} }}
               server {{ listen {host}:{only1} ssl; location / {{ return 200 'hello'; }} }}
               server {{ listen {host}:{known} ssl http2; ssl_client_certificate ca.pem; ssl_verify_client on;
                         location / {{ return 200 'hello'; }} }}
             }}"
        );
        for (name, text) in [
            ("nginx.conf", config),
            ("ca.pem", authority.pem),
            ("server.pem", server.certificate_pem),
            ("server.key", server.key_pem),
            ("client.pem", client.certificate_pem + &client.key_pem),
        ] {
            fs::write(dir.path().join(name), text).expect("a file");
        }
        let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
        let process = Command::new("nginx")
            .args(["-c", "nginx.conf", "-p"])
            .arg(dir.path())
            .env("PATH", path)
            .stderr(Stdio::null())
            .spawn()
            .expect("scripts/test installs nginx");
        let nginx = Self { process, dir, host, ports };
        wait_for("nginx to listen", LIMIT, || std::net::TcpStream::connect((host, known)).ok());
        nginx
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// Runs a load on one of the ports; returns the rows.
    fn load(&self, port: usize, args: &[&str]) -> Vec<RequestRow> {
        let ca = self.path("ca.pem");
        let url = format!("https://{}:{}/", self.host, self.ports[port]);
        let trust: &[&str] = if args.contains(&"--insecure") { &[] } else { &["--cacert", &ca] };
        let finished = Rolldrop::new(["load", &url, "--out", "run", "--quiet"])
            .args(["--connect-timeout", "60s", "--tls-timeout", "60s", "--response-timeout", "60s"])
            .args(trust)
            .args(args)
            .finish()
            .expect_code(0);
        let rows = read_table::<RequestRow>(&finished.dir().join("run")).expect("rows");
        assert!(!rows.is_empty(), "{finished}");
        rows
    }

    /// Returns the protocol and status that nginx logged, by request id. nginx logs a request once it is done.
    fn log(&self, requests: usize) -> Vec<(String, String)> {
        let path = self.dir.path().join("access.log");
        wait_for("nginx's log", LIMIT, || {
            let lines = lines(&path);
            (lines.len() >= requests).then_some(lines)
        })
    }
}

/// Returns each request's id, without the part shared by the whole run, with its nginx log entry.
fn lines(path: &Path) -> Vec<(String, String)> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let entry = |line: &str| {
        let (id, rest) = line.split_once(' ')?;
        Some((id.split_once('-')?.1.to_owned(), rest.to_owned()))
    };
    text.lines().filter_map(entry).collect()
}

/// Checks that all rows record responses in this protocol.
#[track_caller]
fn assert_spoken(rows: &[RequestRow], is_http2: bool) {
    for row in rows {
        assert_eq!((row.outcome, row.status), (Outcome::Ok, Some(200)), "{row:?}");
        assert_eq!(row.stream.is_some(), is_http2, "{row:?}");
        assert_eq!(row.tls_session.is_some(), !row.conn_reused, "{row:?}");
    }
}

const TEN: [&str; 4] = ["-n", "10", "-r", "100"];

#[test]
fn alpn_decides_protocol_unless_forced() {
    let nginx = Nginx::start(1000);
    for connections in ["fresh", "keepalive"] {
        let how = [&TEN[..], &["--connections", connections]].concat();
        let with = |more: &[&'static str]| [&how[..], more].concat();
        assert_spoken(&nginx.load(0, &how), true);
        assert_spoken(&nginx.load(0, &with(&["--http", "auto", "--tls-max", "1.2"])), true);
        assert_spoken(&nginx.load(0, &with(&["--http", "2", "--insecure"])), true);
        assert_spoken(&nginx.load(0, &with(&["--http", "1.1"])), false);
        assert_spoken(&nginx.load(1, &how), false);
        for row in nginx.load(1, &with(&["--http", "2"])) {
            assert_eq!(row.outcome, Outcome::TlsError, "{row:?}");
            assert!(row.sent.is_none() && row.detail.is_some(), "{row:?}");
        }
    }
    // Five loads with ten requests each were sent, twice.
    let log = nginx.log(100);
    let spoken = |name| log.iter().filter(|(_, line)| line == name).count();
    assert_eq!((spoken("HTTP/2.0 200"), spoken("HTTP/1.1 200")), (60, 40), "{log:?}");
}

#[test]
fn http2_sends_client_certificate() {
    let nginx = Nginx::start(1000);
    let cert = nginx.path("client.pem");
    assert_spoken(&nginx.load(2, &[&TEN[..], &["--cert", &cert]].concat()), true);
    // Without a certificate, nginx responds over HTTP/2 that one is required.
    for row in nginx.load(2, &TEN) {
        assert_eq!((row.outcome, row.status), (Outcome::HttpError, Some(400)), "{row:?}");
        assert!(row.stream.is_some(), "{row:?}");
    }
}

#[test]
fn kept_connection_keeps_negotiated_protocol() {
    let nginx = Nginx::start(1000);
    let busy = ["-r", "max", "-n", "400", "-c", "5", "--connections", "keepalive"];
    for (port, is_http2) in [(0, true), (1, false)] {
        let rows = nginx.load(port, &busy);
        assert_eq!(rows.len(), 400);
        assert_spoken(&rows, is_http2);
        let opened = rows.iter().filter(|row| !row.conn_reused).count();
        assert!((1..=5).contains(&opened), "{opened} connections");
    }
}

/// nginx closes a connection after some requests: with a GOAWAY in HTTP/2, with `Connection: close` in HTTP/1.1.
#[test]
fn outcomes_match_nginx_log() {
    for (port, name) in [(0, "HTTP/2.0 200"), (1, "HTTP/1.1 200")] {
        let nginx = Nginx::start(20);
        let rows = nginx.load(port, &["-r", "1000", "-n", "1000", "--connections", "keepalive"]);
        let answered = rows.iter().filter(|row| row.outcome == Outcome::Ok).count();
        let log: BTreeMap<_, _> = nginx.log(answered).into_iter().collect();
        for row in rows.iter().filter(|row| row.outcome != Outcome::NotSent) {
            let logged = log.get(&format!("{}-{}", row.source, row.seq)).map(String::as_str);
            match row.outcome {
                Outcome::Ok => assert_eq!(logged, Some(name), "{row:?}"),
                Outcome::H2Goaway => assert_eq!(logged, None, "{row:?}"),
                _ => panic!("{row:?} {logged:?}"),
            }
        }
        let connections = rows.iter().filter(|row| !row.conn_reused).count();
        assert!(answered >= 100 && connections >= 5, "{answered} answered over {connections} connections");
    }
}
