//! The `token` subresource of service accounts: `kubectl create token`.

use std::time::Duration;

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use jiff::SignedDuration;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::Shared;
use super::super::registry::check_shape_of;
use super::super::resource::Resource;
use super::super::schema;
use super::super::status::{FieldError, Status};
use super::body::read_object;
use super::present::now;
use super::respond::{self, Answer};

const GROUP: &str = "authentication.k8s.io";
const API_VERSION: &str = "authentication.k8s.io/v1";
const KIND: &str = "TokenRequest";
/// How long a token is valid when the request does not say
/// (pkg/apis/authentication/v1/defaults.go).
const DEFAULT_SECONDS: u64 = 60 * 60;
/// The shortest and the longest (pkg/apis/authentication/validation/validation.go).
const SHORTEST_SECONDS: u64 = 10 * 60;
const LONGEST_SECONDS: u64 = 1 << 32;

/// Makes a token for a service account.
pub(super) async fn answer(
    request: Request<Incoming>,
    shared: &Shared,
    namespace: &str,
    name: &str,
) -> Result<Answer, Status> {
    if request.method() != Method::POST {
        return Err(Status::method_not_allowed());
    }
    let account = shared.registry.get(Resource::ServiceAccounts, namespace, name)?;
    let top = schema::named(KIND).ok_or_else(|| Status::internal("there is no schema of a token request"))?;
    let asked = read_object(request, top).await?.value;
    check_shape_of(top, API_VERSION, &asked)?;
    let seconds = valid_for(&asked["spec"])?;
    let expires = Instant::now() + Duration::from_secs(seconds);
    let shown = now(shared) + SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
    let audiences = match &asked["spec"]["audiences"] {
        Value::Array(given) if !given.is_empty() => json!(given),
        _ => json!(["https://kubernetes.default.svc.cluster.local"]),
    };
    let answered = json!({
        "kind": KIND,
        "apiVersion": API_VERSION,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "creationTimestamp": shared.registry.now(),
            "uid": account["metadata"]["uid"],
        },
        "spec": {"audiences": audiences, "expirationSeconds": seconds, "boundObjectRef": null},
        "status": {
            "token": shared.tokens.issue(namespace, name, Some(expires)),
            "expirationTimestamp": shown.to_string(),
        },
    });
    Ok(respond::json(StatusCode::CREATED, &answered))
}

/// How many seconds the token is to be valid.
fn valid_for(spec: &Value) -> Result<u64, Status> {
    let invalid = |error| Err(Status::invalid_kind(GROUP, KIND, "", &[error]));
    if !spec["boundObjectRef"].is_null() {
        let why = "tokens that end with another object do not exist in the embedded cluster";
        return invalid(FieldError::forbidden("spec.boundObjectRef", why));
    }
    let given = &spec["expirationSeconds"];
    let why = match given.as_u64() {
        None if given.is_null() => return Ok(DEFAULT_SECONDS),
        Some(seconds @ SHORTEST_SECONDS..=LONGEST_SECONDS) => return Ok(seconds),
        Some(seconds) if seconds > LONGEST_SECONDS => "may not specify a duration larger than 2^32 seconds",
        _ => "may not specify a duration less than 10 minutes",
    };
    invalid(FieldError::invalid("spec.expirationSeconds", given, why))
}
