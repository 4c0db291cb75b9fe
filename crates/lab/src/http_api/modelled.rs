//! Object fields that the embedded cluster acts on. Any other field set by a client is stored and reported, with a
//! warning in the response, as from a real API server, and with an event on the object.
//!
//! The table is an allowlist: any field that it does not list is not modelled.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::Value;

use super::super::network::Network;
use super::super::registry::{EventType, NOT_MODELLED};
use super::super::resource::Resource;
use super::super::schema::{self, Structure};
use super::super::shared::ClusterContext;
use super::super::value::is_empty;

const NOTHING: &str = "it has no effect";

/// Consequences of not modelling a field, by structure and field.
type Consequences = BTreeMap<&'static str, &'static str>;

/// Contents of `modelled.txt`.
#[derive(Debug, Default)]
struct ModelledFields {
    /// Modelled fields by structure.
    fields: BTreeMap<&'static str, BTreeMap<&'static str, Extent>>,
    /// Consequences for fields that are not modelled.
    consequences: Consequences,
    /// Consequences on the userspace dataplane for fields that only the kernel dataplane acts on.
    kernel_only: Consequences,
}

/// Modelled part of a field: all of it, only some values, or the fields that the table lists for its structure.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Extent {
    All,
    Values(Vec<&'static str>),
    Below,
}

static TABLE: LazyLock<ModelledFields> = LazyLock::new(|| {
    let mut table = ModelledFields::default();
    for line in include_str!("modelled.txt").lines().filter(|line| !line.starts_with('#')) {
        let (key, rest) = line.split_once(' ').unwrap_or((line, ""));
        if let Some(field) = key.strip_prefix('!') {
            table.consequences.insert(field, rest);
        } else if let Some(field) = key.strip_prefix('@') {
            table.kernel_only.insert(field, rest);
        } else {
            table.fields.entry(key).or_default().extend(rest.split(' ').map(parse_field));
        }
    }
    table
});

fn parse_field(word: &'static str) -> (&'static str, Extent) {
    match word.split_once('=') {
        Some((field, values)) => (field, Extent::Values(values.split('|').collect())),
        None => word.strip_suffix('*').map_or((word, Extent::Below), |field| (field, Extent::All)),
    }
}

/// Records an event on `object` about fields that a client has set but the cluster does not model. Fields that were set
/// `before` are skipped. Returns a sentence for each reported field.
pub(super) fn record(
    shared: &ClusterContext,
    resource: Resource,
    before: Option<&Value>,
    object: &Value,
) -> Vec<String> {
    let kernel_only = match shared.network {
        Network::Userspace => &TABLE.kernel_only,
        Network::Kernel(_) => &BTreeMap::new(),
    };
    let mut new = not_modelled(resource, object, kernel_only);
    if let Some(before) = before.filter(|_| !new.is_empty()) {
        let known = not_modelled(resource, before, kernel_only);
        new.retain(|path, _| !known.contains_key(path));
    }
    if new.is_empty() {
        return Vec::new();
    }
    let said: Vec<_> = new
        .iter()
        .map(|(path, consequence)| format!("the embedded cluster does not model {path}: {consequence}"))
        .collect();
    shared.registry.record_event(
        object,
        EventType::Warning,
        NOT_MODELLED,
        &said.join("; "),
        "embedded-cluster",
    );
    said
}

/// Returns the paths of all fields in `object` that are not modelled, with the consequences. Fields in `not_here` also
/// count as not modelled.
fn not_modelled(
    resource: Resource,
    object: &Value,
    not_here: &Consequences,
) -> BTreeMap<String, &'static str> {
    let top = schema::of(resource);
    let mut search = UnmodelledSearch { not_here, found: BTreeMap::new() };
    // Skip kinds missing from the table, because the cluster itself writes them or only other programs read them.
    if TABLE.fields.contains_key(top.name)
        && let Some(map) = object.as_object()
    {
        let asked = map
            .iter()
            .filter(|(name, _)| !["apiVersion", "kind", "metadata", "status"].contains(&name.as_str()));
        search.look(top, asked, "");
    }
    search.found
}

/// Search for fields that are not modelled.
struct UnmodelledSearch<'a> {
    /// Fields that this dataplane does not model, with the consequences.
    not_here: &'a Consequences,
    found: BTreeMap<String, &'static str>,
}

impl UnmodelledSearch<'_> {
    fn look<'a>(
        &mut self,
        of: &Structure,
        fields: impl IntoIterator<Item = (&'a String, &'a Value)>,
        path: &str,
    ) {
        let modelled = TABLE.fields.get(of.name);
        for (name, value) in fields {
            let Some(field) = of.fields.get(name.as_str()) else { continue };
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let key = format!("{}.{name}", of.name);
            let not_here = self.not_here.get(key.as_str()).copied();
            let is_modelled = match modelled.and_then(|fields| fields.get(name.as_str())) {
                _ if is_empty(value) => true,
                None => false,
                Some(_) if not_here.is_some() => false,
                Some(Extent::All) => true,
                Some(Extent::Values(values)) => is_one_of(value, values),
                Some(Extent::Below) => {
                    schema::each_structure(&field.kind, value, &path, &mut |of, object, path| {
                        self.look(of, object.as_object().into_iter().flatten(), path);
                    });
                    true
                }
            };
            if !is_modelled {
                let means = not_here.or_else(|| TABLE.consequences.get(key.as_str()).copied());
                self.found.insert(path, means.unwrap_or(NOTHING));
            }
        }
    }
}

fn is_one_of(value: &Value, values: &[&str]) -> bool {
    match value {
        Value::Array(list) => list.iter().all(|value| is_one_of(value, values)),
        value => value.as_str().is_some_and(|text| values.contains(&text)),
    }
}

