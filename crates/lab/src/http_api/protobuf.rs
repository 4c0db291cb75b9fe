//! Decodes protobuf objects, as sent by kubectl's typed clients (`kubectl create deployment`, `drain`), into the JSON
//! that all other clients send.
//!
//! There is no encoder: responses are JSON, which these clients also accept. Field numbers come from the [`schema`].
//! Unknown fields are dropped, as in Kubernetes.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::super::schema::{self, FieldType, SchemaField, Structure};

/// Prefix of every protobuf object.
const MAGIC: &[u8] = b"k8s\0";
const TRUNCATED: &str = "the body ends inside a field";

/// Decodes one object.
pub(super) fn decode(body: &[u8]) -> Result<Value, String> {
    // In the envelope, field 1 is the type (1 apiVersion, 2 kind) and field 2 is the object itself.
    let envelope = ProtobufMessage::of(
        body.strip_prefix(MAGIC).ok_or("the body does not start with the protobuf prefix")?,
    )?;
    let type_meta = ProtobufMessage::of(envelope.bytes(1, "typeMeta")?)?;
    let (api_version, kind) = (type_meta.text(1, "apiVersion")?, type_meta.text(2, "kind")?);
    let Some(structure) = schema::named(&kind) else {
        return Err(format!("unknown kind {kind:?} in version {api_version:?}"));
    };
    let mut fields = Map::new();
    read_structure(envelope.bytes(2, "raw")?, structure, &[], &mut fields)?;
    fields.insert("apiVersion".to_owned(), json!(api_version));
    fields.insert("kind".to_owned(), json!(kind));
    Ok(Value::Object(fields))
}

/// Reads the fields whose path of field numbers begins with `path` into `object`.
fn read_structure(
    bytes: &[u8],
    structure: &Structure,
    path: &[u32],
    object: &mut Map<String, Value>,
) -> Result<(), String> {
    for (number, data) in ProtobufMessage::of(bytes)?.0 {
        let here = [path, &[number]].concat();
        let found = structure.fields.iter().find(|(_, field)| field.protobuf.starts_with(&here));
        match (found, data) {
            (Some((name, field)), data) if field.protobuf == here => read_field(name, field, data, object)?,
            // In JSON, the fields of this message are in the enclosing object.
            (Some(_), ProtobufValue::Bytes(inner)) => read_structure(inner, structure, &here, object)?,
            _ => {}
        }
    }
    Ok(())
}

fn read_field(
    name: &str,
    field: &SchemaField,
    data: ProtobufValue<'_>,
    object: &mut Map<String, Value>,
) -> Result<(), String> {
    match &field.kind {
        FieldType::List(element) => {
            let element = read_value(name, element, data)?;
            match object.entry(name).or_insert_with(|| json!([])) {
                Value::Array(list) => list.push(element),
                _ => return Err(wrong_type(name)),
            }
        }
        FieldType::Map(element) => {
            let entry = ProtobufMessage::of(data.bytes(name)?)?;
            let value = match entry.get(2) {
                Some(data) => read_value(name, element, data)?,
                None => read_value(name, element, ProtobufValue::Bytes(&[])).unwrap_or_default(),
            };
            object.entry(name).or_insert_with(|| json!({}))[entry.text(1, name)?] = value;
        }
        kind => {
            let value = read_value(name, kind, data)?;
            if schema::stays(field, &value) || value.is_object() {
                object.insert(name.to_owned(), value);
            }
        }
    }
    Ok(())
}

