//! Fields of an object that the embedded cluster acts on. Other fields that a client sets are stored, and reported:
//! by a warning in the answer, as an API server warns, and by an event on the object.
//!
//! The table denies by default: a field that is not in it is not modelled.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::Value;

use super::super::network::Network;
use super::super::registry::{EventType, NOT_MODELLED};
use super::super::resource::Resource;
use super::super::schema::{self, Kind, Structure};
use super::super::shared::Shared;

/// The modelled fields of each structure. `field*` includes all fields below it, `field=A|B` only these values; for
/// other structures the fields below have a line of their own. Metadata always counts as modelled, and no client sets
/// the status.
const MODELLED: &str = "
Pod spec
Service spec
Deployment spec
ReplicaSet spec
StatefulSet spec
DaemonSet spec
PersistentVolumeClaim apiVersion kind metadata* spec status*
Job spec
PodDisruptionBudget spec
ClusterRole rules*
DeploymentSpec minReadySeconds paused progressDeadlineSeconds replicas revisionHistoryLimit selector* strategy* template
ReplicaSetSpec minReadySeconds replicas selector* template
StatefulSetSpec minReadySeconds ordinals* podManagementPolicy replicas revisionHistoryLimit selector* serviceName template
StatefulSetSpec persistentVolumeClaimRetentionPolicy updateStrategy* volumeClaimTemplates
StatefulSetPersistentVolumeClaimRetentionPolicy whenDeleted=Retain whenScaled=Retain
DaemonSetSpec minReadySeconds revisionHistoryLimit selector* template updateStrategy*
PersistentVolumeClaimSpec accessModes* volumeMode volumeName
JobSpec activeDeadlineSeconds backoffLimit completionMode completions manualSelector parallelism podReplacementPolicy
JobSpec selector* template ttlSecondsAfterFinished
PodDisruptionBudgetSpec maxUnavailable minAvailable selector* unhealthyPodEvictionPolicy
PodTemplateSpec metadata* spec
PodSpec affinity automountServiceAccountToken containers dnsPolicy=ClusterFirst|Default enableServiceLinks hostPID
PodSpec hostAliases* hostname imagePullSecrets* initContainers nodeName nodeSelector* os* preemptionPolicy=PreemptLowerPriority
PodSpec readinessGates* restartPolicy schedulerName=default-scheduler serviceAccount serviceAccountName shareProcessNamespace subdomain
PodSpec terminationGracePeriodSeconds tolerations* volumes
Affinity nodeAffinity
NodeAffinity requiredDuringSchedulingIgnoredDuringExecution*
Container args* command* env* envFrom* image imagePullPolicy lifecycle livenessProbe* name ports* readinessProbe*
Container resources restartPolicy startupProbe* terminationMessagePath terminationMessagePolicy volumeMounts* workingDir
Lifecycle postStart* preStop* stopSignal
ResourceRequirements requests*
Volume configMap* downwardAPI* emptyDir hostPath* name persistentVolumeClaim* projected* secret*
EmptyDirVolumeSource medium
ServiceSpec allocateLoadBalancerNodePorts clusterIP clusterIPs* externalName externalTrafficPolicy internalTrafficPolicy
ServiceSpec ipFamilies=IPv4 ipFamilyPolicy=SingleStack ports publishNotReadyAddresses selector* sessionAffinity
ServiceSpec sessionAffinityConfig* type=ClusterIP|ExternalName|NodePort
ServicePort appProtocol name nodePort port protocol=TCP|UDP targetPort
";

