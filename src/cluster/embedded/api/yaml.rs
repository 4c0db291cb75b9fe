//! Reading YAML without losing sight of keys that are given twice.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::Spanned;
use serde_saphyr::options::DuplicateKeyPolicy;

use super::body::Read;

/// Reads YAML. Keys that are given twice are named as Go's reader of YAML names them.
///
/// # Errors
///
/// What is wrong with it, and where.
pub(super) fn decode(body: &[u8]) -> Result<Read<Value>, serde_saphyr::Error> {
    match serde_saphyr::from_slice(body) {
        Ok(value) => return Ok(Read { value, duplicates: Vec::new() }),
        Err(error) => match error.without_snippet() {
            serde_saphyr::Error::DuplicateMappingKey { .. } => {}
            _ => return Err(error),
        },
    }
    let options = serde_saphyr::options! { duplicate_keys: DuplicateKeyPolicy::LastWins };
    let value = serde_saphyr::from_slice_with_options(body, options.clone())?;
    let Repeated(lines) = serde_saphyr::from_slice_with_options(body, options)?;
    let duplicates = vec![format!("yaml: unmarshal errors:{}", lines.concat())];
    Ok(Read { value, duplicates })
}

/// The keys that are given more than once in a value, a line of text each.
#[derive(Default)]
struct Repeated(Vec<String>);

impl<'de> Deserialize<'de> for Repeated {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Finder)
    }
}

struct Finder;

impl<'de> Visitor<'de> for Finder {
    type Value = Repeated;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("YAML")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Repeated, E> {
        Ok(Repeated::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Repeated, E> {
        Ok(Repeated::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Repeated, E> {
        Ok(Repeated::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Repeated, E> {
        Ok(Repeated::default())
    }

    fn visit_str<E>(self, _: &str) -> Result<Repeated, E> {
        Ok(Repeated::default())
    }

    fn visit_unit<E>(self) -> Result<Repeated, E> {
        Ok(Repeated::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Repeated, A::Error> {
        let mut found = Vec::new();
        while let Some(Repeated(lines)) = list.next_element()? {
            found.extend(lines);
        }
        Ok(Repeated(found))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Repeated, A::Error> {
        let (mut found, mut keys) = (Vec::new(), BTreeSet::new());
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            if keys.contains(&key.value) {
                let line = key.referenced.line();
                found.push(format!("\n  line {line}: key {:?} already set in map", key.value));
            }
            keys.insert(key.value);
            let Repeated(lines) = map.next_value()?;
            found.extend(lines);
        }
        Ok(Repeated(found))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_key_that_is_given_twice_is_named() {
        let read = decode(b"spec:\n  replicas: 1\n  replicas: 2\n  on: [{a: 1, 'a': null}]\n").unwrap();
        assert_eq!(read.value, json!({"spec": {"replicas": 2, "on": [{"a": null}]}}));
        let words = "yaml: unmarshal errors:\n  line 3: key \"replicas\" already set in map\n  \
                     line 4: key \"a\" already set in map";
        assert_eq!(read.duplicates, [words]);
        assert_eq!(decode(b"spec: {a: 1}").unwrap().duplicates, Vec::<String>::new());
        assert!(decode(b"spec: [").is_err());
    }
}
