//! The scenario file as it is written: every key is known, no value is checked yet.

pub(super) mod disruption;

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::time::Duration;

use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use rolldrop_record::load::{self, Arrivals, ConnectionMode, Family, LoadFrom};
use rolldrop_record::run_info::Balances;
use rolldrop_record::{Evidence, Expect};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct File<C> {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) metadata: Metadata,
    pub(super) spec: Spec<C>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Metadata {
    pub(super) name: String,
    #[serde(default)]
    pub(super) description: String,
    #[serde(default)]
    pub(super) annotations: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Spec<C> {
    pub(super) cluster: Option<Cluster<C>>,
    #[serde(default)]
    pub(super) manifests: Vec<Manifest>,
    pub(super) target: OneOrMore<Target>,
    #[serde(default)]
    pub(super) load: Load,
    #[serde(default)]
    pub(super) sidecar: Sidecar,
    #[serde(default)]
    pub(super) disruptions: Vec<disruption::Disruption>,
    pub(super) settle: Option<Span>,
    pub(super) settle_max: Option<Span>,
    #[serde(default)]
    pub(super) expect: Expect,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Cluster<C> {
    pub(super) embedded: Option<C>,
    pub(super) context: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    pub(super) file: Option<String>,
    pub(super) inline: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sidecar {
    #[serde(default)]
    pub(super) inject: bool,
    #[serde(default)]
    pub(super) workloads: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Target {
    pub(super) service: Option<String>,
    pub(super) port: Option<Port>,
    pub(super) path: Option<String>,
    pub(super) url: Option<String>,
    pub(super) node: Option<String>,
    pub(super) balances: Option<Balances>,
    pub(super) name: Option<String>,
    pub(super) weight: Option<u32>,
}

/// One, or a list.
#[derive(Debug)]
pub(super) struct OneOrMore<T> {
    pub(super) all: Vec<T>,
    pub(super) is_list: bool,
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMore<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
            type Value = OneOrMore<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping, or a list of them")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                let one = T::deserialize(MapAccessDeserializer::new(map))?;
                Ok(OneOrMore { all: vec![one], is_list: false })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
                Ok(OneOrMore { all: Vec::deserialize(SeqAccessDeserializer::new(list))?, is_list: true })
            }
        }

        deserializer.deserialize_any(Either(PhantomData))
    }
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Port {
    Number(u16),
    Name(String),
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Load {
    pub(super) rate: Option<Rate>,
    pub(super) duration: Option<Span>,
    #[serde(default)]
    pub(super) stages: Vec<Stage>,
    pub(super) arrivals: Option<Arrivals>,
    pub(super) seed: Option<u64>,
    pub(super) warmup: Option<Span>,
    pub(super) connections: Option<Connections>,
    pub(super) http: Option<Version>,
    pub(super) grpc: Option<Grpc>,
    pub(super) timeout: Option<Timeout>,
    pub(super) tls: Option<Tls>,
    pub(super) method: Option<String>,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, String>,
    pub(super) headers_file: Option<String>,
    #[serde(default)]
    pub(super) headers_from_env: BTreeMap<String, String>,
    pub(super) body: Option<String>,
    pub(super) body_file: Option<String>,
    pub(super) body_hex: Option<String>,
    pub(super) body_base64: Option<String>,
    #[serde(default)]
    pub(super) template: bool,
    #[serde(default)]
    pub(super) requests: Vec<Request>,
    pub(super) retry: Option<Retry>,
    pub(super) success: Option<Vec<Status>>,
    pub(super) pod_header: Option<String>,
    pub(super) pod_body: Option<String>,
    #[serde(default)]
    pub(super) keep_headers: Vec<String>,
    #[serde(default)]
    pub(super) connect_to: Vec<String>,
    pub(super) unix_socket: Option<String>,
    pub(super) source_ports: Option<String>,
    #[serde(default)]
    pub(super) reuse_ports: bool,
    #[serde(default)]
    pub(super) source_addresses: Vec<IpAddr>,
    pub(super) dns: Option<Dns>,
    pub(super) workers: Option<usize>,
    pub(super) spin: Option<Span>,
    pub(super) from: Option<LoadFrom>,
    pub(super) job: Option<LoadJob>,
    pub(super) evidence: Option<Evidence>,
    pub(super) abort: Option<Abort>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Abort {
    pub(super) dropped: Share,
    pub(super) over: Option<Span>,
    pub(super) requests: Option<u64>,
}

/// A share such as `5%`, as a fraction of 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Share(pub(super) f64);

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a share of the requests in percent, such as 5%";
        let text = match Scalar::read(deserializer, expected)? {
            Scalar::Number(number) => number.to_string(),
            Scalar::Text(text) => text,
        };
        let share = percent(&text).filter(|share| *share > 0.0 && *share < 1.0);
        share.map(Share).ok_or_else(|| de::Error::invalid_value(de::Unexpected::Str(&text), &expected))
    }
}

/// Parses a text such as `25%` as a fraction, from 0 to 1.
fn percent(text: &str) -> Option<f64> {
    let number: f64 = text.strip_suffix('%')?.trim().parse().ok()?;
    (0.0..=100.0).contains(&number).then_some(number / 100.0)
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct LoadJob {
    pub(super) workers: Option<usize>,
    pub(super) start_limit: Option<Span>,
    #[serde(default)]
    pub(super) resources: BTreeMap<String, Quantity>,
}

/// An amount of a resource, such as 2, 0.5 or 256Mi.
#[derive(Debug)]
pub(super) struct Quantity(pub(super) String);

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(match Scalar::read(deserializer, "an amount, such as 500m or 256Mi")? {
            Scalar::Number(number) => number.to_string(),
            Scalar::Text(text) => text,
        }))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Request {
    pub(super) path: Option<String>,
    pub(super) method: Option<String>,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: Option<String>,
    pub(super) body_file: Option<String>,
    pub(super) body_hex: Option<String>,
    pub(super) body_base64: Option<String>,
    pub(super) weight: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Retry {
    pub(super) times: u32,
    pub(super) delay: Option<Span>,
}

/// Requests per second, or a closed loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rate(pub(super) load::Rate);

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Scalar::read(deserializer, "a number of requests per second, or max")? {
            Scalar::Number(rate) => Ok(Rate(load::Rate::PerSecond(rate))),
            Scalar::Text(text) if text == load::Rate::Max.to_string() => Ok(Rate(load::Rate::Max)),
            Scalar::Text(text) => {
                let expected = &"a number of requests per second, or max";
                Err(de::Error::invalid_value(de::Unexpected::Str(&text), expected))
            }
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stage {
    pub(super) from: Option<f64>,
    pub(super) rate: f64,
    pub(super) duration: Span,
    pub(super) ramp: Option<Ramp>,
}

/// Shape in which a stage reaches its rate; without it, the rate applies at once.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Ramp {
    Linear,
}

/// A version such as `1.1` or `2`, which YAML reads as numbers.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Version(pub(super) String);

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Scalar::read(deserializer, "a version, such as 1.1 or 2")? {
            Scalar::Number(number) => Version(number.to_string()),
            Scalar::Text(text) => Version(text),
        })
    }
}

