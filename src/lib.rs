//! rolldrop measures which requests are lost when Kubernetes pods terminate, why, and which setting would have saved
//! them.
//!
//! This package is the program's command line. Planning, measuring and judging are done by libraries (`crates`). Data
//! flows one way: a [`rolldrop_scenario`] plans a run; [`rolldrop_drive`], [`rolldrop_load`] and [`rolldrop_sidecar`]
//! write a run directory in the terms of [`rolldrop_record`]; [`rolldrop_explain`] reads it; [`rolldrop_judge`] decides
//! whether the result is good enough; [`rolldrop_report`] presents it; [`rolldrop_campaign`] plans the next measurement
//! from it. See `docs/architecture.md` for an overview.

pub mod cli;
