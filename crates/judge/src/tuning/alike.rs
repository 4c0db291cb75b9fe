//! Similarity of windows within a rollout, compared with windows from different rollouts. The more similar they are,
//! the fewer independent observations a rollout amounts to.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use rolldrop_explain::math::stats;
use rolldrop_explain::model::apart;
use rolldrop_explain::model::{Mode, Termination};

/// Similarity of one consumer's windows within a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alike {
    /// Number of rollouts with at least one window.
    pub rollouts: usize,
    /// Number of windows that ended separately, in all rollouts.
    pub ends: usize,
    /// Intraclass correlation of these windows: 0 if a window says nothing about the others in its rollout, 1 if all
    /// windows of a rollout have the same length. It is an estimate, so it may be slightly below 0.
    pub correlation: f64,
}

/// Returns the similarity of this consumer's windows within a rollout; `None` if there are fewer than two rollouts, or
/// no rollout has two windows that ended separately.
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
