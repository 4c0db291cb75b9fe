//! The embedded cluster as the rest of the program uses it: the lab, and the process that runs it.
//!
//! Linux builds with the feature `embedded` have one. Other builds have `absent` in its place. Only this module and
//! `cli`, which defines the commands, distinguish the two.

#[cfg(not(all(feature = "embedded", target_os = "linux")))]
mod absent;
#[cfg(all(feature = "embedded", target_os = "linux"))]
pub mod child;

#[cfg(not(all(feature = "embedded", target_os = "linux")))]
pub use absent::{child, lab};
#[cfg(all(feature = "embedded", target_os = "linux"))]
pub use rolldrop_lab as lab;

/// Error that explains why there is no embedded cluster, and what the alternatives are.
#[derive(Debug, thiserror::Error)]
#[error("{}", WHY)]
pub struct NoCluster;

const WHY: &str = if cfg!(target_os = "linux") {
    "this build of rolldrop does not include it: measure a cluster from your kubeconfig (run --target svc/web -n \
     shop -- COMMAND, or --context CTX), or build rolldrop with its default feature `embedded`"
} else {
    "it needs Linux: measure a cluster from your kubeconfig (run --target svc/web -n shop -- COMMAND, or --context \
     CTX), or run the rolldrop image in a container (docs/image.md)"
};
