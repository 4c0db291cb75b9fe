//! Turns recorded measurements into results, and decides what to measure next.
//!
//! [`analysis`] turns a run directory into an analysis and the files of its report. [`gate_looks`] looks at a run in
//! progress while its gate is inconclusive. [`tune`] performs a series of runs, each based on the results so far.
//! [`baseline`] reads earlier runs to compare a run with, and [`load_result`] contains the result of a load outside a
//! run.

pub mod analysis;
pub mod baseline;
mod classes;
pub mod fail_on;
pub mod gate_looks;
pub mod hgrm;
pub mod load_result;
pub mod tune;

pub use classes::ByClass;
