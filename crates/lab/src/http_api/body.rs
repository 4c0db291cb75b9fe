//! Reads request bodies, with limits on size and time.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::super::registry::{DeleteOptions, ObjectPatch, PatchKind};
use super::super::schema::Structure;
use super::super::status::Status;
use super::fields::FieldValidation;
use super::protobuf;
use super::query::Query;

/// Maximum size of a request body, as in Kubernetes.
const MAX_BODY_BYTES: usize = 3 * 1024 * 1024;
/// Maximum number of bytes read and discarded after a body has exceeded the size limit.
const MAX_DISCARDED_BYTES: usize = 64 * 1024 * 1024;
/// Time limit for receiving a complete body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Content types accepted for objects.
const OBJECT_TYPES: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

/// Reads an object of kind `top`.
pub(super) async fn read_object(request: Request<Incoming>, top: &Structure) -> Result<Value, Status> {
    let what = format!(" (must be of type {}): couldn't get version/kind; ", top.name);
    read_as(request, &what).await
}

/// Reads an object of any kind.
pub(super) async fn read_any(request: Request<Incoming>) -> Result<Value, Status> {
    read_as(request, ": ").await
}

async fn read_as(request: Request<Incoming>, what: &str) -> Result<Value, Status> {
    let format = format_of(&request)?;
    let body = read(request).await?;
    let unrecognized = |why| Status::bad_request(format!("the object provided is unrecognized{what}{why}"));
    format.parse(&body).map_err(unrecognized)
}

/// Reads a change to an object of kind `top`: a replacement (PUT) or a patch (PATCH).
pub(super) async fn read_change(
    request: Request<Incoming>,
    query: &Query,
    top: &Structure,
) -> Result<(ObjectPatch, FieldValidation), Status> {
    match *request.method() {
        Method::PUT => {
            let validation = FieldValidation::of(query, "UpdateOptions")?;
            let body = read_object(request, top).await?;
            Ok((ObjectPatch { kind: PatchKind::Replacement, body }, validation))
        }
        Method::PATCH => {
            let validation = FieldValidation::of(query, "PatchOptions")?;
            Ok((read_patch(request).await?, validation))
        }
        _ => Err(Status::method_not_allowed()),
    }
}

async fn read_patch(request: Request<Incoming>) -> Result<ObjectPatch, Status> {
    let accepted = "application/json-patch+json, application/merge-patch+json, \
                    application/strategic-merge-patch+json, application/apply-patch+yaml";
    let kind = PatchKind::from_content_type(&content_type(&request));
    let kind = kind.ok_or_else(|| Status::unsupported_media_type(accepted))?;
    let body = read(request).await?;
    let format = match kind {
        PatchKind::Apply => BodyFormat::Yaml,
        _ => BodyFormat::Json,
    };
    let body =
        format.parse(&body).map_err(|error| Status::bad_request(format!("error decoding patch: {error}")))?;
    Ok(ObjectPatch { kind, body })
}

/// Reads delete options from the body or, for simple clients, from the query parameters.
pub(super) async fn read_delete_options(
    request: Request<Incoming>,
    query: &Query,
) -> Result<DeleteOptions, Status> {
    let format = format_of(&request)?;
    let body = read(request).await?;
    let bad = |error: &dyn std::fmt::Display| Status::bad_request(format!("invalid DeleteOptions: {error}"));
    let mut options: DeleteOptions = if body.is_empty() {
        DeleteOptions::default()
    } else {
        format.parse(&body).map_err(|error| bad(&error))?
    };
    let grace = query.get("gracePeriodSeconds");
    if !grace.is_empty() {
        let number = grace
            .parse()
            .map_err(|_| Status::bad_request(format!("invalid gracePeriodSeconds: {grace:?}")))?;
        options.grace_period_seconds = Some(number);
    }
    match query.get("dryRun") {
        "" => {}
        given => options.dry_run = vec![given.to_owned()],
    }
    let policy = query.get("propagationPolicy");
    if !policy.is_empty() {
        options.propagation_policy =
            Some(serde_json::from_value(json!(policy)).map_err(|error| bad(&error))?);
    }
    Ok(options)
}

/// Serialisation format of an object in a request body.
#[derive(Clone, Copy)]
pub(super) enum BodyFormat {
    Json,
    Yaml,
    Protobuf,
}

impl BodyFormat {
    pub(super) fn parse<T: DeserializeOwned>(self, body: &[u8]) -> Result<T, String> {
        match self {
            Self::Json => serde_json::from_slice(body).map_err(|error| format!("json parse error: {error}")),
            Self::Yaml => {
                serde_saphyr::from_slice(body).map_err(|error| format!("yaml parse error: {error}"))
            }
            Self::Protobuf => {
                let object = protobuf::decode(body)?;
                T::deserialize(object).map_err(|error| error.to_string())
            }
        }
    }
}

fn format_of(request: &Request<Incoming>) -> Result<BodyFormat, Status> {
    match content_type(request).as_str() {
        "" | "application/json" => Ok(BodyFormat::Json),
        "application/yaml" => Ok(BodyFormat::Yaml),
        "application/vnd.kubernetes.protobuf" => Ok(BodyFormat::Protobuf),
        _ => Err(Status::unsupported_media_type(OBJECT_TYPES)),
    }
}

/// Returns the `Content-Type` header, without parameters.
pub(super) fn content_type<B>(request: &Request<B>) -> String {
    let value = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

async fn read(request: Request<Incoming>) -> Result<Bytes, Status> {
    let mut body = request.into_body();
    let body = async {
        let collected = Limited::new(&mut body, MAX_BODY_BYTES).collect().await;
        if collected.is_err() {
            // Drain the body, because a client that is still sending when the connection closes may never see the
            // response.
            let mut rest = Limited::new(&mut body, MAX_DISCARDED_BYTES);
            while let Some(Ok(_)) = rest.frame().await {}
        }
        collected
    };
    let body = tokio::time::timeout(BODY_TIMEOUT, body)
        .await
        .map_err(|_| Status::timeout("the request body did not arrive in time"))?;
    body.map(http_body_util::Collected::to_bytes).map_err(|error| {
        if error.is::<LengthLimitError>() {
            Status::plain(413, format!("Request entity too large: limit is {MAX_BODY_BYTES}"))
        } else {
            Status::bad_request(format!("the request body did not arrive: {error}"))
        }
    })
}
