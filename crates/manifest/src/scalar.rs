//! Values of YAML scalars, as kubectl understands them.
//!
//! kubectl parses YAML with a fork of go-yaml v2 (sigs.k8s.io/yaml). Its resolve.go follows YAML 1.1 for booleans and
//! octal numbers: `0644` is 420, `on` is true.

use granit_parser::{ScalarStyle, Tag};
use serde_json::{Number, Value};

/// Returns the value of a scalar.
pub(super) fn value(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Value {
    let is_text = tag.is_some_and(|tag| {
        tag.core_suffix().is_some_and(|kind| matches!(kind, "str" | "binary")) || tag.original() == "!"
    });
    if style != ScalarStyle::Plain || is_text {
        return text.into();
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => true.into(),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => false.into(),
        _ => number(text).map_or_else(|| text.into(), Value::Number),
    }
}

fn number(text: &str) -> Option<Number> {
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return None;
    }
    let plain = text.replace('_', "");
    whole(&plain).or_else(|| is_decimal(&plain).then(|| Number::from_f64(plain.parse().ok()?)).flatten())
}

/// Parses a whole number in Go's syntax, with the base given by its prefix (strconv.ParseInt with base 0).
fn whole(text: &str) -> Option<Number> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (base, digits) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    match (is_negative, u64::from_str_radix(digits, base).ok()?) {
        (false, number) => Some(number.into()),
        (true, number) => Some(0_i64.checked_sub_unsigned(number)?.into()),
    }
}

/// Returns true if the text is a decimal number, with an optional point and exponent:
/// `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`.
fn is_decimal(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (digits, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((digits, exponent)) => (digits, Some(exponent.strip_prefix(['+', '-']).unwrap_or(exponent))),
        None => (unsigned, None),
    };
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let (before, after) = digits.split_once('.').unwrap_or((digits, ""));
    are_digits(before)
        && are_digits(after)
        && !(before.is_empty() && after.is_empty())
        && exponent.is_none_or(|exponent| !exponent.is_empty() && are_digits(exponent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn plain_scalars_match_go_yaml() {
        for (text, is) in [
            ("", json!(null)),
            ("on", json!(true)),
            ("No", json!(false)),
            ("0644", json!(420)),
            ("0o17", json!(15)),
            ("0x1F", json!(31)),
            ("1_000", json!(1000)),
            ("-7", json!(-7)),
            ("18446744073709551615", json!(u64::MAX)),
            ("08", json!(8.0)),
            ("1.5", json!(1.5)),
            (".5e3", json!(500.0)),
            ("1e3", json!(1000.0)),
            ("1.2.3", json!("1.2.3")),
            ("-", json!("-")),
            (".", json!(".")),
            ("--1", json!("--1")),
            ("0x", json!("0x")),
            ("2026-11-26", json!("2026-11-26")),
            (".inf", json!(".inf")),
            ("web", json!("web")),
        ] {
            assert_eq!(value(text, ScalarStyle::Plain, None), is, "{text}");
        }
        assert_eq!(value("on", ScalarStyle::DoubleQuoted, None), "on");
    }
}
