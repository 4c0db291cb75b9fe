//! Client for gRPC probes: one `grpc.health.v1.Health/Check` call on its own connection.
//!
//! hyper does HTTP/2. The two messages, of one field each, are encoded here: a gRPC library would bring its own client
//! and code generation for 60 lines. Errors use a kubelet's wording, since people search for it.
//!
//! Source: kubernetes/kubernetes, `pkg/probe/grpc/grpc.go`; for the protocol over HTTP/2, grpc/grpc,
//! `doc/PROTOCOL-HTTP2.md`.

use std::time::Duration;

use bytes::{Buf, Bytes};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout_at};

/// Key of the response's only field: number 1, a varint.
const STATUS_FIELD: u8 = 1 << 3;

/// Maximum length of a response; a message with one number is far shorter.
const MAX_ANSWER_BYTES: usize = 4096;

const UNIMPLEMENTED: u32 = 12;

/// Health check of one service on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GrpcCheck {
    pub(super) address: String,
    /// Name of the service; empty for the server as a whole.
    pub(super) service: String,
    pub(super) agent: &'static str,
    /// Pause before redialling a server that was not there.
    pub(super) back_off: Duration,
}

impl GrpcCheck {
    /// Performs one check.
    ///
    /// # Errors
    ///
    /// The reason why the service does not count as healthy.
    pub(super) async fn run(&self, longest: Duration) -> Result<(), String> {
        let (deadline, limit) = (Instant::now() + longest, format!("{}s", longest.as_secs()));
        let stream = timeout_at(deadline, self.dial()).await.map_err(|_| {
            let address = &self.address;
            format!(
                "timeout: failed to connect service {address:?} within {limit}: context deadline exceeded"
            )
        })?;
        let called = timeout_at(deadline, self.call(stream)).await;
        match called.map_err(|_| format!("timeout: health rpc did not complete within {limit}"))?? {
            1 => Ok(()),
            status => Err(format!("service unhealthy (responded with {:?})", serving_status(status))),
        }
    }

    async fn dial(&self) -> TcpStream {
        loop {
            if let Ok(stream) = TcpStream::connect(&self.address).await {
                return stream;
            }
            sleep(self.back_off).await;
        }
    }

    /// Calls the service and returns its status number.
    async fn call(&self, stream: TcpStream) -> Result<u64, String> {
        let broken = |error: hyper::Error| failed("Unavailable", &error.to_string());
        let unreadable = || failed("Internal", "the answer cannot be read");
        let request = Request::post(format!("http://{}/grpc.health.v1.Health/Check", self.address))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("user-agent", self.agent)
            .body(Full::new(framed(&request_message(&self.service))))
            .map_err(|error| failed("Internal", &error.to_string()))?;
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (mut requests, connection) = handshake.await.map_err(broken)?;
        let answer = async {
            let (head, body) = requests.send_request(request).await.map_err(broken)?.into_parts();
            let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await;
            Ok::<_, String>((head, body.map_err(|error| failed("Internal", &error.to_string()))?))
        };
        // The connection must be driven; it may close first.
        let (head, body) = tokio::select! {
            answer = answer => answer?,
            ended = connection => {
                ended.map_err(broken)?;
                return Err(failed("Unavailable", "error reading from server: EOF"));
            }
        };
        if head.status != StatusCode::OK {
            let why = format!("unexpected HTTP status code received from server: {}", head.status);
            let is_absent = head.status == StatusCode::NOT_FOUND;
            return Err(if is_absent { not_implemented(&why) } else { failed("Unknown", &why) });
        }
        // A response without a message has its status in the headers.
        check_status(body.trailers().unwrap_or(&head.headers))?;
        unframed(body.to_bytes()).and_then(serving_number).ok_or_else(unreadable)
    }
}

fn failed(code: &str, why: &str) -> String {
    format!("error: health rpc probe failed: rpc error: code = {code} desc = {why}")
}

fn not_implemented(why: &str) -> String {
    format!("error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {why}")
}

fn check_status(trailers: &HeaderMap) -> Result<(), String> {
    let text = |name: &str| trailers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let why = text("grpc-message");
    match text("grpc-status").parse::<u32>() {
        Ok(0) => Ok(()),
        Ok(UNIMPLEMENTED) => Err(not_implemented(why)),
        Ok(5) => Err(failed("NotFound", why)),
        Ok(code) => Err(failed(&format!("Code({code})"), why)),
        Err(_) => Err(failed("Internal", "server closed the stream without sending trailers")),
    }
}

/// Decodes a response from a probed app.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(body: &[u8]) {
    let _ = unframed(Bytes::copy_from_slice(body)).and_then(serving_number);
}
/// Encodes `HealthCheckRequest { string service = 1; }`.
fn request_message(service: &str) -> Vec<u8> {
    if service.is_empty() {
        return Vec::new();
    }
    let mut message = vec![1 << 3 | 2];
    let mut length = service.len();
    while length > 0x7f {
        message.push(0x80 | u8::try_from(length & 0x7f).unwrap_or(0));
        length >>= 7;
    }
    message.push(u8::try_from(length).unwrap_or(0));
    [message, service.as_bytes().to_vec()].concat()
}

