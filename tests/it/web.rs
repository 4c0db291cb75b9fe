//! The app measured by tests: the sample server, its Service, and scenarios for them.

use std::fmt::Write;

use serde_json::{Value, json};

/// A Deployment (or another workload) and a Service, both named `web`, and further objects. Pods serve HTTP on port
/// 8080.
pub(crate) struct Web {
    deployment: Value,
    service: Value,
    others: Vec<Value>,
}

impl Web {
    /// Returns a Deployment with this many pods, behind a Service on port 80.
    pub(crate) fn new(replicas: u32) -> Self {
        let container = json!({
            "name": "app",
            "image": "rolldrop",
            "args": ["workload", "--listen", "$(POD_IP):8080"],
            "env": [from_field("POD_IP", "status.podIP")],
            "ports": [{"name": "http", "containerPort": 8080}],
            "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http"}, "periodSeconds": 1},
        });
        let labels = json!({"app": "web"});
        let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [container]}});
        let deployment =
            json!({"replicas": replicas, "selector": {"matchLabels": labels}, "template": template});
        let ports = json!([{"name": "http", "port": 80, "targetPort": "http"}]);
        Self {
            deployment: object("apps/v1", "Deployment", "web", deployment),
            service: object("v1", "Service", "web", json!({"selector": labels, "ports": ports})),
            others: Vec::new(),
        }
    }

    /// Adds arguments for the server.
    pub(crate) fn args(mut self, more: &[&str]) -> Self {
        let args = self.container()["args"].as_array_mut().expect("a list");
        args.extend(more.iter().map(|arg| json!(arg)));
        self
    }

    /// Makes responses name their pod.
    pub(crate) fn named(self) -> Self {
        self.env(from_field("POD_NAME", "metadata.name"))
    }

    /// Adds a variable to the server's environment.
    pub(crate) fn env(mut self, variable: Value) -> Self {
        self.container()["env"].as_array_mut().expect("a list").push(variable);
        self
    }

    /// Adds a label to the pods and to the Service's selector.
    pub(crate) fn label(mut self, name: &str, value: &str) -> Self {
        self.deployment["spec"]["template"]["metadata"]["labels"][name] = value.into();
        self.service["spec"]["selector"][name] = value.into();
        self
    }

    /// Sets fields of the pods' spec.
    pub(crate) fn pod(mut self, fields: Value) -> Self {
        set(&mut self.deployment["spec"]["template"]["spec"], fields);
        self
    }

    /// Sets fields of the server's container.
    pub(crate) fn app(mut self, fields: Value) -> Self {
        set(self.container(), fields);
        self
    }

    /// Changes the Deployment to another kind of workload. A DaemonSet has a pod on each node.
    pub(crate) fn kind(mut self, kind: &str) -> Self {
        self.deployment["kind"] = kind.into();
        if kind == "DaemonSet" {
            self.deployment["spec"].as_object_mut().expect("an object").remove("replicas");
        }
        self
    }

    /// Sets fields of the Deployment's spec.
    pub(crate) fn deployment(mut self, fields: Value) -> Self {
        set(&mut self.deployment["spec"], fields);
        self
    }

    /// Sets fields of the Service's spec.
    pub(crate) fn service(mut self, fields: Value) -> Self {
        set(&mut self.service["spec"], fields);
        self
    }

    /// Adds another object.
    pub(crate) fn and(mut self, api_version: &str, kind: &str, name: &str, spec: Value) -> Self {
        self.others.push(object(api_version, kind, name, spec));
        self
    }

    /// Returns the objects as a manifest file for kubectl.
    pub(crate) fn manifests(&self) -> String {
        self.objects().map(|object| format!("---\n{object}\n")).collect()
    }

    /// Returns the text of a scenario with this name that creates the objects. `spec` is the rest of the scenario's
    /// spec, indented by two spaces.
    pub(crate) fn scenario(&self, name: &str, spec: &str) -> String {
        let mut manifests = String::new();
        for object in self.objects() {
            writeln!(manifests, "  - inline: {object}").expect("writing to a string");
        }
        let spec = spec.trim_start_matches('\n');
        format!(
            "apiVersion: rolldrop.dev/v1\nkind: Scenario\nmetadata: {{name: {name}}}\n\
             spec:\n  manifests:\n{manifests}{spec}"
        )
    }

    fn objects(&self) -> impl Iterator<Item = &Value> {
        [&self.deployment, &self.service].into_iter().chain(&self.others)
    }

    fn container(&mut self) -> &mut Value {
        &mut self.deployment["spec"]["template"]["spec"]["containers"][0]
    }
}

fn object(api_version: &str, kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn from_field(name: &str, path: &str) -> Value {
    json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
}

fn set(object: &mut Value, fields: Value) {
    let Value::Object(fields) = fields else { panic!("{fields} has no fields") };
    object.as_object_mut().expect("an object").extend(fields);
}
