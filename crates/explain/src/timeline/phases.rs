//! Termination phases recorded by the pods' proxies, assigned to pod lives.

use std::collections::{BTreeMap, BTreeSet};

use rolldrop_record::event::ProxyPhase;
use rolldrop_record::{EventKind, Stamp};

/// Life of a pod in terms of its name; a StatefulSet reuses the name for the next pod.
#[derive(Clone, Copy, Debug)]
pub(super) struct LifeOf<'a> {
    pub(super) name: &'a str,
    pub(super) uid: &'a str,
    /// Time the pod was first shown.
    pub(super) from: Stamp,
    /// Time the next pod with the name was first shown.
    pub(super) until: Option<Stamp>,
}

impl LifeOf<'_> {
    pub(super) fn holds(&self, at: Stamp) -> bool {
        at >= self.from && self.until.is_none_or(|until| at < until)
    }
}

#[derive(Debug)]
struct SeenPhase<'a> {
    at: Stamp,
    source: &'a str,
    pod: &'a str,
    phase: ProxyPhase,
}

/// Collects the phases, and the pod of each proxy.
#[derive(Debug, Default)]
pub(super) struct PhaseCollector<'a> {
    phases: Vec<SeenPhase<'a>>,
    pods: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

impl<'a> PhaseCollector<'a> {
    pub(super) fn observe(&mut self, at: Stamp, source: &'a str, kind: &'a EventKind) {
        match kind {
            EventKind::ProxyPhase { pod, phase } => {
                self.phases.push(SeenPhase { at, source, pod, phase: *phase });
            }
            EventKind::OwnPod(pod) => _ = self.pods.entry(source).or_default().insert(&pod.uid),
            _ => {}
        }
    }

    /// Returns the time a pod first entered a phase.
    pub(super) fn first(&self, of: LifeOf<'_>, phase: ProxyPhase) -> Option<Stamp> {
        self.all(of, phase).next().map(|(at, _)| at)
    }

    /// Returns all times at which a pod entered a phase, each with the source whose clock it is on.
    pub(super) fn all<'s>(
        &'s self,
        of: LifeOf<'s>,
        phase: ProxyPhase,
    ) -> impl Iterator<Item = (Stamp, &'a str)> + 's {
        let is_its = move |seen: &&SeenPhase<'_>| match self.pods.get(seen.source) {
            Some(uids) if uids.len() == 1 => uids.contains(of.uid),
            _ => seen.pod == of.name && of.holds(seen.at),
        };
        self.phases
            .iter()
            .filter(move |seen| seen.phase == phase)
            .filter(is_its)
            .map(|seen| (seen.at, seen.source))
    }
}
