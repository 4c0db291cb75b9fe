//! A run's changes to its scenario's manifests: the sidecar, if the scenario asks for it, and an image that the cluster
//! can pull.

use std::collections::BTreeSet;

use serde_json::Value;

use super::admin_secret::{AdminSecret, random_token};
use super::error::RunError;
use crate::plan::bystanders::{Bystander, refuse_shared};
use rolldrop_record::wire::AdminToken;
use rolldrop_scenario::{Place, Scenario};
use rolldrop_sidecar::inject::{self, InjectError};

/// Adds the sidecar, if the scenario asks for it, and returns the Secret with its token. Generates a token if there
/// is none.
pub(super) fn inject_sidecar(
    scenario: &mut Scenario,
    token: &mut Option<AdminToken>,
    note: impl Fn(&str),
) -> Result<Option<AdminSecret>, RunError> {
    if !scenario.inject_sidecar {
        return Ok(None);
    }
    let secret = AdminSecret::new(token.get_or_insert_with(random_token).clone());
    // Services refer to the port by number, which every version with native sidecars accepts.
    let kubernetes = inject::KubernetesVersion::NATIVE_SIDECARS;
    let options = inject::InjectOptions::of_a_run("rolldrop".into(), kubernetes, secret.key.clone());
    let is_meant = meant(scenario);
    let (meant, others): (Vec<_>, Vec<_>) =
        scenario.manifests.iter().cloned().enumerate().partition(|(place, _)| is_meant[*place]);
    let (places, mut objects): (Vec<usize>, Vec<Value>) = meant.into_iter().unzip();
    match inject::inject_into(&mut objects, &options) {
        // Live pods get the sidecar in this case.
        Err(InjectError::NoWorkload { .. }) => {}
        injected => {
            let injected = injected.map_err(RunError::failed("spec.sidecar.inject"))?;
            injected.left.iter().for_each(|left| note(left));
        }
    }
    let bystanders: Vec<Bystander> = others.iter().filter_map(|(_, other)| Bystander::of(other)).collect();
    let manifests = &scenario.manifests;
    let changed = places.iter().zip(&objects).filter(|(place, object)| manifests[**place] != **object);
    let rerouted = changed.map(|(_, object)| object).filter(|object| object["kind"] == "Service");
    refuse_shared(rerouted, &bystanders).map_err(RunError::failed("spec.sidecar.inject"))?;
    for (place, object) in places.into_iter().zip(objects) {
        scenario.manifests[place] = object;
    }
    Ok(Some(secret))
}

/// Returns, for each manifest, true if it may get the sidecar. If workloads are named, they are the only manifests with
/// pods that may get it. Otherwise, if a URL leads to Services of the scenario, only the workloads behind those
/// Services may get it, but not a gateway in front of them.
fn meant(scenario: &Scenario) -> Vec<bool> {
    let manifests = &scenario.manifests;
    let (mut services, mut behind) = (BTreeSet::new(), BTreeSet::new());
    for target in &scenario.targets {
        match &target.place {
            Place::Service { name, .. } => _ = services.insert(name.clone()),
            Place::Url(url) => behind.extend(crate::plan::services_behind_in(url, manifests)),
        }
    }
    let is_anything_meant = behind.is_empty();
    services.append(&mut behind);
    let is_one = |service: &Value| {
        service["kind"] == "Service"
            && service["metadata"]["name"].as_str().is_some_and(|name| services.contains(name))
    };
    let meant: Vec<&Value> = manifests.iter().filter(|object| is_one(object)).collect();
    let is_selected = |labels: &Value| meant.iter().any(|service| inject::selects(service, labels));
    let is_meant = |object: &Value| match inject::pod_labels(object) {
        None => true,
        Some(_) if !scenario.sidecar_workloads.is_empty() => {
            scenario.sidecar_workloads.iter().any(|workload| workload.is(object))
        }
        Some(labels) => is_anything_meant || is_selected(labels),
    };
    manifests.iter().map(is_meant).collect()
}

