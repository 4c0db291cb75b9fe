//! `rolldrop load` over TLS against servers that each fail in one way. The rows are compared with the server's
//! behaviour, and the presence of a response with curl's result.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rolldrop_record::parts::read_table;
use rolldrop_record::{Outcome, RequestRow};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    DEFAULT_VERSIONS, RootCertStore, ServerConfig, ServerConnection, StreamOwned, SupportedProtocolVersion,
};

use crate::harness::{Finished, Rolldrop};

const NAME: &str = "web.test";

/// A certificate authority.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pub(crate) pem: String,
}

/// A certificate and its key.
pub(crate) struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    pub(crate) certificate_pem: String,
    pub(crate) key_pem: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        Self::named("an authority")
    }

    fn named(name: &str) -> Self {
        let mut params = CertificateParams::new([]).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // OpenSSL, and therefore curl, treats a certificate with its issuer's name as self-signed.
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        Self {
            pem: certificate.pem(),
            certificate: certificate.der().clone(),
            issuer: Issuer::new(params, key),
        }
    }

    pub(crate) fn sign(&self, change: impl FnOnce(&mut CertificateParams)) -> Identity {
        let names = [NAME, "127.0.0.1", "::1"].map(str::to_owned);
        let mut params = CertificateParams::new(names).expect("parameters");
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        Identity {
            certificate: certificate.der().clone(),
            key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
        }
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).expect("an authority");
        Arc::new(roots)
    }
}

/// Treatment of a request by the server.
#[derive(Clone, Copy, Debug)]
enum Answer {
    /// Sends a complete response.
    Whole,
    /// Announces more than it sends, and closes the connection without closing TLS.
    CutShort,
    /// Sends a body without a length, and closes TLS and the connection.
    UntilClose,
    /// Sends a body without a length, and closes only the connection.
    UntilCut,
}

type ServerNames = Arc<Mutex<Vec<Option<String>>>>;

/// Serves until the test process exits. Returns the address, and the server names that clients request.
fn serve(at: &str, config: ServerConfig, answer: Answer) -> (SocketAddr, ServerNames) {
    let (config, names) = (Arc::new(config), ServerNames::default());
    let asked = Arc::clone(&names);
    let address = accept(at, move |stream| {
        let (config, asked) = (Arc::clone(&config), Arc::clone(&asked));
        std::thread::spawn(move || {
            let mut tls = StreamOwned::new(ServerConnection::new(config).expect("a session"), stream);
            // Any way in which the client closes the connection is fine.
            let _ = talk(&mut tls, answer, &asked);
        });
    });
    (address, names)
}

fn talk(
    tls: &mut StreamOwned<ServerConnection, TcpStream>,
    answer: Answer,
    asked: &Mutex<Vec<Option<String>>>,
) -> std::io::Result<()> {
    loop {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            if tls.read(&mut byte)? == 0 {
                return Ok(());
            }
            request.push(byte[0]);
        }
        asked.lock().expect("the names").push(tls.conn.server_name().map(str::to_owned));
        let text: &[u8] = match answer {
            Answer::Whole => b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
            Answer::CutShort => b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello",
            Answer::UntilClose | Answer::UntilCut => b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhello",
        };
        tls.write_all(text)?;
        tls.flush()?;
        if let Answer::UntilClose = answer {
            tls.conn.send_close_notify();
            tls.flush()?;
        }
        if !matches!(answer, Answer::Whole) {
            return tls.sock.shutdown(Shutdown::Write);
        }
    }
}

fn accept(at: &str, serve: impl Fn(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind(at).expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || listener.incoming().flatten().for_each(serve));
    address
}

fn config(identity: &Identity) -> ServerConfig {
    config_of(identity, DEFAULT_VERSIONS, None)
}

fn config_of(
    identity: &Identity,
    versions: &[&'static SupportedProtocolVersion],
    clients: Option<&Authority>,
) -> ServerConfig {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .expect("versions");
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(authority.roots(), provider);
            builder.with_client_cert_verifier(verifier.build().expect("a verifier"))
        }
    };
    let mut config = builder
        .with_single_cert(vec![identity.certificate.clone()], identity.key.clone_key())
        .expect("a certificate with its key");
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}

