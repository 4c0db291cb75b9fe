//! The embedded cluster, as the program uses it: the lab, and the process in which it runs.
//!
//! No other module, except those of the commands, asks whether this build has one.

#[cfg(not(target_os = "linux"))]
pub(crate) mod absent;
#[cfg(target_os = "linux")]
pub(crate) mod child;

#[cfg(not(target_os = "linux"))]
pub(crate) use absent::{child, lab};
#[cfg(target_os = "linux")]
pub(crate) use rolldrop_lab as lab;
