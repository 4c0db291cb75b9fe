//! Reads expectations: the maps whose keys are names of other enums, and what older versions recorded.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::Value;

use super::{Amount, Bounds, Expect};
use crate::{Cause, Outcome};

/// The expectations of run.json; before 0.2 a limit on windows was a number of seconds.
pub(crate) fn recorded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Expect, D::Error> {
    let mut value = Value::deserialize(deserializer)?;
    if let Some(windows) = value.get_mut("windows").and_then(Value::as_object_mut)
        && let Some(max_s) = windows.remove("max_s")
    {
        windows.insert("max".into(), format!("{max_s}s").into());
    }
    Expect::deserialize(value).map_err(D::Error::custom)
}

pub(super) fn causes<'de, D>(deserializer: D) -> Result<BTreeMap<Cause, Bounds<Amount>>, D::Error>
where
    D: Deserializer<'de>,
{
    deserializer.deserialize_map(ByName { what: "a cause", all: Cause::ALL, value: PhantomData })
}

pub(super) fn outcomes<'de, D>(deserializer: D) -> Result<BTreeMap<Outcome, Bounds<Amount>>, D::Error>
where
    D: Deserializer<'de>,
{
    deserializer.deserialize_map(ByName { what: "an outcome", all: Outcome::ALL, value: PhantomData })
}

/// A map whose keys are the names of an enum.
struct ByName<K: 'static, V> {
    what: &'static str,
    all: &'static [K],
    value: PhantomData<V>,
}

impl<'de, K: Copy + Ord + Display + 'static, V: Deserialize<'de>> Visitor<'de> for ByName<K, V> {
    type Value = BTreeMap<K, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a mapping whose keys are each {}", self.what)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut read = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            match self.all.iter().find(|key| key.to_string() == name) {
                Some(key) => {
                    read.insert(*key, map.next_value()?);
                }
                None => {
                    let known: Vec<String> = self.all.iter().map(ToString::to_string).collect();
                    let why = format!("is not {}; use one of {}", self.what, known.join(", "));
                    map.next_value_seed(Refused(why))?;
                }
            }
        }
        Ok(read)
    }
}

/// The value of an unknown key: reading it fails, so that the error has the key's own path.
struct Refused(String);

impl<'de> DeserializeSeed<'de> for Refused {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, _: D) -> Result<(), D::Error> {
        Err(de::Error::custom(self.0))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::super::Span;
    use super::*;

    #[test]
    fn what_older_versions_recorded_reads_the_same() {
        let old = json!({
            "dropped": {"max": 0}, "windows": {"max_s": 0.25}, "terminations": {"min": 3, "max": 3},
            "causes": {"killed_in_flight": {"max": 1}}
        });
        let expect = recorded(old).unwrap();
        assert_eq!(expect.windows.unwrap().max, Some(Span(Duration::from_millis(250))));
        assert_eq!(expect.causes[&Cause::KilledInFlight].max, Some(Amount::Count(1)));
        let again = recorded(serde_json::to_value(&expect).unwrap()).unwrap();
        assert_eq!(again, expect);
        assert_eq!(serde_json::to_value(&expect).unwrap()["windows"], json!({"max": "250ms"}));
    }
}
