//! All parameters of an embedded cluster, with their defaults and the sources of those defaults, for help and
//! documentation.

use serde_json::Value;

use super::ClusterConfig;
use super::hop_latency::HopLatencies;

/// Parameter of an embedded cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Path in the configuration.
    pub name: String,
    /// Default value, as written in the configuration.
    pub default: String,
    /// Description, including the source of the default.
    pub about: String,
}

/// Returns every parameter, section by section: first those in `parameters.txt`, then the delays of hops.
pub fn all() -> Vec<Parameter> {
    let config = ClusterConfig::default();
    let written = serde_json::to_value(&config).unwrap_or_default();
    let lines = include_str!("parameters.txt").lines().filter_map(|line| line.split_once(": "));
    let settings = lines.map(|(name, about)| Parameter {
        name: name.to_owned(),
        default: match name.split('.').fold(&written, |value, key| &value[key]) {
            Value::String(text) => text.clone(),
            Value::Number(share) if share.is_f64() => format!("{:.3}", share.as_f64().unwrap_or_default()),
            value => value.to_string(),
        },
        about: about.to_owned(),
    });
    let delays = config.latencies.named().into_iter().zip(HopLatencies::descriptions());
    let delays = delays.map(|((name, latency), (_, about))| Parameter {
        name: format!("latencies.{name}"),
        default: latency.to_string(),
        about: about.replace('`', ""),
    });
    settings.chain(delays).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Collects the paths of all values that are not objects; a latency is one value.
    fn paths(value: &Value, path: &str, found: &mut Vec<String>) {
        match value.as_object() {
            Some(map) if !map.is_empty() && !path.starts_with("latencies.") => {
                for (name, value) in map {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    paths(value, &path, found);
                }
            }
            _ => found.push(path.to_owned()),
        }
    }

    #[test]
    fn parameters_cover_every_setting() {
        let mut found = Vec::new();
        paths(&serde_json::to_value(ClusterConfig::default()).unwrap(), "", &mut found);
        let mut listed: Vec<_> = all().into_iter().map(|parameter| parameter.name).collect();
        found.sort();
        listed.sort();
        assert_eq!(listed, found);
        assert!(all().iter().all(|parameter| !parameter.about.is_empty() && !parameter.default.is_empty()));
    }
}
