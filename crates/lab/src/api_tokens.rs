//! API users: bearer tokens and the users that they authenticate.
//!
//! [RBAC](super::rbac) decides what users may do. Only a token's digest is stored, so neither reading memory nor timing
//! a comparison reveals anything about the token.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use ring::digest::{SHA256, digest};

use super::sync::lock;

type Digest = [u8; 32];

/// Tokens of one cluster. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ApiTokens {
    holders: Arc<Mutex<HashMap<Digest, User>>>,
}

/// User that a token authenticates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum User {
    /// User of the kubeconfig.
    Admin,
    /// A service account, usually a pod's.
    ServiceAccount {
        /// Namespace of the service account.
        namespace: String,
        /// Name of the service account.
        name: String,
    },
}

impl ApiTokens {
    /// Issues a token for the kubeconfig's user.
    pub(crate) fn issue_admin(&self) -> String {
        self.issue_for(User::Admin)
    }

    /// Issues a token for a service account, valid until [`ApiTokens::revoke`].
    pub(crate) fn issue(&self, namespace: &str, service_account: &str) -> String {
        let (namespace, name) = (namespace.to_owned(), service_account.to_owned());
        self.issue_for(User::ServiceAccount { namespace, name })
    }

    pub(crate) fn revoke(&self, token: &str) {
        lock(&self.holders).remove(&digest_of(token));
    }

    /// Returns the user that `token` authenticates, if it is valid.
    pub(crate) fn user(&self, token: &str) -> Option<User> {
        lock(&self.holders).get(&digest_of(token)).cloned()
    }

    fn issue_for(&self, user: User) -> String {
        let token = format!("{:032x}{:032x}", rand::random::<u128>(), rand::random::<u128>());
        let mut holders = lock(&self.holders);
        holders.insert(digest_of(&token), user);
        token
    }
}

fn digest_of(token: &str) -> Digest {
    digest(&SHA256, token.as_bytes()).as_ref().try_into().unwrap_or_default()
}

impl User {
    /// Returns the user's name, as `kubectl auth whoami` shows it.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Admin => "kubernetes-admin".to_owned(),
            Self::ServiceAccount { namespace, name, .. } => {
                format!("system:serviceaccount:{namespace}:{name}")
            }
        }
    }

    pub(crate) fn groups(&self) -> Vec<String> {
        let own = match self {
            Self::Admin => vec!["system:masters".to_owned()],
            Self::ServiceAccount { namespace, .. } => {
                vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")]
            }
        };
        own.into_iter().chain(["system:authenticated".to_owned()]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_valid_until_revoked() {
        let tokens = ApiTokens::default();
        let (admin, pod) = (tokens.issue_admin(), tokens.issue("shop", "default"));
        assert_eq!(tokens.user(&admin), Some(User::Admin));
        assert_eq!(tokens.user(&pod).unwrap().name(), "system:serviceaccount:shop:default");
        assert_eq!(tokens.user(""), None);
        tokens.clone().revoke(&pod);
        assert_eq!(tokens.user(&pod), None);
        assert_eq!(tokens.user(&admin), Some(User::Admin));
    }
}
