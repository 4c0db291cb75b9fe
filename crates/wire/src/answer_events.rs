//! Splits a response body into events as it arrives: server-sent events ([`sse`]) and lines of JSON ([`ndjson`]).
//!
//! A parser takes pieces of any size, reports the same events however the body is split, and reports each event with
//! its last byte. It holds memory only while an event is incomplete, so thousands of open streams, most of them idle,
//! cost a few dozen bytes each. Bytes are not decoded.

pub mod ndjson;
pub mod sse;

/// Maximum size of an event in bytes, as it arrives. It bounds the memory of a parser.
pub const MAX_EVENT_BYTES: usize = 1 << 20;

/// An event that is longer than [`MAX_EVENT_BYTES`]. The rest of the body cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;
