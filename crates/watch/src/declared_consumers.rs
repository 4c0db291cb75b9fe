//! The annotation `rolldrop.dev/consumers`, with which a workload names all consumers of its pods.

use std::collections::{BTreeMap, BTreeSet};

use crate::viewer::WatchViewer;
use rolldrop_drive::observe::LogSource;
use rolldrop_explain::model::WatchedTermination;
use rolldrop_record::event::{Change, WorkloadEvent};

/// Maximum length of a value. Each termination's record repeats its sources.
const MAX_BYTES: usize = 4096;

/// Consumers that workloads declare.
#[derive(Debug, Default)]
pub(crate) struct DeclaredConsumers(BTreeMap<(String, String), Declaration>);

#[derive(Debug)]
struct Declaration {
    value: String,
    /// Sources of the consumers' logs; `None` for a value that is ignored.
    sources: Option<BTreeSet<String>>,
}

impl DeclaredConsumers {
    /// Processes the state of a workload. Warns once about a value that names no sources.
    pub(crate) fn observe(&mut self, namespace: &str, event: &WorkloadEvent, viewer: &dyn WatchViewer) {
        let workload = event.workload.replace('/', " ");
        let key = (namespace.to_owned(), workload);
        let Some(value) = event.consumers.as_ref().filter(|_| event.change != Change::Deleted) else {
            self.0.remove(&key);
            return;
        };
        if self.0.get(&key).is_some_and(|known| known.value == *value) {
            return;
        }
        let sources = sources(value);
        if let Err(why) = &sources {
            viewer.say(&format!(
                "warning: the annotation rolldrop.dev/consumers of {} in {namespace} is ignored: {why}",
                key.1
            ));
        }
        self.0.insert(key, Declaration { value: value.clone(), sources: sources.ok() });
    }

    /// Returns the sources that the workload of a termination declares; `None` if it declares none.
    pub(crate) fn of(&self, end: &WatchedTermination) -> Option<&BTreeSet<String>> {
        self.0.get(&(end.namespace.clone(), end.workload.clone()?))?.sources.as_ref()
    }
}

/// Reads a value: sources as in `--logs` without their formats, separated by commas.
fn sources(value: &str) -> Result<BTreeSet<String>, String> {
    if value.len() > MAX_BYTES {
        return Err(format!("it is longer than {MAX_BYTES} bytes"));
    }
    let source = |text: &str| text.trim().parse().map(|source: LogSource| source.to_string());
    value.split(',').map(source).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::viewer::NoViewer;

    fn read(value: &str) -> Result<Vec<String>, String> {
        Ok(sources(value)?.into_iter().collect())
    }

    #[test]
    fn consumers_are_log_sources() {
        let both = ["edge/daemonset/ingress:controller", "edge/deployment/envoy"];
        assert_eq!(read("edge/Deployment/envoy, edge/daemonset/ingress:controller").unwrap(), both);
        for (value, why) in [
            ("", "is not a log source"),
            ("edge/deployment/envoy,", "\"\" is not a log source"),
            ("edge/deployment/envoy=envoy-json", "\"envoy=envoy-json\" is not a valid name"),
            ("edge/service/envoy", "where KIND is deployment"),
        ] {
            let said = read(value).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
        assert!(read(&"a/pod/b,".repeat(1000)).unwrap_err().contains("longer than 4096 bytes"));
    }

    #[test]
    fn workload_declares_its_latest_value() {
        let mut declared = DeclaredConsumers::default();
        let mut after = |change: Change, consumers: Option<&str>| {
            let event = WorkloadEvent {
                change,
                workload: "Deployment/web".to_owned(),
                replicas: Some(1),
                template: String::new(),
                owner: None,
                strategy: None,
                max_unavailable: None,
                consumers: consumers.map(str::to_owned),
            };
            declared.observe("shop", &event, &NoViewer);
            let known = declared.0.get(&("shop".to_owned(), "Deployment web".to_owned()));
            known.map(|known| known.sources.as_ref().map(BTreeSet::len))
        };
        assert_eq!(after(Change::Listed, Some("a/pod/b,a/pod/c")), Some(Some(2)));
        assert_eq!(after(Change::Applied, Some("a/pod/b")), Some(Some(1)));
        assert_eq!(after(Change::Applied, Some("b")), Some(Some(1)), "a file");
        assert_eq!(after(Change::Applied, Some("a/b")), Some(None), "ignored, and not warned about again");
        assert_eq!(after(Change::Applied, None), None);
        assert_eq!(after(Change::Applied, Some("a/pod/b")), Some(Some(1)));
        assert_eq!(after(Change::Deleted, Some("a/pod/b")), None);
    }
}
