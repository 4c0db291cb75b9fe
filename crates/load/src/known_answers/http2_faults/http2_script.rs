//! Scripts of the faulty server, and the results that a client should record for them.

use super::faulty_frames::{
    CANCEL, CONTINUATION, Code, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, HEADERS, INTERNAL_ERROR,
    LAST_STREAM, NO_ERROR, PADDED, REFUSED_STREAM, data, field, frame, goaway, headers, reset, status,
};
use super::grpc_faults::GrpcAnswer;
use crate::known_answers::test_transport::ALERT;
use rolldrop_record::Outcome;

/// The server's action for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Http2Script {
    Ok,
    InPieces,
    Padded,
    Continued,
    Interim,
    NoContent,
    Trailers,
    NotFound,
    Unavailable,
    /// The complete response, followed by RST_STREAM(NO_ERROR).
    OkThenReset,
    Refused,
    /// REFUSED_STREAM after part of a response.
    RefusedInBody,
    ResetSilently(Code),
    ResetInBody,
    ShortBody,
    LongBody,
    CloseSilently,
    CloseInBody,
    /// Resets the connection.
    BreakSilently,
    BreakInBody,
    /// Responds, and closes the connection when the next request arrives.
    CloseNext,
    /// GOAWAY that excludes this request.
    GoAwayBefore(Code),
    /// GOAWAY that does not exclude this request, and then the response.
    GoAwayThenAnswer(Code),
    /// Same as `GoAwayThenAnswer`, but after a GOAWAY that excludes nothing, as in RFC 9113 (6.8).
    GoAwayTwice,
    /// GOAWAY that does not exclude this request, and no response.
    GoAwayThenClose(Code),
    GoAwayThenBreak,
    /// Terminates TLS with an alert.
    AlertSilently,
    AlertInBody,
    BadFrame,
    BadHeaders,
    Http1,
    HangSilently,
    HangInBody,
    /// A byte now and then, endlessly.
    Drip,
    /// A response to a gRPC call.
    Grpc(GrpcAnswer),
}

/// Returns the scripts that end a stream but not its connection.
pub(super) fn streams() -> Vec<Http2Script> {
    STREAMS.into_iter().chain(Code::others().map(Http2Script::ResetSilently)).collect()
}

const STREAMS: [Http2Script; 15] = [
    Http2Script::Ok,
    Http2Script::InPieces,
    Http2Script::Refused,
    Http2Script::Padded,
    Http2Script::Continued,
    Http2Script::RefusedInBody,
    Http2Script::Interim,
    Http2Script::NoContent,
    Http2Script::ResetInBody,
    Http2Script::Trailers,
    Http2Script::NotFound,
    Http2Script::ShortBody,
    Http2Script::Unavailable,
    Http2Script::OkThenReset,
    Http2Script::LongBody,
];

/// Scripts that end the connection.
pub(super) const CONNECTIONS: [Http2Script; 15] = [
    Http2Script::CloseSilently,
    Http2Script::CloseInBody,
    Http2Script::BreakSilently,
    Http2Script::BreakInBody,
    Http2Script::CloseNext,
    Http2Script::GoAwayBefore(NO_ERROR),
    Http2Script::GoAwayBefore(ENHANCE_YOUR_CALM),
    Http2Script::GoAwayThenAnswer(NO_ERROR),
    Http2Script::GoAwayTwice,
    Http2Script::GoAwayThenClose(NO_ERROR),
    Http2Script::GoAwayThenClose(INTERNAL_ERROR),
    Http2Script::GoAwayThenBreak,
    Http2Script::BadFrame,
    Http2Script::BadHeaders,
    Http2Script::Http1,
];

/// Scripts that end a connection with TLS.
pub(super) const ALERTS: [Http2Script; 2] = [Http2Script::AlertSilently, Http2Script::AlertInBody];

pub(super) const HANGING: [Http2Script; 3] =
    [Http2Script::HangSilently, Http2Script::HangInBody, Http2Script::Drip];