/// Consequences of the most used fields that are not modelled, by structure and field.
const CONSEQUENCES: [(&str, &str); 27] = [
    ("Affinity.podAffinity", SPREAD),
    ("Affinity.podAntiAffinity", SPREAD),
    ("Container.securityContext", USER),
    ("Container.volumeDevices", "the container has no such device"),
    ("EmptyDirVolumeSource.sizeLimit", "no pod is evicted for it"),
    ("JobSpec.suspend", "the Job runs at once"),
    ("NodeAffinity.preferredDuringSchedulingIgnoredDuringExecution", SPREAD),
    ("PersistentVolumeClaimSpec.resources", CLAIM),
    ("PersistentVolumeClaimSpec.selector", CLAIM),
    ("PersistentVolumeClaimSpec.storageClassName", CLAIM),
    ("PodSpec.activeDeadlineSeconds", "nothing ends the pod then"),
    ("PodSpec.dnsConfig", "names are looked up by the cluster's DNS with its defaults"),
    ("PodSpec.hostNetwork", "the pod has a network and an address of its own"),
    ("PodSpec.priorityClassName", "no pod makes room for it"),
    ("PodSpec.securityContext", USER),
    ("PodSpec.topologySpreadConstraints", SPREAD),
    ("ResourceRequirements.limits", "no container is throttled, or killed for memory or storage"),
    ("ServicePort.protocol", "this port is not routed"),
    ("ServiceSpec.externalIPs", OUTSIDE),
    ("ServiceSpec.ipFamilies", "it has an IPv4 address only"),
    ("ServiceSpec.loadBalancerClass", OUTSIDE),
    ("ServiceSpec.loadBalancerIP", OUTSIDE),
    ("ServiceSpec.loadBalancerSourceRanges", OUTSIDE),
    ("ServiceSpec.trafficDistribution", "connections go to all endpoints alike"),
    ("ServiceSpec.type", "nothing makes a load balancer; its node ports work"),
    ("StatefulSetPersistentVolumeClaimRetentionPolicy.whenDeleted", "claims stay when their set goes"),
    ("StatefulSetPersistentVolumeClaimRetentionPolicy.whenScaled", "claims stay when their pods go"),
];
/// Fields that only the kernel dataplane acts on, and the consequence elsewhere.
const KERNEL_ONLY: [(&str, &str); 2] = [
    ("PodSpec.hostAliases", "these names are not known in the pod on the userspace dataplane"),
    (
        "PodSpec.hostname",
        "on the userspace dataplane only the variable HOSTNAME has it, and the system gives the machine's name",
    ),
];
const CLAIM: &str = "each claim is a directory of this machine";
const SPREAD: &str = "pods of one owner are spread over the nodes by their number";
const USER: &str = "its processes run as the user of the embedded cluster";
const OUTSIDE: &str = "nothing outside of the cluster leads to it but node ports";
const NOTHING: &str = "nothing acts on it";

/// Fields of a structure: all of each, some values, or as the table defines for its own structure.
type Fields = BTreeMap<&'static str, Extent>;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Extent {
    All,
    Values(Vec<&'static str>),
    Below,
}

static TABLE: LazyLock<BTreeMap<&'static str, Fields>> = LazyLock::new(|| {
    let mut table: BTreeMap<&str, Fields> = BTreeMap::new();
    for line in MODELLED.lines() {
        let mut words = line.split(' ').filter(|word| !word.is_empty());
        let Some(structure) = words.next() else { continue };
        table.entry(structure).or_default().extend(words.map(|word| match word.split_once('=') {
            Some((field, values)) => (field, Extent::Values(values.split('|').collect())),
            None => word.strip_suffix('*').map_or((word, Extent::Below), |field| (field, Extent::All)),
        }));
    }
    table
});

