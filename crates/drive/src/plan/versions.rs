//! Features in manifests that not every version of Kubernetes has. They are checked so that a run fails before it
//! starts, and not in the middle of a deployment. An API server drops unknown fields, and then refuses or misinterprets
//! the rest.
//!
//! Each version is the first with the feature enabled by default or, if there is none, the first that has it, according
//! to pkg/features/kube_features.go in v1.36. A gate that was changed by hand is not detected.

use serde_json::Value;

use crate::error::{CoordinatorError, Result};
use rolldrop_sidecar::inject::{KubernetesVersion, selects};

/// Oldest supported version of Kubernetes.
const OLDEST: KubernetesVersion = KubernetesVersion::minor(29);

/// Gate `PodLifecycleSleepAction` (KEP-3960): alpha in 1.29, beta in 1.30.
const SLEEP: KubernetesVersion = KubernetesVersion::minor(30);
/// Gate `PodLifecycleSleepActionAllowZero` (KEP-4818): alpha in 1.32, beta in 1.33.
const ZERO_SLEEP: KubernetesVersion = KubernetesVersion::minor(33);
/// Gate `ContainerStopSignals` (KEP-4960): alpha in 1.33, and still in 1.36.
const STOP_SIGNAL: KubernetesVersion = KubernetesVersion::minor(33);

/// Paths to the pod specification in objects.
const POD_SPECS: [&str; 3] = ["/spec/template/spec", "/spec/jobTemplate/spec/template/spec", "/spec"];

/// A feature that the server needs, and the place where the manifests use it.
struct VersionNeed {
    since: KubernetesVersion,
    what: String,
}

/// Checks that a server of this version supports everything that the manifests use. Returns warnings.
///
/// # Errors
/// Fails if the server does not; the error names what is missing, and what to write instead.
pub(crate) fn check(manifests: &[Value], version: &str) -> Result<Vec<String>> {
    // A version in another format is inconclusive; the server decides.
    let Ok(version) = version.parse::<KubernetesVersion>() else { return Ok(Vec::new()) };
    let mut lacking: Vec<String> = Vec::new();
    for need in needs(manifests).into_iter().filter(|need| version < need.since) {
        if !lacking.contains(&need.what) {
            lacking.push(need.what);
        }
    }
    if !lacking.is_empty() {
        return Err(CoordinatorError::TooOld { version, lacking });
    }
    let warn = || format!("the cluster runs Kubernetes {version}; rolldrop supports {OLDEST} and later");
    Ok((version < OLDEST).then(warn).into_iter().collect())
}

fn needs(manifests: &[Value]) -> Vec<VersionNeed> {
    let mut needs = Vec::new();
    for manifest in manifests {
        let spec =
            POD_SPECS.iter().find_map(|at| manifest.pointer(at).filter(|s| s["containers"].is_array()));
        let Some(spec) = spec else { continue };
        let title = title(manifest);
        for container in each(&spec["initContainers"]).chain(each(&spec["containers"])) {
            let at = format!("{title}, container {}", text(&container["name"]));
            of_container(container, &at, &mut needs);
        }
    }
    let services = manifests.iter().filter(|manifest| manifest["kind"] == "Service");
    needs.extend(services.filter_map(|service| named_sidecar_port(service, manifests)));
    needs
}

fn of_container(container: &Value, at: &str, needs: &mut Vec<VersionNeed>) {
    let mut need = |since, what: String| needs.push(VersionNeed { since, what });
    if container["restartPolicy"] == "Always" {
        let since = KubernetesVersion::NATIVE_SIDECARS;
        need(since, format!("{at}: native sidecars (restartPolicy: Always) need {since}"));
    }
    let lifecycle = &container["lifecycle"];
    for hook in ["preStop", "postStart"] {
        match &lifecycle[hook]["sleep"]["seconds"] {
            Value::Null => {}
            seconds if *seconds == 0 => {
                need(ZERO_SLEEP, format!("{at}: a {hook} sleep of 0 s needs {ZERO_SLEEP}; remove the hook"))
            }
            seconds => need(
                SLEEP,
                format!(
                    "{at}: a {hook} sleep needs {SLEEP}; use exec: {{command: [sleep, \"{seconds}\"]}}, with an \
                     image that has sleep"
                ),
            ),
        }
    }
    if !lifecycle["stopSignal"].is_null() {
        let instead = "set STOPSIGNAL in the image";
        need(STOP_SIGNAL, format!("{at}: lifecycle.stopSignal needs {STOP_SIGNAL}; {instead}"));
    }
}

