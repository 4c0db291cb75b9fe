//! NetworkPolicies that admit clients to the app's port, but not to the sidecar's.
//!
//! A policy sees the pod's port, not the Service's. Clients would be shut out, while the kubelet's probes still reach the
//! app, so the pods would look healthy.

use serde_json::Value;

use super::annotated_object::{self, template};
use super::container::{self, Front};
use super::options::InjectError;
use super::port::{declared, is_tcp};
use rolldrop_manifest::ManifestObject;

/// NetworkPolicies among the objects.
pub(super) struct NetworkPolicies<'a>(Vec<&'a ManifestObject>);

impl<'a> NetworkPolicies<'a> {
    pub(super) fn among(objects: &'a [ManifestObject]) -> Self {
        let is_policy = |object: &&ManifestObject| {
            let version = object.value["apiVersion"].as_str().unwrap_or_default();
            version.starts_with("networking.k8s.io/") && object.value["kind"] == "NetworkPolicy"
        };
        Self(objects.iter().filter(is_policy).collect())
    }

    /// Returns the reason why a workload's clients would be shut out, with a remedy; `None` if they would not.
    pub(super) fn shut_out(&self, workload: &ManifestObject, pod: &str, front: &Front) -> Option<String> {
        let labels = workload.get(&format!("{pod}/metadata/labels"));
        let is_meant = |policy: &&&ManifestObject| {
            let spec = &policy.value["spec"];
            let types = spec["policyTypes"].as_array().filter(|types| !types.is_empty());
            policy.namespace() == workload.namespace()
                && types.is_none_or(|types| types.contains(&"Ingress".into()))
                && matches_labels(&spec["podSelector"], labels)
        };
        let policies: Vec<&ManifestObject> = self.0.iter().filter(is_meant).copied().collect();
        let rules =
            |policy: &'a ManifestObject| policy.value["spec"]["ingress"].as_array().into_iter().flatten();
        let Front { app_port, moved_name, ports, .. } = front;
        let moved = moved_name.as_deref();
        let declared = declared(workload, pod);
        let names: Vec<&str> = declared
            .iter()
            .filter(|port| port.number == *app_port)
            .filter_map(|port| port.name.as_deref())
            .filter(|name| Some(*name) != moved)
            .collect();
        let admitting: Vec<&Value> = policies
            .iter()
            .flat_map(|policy| rules(policy))
            .filter(|rule| admits(rule, ports.listen, moved.as_slice()))
            .collect();
        let is_shut_out = |rule: &Value| {
            let is_admitted = |peer: Option<&Value>| admitting.iter().any(|rule| admits_peer(rule, peer));
            let all_are = match peers(rule) {
                Some(peers) => peers.iter().all(|peer| is_admitted(Some(peer))),
                None => is_admitted(None),
            };
            admits(rule, *app_port, &names) && !all_are
        };
        let policy = policies.iter().find(|policy| rules(policy).any(is_shut_out))?;
        let (title, listen) = (policy.title(), ports.listen);
        Some(format!(
            "{title} admits clients to port {app_port} but not to the sidecar's port {listen}: add port {listen} to the \
             policy's rule"
        ))
    }
}

/// Refuses workloads with the sidecar whose clients these NetworkPolicies would shut out.
///
/// # Errors
///
/// Fails with one line for each of these workloads.
pub fn refuse_network_policies(workloads: &[Value], policies: &[Value]) -> Result<(), InjectError> {
    let (workloads, policies) = (annotated_object::all(workloads), annotated_object::all(policies));
    let policies = NetworkPolicies::among(&policies);
    let reason = |workload: &ManifestObject| {
        let pod = template(&workload.value)?;
        let front = container::front(workload, pod)?;
        Some(format!("{}: {}", workload.title(), policies.shut_out(workload, pod, &front)?))
    };
    let reasons: Vec<String> = workloads.iter().filter_map(reason).collect();
    if reasons.is_empty() { Ok(()) } else { Err(InjectError::Refused(reasons)) }
}

/// Returns true if a rule admits its peers to a port with this number and these names.
fn admits(rule: &Value, number: u16, names: &[&str]) -> bool {
    let Some(ports) = rule["ports"].as_array().filter(|ports| !ports.is_empty()) else { return true };
    ports.iter().filter(|port| is_tcp(port)).any(|port| match &port["port"] {
        Value::Null => true,
        Value::String(name) => names.contains(&name.as_str()),
        first => {
            let last = port["endPort"].as_u64().or_else(|| first.as_u64());
            first.as_u64().is_some_and(|first| first <= number.into()) && last >= Some(number.into())
        }
    })
}

/// Returns the peers that a rule admits; `None` if it admits all.
fn peers(rule: &Value) -> Option<&Vec<Value>> {
    rule["from"].as_array().filter(|peers| !peers.is_empty())
}

/// Returns true if a rule admits a peer of another rule; `None` stands for all peers.
fn admits_peer(rule: &Value, peer: Option<&Value>) -> bool {
    peers(rule).is_none_or(|peers| peer.is_some_and(|peer| peers.contains(peer)))
}

/// Returns true if a label selector selects these labels.
fn matches_labels(selector: &Value, labels: &Value) -> bool {
    let fits = |expression: &Value| {
        let label = labels.get(expression["key"].as_str().unwrap_or_default());
        let is_listed =
            |label: &Value| expression["values"].as_array().is_some_and(|all| all.contains(label));
        match expression["operator"].as_str() {
            Some("In") => label.is_some_and(is_listed),
            Some("NotIn") => !label.is_some_and(is_listed),
            Some("Exists") => label.is_some(),
            Some("DoesNotExist") => label.is_none(),
            _ => false,
        }
    };
    let mut pairs = selector["matchLabels"].as_object().into_iter().flatten();
    let mut expressions = selector["matchExpressions"].as_array().into_iter().flatten();
    pairs.all(|(key, value)| labels.get(key) == Some(value)) && expressions.all(fits)
}
