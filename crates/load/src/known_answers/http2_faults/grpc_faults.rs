//! gRPC faults: responses to calls, and the results that a client should record.

use super::faulty_frames::{END_STREAM, INTERNAL_ERROR, data, field, headers, reset, status};
use super::http2_script::Http2Script;
use rolldrop_record::Outcome;

/// A response to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum GrpcAnswer {
    Ok,
    /// A message marked as compressed, and the header that names the compression.
    Compressed,
    /// A status without any message.
    TrailersOnly,
    /// A message followed by a status.
    Status,
    /// Trailers without a status.
    NoStatus,
    /// A response without trailers.
    NoTrailers,
    ContentType,
    NoContentType,
    /// A response from a proxy that found no server.
    Proxy,
    /// A message marked as compressed, without the header that names the compression.
    CompressedSomehow,
    CutMessage,
    NoMessage,
    TwoMessages,
    /// RST_STREAM in the middle of a message.
    Reset,
}

pub(super) const ANSWERS: [Http2Script; 14] = [
    Http2Script::Grpc(GrpcAnswer::Ok),
    Http2Script::Grpc(GrpcAnswer::TrailersOnly),
    Http2Script::Grpc(GrpcAnswer::Compressed),
    Http2Script::Grpc(GrpcAnswer::Status),
    Http2Script::Grpc(GrpcAnswer::NoStatus),
    Http2Script::Grpc(GrpcAnswer::NoTrailers),
    Http2Script::Grpc(GrpcAnswer::ContentType),
    Http2Script::Grpc(GrpcAnswer::NoContentType),
    Http2Script::Grpc(GrpcAnswer::Proxy),
    Http2Script::Grpc(GrpcAnswer::CompressedSomehow),
    Http2Script::Grpc(GrpcAnswer::CutMessage),
    Http2Script::Grpc(GrpcAnswer::NoMessage),
    Http2Script::Grpc(GrpcAnswer::TwoMessages),
    Http2Script::Grpc(GrpcAnswer::Reset),
];

impl GrpcAnswer {
    /// Returns the result that a client should record: outcome, status and detail.
    pub(super) fn truth(self) -> (Outcome, Option<u16>, Option<&'static str>) {
        let (outcome, detail) = match self {
            GrpcAnswer::Ok | GrpcAnswer::Compressed => (Outcome::Ok, None),
            GrpcAnswer::TrailersOnly | GrpcAnswer::Status => (Outcome::HttpError, None),
            GrpcAnswer::Proxy => return (Outcome::HttpError, Some(503), None),
            GrpcAnswer::NoStatus | GrpcAnswer::NoTrailers => (Outcome::ProtocolError, Some("no grpc-status")),
            GrpcAnswer::ContentType => (Outcome::ProtocolError, Some("content-type text/html")),
            GrpcAnswer::NoContentType => (Outcome::ProtocolError, Some("no content-type")),
            GrpcAnswer::CompressedSomehow => {
                (Outcome::ProtocolError, Some("compressed without grpc-encoding"))
            }
            GrpcAnswer::CutMessage => (Outcome::TruncatedBody, None),
            GrpcAnswer::NoMessage => (Outcome::ProtocolError, Some("0 messages")),
            GrpcAnswer::TwoMessages => (Outcome::ProtocolError, Some("2 messages")),
            GrpcAnswer::Reset => (Outcome::ResetMidResponse, Some("INTERNAL_ERROR")),
        };
        (outcome, Some(200), detail)
    }

    /// Returns the gRPC status that the row should have.
    pub(super) fn grpc_status(self) -> Option<i32> {
        match self {
            GrpcAnswer::Ok
            | GrpcAnswer::Compressed
            | GrpcAnswer::CompressedSomehow
            | GrpcAnswer::CutMessage
            | GrpcAnswer::NoMessage
            | GrpcAnswer::TwoMessages => Some(0),
            GrpcAnswer::TrailersOnly | GrpcAnswer::Proxy => Some(14),
            GrpcAnswer::Status => Some(13),
            GrpcAnswer::NoStatus
            | GrpcAnswer::NoTrailers
            | GrpcAnswer::ContentType
            | GrpcAnswer::NoContentType
            | GrpcAnswer::Reset => None,
        }
    }

    /// Returns the frames of the response on a stream.
    pub(super) fn frames(self, stream: u32) -> Vec<u8> {
        const MESSAGE: &[u8] = b"\0\0\0\0\x05hello";
        const COMPRESSED: &[u8] = b"\x01\0\0\0\x05hello";

        let content_type = || field("content-type", "application/grpc");
        let begin = |fields: &[u8]| headers(0, stream, &[status("200"), fields.to_vec()].concat());
        let grpc_status = |status: &str| field("grpc-status", status);
        let end = |fields: &[u8]| headers(END_STREAM, stream, fields);
        let answer = |message: &[u8], status: &str| {
            [begin(&content_type()), data(0, stream, message), end(&grpc_status(status))].concat()
        };
        match self {
            GrpcAnswer::Ok => answer(MESSAGE, "0"),
            GrpcAnswer::Compressed => {
                let fields = [content_type(), field("grpc-encoding", "gzip")].concat();
                [begin(&fields), data(0, stream, COMPRESSED), end(&grpc_status("0"))].concat()
            }
            GrpcAnswer::TrailersOnly => end(&[status("200"), content_type(), grpc_status("14")].concat()),
            GrpcAnswer::Status => answer(MESSAGE, "13"),
            GrpcAnswer::NoStatus => {
                [begin(&content_type()), data(0, stream, MESSAGE), end(&field("grpc-message", "x"))].concat()
            }
            GrpcAnswer::NoTrailers => [begin(&content_type()), data(END_STREAM, stream, MESSAGE)].concat(),
            GrpcAnswer::ContentType => {
                [begin(&field("content-type", "text/html")), data(END_STREAM, stream, b"<html>")].concat()
            }
            GrpcAnswer::NoContentType => {
                [begin(&[]), data(0, stream, MESSAGE), end(&grpc_status("0"))].concat()
            }
            GrpcAnswer::Proxy => {
                let head = [status("503"), field("content-type", "text/plain")].concat();
                [headers(0, stream, &head), data(END_STREAM, stream, b"no healthy upstream")].concat()
            }
            GrpcAnswer::CompressedSomehow => answer(COMPRESSED, "0"),
            GrpcAnswer::CutMessage => answer(&MESSAGE[..7], "0"),
            GrpcAnswer::NoMessage => answer(b"", "0"),
            GrpcAnswer::TwoMessages => answer(&[MESSAGE, MESSAGE].concat(), "0"),
            GrpcAnswer::Reset => {
                let part = data(0, stream, &MESSAGE[..7]);
                [begin(&content_type()), part, reset(stream, INTERNAL_ERROR)].concat()
            }
        }
    }
}
