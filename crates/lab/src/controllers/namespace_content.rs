//! Maintains the standard contents of every namespace: the service account `default`, and the CA certificate with
//! which pods verify the API server.
//!
//! Based on pkg/controller/serviceaccount and the root CA publisher in pkg/controller/certificates: deleted or changed
//! objects are restored.

use std::sync::Arc;

use serde_json::json;

use super::reconciler::{self, BACK_OFF, ReconcileResult};
use crate::object_fields::{is_being_deleted, key};
use crate::registry::{ObjectPart, ObservedEvent, WatchEventType, follow};
use crate::resource::Resource;
use crate::shared::ClusterContext;
use crate::well_known::{DEFAULT_ACCOUNT, ROOT_CA};

const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal \
                           endpoints such as the internal service IP or kubernetes.default.svc. No other usage is \
                           guaranteed across distributions of Kubernetes clusters.";

pub(super) async fn run(shared: ClusterContext, authority: Arc<str>) {
    let followed = [Resource::Namespaces, Resource::ServiceAccounts, Resource::ConfigMaps];
    let events = follow(&shared.registry, &followed);
    let named = |(resource, event): ObservedEvent| {
        let (namespace, name) = key(&event.object);
        let gone = event.event_type == WatchEventType::Deleted;
        match resource {
            Resource::Namespaces if !gone => vec![name],
            Resource::ServiceAccounts if gone && name == DEFAULT_ACCOUNT => vec![namespace],
            Resource::ConfigMaps if name == ROOT_CA => vec![namespace],
            _ => Vec::new(),
        }
    };
    let (shared, authority) = (&shared, &authority);
    reconciler::run(
        events,
        BACK_OFF,
        named,
        |namespace| async move { reconcile(shared, authority, &namespace) },
    )
    .await;
}

fn reconcile(shared: &ClusterContext, authority: &str, namespace: &str) -> ReconcileResult {
    let registry = &shared.registry;
    let home = registry.get(Resource::Namespaces, "", namespace);
    if !home.is_ok_and(|home| !is_being_deleted(&home)) {
        return Ok(None);
    }
    if registry.get(Resource::ServiceAccounts, namespace, DEFAULT_ACCOUNT).is_err() {
        registry.create(
            Resource::ServiceAccounts,
            namespace,
            json!({"metadata": {"name": DEFAULT_ACCOUNT}}),
        )?;
    }
    let data = json!({"ca.crt": authority});
    match registry.get(Resource::ConfigMaps, namespace, ROOT_CA) {
        Ok(map) if map["data"] == data => {}
        Ok(_) => {
            registry.modify(Resource::ConfigMaps, namespace, ROOT_CA, ObjectPart::Main, |map| {
                map["data"] = data
            })?;
        }
        Err(_) => {
            let annotations = json!({"kubernetes.io/description": DESCRIPTION});
            let map = json!({"metadata": {"name": ROOT_CA, "annotations": annotations}, "data": data});
            registry.create(Resource::ConfigMaps, namespace, map)?;
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::super::tests::bench::Bench;
    use super::*;

    #[tokio::test]
    async fn deleted_namespace_defaults_are_recreated() {
        let bench = Bench::start(&[|shared| run(shared, "a certificate".into()).boxed()]);
        let exists = |bench: &Bench| {
            let registry = bench.registry();
            let certificate = registry.get(Resource::ConfigMaps, "default", ROOT_CA);
            registry.get(Resource::ServiceAccounts, "default", DEFAULT_ACCOUNT).is_ok()
                && certificate.is_ok_and(|map| map["data"]["ca.crt"] == "a certificate")
        };
        bench.holds("made", exists).await;
        for (resource, name) in
            [(Resource::ServiceAccounts, DEFAULT_ACCOUNT), (Resource::ConfigMaps, ROOT_CA)]
        {
            bench.registry().delete(resource, "default", name, &Default::default()).unwrap();
        }
        bench.holds("made again", exists).await;
        bench.modify(Resource::ConfigMaps, ROOT_CA, ObjectPart::Main, |map| {
            map["data"] = json!({"ca.crt": ""})
        });
        bench.holds("repaired", exists).await;
    }
}
