//! The API server's certificate, signed by a certificate authority that exists for the lifetime of the cluster.

use std::net::IpAddr;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

/// Names under which pods and this machine reach the API server.
const NAMES: [&str; 6] = [
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "localhost",
    // The list of subject alternative names may also contain addresses.
    "127.0.0.1",
];

/// The API server's TLS configuration, and the CA certificate that clients use to verify it. Clones share both.
#[derive(Clone)]
pub(crate) struct ServerIdentity {
    pub(super) acceptor: TlsAcceptor,
    authority_pem: Arc<str>,
}

/// Error while creating the certificate.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The certificate authority failed to sign the certificate.
    #[error("sign a certificate")]
    Sign(#[from] rcgen::Error),
    /// The TLS library rejected the certificate.
    #[error("use the certificate")]
    Use(#[from] rustls::Error),
}

impl ServerIdentity {
    /// Creates a certificate authority, and a certificate that is valid for loopback, for the API server's names inside
    /// the cluster, and for `addresses`.
    ///
    /// # Errors
    ///
    /// Fails if the keys or certificates cannot be generated.
    pub(crate) fn new(addresses: &[IpAddr]) -> Result<Self, IdentityError> {
        let mut authority = CertificateParams::new([])?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.distinguished_name.push(DnType::CommonName, "rolldrop embedded cluster");
        authority.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign];
        let authority_key = KeyPair::generate()?;
        let authority_pem = authority.self_signed(&authority_key)?.pem();
        let issuer = Issuer::new(authority, authority_key);

        let names = NAMES.map(str::to_owned).into_iter().chain(addresses.iter().map(IpAddr::to_string));
        let mut server = CertificateParams::new(names.collect::<Vec<_>>())?;
        server.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        server.use_authority_key_identifier_extension = true;
        server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let server_key = KeyPair::generate()?;
        let certificate = server.signed_by(&server_key, &issuer)?;

        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(server_key.serialize_der()));
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { acceptor: Arc::new(config).into(), authority_pem: authority_pem.into() })
    }

    /// Returns the CA certificate, which clients and pods receive as `ca.crt`.
    pub(crate) fn authority_pem(&self) -> &Arc<str> {
        &self.authority_pem
    }
}

impl std::fmt::Debug for ServerIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerIdentity").finish_non_exhaustive()
    }
}
