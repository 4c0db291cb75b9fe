//! Statistics, independent of the types that describe runs.

pub(crate) mod counts;
pub(crate) mod exact;
pub(crate) mod power;
pub(crate) mod trend;
