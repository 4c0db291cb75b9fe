//! Admission plugins that every cluster runs and that depend on objects other than the one being created. No client
//! owns the fields that they fill in.
//!
//! Source: kubernetes/kubernetes, `plugin/pkg/admission/serviceaccount` and
//! `plugin/pkg/admission/network/defaultingressclass`.

use serde_json::{Value, json};

use super::{Registry, in_name_characters};
use crate::object_fields::containers_mut;
use crate::resource::Resource;
use crate::status::Status;
use crate::value::list;
use crate::well_known::{DEFAULT_ACCOUNT, ROOT_CA, TOKEN_VOLUME};

/// Path where containers find the service account's files.
const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

impl Registry {
    /// Fills in the fields of a new object that depend on other objects.
    ///
    /// # Errors
    ///
    /// 403 for a pod whose service account does not exist.
    pub(super) fn admit(
        &self,
        resource: Resource,
        namespace: &str,
        object: &mut Value,
    ) -> Result<(), Status> {
        match resource {
            Resource::Pods => self.admit_pod(namespace, object),
            Resource::Ingresses => {
                self.choose_ingress_class(object);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Mounts a service account token in every container, unless the pod or the service account opts out.
    fn admit_pod(&self, namespace: &str, pod: &mut Value) -> Result<(), Status> {
        let named = ["serviceAccountName", "serviceAccount"]
            .into_iter()
            .find_map(|field| pod["spec"][field].as_str().filter(|name| !name.is_empty()).map(str::to_owned));
        let name = named.unwrap_or_else(|| DEFAULT_ACCOUNT.to_owned());
        let account = match self.get(Resource::ServiceAccounts, namespace, &name) {
            Ok(account) => account["automountServiceAccountToken"].clone(),
            // The default account is about to be created. A real API server waits for it here.
            Err(_) if name == DEFAULT_ACCOUNT => Value::Null,
            Err(_) => {
                let pod = pod["metadata"]["name"].as_str().unwrap_or_default();
                let why = format!(
                    "error looking up service account {namespace}/{name}: serviceaccount {name:?} not found"
                );
                return Err(Status::forbidden(Resource::Pods, pod, &why));
            }
        };
        let own = &pod["spec"]["automountServiceAccountToken"];
        if own.as_bool().or(account.as_bool()).unwrap_or(true) {
            mount_token(&mut pod["spec"]);
        }
        pod["spec"]["serviceAccountName"] = json!(name);
        Ok(())
    }

    /// Assigns the default class to an Ingress that names none. If several classes are marked as default, the newest
    /// wins.
    fn choose_ingress_class(&self, ingress: &mut Value) {
        let named_before = &ingress["metadata"]["annotations"]["kubernetes.io/ingress.class"];
        if ingress["spec"]["ingressClassName"].is_string() || named_before.is_string() {
            return;
        }
        let classes = self.all(Resource::IngressClasses, None);
        let is_default = |class: &&std::sync::Arc<Value>| {
            class["metadata"]["annotations"]["ingressclass.kubernetes.io/is-default-class"] == "true"
        };
        // The classes are sorted by name. The first one wins among equally new ones.
        let newest = classes.iter().filter(is_default).rev().max_by_key(|class| {
            class["metadata"]["creationTimestamp"].as_str().unwrap_or_default().to_owned()
        });
        if let Some(class) = newest {
            ingress["spec"]["ingressClassName"] = class["metadata"]["name"].clone();
        }
    }
}

fn mount_token(spec: &mut Value) {
    let mut names = list(&spec["volumes"]).iter().filter_map(|volume| volume["name"].as_str());
    let given = names.find(|name| name.starts_with(TOKEN_VOLUME)).map(str::to_owned);
    let is_given = given.is_some();
    let name = given.unwrap_or_else(|| TOKEN_VOLUME.to_owned() + &in_name_characters(rand::random(), 5));
    let mut is_mounted = false;
    for container in containers_mut(spec) {
        if !list(&container["volumeMounts"]).iter().any(|mount| mount["mountPath"] == TOKEN_PATH) {
            let mount = json!({"name": name, "readOnly": true, "mountPath": TOKEN_PATH});
            push(&mut container["volumeMounts"], mount);
            is_mounted = true;
        }
    }
    if is_mounted && !is_given {
        let sources = json!([
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": ROOT_CA, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [
                {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
            ]}},
        ]);
        push(
            &mut spec["volumes"],
            json!({"name": name, "projected": {"sources": sources, "defaultMode": 0o644}}),
        );
    }
}

fn push(list: &mut Value, element: Value) {
    match list {
        Value::Array(list) => list.push(element),
        _ => *list = json!([element]),
    }
}
