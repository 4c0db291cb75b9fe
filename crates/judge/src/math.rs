//! Statistics that know nothing of runs.

pub(crate) mod exact;
pub(crate) mod power;
pub(crate) mod trend;
