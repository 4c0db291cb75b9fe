//! The table cells for every resource except pods
//! (Kubernetes pkg/printers/internalversion/printers.go).

use std::collections::BTreeMap;
use std::sync::LazyLock;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::age;
use crate::conditions;
use crate::object_fields::is_being_deleted;
use crate::resource::Resource;
use crate::value::{list, number, text};

/// Maximum number of addresses and ports listed in a cell.
const SHOWN: usize = 3;
/// Text for a cell without a value.
const NONE: &str = "<none>";

/// Returns a string value, or `fallback` if it is missing or empty.
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

/// Cells that show a single field of the object. Maps kind and column to the format, the field, and the fallback text.
static FIELDS: LazyLock<BTreeMap<(&str, &str), [&str; 3]>> = LazyLock::new(|| {
    let parse = |line: &'static str| {
        let mut parts = line.split('|');
        let mut next = || parts.next().unwrap_or_default();
        ((next(), next()), [next(), next(), next()])
    };
    include_str!("cells.txt").lines().map(parse).collect()
});

/// Returns one cell in the object's row, or `None` if the kind has no such column.
pub(super) fn cell(resource: Resource, column: &str, object: &Value, now: Timestamp) -> Option<Value> {
    let of_kind = FIELDS.get(&(resource.kind(), column));
    if let Some([form, path, fallback]) = of_kind.or_else(|| FIELDS.get(&("*", column))) {
        let value = object.pointer(path).unwrap_or(&Value::Null);
        return Some(match *form {
            "number" => json!(number(value)),
            "text" => json!(or(value, fallback)),
            "amount" => json!(amount(value).unwrap_or_else(|| (*fallback).to_owned())),
            _ => value.clone(),
        });
    }
    let (spec, status) = (&object["spec"], &object["status"]);
    Some(match (resource, column) {
        (_, "Age") => json!(age::since(&object["metadata"]["creationTimestamp"], now)),
        (_, "Containers") => json!(of_containers(spec, "name")),
        (_, "Images") => json!(of_containers(spec, "image")),
        (Resource::Services, "Selector") => json!(labels(&spec["selector"])),
        (_, "Selector") => {
            json!(Some(selector(&spec["selector"])).filter(|it| !it.is_empty()).unwrap_or(NONE.to_owned()))
        }
        (Resource::Nodes, "Status") => json!(node_status(object)),
        (Resource::Nodes, "Roles") => json!(NONE),
        (Resource::Nodes, "Internal-IP") => node_address(status, "InternalIP"),
        (Resource::Nodes, "External-IP") => node_address(status, "ExternalIP"),
        (Resource::Nodes, "Kernel-Version") => json!(kernel_version(&status["nodeInfo"])),
        (Resource::Services, "External-IP") => json!(external_address(spec)),
        (Resource::Services, "Port(s)") => json!(service_ports(spec)),
        (Resource::Endpoints, "Endpoints") => json!(addresses(object)),
        (Resource::EndpointSlices, "Ports") => {
            let ports = list(&object["ports"]).iter();
            json!(or_unset(
                ports.map(|port| amount(&port["port"]).unwrap_or_else(|| or(&port["name"], "*").to_owned()))
            ))
        }
        (Resource::EndpointSlices, "Endpoints") => {
            let addresses =
                list(&object["endpoints"]).iter().flat_map(|endpoint| list(&endpoint["addresses"]));
            json!(or_unset(addresses.map(|address| text(address).to_owned())))
        }
        (Resource::Deployments | Resource::StatefulSets, "Ready") => {
            json!(format!("{}/{}", number(&status["readyReplicas"]), number(&spec["replicas"])))
        }
        (Resource::DaemonSets, "Node Selector") => json!(labels(&spec["template"]["spec"]["nodeSelector"])),
        (Resource::Jobs, "Status") => json!(job_state(object)),
        (Resource::Jobs, "Completions") => json!(completions(spec, status)),
        (Resource::Jobs, "Duration") => json!(match (&status["startTime"], &status["completionTime"]) {
            (Value::Null, _) => String::new(),
            (start, Value::Null) => age::since(start, now),
            (start, end) => age::between(start, end),
        }),
        (Resource::Events, column) => return event(column, object, now),
        _ => return None,
    })
}

