//! One run against one cluster: what a scenario plans is done, watched, collected and undone.
//!
//! [`run`] has the steps of a run. [`cluster`] connects to a real cluster, or starts the embedded one ([`embedded`]); both
//! hand out the same client. A [`coordinator::Session`] is a run's access to it. A [`viewer::Viewer`] sees what happens.
//! Nothing here judges what is found.

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
