//! The cells of every resource but pods
//! (Kubernetes pkg/printers/internalversion/printers.go).

use jiff::Timestamp;
use serde_json::{Value, json};

use super::age;
use crate::conditions;
use crate::object::is_being_deleted;
use crate::value::{list, number, text};

/// Maximum number of addresses and ports that a cell names.
const SHOWN: usize = 3;

/// Returns a string, or `fallback` if it is missing or empty.
pub(super) fn or<'a>(value: &'a Value, fallback: &'a str) -> &'a str {
    match text(value) {
        "" => fallback,
        text => text,
    }
}

/// Formats an `IntOrString`.
fn amount(value: &Value) -> Option<String> {
    match value {
        Value::Number(number) => Some(number.to_string()),
        Value::String(text) => Some(text.clone()),
        _ => None,
    }
}

/// Returns the cells of kinds without a table of their own.
pub(super) fn plain(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), since_creation(object, now)]
}

pub(super) fn namespace(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), object["status"]["phase"].clone(), since_creation(object, now)]
}

pub(super) fn node(object: &Value, now: Timestamp) -> Vec<Value> {
    let status = &object["status"];
    let mut words = match conditions::of(object, "Ready")["status"].as_str() {
        Some("True") => "Ready".to_owned(),
        Some(_) => "NotReady".to_owned(),
        None => "Unknown".to_owned(),
    };
    if object["spec"]["unschedulable"] == true {
        words.push_str(",SchedulingDisabled");
    }
    let address = |address_type: &str| {
        let found = list(&status["addresses"]).iter().find(|address| address["type"] == address_type);
        found.map_or_else(|| json!("<none>"), |address| address["address"].clone())
    };
    let info = &status["nodeInfo"];
    let mut kernel = or(&info["kernelVersion"], "<unknown>").to_owned();
    let architecture = text(&info["architecture"]);
    if !architecture.is_empty() {
        kernel.push_str(&format!(" ({architecture})"));
    }
    vec![
        name(object),
        json!(words),
        json!("<none>"),
        since_creation(object, now),
        info["kubeletVersion"].clone(),
        address("InternalIP"),
        address("ExternalIP"),
        json!(or(&info["osImage"], "<unknown>")),
        json!(kernel),
        json!(or(&info["containerRuntimeVersion"], "<unknown>")),
    ]
}

pub(super) fn service(object: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &object["spec"];
    let ports = list(&spec["ports"]).iter().map(|port| {
        let (number, protocol) = (&port["port"], or(&port["protocol"], "TCP"));
        match crate::value::number(&port["nodePort"]) {
            0 => format!("{number}/{protocol}"),
            node_port => format!("{number}:{node_port}/{protocol}"),
        }
    });
    let ports = ports.collect::<Vec<_>>().join(",");
    vec![
        name(object),
        spec["type"].clone(),
        json!(or(&spec["clusterIPs"][0], "<none>")),
        json!(external_address(object)),
        json!(if ports.is_empty() { "<none>" } else { &ports }),
        since_creation(object, now),
        json!(labels(&spec["selector"])),
    ]
}

fn external_address(service: &Value) -> &str {
    match text(&service["spec"]["type"]) {
        "ExternalName" => text(&service["spec"]["externalName"]),
        "LoadBalancer" => "<pending>",
        _ => "<none>",
    }
}

pub(super) fn endpoints(object: &Value, now: Timestamp) -> Vec<Value> {
    let mut all = Vec::new();
    for subset in list(&object["subsets"]) {
        let addresses = || list(&subset["addresses"]).iter().map(|address| text(&address["ip"]));
        match list(&subset["ports"]) {
            [] => all.extend(addresses().map(str::to_owned)),
            ports => {
                for port in ports {
                    all.extend(addresses().map(|ip| format!("{ip}:{}", port["port"])));
                }
            }
        }
    }
    let shown = if list(&object["subsets"]).is_empty() { "<none>".to_owned() } else { some_of(&all) };
    vec![name(object), json!(shown), since_creation(object, now)]
}

