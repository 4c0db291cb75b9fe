//! The reasons for lost requests without a cause, with the causes that compete for them.

use std::collections::BTreeMap;

use super::{Judged, counted};
use crate::model::Unclear;

/// Lists the reasons with their numbers of requests, most frequent first; empty if each request has a cause.
pub(super) fn why(judged: &[Judged<'_>]) -> String {
    let mut reasons: BTreeMap<String, u64> = BTreeMap::new();
    for unclear in judged.iter().filter_map(|j| j.unclear.as_ref()) {
        *reasons.entry(reason(unclear)).or_default() += 1;
    }
    let mut reasons: Vec<(String, u64)> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    match &reasons[..] {
        [(only, _)] => only.clone(),
        all => all
            .iter()
            .map(|(why, n)| format!("{}: {why}", counted(*n, "request")))
            .collect::<Vec<_>>()
            .join("; "),
    }
}

/// Returns the reason why no cause is given, as a fragment.
fn reason(unclear: &Unclear) -> String {
    match unclear {
        Unclear::Competing(causes) => {
            let mut names: Vec<&str> = causes.iter().map(|(cause, _)| cause.as_str()).collect();
            names.sort_unstable();
            format!("{} compete, and none outweighs the others", names.join(" and "))
        }
        Unclear::PodWasWell => {
            "the pod that it reached was not ending, and nothing else explains it".to_owned()
        }
        Unclear::NoFit => "a pod was ending, but its end does not explain such an outcome".to_owned(),
        Unclear::NothingNear => "no pod was ending or starting that it could have reached".to_owned(),
    }
}
