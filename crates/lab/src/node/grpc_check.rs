//! Client for gRPC probes: one `grpc.health.v1.Health/Check` call on its own connection.
//!
//! The `h2` crate implements HTTP/2. The two messages, with one field each, are encoded here, because a gRPC library
//! would add its own client and code generation to save 60 lines. Errors use a kubelet's wording, because people search
//! for it.
//!
//! Source: kubernetes/kubernetes, `pkg/probe/grpc/grpc.go`; for the protocol over HTTP/2, grpc/grpc,
//! `doc/PROTOCOL-HTTP2.md`.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use h2::client::SendRequest;
use http::{HeaderMap, Request, StatusCode};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout_at};

use super::container_action::PROBE_AGENT;

/// Key of the response's only field: number 1, a varint.
const STATUS_FIELD: u8 = 1 << 3;

/// Maximum length of a response; a message with one number is far shorter.
const MAX_ANSWER_BYTES: usize = 4096;

/// Health check of one service on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GrpcCheck {
    pub(super) address: String,
    /// Name of the service; empty for the server as a whole.
    pub(super) service: String,
    /// Pause before redialling an unreachable server.
    pub(super) back_off: Duration,
}

/// Status of a failed call, in gRPC's terms.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CallStatus {
    code: u32,
    message: String,
}

/// Reason why a call has no result.
enum CallFailure {
    /// The server's answer, or one that it should not have sent.
    Status(CallStatus),
    /// The connection or the stream ended first.
    Transport(h2::Error),
}

impl From<CallStatus> for CallFailure {
    fn from(status: CallStatus) -> Self {
        Self::Status(status)
    }
}

impl From<h2::Error> for CallFailure {
    fn from(error: h2::Error) -> Self {
        Self::Transport(error)
    }
}

const UNKNOWN: u32 = 2;
const NOT_FOUND: u32 = 5;
const UNIMPLEMENTED: u32 = 12;
const INTERNAL: u32 = 13;
const UNAVAILABLE: u32 = 14;

impl GrpcCheck {
    /// Performs one check.
    ///
    /// # Errors
    ///
    /// The reason why the service does not count as healthy.
    pub(super) async fn run(&self, longest: Duration) -> Result<(), String> {
        let deadline = Instant::now() + longest;
        let (mut requests, connection) = timeout_at(deadline, self.dial()).await.map_err(|_| {
            let (address, longest) = (&self.address, seconds(longest));
            format!(
                "timeout: failed to connect service {address:?} within {longest}: context deadline exceeded"
            )
        })?;
        let call = async {
            let call = self.call(&mut requests);
            tokio::pin!(call, connection);
            // The connection must be driven. It may close first, also together with a complete response.
            let (answer, end) = tokio::select! {
                answer = &mut call => (answer, None),
                end = &mut connection => (call.await, Some(end)),
            };
            answer.map_err(|failure| match (failure, end) {
                (CallFailure::Status(status), _) => status,
                (CallFailure::Transport(_), Some(Ok(()))) => unavailable("error reading from server: EOF"),
                (CallFailure::Transport(_), Some(Err(error))) | (CallFailure::Transport(error), None) => {
                    unavailable(&error.to_string())
                }
            })
        };
        let called = timeout_at(deadline, call).await;
        match called
            .map_err(|_| format!("timeout: health rpc did not complete within {}", seconds(longest)))?
        {
            Ok(1) => Ok(()),
            Ok(status) => Err(format!("service unhealthy (responded with {:?})", serving_status(status))),
            Err(CallStatus { code: UNIMPLEMENTED, message }) => Err(format!(
                "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {message}"
            )),
            Err(CallStatus { code, message }) => {
                let code = code_name(code);
                Err(format!("error: health rpc probe failed: rpc error: code = {code} desc = {message}"))
            }
        }
    }

    /// Connects, retrying until the server has shown that it speaks HTTP/2.
    async fn dial(&self) -> (SendRequest<Bytes>, h2::client::Connection<TcpStream>) {
        loop {
            if let Ok(stream) = TcpStream::connect(&self.address).await
                && let Ok((requests, mut connection)) = h2::client::handshake(stream).await
                && let Some(mut pings) = connection.ping_pong()
            {
                // The server responds to a ping only after its settings.
                tokio::select! {
                    pong = pings.ping(h2::Ping::opaque()) => {
                        if pong.is_ok() {
                            return (requests, connection);
                        }
                    }
                    _ = &mut connection => {}
                }
            }
            sleep(self.back_off).await;
        }
    }

    /// Calls the service and returns its status number.
    async fn call(&self, requests: &mut SendRequest<Bytes>) -> Result<u64, CallFailure> {
        let request = Request::post(format!("http://{}/grpc.health.v1.Health/Check", self.address))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("user-agent", PROBE_AGENT)
            .body(())
            .map_err(|error| internal(&error.to_string()))?;
        std::future::poll_fn(|context| requests.poll_ready(context)).await?;
        let (answer, mut sending) = requests.send_request(request, false)?;
        sending.send_data(framed(&request_message(&self.service)), true)?;

        let (head, mut body) = answer.await?.into_parts();
        if head.status != StatusCode::OK {
            let message = format!("unexpected HTTP status code received from server: {}", head.status);
            let code = if head.status == StatusCode::NOT_FOUND { UNIMPLEMENTED } else { UNKNOWN };
            return Err(CallStatus { code, message }.into());
        }
        let mut message = BytesMut::new();
        while let Some(chunk) = body.data().await {
            let chunk = chunk?;
            // Flow control would only slow down a server that sends too much.
            let _ = body.flow_control().release_capacity(chunk.len());
            if message.len() + chunk.len() > MAX_ANSWER_BYTES {
                return Err(internal("received message larger than max").into());
            }
            message.extend_from_slice(&chunk);
        }
        // A response without a message has its status in the headers.
        let trailers = body.trailers().await?.unwrap_or(head.headers);
        check_status(&trailers)?;
        let number = unframed(message.freeze()).and_then(serving_number);
        Ok(number.ok_or_else(|| internal("the response cannot be parsed"))?)
    }
}

