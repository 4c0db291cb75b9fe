//! One run against one cluster: carries out a scenario, watches and collects what happens, and undoes its changes.
//!
//! [`run`] contains the steps of a run. [`cluster`] connects to a real cluster or starts the embedded one
//! ([`embedded`]), and provides the same client for either. A `coordinator::Session` is a run's access to the
//! cluster. A [`viewer::Viewer`] shows progress. This crate does not judge results.

pub mod cluster;
pub mod coordinator;
pub mod embedded;
mod following;
mod operator;
mod private_dir;
pub mod run;
pub mod viewer;

pub use following::follow;
pub use operator::{Interrupts, Operator};
pub use private_dir::private_dir;