pub(super) fn endpoint_slice(object: &Value, now: Timestamp) -> Vec<Value> {
    let or_unset = |list: Vec<String>| if list.is_empty() { "<unset>".to_owned() } else { some_of(&list) };
    let ports = list(&object["ports"])
        .iter()
        .map(|port| amount(&port["port"]).unwrap_or_else(|| or(&port["name"], "*").to_owned()));
    let addresses = list(&object["endpoints"]).iter().flat_map(|endpoint| list(&endpoint["addresses"]));
    vec![
        name(object),
        object["addressType"].clone(),
        json!(or_unset(ports.collect())),
        json!(or_unset(addresses.map(|address| text(address).to_owned()).collect())),
        since_creation(object, now),
    ]
}

/// Formats the first few, and the number of the others.
fn some_of(all: &[String]) -> String {
    match all.len().checked_sub(SHOWN) {
        Some(more @ 1..) => format!("{} + {more} more...", all[..SHOWN].join(",")),
        _ => all.join(","),
    }
}

pub(super) fn event(object: &Value, now: Timestamp) -> Vec<Value> {
    let series = &object["series"];
    let first = match &object["firstTimestamp"] {
        Value::Null => age::since(&object["eventTime"], now),
        first => age::since(first, now),
    };
    let last = match (&object["lastTimestamp"], series.is_object()) {
        (_, true) => age::since(&series["lastObservedTime"], now),
        (Value::Null, _) => first.clone(),
        (last, _) => age::since(last, now),
    };
    let count = if series.is_object() { number(&series["count"]) } else { number(&object["count"]).max(1) };
    let about = &object["involvedObject"];
    let mut target = text(&about["kind"]).to_lowercase();
    if !text(&about["name"]).is_empty() {
        target = format!("{target}/{}", text(&about["name"]));
    }
    let component = or(&object["source"]["component"], text(&object["reportingComponent"]));
    let source = match or(&object["source"]["host"], text(&object["reportingInstance"])) {
        "" => component.to_owned(),
        instance => format!("{component}, {instance}"),
    };
    vec![
        json!(last),
        object["type"].clone(),
        object["reason"].clone(),
        json!(target),
        json!(text(&about["fieldPath"])),
        json!(source),
        json!(text(&object["message"]).trim()),
        json!(first),
        json!(count),
        name(object),
    ]
}

pub(super) fn deployment(object: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let ready = format!("{}/{}", number(&status["readyReplicas"]), number(&spec["replicas"]));
    let mut cells = vec![
        name(object),
        json!(ready),
        json!(number(&status["updatedReplicas"])),
        json!(number(&status["availableReplicas"])),
        since_creation(object, now),
    ];
    cells.extend(template(spec));
    cells
}

pub(super) fn replica_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let mut cells = vec![
        name(object),
        json!(number(&spec["replicas"])),
        json!(number(&status["replicas"])),
        json!(number(&status["readyReplicas"])),
        since_creation(object, now),
    ];
    cells.extend(template(spec));
    cells
}

pub(super) fn stateful_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let ready = format!("{}/{}", number(&status["readyReplicas"]), number(&spec["replicas"]));
    let [containers, images, _] = template(spec);
    vec![name(object), json!(ready), since_creation(object, now), containers, images]
}

pub(super) fn daemon_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let counts = [
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
    ];
    let mut cells = vec![name(object)];
    cells.extend(counts.map(|field| json!(number(&status[field]))));
    cells.push(json!(labels(&spec["template"]["spec"]["nodeSelector"])));
    cells.push(since_creation(object, now));
    cells.extend(template(spec));
    cells
}

pub(super) fn claim(object: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let modes = list(&status["accessModes"]).iter().map(|mode| match text(mode) {
        "ReadWriteOnce" => "RWO",
        "ReadOnlyMany" => "ROX",
        "ReadWriteMany" => "RWX",
        "ReadWriteOncePod" => "RWOP",
        other => other,
    });
    vec![
        name(object),
        status["phase"].clone(),
        json!(text(&spec["volumeName"])),
        json!(text(&status["capacity"]["storage"])),
        json!(modes.collect::<Vec<_>>().join(",")),
        json!(text(&spec["storageClassName"])),
        json!(or(&spec["volumeAttributesClassName"], "<unset>")),
        since_creation(object, now),
        json!(or(&spec["volumeMode"], "<unset>")),
    ]
}

