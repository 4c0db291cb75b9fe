//! The `scale` subresource: a workload's replica count, in the same form for all kinds.

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::super::registry::{ObjectPart, check_shape_of};
use super::super::resource::Resource;
use super::super::schema::{self, Structure};
use super::super::shared::ClusterContext;
use super::super::status::{FieldError, Status};
use super::body::read_change;
use super::fields::FieldWarnings;
use super::query::Query;
use super::respond::{self, ApiResponse};
use super::table;

const KIND: &str = "Scale";
const GROUP: &str = "autoscaling";
const API_VERSION: &str = "autoscaling/v1";

/// Serves a request for a workload's `scale` subresource.
pub(super) async fn answer(
    request: Request<Incoming>,
    shared: &ClusterContext,
    query: &Query,
    resource: Resource,
    namespace: &str,
    name: &str,
) -> Result<ApiResponse, Status> {
    let registry = &shared.registry;
    let show = |object: &Value| respond::json(StatusCode::OK, &scale_of(object));
    if *request.method() == Method::GET {
        return Ok(show(&*registry.get(resource, namespace, name)?));
    }
    let top = schema::named(KIND).ok_or_else(|| Status::internal("the schema has no Scale"))?;
    let effect = query.effect()?;
    let (patch, validation) = read_change(request, query, top).await?;
    let mut warnings = FieldWarnings::default();
    let scaled = registry.modify_with(resource, namespace, name, ObjectPart::Main, effect, |object| {
        let scale = patch.apply(top, &scale_of(object))?;
        warnings = validation.judge_changed(patch.kind, top, &scale)?;
        set_scale(object, top, &scale)
    })?;
    Ok(warnings.add_to(show(&scaled)))
}

/// Copies the replica count from `scale` to `object`, and also the name, uid and version so that a scale for another
/// object or an older state is rejected.
fn set_scale(object: &mut Value, top: &Structure, scale: &Value) -> Result<(), Status> {
    check_shape_of(top, API_VERSION, scale)?;
    let replicas = scale["spec"]["replicas"].as_i64().unwrap_or(0);
    if replicas < 0 {
        let why = "must be greater than or equal to 0";
        let error = FieldError::invalid("spec.replicas", &json!(replicas), why);
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        return Err(Status::invalid_kind(GROUP, KIND, name, &[error]));
    }
    for field in ["name", "namespace", "uid", "resourceVersion"] {
        object["metadata"][field] = scale["metadata"][field].clone();
    }
    object["spec"]["replicas"] = json!(replicas);
    Ok(())
}

fn scale_of(object: &Value) -> Value {
    let metadata = &object["metadata"];
    json!({
        "kind": KIND,
        "apiVersion": API_VERSION,
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
            "creationTimestamp": metadata["creationTimestamp"],
        },
        "spec": {"replicas": object["spec"]["replicas"]},
        "status": {
            "replicas": object["status"]["replicas"].as_i64().unwrap_or(0),
            "selector": table::selector(&object["spec"]["selector"]),
        },
    })
}
