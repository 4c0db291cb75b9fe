//! The embedded cluster, as the program uses it: the lab, and the process in which it runs.
//!
//! Builds with the feature `embedded` have one, on Linux. Others have `absent` in its place; besides this module only
//! `cli`, where the commands are, asks which it is.

#[cfg(any(test, not(all(feature = "embedded", target_os = "linux"))))]
#[cfg_attr(
    all(feature = "embedded", target_os = "linux"),
    expect(dead_code, reason = "only its tests use it in this build")
)]
pub(crate) mod absent;
#[cfg(all(feature = "embedded", target_os = "linux"))]
pub(crate) mod child;

#[cfg(not(all(feature = "embedded", target_os = "linux")))]
pub(crate) use absent::{child, lab};
#[cfg(all(feature = "embedded", target_os = "linux"))]
pub(crate) use rolldrop_lab as lab;
