//! Takes DATA frames without a byte, and without the end of their stream, out of what comes.
//!
//! They say nothing (RFC 9113, 6.1), but the `h2` crate ends a connection after a hundred of them,
//! and charges that to the server. A measuring client is not to end what it measures.

use crate::http2::{DATA, END_STREAM, FrameHeader};

/// One direction of a connection.
#[derive(Debug, Default)]
pub(super) struct Sieve {
    /// Bytes of the current frame's payload that have not passed.
    left: usize,
    /// The beginning of a header, the rest of which has not come.
    held: Vec<u8>,
}

impl Sieve {
    /// What is to stand before the bytes that come next.
    pub(super) fn held(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// Takes that back, where none came.
    pub(super) fn hold(&mut self, held: Vec<u8>) {
        self.held = held;
    }

    /// Moves what passes to the front of `bytes`, and answers how many they are.
    pub(super) fn pass(&mut self, bytes: &mut [u8]) -> usize {
        let (mut read, mut passed) = (0, 0);
        while read < bytes.len() {
            let part = &bytes[read..];
            let count = if self.left > 0 {
                let count = self.left.min(part.len());
                self.left -= count;
                count
            } else {
                let Some(header) = FrameHeader::read(part) else {
                    self.held = part.to_vec();
                    break;
                };
                if (header.length, header.kind, header.flags & END_STREAM) == (0, DATA, 0) {
                    read += FrameHeader::BYTES;
                    continue;
                }
                self.left = header.length;
                FrameHeader::BYTES
            };
            bytes.copy_within(read..read + count, passed);
            (read, passed) = (read + count, passed + count);
        }
        passed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &[0, 0, 0, 1], payload].concat()
    }

    proptest! {
        #[test]
        fn only_frames_that_say_nothing_are_left_out_wherever_the_bytes_are_cut(
            frames in prop::collection::vec((0_u8..3, 0_u8..2, 0_usize..3), 0..20),
            cuts in prop::collection::vec(1_usize..20, 1..20),
        ) {
            let frames = frames.into_iter().map(|(kind, flags, length)| (kind, flags, vec![7; length]));
            let (mut all, mut wanted) = (Vec::new(), Vec::new());
            for (kind, flags, payload) in frames {
                let frame = frame(kind, flags, &payload);
                all.extend_from_slice(&frame);
                if (kind, flags, payload.len()) != (DATA, 0, 0) {
                    wanted.extend(frame);
                }
            }
            let (mut sieve, mut passed, mut rest) = (Sieve::default(), Vec::new(), &all[..]);
            for cut in cuts.into_iter().cycle() {
                let (part, after) = rest.split_at(cut.min(rest.len()));
                let mut part = [sieve.held(), part.to_vec()].concat();
                let count = sieve.pass(&mut part);
                passed.extend_from_slice(&part[..count]);
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(passed, wanted);
        }
    }
}
