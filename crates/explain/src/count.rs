//! Totals over all requests: counts, durations and shares.

pub(crate) mod outages;
pub(crate) mod reached;
pub(crate) mod request_counts;
pub mod steady_streams;
pub(crate) mod sums;
pub(crate) mod while_ending;
