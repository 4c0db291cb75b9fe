//! `--target`: a Service or a URL on the command line.

use std::str::FromStr;

use serde_json::{Value, json};

use rolldrop_record::run_info::Balances;

/// Warm-up of a run that has a target but no scenario. Right after a rollout, traffic may be routed to the last old pod
/// for another second (`kubectl rollout status` does not wait for that). Those losses do not belong to this run.
const WARMUP: &str = "2s";

/// Value of `--target`.
#[derive(Clone, Debug, PartialEq)]
pub enum TargetArg {
    /// A port of a Service, or the NodePort of a node.
    Service {
        /// Name of the Service.
        name: String,
        /// Name or number of the port.
        port: Option<String>,
        /// The node.
        node: Option<String>,
    },
    /// A URL.
    Url {
        /// The URL.
        url: String,
        /// Unit that a proxy at the URL balances, if stated.
        balances: Option<Balances>,
    },
}

impl FromStr for TargetArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || {
            "must be svc/NAME[:PORT][@NODE], or a URL such as https://shop.example/ or l7:https://..."
                .to_owned()
        };
        if let Some((kind, rest)) = text.split_once('/')
            && ["svc", "service", "services"].contains(&kind)
        {
            let (rest, node) = match rest.split_once('@') {
                Some((rest, node)) => (rest, Some(node)),
                None => (rest, None),
            };
            let (name, port) = match rest.split_once(':') {
                Some((name, port)) => (name, Some(port)),
                None => (rest, None),
            };
            let is_name = |text: &str| {
                !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.')
            };
            if !is_name(name) || !port.is_none_or(is_name) || !node.is_none_or(is_name) {
                return Err(form());
            }
            let (port, node) = (port.map(str::to_owned), node.map(str::to_owned));
            return Ok(Self::Service { name: name.to_owned(), port, node });
        }
        let (url, balances) = match text.strip_prefix("l7:") {
            Some(url) => (url, Some(Balances::Requests)),
            None => (text, None),
        };
        let is_url = url::Url::parse(url).is_ok_and(|url| url.has_host());
        if is_url { Ok(Self::Url { url: url.to_owned(), balances }) } else { Err(form()) }
    }
}

impl TargetArg {
    fn as_value(&self) -> Value {
        match self {
            Self::Service { name, port, node } => {
                let mut target = json!({"service": name});
                if let Some(port) = port {
                    target["port"] = port.parse::<u16>().map_or_else(|_| json!(port), |number| json!(number));
                }
                if let Some(node) = node {
                    target["node"] = json!(node);
                }
                target
            }
            Self::Url { url, balances: None } => json!({"url": url}),
            Self::Url { url, balances } => json!({"url": url, "balances": balances}),
        }
    }

    /// Creates a scenario that sets only the target and the warm-up, and is named after the target.
    pub fn as_scenario(&self) -> String {
        let name = match self {
            Self::Service { name, .. } => name.clone(),
            Self::Url { url, .. } => {
                let host = url::Url::parse(url).ok().and_then(|url| url.host_str().map(str::to_owned));
                host.unwrap_or_default()
            }
        };
        let name: String = name
            .to_lowercase()
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .take(63)
            .collect();
        let name = match name.trim_matches('-') {
            "" => "target",
            name => name,
        };
        let scenario = json!({
            "apiVersion": "rolldrop.dev/v1",
            "kind": "Scenario",
            "metadata": {"name": name},
            "spec": {"target": self.as_value(), "load": {"warmup": WARMUP}},
        });
        scenario.to_string()
    }
}

/// Formats the targets as an override of a scenario value.
pub fn as_override(targets: &[TargetArg]) -> Option<String> {
    let value = match targets {
        [] => return None,
        [only] => only.as_value(),
        several => several.iter().map(TargetArg::as_value).collect(),
    };
    Some(format!("target={value}"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{Place, parse};

    #[test]
    fn target_argument_becomes_scenario() {
        let load = |text: &str| {
            let target: TargetArg = text.parse().unwrap();
            let overrides: Vec<String> = as_override(std::slice::from_ref(&target)).into_iter().collect();
            let loaded = parse::<Value>(&target.as_scenario(), "--target", Path::new("."), &overrides);
            let scenario = loaded.unwrap().scenario;
            assert_eq!(scenario.load.settings.warmup.as_secs(), 2);
            (scenario.name.clone(), scenario.targets[0].place.clone())
        };
        let service = |name: &str, port: Option<&str>| Place::Service {
            name: name.into(),
            port: port.map(str::to_owned),
            path: "/".into(),
            node: None,
        };
        assert_eq!(load("svc/web"), ("web".into(), service("web", None)));
        assert_eq!(load("svc/web:8080"), ("web".into(), service("web", Some("8080"))));
        assert_eq!(load("service/web:http"), ("web".into(), service("web", Some("http"))));
        let (name, place) = load("https://Shop.example:8443/x");
        assert_eq!(name, "shop-example");
        assert!(matches!(place, Place::Url(url) if url.as_str() == "https://shop.example:8443/x"));
        let all = ["svc/web:http@node-1", "l7:http://gateway.example/", "svc/web"];
        let all: Vec<TargetArg> = all.iter().map(|text| text.parse().unwrap()).collect();
        let overrides: Vec<String> = as_override(&all).into_iter().collect();
        let loaded = parse::<Value>(&all[0].as_scenario(), "--target", Path::new("."), &overrides).unwrap();
        let targets = loaded.scenario.targets.iter().map(|target| (target.name.as_str(), target.balances));
        assert_eq!(
            targets.collect::<Vec<_>>(),
            [
                ("web@node-1", Balances::Connections),
                ("gateway.example", Balances::Requests),
                ("web", Balances::Connections)
            ]
        );
        for wrong in ["svc/web@", "l7:svc/web", "web", "svc/", "svc/we b", "svc/web:", "deploy/web", "http:"]
        {
            assert!(wrong.parse::<TargetArg>().unwrap_err().contains("svc/NAME"), "{wrong}");
        }
    }
}
