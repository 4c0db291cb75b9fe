//! Decisions about results: the gate's checks, comparisons with other runs, and the sleep that a tuning chooses.
//!
//! Pure: results in, decisions out. `gate` checks a result against the expectations of its scenario, and `standing`
//! sums up the checks in one word; `spending` divides the gate's error among its looks. `compare` compares runs with a
//! baseline; `tuning` chooses and proves a sleep; `prediction` estimates how many streams terminations would cut.
//! `judgements` holds checks and comparisons as types, which `report` puts into words; `statistics` holds the formulas
//! that only decisions need.

pub mod compare;
pub mod gate;
pub mod judgements;
pub mod prediction;
pub mod spending;
pub mod standing;
mod statistics;
pub mod tuning;

use judgements::gate_check::Check;
use rolldrop_explain::RunResult;
use rolldrop_record::Expect;

/// Checks every expectation, in a fixed order, and the defaults of every gate ([`gate::with_defaults`]). Without
/// expectations there is no gate, and only the user's command is checked.
pub fn check(result: &RunResult, expect: &Expect) -> Vec<Check> {
    if expect.is_empty() {
        return gate::of_command(result);
    }
    let mut checks = gate::with_defaults(result, expect);
    checks.extend(compare::worse_limits::without_baseline(&expect.worse(), result));
    checks
}

#[cfg(test)]
mod tests;
