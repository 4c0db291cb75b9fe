//! Results of judgements, as types: facts and figures, which `report` puts in words.

pub mod basis;
pub mod check;
pub mod comparison;
