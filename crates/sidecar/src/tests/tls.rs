//! The app terminates TLS, with its own certificate, protocols and client certificates.

use std::sync::Arc;

use ::h2::{client, server};
use bytes::Bytes;
use http::{Request, Response};
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, ServerName};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;

const NAME: &str = "web.example";

/// Returns an app's and a client's side, each with a certificate that the other requires.
fn ends(protocols: &[&[u8]]) -> (TlsAcceptor, TlsConnector, rcgen::Certificate) {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let issued = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
    let (certificate, key) = (issued.cert.der().clone(), issued.signing_key.serialize_der());
    let key = || PrivateKeyDer::try_from(key.clone()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let roots = Arc::new(roots);
    let verifier =
        WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build().unwrap();
    let app =
        ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
    let mut app =
        app.with_client_cert_verifier(verifier).with_single_cert(vec![certificate.clone()], key()).unwrap();
    app.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let client = client.with_root_certificates(roots);
    let mut client = client.with_client_auth_cert(vec![certificate], key()).unwrap();
    client.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    (TlsAcceptor::from(Arc::new(app)), TlsConnector::from(Arc::new(client)), issued.cert)
}

/// Acts as an app that speaks the protocol chosen by the client; returns the ALPN protocol, the server name and the
/// number of client certificates.
async fn speak(app: &TcpListener, acceptor: TlsAcceptor) -> (Option<Vec<u8>>, Option<String>, usize) {
    let mut stream = acceptor.accept(accept(app).await).await.unwrap();
    let (_, session) = stream.get_ref();
    let certificates = session.peer_certificates().map_or(0, <[_]>::len);
    let saw =
        (session.alpn_protocol().map(<[u8]>::to_vec), session.server_name().map(str::to_owned), certificates);
    if saw.0.as_deref() == Some(b"h2") {
        let mut connection = server::handshake(stream).await.unwrap();
        while let Some(request) = connection.accept().await {
            let (request, mut respond) = request.unwrap();
            assert_eq!(request.uri().path(), "/x");
            let mut body = respond.send_response(Response::new(()), false).unwrap();
            body.send_data(Bytes::from_static(b"hello"), true).unwrap();
        }
    } else {
        let mut head = [0; "GET /x HTTP/1.1\r\n\r\n".len()];
        stream.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"GET /x HTTP/1.1\r\n\r\n");
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").await.unwrap();
        stream.shutdown().await.unwrap();
    }
    saw
}

#[tokio::test]
async fn tls_client_and_app_negotiate_directly() {
    for (mode, recorded_as) in [(TrafficMode::Http, Protocol::Tls), (TrafficMode::Tcp, Protocol::Tcp)] {
        let (app, address) = app().await;
        let proxy = Running::start_mode(address, mode);
        let choices: [&[&[u8]]; 3] = [&[b"h2", b"http/1.1"], &[b"http/1.1"], &[]];
        for protocols in choices {
            let (acceptor, connector, certificate) = ends(protocols);
            let client = async {
                let name = ServerName::try_from(NAME).unwrap();
                let mut stream = connector.connect(name, proxy.client().await).await.unwrap();
                let (_, session) = stream.get_ref();
                assert_eq!(session.peer_certificates().unwrap(), [certificate.der().clone()]);
                let protocol = session.alpn_protocol().map(<[u8]>::to_vec);
                if protocol.as_deref() == Some(b"h2") {
                    let (mut sender, connection) = client::handshake(&mut stream).await.unwrap();
                    let ask = async move {
                        let request = Request::get("https://web.example/x").body(()).unwrap();
                        let (answer, _) = sender.send_request(request, true).unwrap();
                        let mut body = answer.await.unwrap().into_body();
                        assert_eq!(body.data().await.unwrap().unwrap(), "hello");
                    };
                    tokio::join!(connection, ask).0.unwrap();
                    // A client that closes before the app's last frame has arrived resets the connection.
                    let _ = stream.read_to_end(&mut Vec::new()).await;
                } else {
                    stream.write_all(b"GET /x HTTP/1.1\r\n\r\n").await.unwrap();
                    let mut answer = String::new();
                    stream.read_to_string(&mut answer).await.unwrap();
                    assert_eq!(answer, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
                    stream.shutdown().await.unwrap();
                }
                protocol
            };
            let (chosen, saw) = within(async { tokio::join!(client, speak(&app, acceptor)) }).await;
            let first = protocols.first().map(|protocol| protocol.to_vec());
            assert_eq!((chosen.clone(), saw), (first.clone(), (first, Some(NAME.to_owned()), 1)));
        }
        proxy.recorded(3).await;
        drop(app);
        let rows = served(&proxy.end().await.0);
        for (protocol, end, from_client, from_app) in said(&rows) {
            assert_eq!((protocol, end), (recorded_as, ServedEnd::Complete));
            assert!(from_client > 500 && from_app > 500, "{from_client} and {from_app} bytes");
        }
        assert_eq!(rows.len(), choices.len());
    }
}

#[tokio::test]
async fn tls_bytes_pass_unread_to_app() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let hello = "\u{16}\u{3}\u{1}\0\u{5}hello";
    let (mut client, mut server) = proxy.asked(&app, hello).await;
    server.write_all(b"\x15\x03\x01\0\x02\x02\x28").await.unwrap();
    drop(server);
    expect(&mut client, "\u{15}\u{3}\u{1}\0\u{2}\u{2}(").await;
    expect_eof(&mut client).await;
    drop((client, app));
    let rows = served(&proxy.end().await.0);
    assert_eq!(said(&rows), [(Protocol::Tls, ServedEnd::Complete, 10, 7)]);
}
