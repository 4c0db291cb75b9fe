//! Decodes the header blocks of responses, and checks that they form valid messages (RFC 9113, 8.2 and 8.3).

use super::http2_fault::{COMPRESSION_ERROR, ENHANCE_YOUR_CALM, Http2Fault, PROTOCOL_ERROR};
use crate::field_list::FieldList;
use rolldrop_wire::http2::hpack::Decoder;

/// Maximum size of a header list in bytes, as the protocol counts it; the same as for HTTP/1.1. Also the maximum size
/// of an encoded block.
pub(super) const MAX_HEADER_LIST: usize = 64 * 1024;
/// Size counted for each field in addition to its name and value (RFC 9113, 10.5.1).
const FIELD_OVERHEAD: usize = 32;
/// A header list larger than this is an attack: with a table, a short block can refer to a long list.
const ABUSIVE_HEADER_LIST: usize = 4 * MAX_HEADER_LIST;

/// Fields that belong to a connection, which HTTP/2 does not allow (RFC 9113, 8.2.2).
const CONNECTION_FIELDS: [&[u8]; 5] =
    [b"connection", b"transfer-encoding", b"upgrade", b"keep-alive", b"proxy-connection"];

/// Reader for the header blocks of one connection.
#[derive(Debug, Default)]
pub(super) struct BlockReader {
    decoder: Decoder,
    /// Fields of the last block.
    pub(super) fields: FieldList,
}

/// A decoded block, whose fields are in the reader.
pub(super) struct ReadBlock {
    /// Status, if the block has one.
    pub(super) status: Option<u16>,
    /// Reason why the block is not a valid message; its stream cannot continue.
    pub(super) fault: Option<Http2Fault>,
}

impl BlockReader {
    /// Decodes a complete block. Every block must be decoded, even for a stream that has ended, because it may change
    /// the table.
    ///
    /// # Errors
    /// Returns an error if the connection cannot continue.
    pub(super) fn read(&mut self, block: &[u8]) -> Result<ReadBlock, Http2Fault> {
        let Self { decoder, fields } = self;
        fields.clear();
        let (mut size, mut status, mut fault) = (0, None, None);
        let mut has_fields = false;
        let decoded = decoder.decode(block, |name, value| {
            size += name.len() + value.len() + FIELD_OVERHEAD;
            if size > MAX_HEADER_LIST {
                return;
            }
            let wrong = match name {
                b":status" if has_fields || status.is_some() => Some("a misplaced pseudo-header field"),
                b":status" => {
                    status = parse_status(value);
                    status.is_none().then_some("an invalid :status")
                }
                [b':', ..] => Some("a pseudo-header field that responses must not have"),
                _ if !name_is_valid(name) => Some("an invalid field name"),
                _ if !value_is_valid(value) => Some("an invalid field value"),
                b"te" if value != b"trailers" => Some("a connection-specific field"),
                _ if CONNECTION_FIELDS.contains(&name) => Some("a connection-specific field"),
                _ => {
                    has_fields = true;
                    fields.push(name, value);
                    None
                }
            };
            fault = fault.or(wrong);
        });
        decoded.map_err(|_| COMPRESSION_ERROR.because("a header block that cannot be decoded"))?;
        if size > ABUSIVE_HEADER_LIST {
            return Err(ENHANCE_YOUR_CALM.because("a header list of more than 256 KiB"));
        }
        if size > MAX_HEADER_LIST {
            fault = Some("a header list of more than 64 KiB");
        }
        Ok(ReadBlock { status, fault: fault.map(|why| PROTOCOL_ERROR.because(why)) })
    }
}

/// Returns the body length that the fields announce, if any.
///
/// # Errors
/// Returns an error if the length is invalid or the fields contradict each other.
pub(super) fn content_length(fields: &FieldList) -> Result<Option<u64>, Http2Fault> {
    let mut announced = None;
    for value in fields.all("content-length") {
        let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
        let length = str::from_utf8(value).ok().filter(|_| is_number).and_then(|value| value.parse().ok());
        if length.is_none() || announced.is_some_and(|earlier| Some(earlier) != length) {
            return Err(PROTOCOL_ERROR.because("an invalid content-length"));
        }
        announced = length;
    }
    Ok(announced)
}

fn parse_status(value: &[u8]) -> Option<u16> {
    match value {
        [a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] => {
            Some(u16::from(a - b'0') * 100 + u16::from(b - b'0') * 10 + u16::from(c - b'0'))
        }
        _ => None,
    }
}

