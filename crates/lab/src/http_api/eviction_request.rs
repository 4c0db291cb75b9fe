//! The `eviction` subresource for pods.
//!
//! The [registry](super::super::registry) decides whether a pod may be evicted. This module defines the order and
//! timing of the steps, as watchers observe them in a real cluster: first the condition `DisruptionTarget`, then the
//! deletion.

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use serde_json::Value;

use super::super::registry::{Approval, DeleteOptions, WriteEffect, still_processed};
use super::super::resource::Resource;
use super::super::shared::ClusterContext;
use super::super::status::Status;
use super::super::value::text;
use super::query::Query;
use super::respond::{self, ApiResponse};

/// Evicts a pod, if its PodDisruptionBudget allows that.
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
    let has_version = options.preconditions.as_ref().is_some_and(|wanted| wanted.resource_version.is_some());
    let relies_on_state = registry.approve_eviction(&pod, effect)? == Approval::Unchanged && !has_version;
    if effect == WriteEffect::DryRun {
        return Ok(());
    }
    let mut options = options.clone();
    if relies_on_state {
        let version = text(&pod["metadata"]["resourceVersion"]).to_owned();
        options.preconditions.get_or_insert_default().resource_version = Some(version);
    }
    let marked = registry.mark_for_eviction(namespace, name, &options);
    // A pod that was approved as unhealthy may have become healthy since. The client may retry.
    let is_stale = |status: &Status| relies_on_state && status.code() == 409;
    let marked = marked.map_err(|status| if is_stale(&status) { still_processed(name) } else { status })?;
    if let Some(version) = options.preconditions.as_mut().and_then(|wanted| wanted.resource_version.as_mut())
    {
        // The version changed because of the mark that we set.
        text(&marked["metadata"]["resourceVersion"]).clone_into(version);
    }
    if relies_on_state {
        registry.delete(Resource::Pods, namespace, name, &options).map(drop)
    } else {
        shared.delete_pod(namespace, name, &options).await.map(drop)
    }
}
