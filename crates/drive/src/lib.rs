//! One run against one cluster: what a scenario plans is done, watched, collected and undone.
//!
//! [`cluster`] connects to a real cluster, or starts the embedded one ([`embedded`]); both hand out the same client. A
//! [`coordinator::Session`] is a run's access to it. Nothing here sends load or judges what is found.

pub mod cluster;
pub mod coordinator;
pub mod embedded;
