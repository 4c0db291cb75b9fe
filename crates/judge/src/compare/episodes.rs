//! Episodes: terminations that overlap, or that share dropped requests, so that losses come together.
//!
//! Pods of one rollout that one Service-proxy sync removes share their window's end, and often nothing shows which of
//! them lost a request. So they are not independent. An episode is all terminations whose ends overlap in time,
//! directly or through others. Its loss is exact, whichever pod lost it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use rolldrop_explain::math::sets::Sets;
use rolldrop_explain::model::{Mode, RunResult, Termination};
use rolldrop_explain::timeline::PodEnd;

/// Terminations that are lost or survived together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// Mode of its pods; `other` if they have several.
    pub mode: Mode,
    /// Number of its terminations.
    pub terminations: usize,
    /// Number of requests that one of them dropped.
    pub dropped: u64,
}

/// Returns the episodes of a run, in order of their first termination.
pub(crate) fn episodes(ends: &[PodEnd], result: &RunResult) -> Vec<Episode> {
    let mut sets = Sets::new(ends.len());
    for (a, one) in ends.iter().enumerate() {
        for (b, other) in ends.iter().enumerate().skip(a + 1) {
            if one.overlaps(other) {
                sets.join(a, b);
            }
        }
    }
    for group in &result.groups {
        for pair in group.terminations.windows(2) {
            sets.join(pair[0], pair[1]);
        }
    }
    let mut episodes: BTreeMap<usize, Episode> = BTreeMap::new();
    for (e, Termination { mode, .. }) in result.terminations.iter().enumerate() {
        let none = || Episode { mode: *mode, terminations: 0, dropped: 0 };
        let episode = episodes.entry(sets.first(e)).or_insert_with(none);
        episode.terminations += 1;
        if episode.mode != *mode {
            episode.mode = Mode::Other;
        }
    }
    for group in &result.groups {
        let first = group.terminations.first().map(|first| sets.first(*first));
        if let Some(episode) = first.and_then(|first| episodes.get_mut(&first)) {
            episode.dropped += group.dropped;
        }
    }
    episodes.into_values().collect()
}