#[cfg(test)]
mod tests {
    use crate::schema::FieldType;
    use rolldrop_record::Clock;
    use serde_json::json;

    use super::*;
    use crate::address_block::AddressBlock;
    use crate::registry::Registry;

    fn paths(resource: Resource, object: Value) -> Vec<String> {
        not_modelled(resource, &object, &BTreeMap::new()).into_keys().collect()
    }

    #[test]
    fn modelled_table_matches_schema() {
        let field = |structure: &str, field: &str| {
            let structure = schema::named(structure).unwrap_or_else(|| panic!("no {structure}"));
            structure
                .fields
                .get(field)
                .unwrap_or_else(|| panic!("no {}.{field}", structure.name))
                .kind
                .clone()
        };
        for (structure, fields) in &TABLE.fields {
            for (name, extent) in fields {
                let mut kind = field(structure, name);
                while let FieldType::List(element) = kind {
                    kind = *element;
                }
                if let (FieldType::Structure(index), Extent::Below) = (&kind, extent) {
                    let below = schema::structure(*index).name;
                    assert!(TABLE.fields.contains_key(below), "{structure}.{name}: nothing covers {below}");
                }
            }
        }
        for key in TABLE.kernel_only.keys() {
            let (structure, name) = key.split_once('.').unwrap();
            field(structure, name);
            assert!(TABLE.fields[structure].contains_key(name), "{key} is modelled nowhere");
        }
        for key in TABLE.consequences.keys() {
            let (structure, name) = key.split_once('.').unwrap();
            field(structure, name);
            let is_modelled =
                TABLE.fields[structure].get(name).is_some_and(|extent| !matches!(extent, Extent::Values(_)));
            assert!(!is_modelled, "{key} is modelled");
        }
        let text = include_str!("modelled.txt");
        assert_eq!(
            TABLE.consequences.len(),
            text.matches(
                "
!"
            )
            .count()
        );
    }

    #[test]
    fn defaults_are_never_reported_as_unmodelled() {
        let registry = Registry::new(
            Clock::start(),
            AddressBlock::claim(rand::random_range(0..128)).unwrap(),
            "".into(),
        );
        let create = |resource: Resource, namespace: &str, object: Value| {
            registry.create(resource, namespace, object).unwrap()
        };
        create(Resource::Namespaces, "", json!({"metadata": {"name": "default"}}));
        let labels = json!({"app": "web"});
        let pod = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "app", "image": "rolldrop"}]}});
        let mut job = pod.clone();
        job["spec"]["restartPolicy"] = json!("Never");
        let workload = json!({"selector": {"matchLabels": labels}, "template": pod});
        for (resource, spec) in [
            (Resource::Pods, pod["spec"].clone()),
            (Resource::Services, json!({"selector": labels, "ports": [{"port": 80}]})),
            (Resource::Deployments, workload.clone()),
            (Resource::ReplicaSets, workload.clone()),
            (Resource::StatefulSets, workload.clone()),
            (Resource::DaemonSets, workload),
            (Resource::Jobs, json!({"template": job})),
            (
                Resource::PodDisruptionBudgets,
                json!({"selector": {"matchLabels": labels}, "maxUnavailable": 1}),
            ),
        ] {
            let created = create(resource, "default", json!({"metadata": {"name": "web"}, "spec": spec}));
            assert_eq!(
                not_modelled(resource, &created, &TABLE.kernel_only),
                BTreeMap::new(),
                "{}",
                resource.kind()
            );
        }
    }

    #[test]
    fn unmodelled_fields_are_reported_by_path() {
        let spec = json!({
            "securityContext": {},
            "hostNetwork": false,
            "topologySpreadConstraints": [{"maxSkew": 1}],
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}},
            "containers": [
                {"name": "a", "resources": {"requests": {"cpu": "1"}}},
                {"name": "b", "resources": {"limits": {"memory": "1Gi"}}},
            ],
        });
        let below = |holder: &str| {
            ["affinity.podAntiAffinity", "containers[1].resources.limits", "topologySpreadConstraints"]
                .map(|field| format!("{holder}.{field}"))
        };
        assert_eq!(paths(Resource::Pods, json!({"spec": spec.clone()})), below("spec"));
        let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": spec});
        let deployment = json!({"spec": {"template": template}});
        assert_eq!(paths(Resource::Deployments, deployment), below("spec.template.spec"));
        assert_eq!(
            paths(Resource::Jobs, json!({"spec": {"backoffLimitPerIndex": 1}})),
            ["spec.backoffLimitPerIndex"]
        );
        let service = json!({"spec": {
            "type": "LoadBalancer", "sessionAffinity": "ClientIP", "ipFamilies": ["IPv4", "IPv6"],
            "ports": [{"port": 80, "protocol": "SCTP"}],
        }});
        assert_eq!(
            paths(Resource::Services, service),
            ["spec.ipFamilies", "spec.ports[0].protocol", "spec.type"]
        );
        let named =
            json!({"spec": {"hostname": "db", "hostAliases": [{"ip": "10.0.0.9", "hostnames": ["old"]}]}});
        assert!(paths(Resource::Pods, named.clone()).is_empty());
        let on_userspace = not_modelled(Resource::Pods, &named, &TABLE.kernel_only);
        assert_eq!(on_userspace.into_keys().collect::<Vec<_>>(), ["spec.hostAliases", "spec.hostname"]);
        assert!(paths(Resource::Nodes, json!({"spec": {"podCIDR": "10.0.0.0/24"}})).is_empty());
    }
}
