//! A StatefulSet's pods: their ordinals, names and volumes (pkg/controller/statefulset/stateful_set_utils.go).

use serde_json::{Value, json};

use super::super::pod_control::of_template;
use super::super::pod_template::REVISION_LABEL;
use crate::object_fields::key;
use crate::value::{list, number, text};

const POD_NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";

/// Returns the ordinal in the name of one of the set's pods, or `None` for any other pod.
pub(super) fn ordinal(set: &Value, pod: &Value) -> Option<i64> {
    let (name, pod) = (key(set).1, key(pod).1);
    let (parent, digits) = pod.rsplit_once('-')?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    (parent == name && is_number).then(|| digits.parse().ok())?
}

/// Returns the set's first ordinal.
pub(super) fn first_ordinal(set: &Value) -> i64 {
    number(&set["spec"]["ordinals"]["start"])
}

/// Builds the pod with this ordinal from the set's template.
pub(super) fn new(set: &Value, revision: &str, ordinal: i64) -> Value {
    let (_, set_name) = key(set);
    let name = format!("{set_name}-{ordinal}");
    let mut pod = of_template(set, &format!("{set_name}-"));
    pod["metadata"]["name"] = json!(name);
    let labels = &mut pod["metadata"]["labels"];
    labels[REVISION_LABEL] = json!(revision);
    labels[POD_NAME_LABEL] = json!(name);
    labels[POD_INDEX_LABEL] = json!(ordinal.to_string());
    pod["spec"]["hostname"] = json!(name);
    pod["spec"]["subdomain"] = set["spec"]["serviceName"].clone();
    let claims = list(&set["spec"]["volumeClaimTemplates"]);
    let of_claims = claims.iter().map(|claim| {
        let claim_name = format!("{}-{name}", text(&claim["metadata"]["name"]));
        json!({"name": claim["metadata"]["name"], "persistentVolumeClaim": {"claimName": claim_name}})
    });
    // A claim takes precedence over a volume with the same name in the template.
    let others = list(&pod["spec"]["volumes"]).iter();
    let others =
        others.filter(|volume| claims.iter().all(|claim| claim["metadata"]["name"] != volume["name"]));
    let volumes: Vec<_> = of_claims.chain(others.cloned()).collect();
    if !volumes.is_empty() {
        pod["spec"]["volumes"] = json!(volumes);
    }
    pod
}
