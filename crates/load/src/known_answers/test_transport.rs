//! Transport of the test servers (TCP, or TLS over TCP), with orderly and disorderly endings.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, ServerConfig, ServerConnection};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// An accepted connection.
pub(super) trait TestTransport: AsyncRead + AsyncWrite + Send + Sync + Unpin {
    /// Returns the underlying TCP connection.
    fn tcp(&self) -> &TcpStream;

    /// Returns the TLS session, if there is one.
    fn tls(&mut self) -> Option<&mut ServerConnection>;
}

impl TestTransport for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }

    fn tls(&mut self) -> Option<&mut ServerConnection> {
        None
    }
}

impl TestTransport for TlsStream<TcpStream> {
    fn tcp(&self) -> &TcpStream {
        self.get_ref().0
    }

    fn tls(&mut self) -> Option<&mut ServerConnection> {
        Some(self.get_mut().1)
    }
}

/// Detail that a row has after [`alert`].
pub(super) const ALERT: &str = "alert bad_record_mac (20)";
/// Time limit for a client to notice that its connection was closed.
const LINGER: Duration = Duration::from_secs(10);

/// Terminates TLS with an alert, like a server that cannot decrypt a record.
pub(super) async fn alert(stream: &mut (impl TestTransport + ?Sized)) {
    // Application data that was never encrypted.
    let record = [&[23, 3, 3, 0, 32][..], &[0; 32]].concat();
    let tls = stream.tls().expect("the connection uses TLS");
    // Another record, in case the first one only completes a partially received record.
    while tls.read_tls(&mut &record[..]).is_ok() && tls.process_new_packets().is_ok() {}
    let _ = stream.flush().await;
    close(stream).await;
}

/// Closes this direction, and the other one once the client has closed it, because closing with unread data would reset
/// the connection. Closes TLS first (close_notify), unless TLS has ended.
pub(super) async fn close(stream: &mut (impl TestTransport + ?Sized)) {
    let _ = stream.shutdown().await;
    let tcp = stream.tcp();
    let mut rest = [0; 4096];
    let until_closed = async {
        while tcp.readable().await.is_ok() {
            match tcp.try_read(&mut rest) {
                Ok(0) => return,
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return,
                _ => {}
            }
        }
    };
    let _ = timeout(LINGER, until_closed).await;
}

pub(super) fn reset(stream: &(impl TestTransport + ?Sized)) {
    stream.tcp().set_zero_linger().unwrap();
}

/// Returns the server side of TLS with these application protocols, and its certificate in PEM format.
pub(super) fn acceptor(alpn: &[&[u8]]) -> (TlsAcceptor, String) {
    config(alpn, AcceptedClients::Any)
}

/// Returns the client side of TLS, which trusts only this certificate.
pub(super) fn connector(certificate: &str) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    TlsConnector::from(Arc::new(builder.with_no_client_auth()))
}

/// Serves TLS and rejects clients without a certificate; in TLS 1.3, the alert arrives after the client has completed
/// the handshake.
pub(super) async fn strict(alpn: &[&[u8]], tasks: &mut JoinSet<()>) -> (SocketAddr, String) {
    let (acceptor, certificate) = config(alpn, AcceptedClients::WithCertificate);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            connections.spawn(async move {
                let (_, mut stream) = acceptor.accept(stream).into_fallible().await.unwrap_err();
                // Closing with unread data would reset the connection.
                let _ = stream.shutdown().await;
                let _ = stream.read_to_end(&mut Vec::new()).await;
            });
        }
    });
    (address, certificate)
}

enum AcceptedClients {
    Any,
    WithCertificate,
}

fn config(alpn: &[&[u8]], clients: AcceptedClients) -> (TlsAcceptor, String) {
    let issued = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(issued.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone());
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let builder = match clients {
        AcceptedClients::Any => builder.with_no_client_auth(),
        AcceptedClients::WithCertificate => {
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
