//! Finds the end of an HTTP/1.1 message body without changing or copying a byte.
//!
//! A [`Body`] inspects bytes as they pass, and reports how many of them still belong to the message, including chunk
//! sizes, extensions and trailers. The proxy forwards these bytes, and the load generator skips them. Heads are parsed
//! elsewhere, because a client, a relay and a server must each treat the same head differently.
//!
//! This is our own code because hyper owns its sockets, so that error numbers, byte counts and the bytes themselves
//! would be lost.

/// Framing of a message body (RFC 9112, section 6.3), with the current position in the body.
#[derive(Debug, PartialEq, Eq)]
pub enum Body {
    /// Remaining bytes of a body of known length.
    Length(u64),
    /// Chunked transfer coding.
    Chunked(Chunked),
    /// Everything until the sender closes: an unframed response, or a tunnel.
    UntilClose,
}

/// Maximum accepted length. Up to it, readers that count in 63 bits see the same value.
pub const MAX_LENGTH: u64 = u64::MAX >> 1;

/// A chunked body that violates the grammar, so that its end cannot be determined.
#[derive(Debug, PartialEq, Eq)]
pub struct BadChunk;

impl Body {
    /// An empty body.
    pub const NONE: Body = Body::Length(0);

    /// A chunked body, positioned at its first byte.
    pub const CHUNKED: Body = Body::Chunked(Chunked(ChunkPosition::Size { value: 0, digits: 0 }));

    /// Returns true once every byte of the body has passed.
    pub fn is_done(&self) -> bool {
        matches!(self, Body::Length(0) | Body::Chunked(Chunked(ChunkPosition::Done)))
    }

    /// Advances over the beginning of `bytes`, and returns the number of bytes that belong to the body.
    ///
    /// # Errors
    ///
    /// Fails if a chunked body violates the grammar.
    pub fn take(&mut self, bytes: &[u8]) -> Result<usize, BadChunk> {
        self.take_with(bytes, |_| {})
    }

    /// Does the same as [`Body::take`], and passes each piece of content to `content`, without chunk sizes, extensions
    /// and trailers.
    ///
    /// # Errors
    ///
    /// Fails if a chunked body violates the grammar.
    pub fn take_with(&mut self, bytes: &[u8], mut content: impl FnMut(&[u8])) -> Result<usize, BadChunk> {
        match self {
            Body::Length(left) => {
                let taken = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= taken as u64;
                content(&bytes[..taken]);
                Ok(taken)
            }
            Body::Chunked(Chunked(place)) => place.take_with(bytes, content),
            Body::UntilClose => {
                content(bytes);
                Ok(bytes.len())
            }
        }
    }
}

/// Position in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunked(ChunkPosition);

/// A position in the grammar of RFC 9112, section 7.1. Lines must end in CRLF and must not contain control characters,
/// because a receiver that accepts a bare LF as a line end could disagree with the next receiver about where the body
/// ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkPosition {
    /// Among the digits of a chunk size.
    Size { value: u64, digits: u8 },
    /// In the space after a chunk size.
    Space { size: u64 },
    /// In a chunk extension.
    Extension { size: u64 },
    /// Before the LF that ends a size line.
    SizeLf { size: u64 },
    /// Within chunk data.
    Data { left: u64 },
    /// Before the CR after chunk data.
    DataCr,
    /// Before the LF after chunk data.
    DataLf,
    /// At the first byte of a trailer line or of the empty last line.
    LineStart,
    /// Within a trailer line.
    Trailer,
    /// Before the LF that ends a trailer line.
    TrailerLf,
    /// Before the LF that ends the message.
    LastLf,
    /// After the message.
    Done,
}

impl ChunkPosition {
    fn take_with(&mut self, bytes: &[u8], mut content: impl FnMut(&[u8])) -> Result<usize, BadChunk> {
        let mut at = 0;
        while at < bytes.len() && *self != ChunkPosition::Done {
            if let ChunkPosition::Data { left } = self {
                let rest = bytes.len() - at;
                let taken = usize::try_from(*left).map_or(rest, |left| left.min(rest));
                *left -= taken as u64;
                content(&bytes[at..at + taken]);
                at += taken;
                if *left == 0 {
                    *self = ChunkPosition::DataCr;
                }
            } else {
                *self = self.after(bytes[at])?;
                at += 1;
            }
        }
        Ok(at)
    }

