//! A watch of real traffic, which is the work of `rolldrop watch`: each termination is explained once its pod is gone
//! and the requests near it are known, and is then shown, ranked, recorded, and counted in metrics and Events.
//!
//! [`watch`] is the whole watch. It reads what `drive` follows (objects, access logs and the sidecars' journals), asks
//! `explain` what happened, and takes its words from `report`. What it shows goes to a [`WatchViewer`].

mod declared_consumers;
#[expect(missing_docs, reason = "the error messages say what the fields are")]
mod error;
mod exported_metrics;
mod gateway_lines;
mod kept_history;
mod metrics_port;
mod read_sidecars;
mod viewer;
mod watching;
mod workload_events;

pub use error::WatchError;
pub use gateway_lines::LogArg;
pub use metrics_port::MetricsPort;
pub use viewer::WatchViewer;
pub use watching::{RankedWatch, WatchSettings, watch};
