//! Handlers for the verbs on objects and collections.

use std::sync::Arc;

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::super::object_fields::key;
use super::super::registry::{DeleteOptions, Deleted, ObjectPart, PageRequest, WriteEffect};
use super::super::resource::Resource;
use super::super::schema;
use super::super::selector::ObjectSelection;
use super::super::shared::ClusterContext;
use super::super::status::Status;
use super::ApiServerState;
use super::api_route::Subresource;
use super::body::{read_change, read_delete_options, read_object};
use super::fields::{FieldValidation, FieldWarnings};
use super::present::Presentation;
use super::query::Query;
use super::respond::{self, ApiResponse};
use super::{modelled, scale, watch_feed};

/// Serves a request for a collection of objects.
pub(super) async fn collection(
    request: Request<Incoming>,
    server: &Arc<ApiServerState>,
    query: &Query,
    resource: Resource,
    namespace: Option<String>,
) -> Result<ApiResponse, Status> {
    let presentation = Presentation::of(&request, query)?;
    let shared = &server.shared;
    let registry = &shared.registry;
    let selection = ObjectSelection::parse(resource, query.get("labelSelector"), query.get("fieldSelector"))?;
    match *request.method() {
        Method::GET if query.is_set("watch") => {
            watch_feed::answer(server, query, presentation, resource, namespace.as_deref(), selection)
        }
        Method::GET => {
            let request = page_request(query)?;
            let page = registry.list_page(resource, namespace.as_deref(), &selection, &request)?;
            let mut metadata = json!({"resourceVersion": page.list.version.to_string()});
            if let Some(token) = page.next {
                metadata["continue"] = json!(token);
            }
            Ok(presentation.list(shared, resource, &metadata, &page.list.items))
        }
        Method::POST => {
            let effect = query.effect()?;
            let namespace = match (namespace, resource.namespaced()) {
                (Some(namespace), _) => namespace,
                (None, false) => String::new(),
                (None, true) => return Err(Status::method_not_allowed()),
            };
            let validation = FieldValidation::of(query, "CreateOptions")?;
            let object = read_object(request, schema::of(resource)).await?;
            let mut warnings = validation.judge_object(schema::of(resource), &object)?;
            if resource == Resource::Pods {
                shared.delay(|latencies| latencies.pod_create).await;
            }
            let created = registry.create_with(resource, &namespace, object, effect)?;
            if effect == WriteEffect::Stored {
                warnings.extend(modelled::record(shared, resource, None, &created));
            }
            Ok(warnings.add_to(presentation.object(StatusCode::CREATED, shared, resource, &created)))
        }
        Method::DELETE => {
            let options = read_delete_options(request, query).await?;
            let mut items = Vec::new();
            for object in registry.list(resource, namespace.as_deref(), &selection).items {
                let (namespace, name) = key(&object);
                match delete(shared, resource, &namespace, &name, &options).await {
                    Ok(deleted) => items.push(deleted.object().clone()),
                    // Another client deleted the object first.
                    Err(status) if status.code() == 404 => {}
                    Err(status) => return Err(status),
                }
                // There may be thousands of objects, so let other tasks run in between.
                tokio::task::yield_now().await;
            }
            Ok(presentation.list(shared, resource, &json!({}), &items))
        }
        _ => Err(Status::method_not_allowed()),
    }
}

/// Serves a request for one object or one of its subresources.
pub(super) async fn object(
    request: Request<Incoming>,
    server: &Arc<ApiServerState>,
    query: &Query,
    resource: Resource,
    namespace: &str,
    name: &str,
    subresource: &Subresource,
) -> Result<ApiResponse, Status> {
    let presentation = Presentation::of(&request, query)?;
    let shared = &server.shared;
    let registry = &shared.registry;
    let part = match subresource {
        Subresource::Status => ObjectPart::Status,
        Subresource::Scale => return scale::answer(request, shared, query, resource, namespace, name).await,
        _ => ObjectPart::Main,
    };
    let show = |object: &Value| presentation.object(StatusCode::OK, shared, resource, object);
    let answer = match *request.method() {
        Method::GET => show(&*registry.get(resource, namespace, name)?),
        Method::PUT | Method::PATCH => {
            let effect = query.effect()?;
            let top = schema::of(resource);
            let (patch, validation) = read_change(request, query, top).await?;
            let mut warnings = FieldWarnings::default();
            let judge = |changed: &Value| {
                warnings = validation.judge_changed(patch.kind, top, changed)?;
                Ok(())
            };
            let before = registry.get(resource, namespace, name).ok();
            let changed = registry.patch(resource, namespace, name, part, &patch, effect, judge)?;
            if effect == WriteEffect::Stored && part == ObjectPart::Main {
                warnings.extend(modelled::record(shared, resource, before.as_deref(), &changed));
            }
            warnings.add_to(show(&changed))
        }
        Method::DELETE if part == ObjectPart::Main => {
            let options = read_delete_options(request, query).await?;
            respond_deleted(resource, &delete(shared, resource, namespace, name, &options).await?)
        }
        _ => return Err(Status::method_not_allowed()),
    };
    Ok(answer)
}

async fn delete(
    shared: &ClusterContext,
    resource: Resource,
    namespace: &str,
    name: &str,
    options: &DeleteOptions,
) -> Result<Deleted, Status> {
    if resource == Resource::Pods {
        return shared.delete_pod(namespace, name, options).await;
    }
    shared.registry.delete(resource, namespace, name, options)
}

/// Builds the response to a deletion: the object for pods, Services and objects that still exist, otherwise a success
/// status.
fn respond_deleted(resource: Resource, deleted: &Deleted) -> ApiResponse {
    let object = deleted.object();
    if matches!(deleted, Deleted::Terminating(_)) || matches!(resource, Resource::Pods | Resource::Services) {
        return respond::json(StatusCode::OK, object);
    }
    let mut details = json!({
        "name": object["metadata"]["name"],
        "kind": resource.plural(),
        "uid": object["metadata"]["uid"],
    });
    if !resource.group().is_empty() {
        details["group"] = json!(resource.group());
    }
    respond::success(StatusCode::OK, details)
}

/// Reads the paging parameters from the query. Every list shows the current state, which is never older than the
/// version that a client asks for.
fn page_request(query: &Query) -> Result<PageRequest, Status> {
    if !matches!(query.get("resourceVersionMatch"), "" | "NotOlderThan") {
        return Err(Status::bad_request(
            "lists show only the current state: use resourceVersionMatch=NotOlderThan",
        ));
    }
    let number = |name: &str| match query.get(name) {
        "" => Ok(0),
        text => text.parse::<u64>().map_err(|_| Status::bad_request(format!("invalid {name}: {text:?}"))),
    };
    number("resourceVersion")?;
    let limit = usize::try_from(number("limit")?).unwrap_or(usize::MAX);
    Ok(PageRequest { limit, token: query.get("continue").to_owned() })
}
