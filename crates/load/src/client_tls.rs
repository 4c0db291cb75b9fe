//! TLS: the user's settings, the client built from them, and the ways in which a handshake can fail.
//!
//! Uses rustls with ring. It verifies what the user's settings require and sends no early data; every request is sent
//! after the handshake. `exchange` decides the outcome of a failure; [`fault`] returns the failures that TLS itself
//! reports.

mod verify;

use std::fmt;
use std::io;
use std::sync::Arc;

use tokio::io::AsyncReadExt;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::{Resumption, WebPkiServerVerifier};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{
    self, ClientConfig, HandshakeKind, InvalidMessage, ProtocolVersion, RootCertStore,
};

use super::socket_transport::{ClientSocket, TlsTransport};
use rolldrop_record::load::{Http, TlsSettings, TlsVersions};
use rolldrop_record::{Secret, TlsSession};
use verify::Unverified;

/// Reason why a user's TLS settings cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// The certificate authorities cannot be read.
    #[error("the CA file (--cacert) contains no PEM certificate: {0}")]
    Ca(String),
    /// A certificate authority is invalid.
    #[error("the CA file (--cacert) contains an unusable certificate: {0}")]
    BadCa(String),
    /// The client's certificate cannot be read.
    #[error("the client certificate file (--cert) contains no PEM certificate: {0}")]
    Cert(String),
    /// The client's key cannot be read.
    #[error("the client certificate has no PEM private key (--key, or in the --cert file): {0}")]
    Key(String),
    /// There is a key but no certificate.
    #[error("a client key (--key) needs a certificate: add --cert FILE")]
    KeyAlone,
    /// The certificate and the key do not match.
    #[error("failed to use the client certificate and key (--cert, --key): {0}")]
    Identity(String),
    /// The system has no certificate authorities.
    #[error("the system has no CA certificates: add --cacert FILE or --insecure ({0})")]
    NoRoots(String),
    /// The name is not a valid server name.
    #[error("{0:?} is not a valid TLS server name: use a DNS name or an IP address")]
    ServerName(String),
    /// The TLS library rejected the configuration.
    #[error("failed to set up TLS: {0}")]
    Library(String),
}

/// Client TLS configuration, common to all targets. Clones share it.
#[derive(Clone)]
pub(super) struct ClientTlsConfig(Arc<ClientConfig>);

impl fmt::Debug for ClientTlsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Config").finish_non_exhaustive()
    }
}

impl ClientTlsConfig {
    /// Creates the configuration from the settings, offering these application protocols (ALPN).
    ///
    /// # Errors
    /// Returns an error if a certificate or key cannot be used.
    pub(super) fn new(settings: &TlsSettings, alpn: &[&[u8]]) -> Result<Self, TlsError> {
        let library = |e: rustls::Error| TlsError::Library(e.to_string());
        let provider = Arc::new(ring::default_provider());
        let versions = match settings.versions {
            TlsVersions::Any => &[&TLS13, &TLS12][..],
            TlsVersions::Only12 => &[&TLS12],
            TlsVersions::Only13 => &[&TLS13],
        };
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(library)?;
        let builder = if settings.insecure {
            let any = Unverified::new(provider.signature_verification_algorithms);
            builder.dangerous().with_custom_certificate_verifier(Arc::new(any))
        } else {
            let roots = Arc::new(roots(settings.ca_pem.as_ref().map(Secret::expose))?);
            let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
            builder.with_webpki_verifier(verifier.map_err(|e| TlsError::BadCa(e.to_string()))?)
        };
        let mut config = match identity(settings)? {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                builder.with_client_auth_cert(chain, key).map_err(|e| TlsError::Identity(in_words(&e)))?
            }
        };
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        if !settings.resume {
            config.resumption = Resumption::disabled();
        }
        Ok(Self(Arc::new(config)))
    }

    /// Returns the client for the server with this name.
    pub(super) fn client(&self, name: ServerName<'static>) -> TlsClient {
        TlsClient { connector: TlsConnector::from(Arc::clone(&self.0)), name }
    }
}

/// ALPN name of HTTP/2.
pub(super) const HTTP2: &[u8] = b"h2";

/// Returns the application protocols to offer in a handshake.
pub(super) const fn offered(http: Http) -> &'static [&'static [u8]] {
    const HTTP1: &[u8] = b"http/1.1";

    match http {
        Http::Auto => &[HTTP2, HTTP1],
        Http::Http1 => &[HTTP1],
        Http::Http2 => &[HTTP2],
    }
}

/// Returns the server name to request for `host` and to verify.
///
/// # Errors
/// Returns an error if `host` is not a valid server name.
pub(super) fn server_name(host: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(host.to_owned()).map_err(|_| TlsError::ServerName(host.to_owned()))
}

fn roots(ca_pem: Option<&str>) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let Some(pem) = ca_pem else {
        let system = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(system.certs);
        if roots.is_empty() {
            let why: Vec<String> = system.errors.iter().map(ToString::to_string).collect();
            let why = if why.is_empty() { "its store is empty".to_owned() } else { why.join("; ") };
            return Err(TlsError::NoRoots(why));
        }
        return Ok(roots);
    };
    for certificate in certificates(pem).map_err(TlsError::Ca)? {
        roots.add(certificate).map_err(|e| TlsError::BadCa(in_words(&e)))?;
    }
    Ok(roots)
}