/// Returns true if this is a token (RFC 9110, 5.6.2) without upper-case letters.
fn name_is_valid(name: &[u8]) -> bool {
    let is_valid = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'!' | b'#'..=b'\'' | b'*' | b'+' | b'^' | b'`' | b'|' | b'~');
    !name.is_empty() && name.iter().all(is_valid)
}

fn value_is_valid(value: &[u8]) -> bool {
    value.iter().all(|byte| *byte == b'\t' || !byte.is_ascii_control())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rolldrop_wire::http2::hpack::literal;

    fn read(fields: &[(&str, &str)]) -> Result<(Option<u16>, usize), String> {
        let block: Vec<u8> = fields.iter().flat_map(|(name, value)| literal(name, value)).collect();
        let mut reader = BlockReader::default();
        match reader.read(&block) {
            Ok(ReadBlock { fault: Some(fault), .. }) => Err(format!("stream {fault}")),
            Ok(read) => Ok((read.status, reader.fields.iter().count())),
            Err(fault) => Err(format!("connection {fault}")),
        }
    }

    #[test]
    fn block_reader_accepts_heads_and_trailers() {
        let long = "v".repeat(1000);
        assert_eq!(
            read(&[(":status", "503"), ("via", "1.1 a"), ("te", "trailers"), ("x", &long)]),
            Ok((Some(503), 3))
        );
        assert_eq!(read(&[("grpc-status", "0"), ("x!#$%&'*+-.^_`|~9", "\u{e4}\t")]), Ok((None, 2)));
        assert_eq!(read(&[]), Ok((None, 0)));
    }

    #[test]
    fn malformed_block_ends_only_its_stream() {
        for wrong in [
            [(":status", "200"), (":status", "200")],
            [("via", "x"), (":status", "200")],
            [(":status", "200"), (":path", "/")],
            [(":status", "200"), (":protocol", "x")],
            [(":status", "20"), ("via", "x")],
            [(":status", "099"), ("via", "x")],
            [(":status", "2000"), ("via", "x")],
            [(":status", "200"), ("Via", "x")],
            [(":status", "200"), ("", "x")],
            [(":status", "200"), ("a b", "x")],
            [(":status", "200"), ("via", "x\r\ny: z")],
            [(":status", "200"), ("via", "\0")],
            [(":status", "200"), ("te", "gzip")],
            [(":status", "200"), ("connection", "close")],
            [(":status", "200"), ("keep-alive", "5")],
        ] {
            let read = read(&wrong);
            assert!(
                read.as_ref().is_err_and(|why| why.starts_with("stream PROTOCOL_ERROR: ")),
                "{wrong:?} {read:?}"
            );
        }
    }

    #[test]
    fn header_list_is_limited_before_it_is_stored() {
        let at_limit = "v".repeat(MAX_HEADER_LIST - 1 - FIELD_OVERHEAD);
        assert_eq!(read(&[("x", &at_limit)]), Ok((None, 1)));
        let why = "stream PROTOCOL_ERROR: a header list of more than 64 KiB";
        assert_eq!(read(&[("x", &format!("{at_limit}v"))]), Err(why.to_owned()));
        // A field of 4,000 bytes in the table, to which each byte of the block refers.
        let mut block = vec![0x40, 1, b'x', 0x7f, 0x80 | 33, 30];
        block.resize(block.len() + 127 + 33 + (30 << 7), b'v');
        let bomb = |references: usize| {
            let block = [&block[..], &vec![0x80 | 62; references]].concat();
            let mut reader = BlockReader::default();
            let fault = reader.read(&block).map(|read| read.fault.is_some());
            assert!(reader.fields.iter().map(|(_, value)| value.len()).sum::<usize>() <= MAX_HEADER_LIST);
            fault.map_err(|fault| fault.to_string())
        };
        assert_eq!((bomb(10), bomb(20)), (Ok(false), Ok(true)));
        let abusive = "ENHANCE_YOUR_CALM: a header list of more than 256 KiB";
        assert_eq!(bomb(60_000), Err(abusive.to_owned()));
    }

    #[test]
    fn content_length_must_be_one_number() {
        let length = |values: &[&str]| {
            let mut fields = FieldList::default();
            values.iter().for_each(|value| fields.push(b"content-length", value.as_bytes()));
            content_length(&fields).ok()
        };
        assert_eq!(
            (length(&[]), length(&["5"]), length(&["5", "5"])),
            (Some(None), Some(Some(5)), Some(Some(5)))
        );
        for wrong in [&["5", "6"][..], &["+5"], &[""], &["99999999999999999999"], &["5,5"]] {
            assert_eq!(length(wrong), None, "{wrong:?}");
        }
    }
}
