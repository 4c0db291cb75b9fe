//! Headers and bodies: text in a scenario or option, bytes on the wire.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use rolldrop_record::Secret;

/// Decodes pairs of hexadecimal digits. Spaces are allowed anywhere.
///
/// # Errors
/// Fails if the text is anything else; the error states what is accepted.
pub fn from_hex(text: &str) -> Result<Vec<u8>, String> {
    let bad = || "needs pairs of hexadecimal digits, such as 0a03776562".to_owned();
    let digits: Option<Vec<u32>> =
        text.chars().filter(|c| !c.is_whitespace()).map(|c| c.to_digit(16)).collect();
    let (pairs, []) = digits.as_deref().ok_or_else(bad)?.as_chunks::<2>() else { return Err(bad()) };
    let byte = |[high, low]: &[u32; 2]| u8::try_from(high * 16 + low).ok();
    pairs.iter().map(byte).collect::<Option<_>>().ok_or_else(bad)
}

/// Decodes base64.
///
/// # Errors
/// Fails if the text is not valid base64.
pub fn from_base64(text: &str) -> Result<Vec<u8>, String> {
    BASE64_STANDARD.decode(text.trim()).map_err(|error| format!("is not valid base64: {error}"))
}

/// Splits a header written as `Name: value`.
pub fn header(line: &str) -> Option<(String, Secret)> {
    let (name, value) = line.split_once(':')?;
    Some((name.trim().to_owned(), value.trim().into()))
}

/// Reads the headers of a file, one per line.
///
/// # Errors
/// Fails if a line is not a header. The error does not repeat the line, which may contain a secret.
pub fn headers(text: &str) -> Result<Vec<(String, Secret)>, String> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let read = |(line, number)| {
        header(line).ok_or_else(|| format!("header {number} is not written as 'Name: value'"))
    };
    lines.zip(1..).map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_splits_at_first_colon() {
        assert_eq!(header("A: b: c "), Some(("A".into(), "b: c".into())));
        assert_eq!(header("A"), None);
        assert_eq!(headers("A: b\n\nhush\n"), Err("header 2 is not written as 'Name: value'".into()));
    }

    #[test]
    fn bytes_decode_from_hex_or_base64() {
        assert_eq!(from_hex("0a 03\n77"), Ok(vec![10, 3, 0x77]));
        assert_eq!(from_hex(""), Ok(Vec::new()));
        assert_eq!(from_base64("CgN3"), Ok(vec![10, 3, 0x77]));
        for wrong in ["0", "0g", "é"] {
            assert!(from_hex(wrong).is_err() && from_base64(wrong).is_err(), "{wrong}");
        }
    }
}
