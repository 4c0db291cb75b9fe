//! Numbers in the notations that gateways use.

use std::time::Duration;

/// Parses seconds with at most nine decimal places, and returns nanoseconds.
pub(crate) fn read_seconds_ns(text: &str) -> Option<i64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if fraction.len() > 9 || !are_digits(whole) || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let fraction_ns: i64 = format!("{fraction:0<9}").parse().ok()?;
    whole.parse::<i64>().ok()?.checked_mul(1_000_000_000)?.checked_add(fraction_ns)
}

/// Parses seconds with at most nine decimal places, and returns a duration.
pub(crate) fn read_seconds(text: &str) -> Option<Duration> {
    read_seconds_ns(text).and_then(|ns| u64::try_from(ns).ok()).map(Duration::from_nanos)
}

/// Parses a whole number without a sign.
pub(crate) fn read_number<N: std::str::FromStr>(text: &str) -> Option<N> {
    if are_digits(text) { text.parse().ok() } else { None }
}

fn are_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}
