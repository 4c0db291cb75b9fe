//! The embedded cluster, as the program uses it: the lab, and the process in which it runs.
//!
//! Builds with the feature `embedded` have one, on Linux. Others have `absent` in its place; besides this module only
//! `cli`, where the commands are, asks which it is.

#[cfg(not(all(feature = "embedded", target_os = "linux")))]
mod absent;
#[cfg(all(feature = "embedded", target_os = "linux"))]
pub(crate) mod child;

#[cfg(not(all(feature = "embedded", target_os = "linux")))]
pub(crate) use absent::{child, lab};
#[cfg(all(feature = "embedded", target_os = "linux"))]
pub(crate) use rolldrop_lab as lab;

/// Explanation of why there is no embedded cluster, and of the alternatives.
#[cfg(any(test, not(all(feature = "embedded", target_os = "linux"))))]
#[derive(Debug, thiserror::Error)]
#[error("{}", WHY)]
pub(crate) struct NoCluster;

#[cfg(any(test, not(all(feature = "embedded", target_os = "linux"))))]
const WHY: &str = if cfg!(target_os = "linux") {
    "this build of rolldrop has none: measure a cluster of your kubeconfig (run --target svc/web -n shop -- COMMAND, or \
     --context CTX), or build rolldrop with the feature `embedded`, which cargo builds by default"
} else {
    "it needs Linux: measure a cluster of your kubeconfig (run --target svc/web -n shop -- COMMAND, or --context CTX), \
     or run the image of rolldrop in a container (docs/image.md)"
};
