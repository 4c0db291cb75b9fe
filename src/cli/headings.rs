//! The groups of options in `--help`, besides those that are used most.

pub(super) const CLUSTER: &str = "Cluster";
pub(super) const LOAD: &str = "Load";
pub(super) const NAMES: &str = "Which pod answered";
pub(super) const GATE: &str = "Gate";
pub(super) const ENDS: &str = "Ends of pods";
