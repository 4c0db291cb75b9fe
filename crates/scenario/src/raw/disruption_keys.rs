//! A disruption as written in the file, with the keys of all actions; each action takes only some of them.

use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

use super::super::disruption::{Count, Object, Order, PatchType, Until};
use super::{Scalar, Span, percent};
use rolldrop_record::event::ActionName;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct DisruptionKeys {
    pub(crate) at: Span,
    pub(crate) action: ActionName,
    pub(crate) jitter: Option<Span>,
    pub(crate) every: Option<Span>,
    pub(crate) repeat: Option<u32>,
    pub(crate) until: Option<Until>,
    #[serde(default)]
    pub(crate) allow_outage: bool,
    pub(crate) selector: Option<String>,
    pub(crate) count: Option<Count>,
    pub(crate) order: Option<Order>,
    pub(crate) batch: Option<usize>,
    pub(crate) spacing: Option<Span>,
    pub(crate) grace_period_seconds: Option<u32>,
    #[serde(default)]
    pub(crate) force: bool,
    pub(crate) label: Option<String>,
    pub(crate) workload: Option<String>,
    pub(crate) replicas: Option<u32>,
    pub(crate) container: Option<String>,
    pub(crate) image: Option<String>,
    pub(crate) object: Option<Object>,
    #[serde(rename = "type")]
    pub(crate) patch_type: Option<PatchType>,
    pub(crate) patch: Option<Value>,
    pub(crate) node: Option<String>,
    pub(crate) command: Option<Vec<String>>,
    #[serde(rename = "for")]
    pub(crate) lasts: Option<Span>,
    #[serde(default)]
    pub(crate) keep: bool,
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const FORM: &str = "a whole number of at least 1, a share such as 25%, or all";
        let wrong = || de::Error::custom(format!("must be {FORM}"));
        match Scalar::read(deserializer, FORM)? {
            Scalar::Number(number) if number >= 1.0 && number.fract() == 0.0 && number <= 1e6 => {
                // The number is whole, so its text parses exactly.
                format!("{number}").parse().map(Count::Number).map_err(|_| wrong())
            }
            Scalar::Text(text) if text == "all" => Ok(Count::All),
            Scalar::Text(text) => {
                percent(&text).filter(|share| *share > 0.0).map(Count::Share).ok_or_else(wrong)
            }
            Scalar::Number(_) => Err(wrong()),
        }
    }
}

impl<'de> Deserialize<'de> for Until {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let wrong = || {
            de::Error::custom(
                "must be rolloutComplete, {terminations: 20}, or {windows: {p95: 95%}}, which is enough \
                 terminations for the largest window to cover 95 % of all windows at 95 % confidence",
            )
        };
        if value == "rolloutComplete" {
            return Ok(Until::RolloutComplete);
        }
        let only = |map: &Value| {
            let map = map.as_object().filter(|map| map.len() == 1)?;
            map.iter().next().map(|(name, value)| (name.clone(), value.clone()))
        };
        match only(&value) {
            Some((name, number)) if name == "terminations" => {
                let number = number.as_u64().filter(|number| (1..=100_000).contains(number));
                number.and_then(|n| usize::try_from(n).ok()).map(Until::Terminations).ok_or_else(wrong)
            }
            Some((name, windows)) if name == "windows" => {
                let inside = |share: &f64| (0.5..=0.999).contains(share);
                let (quantile, confidence) = only(&windows).ok_or_else(wrong)?;
                let coverage =
                    quantile.strip_prefix('p').and_then(|q| q.parse::<f64>().ok()).map(|q| q / 100.0);
                let confidence = confidence.as_str().and_then(percent);
                match (coverage.filter(inside), confidence.filter(inside)) {
                    (Some(coverage), Some(confidence)) => Ok(Until::Windows { coverage, confidence }),
                    _ => Err(wrong()),
                }
            }
            _ => Err(wrong()),
        }
    }
}
