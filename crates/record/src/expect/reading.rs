//! Deserialization of expectations: maps whose keys are names of other enums.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, de};

use super::{Amount, Bounds, Span};
use crate::stage::{Stage, StartStage};
use crate::{Cause, Outcome};

/// Limits by name, as read by a deserializer `D`.
type Read<'de, D, K, V> = Result<BTreeMap<K, Bounds<V>>, <D as Deserializer<'de>>::Error>;

pub(super) fn causes<'de, D: Deserializer<'de>>(deserializer: D) -> Read<'de, D, Cause, Amount> {
    by_name(deserializer, |name| one_of("a cause", Cause::ALL, |_| None, name))
}

pub(super) fn outcomes<'de, D: Deserializer<'de>>(deserializer: D) -> Read<'de, D, Outcome, Amount> {
    by_name(deserializer, |name| one_of("an outcome", Outcome::ALL, |_| None, name))
}

pub(super) fn stages<'de, D: Deserializer<'de>>(deserializer: D) -> Read<'de, D, Stage, Span> {
    by_name(deserializer, |name| one_of("a stage of a termination", Stage::ALL, Stage::refusal, name))
}

pub(super) fn start_stages<'de, D: Deserializer<'de>>(deserializer: D) -> Read<'de, D, StartStage, Span> {
    by_name(deserializer, |name| one_of("a stage of a start", StartStage::ALL, StartStage::refusal, name))
}

pub(super) fn exits<'de, D: Deserializer<'de>>(deserializer: D) -> Read<'de, D, u8, u64> {
    let read = |code: &str| {
        let why = "is not an exit code: write a number from 0 to 255, such as 137 (SIGKILL) or 143 (SIGTERM)";
        code.parse().map_err(|_| why.to_owned())
    };
    by_name(deserializer, read)
}

/// Finds the key with this name among the allowed ones.
fn one_of<K: Copy + Display>(
    what: &str,
    all: &[K],
    refusal: fn(K) -> Option<&'static str>,
    name: &str,
) -> Result<K, String> {
    match all.iter().find(|key| key.to_string() == name) {
        Some(key) => refusal(*key).map_or(Ok(*key), |why| Err(why.to_owned())),
        None => {
            let known = all.iter().filter(|key| refusal(**key).is_none());
            let known: Vec<String> = known.map(ToString::to_string).collect();
            Err(format!("is not {what}; use one of {}", known.join(", ")))
        }
    }
}

/// Reads a map. `read` converts a name to a key, or returns the reason why the name is not a key.
fn by_name<'de, D, K, V, F>(deserializer: D, read: F) -> Result<BTreeMap<K, V>, D::Error>
where
    D: Deserializer<'de>,
    K: Ord,
    V: Deserialize<'de>,
    F: Fn(&str) -> Result<K, String>,
{
    deserializer.deserialize_map(NamedMapReader { read, value: PhantomData })
}

/// Reader of a map whose keys are names.
struct NamedMapReader<F, V> {
    read: F,
    value: PhantomData<V>,
}

impl<'de, K: Ord, V: Deserialize<'de>, F: Fn(&str) -> Result<K, String>> Visitor<'de>
    for NamedMapReader<F, V>
{
    type Value = BTreeMap<K, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping from names to limits")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut read = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            match (self.read)(&name) {
                Ok(key) => {
                    read.insert(key, map.next_value()?);
                }
                Err(why) => map.next_value_seed(RefusedValue(why))?,
            }
        }
        Ok(read)
    }
}

/// The value of an unknown key. Reading it always fails, which puts the key's path into the error.
struct RefusedValue(String);

impl<'de> DeserializeSeed<'de> for RefusedValue {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, _: D) -> Result<(), D::Error> {
        Err(de::Error::custom(self.0))
    }
}
