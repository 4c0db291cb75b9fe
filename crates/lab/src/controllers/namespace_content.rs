//! What every namespace has: the service account `default`, and the certificate by which pods know
//! the API server.
//!
//! After pkg/controller/serviceaccount and the root CA publisher in pkg/controller/certificates:
//! what is deleted or changed comes back.

use serde_json::json;

use super::worker::{self, BACK_OFF, Outcome};
use super::{follow, is_being_deleted, key};
use crate::Shared;
use crate::registry::{Part, WatchEventType};
use crate::resource::Resource;

const ACCOUNT: &str = "default";
const CERTIFICATE: &str = "kube-root-ca.crt";
const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal \
                           endpoints such as the internal service IP or kubernetes.default.svc. No other usage is \
                           guaranteed across distributions of Kubernetes clusters.";

pub(super) async fn run(shared: Shared) {
    let followed = [Resource::Namespaces, Resource::ServiceAccounts, Resource::ConfigMaps];
    let events = follow(&shared.registry, &followed);
    let named = |(resource, event): super::Observed| {
        let (namespace, name) = key(&event.object);
        let gone = event.event_type == WatchEventType::Deleted;
        match resource {
            Resource::Namespaces if !gone => vec![name],
            Resource::ServiceAccounts if gone && name == ACCOUNT => vec![namespace],
            Resource::ConfigMaps if name == CERTIFICATE => vec![namespace],
            _ => Vec::new(),
        }
    };
    worker::run(events, BACK_OFF, named, |namespace| {
        let shared = shared.clone();
        async move { reconcile(&shared, &namespace) }
    })
    .await;
}

fn reconcile(shared: &Shared, namespace: &str) -> Outcome {
    let registry = &shared.registry;
    let home = registry.get(Resource::Namespaces, "", namespace);
    if !home.is_ok_and(|home| !is_being_deleted(&home)) {
        return Ok(None);
    }
    if registry.get(Resource::ServiceAccounts, namespace, ACCOUNT).is_err() {
        registry.create(Resource::ServiceAccounts, namespace, json!({"metadata": {"name": ACCOUNT}}))?;
    }
    let data = json!({"ca.crt": shared.identity.authority_pem()});
    match registry.get(Resource::ConfigMaps, namespace, CERTIFICATE) {
        Ok(map) if map["data"] == data => {}
        Ok(_) => {
            registry
                .modify(Resource::ConfigMaps, namespace, CERTIFICATE, Part::Main, |map| map["data"] = data)?;
        }
        Err(_) => {
            let annotations = json!({"kubernetes.io/description": DESCRIPTION});
            let map = json!({"metadata": {"name": CERTIFICATE, "annotations": annotations}, "data": data});
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
    async fn what_a_namespace_has_comes_back() {
        let bench = Bench::start(&[|shared| run(shared).boxed()]);
        let exists = |bench: &Bench| {
            let registry = bench.registry();
            let certificate = registry.get(Resource::ConfigMaps, "default", CERTIFICATE);
            registry.get(Resource::ServiceAccounts, "default", ACCOUNT).is_ok()
                && certificate
                    .is_ok_and(|map| map["data"]["ca.crt"].as_str().unwrap().contains("BEGIN CERTIFICATE"))
        };
        bench.holds("made", exists).await;
        for (resource, name) in [(Resource::ServiceAccounts, ACCOUNT), (Resource::ConfigMaps, CERTIFICATE)] {
            bench.registry().delete(resource, "default", name, &Default::default()).unwrap();
        }
        bench.holds("made again", exists).await;
        bench
            .modify(Resource::ConfigMaps, CERTIFICATE, Part::Main, |map| map["data"] = json!({"ca.crt": ""}));
        bench.holds("repaired", exists).await;
    }
}