/// Decodes `HealthCheckResponse { ServingStatus status = 1; }`, ignoring other fields; without that field, the status
/// is 0.
fn serving_number(message: Bytes) -> Option<u64> {
    match message[..] {
        [] => Some(0),
        [STATUS_FIELD, status @ ..0x80] => Some(status.into()),
        _ => None,
    }
}

/// Frames a message for sending, uncompressed and prefixed with its length.
fn framed(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0], &length.to_be_bytes()[..], message].concat().into()
}

fn unframed(mut body: Bytes) -> Option<Bytes> {
    let (compressed, length) = (body.try_get_u8().ok()?, body.try_get_u32().ok()?);
    let length = usize::try_from(length).ok()?;
    (compressed == 0 && body.remaining() == length).then_some(body)
}

fn serving_status(number: u64) -> String {
    let names = ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"];
    let name = usize::try_from(number).ok().and_then(|number| names.get(number));
    name.map_or_else(|| number.to_string(), |name| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn messages_are_those_of_protobuf() {
        assert_eq!(request_message(""), b"");
        assert_eq!(request_message("shop"), b"\x0a\x04shop");
        assert_eq!(request_message(&"x".repeat(300))[..3], [0x0a, 0xac, 0x02]);
        assert_eq!(framed(b"\x08\x01"), &b"\0\0\0\0\x02\x08\x01"[..]);
        let read = |bytes: &'static [u8]| unframed(Bytes::from_static(bytes)).and_then(serving_number);
        assert_eq!(read(b"\0\0\0\0\x02\x08\x02"), Some(2));
        assert_eq!(read(b"\0\0\0\0\0"), Some(0));
        for broken in [&b"\0\0\0\0\x02\x08"[..], b"\x01\0\0\0\x02\x08\x01", b"\0\0\0\0\x02\x12\x7f", b""] {
            assert_eq!(read(broken), None, "{broken:?}");
        }
    }

    /// Serves every call with the same response: its body, then its trailers.
    async fn serve(
        status: u16,
        body: &'static [u8],
        trailers: &'static [(&'static str, &'static str)],
    ) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut connection = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
                let answer = http::Response::builder().status(status).body(()).unwrap();
                let mut sending = respond.send_response(answer, false).unwrap();
                sending.send_data(Bytes::from_static(body), false).unwrap();
                let trailers =
                    trailers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
                sending.send_trailers(trailers.collect()).unwrap();
            }
        });
        address
    }

    async fn check(address: String, longest: Duration) -> Result<(), String> {
        GrpcCheck {
            address,
            service: "shop".to_owned(),
            agent: "kube-probe/1.36",
            back_off: Duration::from_millis(10),
        }
        .run(longest)
        .await
    }

    #[tokio::test]
    async fn grpc_results_match_kubelet() {
        const SERVING: &[u8] = b"\0\0\0\0\x02\x08\x01";
        const ENOUGH: Duration = Duration::from_secs(60);
        let ok: &[_] = &[("grpc-status", "0")];
        assert_eq!(check(serve(200, SERVING, ok).await, ENOUGH).await, Ok(()));
        type Case = (u16, &'static [u8], &'static [(&'static str, &'static str)], &'static str);
        let cases: [Case; 4] = [
            (200, b"\0\0\0\0\x02\x08\x02", ok, "service unhealthy (responded with \"NOT_SERVING\")"),
            (
                200,
                b"",
                &[("grpc-status", "5"), ("grpc-message", "unknown service")],
                "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service",
            ),
            (
                200,
                b"",
                &[("grpc-status", "12"), ("grpc-message", "no such method")],
                "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): no such method",
            ),
            (
                404,
                b"",
                &[],
                "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): \
                 unexpected HTTP status code received from server: 404 Not Found",
            ),
        ];
        for (status, body, trailers, why) in cases {
            assert_eq!(check(serve(status, body, trailers).await, ENOUGH).await.unwrap_err(), why);
        }
    }

    #[tokio::test]
    async fn grpc_check_retries_until_timeout() {
        let closed: std::net::SocketAddr = "127.0.0.1:1".parse().unwrap();
        let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let silent = other.local_addr().unwrap();
        let refused =
            format!("timeout: failed to connect service \"{closed}\" within 1s: context deadline exceeded");
        let unanswered = "timeout: health rpc did not complete within 1s".to_owned();
        for (address, expected) in [(closed, refused), (silent, unanswered)] {
            let why = check(address.to_string(), Duration::from_secs(1)).await.unwrap_err();
            assert_eq!(why, expected);
        }
    }
}