pub(super) fn disruption_budget(object: &Value, now: Timestamp) -> Vec<Value> {
    let limit = |field: &str| amount(&object["spec"][field]).unwrap_or_else(|| "N/A".to_owned());
    vec![
        name(object),
        json!(limit("minAvailable")),
        json!(limit("maxUnavailable")),
        json!(number(&object["status"]["disruptionsAllowed"])),
        since_creation(object, now),
    ]
}

pub(super) fn job(object: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let succeeded = number(&status["succeeded"]);
    let completions = match (spec["completions"].as_i64(), number(&spec["parallelism"])) {
        (Some(wanted), _) => format!("{succeeded}/{wanted}"),
        (None, parallelism @ 2..) => format!("{succeeded}/1 of {parallelism}"),
        (None, _) => format!("{succeeded}/1"),
    };
    let duration = match (&status["startTime"], &status["completionTime"]) {
        (Value::Null, _) => String::new(),
        (start, Value::Null) => age::since(start, now),
        (start, end) => age::between(start, end),
    };
    let has = |condition_type: &str| conditions::of(object, condition_type)["status"] == "True";
    let state = match () {
        () if has("Complete") => "Complete",
        () if has("Failed") => "Failed",
        () if is_being_deleted(object) => "Terminating",
        () if has("FailureTarget") => "FailureTarget",
        () if has("SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    };
    let mut cells =
        vec![name(object), json!(state), json!(completions), json!(duration), since_creation(object, now)];
    cells.extend(template(spec));
    cells
}

pub(super) fn role_binding(object: &Value, now: Timestamp) -> Vec<Value> {
    let role = &object["roleRef"];
    let subjects = |kind: &str| {
        let of_kind = list(&object["subjects"]).iter().filter(|subject| subject["kind"] == kind);
        let shown = of_kind.map(|subject| match kind {
            "ServiceAccount" => format!("{}/{}", text(&subject["namespace"]), text(&subject["name"])),
            _ => text(&subject["name"]).to_owned(),
        });
        json!(shown.collect::<Vec<_>>().join(", "))
    };
    vec![
        name(object),
        json!(format!("{}/{}", text(&role["kind"]), text(&role["name"]))),
        since_creation(object, now),
        subjects("User"),
        subjects("Group"),
        subjects("ServiceAccount"),
    ]
}

/// Returns the containers, images and selector of a workload.
fn template(spec: &Value) -> [Value; 3] {
    let containers = list(&spec["template"]["spec"]["containers"]);
    let all = |field: &str| containers.iter().map(|one| text(&one[field])).collect::<Vec<_>>().join(",");
    let selector = selector(&spec["selector"]);
    let selector = if selector.is_empty() { "<none>" } else { &selector };
    [json!(all("name")), json!(all("image")), json!(selector)]
}

/// Formats a label selector as `kubectl get -l` takes it; empty for one that selects all.
pub(in super::super) fn selector(selector: &Value) -> String {
    let pairs = selector["matchLabels"].as_object().into_iter().flatten();
    let mut terms: Vec<_> = pairs.map(|(key, value)| format!("{key}={}", text(value))).collect();
    for expression in list(&selector["matchExpressions"]) {
        let key = text(&expression["key"]);
        let values = list(&expression["values"]).iter().map(text).collect::<Vec<_>>().join(",");
        terms.push(match text(&expression["operator"]) {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_owned(),
            _ => format!("!{key}"),
        });
    }
    terms.join(",")
}

fn labels(map: &Value) -> String {
    let pairs = map.as_object().into_iter().flatten();
    let pairs: Vec<_> = pairs.map(|(key, value)| format!("{key}={}", text(value))).collect();
    if pairs.is_empty() { "<none>".to_owned() } else { pairs.join(",") }
}

fn name(object: &Value) -> Value {
    object["metadata"]["name"].clone()
}

fn since_creation(object: &Value, now: Timestamp) -> Value {
    json!(age::since(&object["metadata"]["creationTimestamp"], now))
}
