//! The `eviction` subresource of pods.
//!
//! The [registry](super::super::registry) decides whether a pod may be evicted. This module has the order of the
//! steps, as watchers of a real cluster see them (the condition `DisruptionTarget` first, then the deletion), and the
//! time between them.

use std::time::Duration;

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use serde_json::Value;

use super::super::registry::{Approval, DeleteOptions, Effect, still_processed};
use super::super::resource::Resource;
use super::super::shared::Shared;
use super::super::status::Status;
use super::query::Query;
use super::respond::{self, Answer};

/// Number of attempts at an eviction that concurrent writes interrupt, and the pause between them (`EvictionsRetry`
/// in pkg/registry/core/pod/storage/eviction.go).
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(500);

/// Evicts a pod, if its budgets allow it.
pub(super) async fn answer(
    request: Request<Incoming>,
    shared: &Shared,
    query: &Query,
    namespace: &str,
    name: &str,
) -> Result<Answer, Status> {
    if *request.method() != Method::POST {
        return Err(Status::method_not_allowed());
    }
    let object = super::body::read_any(request).await?;
    if object["kind"].as_str().is_some_and(|kind| kind != "Eviction") {
        return Err(Status::bad_request(format!("not a Eviction object: {}", object["kind"])));
    }
    if object["metadata"]["name"].as_str().is_some_and(|own| own != name) {
        return Err(Status::bad_request("name in URL does not match name in Eviction object"));
    }
    let wish = &object["deleteOptions"];
    let is_dry = |value: &Value| value.as_array().is_some_and(|list| !list.is_empty());
    let effect = if is_dry(&wish["dryRun"]) || !query.get("dryRun").is_empty() {
        Effect::DryRun
    } else {
        Effect::Stored
    };
    let options: DeleteOptions = match wish {
        Value::Null => DeleteOptions::default(),
        wish => serde_json::from_value(wish.clone())
            .map_err(|error| Status::bad_request(format!("invalid DeleteOptions: {error}")))?,
    };
    evict(shared, namespace, name, &options, effect).await?;
    Ok(respond::success(StatusCode::CREATED, Value::Null))
}

async fn evict(
    shared: &Shared,
    namespace: &str,
    name: &str,
    options: &DeleteOptions,
    effect: Effect,
) -> Result<(), Status> {
    let registry = &shared.registry;
    for attempt in 1.. {
        shared.delay(|latencies| latencies.pod_delete).await;
        let pod = registry.get(Resource::Pods, namespace, name)?;
        let approval = registry.approve_eviction(&pod, effect)?;
        if effect == Effect::DryRun {
            return Ok(());
        }
        let mut options = options.clone();
        let own_version =
            options.preconditions.as_ref().is_some_and(|wanted| wanted.resource_version.is_some());
        let relies_on_state = approval == Approval::Unchanged && !own_version;
        if relies_on_state {
            let version = pod["metadata"]["resourceVersion"].as_str().map(str::to_owned);
            options.preconditions.get_or_insert_default().resource_version = version;
        }
        let marked = registry.mark_for_eviction(namespace, name, &options);
        let marked = match marked {
            // An eviction of a pod that has not started may be retried here; one that counted as unhealthy may have
            // become healthy, so retrying is up to the client.
            Err(status) if relies_on_state && status.code() == 409 => {
                let pending = pod["status"]["phase"] == "Pending";
                if pending && attempt < ATTEMPTS {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                return Err(if pending { status } else { still_processed(name) });
            }
            marked => marked?,
        };
        if let Some(version) =
            options.preconditions.as_mut().and_then(|wanted| wanted.resource_version.as_mut())
        {
            // The change of version came from our own mark.
            *version = marked["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        }
        return if relies_on_state {
            registry.delete(Resource::Pods, namespace, name, &options).map(|_| ())
        } else {
            shared.delete_pod(namespace, name, &options).await.map(|_| ())
        };
    }
    Ok(())
}
