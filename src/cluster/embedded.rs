//! The embedded cluster: a Kubernetes API with real processes as pods.
//!
//! Everything runs in one process: [`store`] keeps the objects, [`registry`] gives them
//! Kubernetes' semantics, [`api`] serves them over HTTP, [`controllers`] drive them, and
//! per node an agent runs pods and a Service proxy routes to them. It shares no code with
//! what measures it, the clock aside.

pub mod address;
pub mod config;
mod duration;
pub mod latency;
pub mod node;
pub mod registry;
pub mod resource;
pub mod selector;
pub mod service_proxy;
pub mod status;
pub mod store;

use std::path::PathBuf;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::record::Clock;
pub use config::Config;
use latency::Sampler;
use registry::Registry;

/// What every task of an embedded cluster works with. Clones share it all.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The objects.
    pub registry: Registry,
    /// The cluster's parameters.
    pub config: Arc<Config>,
    /// Draws the delays.
    pub sampler: Sampler,
    /// The process's clock.
    pub clock: Clock,
    /// Where logs of pods and of Service proxies go.
    pub log_dir: Arc<PathBuf>,
    /// Cancelled when the cluster is to end.
    pub stop: CancellationToken,
}
