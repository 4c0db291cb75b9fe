//! Results of judgements, as types.

pub mod comparison;