/// Returns the version that a Service needs if its target port is named only in native sidecars of its pods.
fn named_sidecar_port(service: &Value, manifests: &[Value]) -> Option<VersionNeed> {
    let templates = manifests.iter().map(|manifest| &manifest["spec"]["template"]);
    let pods: Vec<_> =
        templates.filter(|template| selects(service, &template["metadata"]["labels"])).collect();
    let names = |containers: &Value, name: &str| {
        each(containers).flat_map(|container| each(&container["ports"])).any(|port| port["name"] == name)
    };
    let is_sidecars = |name: &str| {
        let mut specs = pods.iter().map(|template| &template["spec"]);
        specs.any(|spec| !names(&spec["containers"], name) && names(&spec["initContainers"], name))
    };
    let mut targets = each(&service["spec"]["ports"]).filter_map(|port| port["targetPort"].as_str());
    let name = targets.find(|name| is_sidecars(name))?;
    let since = KubernetesVersion::NAMED_SIDECAR_PORTS;
    let what = format!(
        "{}: a native sidecar's port ({name}) as target port needs {since}; use the port's number",
        title(service)
    );
    Some(VersionNeed { since, what })
}

fn title(manifest: &Value) -> String {
    format!("{} {}", text(&manifest["kind"]), text(&manifest["metadata"]["name"]))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn each(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn web(sidecar: Value, lifecycle: Value) -> Value {
        let template = json!({
            "metadata": {"labels": {"app": "web"}},
            "spec": {
                "initContainers": [sidecar],
                "containers": [{"name": "app", "lifecycle": lifecycle, "ports": [{"name": "app"}]}],
            },
        });
        json!({"kind": "Deployment", "metadata": {"name": "web"}, "spec": {"template": template}})
    }

    fn sidecar() -> Value {
        json!({"name": "proxy", "restartPolicy": "Always", "ports": [{"name": "http"}]})
    }

    /// Returns the first minor version of Kubernetes that has everything the manifests use, and the error for the
    /// version before it.
    fn since(manifests: &[Value]) -> (u32, String) {
        let old = |minor: &u32| check(manifests, &format!("v1.{minor}.3-gke.1")).is_err();
        let last = (20..40).rev().find(old).expect("one that is too old");
        assert!((20..=last).all(|minor| old(&minor)), "no gaps");
        (last + 1, check(manifests, &format!("v1.{last}.0")).unwrap_err().to_string())
    }

    #[test]
    fn unsupported_feature_error_names_alternative() {
        let plain = json!({"name": "init"});
        let hook = |hook: &str, handler: Value| {
            web(plain.clone(), json!({hook: handler, "postStart": {"exec": {"command": ["true"]}}}))
        };
        let (minor, why) = since(&[web(sidecar(), Value::Null)]);
        assert_eq!(minor, 29);
        assert_eq!(
            why,
            "the cluster runs Kubernetes 1.28, which is too old for this scenario: Deployment web, container \
             proxy: native sidecars (restartPolicy: Always) need 1.29"
        );
        let (minor, why) = since(&[hook("preStop", json!({"sleep": {"seconds": 5}}))]);
        assert_eq!(minor, 30);
        assert!(why.contains("a preStop sleep needs 1.30; use exec: {command: [sleep, \"5\"]}"), "{why}");
        let (minor, why) = since(&[hook("preStop", json!({"sleep": {"seconds": 0}}))]);
        assert_eq!(minor, 33);
        assert!(why.contains("a preStop sleep of 0 s needs 1.33"), "{why}");
        assert_eq!(since(&[hook("stopSignal", json!("SIGQUIT"))]).0, 33);
        let service = |target: &str| {
            json!({"kind": "Service", "metadata": {"name": "web"},
                "spec": {"selector": {"app": "web"}, "ports": [{"targetPort": target}]}})
        };
        let (minor, why) = since(&[web(sidecar(), Value::Null), service("http")]);
        assert_eq!(minor, 33);
        assert!(
            why.ends_with(
                "Service web: a native sidecar's port (http) as target port needs 1.33; use the port's number"
            ),
            "{why}"
        );
        assert_eq!(since(&[web(sidecar(), Value::Null), service("app")]).0, 29);
        let job = json!({"kind": "CronJob", "metadata": {"name": "j"},
            "spec": {"jobTemplate": {"spec": web(sidecar(), Value::Null)["spec"]}}});
        assert_eq!(since(&[job]).0, 29);
    }

    #[test]
    fn only_old_server_raises_warning() {
        let plain = [web(json!({"name": "init"}), Value::Null), json!({"kind": "Service"})];
        assert_eq!(check(&plain, "v1.29.0").unwrap(), Vec::<String>::new());
        assert_eq!(
            check(&plain, "v1.28.15+k3s1").unwrap(),
            ["the cluster runs Kubernetes 1.28; rolldrop supports 1.29 and later"]
        );
        assert!(check(&[web(sidecar(), Value::Null)], "v2.0.0").unwrap().is_empty());
    }
}
