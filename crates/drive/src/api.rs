//! Calls to the cluster, and differences between the states of its objects.
//!
//! A [`Caller`] has everything that a call needs. It uses a `kube::Client` and does not know what kind of cluster is
//! behind it.

pub(crate) mod caller;
pub(crate) mod edits;
pub(crate) mod kinds;
pub(crate) mod node_agent;
pub(crate) mod pages;

pub use caller::{Caller, Limits};
pub use kinds::why_no_rollout;
pub(crate) use pages::list_at_once;