fn read_value(name: &str, kind: &FieldType, data: ProtobufValue<'_>) -> Result<Value, String> {
    let wrong = || wrong_type(name);
    Ok(match kind {
        FieldType::String => json!(data.text(name)?),
        FieldType::Bool => json!(data.number(name)? != 0),
        FieldType::Integer { .. } => json!(data.number(name)?),
        FieldType::Bytes => json!(BASE64_STANDARD.encode(data.bytes(name)?)),
        FieldType::Structure(index) => {
            let mut fields = Map::new();
            read_structure(data.bytes(name)?, schema::structure(*index), &[], &mut fields)?;
            Value::Object(fields)
        }
        // Field 1 is the quantity as a string.
        FieldType::Quantity => json!(ProtobufMessage::of(data.bytes(name)?)?.text(1, name)?),
        // Field 1 selects the type: field 2 is the integer, field 3 the string.
        FieldType::IntOrString => {
            let either = ProtobufMessage::of(data.bytes(name)?)?;
            match either.number(1, name)? {
                Some(1..) => json!(either.text(3, name)?),
                _ => json!(either.number(2, name)?.unwrap_or(0)),
            }
        }
        // Field 1 is seconds, field 2 nanoseconds. An empty message means no time.
        FieldType::Time | FieldType::MicroTime => {
            let time = ProtobufMessage::of(data.bytes(name)?)?;
            let nanoseconds = i32::try_from(time.number(2, name)?.unwrap_or(0)).map_err(|_| wrong())?;
            match time.number(1, name)? {
                Some(seconds) => {
                    json!(Timestamp::new(seconds, nanoseconds).map_err(|_| wrong())?.to_string())
                }
                None => Value::Null,
            }
        }
        // Field 1 contains JSON.
        FieldType::Any => match ProtobufMessage::of(data.bytes(name)?)?.get(1) {
            Some(data) => serde_json::from_slice(data.bytes(name)?).map_err(|_| wrong())?,
            None => Value::Null,
        },
        FieldType::List(_) | FieldType::Map(_) => return Err(wrong()),
    })
}

/// Field value, decoded as far as possible without the schema.
#[derive(Clone, Copy)]
enum ProtobufValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> ProtobufValue<'a> {
    fn bytes(self, name: &str) -> Result<&'a [u8], String> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Number(_) => Err(wrong_type(name)),
        }
    }

    fn text(self, name: &str) -> Result<String, String> {
        String::from_utf8(self.bytes(name)?.to_vec()).map_err(|_| wrong_type(name))
    }

    /// Reads a number, which protobuf encodes as 64 bits in two's complement.
    fn number(self, name: &str) -> Result<i64, String> {
        match self {
            Self::Number(number) => Ok(number.cast_signed()),
            Self::Bytes(_) => Err(wrong_type(name)),
        }
    }
}

/// Fields of a message with their numbers, in order of appearance.
struct ProtobufMessage<'a>(Vec<(u32, ProtobufValue<'a>)>);

impl<'a> ProtobufMessage<'a> {
    fn of(mut bytes: &'a [u8]) -> Result<Self, String> {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes)?;
            let number = u32::try_from(tag >> 3).map_err(|_| wrong_wire_type(tag & 7))?;
            let data = match tag & 7 {
                0 => ProtobufValue::Number(varint(&mut bytes)?),
                1 => ProtobufValue::Bytes(take(&mut bytes, 8)?),
                2 => {
                    let length = varint(&mut bytes)?;
                    ProtobufValue::Bytes(take(&mut bytes, usize::try_from(length).map_err(|_| TRUNCATED)?)?)
                }
                5 => ProtobufValue::Bytes(take(&mut bytes, 4)?),
                other => return Err(wrong_wire_type(other)),
            };
            fields.push((number, data));
        }
        Ok(Self(fields))
    }

    /// Returns the value of a field. If the field appears more than once, the last value wins.
    fn get(&self, number: u32) -> Option<ProtobufValue<'a>> {
        self.0.iter().rfind(|(own, _)| *own == number).map(|(_, data)| *data)
    }

    /// Returns the bytes of a field, or an empty slice if it is missing.
    fn bytes(&self, number: u32, name: &str) -> Result<&'a [u8], String> {
        self.get(number).map_or(Ok(&[]), |data| data.bytes(name))
    }

    fn text(&self, number: u32, name: &str) -> Result<String, String> {
        self.get(number).map_or(Ok(String::new()), |data| data.text(name))
    }

    fn number(&self, number: u32, name: &str) -> Result<Option<i64>, String> {
        self.get(number).map(|data| data.number(name)).transpose()
    }
}