    /// Returns the position after `byte`, which must not be chunk data.
    fn after(self, byte: u8) -> Result<ChunkPosition, BadChunk> {
        Ok(match (self, byte) {
            (ChunkPosition::Size { value, digits }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F')
                if digits < 16 && value <= MAX_LENGTH >> 4 =>
            {
                let digit = char::from(byte).to_digit(16).ok_or(BadChunk)?;
                ChunkPosition::Size { value: value << 4 | u64::from(digit), digits: digits + 1 }
            }
            (ChunkPosition::Size { value: size, digits: 1.. } | ChunkPosition::Space { size }, byte) => {
                match byte {
                    b'\r' => ChunkPosition::SizeLf { size },
                    b' ' | b'\t' => ChunkPosition::Space { size },
                    b';' => ChunkPosition::Extension { size },
                    _ => return Err(BadChunk),
                }
            }
            (ChunkPosition::Extension { size }, b'\r') => ChunkPosition::SizeLf { size },
            (ChunkPosition::Extension { size }, byte) if is_text(byte) => ChunkPosition::Extension { size },
            (ChunkPosition::SizeLf { size: 0 }, b'\n') => ChunkPosition::LineStart,
            (ChunkPosition::SizeLf { size }, b'\n') => ChunkPosition::Data { left: size },
            (ChunkPosition::DataCr, b'\r') => ChunkPosition::DataLf,
            (ChunkPosition::DataLf, b'\n') => ChunkPosition::Size { value: 0, digits: 0 },
            (ChunkPosition::LineStart, b'\r') => ChunkPosition::LastLf,
            (ChunkPosition::Trailer, b'\r') => ChunkPosition::TrailerLf,
            (ChunkPosition::LineStart | ChunkPosition::Trailer, byte) if is_text(byte) => {
                ChunkPosition::Trailer
            }
            (ChunkPosition::TrailerLf, b'\n') => ChunkPosition::LineStart,
            (ChunkPosition::LastLf, b'\n') => ChunkPosition::Done,
            _ => return Err(BadChunk),
        })
    }
}

/// Returns true for bytes that lines may contain: visible characters, spaces, tabs and non-ASCII bytes.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || !byte.is_ascii_control()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MESSAGE: &[u8] =
        b"5\r\nhello\r\n00A;name=\"v\"\r\n0123456789\r\n0\r\nx-sum: 1\r\n\r\nGET / HTTP/1.1\r\n";
    const LENGTH: usize = MESSAGE.len() - b"GET / HTTP/1.1\r\n".len();

    proptest! {
        #[test]
        fn chunked_body_end_does_not_depend_on_segmentation(cuts in prop::collection::vec(0..MESSAGE.len(), 0..8)) {
            let mut cuts = cuts;
            cuts.sort_unstable();
            cuts.push(MESSAGE.len());
            let mut body = Body::CHUNKED;
            let (mut taken, mut from, mut content) = (0, 0, Vec::new());
            for cut in cuts {
                let piece = &MESSAGE[from..cut];
                taken += body.take_with(piece, |bytes| content.extend_from_slice(bytes)).unwrap();
                from = cut;
            }
            prop_assert_eq!(taken, LENGTH);
            prop_assert_eq!(content, b"hello0123456789");
            prop_assert!(body.is_done());
        }

        #[test]
        fn chunked_parser_survives_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut body = Body::CHUNKED;
            if let Ok(taken) = body.take(&bytes) {
                prop_assert!(taken <= bytes.len());
            }
        }
    }

    #[test]
    fn chunked_parser_rejects_bad_grammar() {
        for bad in [
            "\r\n",
            "g\r\n",
            "5\nhello",
            "5\r\nhello0",
            "5\r\nhello\n0",
            "0x5\r\n",
            "-1\r\n",
            "+1\r\n",
            "5;a\nhello",
            "5 a\r\nhello",
            "11111111111111111\r\n",
            "8000000000000000\r\n",
            "5;a\0b\r\nhello",
            "0\r\nx\x7f: 1\r\n\r\n",
            "0\r\n\n",
            "0\r\nx: 1\n\r\n",
            "5\rx",
            "5\r\nhello!\r\n",
            "0\r\n\rx",
        ] {
            let mut body = Body::CHUNKED;
            assert_eq!(body.take(bad.as_bytes()), Err(BadChunk), "{bad:?}");
        }
    }

    #[test]
    fn body_of_known_length_ends_at_last_byte() {
        let mut body = Body::Length(5);
        assert_eq!(body.take(b"hel"), Ok(3));
        assert!(!body.is_done());
        assert_eq!(body.take(b"loGET"), Ok(2));
        assert!(body.is_done());
    }
}