/// Replaces the image `rolldrop` with `image` in the containers of any object with a pod template, and where the
/// sidecar's image is stored.
pub(super) fn replace_image(object: &mut Value, image: &str) {
    match object {
        Value::Object(map) => {
            for (key, value) in map {
                if (key == "image" || key == inject::SIDECAR) && value == "rolldrop" {
                    *value = image.into();
                } else {
                    replace_image(value, image);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| replace_image(item, image)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Returns the workloads that get the sidecar, out of a gateway with its Service and an app with an Ingress.
    fn injected(sidecar: &str, target: &str) -> Vec<String> {
        injected_with(sidecar, target, "gateway").expect("the sidecar")
    }

    /// Like [`injected`], with this label of the gateway's pods.
    fn injected_with(sidecar: &str, target: &str, gateway: &str) -> Result<Vec<String>, RunError> {
        let yaml = format!(
            "
apiVersion: rolldrop.dev/v1
kind: Scenario
metadata: {{name: shop}}
spec:
  cluster: {{embedded: {{nodes: 1}}}}
  sidecar: {sidecar}
  target: {target}
  load: {{rate: 1, duration: 1s}}
  manifests:
    - inline: {{apiVersion: apps/v1, kind: Deployment, metadata: {{name: web}}, spec: {{selector: {{matchLabels: {{app: web}}}}, template: {{metadata: {{labels: {{app: web}}}}, spec: {{containers: [{{name: app, image: rolldrop, ports: [{{containerPort: 8080}}]}}]}}}}}}}}
    - inline: {{apiVersion: v1, kind: Service, metadata: {{name: web}}, spec: {{selector: {{app: web}}, ports: [{{port: 80, targetPort: 8080}}]}}}}
    - inline: {{apiVersion: apps/v1, kind: Deployment, metadata: {{name: gateway}}, spec: {{selector: {{matchLabels: {{app: gateway}}}}, template: {{metadata: {{labels: {{app: {gateway}}}}}, spec: {{containers: [{{name: app, image: nginx, ports: [{{containerPort: 8000}}]}}]}}}}}}}}
    - inline: {{apiVersion: v1, kind: Service, metadata: {{name: gateway}}, spec: {{selector: {{app: gateway}}, ports: [{{port: 8000}}]}}}}
    - inline: {{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {{name: web}}, spec: {{rules: [{{http: {{paths: [{{path: /, pathType: Prefix, backend: {{service: {{name: web, port: {{number: 80}}}}}}}}]}}}}]}}}}
"
        );
        let parsed = rolldrop_scenario::parse::<serde_json::Value>(&yaml, "shop.yaml", ".".as_ref(), &[]);
        let mut scenario = parsed.expect("a scenario").scenario;
        inject_sidecar(&mut scenario, &mut None, |_| {})?;
        let has_it = |object: &&Value| object["spec"]["template"]["spec"]["initContainers"].is_array();
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        Ok(scenario.manifests.iter().filter(has_it).map(name).collect())
    }

    #[test]
    fn left_out_workload_forbids_shared_service() {
        let web = "{inject: true, workloads: [deployment/web]}";
        let error = injected_with(web, "{service: web}", "web").unwrap_err().in_words();
        let why = "Service web also routes to Deployment gateway, which gets no sidecar";
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn gateway_in_front_gets_no_sidecar() {
        let url = "{url: \"http://10.96.200.200:8000/\"}";
        assert_eq!(injected("{inject: true}", url), ["web"]);
        assert_eq!(injected("{inject: true, workloads: [deployment/web]}", url), ["web"]);
        assert_eq!(injected("{inject: true, workloads: [deployment/gateway]}", url), ["gateway"]);
        assert_eq!(injected("{inject: true}", "{service: web}"), ["web", "gateway"]);
    }

    #[test]
    fn image_override_keeps_other_images() {
        let mut pod =
            json!({"spec": {"containers": [{"image": "rolldrop"}, {"image": "nginx"}], "image": 1}});
        replace_image(&mut pod, "example.org/rolldrop:1");
        let expected = json!({"spec": {
            "containers": [{"image": "example.org/rolldrop:1"}, {"image": "nginx"}], "image": 1
        }});
        assert_eq!(pod, expected);
    }
}