fn wrong_type(name: &str) -> String {
    format!("field {name} has the wrong type")
}

fn wrong_wire_type(found: u64) -> String {
    format!("the body has a field with the unknown wire type {found}")
}

fn varint(bytes: &mut &[u8]) -> Result<u64, String> {
    let mut value = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let byte = take(bytes, 1)?[0];
        value |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(TRUNCATED.to_owned())
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8], String> {
    bytes.split_off(..length).ok_or_else(|| TRUNCATED.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn varint(mut value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push(u8::try_from(value & 0x7F).unwrap() | 0x80);
            value >>= 7;
        }
        bytes.push(u8::try_from(value).unwrap());
        bytes
    }

    fn message(number: u64, content: &[u8]) -> Vec<u8> {
        [varint(number << 3 | 2), varint(content.len() as u64), content.to_vec()].concat()
    }

    fn number(number: u64, value: i64) -> Vec<u8> {
        [varint(number << 3), varint(value.cast_unsigned())].concat()
    }

    fn envelope(api_version: &str, kind: &str, object: &[u8]) -> Vec<u8> {
        let type_meta = [message(1, api_version.as_bytes()), message(2, kind.as_bytes())].concat();
        [MAGIC.to_vec(), message(1, &type_meta), message(2, object)].concat()
    }

    #[test]
    fn protobuf_pod_decodes_to_json() {
        let metadata = [
            message(1, b"web"),
            message(2, b""),
            message(8, b""),
            message(11, &[message(1, b"app"), message(2, b"web")].concat()),
        ];
        let get =
            [message(1, b"/ready"), message(2, &[number(1, 1), number(2, 0), message(3, b"http")].concat())];
        // Protobuf nests a probe's action in a separate message.
        let probe = [message(1, &message(2, &get.concat())), number(4, 7)];
        let container = [message(1, b"app"), message(2, b"echo:1"), message(11, &probe.concat())];
        let spec = [message(2, &container.concat()), message(3, b"Always"), number(4, 30)];
        let pod = [message(1, &metadata.concat()), message(2, &spec.concat()), message(3, b"")].concat();
        let expected = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "web", "labels": {"app": "web"}},
            "spec": {
                "containers": [{
                    "name": "app",
                    "image": "echo:1",
                    "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 7},
                }],
                "restartPolicy": "Always",
                "terminationGracePeriodSeconds": 30,
            },
            "status": {},
        });
        assert_eq!(decode(&envelope("v1", "Pod", &pod)), Ok(expected));
    }

    #[test]
    fn decoder_handles_times_bytes_and_negative_numbers() {
        let metadata = [message(1, b"s"), message(8, &number(1, 1_795_219_200))].concat();
        let data = [message(1, b"password"), message(2, b"open")].concat();
        let secret = [message(1, &metadata), message(2, &data), message(3, b"Opaque")].concat();
        let secret = decode(&envelope("v1", "Secret", &secret)).unwrap();
        assert_eq!(secret["metadata"]["creationTimestamp"], "2026-11-21T00:00:00Z");
        assert_eq!(secret["data"], json!({"password": "b3Blbg=="}));
        let deployment = message(2, &number(1, -1));
        let deployment = decode(&envelope("apps/v1", "Deployment", &deployment)).unwrap();
        assert_eq!(deployment["spec"]["replicas"], -1);
    }

    #[test]
    fn decoding_error_states_its_cause() {
        let name_is_number = envelope("v1", "Pod", &message(1, &number(1, 5)));
        let unknown = envelope("v9", "Thing", b"");
        for (bytes, why) in [
            (&b"{}"[..], "does not start"),
            (b"k8s\0\x0a\x7f", TRUNCATED),
            (b"k8s\0\x0b", "wire type 3"),
            (&unknown, "unknown kind \"Thing\""),
            (&name_is_number, "field name has the wrong type"),
        ] {
            let error = decode(bytes).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    proptest! {
        #[test]
        fn decoder_survives_arbitrary_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&[MAGIC, &bytes].concat());
            let _ = decode(&envelope("v1", "Pod", &bytes));
        }
    }
}
