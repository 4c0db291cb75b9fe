//! Quantities in limits, as written: `2`, `0.1%`, `250ms`, `1.5x`.

use std::cmp::Ordering;
use std::fmt;

use serde::{Serialize, Serializer};

use crate::units::{Span, duration, read};

/// A share, from 0 to 1, written as a percentage such as `0.1%`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Share(pub f64);

impl Share {
    /// Parses a percentage; returns `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let percent: f64 = text.trim().strip_suffix('%')?.trim_end().parse().ok()?;
        (0.0..=100.0).contains(&percent).then_some(Self(percent / 100.0))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Twelve digits hide the rounding error from dividing a decimal by 100.
        let percent = format!("{:.12}", self.0 * 100.0);
        write!(f, "{}%", percent.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// A number of requests, or a share of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Amount {
    /// A number.
    Count(u64),
    /// A share.
    Share(Share),
}

impl PartialOrd for Amount {
    /// Compares two numbers or two shares; a number and a share are not comparable.
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Amount::Count(a), Amount::Count(b)) => a.partial_cmp(b),
            (Amount::Share(a), Amount::Share(b)) => a.partial_cmp(b),
            _ => None,
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Amount::Count(n) => write!(f, "{n}"),
            Amount::Share(share) => write!(f, "{share}"),
        }
    }
}

/// A limit on a latency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LatencyLimit {
    /// A time.
    Time(Span),
    /// A multiple of the same figure for steady requests, written as `1.5x`.
    Times(f64),
}

impl LatencyLimit {
    fn parse(text: &str) -> Option<Self> {
        match text.trim().strip_suffix('x') {
            Some(times) => times.parse().ok().filter(|n: &f64| n.is_finite() && *n > 0.0).map(Self::Times),
            None => duration(text).map(|time| Self::Time(Span(time))),
        }
    }
}

impl PartialOrd for LatencyLimit {
    /// Compares two times or two multiples; a time and a multiple are not comparable.
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (LatencyLimit::Time(a), LatencyLimit::Time(b)) => a.partial_cmp(b),
            (LatencyLimit::Times(a), LatencyLimit::Times(b)) => a.partial_cmp(b),
            _ => None,
        }
    }
}

impl fmt::Display for LatencyLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LatencyLimit::Time(time) => write!(f, "{time}"),
            LatencyLimit::Times(n) => write!(f, "{n}x"),
        }
    }
}

/// Margin by which a figure may be worse than in a baseline.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Margin {
    /// A share of the baseline's figure; may exceed 100 %.
    Share(Share),
    /// A time.
    Time(Span),
    /// A number.
    Count(u64),
}

impl Margin {
    fn parse(text: &str) -> Option<Self> {
        match text.trim().strip_suffix('%') {
            Some(percent) => {
                let percent = percent.trim_end().parse().ok().filter(|n: &f64| n.is_finite() && *n >= 0.0);
                percent.map(|percent| Self::Share(Share(percent / 100.0)))
            }
            None => duration(text).map(|time| Self::Time(Span(time))),
        }
    }
}

impl fmt::Display for Margin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Margin::Share(share) => write!(f, "{share}"),
            Margin::Time(time) => write!(f, "{time}"),
            Margin::Count(n) => write!(f, "{n}"),
        }
    }
}

read! {
    Share: "a share in percent, such as 95%", Share::parse, None;
    Amount: "a whole number, or a share in percent such as 0.1%",
        |text| Share::parse(text).map(Amount::Share), Some(Amount::Count);
    LatencyLimit: "a duration such as 250ms, or a multiple of the steady latency such as 1.5x",
        LatencyLimit::parse, None;
    Margin: "a share such as 10%, a time such as 200ms, or a number such as 5",
        Margin::parse, Some(Margin::Count);
}

impl Serialize for Share {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for LatencyLimit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    fn read<T: for<'de> Deserialize<'de> + Serialize>(value: impl Into<serde_json::Value>) -> String {
        match serde_json::from_value::<T>(value.into()) {
            Ok(read) => serde_json::to_value(read).unwrap().to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn quantities_round_trip_through_json() {
        assert_eq!(
            ["0.1%", "7%", "99.9%", "0%"].map(read::<Share>),
            ["\"0.1%\"", "\"7%\"", "\"99.9%\"", "\"0%\""]
        );
        assert_eq!((read::<Amount>(3), read::<Amount>("0.05%")), ("3".into(), "\"0.05%\"".into()));
        assert_eq!(["250ms", "1m30s", "1.5s"].map(read::<Span>), ["\"250ms\"", "\"90s\"", "\"1.5s\""]);
        assert_eq!(["250ms", "1.5x"].map(read::<LatencyLimit>), ["\"250ms\"", "\"1.5x\""]);
        assert_eq!(["10%", "250%", "200ms"].map(read::<Margin>), ["\"10%\"", "\"250%\"", "\"200ms\""]);
        assert_eq!(read::<Margin>(5), "5");
    }

    #[test]
    fn quantity_rejects_missing_or_wrong_unit() {
        assert!(read::<Span>(5).ends_with("expected a duration with its unit, such as 250ms, 30s or 1m30s"));
        assert!(read::<Share>("101%").ends_with("expected a share in percent, such as 95%"));
        assert!(read::<Share>("0.95").ends_with("expected a share in percent, such as 95%"));
        for wrong in ["2", "-1%", "1s"] {
            let error = read::<Amount>(wrong);
            assert!(
                error.ends_with("expected a whole number, or a share in percent such as 0.1%"),
                "{error}"
            );
        }
        for wrong in ["x", "-1x", "0x", "infx", "5"] {
            assert!(read::<LatencyLimit>(wrong).contains("or a multiple of the steady latency"), "{wrong}");
        }
    }
}
