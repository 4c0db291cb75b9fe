//! Who sends a request: authentication by token.

use http::{Request, header};
use hyper::body::Incoming;

use super::super::resource::Resource;
use super::super::tokens::User;
use super::server::Server;

/// Whom the request's bearer token stands for. A service account's is worth nothing without it.
pub(super) fn authenticate(request: &Request<Incoming>, server: &Server) -> Option<User> {
    let authorization = request.headers().get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = authorization.split_once(' ')?;
    let user = scheme.eq_ignore_ascii_case("bearer").then(|| server.tokens.user(token.trim()))??;
    match &user {
        User::Admin => {}
        User::ServiceAccount { namespace, name } => {
            server.shared.registry.get(Resource::ServiceAccounts, namespace, name).ok()?;
        }
    }
    Some(user)
}
