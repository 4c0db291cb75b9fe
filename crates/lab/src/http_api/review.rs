//! Reviews, which let a client look up its own identity and permissions.

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::super::api_tokens::User;
use super::super::rbac::{self, AccessTarget, Attributes, ResourceTarget};
use super::super::registry::Registry;
use super::super::status::Status;
use super::super::value::text;
use super::body::read_any;
use super::respond::{self, ApiResponse};

/// Kind of review. Reviews are created and answered in one request, and never stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Review {
    /// Review of the user's permission for an action.
    Access,
    /// Review of the user's identity.
    Subject,
}

impl Review {
    pub(super) const ALL: [Self; 2] = [Self::Access, Self::Subject];

    /// Returns the review's API group and kind.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Access => ("authorization.k8s.io", "SelfSubjectAccessReview"),
            Self::Subject => ("authentication.k8s.io", "SelfSubjectReview"),
        }
    }

    pub(super) const fn group(self) -> &'static str {
        self.names().0
    }

    pub(super) const fn kind(self) -> &'static str {
        self.names().1
    }

    pub(super) fn plural(self) -> String {
        format!("{}s", self.kind().to_lowercase())
    }

    /// Returns the review with this group and plural name.
    pub(super) fn find(group: &str, plural: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|review| review.group() == group && review.plural() == plural)
    }
}

/// Responds to a review created by `user`.
pub(super) async fn answer(
    request: Request<Incoming>,
    registry: &Registry,
    review: Review,
    user: &User,
) -> Result<ApiResponse, Status> {
    if request.method() != Method::POST {
        return Err(Status::method_not_allowed());
    }
    let asked: Value = read_any(request).await?;
    let status = match review {
        Review::Access => access(registry, user, &asked["spec"]),
        Review::Subject => json!({"userInfo": {"username": user.name(), "groups": user.groups()}}),
    };
    let mut answered = json!({
        "kind": review.kind(),
        "apiVersion": format!("{}/v1", review.group()),
        "metadata": {"creationTimestamp": null},
        "status": status,
    });
    if let Some(spec) = asked.get("spec") {
        answered["spec"] = spec.clone();
    }
    Ok(respond::json(StatusCode::CREATED, &answered))
}

fn access(registry: &Registry, user: &User, spec: &Value) -> Value {
    let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let field = |name: &str| text(&resource[name]).to_owned();
    let (verb, target) = if resource.is_object() {
        let target = ResourceTarget {
            group: field("group"),
            resource: field("resource"),
            subresource: field("subresource"),
            namespace: field("namespace"),
            name: field("name"),
        };
        (&resource["verb"], AccessTarget::Resource(target))
    } else {
        (&path["verb"], AccessTarget::Path(text(&path["path"]).to_owned()))
    };
    let attributes = Attributes { verb: text(verb).to_owned(), target };
    match rbac::decide(registry, user, &attributes) {
        Ok(()) => json!({"allowed": true}),
        Err(reason) if reason.is_empty() => json!({"allowed": false}),
        Err(reason) => json!({"allowed": false, "reason": reason}),
    }
}
