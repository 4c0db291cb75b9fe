//! What a run amounts to: its expectations, its comparison with other runs, and the sleep that a tuning chooses.
//!
//! Pure: results in, decisions out. `gate` checks one result against what is expected of it, and `standing` says in a
//! word what the checks amount to; `spending` shares the gate's error between its looks. `compare` sets runs against a
//! baseline, `tune` chooses and proves a sleep. `math` holds the formulas that only decisions need.

pub mod compare;
pub mod gate;
mod math;
pub mod spending;
pub mod standing;
pub mod tune;

#[cfg(test)]
mod tests;
