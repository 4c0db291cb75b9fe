//! gRPC faults: responses to calls, and the results that a client should record.

use super::faulty_frames::{END_STREAM, INTERNAL_ERROR, data, field, headers, reset, status};
use super::http2_script::Script;
use rolldrop_record::Outcome;

/// A response to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Answer {
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
    /// The response of a proxy that found no server.
    Proxy,
    /// A message marked as compressed, without the header that names the compression.
    CompressedSomehow,
    CutMessage,
    NoMessage,
    TwoMessages,
    /// RST_STREAM in the middle of a message.
    Reset,
}

pub(super) const ANSWERS: [Script; 14] = [
    Script::Grpc(Answer::Ok),
    Script::Grpc(Answer::TrailersOnly),
    Script::Grpc(Answer::Compressed),
    Script::Grpc(Answer::Status),
    Script::Grpc(Answer::NoStatus),
    Script::Grpc(Answer::NoTrailers),
    Script::Grpc(Answer::ContentType),
    Script::Grpc(Answer::NoContentType),
    Script::Grpc(Answer::Proxy),
    Script::Grpc(Answer::CompressedSomehow),
    Script::Grpc(Answer::CutMessage),
    Script::Grpc(Answer::NoMessage),
    Script::Grpc(Answer::TwoMessages),
    Script::Grpc(Answer::Reset),
];

impl Answer {
    /// Returns the result that a client should record: outcome, status and detail.
    pub(super) fn truth(self) -> (Outcome, Option<u16>, Option<&'static str>) {
        let (outcome, detail) = match self {
            Answer::Ok | Answer::Compressed => (Outcome::Ok, None),
            Answer::TrailersOnly | Answer::Status => (Outcome::HttpError, None),
            Answer::Proxy => return (Outcome::HttpError, Some(503), None),
            Answer::NoStatus | Answer::NoTrailers => (Outcome::ProtocolError, Some("no grpc-status")),
            Answer::ContentType => (Outcome::ProtocolError, Some("content-type text/html")),
            Answer::NoContentType => (Outcome::ProtocolError, Some("no content-type")),
            Answer::CompressedSomehow => (Outcome::ProtocolError, Some("compressed without grpc-encoding")),
            Answer::CutMessage => (Outcome::TruncatedBody, None),
            Answer::NoMessage => (Outcome::ProtocolError, Some("0 messages")),
            Answer::TwoMessages => (Outcome::ProtocolError, Some("2 messages")),
            Answer::Reset => (Outcome::ResetMidResponse, Some("INTERNAL_ERROR")),
        };
        (outcome, Some(200), detail)
    }

    /// Returns the gRPC status that the row should have.
    pub(super) fn grpc_status(self) -> Option<i32> {
        match self {
            Answer::Ok
            | Answer::Compressed
            | Answer::CompressedSomehow
            | Answer::CutMessage
            | Answer::NoMessage
            | Answer::TwoMessages => Some(0),
            Answer::TrailersOnly | Answer::Proxy => Some(14),
            Answer::Status => Some(13),
            Answer::NoStatus
            | Answer::NoTrailers
            | Answer::ContentType
            | Answer::NoContentType
            | Answer::Reset => None,
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
            Answer::Ok => answer(MESSAGE, "0"),
            Answer::Compressed => {
                let fields = [content_type(), field("grpc-encoding", "gzip")].concat();
                [begin(&fields), data(0, stream, COMPRESSED), end(&grpc_status("0"))].concat()
            }
            Answer::TrailersOnly => end(&[status("200"), content_type(), grpc_status("14")].concat()),
            Answer::Status => answer(MESSAGE, "13"),
            Answer::NoStatus => {
                [begin(&content_type()), data(0, stream, MESSAGE), end(&field("grpc-message", "x"))].concat()
            }
            Answer::NoTrailers => [begin(&content_type()), data(END_STREAM, stream, MESSAGE)].concat(),
            Answer::ContentType => {
                [begin(&field("content-type", "text/html")), data(END_STREAM, stream, b"<html>")].concat()
            }
            Answer::NoContentType => [begin(&[]), data(0, stream, MESSAGE), end(&grpc_status("0"))].concat(),
            Answer::Proxy => {
                let head = [status("503"), field("content-type", "text/plain")].concat();
                [headers(0, stream, &head), data(END_STREAM, stream, b"no healthy upstream")].concat()
            }
            Answer::CompressedSomehow => answer(COMPRESSED, "0"),
            Answer::CutMessage => answer(&MESSAGE[..7], "0"),
            Answer::NoMessage => answer(b"", "0"),
            Answer::TwoMessages => answer(&[MESSAGE, MESSAGE].concat(), "0"),
            Answer::Reset => {
                let part = data(0, stream, &MESSAGE[..7]);
                [begin(&content_type()), part, reset(stream, INTERNAL_ERROR)].concat()
            }
        }
    }
}
