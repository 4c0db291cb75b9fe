//! Changes the cluster: deploys the manifests, changes workloads, terminates pods, and starts the load's pods.

mod apply;
pub(crate) mod disrupt;
pub(crate) mod hold;
pub(crate) mod live_rollout;
pub(crate) mod load_job;
mod workload_event;

pub(crate) use apply::{Applier, Changer};
pub(crate) use disrupt::{Disruptor, Programs, Settle, Silence, UnderLoad, codes, until_silent};
pub use hold::Tenure;
pub use live_rollout::change_for_good;
pub(crate) use load_job::{LOAD_PORT, LoadJob, LoadPod, LoadPods, default_workers};
pub use workload_event::{WorkloadEventText, write_workload_event};
