//! One run against one cluster: carries out a scenario, watches and collects what happens, and undoes its changes.
//!
//! [`run`] contains the steps of a run. [`cluster`] connects to a real cluster or starts the embedded one
//! ([`embedded`]), and provides the same client for either. A `session::Session` is a run's access to the cluster. A
//! [`viewer::Viewer`] shows progress. This crate does not judge results.

pub mod act;
pub mod api;
pub mod cluster;
pub mod collect;
pub mod embedded;
#[expect(missing_docs, reason = "the error messages say what the fields are")]
pub mod error;
mod following;
pub mod observe;
mod operator;
pub mod plan;
mod private_dir;
pub mod run;
mod session;
mod tasks;
pub mod undo;
pub mod viewer;

pub use following::follow;
pub use operator::{Interrupts, Operator};
pub use private_dir::private_dir;
