//! Scripts of the faulty server, and the results that a client should record for them.

use super::faulty_frames::{
    CANCEL, CONTINUATION, Code, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, HEADERS, INTERNAL_ERROR,
    LAST_STREAM, NO_ERROR, PADDED, REFUSED_STREAM, data, field, frame, goaway, headers, reset, status,
};
use super::grpc_faults::Answer;
use crate::known_answers::test_transport::ALERT;
use rolldrop_record::Outcome;

/// Action of the server for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Script {
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
    Grpc(Answer),
}

/// Returns the scripts that end a stream but not its connection.
pub(super) fn streams() -> Vec<Script> {
    STREAMS.into_iter().chain(Code::others().map(Script::ResetSilently)).collect()
}

const STREAMS: [Script; 15] = [
    Script::Ok,
    Script::InPieces,
    Script::Refused,
    Script::Padded,
    Script::Continued,
    Script::RefusedInBody,
    Script::Interim,
    Script::NoContent,
    Script::ResetInBody,
    Script::Trailers,
    Script::NotFound,
    Script::ShortBody,
    Script::Unavailable,
    Script::OkThenReset,
    Script::LongBody,
];

/// Scripts that end the connection.
pub(super) const CONNECTIONS: [Script; 15] = [
    Script::CloseSilently,
    Script::CloseInBody,
    Script::BreakSilently,
    Script::BreakInBody,
    Script::CloseNext,
    Script::GoAwayBefore(NO_ERROR),
    Script::GoAwayBefore(ENHANCE_YOUR_CALM),
    Script::GoAwayThenAnswer(NO_ERROR),
    Script::GoAwayTwice,
    Script::GoAwayThenClose(NO_ERROR),
    Script::GoAwayThenClose(INTERNAL_ERROR),
    Script::GoAwayThenBreak,
    Script::BadFrame,
    Script::BadHeaders,
    Script::Http1,
];

/// Scripts that end a connection with TLS.
pub(super) const ALERTS: [Script; 2] = [Script::AlertSilently, Script::AlertInBody];

pub(super) const HANGING: [Script; 3] = [Script::HangSilently, Script::HangInBody, Script::Drip];

/// Action after a response.
pub(super) enum Then {
    Go,
    Close,
    Break,
    Alert,
    /// Close the connection when the next request arrives.
    CloseNext,
    Drip,
}

impl Script {
    /// Returns the result that a client should record: outcome, status, and HTTP/2 detail.
    pub(super) fn truth(self) -> (Outcome, Option<u16>, Option<&'static str>) {
        use Script as S;
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
        if let Script::Grpc(answer) = self { answer.grpc_status() } else { None }
    }

    /// Returns true if Go's client silently resends a request that met this fault on a stream.
    pub(super) fn is_hidden_by_go(self, stream: u32) -> bool {
        match self {
            Script::Refused => true,
            Script::GoAwayBefore(code) => code == NO_ERROR || stream > 1,
            _ => false,
        }
    }

    /// Returns true if the connection is reset.
    pub(super) fn is_broken(self) -> bool {
        matches!(self, Script::BreakSilently | Script::BreakInBody | Script::GoAwayThenBreak)
    }

    /// Returns the frames of the response on a stream, and the action afterwards.
    pub(super) fn answer(self, stream: u32) -> (Vec<u8>, Then) {
        use Script as S;
        let ok = |length: &str| [status("200"), field("content-length", length)].concat();
        let headers = |flags, block: &[u8]| headers(flags, stream, block);
        let data = |flags, bytes: &[u8]| data(flags, stream, bytes);
        let reset = |code: Code| reset(stream, code);
        let whole = || [headers(0, &ok("5")), data(END_STREAM, b"hello")].concat();
        let part = || [headers(0, &ok("9")), data(0, b"hello")].concat();
        match self {
            S::Ok => (whole(), Then::Go),
            S::InPieces => {
                let (empty, padding) = (data(0, b""), data(PADDED, b"\x02\0\0"));
                let body = [data(0, b"he"), empty, padding, data(0, b"llo"), data(END_STREAM, b"")];
                ([headers(0, &status("200")), body.concat()].concat(), Then::Go)
            }
            S::Padded => {
                let padded = data(END_STREAM | PADDED, b"\x03hello\0\0\0");
                ([headers(0, &ok("5")), padded].concat(), Then::Go)
            }
            S::Continued => {
                let block = ok("5");
                let (first, rest) = block.split_at(7);
                let head = [
                    frame(HEADERS, 0, stream, first),
                    frame(CONTINUATION, END_HEADERS, stream, rest),
                    data(END_STREAM, b"hello"),
                ];
                (head.concat(), Then::Go)
            }
            S::Interim => ([headers(0, &field(":status", "103")), whole()].concat(), Then::Go),
            S::NoContent => (headers(END_STREAM, &status("204")), Then::Go),
            S::Trailers => {
                let trailers = headers(END_STREAM, &field("checksum", "x"));
                ([headers(0, &ok("5")), data(0, b"hello"), trailers].concat(), Then::Go)
            }
            S::NotFound => (headers(END_STREAM, &status("404")), Then::Go),
            S::Unavailable => ([headers(0, &status("503")), data(END_STREAM, b"busy")].concat(), Then::Go),
            S::OkThenReset => ([whole(), reset(NO_ERROR)].concat(), Then::Go),
            S::Refused => (reset(REFUSED_STREAM), Then::Go),
            S::RefusedInBody => ([part(), reset(REFUSED_STREAM)].concat(), Then::Go),
            S::ResetSilently(code) => (reset(code), Then::Go),
            S::ResetInBody => ([part(), reset(CANCEL)].concat(), Then::Go),
            S::ShortBody => ([headers(0, &ok("9")), data(END_STREAM, b"hello")].concat(), Then::Go),
            S::LongBody => ([headers(0, &ok("2")), data(END_STREAM, b"hello")].concat(), Then::Go),
            S::CloseSilently => (Vec::new(), Then::Close),
            S::CloseInBody => (part(), Then::Close),
            S::BreakSilently => (Vec::new(), Then::Break),
            S::BreakInBody => (part(), Then::Break),
            S::AlertSilently => (Vec::new(), Then::Alert),
            S::AlertInBody => (part(), Then::Alert),
            S::CloseNext => (whole(), Then::CloseNext),
            S::GoAwayBefore(code) => (goaway(stream.saturating_sub(2), code), Then::Close),
            S::GoAwayThenAnswer(code) => ([goaway(stream, code), whole()].concat(), Then::Close),
            S::GoAwayTwice => {
                let both = [goaway(LAST_STREAM, NO_ERROR), goaway(stream, NO_ERROR)].concat();
                ([both, whole()].concat(), Then::Close)
            }
            S::GoAwayThenClose(code) => (goaway(stream, code), Then::Close),
            S::GoAwayThenBreak => (goaway(stream, NO_ERROR), Then::Break),
            S::BadFrame => (frame(DATA, 0, 0, b"on no stream"), Then::Close),
            // Index 0 is invalid.
            S::BadHeaders => (headers(END_STREAM, &[0x80]), Then::Close),
            S::Http1 => (b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n".to_vec(), Then::Close),
            S::HangSilently => (Vec::new(), Then::Go),
            S::HangInBody => (part(), Then::Go),
            S::Drip => (headers(0, &status("200")), Then::Drip),
            S::Grpc(answer) => (answer.frames(stream), Then::Go),
        }
    }
}
