//! Removes empty DATA frames from the incoming bytes: frames that carry no body bytes and do not end their stream.
//!
//! A server may send such frames (RFC 9113, 6.1), but the `h2` crate closes a connection after a hundred of them and
//! blames the server. A measuring client must not close what it measures. The padding of the removed frames has used up
//! flow-control window, which the owner of the sieve must give back.

use rolldrop_wire::http2::{DATA, END_STREAM, FrameHeader, PADDED};

/// Sieve for one direction of a connection.
#[derive(Debug, Default)]
pub(super) struct Sieve {
    /// Payload bytes of the current frame that are still to come.
    left: usize,
    /// True if the current frame passes.
    passes: bool,
    /// Beginning of a frame that cannot be classified without more bytes.
    held: Vec<u8>,
    /// Headers of removed frames that used up flow-control window.
    padding: Vec<FrameHeader>,
}

impl Sieve {
    /// Minimum size of a buffer, in bytes: enough to classify a frame.
    pub(super) const LEAST_ROOM: usize = FrameHeader::BYTES + 1;

    /// Takes the held bytes, which belong before the next incoming bytes. They always fit into the minimum buffer.
    pub(super) fn held(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// Puts these bytes back if nothing arrived.
    pub(super) fn hold(&mut self, held: Vec<u8>) {
        self.held = held;
    }

    /// Takes the headers of the removed padding frames.
    pub(super) fn padding(&mut self) -> impl Iterator<Item = FrameHeader> {
        self.padding.drain(..)
    }

    /// Moves the bytes that pass to the front of `bytes` and returns their number.
    pub(super) fn pass(&mut self, bytes: &mut [u8]) -> usize {
        let (mut read, mut passed) = (0, 0);
        while read < bytes.len() {
            let part = &bytes[read..];
            let count = if self.left > 0 {
                let count = self.left.min(part.len());
                self.left -= count;
                count
            } else {
                let Some((header, says_nothing)) = look(part) else {
                    self.held = part.to_vec();
                    break;
                };
                if says_nothing && header.length > 0 {
                    self.padding.push(header);
                }
                (self.left, self.passes) = (header.length, !says_nothing);
                FrameHeader::BYTES
            };
            if self.passes {
                bytes.copy_within(read..read + count, passed);
                passed += count;
            }
            read += count;
        }
        passed
    }
}

/// Returns the frame at the front of `bytes`, and whether it is empty; `None` if more bytes are needed.
fn look(bytes: &[u8]) -> Option<(FrameHeader, bool)> {
    let header = FrameHeader::read(bytes)?;
    let is_within = header.kind == DATA && header.stream > 0 && !header.has(END_STREAM);
    let says_nothing = is_within
        && match (header.has(PADDED), header.length) {
            (false, length) => length == 0,
            // The padding length itself takes a byte, so this frame is invalid.
            (true, 0) => false,
            (true, length) => usize::from(*bytes.get(FrameHeader::BYTES)?) + 1 == length,
        };
    Some((header, says_nothing))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &[0, 0, 0, stream], payload].concat()
    }

    /// Generates a frame, and true if it is empty.
    fn any_frame() -> impl Strategy<Value = (Vec<u8>, bool)> {
        let flags = prop::sample::select(vec![0, END_STREAM, PADDED, PADDED | END_STREAM]);
        (0_u8..2, flags, 0_u8..2, prop::collection::vec(0_u8..4, 0..5)).prop_map(
            |(kind, flags, stream, payload)| {
                let is_empty = match flags & PADDED {
                    0 => payload.is_empty(),
                    _ => payload.first().is_some_and(|padding| usize::from(*padding) + 1 == payload.len()),
                };
                let says_nothing = kind == DATA && stream > 0 && flags & END_STREAM == 0 && is_empty;
                (frame(kind, flags, stream, &payload), says_nothing)
            },
        )
    }

    proptest! {
        #[test]
        fn sieve_drops_only_empty_data_frames(
            frames in prop::collection::vec(any_frame(), 0..20),
            cuts in prop::collection::vec(1_usize..20, 1..20),
        ) {
            let (nothing, wanted): (Vec<_>, Vec<_>) = frames.iter().partition(|(_, says_nothing)| *says_nothing);
            let padding: usize = nothing.iter().map(|(frame, _)| frame.len() - FrameHeader::BYTES).sum();
            let wanted: Vec<u8> = wanted.into_iter().flat_map(|(frame, _)| frame.clone()).collect();
            let all: Vec<u8> = frames.into_iter().flat_map(|(frame, _)| frame).collect();
            let (mut sieve, mut passed, mut rest) = (Sieve::default(), Vec::new(), &all[..]);
            for cut in cuts.into_iter().cycle() {
                let (part, after) = rest.split_at(cut.min(rest.len()));
                let held = sieve.held();
                prop_assert!(held.len() < Sieve::LEAST_ROOM);
                let mut part = [held, part.to_vec()].concat();
                let count = sieve.pass(&mut part);
                passed.extend_from_slice(&part[..count]);
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(passed, wanted);
            prop_assert_eq!(sieve.padding().map(|frame| frame.length).sum::<usize>(), padding);
        }
    }
}