/// Action after a response.
pub(super) enum Http2Then {
    Go,
    Close,
    Break,
    Alert,
    /// Close the connection when the next request arrives.
    CloseNext,
    Drip,
}

impl Http2Script {
    /// Returns the result that a client should record: outcome, status, and HTTP/2 detail.
    pub(super) fn truth(self) -> (Outcome, Option<u16>, Option<&'static str>) {
        use Http2Script as S;
        match self {
            S::Ok
            | S::InPieces
            | S::Padded
            | S::Continued
            | S::Interim
            | S::Trailers
            | S::OkThenReset
            | S::CloseNext
            | S::GoAwayThenAnswer(_)
            | S::GoAwayTwice => (Outcome::Ok, Some(200), None),
            S::NoContent => (Outcome::Ok, Some(204), None),
            S::NotFound => (Outcome::HttpError, Some(404), None),
            S::Unavailable => (Outcome::HttpError, Some(503), None),
            S::Refused => (Outcome::H2RefusedStream, None, Some("REFUSED_STREAM")),
            S::RefusedInBody => (Outcome::ResetMidResponse, Some(200), Some("REFUSED_STREAM")),
            S::ResetSilently(code) => (Outcome::ResetBeforeResponse, None, Some(code.names().0)),
            S::ResetInBody => (Outcome::ResetMidResponse, Some(200), Some("CANCEL")),
            S::ShortBody | S::CloseInBody => (Outcome::TruncatedBody, Some(200), None),
            S::LongBody => (Outcome::ProtocolError, Some(200), None),
            S::CloseSilently => (Outcome::EofBeforeResponse, None, None),
            S::BreakSilently => (Outcome::ResetBeforeResponse, None, None),
            S::BreakInBody => (Outcome::ResetMidResponse, Some(200), None),
            // The server's settings arrived before the alert.
            S::AlertSilently => (Outcome::ResetBeforeResponse, None, Some(ALERT)),
            S::AlertInBody => (Outcome::ResetMidResponse, Some(200), Some(ALERT)),
            S::GoAwayBefore(code) => (Outcome::H2Goaway, None, Some(code.names().1)),
            S::GoAwayThenClose(code) => (Outcome::EofBeforeResponse, None, Some(code.names().1)),
            S::GoAwayThenBreak => (Outcome::ResetBeforeResponse, None, Some("GOAWAY NO_ERROR")),
            S::BadFrame | S::BadHeaders | S::Http1 => (Outcome::ProtocolError, None, None),
            S::HangSilently => (Outcome::ResponseTimeout, None, None),
            S::HangInBody | S::Drip => (Outcome::BodyTimeout, Some(200), None),
            S::Grpc(answer) => answer.truth(),
        }
    }

    /// Returns the gRPC status that the row should have.
    pub(super) fn grpc_status(self) -> Option<i32> {
        if let Http2Script::Grpc(answer) = self { answer.grpc_status() } else { None }
    }

    /// Returns true if Go's client silently resends a request that hit this fault on a stream.
    pub(super) fn is_hidden_by_go(self, stream: u32) -> bool {
        match self {
            Http2Script::Refused => true,
            Http2Script::GoAwayBefore(code) => code == NO_ERROR || stream > 1,
            _ => false,
        }
    }

    /// Returns true if the connection is reset.
    pub(super) fn is_broken(self) -> bool {
        matches!(self, Http2Script::BreakSilently | Http2Script::BreakInBody | Http2Script::GoAwayThenBreak)
    }

