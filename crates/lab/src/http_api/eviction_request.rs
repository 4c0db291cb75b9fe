//! The `eviction` subresource for pods.
//!
//! The [registry](super::super::registry) decides whether a pod may be evicted. This module defines the order and
//! timing of the steps, as watchers observe them in a real cluster: first the `DisruptionTarget` condition, then the
//! deletion.

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use serde_json::Value;

use super::super::object_fields::uid;
use super::super::registry::{DeleteOptions, WriteEffect};
use super::super::resource::Resource;
use super::super::shared::ClusterContext;
use super::super::status::Status;
use super::query::Query;
use super::respond::{self, ApiResponse};

/// Evicts a pod, if its PodDisruptionBudget allows it.
pub(super) async fn answer(
    request: Request<Incoming>,
    shared: &ClusterContext,
    query: &Query,
    namespace: &str,
    name: &str,
) -> Result<ApiResponse, Status> {
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
        WriteEffect::DryRun
    } else {
        WriteEffect::Stored
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
    shared: &ClusterContext,
    namespace: &str,
    name: &str,
    options: &DeleteOptions,
    effect: WriteEffect,
) -> Result<(), Status> {
    let registry = &shared.registry;
    shared.delay(|latencies| latencies.pod_delete).await;
    let pod = registry.get(Resource::Pods, namespace, name)?;
    registry.approve_eviction(&pod, effect)?;
    if effect == WriteEffect::DryRun {
        return Ok(());
    }
    registry.mark_for_eviction(namespace, name, options)?;
    // The mark has changed the version, so only the uid remains as a precondition.
    let options =
        DeleteOptions { grace_period_seconds: options.grace_period_seconds, ..DeleteOptions::of(uid(&pod)) };
    shared.delete_pod(namespace, name, &options).await.map(drop)
}
