//! Reads header blocks (HPACK, RFC 7541), and writes fields that need no dynamic table.
//!
//! The crates that speak HTTP/2 do not export their HPACK reader, and the crates that do export one panic on truncated
//! input or build a code table for every string. This one stops at a block that it does not understand; its caller
//! decides whether that is an error.

use std::collections::VecDeque;
use std::ops::Range;

use bytes::Bytes;

/// Initial size of the dynamic table (RFC 9113, 6.5.2).
pub const FIRST_SIZE: usize = 4096;
/// Maximum size of a tracked dynamic table. The peers agree on the table's size; this limits our memory use.
const MAX_SIZE: usize = 1 << 20;
/// Size counted for each entry in addition to its name and value (RFC 7541, 4.1).
const ENTRY_OVERHEAD: usize = 32;

/// A header block that violates the grammar or needs too large a table. Later blocks on the same connection cannot be
/// read either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadHeaderBlock;

/// A string of a literal field: bytes of the block, or the place of the decoded bytes in the decoder's scratch buffer.
enum HeaderText<'a> {
    Plain(&'a [u8]),
    Decoded(Range<usize>),
}

impl<'a> HeaderText<'a> {
    fn bytes(&self, scratch: &'a [u8]) -> &'a [u8] {
        match self {
            HeaderText::Plain(text) => text,
            HeaderText::Decoded(place) => &scratch[place.clone()],
        }
    }
}

/// Header block reader for one direction of a connection.
#[derive(Debug)]
pub struct Decoder {
    /// Table entries, newest first.
    entries: VecDeque<(Bytes, Bytes)>,
    size: usize,
    max_size: usize,
    /// Maximum table size that the reading side has allowed.
    allowed_size: usize,
    /// Decoded strings of the current field; kept, so that reading a field allocates nothing.
    scratch: Vec<u8>,
}

impl Default for Decoder {
    /// Returns a reader for a new connection.
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            size: 0,
            max_size: FIRST_SIZE,
            allowed_size: FIRST_SIZE,
            scratch: Vec::new(),
        }
    }
}

impl Decoder {
    /// Records that the reading side has allowed a table of this size (SETTINGS_HEADER_TABLE_SIZE). A larger table is
    /// not tracked, because that side treats it as an error.
    pub fn allow(&mut self, size: usize) {
        self.allowed_size = size.min(MAX_SIZE);
    }

    /// Returns the approximate memory use of the table, in bytes.
    pub fn held_bytes(&self) -> usize {
        // The allocator uses a few more bytes per string; the overhead counted for each entry covers them.
        self.size + self.entries.capacity() * size_of::<(Bytes, Bytes)>() + self.scratch.capacity()
    }

    /// Reads a complete header block, field by field.
    ///
    /// # Errors
    /// Fails if the block cannot be read; the fields before the failure have already been passed to `field`.
    pub fn decode(
        &mut self,
        mut block: &[u8],
        mut field: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), BadHeaderBlock> {
        while let Some(&first) = block.first() {
            if first & 0x80 != 0 {
                let (name, value) = self.entry(integer(&mut block, 7)?)?;
                field(name, value);
            } else if first & 0x40 != 0 {
                let (name, value) = self.literal(&mut block, 6, &mut field)?;
                self.insert(name, value);
            } else if first & 0x20 != 0 {
                self.max_size = Some(integer(&mut block, 5)?)
                    .filter(|&size| size <= self.allowed_size)
                    .ok_or(BadHeaderBlock)?;
                self.evict();
            } else {
                self.literal(&mut block, 4, &mut field)?;
            }
        }
        Ok(())
    }

    fn entry(&self, index: usize) -> Result<(&[u8], &[u8]), BadHeaderBlock> {
        let index = index.checked_sub(1).ok_or(BadHeaderBlock)?;
        match STATIC_TABLE.get(index) {
            Some((name, value)) => Ok((name.as_bytes(), value.as_bytes())),
            None => {
                let (name, value) = self.entries.get(index - STATIC_TABLE.len()).ok_or(BadHeaderBlock)?;
                Ok((name, value))
            }
        }
    }

    /// Returns the name of an entry, for use in another entry. The entries share the bytes, however long the name is
    /// and however often it is used.
    fn shared_name(&self, index: usize) -> Bytes {
        match STATIC_TABLE.get(index - 1) {
            Some((name, _)) => Bytes::from_static(name.as_bytes()),
            None => self.entries[index - 1 - STATIC_TABLE.len()].0.clone(),
        }
    }

