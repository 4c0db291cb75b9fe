//! The Secret with the token for the admin ports of a run's sidecars.
//!
//! The Secret exists for as long as the run. Pods refer to it, so the token is in no pod spec and in no file of the
//! run. Pods also start without it, because a pod that is created after the run, before its workload has been rolled
//! back, must not wait for a Secret that is gone.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use rolldrop_record::wire::AdminToken;
use rolldrop_sidecar::inject::{Absent, SecretKey};

/// A token, and the key of the Secret from which sidecars read it.
pub(super) struct AdminSecret {
    pub(super) token: AdminToken,
    pub(super) key: SecretKey,
}

impl AdminSecret {
    /// Creates a Secret under a random name so that no other run uses the same name.
    pub(super) fn new(token: AdminToken) -> Self {
        let name = format!("rolldrop-admin-{:08x}", rand::random::<u32>());
        Self { token, key: SecretKey { name, key: "token".to_owned(), absent: Absent::TellsNobody } }
    }

    /// Returns the Secret's manifests: one for every namespace in which a manifest refers to it and, if live pods get
    /// the sidecar, one for the run's namespace.
    pub(super) fn manifests(&self, namespace: &str, manifests: &[Value], has_live: bool) -> Vec<Value> {
        let refers = |manifest: &&Value| manifest.to_string().contains(&self.key.name);
        let named = manifests.iter().filter(refers).map(|m| m["metadata"]["namespace"].as_str());
        let live = has_live.then_some(None);
        let namespaces: BTreeSet<_> = named.chain(live).map(|own| own.unwrap_or(namespace)).collect();
        let secret = |namespace: &str| {
            json!({
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": self.key.name, "namespace": namespace},
                "stringData": {self.key.key.as_str(): self.token.as_str()},
            })
        };
        namespaces.into_iter().map(secret).collect()
    }
}

/// Generates an unguessable token.
pub(super) fn random_token() -> AdminToken {
    AdminToken::of_bytes(rand::random())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admin_token_is_random() {
        let (a, b) = (random_token(), random_token());
        assert!(a != b && a.as_str().len() == 64);
    }

    #[test]
    fn admin_secret_covers_referring_namespaces() {
        let secret = AdminSecret::new("s3cret".parse().unwrap());
        let pod = |namespace: Value, refers: &str| json!({"kind": "Pod", "metadata": {"namespace": namespace}, "spec": {"secret": refers}});
        let name = secret.key.name.as_str();
        let manifests = [
            pod(Value::Null, name),
            pod("shop".into(), name),
            pod("other".into(), name),
            pod("none".into(), "else"),
        ];
        let namespaces = |manifests: &[Value], has_live| {
            let secrets = secret.manifests("shop", manifests, has_live);
            secrets.iter().map(|secret| secret["metadata"]["namespace"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(namespaces(&manifests, false), ["other", "shop"]);
        assert_eq!(namespaces(&[], true), ["shop"]);
        assert!(namespaces(&manifests[3..], false).is_empty());
        assert_eq!(secret.manifests("shop", &[], true)[0]["stringData"]["token"], "s3cret");
    }
}
