//! rolldrop measures which requests are lost when Kubernetes pods go away, why,
//! and what setting would have saved them.
//!
//! This package is the program: the command line and the coordinator of a run. What plans, what measures and what
//! judges are libraries below it (`crates`). Data flows one way: a [`rolldrop_scenario`] plans a run; [`rolldrop_load`],
//! [`rolldrop_sidecar`] and `coordinator` write a run directory in the terms of [`rolldrop_record`]; [`rolldrop_explain`]
//! reads it; [`rolldrop_report`] shows the analysis. `docs/architecture.md` is the map.

pub mod cli;
mod cluster;
mod coordinator;
mod embedded;
