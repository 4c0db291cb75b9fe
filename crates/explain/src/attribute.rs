//! Attribution of lost requests: the terminations and other causes that may explain each one.

mod cause_decision;
pub(crate) mod judged;
pub(crate) mod shares;
pub(crate) mod solve;
pub(crate) mod suspects;
