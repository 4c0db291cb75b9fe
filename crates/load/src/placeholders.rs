//! Text with placeholders that are filled in for each request.
//!
//! | placeholder | replaced by |
//! |---|---|
//! | `{{seq}}` | the request's number in the whole load, from 0 |
//! | `{{uuid}}` | a random UUID (version 4) |
//! | `{{random:N}}` | N random letters and digits |
//! | `{{int:A-B}}` | a random whole number from A to B |
//!
//! Random parts are derived from the load's seed and the request's number.

use std::io::Write;

use super::random::Random;
use rolldrop_record::LengthLaw;

/// Maximum number of characters for `{{random:N}}`.
const MAX_RANDOM: usize = 1 << 20;

/// A piece of text.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum TemplatePiece {
    /// Literal bytes.
    Bytes(Vec<u8>),
    /// The request's number.
    Seq,
    /// A random UUID (version 4).
    Uuid,
    /// This many random letters and digits.
    Random(usize),
    /// A random number in this inclusive range.
    Int(u64, u64),
    /// A random duration in seconds.
    Length(LengthLaw),
}

/// Error for an unknown placeholder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown placeholder {0:?}: use {{{{seq}}}}, {{{{uuid}}}}, {{{{random:N}}}} or {{{{int:A-B}}}}")]
pub struct UnknownPlaceholder(String);

/// Splits text at its placeholders into pieces.
///
/// # Errors
/// Returns an error if the text contains an unknown placeholder.
pub(super) fn parse(mut text: &[u8]) -> Result<Vec<TemplatePiece>, UnknownPlaceholder> {
    let find = |text: &[u8], mark: &[u8]| text.windows(2).position(|two| two == mark);
    let mut pieces = Vec::new();
    while let Some(start) = find(text, b"{{") {
        // A placeholder without a closing `}}` is literal text.
        let Some(length) = find(&text[start..], b"}}") else { break };
        if start > 0 {
            pieces.push(TemplatePiece::Bytes(text[..start].to_vec()));
        }
        let inside = String::from_utf8_lossy(&text[start + 2..start + length]);
        let piece =
            placeholder(inside.trim()).ok_or_else(|| UnknownPlaceholder(format!("{{{{{inside}}}}}")))?;
        pieces.push(piece);
        text = &text[start + length + 2..];
    }
    if !text.is_empty() {
        pieces.push(TemplatePiece::Bytes(text.to_vec()));
    }
    Ok(pieces)
}

fn placeholder(inside: &str) -> Option<TemplatePiece> {
    match inside.split_once(':') {
        None if inside == "seq" => Some(TemplatePiece::Seq),
        None if inside == "uuid" => Some(TemplatePiece::Uuid),
        Some(("random", length)) => {
            length.parse().ok().filter(|length| *length <= MAX_RANDOM).map(TemplatePiece::Random)
        }
        Some(("int", range)) => {
            let (first, last) = range.split_once('-')?;
            let (first, last) = (first.parse().ok()?, last.parse().ok()?);
            (first <= last).then_some(TemplatePiece::Int(first, last))
        }
        _ => None,
    }
}

/// Writes the text for request number `seq` to `out`.
pub(super) fn fill(pieces: &[TemplatePiece], seq: u64, random: &mut Random, out: &mut Vec<u8>) {
    const CHARACTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    for piece in pieces {
        // Writing to a vector cannot fail.
        let _ = match piece {
            TemplatePiece::Bytes(bytes) => out.write_all(bytes),
            TemplatePiece::Seq => write!(out, "{seq}"),
            TemplatePiece::Uuid => {
                let (high, low) = (random.next(), random.next());
                let (a, b, c) = (high >> 32, (high >> 16) & 0xffff, high & 0x0fff);
                let (d, e) = ((low >> 48) & 0x3fff | 0x8000, low & 0xffff_ffff_ffff);
                write!(out, "{a:08x}-{b:04x}-4{c:03x}-{d:04x}-{e:012x}")
            }
            TemplatePiece::Random(length) => {
                let last = CHARACTERS.len() as u64 - 1;
                let draw = || usize::try_from(random.between(0, last)).ok().and_then(|n| CHARACTERS.get(n));
                out.extend(std::iter::repeat_with(draw).take(*length).flatten());
                Ok(())
            }
            TemplatePiece::Length(law) => write!(out, "{:.9}s", law.sample(random).as_secs_f64()),
            TemplatePiece::Int(first, last) => write!(out, "{}", random.between(*first, *last)),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(text: &str, seq: u64, seed: u64) -> String {
        let mut out = Vec::new();
        fill(&parse(text.as_bytes()).unwrap(), seq, &mut Random::of(seed, seq), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn seed_reproduces_filled_placeholders() {
        assert_eq!(filled("a{{seq}}b{{ seq }}", 12, 0), "a12b12");
        assert_eq!(filled("no {placeholder}} and {{ no end", 0, 0), "no {placeholder}} and {{ no end");
        let text = "{{uuid}} {{random:8}} {{int:5-6}}";
        assert_eq!(filled(text, 1, 7), filled(text, 1, 7));
        assert_ne!(filled(text, 1, 7), filled(text, 2, 7));
        assert_ne!(filled(text, 1, 7), filled(text, 1, 8));
        let drawn = filled(text, 3, 9);
        let parts: Vec<_> = drawn.split(' ').collect();
        let groups: Vec<_> = parts[0].split('-').map(str::len).collect();
        assert_eq!(groups, [8, 4, 4, 4, 12], "{drawn}");
        assert_eq!(&parts[0][14..15], "4", "{drawn}");
        assert!(parts[1].len() == 8 && parts[1].bytes().all(|b| b.is_ascii_alphanumeric()), "{drawn}");
        assert!(["5", "6"].contains(&parts[2]), "{drawn}");
    }

    #[test]
    fn unknown_placeholder_error_lists_valid_ones() {
        for wrong in ["{{sequence}}", "{{random}}", "{{random:x}}", "{{int:6-5}}", "{{}}"] {
            let said = parse(wrong.as_bytes()).unwrap_err().to_string();
            assert!(said.contains(wrong) && said.contains("{{int:A-B}}"), "{said}");
        }
    }
}
