//! Value formats in files and options: durations with units, and versions that YAML reads as numbers.

use std::fmt;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

/// Parses a duration in the form used by options and scenarios: numbers with units, such as `250ms`, `30s` or `1m30s`.
/// Returns `None` for any other text.
pub fn duration(text: &str) -> Option<Duration> {
    Duration::try_from(text.parse::<jiff::SignedDuration>().ok()?).ok()
}

/// Formats a duration in the form used by options and scenarios.
pub fn in_units(duration: Duration) -> String {
    if duration.is_zero() { "0s".to_owned() } else { format!("{duration:?}") }
}

/// A duration, written with its unit, such as `250ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl Span {
    /// Returns the length in seconds.
    pub fn seconds(self) -> f64 {
        self.0.as_secs_f64()
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&in_units(self.0))
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Deserializer of a quantity from a string or, if the type allows it, from an integer.
pub(crate) struct QuantityDeserializer<T> {
    pub(crate) expected: &'static str,
    pub(crate) of_text: fn(&str) -> Option<T>,
    pub(crate) of_number: Option<fn(u64) -> T>,
}

impl<T> Visitor<'_> for QuantityDeserializer<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.of_text)(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        match self.of_number {
            Some(of_number) => Ok(of_number(number)),
            None => Err(E::invalid_type(de::Unexpected::Unsigned(number), &self)),
        }
    }
}

/// Implements `Deserialize` using a [`QuantityDeserializer`].
macro_rules! read {
    ($($type:ty: $expected:literal, $of_text:expr, $of_number:expr;)*) => {$(
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let of_number: Option<fn(u64) -> Self> = $of_number;
                deserializer.deserialize_any($crate::units::QuantityDeserializer {
                    expected: $expected,
                    of_text: $of_text,
                    of_number,
                })
            }
        }
    )*};
}

pub(crate) use read;

read! {
    Span: "a duration with its unit, such as 250ms, 30s or 1m30s", |text| duration(text).map(Span), None;
}

/// serde format of a field that is a duration or an optional duration, written like a [`Span`].
pub(crate) mod span {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    use super::Span;

    pub(crate) fn serialize<S: Serializer>(
        duration: &(impl Copy + Into<Option<Duration>>),
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match (*duration).into() {
            Some(duration) => serializer.collect_str(&Span(duration)),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>, T: From<Duration>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        Span::deserialize(deserializer).map(|Span(duration)| duration.into())
    }
}

/// serde format of a field that is a duration above 0, or an optional one.
pub(crate) mod span_above_0 {
    use std::time::Duration;

    use serde::{Deserializer, de};

    pub(crate) use super::span::serialize;

    pub(crate) fn deserialize<'de, D: Deserializer<'de>, T: From<Duration>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        match super::span::deserialize(deserializer)? {
            Duration::ZERO => Err(de::Error::custom("must be longer than 0")),
            duration => Ok(duration.into()),
        }
    }
}

/// Deserializes a number that must not be 0.
pub(crate) fn at_least_1<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + PartialEq + From<u8>,
{
    match Option::<T>::deserialize(deserializer)? {
        Some(number) if number == T::from(0) => Err(de::Error::custom("must be at least 1")),
        number => Ok(number),
    }
}

/// A number or a string.
#[derive(Clone, Debug, PartialEq)]
pub enum Scalar {
    /// A number.
    Number(f64),
    /// A string.
    Text(String),
}

impl Scalar {
    /// Reads a number or a string.
    ///
    /// # Errors
    /// Fails for anything other than `expected`.
    pub fn read<'de, D: Deserializer<'de>>(
        deserializer: D,
        expected: &'static str,
    ) -> Result<Self, D::Error> {
        struct ScalarVisitor(&'static str);

        impl Visitor<'_> for ScalarVisitor {
            type Value = Scalar;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.0)
            }

            fn visit_f64<E>(self, number: f64) -> Result<Scalar, E> {
                Ok(Scalar::Number(number))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Scalar, E> {
                Ok(Scalar::Number(number as f64))
            }

            fn visit_i64<E>(self, number: i64) -> Result<Scalar, E> {
                Ok(Scalar::Number(number as f64))
            }

            fn visit_str<E>(self, text: &str) -> Result<Scalar, E> {
                Ok(Scalar::Text(text.to_owned()))
            }
        }

        deserializer.deserialize_any(ScalarVisitor(expected))
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Number(number) => number.fmt(f),
            Scalar::Text(text) => f.write_str(text),
        }
    }
}

/// Reads a version such as `1.1` or `2`, which YAML parses as a number.
///
/// # Errors
/// Fails for anything that is not a version, and for versions that `known` rejects; `allowed` lists the accepted ones.
pub fn version<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    known: impl FnOnce(&str) -> Option<T>,
    allowed: &str,
) -> Result<T, D::Error> {
    let text = Scalar::read(deserializer, "a version, such as 1.1 or 2")?.to_string();
    known(&text).ok_or_else(|| de::Error::custom(format!("is {text}, must be {allowed}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn span_needs_unit() {
        let span =
            |text: &str| serde_json::from_value::<Span>(text.into()).map(|s| s.0).map_err(|e| e.to_string());
        assert_eq!(span("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(span("1m30s"), Ok(Duration::from_secs(90)));
        for wrong in ["5", "-1s", "soon", ""] {
            assert!(span(wrong).unwrap_err().contains("with its unit"), "{wrong}");
        }
        assert!(serde_json::from_value::<Span>(5.into()).is_err());
    }
}
