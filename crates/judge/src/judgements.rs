//! Results of judgements, as types: facts and figures that `report` puts into words.

pub mod basis;
pub mod comparison;
pub mod gate_check;
