//! The metrics of `rolldrop watch`, as Prometheus' own client library and promtool read them.

use std::net::SocketAddr;
use std::process::Command;

use serde_json::{Map, Value};

use crate::harness::{fed, root, tracked};
use crate::proxy_admin::get;
use crate::watch::Watching;

/// Script that prints each sample's name, labels, value, and the pod of its exemplar; its argument is the format.
const READ: &str = r#"
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus
parse = {"application/openmetrics-text": openmetrics, "text/plain": prometheus}[sys.argv[1]]
samples = []
for family in parse(sys.stdin.read()):
    assert family.documentation and family.type in ("counter", "gauge", "histogram"), family
    for sample in family.samples:
        pod = sample.exemplar and sample.exemplar.labels["pod"]
        samples.append({"name": sample.name, "labels": sample.labels, "value": sample.value, "pod": pod})
print(json.dumps(samples))
"#;

/// Content types of the two formats.
pub(crate) const PROMETHEUS: &str = "text/plain";
pub(crate) const OPEN_METRICS: &str = "application/openmetrics-text";

/// Metrics that were scraped.
pub(crate) struct ScrapedMetrics {
    samples: Vec<Value>,
    pub(crate) text: String,
}

impl ScrapedMetrics {
    /// Scrapes a watch in this format.
    pub(crate) fn scrape(watch: &Watching, accept: &str) -> Self {
        let said = watch.read("stderr.log");
        let address = said.split("metrics are at http://").nth(1).and_then(|rest| rest.split('/').next());
        let address: SocketAddr = address.expect("an address").parse().expect("an address");
        let (status, text) = get(address, "/metrics", &format!("accept: {accept}\r\n"));
        assert_eq!(status, 200, "{text}");
        let python = root().join("target/test-venv/bin/python");
        let read = fed(Command::new(python).args(["-c", READ, accept]), &text);
        assert!(read.status.success(), "{}\n{text}", String::from_utf8_lossy(&read.stderr));
        Self { samples: serde_json::from_slice(&read.stdout).expect("JSON"), text }
    }

    /// Returns the samples with this name and these labels, such as `workload=Deployment web,mode=drain`.
    fn matching(&self, name: &str, labels: &str) -> impl Iterator<Item = &Value> {
        let wanted: Map<String, Value> = labels
            .split(',')
            .filter_map(|label| label.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.into()))
            .collect();
        let has = move |sample: &Value| wanted.iter().all(|(key, value)| sample["labels"][key] == *value);
        self.samples.iter().filter(move |sample| sample["name"] == *name && has(sample))
    }

    /// Returns the sum over these samples.
    pub(crate) fn sum(&self, name: &str, labels: &str) -> f64 {
        self.matching(name, labels).filter_map(|sample| sample["value"].as_f64()).sum()
    }

    /// Returns the pods of these samples' exemplars.
    pub(crate) fn pods(&self, name: &str, labels: &str) -> Vec<&str> {
        self.matching(name, labels).filter_map(|sample| sample["pod"].as_str()).collect()
    }

    /// Fails if a label names this pod.
    #[track_caller]
    pub(crate) fn is_no_label(&self, pod: &str) {
        let named = self.samples.iter().find(|sample| sample["labels"].to_string().contains(pod));
        assert!(named.is_none(), "{named:?}");
    }
}

#[test]
fn documented_alert_rules_are_valid() {
    let page = tracked("docs/watch.md");
    let rules = page.split("```yaml\n").find(|block| block.starts_with("groups:")).expect("rules");
    let rules = rules.split("```").next().expect("rules");
    let parsed: Value = serde_saphyr::from_str(rules).expect("YAML");
    let rules_of_page = parsed["groups"][0]["rules"].as_array().expect("rules");
    assert_eq!(rules_of_page.len(), 2, "{parsed:#}");
    // The page lists every metric that an alert uses.
    for rule in rules_of_page {
        let metric = rule["expr"].as_str().expect("an expression").split(['(', '{', '[']);
        let metric = metric.map(str::trim).find(|word| word.starts_with("rolldrop_")).expect("a metric");
        assert!(page.contains(&format!("| `{metric}`")), "{metric}");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("rules.yaml");
    std::fs::write(&file, rules).expect("a file");
    let checked = Command::new("promtool").args(["check", "rules"]).arg(&file).output().expect("promtool");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}
