//! Points in time in the notations that gateways use.

use jiff::Timestamp;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;

use rolldrop_record::Stamp;

/// Point in time, as precise as its notation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LineTime {
    /// Earliest time that has this notation.
    pub(crate) earliest: Stamp,
    /// Distance to the latest such time, in nanoseconds.
    pub(crate) width_ns: i64,
}

impl LineTime {
    /// Maximum length of the text.
    const LONGEST: usize = 40;

    /// Parses RFC 3339: `2026-11-29T02:20:54.945Z`.
    pub(crate) fn read_rfc3339(text: &str) -> Option<Self> {
        // Go omits trailing zeros, so the resolution may be better than it looks.
        let fraction = text.split_once('.').map_or("", |(_, rest)| rest);
        let digits = fraction.bytes().take_while(u8::is_ascii_digit).count().min(9);
        let width_ns = 10_i64.pow(9 - u32::try_from(digits).ok()?);
        Some(Self { earliest: stamp(Self::short(text)?.parse().ok()?)?, width_ns })
    }

    /// Parses `29/Nov/2026:02:18:15 +0000`.
    pub(crate) fn read_common(text: &str) -> Option<Self> {
        let read = strtime::parse("%d/%b/%Y:%H:%M:%S %z", Self::short(text)?).ok()?;
        Some(Self { earliest: stamp(read.to_timestamp().ok()?)?, width_ns: 1_000_000_000 })
    }

    /// Parses HAProxy's `29/Nov/2026:02:18:44.228`, which has no time zone and is taken as UTC, as in its container.
    pub(crate) fn read_haproxy(text: &str) -> Option<Self> {
        let read = strtime::parse("%d/%b/%Y:%H:%M:%S%.f", Self::short(text)?).ok()?;
        let utc = read.to_datetime().ok()?.to_zoned(TimeZone::UTC).ok()?;
        Some(Self { earliest: stamp(utc.timestamp())?, width_ns: 1_000_000 })
    }

    fn short(text: &str) -> Option<&str> {
        (text.len() <= Self::LONGEST).then_some(text)
    }
}

fn stamp(at: Timestamp) -> Option<Stamp> {
    i64::try_from(at.as_nanosecond()).ok().map(Stamp::from_unix_ns)
}
