//! Conclusions for the reader: validity, findings and recommendations.

pub(crate) mod aim;
pub(crate) mod charts;
pub(crate) mod findings;
mod phase;
pub(crate) mod recommend;
pub(crate) mod starts;
pub(crate) mod terminations;
pub mod validity;
pub(crate) mod working;
