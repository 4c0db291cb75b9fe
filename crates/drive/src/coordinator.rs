//! Applies manifests, disrupts workloads, watches the cluster, and collects records.
//!
//! A [`Session`] is one run's access to one cluster. It uses a `kube::Client` and does not know what kind of cluster is
//! behind it. Everything that it sees goes to one recorder thread, which owns the run directory's event log and the
//! proxies' tables. A session sends no load and judges nothing.

mod apply;
mod beats;
mod caller;
mod claims;
mod collect;
mod disrupt;
mod edits;
#[expect(missing_docs, reason = "the message of an error says what its fields are")]
mod error;
mod gitops;
mod hold;
mod journal;
mod kinds;
mod limits;
mod lines;
mod live;
mod load_job;
mod others;
mod pages;
mod plan;
mod preflight;
mod ready;
mod recorder;
mod rivals;
mod rollout;
mod routes;
mod server_clock;
mod service_proxy;
mod session;
mod sinks;
mod standstill;
mod targets;
#[cfg(test)]
mod tests;
mod undo;
mod unready;
mod versions;
mod view;
mod waiting;
mod watch;
mod ways;

pub use caller::{Caller, Limits};
pub(crate) use disrupt::{Losses, Programs, Settle, Silence, UnderLoad, codes, until_silent};
pub use error::CoordinatorError;
pub use gitops::{GitOps, controller_of};
pub use hold::Tenure;
pub use kinds::why_no_rollout;
pub use limits::{Round, number_of};
pub use live::{LiveChanges, Sidecar, Whose};
pub(crate) use load_job::{LOAD_PORT, LoadJob, LoadPod, default_workers};
pub use others::changed as changed_by_others;
pub(crate) use pages::list_at_once;
pub use plan::Plan;
pub(crate) use plan::Work;
pub(crate) use rollout::Workloads;
pub use routes::services_behind_in;
pub(crate) use session::{Closed, Session, SessionStart};
pub(crate) use targets::{Ready, at_node};
pub use undo::Undone;
pub use undo::left_over::{LeftOvers, Since};
