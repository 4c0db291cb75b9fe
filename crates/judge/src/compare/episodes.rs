//! Episodes: terminations that overlap or share dropped requests, so their losses occur together.
//!
//! If one Service-proxy sync removes several pods of a rollout, their windows end together, and often nothing shows
//! which pod lost a request. Such terminations are not independent. An episode comprises all terminations that overlap
//! in time, directly or through others. The loss of an episode is exact, regardless of which pod lost a request.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use rolldrop_explain::math::sets::Sets;
use rolldrop_explain::model::{Mode, RunResult, Termination};
use rolldrop_explain::timeline::PodEnd;

/// Terminations whose losses occur together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// Mode of the pods; `other` if their modes differ.
    pub mode: Mode,
    /// Number of terminations in the episode.
    pub terminations: usize,
    /// Number of requests that the terminations dropped.
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
