//! HTTP/2 on the wire (RFC 9113): frame headers, error code names, and header blocks (`hpack`), for code that observes
//! the bytes, and for the load generator's client.
//!
//! This module opens no connection and does not check the order of frames; its callers do that. We need our own code
//! because the `h2` crate is an endpoint: it cannot observe bytes that pass unchanged, and reports too little about
//! them.

pub mod hpack;

/// First bytes that a client with prior knowledge sends.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A frame with body content.
pub const DATA: u8 = 0;
/// A frame that begins a header block.
pub const HEADERS: u8 = 1;
/// A frame that terminates a stream immediately.
pub const RST_STREAM: u8 = 3;
/// A frame with connection settings.
pub const SETTINGS: u8 = 4;
/// A frame that announces a stream initiated by the server.
pub const PUSH_PROMISE: u8 = 5;
/// A frame that the receiver must send back.
pub const PING: u8 = 6;
/// A frame that announces the last stream that may still get a response.
pub const GOAWAY: u8 = 7;
/// A frame that allows the other side to send more.
pub const WINDOW_UPDATE: u8 = 8;
/// A frame that continues a header block.
pub const CONTINUATION: u8 = 9;

/// The flag END_STREAM of DATA and HEADERS.
pub const END_STREAM: u8 = 0x1;
/// The flag ACK of SETTINGS and PING.
pub const ACK: u8 = END_STREAM;
/// The flag END_HEADERS of HEADERS, PUSH_PROMISE and CONTINUATION.
pub const END_HEADERS: u8 = 0x4;
/// The flag PADDED of DATA, HEADERS and PUSH_PROMISE.
pub const PADDED: u8 = 0x8;
/// The flag PRIORITY of HEADERS.
pub const PRIORITY: u8 = 0x20;

/// The setting for the maximum size of the header table.
pub const HEADER_TABLE_SIZE: u16 = 1;
/// The setting that allows streams initiated by the server.
pub const ENABLE_PUSH: u16 = 2;
/// The setting for the maximum number of concurrent streams.
pub const MAX_CONCURRENT_STREAMS: u16 = 3;
/// The setting for the flow-control window of a new stream.
pub const INITIAL_WINDOW_SIZE: u16 = 4;
/// The setting for the maximum payload of a frame.
pub const MAX_FRAME_SIZE: u16 = 5;
/// The setting for the maximum size of a header list.
pub const MAX_HEADER_LIST_SIZE: u16 = 6;

/// Largest payload that every receiver must accept.
pub const MAX_FRAME_BYTES: usize = 16_384;

/// The nine-byte header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Length of the payload in bytes.
    pub length: usize,
    /// Frame type: one of this module's constants, or a type without one.
    pub kind: u8,
    /// Flags of the frame, as a bit set.
    pub flags: u8,
    /// Stream identifier; 0 for the connection.
    pub stream: u32,
}

impl FrameHeader {
    /// Length of the header in bytes.
    pub const BYTES: usize = 9;

    /// Parses the header at the front of `bytes`; returns `None` if it is incomplete.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let [a, b, c, kind, flags, stream @ ..] = *bytes.first_chunk::<{ Self::BYTES }>()?;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        Some(Self { length, kind, flags, stream: u32::from_be_bytes(stream) & 0x7fff_ffff })
    }

    /// Returns the encoded header. The length must fit into 24 bits.
    pub fn bytes(self) -> [u8; Self::BYTES] {
        let [.., a, b, c] = self.length.to_be_bytes();
        let [d, e, f, g] = self.stream.to_be_bytes();
        [a, b, c, self.kind, self.flags, d, e, f, g]
    }

    /// Returns true if `flag` is set.
    pub fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Returns the first four bytes as a big-endian number; 0 if there are fewer.
pub fn number(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// Returns the name of an error code (RFC 9113, 7).
pub fn error_name(code: u32) -> String {
    const NAMES: [&str; 14] = [
        "NO_ERROR",
        "PROTOCOL_ERROR",
        "INTERNAL_ERROR",
        "FLOW_CONTROL_ERROR",
        "SETTINGS_TIMEOUT",
        "STREAM_CLOSED",
        "FRAME_SIZE_ERROR",
        "REFUSED_STREAM",
        "CANCEL",
        "COMPRESSION_ERROR",
        "CONNECT_ERROR",
        "ENHANCE_YOUR_CALM",
        "INADEQUATE_SECURITY",
        "HTTP_1_1_REQUIRED",
    ];
    NAMES.get(code as usize).map_or_else(|| format!("error code {code:#x}"), |name| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_codes_map_to_names() {
        assert_eq!((error_name(7), error_name(13)), ("REFUSED_STREAM".into(), "HTTP_1_1_REQUIRED".into()));
        assert_eq!(error_name(0xff), "error code 0xff");
    }

    #[test]
    fn frame_header_round_trips() {
        let header =
            FrameHeader { length: 70_000, kind: HEADERS, flags: END_HEADERS | PADDED, stream: 0x7fff_fffe };
        assert_eq!(FrameHeader::read(&header.bytes()), Some(header));
        assert_eq!(FrameHeader::read(&header.bytes()[..8]), None);
    }
}
