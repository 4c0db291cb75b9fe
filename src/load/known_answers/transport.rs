//! What the servers of these tests speak over: TCP, or TLS over it; and how it ends badly.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;

/// A connection that has been accepted.
pub(super) trait Transport: AsyncRead + AsyncWrite + Send + Sync + Unpin {
    /// The connection under it.
    fn tcp(&self) -> &TcpStream;
}

impl Transport for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl Transport for TlsStream<TcpStream> {
    fn tcp(&self) -> &TcpStream {
        self.get_ref().0
    }
}

/// Resets the connection.
pub(super) fn reset(stream: &(impl Transport + ?Sized)) {
    stream.tcp().set_zero_linger().unwrap();
}

/// A server's side of TLS, with these application protocols, and its certificate in PEM.
pub(super) fn acceptor(alpn: &[&[u8]]) -> (TlsAcceptor, String) {
    config(alpn, Clients::Any)
}

/// Takes no client without a certificate, and says so by an alert when the handshake is done for
/// the client already (TLS 1.3).
pub(super) async fn strict(alpn: &[&[u8]], tasks: &mut JoinSet<()>) -> (SocketAddr, String) {
    let (acceptor, certificate) = config(alpn, Clients::WithCertificate);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            connections.spawn(async move {
                let (_, mut stream) = acceptor.accept(stream).into_fallible().await.unwrap_err();
                // What is closed with something unread is reset.
                let _ = stream.shutdown().await;
                let _ = stream.read_to_end(&mut Vec::new()).await;
            });
        }
    });
    (address, certificate)
}

enum Clients {
    Any,
    WithCertificate,
}

fn config(alpn: &[&[u8]], clients: Clients) -> (TlsAcceptor, String) {
    let issued = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(issued.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone());
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let builder = match clients {
        Clients::Any => builder.with_no_client_auth(),
        Clients::WithCertificate => {
            let mut roots = RootCertStore::empty();
            roots.add(issued.cert.der().clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let mut config = builder.with_single_cert(vec![issued.cert.der().clone()], key).unwrap();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    (TlsAcceptor::from(Arc::new(config)), issued.cert.pem())
}