    /// Reads a literal field whose name index occupies `prefix` bits of the first byte, and passes it to `field`. With
    /// 6 bits the field becomes an entry of the table, which is returned; otherwise the result is empty.
    fn literal(
        &mut self,
        block: &mut &[u8],
        prefix: u8,
        field: &mut impl FnMut(&[u8], &[u8]),
    ) -> Result<(Bytes, Bytes), BadHeaderBlock> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let index = integer(block, prefix)?;
        let own_name = if index == 0 { Some(text(block, &mut scratch)?) } else { None };
        let value = text(block, &mut scratch)?;
        let name = match &own_name {
            Some(name) => name.bytes(&scratch),
            None => self.entry(index)?.0,
        };
        let value = value.bytes(&scratch);
        field(name, value);
        let entry = match (prefix, &own_name) {
            (6, Some(_)) => (Bytes::copy_from_slice(name), Bytes::copy_from_slice(value)),
            (6, None) => (self.shared_name(index), Bytes::copy_from_slice(value)),
            _ => (Bytes::new(), Bytes::new()),
        };
        // One long string must not hold its memory for as long as the connection lasts.
        if scratch.capacity() <= FIRST_SIZE {
            self.scratch = scratch;
        }
        Ok(entry)
    }

    fn insert(&mut self, name: Bytes, value: Bytes) {
        self.size += name.len() + value.len() + ENTRY_OVERHEAD;
        self.entries.push_front((name, value));
        self.evict();
    }

    fn evict(&mut self) {
        while self.size > self.max_size
            && let Some((name, value)) = self.entries.pop_back()
        {
            self.size -= name.len() + value.len() + ENTRY_OVERHEAD;
        }
    }
}

/// Returns a literal field without indexing, which an encoder may append to any block.
pub fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut field = vec![0];
    write_string(&mut field, name.as_bytes());
    write_string(&mut field, value.as_bytes());
    field
}

/// An update of the encoder's table size to 0. After it, a block may use only the static table, and no setting of the
/// peer requires another update.
pub const NO_TABLE: u8 = 0x20;

/// Writes a field in a form that needs no dynamic table.
pub fn write_field(to: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    let is_field = |entry: &(&str, &str)| entry.0.as_bytes() == name && entry.1.as_bytes() == value;
    match STATIC_TABLE.iter().position(is_field) {
        // Entries with an empty value only provide a name.
        Some(index) if !value.is_empty() => {
            let at = to.len();
            write_integer(to, index + 1, 7);
            to[at] |= 0x80;
        }
        _ => {
            write_name(to, name);
            write_string(to, value);
        }
    }
}

/// Writes the name of a literal field without indexing; its value must follow.
pub fn write_name(to: &mut Vec<u8>, name: &[u8]) {
    match STATIC_TABLE.iter().position(|(known, _)| known.as_bytes() == name) {
        Some(index) => write_integer(to, index + 1, 4),
        None => {
            to.push(0);
            write_string(to, name);
        }
    }
}

/// Writes a string, not Huffman-coded.
pub fn write_string(to: &mut Vec<u8>, text: &[u8]) {
    write_integer(to, text.len(), 7);
    to.extend_from_slice(text);
}

/// Writes an integer (RFC 7541, 5.1), leaving the bits above the prefix zero.
pub fn write_integer(to: &mut Vec<u8>, value: usize, prefix: u8) {
    let max = (1 << prefix) - 1;
    let low = |value: usize| value.to_le_bytes()[0];
    if value < max {
        return to.push(low(value));
    }
    to.push(low(max));
    let mut rest = value - max;
    while rest >= 0x80 {
        to.push(low(rest) | 0x80);
        rest >>= 7;
    }
    to.push(low(rest));
}

/// Reads an integer (RFC 7541, 5.1).
fn integer(block: &mut &[u8], prefix: u8) -> Result<usize, BadHeaderBlock> {
    let mut next = || {
        let (&first, rest) = block.split_first().ok_or(BadHeaderBlock)?;
        *block = rest;
        Ok(usize::from(first))
    };
    let max = (1 << prefix) - 1;
    let mut value = next()? & max;
    if value < max {
        return Ok(value);
    }
    // No block that fits into memory needs more than 28 bits.
    for shift in [0, 7, 14, 21] {
        let byte = next()?;
        value += (byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(BadHeaderBlock)
}

/// Reads a string (RFC 7541, 5.2). Decodes a Huffman-coded one into `scratch`.
fn text<'a>(block: &mut &'a [u8], scratch: &mut Vec<u8>) -> Result<HeaderText<'a>, BadHeaderBlock> {
    let is_coded = block.first().is_some_and(|first| first & 0x80 != 0);
    let length = integer(block, 7)?;
    let (text, rest) = block.split_at_checked(length).ok_or(BadHeaderBlock)?;
    *block = rest;
    if !is_coded {
        return Ok(HeaderText::Plain(text));
    }
    let begin = scratch.len();
    decode_huffman(text, scratch)?;
    Ok(HeaderText::Decoded(begin..scratch.len()))
}

