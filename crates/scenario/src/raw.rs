//! The scenario file as written: every key is known, but no value has been checked yet.

pub(super) mod disruption_keys;

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;

use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use rolldrop_record::load::{
    Arrivals, ConnectTo, Connections, DnsSettings, Grpc, Http, LoadFrom, PortRange, Rate, Retry,
    StreamSettings, Timeouts, TlsSettings,
};
use rolldrop_record::run_info::Balances;
use rolldrop_record::units::version;
pub(super) use rolldrop_record::units::{Scalar, Span};
use rolldrop_record::{Evidence, Expect, Secret};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ScenarioFile<C> {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) metadata: MetadataKeys,
    pub(super) spec: SpecKeys<C>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MetadataKeys {
    pub(super) name: String,
    #[serde(default)]
    pub(super) description: String,
    #[serde(default)]
    pub(super) annotations: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct SpecKeys<C> {
    pub(super) cluster: Option<ClusterKeys<C>>,
    #[serde(default)]
    pub(super) manifests: Vec<Manifest>,
    pub(super) target: OneOrMore<TargetKeys>,
    #[serde(default)]
    pub(super) load: LoadKeys,
    #[serde(default)]
    pub(super) sidecar: SidecarKeys,
    #[serde(default)]
    pub(super) disruptions: Vec<disruption_keys::DisruptionKeys>,
    pub(super) settle: Option<Span>,
    pub(super) settle_max: Option<Span>,
    #[serde(default)]
    pub(super) expect: Expect,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClusterKeys<C> {
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
pub(super) struct SidecarKeys {
    #[serde(default)]
    pub(super) inject: bool,
    #[serde(default)]
    pub(super) workloads: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TargetKeys {
    pub(super) service: Option<String>,
    pub(super) port: Option<PortKey>,
    pub(super) path: Option<String>,
    pub(super) url: Option<String>,
    pub(super) node: Option<String>,
    pub(super) balances: Option<Balances>,
    pub(super) name: Option<String>,
    pub(super) weight: Option<u32>,
}

/// One value, or a list of values.
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
                f.write_str("a mapping, or a list of mappings")
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
pub(super) enum PortKey {
    Number(u16),
    Name(String),
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct LoadKeys {
    pub(super) rate: Option<Rate>,
    pub(super) duration: Option<Span>,
    #[serde(default)]
    pub(super) stages: Vec<StageKeys>,
    pub(super) arrivals: Option<Arrivals>,
    pub(super) seed: Option<u64>,
    pub(super) warmup: Option<Span>,
    pub(super) connections: Option<Connections>,
    #[serde(default, deserialize_with = "http")]
    pub(super) http: Option<Http>,
    pub(super) grpc: Option<Grpc>,
    pub(super) stream: Option<StreamSettings>,
    pub(super) timeout: Option<Timeouts>,
    /// The certificates and the key are given as file names here.
    pub(super) tls: Option<TlsSettings>,
    pub(super) method: Option<String>,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, Secret>,
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
    pub(super) requests: Vec<RequestKeys>,
    pub(super) retry: Option<Retry>,
    pub(super) success: Option<Vec<StatusKey>>,
    pub(super) pod_header: Option<String>,
    pub(super) pod_body: Option<String>,
    #[serde(default)]
    pub(super) keep_headers: Vec<String>,
    #[serde(default)]
    pub(super) connect_to: Vec<ConnectTo>,
    pub(super) unix_socket: Option<String>,
    pub(super) source_ports: Option<PortRange>,
    #[serde(default)]
    pub(super) reuse_ports: bool,
    #[serde(default)]
    pub(super) source_addresses: Vec<IpAddr>,
    pub(super) dns: Option<DnsSettings>,
    pub(super) workers: Option<usize>,
    pub(super) spin: Option<Span>,
    pub(super) from: Option<LoadFrom>,
    pub(super) job: Option<LoadJobKeys>,
    pub(super) evidence: Option<Evidence>,
    pub(super) abort: Option<AbortKeys>,
}

fn http<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Http>, D::Error> {
    version(deserializer, |text| text.parse().ok(), "auto, 1.1 or 2").map(Some)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AbortKeys {
    pub(super) dropped: FractionKey,
    pub(super) over: Option<Span>,
    pub(super) requests: Option<u64>,
}

/// A share such as `5%`, as a fraction of 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FractionKey(pub(super) f64);

impl<'de> Deserialize<'de> for FractionKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a share of the requests in percent, such as 5%";
        let text = Scalar::read(deserializer, expected)?.to_string();
        let share = percent(&text).filter(|share| *share > 0.0 && *share < 1.0);
        share.map(FractionKey).ok_or_else(|| de::Error::invalid_value(de::Unexpected::Str(&text), &expected))
    }
}

/// Parses a percentage such as `25%` as a fraction from 0 to 1.
fn percent(text: &str) -> Option<f64> {
    let number: f64 = text.strip_suffix('%')?.trim().parse().ok()?;
    (0.0..=100.0).contains(&number).then_some(number / 100.0)
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct LoadJobKeys {
    pub(super) workers: Option<usize>,
    pub(super) start_limit: Option<Span>,
    #[serde(default)]
    pub(super) resources: BTreeMap<String, Quantity>,
}

/// A resource quantity, such as 2, 0.5 or 256Mi.
#[derive(Debug)]
pub(super) struct Quantity(pub(super) String);

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Scalar::read(deserializer, "an amount, such as 500m or 256Mi").map(|amount| Self(amount.to_string()))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RequestKeys {
    pub(super) path: Option<String>,
    pub(super) method: Option<String>,
    #[serde(default)]
    pub(super) headers: BTreeMap<String, Secret>,
    pub(super) body: Option<String>,
    pub(super) body_file: Option<String>,
    pub(super) body_hex: Option<String>,
    pub(super) body_base64: Option<String>,
    pub(super) weight: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StageKeys {
    pub(super) from: Option<f64>,
    pub(super) rate: f64,
    pub(super) duration: Span,
    pub(super) ramp: Option<Ramp>,
}

/// Way in which a stage reaches its rate; without it, the rate applies immediately.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Ramp {
    Linear,
}

/// A status, or a range such as `200-399`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum StatusKey {
    One(u16),
    Range(String),
}