/// Files that appear in the tests' arguments.
struct Files(Vec<(&'static str, String)>);

impl Files {
    fn rolldrop(&self, args: &[&str]) -> Rolldrop {
        let load = Rolldrop::new(["load"]).args(args);
        self.0.iter().fold(load, |load, (name, text)| load.file(name, text))
    }

    /// Sends five requests, and returns their rows.
    fn load(&self, url: &str, args: &[&str]) -> (Vec<RequestRow>, Finished) {
        let pace: &[&str] = if args.contains(&"-r") { &[] } else { &["-r", "50"] };
        let finished = self
            .rolldrop(&[url, "-n", "5", "--out", "run", "--quiet"])
            .args(pace)
            .args(["--connect-timeout", "60s", "--response-timeout", "60s"])
            .args(args)
            .finish()
            .expect_code(0);
        let rows = read_table::<RequestRow>(&finished.dir().join("run")).expect("rows");
        assert_eq!(rows.len(), 5, "{finished}");
        (rows, finished)
    }

    /// Fails unless every row has this outcome, and curl agrees on whether there was a response. Arguments have the
    /// same meaning for both programs.
    #[track_caller]
    fn expect(&self, url: &str, args: &[&str], outcome: Outcome, detail: Option<&str>, curl_codes: &[i32]) {
        let timeouts: &[&str] = if args.contains(&"--tls-timeout") { &[] } else { &["--tls-timeout", "60s"] };
        let (rows, finished) = self.load(url, &[args, timeouts].concat());
        for row in &rows {
            assert_eq!((row.outcome, row.detail.as_deref()), (outcome, detail), "{row:?}\n{finished}");
            assert!(row.connected.is_some() && row.errno.is_none(), "{row:?}");
            let has_session = row.tls_session.is_some();
            assert_eq!((row.tls.is_some(), row.sent.is_some()), (has_session, has_session), "{row:?}");
        }
        let is_ours = |arg: &&&str| !arg.starts_with("--tls-timeout") && !arg.ends_with("ms");
        // curl gives up early only where no response ever arrives.
        let patience = if args.contains(&"--tls-timeout") { "2" } else { "300" };
        let curl = Command::new("curl")
            .args([
                "--silent",
                "--noproxy",
                "*",
                "--output",
                "/dev/null",
                "--http1.1",
                "--max-time",
                patience,
            ])
            .args(args.iter().filter(is_ours))
            .arg(url)
            .current_dir(finished.dir())
            .status()
            .expect("curl");
        let code = curl.code().expect("an exit code");
        assert!(curl_codes.contains(&code), "curl {args:?} exited with {code}\n{finished}");
    }
}

fn files(authority: &Authority) -> Files {
    Files(vec![("ca.pem", authority.pem.clone())])
}

const CA: [&str; 2] = ["--cacert", "ca.pem"];

#[test]
fn certificate_checks_match_curl() {
    let authority = Authority::new();
    let files = files(&authority);
    let url = |address: SocketAddr| format!("https://{address}/");
    let good = authority.sign(|_| {});
    let (v4, _) = serve("127.0.0.1:0", config(&good), Answer::Whole);
    let (v6, _) = serve("[::1]:0", config(&good), Answer::Whole);
    files.expect(&url(v4), &CA, Outcome::Ok, None, &[0]);
    files.expect(&url(v6), &CA, Outcome::Ok, None, &[0]);
    files.expect(&url(v4), &["--insecure"], Outcome::Ok, None, &[0]);
    let unknown = Some("certificate unknown_issuer");
    let strangers = Files(vec![("ca.pem", Authority::named("a stranger").pem)]);
    strangers.expect(&url(v4), &CA, Outcome::TlsError, unknown, &[60]);
    let (_, finished) = strangers.load(&url(v4), &CA);
    assert!(finished.stdout().contains("(5 × certificate unknown_issuer)"), "{finished}");

    let expired = authority.sign(|params| params.not_after = rcgen::date_time_ymd(2020, 1, 1));
    let (expired, _) = serve("127.0.0.1:0", config(&expired), Answer::Whole);
    files.expect(&url(expired), &CA, Outcome::TlsError, Some("certificate expired"), &[60]);
    files.expect(&url(expired), &["--insecure"], Outcome::Ok, None, &[0]);

    let other = authority.sign(|params| {
        params.subject_alt_names =
            CertificateParams::new(["other.test".to_owned()]).expect("a name").subject_alt_names;
    });
    let (other, _) = serve("127.0.0.1:0", config(&other), Answer::Whole);
    let wrong_name = Some("certificate not_valid_for_name");
    files.expect(&url(other), &CA, Outcome::TlsError, wrong_name, &[60]);
    let (rows, finished) = files.load(&url(other), &["--cacert", "ca.pem", "--server-name", "other.test"]);
    assert!(rows.iter().all(|row| row.outcome == Outcome::Ok), "{finished}");
}

#[test]
fn connect_to_keeps_server_name() {
    let authority = Authority::new();
    let (address, names) = serve("127.0.0.1:0", config(&authority.sign(|_| {})), Answer::Whole);
    let to = format!("{NAME}:443:127.0.0.1:{}", address.port());
    let connect_to = ["--connect-to", &to, "--cacert", "ca.pem"];
    files(&authority).expect(&format!("https://{NAME}/"), &connect_to, Outcome::Ok, None, &[0]);
    let names = names.lock().expect("the names");
    assert!(names.len() == 6 && names.iter().all(|name| name.as_deref() == Some(NAME)), "{names:?}");
}

#[test]
fn missing_client_certificate_records_alert() {
    let authority = Authority::new();
    let (server, client) = (authority.sign(|_| {}), authority.sign(|_| {}));
    let config = config_of(&server, DEFAULT_VERSIONS, Some(&authority));
    let (address, _) = serve("127.0.0.1:0", config, Answer::Whole);
    let mut files = files(&authority);
    let both = format!("{}{}", client.certificate_pem, client.key_pem);
    files.0.extend([("cert.pem", client.certificate_pem), ("key.pem", client.key_pem), ("both.pem", both)]);
    let url = format!("https://{address}/");
    // In TLS 1.3, the server's alert arrives after the client has finished the handshake and sent the request.
    let missing = Some("alert certificate_required (116)");
    files.expect(&url, &CA, Outcome::TlsError, missing, &[35, 56]);
    let (rows, finished) = files.load(&url, &["--cacert", "ca.pem", "--tls-max", "1.2"]);
    let refused = |row: &RequestRow| {
        row.outcome == Outcome::TlsError
            && row.tls.is_none()
            && row.detail.as_deref().is_some_and(|detail| detail.starts_with("alert "))
    };
    assert!(rows.iter().all(refused), "{rows:?}\n{finished}");
    let with_key = ["--cacert", "ca.pem", "--cert", "cert.pem", "--key", "key.pem"];
    files.expect(&url, &with_key, Outcome::Ok, None, &[0]);
    files.expect(&url, &["--cacert", "ca.pem", "--cert", "both.pem"], Outcome::Ok, None, &[0]);
}

#[test]
fn failed_handshake_records_reason() {
    let authority = Authority::new();
    let files = files(&authority);
    let url = |address: SocketAddr| format!("https://{address}/");
    let only13 = config_of(&authority.sign(|_| {}), &[&TLS13], None);
    let (only13, _) = serve("127.0.0.1:0", only13, Answer::Whole);
    let version = Some("alert protocol_version (70)");
    files.expect(&url(only13), &["--insecure", "--tls-max", "1.2"], Outcome::TlsError, version, &[35]);
    files.expect(&url(only13), &["--insecure", "--tlsv1.3"], Outcome::Ok, None, &[0]);

    let plain = accept("127.0.0.1:0", |mut stream| {
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n");
    });
    files.expect(&url(plain), &["--insecure"], Outcome::TlsError, Some("not_tls"), &[35]);

    let closing = accept("127.0.0.1:0", |mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.shutdown(Shutdown::Write);
    });
    files.expect(&url(closing), &["--insecure"], Outcome::EofBeforeResponse, None, &[35]);

    let held = Mutex::new(Vec::new());
    let silent = accept("127.0.0.1:0", move |stream| held.lock().expect("the streams").push(stream));
    let args = ["--insecure", "--tls-timeout", "100ms"];
    files.expect(&url(silent), &args, Outcome::TlsError, Some("timeout"), &[28]);
}

#[test]
fn missing_close_notify_truncates_body() {
    let authority = Authority::new();
    let files = files(&authority);
    let cut = Some("no_close_notify");
    for (answer, outcome, detail, curl_codes) in [
        (Answer::UntilClose, Outcome::Ok, None, &[0][..]),
        // Some builds of curl accept the body as complete.
        (Answer::UntilCut, Outcome::TruncatedBody, cut, &[0, 56]),
        (Answer::CutShort, Outcome::TruncatedBody, cut, &[18, 56]),
    ] {
        let (address, _) = serve("127.0.0.1:0", config(&authority.sign(|_| {})), answer);
        files.expect(&format!("https://{address}/"), &CA, outcome, detail, curl_codes);
    }
}

#[test]
fn tls_resume_option_resumes_sessions() {
    let authority = Authority::new();
    let (address, _) = serve("127.0.0.1:0", config(&authority.sign(|_| {})), Answer::Whole);
    let (files, url) = (files(&authority), format!("https://{address}/"));
    let sessions = |args: &[&str]| {
        let (mut rows, _) = files.load(&url, args);
        rows.sort_by_key(|row| row.seq);
        rows.iter().map(|row| row.tls_session.map(|session| session.as_str())).collect::<Vec<_>>()
    };
    assert_eq!(sessions(&CA), [Some("1.3"); 5]);
    // Requests are sent one after another so that a session is available once the previous response has arrived.
    let resumed =
        sessions(&["--cacert", "ca.pem", "--tls-resume", "-r", "max", "-c", "1", "--connections", "fresh"]);
    assert_eq!((resumed[0], resumed[4]), (Some("1.3"), Some("1.3 resumed")), "{resumed:?}");
    let kept = sessions(&["--cacert", "ca.pem", "--connections", "keepalive", "-c", "1"]);
    assert_eq!(kept.iter().flatten().count(), 1, "one handshake for one connection: {kept:?}");
}

#[test]
fn bad_tls_options_fail_before_connecting() {
    let authority = Authority::new();
    let (one, another) = (authority.sign(|_| {}), authority.sign(|_| {}));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a listener");
    let address = listener.local_addr().expect("an address");
    let files = Files(vec![
        ("ca.pem", authority.pem.clone()),
        ("none.pem", "nothing".to_owned()),
        ("cert.pem", one.certificate_pem),
        ("key.pem", another.key_pem),
    ]);
    let (tls, plain) = (format!("https://{address}/"), format!("http://{address}/"));
    for (url, args, expected) in [
        (&tls, &["--cacert", "no.pem"][..], "failed to read the --cacert file no.pem: No such file"),
        (&tls, &["--cacert", "none.pem"], "the CA file (--cacert) contains no PEM certificate"),
        (&tls, &["--cert", "none.pem"], "the client certificate has no PEM private key"),
        (&tls, &["--cert", "cert.pem"], "the client certificate has no PEM private key"),
        (&tls, &["--cert", "cert.pem", "--key", "key.pem"], "the private key does not match the certificate"),
        (&tls, &["--key", "key.pem"], "--cert"),
        (&tls, &["--server-name", "a b"], "\"a b\" is not a valid TLS server name"),
        (&tls, &["--tlsv1.3", "--tls-max", "1.2"], "exclude every TLS version"),
        (&tls, &["--unix-socket", "no.sock"], "no.sock is not a Unix socket: No such file"),
        (&tls, &["--unix-socket", "ca.pem"], "ca.pem is not a Unix socket: it is another kind of file"),
        (&tls, &["--ipv6"], "127.0.0.1 is not an IPv6 address: remove --ipv6"),
        (&plain, &["--insecure"], "TLS options are set, but no URL starts with https://"),
        (&"ftp://web/".to_owned(), &[], "scheme \"ftp\" is not supported: use http, https, ws or wss"),
    ] {
        let finished = files.rolldrop(&[url]).args(args).finish().expect_code(2);
        assert!(finished.stderr().contains(expected), "{expected}\n{finished}");
    }
    let accepted = listener.accept().map_err(|e| e.kind());
    assert_eq!(accepted.err(), Some(ErrorKind::WouldBlock), "no client connected");
}
