//! Which endpoint goes into which slice. Pure.
//!
//! After `reconcileByPortMapping` (staging/src/k8s.io/endpointslice/reconciler.go): an endpoint
//! stays in the slice where it is, slices that change anyway are filled up, and as few slices as
//! possible are written. A slice holds at most 100 endpoints, all with the same ports.

use std::collections::VecDeque;

use serde_json::Value;

/// The most endpoints of one slice (`--max-endpoints-per-slice`).
pub(super) const MAX_ENDPOINTS: usize = 100;

/// What becomes of the slices of one group of ports.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// Slices that change, by their place among the existing ones, with their new endpoints.
    pub(super) update: Vec<(usize, Vec<Value>)>,
    /// Slices that have lost all their endpoints.
    pub(super) delete: Vec<usize>,
    /// The endpoints of new slices.
    pub(super) create: Vec<Vec<Value>>,
}

/// Decides how the `existing` slices, given by their endpoints, become ones that show `wanted`.
pub(super) fn plan(existing: &[&[Value]], wanted: Vec<Value>) -> Plan {
    let mut plan = Plan::default();
    let mut left: VecDeque<Value> = wanted.into();
    let mut unchanged = Vec::new();
    for (at, endpoints) in existing.iter().enumerate() {
        let mut kept = Vec::new();
        for endpoint in *endpoints {
            if let Some(position) = left.iter().position(|wanted| is_same(wanted, endpoint)) {
                kept.extend(left.remove(position));
            }
        }
        if kept.is_empty() {
            plan.delete.push(at);
        } else if kept == *endpoints {
            unchanged.push((at, kept));
        } else {
            plan.update.push((at, kept));
        }
    }
    for (_, endpoints) in &mut plan.update {
        fill(endpoints, &mut left);
    }
    while left.len() >= MAX_ENDPOINTS {
        plan.create.push(left.drain(..MAX_ENDPOINTS).collect());
    }
    if left.is_empty() {
        return plan;
    }
    // The rest goes where it fills a slice best, so that slices stay full.
    let has_room = |(_, endpoints): &&(usize, Vec<Value>)| endpoints.len() + left.len() <= MAX_ENDPOINTS;
    let fullest = unchanged
        .iter()
        .filter(has_room)
        .max_by_key(|(at, endpoints)| (endpoints.len(), std::cmp::Reverse(*at)));
    match fullest {
        Some((at, endpoints)) => {
            let filled = endpoints.iter().cloned().chain(left).collect();
            plan.update.push((*at, filled));
        }
        None => plan.create.push(left.into()),
    }
    plan
}

fn fill(endpoints: &mut Vec<Value>, left: &mut VecDeque<Value>) {
    let room = MAX_ENDPOINTS.saturating_sub(endpoints.len()).min(left.len());
    endpoints.extend(left.drain(..room));
}

/// Whether two endpoints are the same pod at the same address, whatever its conditions.
fn is_same(a: &Value, b: &Value) -> bool {
    a["targetRef"]["uid"] == b["targetRef"]["uid"] && a["addresses"] == b["addresses"]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn endpoint(n: usize, ready: bool) -> Value {
        json!({"addresses": [format!("10.0.0.{n}")], "targetRef": {"uid": n}, "conditions": {"ready": ready}})
    }

    fn endpoints(numbers: impl IntoIterator<Item = usize>) -> Vec<Value> {
        numbers.into_iter().map(|n| endpoint(n, true)).collect()
    }

    #[test]
    fn many_endpoints_need_several_slices() {
        let plan = plan(&[], endpoints(0..250));
        assert_eq!(plan.create.iter().map(Vec::len).collect::<Vec<_>>(), [100, 100, 50]);
    }

    #[test]
    fn one_change_writes_one_slice() {
        let (first, second) = (endpoints(0..100), endpoints(100..150));
        let mut wanted = endpoints(0..150);
        wanted[120] = endpoint(120, false);
        let changed = plan(&[&first, &second], wanted);
        assert_eq!(changed.update.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [1]);
        assert!(changed.create.is_empty() && changed.delete.is_empty());
        // A place that becomes free in a full slice is filled by the pod that comes.
        let swapped = plan(&[&first, &second], endpoints((1..150).chain([200])));
        assert_eq!(swapped.update.len(), 1);
        assert_eq!(swapped.update[0].1.len(), 100);
        // A pod that only comes goes to the slice with room.
        let added = plan(&[&first, &second], endpoints(0..151));
        assert_eq!(added.update, [(1, endpoints(100..151))]);
    }

    #[test]
    fn a_slice_without_endpoints_goes() {
        let (first, second) = (endpoints(0..100), endpoints(100..101));
        assert_eq!(plan(&[&first, &second], endpoints(0..100)), Plan { delete: vec![1], ..Plan::default() });
    }

    proptest! {
        #[test]
        fn what_is_wanted_is_shown_once(
            before in prop::collection::btree_set(0_usize..400, 0..300),
            after in prop::collection::btree_set(0_usize..400, 0..300),
        ) {
            let before: Vec<_> = before.into_iter().collect();
            let slices: Vec<_> = before.chunks(70).map(|chunk| endpoints(chunk.to_vec())).collect();
            let existing: Vec<_> = slices.iter().map(Vec::as_slice).collect();
            let wanted = endpoints(after.iter().copied());
            let plan = plan(&existing, wanted);
            let mut shown: Vec<Vec<Value>> = slices.clone();
            for (at, endpoints) in &plan.update {
                shown[*at].clone_from(endpoints);
            }
            for at in &plan.delete {
                shown[*at].clear();
            }
            shown.extend(plan.create.iter().cloned());
            prop_assert!(shown.iter().all(|slice| slice.len() <= MAX_ENDPOINTS));
            let mut all: Vec<_> = shown.into_iter().flatten().map(|it| it["targetRef"]["uid"].as_u64()).collect();
            all.sort_unstable();
            let wanted: Vec<_> = after.iter().map(|n| u64::try_from(*n).ok()).collect();
            prop_assert_eq!(all, wanted);
        }
    }
}
