//! HTTP client for probes and hooks: one GET on its own connection.
//!
//! Like a kubelet's client, it does not verify an HTTPS server's certificate. Unlike a kubelet's client, it does not
//! follow redirects. Its errors use Go's wording, because people search for it.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::Request;
use hyper::header::{ACCEPT, CONNECTION, HOST, USER_AGENT};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{WebPkiSupportedAlgorithms, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error as TlsError, SignatureScheme};

/// An HTTP request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HttpGet {
    pub(super) scheme: HttpGetScheme,
    pub(super) host: String,
    pub(super) port: u16,
    /// Path including the query.
    pub(super) path: String,
    pub(super) headers: Vec<(String, String)>,
    /// User agent, unless the headers contain one.
    pub(super) agent: String,
}

/// Scheme of the URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HttpGetScheme {
    Http,
    Https,
}

impl HttpGet {
    pub(super) fn url(&self) -> String {
        let scheme = match self.scheme {
            HttpGetScheme::Http => "http",
            HttpGetScheme::Https => "https",
        };
        format!("{scheme}://{}{}", authority(&self.host, self.port), self.path)
    }

    /// Sends the request and returns the status of the response.
    ///
    /// # Errors
    ///
    /// The reason why there was no response.
    pub(super) async fn run(&self) -> Result<u16, String> {
        self.ask().await.map_err(|why| format!("Get \"{}\": {why}", self.url()))
    }

    async fn ask(&self) -> Result<u16, String> {
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

    async fn ask_over(&self, stream: impl AsyncRead + AsyncWrite + Unpin) -> Result<u16, String> {
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
        answer.map(|answer| answer.status().as_u16()).map_err(|error| in_words(&error))
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
    async fn refused_connection_error_matches_kubelet() {
        let closed = "127.0.0.1:1";
        let get = HttpGet { host: "127.0.0.1".to_owned(), port: 1, ..get("/readyz") };
        let error = get.run().await.unwrap_err();
        assert_eq!(
            error,
            format!("Get \"http://{closed}/readyz\": dial tcp {closed}: connect: connection refused")
        );
    }
}
