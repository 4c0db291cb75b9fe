//! Frames of the faulty server: valid frames, and parts of invalid ones.

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const CONTINUATION: u8 = 9;

pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;
pub(super) const PADDED: u8 = 8;

/// Error codes (RFC 9113, 7), and an undefined one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Code(u32);

pub(super) const NO_ERROR: Code = Code(0);
pub(super) const PROTOCOL_ERROR: Code = Code(1);
pub(super) const INTERNAL_ERROR: Code = Code(2);
pub(super) const REFUSED_STREAM: Code = Code(7);
pub(super) const CANCEL: Code = Code(8);
pub(super) const ENHANCE_YOUR_CALM: Code = Code(11);

/// Names of the codes, alone and within a GOAWAY.
const NAMES: [(u32, &str, &str); 15] = [
    (0, "NO_ERROR", "GOAWAY NO_ERROR"),
    (1, "PROTOCOL_ERROR", "GOAWAY PROTOCOL_ERROR"),
    (2, "INTERNAL_ERROR", "GOAWAY INTERNAL_ERROR"),
    (3, "FLOW_CONTROL_ERROR", "GOAWAY FLOW_CONTROL_ERROR"),
    (4, "SETTINGS_TIMEOUT", "GOAWAY SETTINGS_TIMEOUT"),
    (5, "STREAM_CLOSED", "GOAWAY STREAM_CLOSED"),
    (6, "FRAME_SIZE_ERROR", "GOAWAY FRAME_SIZE_ERROR"),
    (7, "REFUSED_STREAM", "GOAWAY REFUSED_STREAM"),
    (8, "CANCEL", "GOAWAY CANCEL"),
    (9, "COMPRESSION_ERROR", "GOAWAY COMPRESSION_ERROR"),
    (10, "CONNECT_ERROR", "GOAWAY CONNECT_ERROR"),
    (11, "ENHANCE_YOUR_CALM", "GOAWAY ENHANCE_YOUR_CALM"),
    (12, "INADEQUATE_SECURITY", "GOAWAY INADEQUATE_SECURITY"),
    (13, "HTTP_1_1_REQUIRED", "GOAWAY HTTP_1_1_REQUIRED"),
    (0xbad, "error code 0xbad", "GOAWAY error code 0xbad"),
];

impl Code {
    /// Returns all codes except REFUSED_STREAM, which has its own script.
    pub(super) fn others() -> impl Iterator<Item = Self> {
        NAMES.iter().map(|(code, ..)| Self(*code)).filter(|code| *code != REFUSED_STREAM)
    }

    pub(super) fn names(self) -> (&'static str, &'static str) {
        let found = NAMES.iter().find(|(code, ..)| *code == self.0);
        found.map(|(_, alone, goaway)| (*alone, *goaway)).unwrap()
    }
}

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Returns a HEADERS frame with a complete header block.
pub(super) fn headers(flags: u8, stream: u32, block: &[u8]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | flags, stream, block)
}

pub(super) fn data(flags: u8, stream: u32, bytes: &[u8]) -> Vec<u8> {
    frame(DATA, flags, stream, bytes)
}

pub(super) fn reset(stream: u32, code: Code) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &code.0.to_be_bytes())
}

/// Returns the fields with which every response begins.
pub(super) fn status(status: &str) -> Vec<u8> {
    [field(":status", status), field("rolldrop-pod", "web-1")].concat()
}

/// Highest stream identifier.
pub(super) const LAST_STREAM: u32 = (1 << 31) - 1;

pub(super) fn goaway(last_stream: u32, code: Code) -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[last_stream.to_be_bytes(), code.0.to_be_bytes()].concat())
}

pub(super) fn settings(settings: &[(u16, u32)]) -> Vec<u8> {
    let entry = |(name, value): &(u16, u32)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
    frame(SETTINGS, 0, 0, &settings.iter().flat_map(entry).collect::<Vec<u8>>())
}

/// Encodes a header field as a literal without an index (RFC 7541, 6.2.2).
pub(super) fn field(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    [vec![0], text(name), text(value)].concat()
}

/// Returns the number of frame bytes in `bytes` that belong to a message on `stream`, if `bytes` consists of frames.
pub(super) fn message_bytes(mut bytes: &[u8]) -> u64 {
    let mut sum = 0;
    while bytes.len() >= 9 {
        let length = 9 + u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]) as usize;
        if length > bytes.len() {
            break;
        }
        if matches!(bytes[3], DATA | HEADERS | CONTINUATION) && bytes[5..9] != [0; 4] {
            sum += length as u64;
        }
        bytes = &bytes[length..];
    }
    sum
}
