//! Reviews: what a client may ask about itself. Every valid token may do everything.

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use serde_json::json;

use super::super::status::Status;
use super::super::tokens::User;
use super::body::read_any;
use super::respond::{self, Answer};

/// What can be asked. Reviews are created, answered, and never stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Review {
    /// May I do this?
    Access,
    /// What may I do?
    Rules,
    /// Who am I?
    Subject,
}

impl Review {
    pub(super) const ALL: [Self; 3] = [Self::Access, Self::Rules, Self::Subject];

    pub(super) const fn group(self) -> &'static str {
        match self {
            Self::Access | Self::Rules => "authorization.k8s.io",
            Self::Subject => "authentication.k8s.io",
        }
    }

    pub(super) const fn kind(self) -> &'static str {
        match self {
            Self::Access => "SelfSubjectAccessReview",
            Self::Rules => "SelfSubjectRulesReview",
            Self::Subject => "SelfSubjectReview",
        }
    }

    pub(super) const fn plural(self) -> &'static str {
        match self {
            Self::Access => "selfsubjectaccessreviews",
            Self::Rules => "selfsubjectrulesreviews",
            Self::Subject => "selfsubjectreviews",
        }
    }

    /// The review at `group` and `plural`.
    pub(super) fn find(group: &str, plural: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|review| review.group() == group && review.plural() == plural)
    }
}

/// Serves `user`'s review.
pub(super) async fn answer(
    request: Request<Incoming>,
    review: Review,
    user: &User,
) -> Result<Answer, Status> {
    if request.method() != Method::POST {
        return Err(Status::method_not_allowed());
    }
    let asked = read_any(request).await?;
    let everything = json!(["*"]);
    let status = match review {
        Review::Access => json!({"allowed": true, "reason": "every valid token may do everything"}),
        Review::Rules => json!({
            "resourceRules": [{"verbs": everything, "apiGroups": everything, "resources": everything}],
            "nonResourceRules": [{"verbs": everything, "nonResourceURLs": everything}],
            "incomplete": false,
        }),
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
