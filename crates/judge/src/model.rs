//! Results of judgements, as types: facts and figures that `report` puts into words.

pub mod basis;
pub mod check;
pub mod comparison;