/// Reports on `object` the fields that a client has set and that are not modelled, unless they were there `before`.
/// Returns a sentence for each.
pub(super) fn record(
    shared: &Shared,
    resource: Resource,
    before: Option<&Value>,
    object: &Value,
) -> Vec<String> {
    let kernel_only = match shared.network {
        Network::Userspace => &KERNEL_ONLY[..],
        Network::Kernel(_) => &[],
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
        .map(|(path, consequence)| format!("{path} is not modelled by the embedded cluster: {consequence}"))
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

/// Returns the paths of the fields of `object` that are not modelled, with their consequences. Fields in `not_here`
/// count as not modelled, too.
fn not_modelled(
    resource: Resource,
    object: &Value,
    not_here: &'static [(&'static str, &'static str)],
) -> BTreeMap<String, &'static str> {
    let top = schema::of(resource);
    let mut search = Search { not_here, found: BTreeMap::new() };
    // Kinds that the table lacks are the cluster's own, or are for programs that read them.
    if TABLE.contains_key(top.name)
        && let Some(map) = object.as_object()
    {
        let asked = map
            .iter()
            .filter(|(name, _)| !["apiVersion", "kind", "metadata", "status"].contains(&name.as_str()));
        search.look(top, asked, "");
    }
    search.found
}

/// A search for fields that are not modelled.
struct Search {
    /// Fields that this dataplane does not model, and the consequence.
    not_here: &'static [(&'static str, &'static str)],
    found: BTreeMap<String, &'static str>,
}

impl Search {
    fn look<'a>(
        &mut self,
        of: &Structure,
        fields: impl IntoIterator<Item = (&'a String, &'a Value)>,
        path: &str,
    ) {
        let modelled = TABLE.get(of.name);
        for (name, value) in fields {
            let Some(field) = of.fields.get(name.as_str()) else { continue };
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let key = format!("{}.{name}", of.name);
            let consequence = |list: &[(&str, &'static str)]| {
                list.iter().find(|(field, _)| *field == key).map(|(_, consequence)| *consequence)
            };
            let not_here = consequence(self.not_here);
            let is_modelled = match modelled.and_then(|fields| fields.get(name.as_str())) {
                _ if is_empty(value) => true,
                None => false,
                Some(_) if not_here.is_some() => false,
                Some(Extent::All) => true,
                Some(Extent::Values(values)) => is_one_of(value, values),
                Some(Extent::Below) => {
                    self.look_below(&field.kind, value, &path);
                    true
                }
            };
            if !is_modelled {
                let means = not_here.or_else(|| consequence(&CONSEQUENCES)).unwrap_or(NOTHING);
                self.found.insert(path, means);
            }
        }
    }

    fn look_below(&mut self, kind: &Kind, value: &Value, path: &str) {
        match (kind, value) {
            (Kind::Structure(index), Value::Object(map)) => self.look(schema::structure(*index), map, path),
            (Kind::List(element), Value::Array(list)) => {
                for (n, value) in list.iter().enumerate() {
                    self.look_below(element, value, &format!("{path}[{n}]"));
                }
            }
            _ => {}
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(true) => false,
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
    use std::collections::BTreeSet;

    use rolldrop_record::Clock;
    use serde_json::json;

    use super::*;
    use crate::address::AddressBlock;
    use crate::registry::Registry;

    fn paths(resource: Resource, object: Value) -> Vec<String> {
        not_modelled(resource, &object, &[]).into_keys().collect()
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
        for (structure, fields) in &*TABLE {
            for (name, extent) in fields {
                let mut kind = field(structure, name);
                while let Kind::List(element) = kind {
                    kind = *element;
                }
                if let (Kind::Structure(index), Extent::Below) = (&kind, extent) {
                    let below = schema::structure(*index).name;
                    assert!(TABLE.contains_key(below), "{structure}.{name}: nothing is said of {below}");
                }
            }
        }
        for (key, _) in KERNEL_ONLY {
            let (structure, name) = key.split_once('.').unwrap();
            field(structure, name);
            assert!(TABLE[structure].contains_key(name), "{key} is modelled nowhere");
        }
        for (key, _) in CONSEQUENCES {
            let (structure, name) = key.split_once('.').unwrap();
            field(structure, name);
            let is_modelled =
                TABLE[structure].get(name).is_some_and(|extent| !matches!(extent, Extent::Values(_)));
            assert!(!is_modelled, "{key} is modelled");
        }
        let keys: BTreeSet<_> = CONSEQUENCES.iter().map(|(key, _)| key).collect();
        assert_eq!(keys.len(), CONSEQUENCES.len());
    }

    #[test]
    fn defaults_are_never_reported_unmodelled() {
        let registry =
            Registry::new(Clock::start(), AddressBlock::claim(rand::random_range(0..128)).unwrap());
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
                not_modelled(resource, &created, &KERNEL_ONLY),
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
        let on_userspace = not_modelled(Resource::Pods, &named, &KERNEL_ONLY);
        assert_eq!(on_userspace.into_keys().collect::<Vec<_>>(), ["spec.hostAliases", "spec.hostname"]);
        assert!(paths(Resource::Nodes, json!({"spec": {"podCIDR": "10.0.0.0/24"}})).is_empty());
    }
}
