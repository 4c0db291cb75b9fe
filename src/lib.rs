//! rolldrop measures which requests are lost when Kubernetes pods go away, why,
//! and what setting would have saved them.
//!
//! This package is the program's command line. What plans, what measures and what judges are libraries below it
//! (`crates`). Data flows one way: a [`rolldrop_scenario`] plans a run; [`rolldrop_drive`], [`rolldrop_load`] and
//! [`rolldrop_sidecar`] write a run directory in the terms of [`rolldrop_record`]; [`rolldrop_explain`] reads it;
//! [`rolldrop_judge`] says whether that is good enough; [`rolldrop_report`] shows it; [`rolldrop_campaign`] makes the next
//! measurement of it. `docs/architecture.md` is the map.

pub mod cli;
