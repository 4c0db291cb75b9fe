//! Calls to the cluster, and differences between the states of its objects.
//!
//! A [`Caller`] has everything that a call needs. It uses a `kube::Client`, so it works with any kind of cluster.

pub(crate) mod caller;
pub(crate) mod edits;
pub(crate) mod kinds;
mod node_agent;
mod pages;

pub use caller::{Caller, TimeLimits};
pub(crate) use caller::{Pauses, is_too_many, may_have_been_done, retry_after};
pub(crate) use kinds::resource_of;
pub use kinds::{pod_selector, why_no_rollout};
pub(crate) use node_agent::{agent_path, ask_agent};
pub(crate) use pages::{Pages, page};
