//! Watches the cluster, records what happens there, and waits for it.
//!
//! Everything that is seen goes to one recorder thread, which owns the run directory's event log and the proxies'
//! tables. Only the beats write to the cluster.

pub(crate) mod beat_writer;
pub(crate) mod event_recorder;
pub(crate) mod foreign_changes;
pub(crate) mod found_targets;
pub(crate) mod list_watch;
pub(crate) mod namespace_view;
pub(crate) mod proxy_detection;
pub(crate) mod ready;
pub(crate) mod rollout_wait;
pub(crate) mod server_clock;
pub(crate) mod sinks;
pub(crate) mod standstill;
pub(crate) mod target_service;
pub(crate) mod unready;
pub(crate) mod waiting;
pub(crate) mod ways;

pub use foreign_changes::changed as changed_by_others;
pub(crate) use found_targets::{Ready, at_node};
pub(crate) use rollout_wait::Workloads;
