//! Likeness of windows within one rollout, compared with windows of different rollouts. The more alike they are, the
//! less the number of ends that are apart counts as a number of independent ones.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use rolldrop_explain::math::stats;
use rolldrop_explain::model::apart;
use rolldrop_explain::model::{Mode, Termination};

/// Likeness of one consumer's windows within a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alike {
    /// Rollouts with at least one window.
    pub rollouts: usize,
    /// Number of ends of windows that are apart from each other, in all rollouts.
    pub ends: usize,
    /// Intraclass correlation of these windows: 0 if a rollout tells nothing about its windows, 1 if all windows of a
    /// rollout have the same length. Estimated, so it may be slightly below 0.
    pub correlation: f64,
}

/// Returns the likeness of this consumer's windows within a rollout. `None` with fewer than two rollouts, or if none
/// has two ends that are apart.
pub(super) fn alike(terminations: &[Termination], consumer: &str) -> Option<Alike> {
    let of_rollouts = terminations.iter().filter(|t| t.mode == Mode::Rollout);
    let windows = of_rollouts.map(|t| (t, t.windows.iter().find(|window| window.consumer == consumer)));
    let mut rollouts: BTreeMap<_, Vec<f64>> = BTreeMap::new();
    for block in apart(windows) {
        let uppers = block.iter().filter_map(|(_, window)| window.and_then(|w| w.upper_s));
        if let (Some((first, _)), Some(longest)) = (block.first(), uppers.max_by(f64::total_cmp)) {
            rollouts.entry((first.disruption, first.repetition)).or_default().push(longest);
        }
    }
    let groups: Vec<Vec<f64>> = rollouts.into_values().collect();
    let correlation = stats::intraclass_correlation(&groups)?;
    Some(Alike { rollouts: groups.len(), ends: groups.iter().map(Vec::len).sum(), correlation })
}
