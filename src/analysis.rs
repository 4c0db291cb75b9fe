//! Windows, attribution, causes, statistics and the recommendation.
//!
//! Pure: data in, data out. No clock, no I/O, no async.

pub mod model;

pub use model::{Analysis, RunResult};
