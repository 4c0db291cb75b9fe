//! Episodes: terminations that overlap, share dropped requests or may have left the rules in one step, so their losses
//! occur together.
//!
//! If one Service-proxy sync removes several pods of a rollout, their windows end together, and often nothing shows
//! which pod lost a request. Such terminations are not independent. An episode comprises all terminations that overlap
//! in time, directly or through others. Pods that exit at once do not overlap, but one sync may still remove several.
//! The loss of an episode is exact, regardless of which pod lost a request.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use rolldrop_explain::math::sets::Sets;
use rolldrop_explain::model::{Mode, RunResult, Termination, Window, apart};
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

/// Returns the episodes of a run, in order of their first termination, and the number of each termination's episode.
pub(crate) fn episodes(ends: &[PodEnd], result: &RunResult) -> (Vec<Episode>, Vec<usize>) {
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
    join_steps(&mut sets, &result.terminations);
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
    let place = |e| episodes.keys().position(|first| *first == sets.first(e)).unwrap_or(0);
    let episode_of = (0..result.terminations.len()).map(place).collect();
    (episodes.into_values().collect(), episode_of)
}

/// Joins the terminations that a consumer may have removed from its rules in one step. Pods deleted one at a time do
/// not count, because the run awaits their step; neither do windows whose end is unknown.
fn join_steps(sets: &mut Sets, terminations: &[Termination]) {
    let windows = || terminations.iter().flat_map(|t| t.windows.iter().map(move |window| (t, window)));
    let consumers: BTreeSet<&str> = windows().map(|(_, window)| window.consumer.as_str()).collect();
    for consumer in consumers {
        let is_counted = |(t, window): &(&Termination, &Window)| {
            window.consumer == consumer && window.upper_s.is_some() && t.mode != Mode::Isolated
        };
        for step in apart(windows().filter(is_counted).map(|(t, window)| (t, Some(window)))) {
            let place = |t: &Termination| terminations.iter().position(|other| std::ptr::eq(other, t));
            let places: Vec<usize> = step.iter().filter_map(|(t, _)| place(t)).collect();
            for pair in places.windows(2) {
                sets.join(pair[0], pair[1]);
            }
        }
    }
}
