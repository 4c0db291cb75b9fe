//! Findings about windows without an upper bound; each kind of reason has its own consequence and remedy.

use std::collections::BTreeMap;

use super::{Finding, FindingsInput, len};
use crate::model::{NoBound, Unbounded, Window};

/// Pods with their reasons, by consumer and kind of reason.
type ByKind<'a> = BTreeMap<(&'a str, NoBound), Vec<(&'a str, &'a Unbounded)>>;

/// Returns one finding per consumer and kind of reason.
pub(super) fn findings(known: FindingsInput<'_>) -> impl Iterator<Item = Finding> {
    let mut by_kind = ByKind::new();
    for (termination, unbounded) in known.terminations.iter().zip(known.unbounded) {
        // A pod behind one Service need not be behind the run's other Services.
        let has_one = termination.windows.iter().any(Window::is_one);
        let windows = termination.windows.iter().zip(unbounded);
        for (window, unbounded) in windows.filter(|(window, _)| window.is_one() || !has_one) {
            if let Some(unbounded) = unbounded {
                let of_kind = by_kind.entry((window.consumer.as_str(), unbounded.kind())).or_default();
                of_kind.push((&termination.pod, unbounded));
            }
        }
    }
    by_kind.into_iter().map(move |((consumer, kind), pods)| {
        let consumer = consumer.to_owned();
        let pod = |(pod, why): (&str, &Unbounded)| (pod.to_owned(), why.clone());
        if kind == NoBound::NeverRouted {
            return Finding::NeverRouted { consumer, pods: pods.into_iter().map(|one| pod(one).0).collect() };
        }
        let denied = known.timeline.info.cluster.dataplane_denied.clone();
        Finding::Unbounded { consumer, pods: pods.into_iter().map(pod).collect(), denied }
    })
}

/// Returns the finding about a missing permission that hides the kind of Service proxy.
pub(super) fn rights(known: FindingsInput<'_>) -> Option<Finding> {
    let cluster = &known.timeline.info.cluster;
    if cluster.dataplane.is_known() || cluster.dataplane_denied.is_empty() {
        return None;
    }
    let windows = || known.terminations.iter().flat_map(|t| &t.windows);
    let unbounded = windows().filter(|w| w.censored_reason == Some(NoBound::ProxyUnknown)).count();
    let denied = cluster.dataplane_denied.clone();
    Some(Finding::RightMissing { denied, unbounded, windows: len(windows().count()) })
}
