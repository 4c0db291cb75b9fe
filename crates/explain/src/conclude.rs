//! Conclusions for the reader: validity, findings and recommendations.

pub(crate) mod aim;
pub(crate) mod charting;
pub(crate) mod findings;
mod phase;
pub(crate) mod recommend;
pub(crate) mod start_entries;
pub(crate) mod termination_entries;
pub mod validity;
pub(crate) mod working;