/// Appends a Huffman-coded string (RFC 7541, 5.2 and appendix B) to `text`.
fn decode_huffman(coded: &[u8], text: &mut Vec<u8>) -> Result<(), BadHeaderBlock> {
    // The next bits, left-aligned, with zeros after them.
    let (mut bits, mut count) = (0_u64, 0_usize);
    let mut coded = coded.iter();
    loop {
        while count <= 56
            && let Some(&byte) = coded.next()
        {
            bits |= u64::from(byte) << (56 - count);
            count += 8;
        }
        let (symbol, length) = match CODES.short[(bits >> 56) as usize] {
            (_, 0) => long_code(bits)?,
            short => short,
        };
        if length > count {
            break;
        }
        text.push(symbol);
        bits <<= length;
        count -= length;
    }
    // The last byte is padded with ones.
    if count < 8 && bits == !(u64::MAX >> count) { Ok(()) } else { Err(BadHeaderBlock) }
}

/// Returns the symbol at the front of `bits`, and the length of its code, which is longer than eight bits.
fn long_code(bits: u64) -> Result<(u8, usize), BadHeaderBlock> {
    for length in 9..=LONGEST_CODE {
        let row = CODES.rows[length];
        let code = usize::try_from(bits >> (64 - length)).unwrap_or(usize::MAX);
        let at = code.wrapping_sub(row.first_code as usize);
        if at < row.count {
            // The end-of-string symbol is never written. Padding contains only the first bits of its code, so a match
            // for the whole code is an error.
            let symbol = CODES.symbols[row.first_symbol + at];
            return u8::try_from(symbol).map(|symbol| (symbol, length)).map_err(|_| BadHeaderBlock);
        }
    }
    Err(BadHeaderBlock)
}

/// Code lengths of all bytes and of the end-of-string symbol. They determine the codes, because these are canonical;
/// shorter codes come first, and codes of equal length are in order.
#[rustfmt::skip]
const CODE_LENGTHS: [usize; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];
const LONGEST_CODE: usize = 30;

/// The codes of one length.
#[derive(Clone, Copy)]
struct CodeRow {
    first_code: u32,
    count: usize,
    first_symbol: usize,
}

struct Codes {
    /// Rows by code length.
    rows: [CodeRow; LONGEST_CODE + 1],
    /// Symbols in the order of their codes.
    symbols: [usize; CODE_LENGTHS.len()],
    /// Symbol and code length by the next eight bits; a length of 0 if the code is longer. Nearly all symbols in use
    /// have short codes.
    short: [(u8, usize); 256],
}

static CODES: Codes = codes();

const fn codes() -> Codes {
    let none = CodeRow { first_code: 0, count: 0, first_symbol: 0 };
    let mut codes =
        Codes { rows: [none; LONGEST_CODE + 1], symbols: [0; CODE_LENGTHS.len()], short: [(0, 0); 256] };
    let (mut next_code, mut next_symbol, mut length) = (0, 0, 1);
    while length <= LONGEST_CODE {
        next_code <<= 1;
        let mut row = CodeRow { first_code: next_code, count: 0, first_symbol: next_symbol };
        let mut symbol = 0;
        while symbol < CODE_LENGTHS.len() {
            if CODE_LENGTHS[symbol] == length {
                if length <= 8 {
                    let mut window = (next_code as usize) << (8 - length);
                    let end = (next_code as usize + 1) << (8 - length);
                    while window < end {
                        codes.short[window] = (symbol.to_le_bytes()[0], length);
                        window += 1;
                    }
                }
                codes.symbols[next_symbol] = symbol;
                next_symbol += 1;
                next_code += 1;
                row.count += 1;
            }
            symbol += 1;
        }
        codes.rows[length] = row;
        length += 1;
    }
    codes
}

