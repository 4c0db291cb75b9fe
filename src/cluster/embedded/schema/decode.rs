//! Reading JSON without losing sight of fields that are given twice.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// What [`decode`] has read.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// The value; of a field that is given twice, the last.
    pub value: Value,
    /// The paths of fields that are given more than once.
    pub duplicates: Vec<String>,
}

/// Reads JSON. How deep it may nest is limited.
///
/// # Errors
///
/// What is wrong with it, and where.
pub fn decode(bytes: &[u8]) -> Result<Decoded, serde_json::Error> {
    let mut duplicates = Vec::new();
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = Reader { path: "", duplicates: &mut duplicates }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(Decoded { value, duplicates })
}

struct Reader<'a> {
    path: &'a str,
    duplicates: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("not a number"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let path = format!("{}[{}]", self.path, list.len());
            match elements.next_element_seed(Reader { path: &path, duplicates: self.duplicates })? {
                Some(element) => list.push(element),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let path = if self.path.is_empty() { key.clone() } else { format!("{}.{key}", self.path) };
            let value = entries.next_value_seed(Reader { path: &path, duplicates: self.duplicates })?;
            if map.insert(key, value).is_some() {
                self.duplicates.push(path);
            }
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_given_twice_is_named_and_the_last_counts() {
        let read = decode(br#"{"a": 1, "b": [{"c": 1, "c": 2, "d": null}], "a": "x"}"#).unwrap();
        assert_eq!(read.value, json!({"a": "x", "b": [{"c": 2, "d": null}]}));
        assert_eq!(read.duplicates, ["b[0].c", "a"]);
    }

    #[test]
    fn malformed_and_bottomless_input_is_an_error() {
        let deep = "[".repeat(100_000);
        let inputs: [&[u8]; 6] = [b"{nope", b"", b"{} {}", b"\"\xFF\"", b"[1,]", deep.as_bytes()];
        for input in inputs {
            assert!(decode(input).is_err());
        }
    }

    proptest! {
        #[test]
        fn it_reads_what_any_reader_of_json_reads(text in "[\\[\\]{}:,\"a-c0-9.\\\\ -]{0,40}") {
            let plain = serde_json::from_str::<Value>(&text);
            match decode(text.as_bytes()) {
                Ok(read) => prop_assert_eq!(read.value, plain.unwrap()),
                Err(_) => prop_assert!(plain.is_err()),
            }
        }
    }
}