type ClientIdentity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn identity(settings: &TlsSettings) -> Result<Option<ClientIdentity>, TlsError> {
    let Some(cert) = &settings.cert_pem else {
        return if settings.key_pem.is_some() { Err(TlsError::KeyAlone) } else { Ok(None) };
    };
    let key = settings.key_pem.as_ref().unwrap_or(cert);
    let key =
        PrivateKeyDer::from_pem_slice(key.expose().as_bytes()).map_err(|e| TlsError::Key(e.to_string()))?;
    Ok(Some((certificates(cert.expose()).map_err(TlsError::Cert)?, key)))
}

/// Returns the certificates in PEM text, which must contain at least one.
fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    match CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>() {
        Ok(none) if none.is_empty() => Err(pem::Error::NoItemsFound.to_string()),
        all => all.map_err(|e| e.to_string()),
    }
}

/// TLS client for one server.
#[derive(Clone)]
pub(super) struct TlsClient {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.name).finish()
    }
}

impl TlsClient {
    /// Performs the handshake.
    ///
    /// # Errors
    /// Returns an error if the handshake fails; [`fault`] returns the failure that TLS reported.
    pub(super) async fn handshake(&self, socket: ClientSocket) -> io::Result<TlsTransport> {
        match self.connector.connect(self.name.clone(), socket).into_fallible().await {
            Ok(stream) => Ok(TlsTransport::new(stream)),
            Err((error, mut socket)) => Err(unread_alert(&error, &mut socket).await.unwrap_or(error)),
        }
    }
}

/// Returns the server's alert if it can still be read in clear text. A server that has sent an alert and closed the
/// connection responds to the client's last bytes with a reset.
async fn unread_alert(error: &io::Error, socket: &mut ClientSocket) -> Option<io::Error> {
    if !matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) {
        return None;
    }
    let mut record = [0; 7];
    match (socket.read(&mut record).await, record) {
        // An alert record (RFC 5246, 6.2.1): version, length 2, level, description.
        (Ok(7), [21, 3, _, 0, 2, _, alert]) => {
            Some(io::Error::new(io::ErrorKind::InvalidData, rustls::Error::AlertReceived(alert.into())))
        }
        _ => None,
    }
}

/// Returns the version of a session and whether the session was resumed.
pub(super) fn session(tls: &TlsTransport) -> Option<TlsSession> {
    let resumed = tls.session().handshake_kind() == Some(HandshakeKind::Resumed);
    match (tls.session().protocol_version()?, resumed) {
        (ProtocolVersion::TLSv1_2, false) => Some(TlsSession::Full12),
        (ProtocolVersion::TLSv1_2, true) => Some(TlsSession::Resumed12),
        (ProtocolVersion::TLSv1_3, false) => Some(TlsSession::Full13),
        (ProtocolVersion::TLSv1_3, true) => Some(TlsSession::Resumed13),
        _ => None,
    }
}

/// A failure of TLS itself.
pub(super) struct TlsFailure {
    /// Short description of the failure.
    pub(super) what: String,
    /// True if the peer reported the failure.
    pub(super) is_alert: bool,
}

/// Returns the failure that TLS reported; `None` if the underlying connection failed.
pub(super) fn fault(error: &io::Error) -> Option<TlsFailure> {
    let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(TlsFailure { what: in_words(error), is_alert: matches!(error, rustls::Error::AlertReceived(_)) })
}

/// Describes an error; common errors get a short, fixed description.
fn in_words(error: &rustls::Error) -> String {
    match error {
        rustls::Error::AlertReceived(alert) => {
            let name = alert.as_str().map_or_else(|| "alert_description".to_owned(), snake_case);
            format!("alert {name} ({})", u8::from(*alert))
        }
        rustls::Error::InvalidCertificate(rustls::CertificateError::Other(other)) => {
            format!("certificate {}", variant(&other.0))
        }
        rustls::Error::InvalidCertificate(fault) => format!("certificate {}", variant(fault)),
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => "not_tls".to_owned(),
        rustls::Error::InconsistentKeys(_) => "the private key does not match the certificate".to_owned(),
        other => other.to_string(),
    }
}

/// Returns the variant name of a certificate error as `snake_case`: `NotValidForNameContext { .. }` becomes
/// `not_valid_for_name`. rustls names these errors only by their variants, with which their debug output begins.
fn variant(fault: &impl fmt::Debug) -> String {
    let text = format!("{fault:?}");
    let name = text.split(|c: char| !c.is_alphanumeric()).find(|part| !part.is_empty()).unwrap_or_default();
    snake_case(name.strip_suffix("Context").unwrap_or(name))
}

/// Converts a name to `snake_case`: `UnknownCA` becomes `unknown_ca`.
fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    let mut previous = None;
    for c in name.chars() {
        if c.is_uppercase() && previous.is_some_and(char::is_lowercase) {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
        previous = Some(c);
    }
    snake
}
