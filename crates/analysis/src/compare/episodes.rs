//! What is lost together: terminations that overlap, or that share dropped requests.
//!
//! Pods of one rollout that one Service-proxy sync removes share their window's end, and often nothing shows which of
//! them lost a request. So they are not independent. An episode is all terminations whose ends overlap in time,
//! directly or through others. Its loss is exact, whichever pod lost it.

use serde::{Deserialize, Serialize};

use crate::model::{Analysis, Mode, Stage, Termination};

/// Terminations that are lost or survived together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// The mode of its pods; `other` if they have several.
    pub mode: Mode,
    /// Its terminations.
    pub terminations: usize,
    /// Requests that one of them dropped.
    pub dropped: u64,
}

/// The episodes of a run, in order of their first termination.
pub(crate) fn episodes(analysis: &Analysis) -> Vec<Episode> {
    let all = &analysis.result.terminations;
    let mut episode_of: Vec<usize> = (0..all.len()).collect();
    let mut join = |a: usize, b: usize| {
        let [a, b] = [episode_of[a], episode_of[b]];
        episode_of.iter_mut().filter(|of| **of == a.max(b)).for_each(|of| *of = a.min(b));
    };
    for (a, one) in all.iter().enumerate() {
        for (b, other) in all.iter().enumerate().skip(a + 1) {
            if overlap(one, other) {
                join(a, b);
            }
        }
    }
    for group in &analysis.result.groups {
        for pair in group.terminations.windows(2) {
            join(pair[0], pair[1]);
        }
    }
    let mut episodes = Vec::new();
    for first in 0..all.len() {
        let of = |e: &usize| episode_of.get(*e) == Some(&first);
        let mut members = all.iter().enumerate().filter(|(e, _)| of(e)).map(|(_, t)| t.mode);
        let Some(mode) = members.next() else { continue };
        let (mut terminations, mut mixed) = (1, false);
        for other in members {
            terminations += 1;
            mixed |= other != mode;
        }
        let is_its = |group: &&crate::model::LossGroup| group.terminations.first().is_some_and(of);
        let dropped = analysis.result.groups.iter().filter(is_its).map(|group| group.dropped).sum();
        episodes.push(Episode { mode: if mixed { Mode::Other } else { mode }, terminations, dropped });
    }
    episodes
}

/// Whether one began before the other had ended.
fn overlap(a: &Termination, b: &Termination) -> bool {
    let begun = |t: &Termination| t.t0_s - t.t0_uncertainty_s;
    begun(a) <= end_s(b) && begun(b) <= end_s(a)
}

/// When nothing of a pod was left, as far as it was seen.
fn end_s(t: &Termination) -> f64 {
    let gone =
        [Stage::PodDeleted, Stage::ContainersTerminated].iter().find_map(|stage| t.timeline.get(stage));
    gone.map_or(f64::INFINITY, |gone| t.t0_s + gone)
}
