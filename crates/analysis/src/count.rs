//! How many, how long, how often: sums over all requests.

pub mod not_sent;
pub(crate) mod outages;
pub(crate) mod reached;
pub(crate) mod requests;
pub(crate) mod sums;
pub(crate) mod while_ending;
