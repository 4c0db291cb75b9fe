//! Measurements from their records to their results, and on to what is measured next.
//!
//! [`analysis`] goes from a run directory to an analysis and the files of its report. A run whose gate is inconclusive
//! is looked at while it lasts ([`gate_looks`]), and a tuning makes run after run ([`tune`]): what one shows decides the
//! next. [`baseline`] reads the runs that a run is compared with, and [`load_result`] has the result of a load that is
//! no part of a run.

pub mod analysis;
pub mod baseline;
mod classes;
pub mod fail_on;
pub mod gate_looks;
pub mod hgrm;
pub mod load_result;
pub mod tune;

pub use classes::ByClass;
