//! All parameters of an embedded cluster with their defaults and the sources of these, for help and documentation.

use super::Config;
use super::duration::to_text;
use super::latency::Latencies;

/// One parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its path in the configuration.
    pub name: String,
    /// Its default, as written there.
    pub default: String,
    /// Description, with the source of its default.
    pub about: String,
}

/// Returns every parameter, section by section; the delays come last.
pub fn all() -> Vec<Parameter> {
    let config = Config::default();
    let Config { api_server, controllers, .. } = &config;
    let settings = [
        ("nodes", config.nodes.to_string(), "number of nodes"),
        ("dataplane", "auto".to_owned(), "auto, kernel or userspace"),
        (
            "images",
            "{}".to_owned(),
            "what images say, such as {\"nginx\": {\"stopSignal\": \"SIGQUIT\"}}: the STOPSIGNAL for \
             containers without a lifecycle.stopSignal; the name is the last component, without tag or digest",
        ),
        (
            "goneAddress",
            written(config.gone_address),
            "what becomes of connections to a pod that is gone (kernel dataplane)",
        ),
        (
            "firstProbeMissed",
            format!("{:.3}", config.first_probe_missed),
            "share of first probes that come a period late (15 of 90 measured starts)",
        ),
        (
            "serviceProxy.minSyncPeriod",
            to_text(config.service_proxy.min_sync_period),
            "least time from the end of one sync to the next (kube-proxy: minSyncPeriod)",
        ),
        (
            "apiServer.bookmarkPeriod",
            to_text(api_server.bookmark_period),
            "pause between two bookmarks of a watch (kube-apiserver: defaultBookmarkFrequency)",
        ),
        (
            "controllers.kubeApiQps",
            controllers.kube_api_qps.to_string(),
            "calls of one controller per second (kube-controller-manager: --kube-api-qps)",
        ),
        (
            "controllers.kubeApiBurst",
            controllers.kube_api_burst.to_string(),
            "calls of one controller at once (kube-controller-manager: --kube-api-burst)",
        ),
        (
            "controllers.jobPodFailureBackOff",
            to_text(controllers.job_pod_failure_back_off),
            "Job: pause after a failure, doubling (pkg/controller/job: DefaultJobPodFailureBackOff)",
        ),
        ("dns.ttl", to_text(config.dns.ttl), "how long DNS answers may be kept (CoreDNS: plugin kubernetes)"),
    ];
    let link = (
        "latencies.link",
        "{}".to_owned(),
        "one way between a consumer and the pods that it connects to, by consumer: a node, such as node-1 (what connects \
         from there), or pods by a label, such as app=gateway (kernel dataplane)",
    );
    let settings = settings.into_iter().chain([link]).map(|(name, default, about)| Parameter {
        name: name.to_owned(),
        default,
        about: about.to_owned(),
    });
    let delays = config.latencies.named().into_iter().zip(Latencies::descriptions());
    let delays = delays.map(|((name, latency), (_, about))| Parameter {
        name: format!("latencies.{name}"),
        default: latency.to_string(),
        about: about.replace('`', ""),
    });
    settings.chain(delays).collect()
}

/// Formats a choice as a configuration has it.
fn written(choice: impl serde::Serialize) -> String {
    let written = serde_json::to_value(choice).unwrap_or_default();
    written.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

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
    fn no_parameter_is_left_out() {
        let mut found = Vec::new();
        paths(&serde_json::to_value(Config::default()).unwrap(), "", &mut found);
        let mut listed: Vec<_> = all().into_iter().map(|parameter| parameter.name).collect();
        found.sort();
        listed.sort();
        assert_eq!(listed, found);
        assert!(all().iter().all(|parameter| !parameter.about.is_empty() && !parameter.default.is_empty()));
    }
}
