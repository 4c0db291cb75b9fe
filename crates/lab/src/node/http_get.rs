//! HTTP client for probes and hooks: one GET on its own connection.
//!
//! Like a kubelet's client, it does not verify an HTTPS server's certificate and follows redirects within the same
//! host. Its errors use Go's wording, since people search for it.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::Request;
use hyper::header::{ACCEPT, CONNECTION, HOST, LOCATION, USER_AGENT};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{WebPkiSupportedAlgorithms, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error as TlsError, SignatureScheme};

/// Maximum number of redirects to follow (Go's `http.Client`).
const MAX_REDIRECTS: u32 = 10;

/// An HTTP request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HttpGet {
    pub(super) scheme: HttpGetScheme,
    pub(super) host: String,
    pub(super) port: u16,
    /// Path including the query.
    pub(super) path: String,
    pub(super) headers: Vec<(String, String)>,
    /// User agent, unless the headers name one.
    pub(super) agent: String,
}

/// Scheme of the URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HttpGetScheme {
    Http,
    Https,
}

/// Head of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HttpGetResponse {
    pub(super) status: u16,
    location: Option<String>,
}

impl HttpGet {
    pub(super) fn url(&self) -> String {
        let scheme = match self.scheme {
            HttpGetScheme::Http => "http",
            HttpGetScheme::Https => "https",
        };
        format!("{scheme}://{}{}", authority(&self.host, self.port), self.path)
    }

    /// Sends the request and follows redirects to the same host.
    ///
    /// # Errors
    ///
    /// The reason why there was no response.
    pub(super) async fn run(&self) -> Result<HttpGetResponse, String> {
        let mut get = self.clone();
        for _ in 0..MAX_REDIRECTS {
            let answer = get.run_once().await?;
            let next = answer.location.as_deref().filter(|_| (300..400).contains(&answer.status));
            match next.and_then(|location| get.redirected(location)) {
                Some(next) => get = next,
                None => return Ok(answer),
            }
        }
        Err(format!("Get \"{}\": stopped after {MAX_REDIRECTS} redirects", get.url()))
    }

    /// Sends the request once.
    ///
    /// # Errors
    ///
    /// The reason why there was no response.
    pub(super) async fn run_once(&self) -> Result<HttpGetResponse, String> {
        self.ask().await.map_err(|why| format!("Get \"{}\": {why}", self.url()))
    }

    async fn ask(&self) -> Result<HttpGetResponse, String> {
        let address = authority(&self.host, self.port);
        let stream = TcpStream::connect(&address)
            .await
            .map_err(|error| format!("dial tcp {address}: {}", network_error(&error)))?;
        match self.scheme {
            HttpGetScheme::Http => self.ask_over(stream).await,
            HttpGetScheme::Https => {
                let name = ServerName::try_from(self.host.clone()).map_err(|error| error.to_string())?;
                let connector = TlsConnector::from(Arc::new(unverifying()?));
                let stream =
                    connector.connect(name, stream).await.map_err(|error| format!("tls: {error}"))?;
                self.ask_over(stream).await
            }
        }
    }

    async fn ask_over(&self, stream: impl AsyncRead + AsyncWrite + Unpin) -> Result<HttpGetResponse, String> {
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
        let request = self.request().map_err(|error| error.to_string())?;
        let answer = sender.send_request(request);
        tokio::pin!(answer, connection);
        // The connection must be driven until the response head arrives; the connection may close first.
        let answer = tokio::select! {
            answer = &mut answer => answer,
            _ = &mut connection => answer.await,
        };
        let answer = answer.map_err(|error| in_words(&error))?;
        let location = answer.headers().get(LOCATION).and_then(|to| to.to_str().ok()).map(str::to_owned);
        Ok(HttpGetResponse { status: answer.status().as_u16(), location })
    }