fn unavailable(why: &str) -> CallStatus {
    CallStatus { code: UNAVAILABLE, message: why.to_owned() }
}

fn internal(why: &str) -> CallStatus {
    CallStatus { code: INTERNAL, message: why.to_owned() }
}

fn check_status(trailers: &HeaderMap) -> Result<(), CallStatus> {
    let text = |name: &str| trailers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match text("grpc-status").parse() {
        Ok(0) => Ok(()),
        Ok(code) => Err(CallStatus { code, message: text("grpc-message").to_owned() }),
        Err(_) => Err(internal("server closed the stream without sending trailers")),
    }
}

/// Decodes a response from a probed app.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(body: &[u8]) {
    let _ = unframed(Bytes::copy_from_slice(body)).and_then(serving_number);
}

/// Encodes `HealthCheckRequest { string service = 1; }`.
fn request_message(service: &str) -> Vec<u8> {
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(1 << 3 | 2);
        let mut length = service.len();
        while length > 0x7f {
            message.push(0x80 | u8::try_from(length & 0x7f).unwrap_or(0));
            length >>= 7;
        }
        message.push(u8::try_from(length).unwrap_or(0));
        message.extend_from_slice(service.as_bytes());
    }
    message
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
    match number {
        0 => "UNKNOWN".to_owned(),
        1 => "SERVING".to_owned(),
        2 => "NOT_SERVING".to_owned(),
        3 => "SERVICE_UNKNOWN".to_owned(),
        other => other.to_string(),
    }
}

fn code_name(code: u32) -> String {
    match code {
        UNKNOWN => "Unknown".to_owned(),
        NOT_FOUND => "NotFound".to_owned(),
        UNIMPLEMENTED => "Unimplemented".to_owned(),
        INTERNAL => "Internal".to_owned(),
        UNAVAILABLE => "Unavailable".to_owned(),
        _ => format!("Code({code})"),
    }
}

/// Formats a time limit as Go does.
fn seconds(duration: Duration) -> String {
    format!("{}s", duration.as_secs())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn messages_match_protobuf_encoding() {
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
        GrpcCheck { address, service: "shop".to_owned(), back_off: Duration::from_millis(10) }
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

    /// Serves one connection: reads the preface, the settings and one request, then writes these bytes and closes.
    async fn answer_and_close(answer: &'static [u8]) -> String {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        const SETTINGS_AND_ACK: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\0\x04\x01\0\0\0\0";
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.read_exact(&mut [0; 24]).await.unwrap();
            stream.write_all(SETTINGS_AND_ACK).await.unwrap();
            loop {
                let mut header = [0; 9];
                stream.read_exact(&mut header).await.unwrap();
                let mut payload = vec![0; usize::from(u16::from_be_bytes([header[1], header[2]]))];
                stream.read_exact(&mut payload).await.unwrap();
                match header[3..5] {
                    [6, 0] => {
                        header[4] = 1;
                        stream.write_all(&[&header, &payload[..]].concat()).await.unwrap();
                    }
                    [0, 1] => break,
                    _ => {}
                }
            }
            stream.write_all(answer).await.unwrap();
        });
        address
    }

    #[tokio::test]
    async fn grpc_response_before_close_counts() {
        // A head, the message SERVING, trailers with grpc-status 0, and a GOAWAY.
        const SERVING: &[u8] = b"\0\0\x01\x01\x04\0\0\0\x01\x88\
            \0\0\x07\0\0\0\0\0\x01\0\0\0\0\x02\x08\x01\
            \0\0\x0f\x01\x05\0\0\0\x01\0\x0bgrpc-status\x010\
            \0\0\x08\x07\0\0\0\0\0\0\0\0\x01\0\0\0\0";
        let limit = Duration::from_secs(60);
        for _ in 0..10 {
            assert_eq!(check(answer_and_close(SERVING).await, limit).await, Ok(()));
        }
        let why = check(answer_and_close(b"").await, limit).await.unwrap_err();
        assert!(why.ends_with("code = Unavailable desc = error reading from server: EOF"), "{why}");
    }

    #[tokio::test]
    async fn grpc_check_retries_until_timeout() {
        let closed = "127.0.0.1:1".parse().unwrap();
        let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let silent = other.local_addr().unwrap();
        for address in [closed, silent] {
            let why = check(address.to_string(), Duration::from_secs(1)).await.unwrap_err();
            let expected = format!(
                "timeout: failed to connect service \"{address}\" within 1s: context deadline exceeded"
            );
            assert_eq!(why, expected);
        }
    }
}
