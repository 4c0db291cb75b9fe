//! Decisions about results: the gate's checks, comparisons with other runs, and the sleep that a tuning chooses.
//!
//! Pure: results in, decisions out. `gate` checks one result against what is expected of it, and `standing` says in a
//! word what the checks amount to; `spending` shares the gate's error between its looks. `compare` sets runs against a
//! baseline, `tune` chooses and proves a sleep. `model` has checks and comparisons as types, which `report` puts in words;
//! `math` holds the formulas that only decisions need.

pub mod compare;
pub mod gate;
mod math;
pub mod model;
pub mod spending;
pub mod standing;
pub mod tune;

use model::check::Check;
use rolldrop_explain::RunResult;
use rolldrop_record::Expect;

/// Checks every expectation, in a fixed order, and the defaults of every gate ([`gate::with_defaults`]). Without
/// expectations there is no gate; only the user's command is checked.
pub fn check(result: &RunResult, expect: &Expect) -> Vec<Check> {
    if expect.is_empty() {
        return gate::of_command(result);
    }
    let mut checks = gate::with_defaults(result, expect);
    checks.extend(compare::worse::without_baseline(&expect.worse(), result));
    checks
}

#[cfg(test)]
mod tests;
