//! Headings for groups of options in `--help`. The most used options have no heading.

pub(super) const CLUSTER: &str = "Cluster";
pub(super) const LOAD: &str = "Load";
pub(super) const NAMES: &str = "Pod names";
pub(super) const GATE: &str = "Gate";
pub(super) const ENDS: &str = "Terminations";