/// The static table (RFC 7541, appendix A).
#[rustfmt::skip]
const STATIC_TABLE: [(&str, &str); 61] = [
    (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"), (":path", "/index.html"),
    (":scheme", "http"), (":scheme", "https"), (":status", "200"), (":status", "204"), (":status", "206"),
    (":status", "304"), (":status", "400"), (":status", "404"), (":status", "500"), ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"), ("accept-language", ""), ("accept-ranges", ""), ("accept", ""),
    ("access-control-allow-origin", ""), ("age", ""), ("allow", ""), ("authorization", ""),
    ("cache-control", ""), ("content-disposition", ""), ("content-encoding", ""), ("content-language", ""),
    ("content-length", ""), ("content-location", ""), ("content-range", ""), ("content-type", ""),
    ("cookie", ""), ("date", ""), ("etag", ""), ("expect", ""), ("expires", ""), ("from", ""), ("host", ""),
    ("if-match", ""), ("if-modified-since", ""), ("if-none-match", ""), ("if-range", ""),
    ("if-unmodified-since", ""), ("last-modified", ""), ("link", ""), ("location", ""), ("max-forwards", ""),
    ("proxy-authenticate", ""), ("proxy-authorization", ""), ("range", ""), ("referer", ""), ("refresh", ""),
    ("retry-after", ""), ("server", ""), ("set-cookie", ""), ("strict-transport-security", ""),
    ("transfer-encoding", ""), ("user-agent", ""), ("vary", ""), ("via", ""), ("www-authenticate", ""),
];

#[cfg(test)]
mod tests {
    use httlib_hpack::Encoder;
    use proptest::prelude::*;

    use super::*;

    fn decoded(decoder: &mut Decoder, block: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut fields = Vec::new();
        decoder.decode(block, |name, value| fields.push((name.to_vec(), value.to_vec()))).unwrap();
        fields
    }

    #[test]
    fn decoder_reads_rfc_7541_examples() {
        // RFC 7541, C.6: Huffman-coded responses, with evictions from a table of 256 bytes.
        let blocks = [
            "3fe101488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3",
            "4883640effc1c0bf",
            "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
        ];
        let mut decoder = Decoder::default();
        let mut fields = Vec::new();
        for block in blocks {
            let bytes: Vec<u8> = (0..block.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&block[at..at + 2], 16).unwrap())
                .collect();
            fields = decoded(&mut decoder, &bytes);
        }
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, value)| format!("{}: {}", name.escape_ascii(), value.escape_ascii()))
            .collect();
        assert_eq!(
            fields,
            [
                ":status: 200",
                "cache-control: private",
                "date: Mon, 21 Oct 2013 20:13:22 GMT",
                "location: https://www.example.com",
                "content-encoding: gzip",
                "set-cookie: foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
            ]
        );
        assert_eq!((decoder.size, decoder.entries.len()), (215, 3));
    }

    #[test]
    fn repeated_reference_copies_no_entry() {
        const TIMES: usize = 100_000;
        let mut decoder = Decoder::default();
        decoder.allow(MAX_SIZE);
        // A table of 1 MiB, and a name of half that size, to which each use refers with three bytes.
        let mut block = vec![0x3f, 0xe1, 0xff, 0x3f, 0x40, 0x7f, 0x80 | 33, 0x80 | 65, 30];
        let length = 127 + 33 + (65 << 7) + (30 << 14);
        block.resize(block.len() + length, b'n');
        block.push(0);
        block.extend([0x0f, 62 - 15, 0].repeat(TIMES));
        let mut count = 0;
        decoder
            .decode(&block, |name, value| count += usize::from(name.len() == length && value.is_empty()))
            .unwrap();
        assert_eq!(count, TIMES + 1);
    }

    #[test]
    fn literal_round_trips_outside_table() {
        let mut decoder = Decoder::default();
        let pod = "p".repeat(300);
        let fields = decoded(&mut decoder, &literal("rolldrop-pod", &pod));
        assert_eq!(fields, [(b"rolldrop-pod".to_vec(), pod.into_bytes())]);
        assert!(decoder.entries.is_empty());
    }

    proptest! {
        #[test]
        fn written_fields_need_no_table(
            fields in prop::collection::vec(("(:path|:method|server|age|[a-z-]{1,9})", "(GET|/|[ -~]{0,200})"), 0..9)
        ) {
            let mut block = vec![NO_TABLE];
            fields.iter().for_each(|(name, value)| write_field(&mut block, name.as_bytes(), value.as_bytes()));
            let mut decoder = Decoder::default();
            let expected: Vec<_> =
                fields.into_iter().map(|(name, value)| (name.into_bytes(), value.into_bytes())).collect();
            prop_assert_eq!(decoded(&mut decoder, &block), expected);
            prop_assert_eq!(decoder.max_size, 0);
        }

        #[test]
        fn decoder_reads_another_encoders_output(
            blocks in prop::collection::vec(
                prop::collection::vec(("[a-z-]{1,12}", prop::collection::vec(any::<u8>(), 0..40), 0u8..16), 0..12),
                1..6,
            )
        ) {
            let mut encoder = Encoder::default();
            let mut decoder = Decoder::default();
            for fields in blocks {
                let mut block = Vec::new();
                for (name, value, flags) in &fields {
                    let field = (name.clone().into_bytes(), value.clone(), flags & !Encoder::NEVER_INDEXED);
                    encoder.encode(field, &mut block).unwrap();
                }
                let expected: Vec<_> = fields.into_iter().map(|(name, value, _)| (name.into_bytes(), value)).collect();
                prop_assert_eq!(decoded(&mut decoder, &block), expected);
            }
        }

        #[test]
        fn header_decoder_survives_arbitrary_bytes(blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..4)) {
            let mut decoder = Decoder::default();
            for block in blocks {
                let _ = decoder.decode(&block, |_, _| {});
                prop_assert!(decoder.size <= decoder.max_size);
            }
        }
    }
}