    /// Returns the frames of the response on a stream, and the action afterwards.
    pub(super) fn answer(self, stream: u32) -> (Vec<u8>, Http2Then) {
        use Http2Script as S;
        let ok = |length: &str| [status("200"), field("content-length", length)].concat();
        let headers = |flags, block: &[u8]| headers(flags, stream, block);
        let data = |flags, bytes: &[u8]| data(flags, stream, bytes);
        let reset = |code: Code| reset(stream, code);
        let whole = || [headers(0, &ok("5")), data(END_STREAM, b"hello")].concat();
        let part = || [headers(0, &ok("9")), data(0, b"hello")].concat();
        match self {
            S::Ok => (whole(), Http2Then::Go),
            S::InPieces => {
                let (empty, padding) = (data(0, b""), data(PADDED, b"\x02\0\0"));
                let body = [data(0, b"he"), empty, padding, data(0, b"llo"), data(END_STREAM, b"")];
                ([headers(0, &status("200")), body.concat()].concat(), Http2Then::Go)
            }
            S::Padded => {
                let padded = data(END_STREAM | PADDED, b"\x03hello\0\0\0");
                ([headers(0, &ok("5")), padded].concat(), Http2Then::Go)
            }
            S::Continued => {
                let block = ok("5");
                let (first, rest) = block.split_at(7);
                let head = [
                    frame(HEADERS, 0, stream, first),
                    frame(CONTINUATION, END_HEADERS, stream, rest),
                    data(END_STREAM, b"hello"),
                ];
                (head.concat(), Http2Then::Go)
            }
            S::Interim => ([headers(0, &field(":status", "103")), whole()].concat(), Http2Then::Go),
            S::NoContent => (headers(END_STREAM, &status("204")), Http2Then::Go),
            S::Trailers => {
                let trailers = headers(END_STREAM, &field("checksum", "x"));
                ([headers(0, &ok("5")), data(0, b"hello"), trailers].concat(), Http2Then::Go)
            }
            S::NotFound => (headers(END_STREAM, &status("404")), Http2Then::Go),
            S::Unavailable => {
                ([headers(0, &status("503")), data(END_STREAM, b"busy")].concat(), Http2Then::Go)
            }
            S::OkThenReset => ([whole(), reset(NO_ERROR)].concat(), Http2Then::Go),
            S::Refused => (reset(REFUSED_STREAM), Http2Then::Go),
            S::RefusedInBody => ([part(), reset(REFUSED_STREAM)].concat(), Http2Then::Go),
            S::ResetSilently(code) => (reset(code), Http2Then::Go),
            S::ResetInBody => ([part(), reset(CANCEL)].concat(), Http2Then::Go),
            S::ShortBody => ([headers(0, &ok("9")), data(END_STREAM, b"hello")].concat(), Http2Then::Go),
            S::LongBody => ([headers(0, &ok("2")), data(END_STREAM, b"hello")].concat(), Http2Then::Go),
            S::CloseSilently => (Vec::new(), Http2Then::Close),
            S::CloseInBody => (part(), Http2Then::Close),
            S::BreakSilently => (Vec::new(), Http2Then::Break),
            S::BreakInBody => (part(), Http2Then::Break),
            S::AlertSilently => (Vec::new(), Http2Then::Alert),
            S::AlertInBody => (part(), Http2Then::Alert),
            S::CloseNext => (whole(), Http2Then::CloseNext),
            S::GoAwayBefore(code) => (goaway(stream.saturating_sub(2), code), Http2Then::Close),
            S::GoAwayThenAnswer(code) => ([goaway(stream, code), whole()].concat(), Http2Then::Close),
            S::GoAwayTwice => {
                let both = [goaway(LAST_STREAM, NO_ERROR), goaway(stream, NO_ERROR)].concat();
                ([both, whole()].concat(), Http2Then::Close)
            }
            S::GoAwayThenClose(code) => (goaway(stream, code), Http2Then::Close),
            S::GoAwayThenBreak => (goaway(stream, NO_ERROR), Http2Then::Break),
            S::BadFrame => (frame(DATA, 0, 0, b"on no stream"), Http2Then::Close),
            // Index 0 is invalid.
            S::BadHeaders => (headers(END_STREAM, &[0x80]), Http2Then::Close),
            S::Http1 => (b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n".to_vec(), Http2Then::Close),
            S::HangSilently => (Vec::new(), Http2Then::Go),
            S::HangInBody => (part(), Http2Then::Go),
            S::Drip => (headers(0, &status("200")), Http2Then::Drip),
            S::Grpc(answer) => (answer.frames(stream), Http2Then::Go),
        }
    }
}
