//! Durations in the notation of Kubernetes and Go (`1s`, `250ms`, `1m30s`), for serde's `with`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer};

/// Units and their lengths in nanoseconds. Longer names come before their prefixes.
const UNITS: [(&str, f64); 7] =
    [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 60e9), ("h", 3600e9)];

/// Parses a duration such as `1s`, `250ms` or `1m30s`; `0` needs no unit.
///
/// # Errors
///
/// A message that shows the text and the expected notation.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let invalid = || format!("invalid duration {text:?}: write it as 1s, 250ms or 1m30s");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut total_ns = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(invalid)?;
        let number: f64 = rest[..digits].parse().map_err(|_| invalid())?;
        rest = &rest[digits..];
        let (unit, ns) = UNITS.iter().find(|(unit, _)| rest.starts_with(unit)).ok_or_else(invalid)?;
        rest = &rest[unit.len()..];
        total_ns += number * ns;
    }
    if text.is_empty() {
        Err(invalid())
    } else {
        Duration::try_from_secs_f64(total_ns / 1e9).map_err(|_| invalid())
    }
}

/// Formats a duration in s, ms or µs, whichever is shortest.
pub(crate) fn to_text(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    if nanos.is_multiple_of(1_000_000_000) {
        format!("{}s", nanos / 1_000_000_000)
    } else if nanos.is_multiple_of(100_000) {
        format!("{}ms", nanos as f64 / 1e6)
    } else {
        format!("{}us", nanos as f64 / 1e3)
    }
}

/// Serializes a duration, for serde's `with`.
///
/// # Errors
///
/// The serializer's error.
pub(crate) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&to_text(*duration))
}

/// Deserializes a duration, for serde's `with`.
///
/// # Errors
///
/// Fails if the value is not a string or not a duration.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse(&text).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_parse_as_in_kubernetes() {
        assert_eq!(parse("1s"), Ok(Duration::from_secs(1)));
        assert_eq!(parse("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse("0.5ms"), Ok(Duration::from_micros(500)));
        assert_eq!(parse("0"), Ok(Duration::ZERO));
        for bad in ["", "s", "1", "1 s", "-1s", "1d", "1s2", "1.2.3s"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn duration_text_round_trips() {
        for duration in [0, 1, 1_000, 39_800_000, 1_000_000_000, 90_000_000_000, 1_016_600_000] {
            let duration = Duration::from_nanos(duration);
            assert_eq!(parse(&to_text(duration)), Ok(duration));
        }
        assert_eq!(to_text(Duration::from_micros(39_800)), "39.8ms");
    }
}