fn event(column: &str, event: &Value, now: Timestamp) -> Option<Value> {
    let (about, source) = (&event["involvedObject"], &event["source"]);
    Some(match column {
        "Message" => json!(text(&event["message"]).trim()),
        "Count" => json!(number(&event["count"]).max(1)),
        "First Seen" => json!(age::since(&event["firstTimestamp"], now)),
        "Last Seen" => json!(match &event["lastTimestamp"] {
            Value::Null => age::since(&event["firstTimestamp"], now),
            last => age::since(last, now),
        }),
        "Object" => json!(match (text(&about["kind"]).to_lowercase(), text(&about["name"])) {
            (kind, "") => kind,
            (kind, name) => format!("{kind}/{name}"),
        }),
        "Source" => {
            let component = or(&source["component"], text(&event["reportingComponent"]));
            json!(match or(&source["host"], text(&event["reportingInstance"])) {
                "" => component.to_owned(),
                instance => format!("{component}, {instance}"),
            })
        }
        _ => return None,
    })
}

fn node_status(node: &Value) -> String {
    let ready = match conditions::of(node, "Ready")["status"].as_str() {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    let cordoned = if node["spec"]["unschedulable"] == true { ",SchedulingDisabled" } else { "" };
    format!("{ready}{cordoned}")
}

fn node_address(status: &Value, address_type: &str) -> Value {
    let found = list(&status["addresses"]).iter().find(|address| address["type"] == address_type);
    found.map_or_else(|| json!(NONE), |address| address["address"].clone())
}

fn kernel_version(info: &Value) -> String {
    let version = or(&info["kernelVersion"], "<unknown>");
    match text(&info["architecture"]) {
        "" => version.to_owned(),
        architecture => format!("{version} ({architecture})"),
    }
}

fn service_ports(spec: &Value) -> String {
    let ports = list(&spec["ports"]).iter().map(|port| {
        let (number, protocol) = (&port["port"], or(&port["protocol"], "TCP"));
        match crate::value::number(&port["nodePort"]) {
            0 => format!("{number}/{protocol}"),
            node_port => format!("{number}:{node_port}/{protocol}"),
        }
    });
    let ports = ports.collect::<Vec<_>>().join(",");
    if ports.is_empty() { NONE.to_owned() } else { ports }
}

fn external_address(spec: &Value) -> &str {
    match text(&spec["type"]) {
        "ExternalName" => text(&spec["externalName"]),
        "LoadBalancer" => "<pending>",
        _ => NONE,
    }
}

/// Formats the addresses in an Endpoints object, with every combination of address and port.
fn addresses(endpoints: &Value) -> String {
    let mut all = Vec::new();
    for subset in list(&endpoints["subsets"]) {
        let addresses = || list(&subset["addresses"]).iter().map(|address| text(&address["ip"]));
        match list(&subset["ports"]) {
            [] => all.extend(addresses().map(str::to_owned)),
            ports => all
                .extend(ports.iter().flat_map(|port| addresses().map(|ip| format!("{ip}:{}", port["port"])))),
        }
    }
    if list(&endpoints["subsets"]).is_empty() { NONE.to_owned() } else { some_of(&all) }
}

fn or_unset(all: impl Iterator<Item = String>) -> String {
    let all: Vec<_> = all.collect();
    if all.is_empty() { "<unset>".to_owned() } else { some_of(&all) }
}

/// Formats the first few elements, and the number of omitted ones.
fn some_of(all: &[String]) -> String {
    match all.len().checked_sub(SHOWN) {
        Some(more @ 1..) => format!("{} + {more} more...", all[..SHOWN].join(",")),
        _ => all.join(","),
    }
}

fn completions(spec: &Value, status: &Value) -> String {
    let succeeded = number(&status["succeeded"]);
    match (spec["completions"].as_i64(), number(&spec["parallelism"])) {
        (Some(wanted), _) => format!("{succeeded}/{wanted}"),
        (None, parallelism @ 2..) => format!("{succeeded}/1 of {parallelism}"),
        (None, _) => format!("{succeeded}/1"),
    }
}

fn job_state(job: &Value) -> &'static str {
    let has = |condition_type: &str| conditions::of(job, condition_type)["status"] == "True";
    match () {
        () if has("Complete") => "Complete",
        () if has("Failed") => "Failed",
        () if is_being_deleted(job) => "Terminating",
        () if has("FailureTarget") => "FailureTarget",
        () if has("SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    }
}

/// Formats one field of all containers in a workload.
fn of_containers(spec: &Value, field: &str) -> String {
    let containers = list(&spec["template"]["spec"]["containers"]);
    containers.iter().map(|one| text(&one[field])).collect::<Vec<_>>().join(",")
}

/// Formats a label selector in the syntax of `kubectl get -l`. Returns an empty string for one that selects everything.
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
    if pairs.is_empty() { NONE.to_owned() } else { pairs.join(",") }
}