    fn request(&self) -> Result<Request<Empty<Bytes>>, hyper::http::Error> {
        let given = |wanted: &str| self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(wanted));
        let mut request = Request::get(&self.path).header(CONNECTION, "close");
        if !given("host") {
            request = request.header(HOST, authority(&self.host, self.port));
        }
        if !given("user-agent") {
            request = request.header(USER_AGENT, &self.agent);
        }
        if !given("accept") {
            request = request.header(ACCEPT, "*/*");
        }
        for (name, value) in &self.headers {
            // An empty Accept means that the header is not sent.
            if !(name.eq_ignore_ascii_case("accept") && value.is_empty()) {
                request = request.header(name, value);
            }
        }
        request.body(Empty::new())
    }

    /// Returns the request after a redirect; `None` if the redirect leads to another host.
    fn redirected(&self, location: &str) -> Option<Self> {
        if location.starts_with('/') && !location.starts_with("//") {
            return Some(Self { path: location.to_owned(), ..self.clone() });
        }
        let uri: hyper::Uri = location.parse().ok()?;
        let (scheme, default_port) = match uri.scheme_str()? {
            "http" => (HttpGetScheme::Http, 80),
            "https" => (HttpGetScheme::Https, 443),
            _ => return None,
        };
        if uri.host()?.trim_matches(['[', ']']) != self.host {
            return None;
        }
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Some(Self { scheme, port: uri.port_u16().unwrap_or(default_port), path, ..self.clone() })
    }
}

/// Formats `host:port`, with an IPv6 address in brackets.
pub(super) fn authority(host: &str, port: u16) -> String {
    match host.parse() {
        Ok(IpAddr::V6(ip)) => format!("[{ip}]:{port}"),
        _ => format!("{host}:{port}"),
    }
}

/// Describes in Go's words why a connection could not be established.
pub(super) fn network_error(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
        io::ErrorKind::ConnectionReset => "connect: connection reset by peer".to_owned(),
        io::ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
        io::ErrorKind::NetworkUnreachable => "connect: network is unreachable".to_owned(),
        io::ErrorKind::TimedOut => "i/o timeout".to_owned(),
        _ => error.to_string(),
    }
}

/// Describes in Go's words why there was no response on a connection.
fn in_words(error: &hyper::Error) -> String {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(at) = cause {
        if let Some(io) = at.downcast_ref::<io::Error>()
            && io.kind() == io::ErrorKind::ConnectionReset
        {
            return "read: connection reset by peer".to_owned();
        }
        cause = at.source();
    }
    if error.is_incomplete_message() || error.is_canceled() { "EOF".to_owned() } else { error.to_string() }
}

fn unverifying() -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Unverifying(provider.signature_verification_algorithms);
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(config.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth())
}

/// Verifier that accepts any certificate, because a probe has nothing to verify it against.
#[derive(Debug)]
struct Unverifying(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for Unverifying {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        tokio_rustls::rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        tokio_rustls::rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str) -> HttpGet {
        HttpGet {
            scheme: HttpGetScheme::Http,
            host: "127.64.1.1".to_owned(),
            port: 8080,
            path: path.to_owned(),
            headers: Vec::new(),
            agent: "kube-probe/1.36".to_owned(),
        }
    }

    #[test]
    fn redirects_stay_within_the_host() {
        let at = |location: &str| get("/").redirected(location).map(|get| get.url());
        assert_eq!(at("/healthz?a=b").unwrap(), "http://127.64.1.1:8080/healthz?a=b");
        assert_eq!(at("http://127.64.1.1:9090/x").unwrap(), "http://127.64.1.1:9090/x");
        assert_eq!(at("https://127.64.1.1/").unwrap(), "https://127.64.1.1:443/");
        assert_eq!(at("http://127.64.1.2:8080/"), None);
        assert_eq!(at("//127.64.1.2/"), None);
    }

    #[test]
    fn manifest_headers_override_probe_defaults() {
        let headers = [("Host", "shop.example"), ("Accept", ""), ("X-A", "1"), ("X-A", "2")];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let request = HttpGet { headers, ..get("/") }.request().unwrap();
        let all = |name: &str| request.headers().get_all(name).iter().collect::<Vec<_>>();
        assert_eq!(all("host"), ["shop.example"]);
        assert!(all("accept").is_empty());
        assert_eq!(all("x-a"), ["1", "2"]);
        assert_eq!(all("user-agent"), ["kube-probe/1.36"]);
    }

    #[tokio::test]
    async fn refused_connection_matches_kubelet_message() {
        let closed = "127.0.0.1:1";
        let get = HttpGet { host: "127.0.0.1".to_owned(), port: 1, ..get("/readyz") };
        let error = get.run().await.unwrap_err();
        assert_eq!(
            error,
            format!("Get \"http://{closed}/readyz\": dial tcp {closed}: connect: connection refused")
        );
    }
}
