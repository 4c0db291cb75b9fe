//! Pod admission: gives each new pod its service account.
//!
//! Source: kubernetes/kubernetes, `plugin/pkg/admission/serviceaccount`.

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
    /// Mounts a service account token in every container, unless the pod or the service account opts out.
    ///
    /// # Errors
    ///
    /// 403 if the service account does not exist.
    pub(super) fn admit_pod(&self, namespace: &str, pod: &mut Value) -> Result<(), Status> {
        let named = ["serviceAccountName", "serviceAccount"]
            .into_iter()
            .find_map(|field| pod["spec"][field].as_str().filter(|name| !name.is_empty()).map(str::to_owned));
        let name = named.unwrap_or_else(|| DEFAULT_ACCOUNT.to_owned());
        let account = match self.get(Resource::ServiceAccounts, namespace, &name) {
            Ok(account) => account["automountServiceAccountToken"].clone(),
            // The user deleted the default account. A real cluster would restore it.
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
