//! Applies manifests, disrupts, watches, collects.
//!
//! A [`Session`] is one run's access to one cluster. It knows a `kube::Client` and not what kind of cluster is behind
//! it. Everything that it sees goes to one recorder thread, which owns the run directory's event log and the tables
//! of the proxies. It sends no load and judges nothing.

mod apply;
mod beats;
mod caller;
mod claims;
mod collect;
mod disrupt;
mod edits;
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
mod viewer;
mod waiting;
mod watch;
mod ways;

pub(crate) use caller::{Caller, Limits};
pub(crate) use disrupt::{Losses, Programs, Settle, Silence, UnderLoad, codes, until_silent};
pub(crate) use error::CoordinatorError;
pub(crate) use gitops::{GitOps, controller_of};
pub(crate) use hold::Tenure;
pub(crate) use kinds::why_no_rollout;
pub(crate) use limits::{Round, number_of};
pub(crate) use live::{LiveChanges, Sidecar, Whose};
pub(crate) use load_job::{LOAD_PORT, LoadJob, LoadPod, default_workers};
pub(crate) use others::changed as changed_by_others;
pub(crate) use pages::list_at_once;
pub(crate) use plan::{Plan, Work};
pub(crate) use rollout::Workloads;
pub(crate) use routes::services_behind_in;
pub(crate) use session::{Closed, Session, Settings};
pub(crate) use targets::{Ready, at_node};
pub(crate) use undo::Undone;
pub(crate) use undo::left_over::{LeftOvers, Since};
pub(crate) use viewer::{Standing, Viewer, Wait};
