//! Totals over all requests: counts, durations and shares.

pub(crate) mod outages;
pub mod pooled_background;
pub(crate) mod reached;
pub(crate) mod request_counts;
pub mod sleep_evidence;
mod steady_streams;
pub(crate) mod stream_records;
pub(crate) mod stream_totals;
pub(crate) mod sums;
pub mod termination_groups;
pub(crate) mod while_ending;
pub mod workload_ranking;