/// A number or a text.
enum Scalar {
    Number(f64),
    Text(String),
}

impl Scalar {
    fn read<'de, D: Deserializer<'de>>(deserializer: D, expected: &'static str) -> Result<Self, D::Error> {
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

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Grpc {
    pub(super) method: String,
    pub(super) success: Option<Vec<i32>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Connections {
    pub(super) mode: Option<ConnectionMode>,
    pub(super) share: Option<f64>,
    pub(super) max: Option<usize>,
    pub(super) streams: Option<usize>,
    pub(super) max_requests: Option<u64>,
    pub(super) max_age: Option<Span>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Timeout {
    pub(super) connect: Option<Span>,
    pub(super) tls: Option<Span>,
    pub(super) first_byte: Option<Span>,
    pub(super) response: Option<Span>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Tls {
    pub(super) ca: Option<String>,
    pub(super) cert: Option<String>,
    pub(super) key: Option<String>,
    pub(super) server_name: Option<String>,
    #[serde(default)]
    pub(super) insecure: bool,
    pub(super) version: Option<Version>,
    #[serde(default)]
    pub(super) resume: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Dns {
    #[serde(default)]
    pub(super) servers: Vec<String>,
    pub(super) family: Option<Family>,
}

/// A status, or a range of them such as `200-399`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Status {
    One(u16),
    Range(String),
}

/// A span of time with its unit, such as `250ms`, `30s` or `1m30s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span(pub(super) Duration);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SpanVisitor;

        impl Visitor<'_> for SpanVisitor {
            type Value = Span;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration with its unit, such as 250ms, 30s or 1m30s")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                let span = load::duration(text).map(Span);
                span.ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }

        deserializer.deserialize_any(SpanVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_needs_its_unit() {
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
