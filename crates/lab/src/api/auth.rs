//! Who asks, and what the API says about that: authentication by token, and the reviews that
//! clients send to learn about themselves.

use http::{Request, header};
use hyper::body::Incoming;

use super::super::Shared;
use super::super::resource::Resource;
use super::super::tokens::User;

/// Whom the request's bearer token stands for. A service account's is worth nothing without it.
pub(super) fn authenticate(request: &Request<Incoming>, shared: &Shared) -> Option<User> {
    let authorization = request.headers().get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = authorization.split_once(' ')?;
    let user = scheme.eq_ignore_ascii_case("bearer").then(|| shared.tokens.user(token.trim()))??;
    match &user {
        User::Admin => {}
        User::ServiceAccount { namespace, name } => {
            shared.registry.get(Resource::ServiceAccounts, namespace, name).ok()?;
        }
    }
    Some(user)
}
