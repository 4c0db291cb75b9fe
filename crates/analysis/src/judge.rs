//! Checks of expectations, comparisons with other runs, and the choice of a sleep.

pub mod compare;
pub mod gate;
pub mod spending;
pub mod standing;
pub mod tune;
