//! Sources of access logs, as given on the command line.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use rolldrop_kubernetes::guard::object_names::{is_dns_label, is_dns_subdomain};
use rolldrop_scenario::Workload;

/// Source of access logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogSource {
    /// One container in each of several pods.
    Pods {
        /// Namespace.
        namespace: String,
        /// The pods.
        pods: LogPods,
        /// Name of the container; `None` for the pod's first one.
        container: Option<String>,
    },
    /// A local file.
    File(PathBuf),
}

/// Pods whose logs are followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogPods {
    /// The pods of a workload, including those that it creates later.
    Of(Workload),
    /// The pod with this name.
    Named(String),
}

impl fmt::Display for LogPods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Of(Workload { kind, name }) => write!(f, "{}/{name}", format!("{kind:?}").to_lowercase()),
            Self::Named(name) => write!(f, "pod/{name}"),
        }
    }
}

impl fmt::Display for LogSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pods { namespace, pods, container: None } => write!(f, "{namespace}/{pods}"),
            Self::Pods { namespace, pods, container: Some(name) } => write!(f, "{namespace}/{pods}:{name}"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl FromStr for LogSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_file = ["/", "./", "../"].iter().any(|start| text.starts_with(start));
        if is_file || (!text.is_empty() && !text.contains('/')) {
            return Ok(Self::File(text.into()));
        }
        let form = || {
            format!(
                "{text:?} is not a log source: use NAMESPACE/KIND/NAME or NAMESPACE/KIND/NAME:CONTAINER, where KIND \
                 is deployment, statefulset, daemonset or pod; or a file, as /PATH or ./PATH"
            )
        };
        let (object, container) =
            text.split_once(':').map_or((text, None), |(object, name)| (object, Some(name)));
        let parts: Vec<&str> = object.split('/').collect();
        let [namespace, kind, name] = parts[..] else { return Err(form()) };
        if !is_dns_label(namespace) {
            return Err(format!("{text:?}: {namespace:?} is not a valid namespace"));
        }
        if !is_dns_subdomain(name) {
            return Err(format!("{text:?}: {name:?} is not a valid name"));
        }
        if let Some(container) = container.filter(|container| !is_dns_label(container)) {
            return Err(format!("{text:?}: {container:?} is not a valid container name"));
        }
        let pods = if kind.eq_ignore_ascii_case("pod") {
            LogPods::Named(name.to_owned())
        } else {
            LogPods::Of(format!("{kind}/{name}").parse().map_err(|_| form())?)
        };
        Ok(Self::Pods { namespace: namespace.to_owned(), pods, container: container.map(str::to_owned) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rolldrop_scenario::WorkloadKind;

    #[test]
    fn log_source_names_pods_or_file() {
        let of = |kind, name: &str| LogPods::Of(Workload { kind, name: name.to_owned() });
        for (text, namespace, pods, container) in [
            ("envoy/deployment/proxy", "envoy", of(WorkloadKind::Deployment, "proxy"), None),
            ("edge/DaemonSet/a.b:nginx", "edge", of(WorkloadKind::DaemonSet, "a.b"), Some("nginx")),
            ("edge/statefulset/web", "edge", of(WorkloadKind::StatefulSet, "web"), None),
            ("edge/pod/web-0:app", "edge", LogPods::Named("web-0".to_owned()), Some("app")),
        ] {
            let container = container.map(str::to_owned);
            let expected = LogSource::Pods { namespace: namespace.to_owned(), pods, container };
            assert_eq!(expected.to_string(), text.to_lowercase());
            assert_eq!(text.parse(), Ok(expected));
        }
        for file in ["/var/log/nginx/access.log", "./a/deployment/b", "../x", "access.log"] {
            assert_eq!(file.parse(), Ok(LogSource::File(file.into())));
            assert_eq!(LogSource::File(file.into()).to_string(), file);
        }
    }

    #[test]
    fn wrong_log_source_is_explained() {
        for (text, why) in [
            ("", "is not a log source"),
            ("deployment/envoy", "use NAMESPACE/KIND/NAME"),
            ("logs/nginx/access.log", "or a file, as /PATH or ./PATH"),
            ("edge/service/web", "where KIND is deployment, statefulset, daemonset or pod"),
            ("Edge/pod/web", "\"Edge\" is not a valid namespace"),
            ("edge/pod/", "\"\" is not a valid name"),
            ("edge/pod/web:", "\"\" is not a valid container name"),
            ("edge/pod/web:a/b", "\"a/b\" is not a valid container name"),
        ] {
            let said = text.parse::<LogSource>().unwrap_err();
            assert!(said.contains(why), "{said}");
        }
    }
}
