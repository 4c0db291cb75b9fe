//! rolldrop measures which requests are lost when Kubernetes pods go away, why,
//! and what setting would have saved them.
//!
//! Data flows one way: [`load`], [`proxy`] and [`coordinator`] write a run directory
//! in the terms of [`record`]; [`timeline`] and [`analysis`] read it; [`report`] and
//! [`gate`] show and judge the analysis. `docs/architecture.md` is the map.

pub mod analysis;
pub mod cli;
pub mod cluster;
pub mod coordinator;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod gate;
mod http1;
mod http2;
pub mod inject;
pub mod load;
mod machine;
mod observed;
mod places;
pub mod proxy;
pub mod record;
pub mod report;
pub mod scenario;
pub mod timeline;
pub mod workload;
