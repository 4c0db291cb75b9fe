//! Statistics, independent of the types that describe runs.

pub(crate) mod exact;
pub(crate) mod power;
pub(crate) mod trend;
