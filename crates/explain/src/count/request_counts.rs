//! Requests by outcome, cause and target.

use crate::attribute::judged::JudgedRequest;
use crate::attribute::shares;
use crate::count::sums::{RequestTotals, Sums};
use crate::count::while_ending::ErrorWhileEnding;
use crate::model::{OutsideCounts, RequestCounts, TargetName, TargetResult, Termination};
use crate::timeline::Timeline;
use crate::timeline::periods::Periods;
use rolldrop_record::load::defaults;
use rolldrop_record::run_info::Target;
use rolldrop_record::{Cause, Outcome, RequestRow, retry};

/// Counts the requests, with the conclusions about the lost ones.
pub(crate) fn count(
    timeline: &Timeline,
    part: &RequestTotals<'_>,
    (judged, errors): (&[&JudgedRequest<'_>], usize),
    disrupted: &Periods,
) -> RequestCounts {
    let load = &timeline.info.load;
    let method = |row: &RequestRow| {
        let own = load.methods.as_ref().and_then(|methods| methods.get(&*row.target));
        own.map_or(defaults::METHOD, String::as_str)
    };
    let has_key = load.idempotency_key.unwrap_or(false);
    let mut c = RequestCounts {
        outside_terminations: OutsideCounts::of(timeline, part, judged, disrupted),
        app_errors_while_ending: errors as u64,
        ..part.counts.clone()
    };
    for j in judged {
        let row = &j.request.row;
        *c.by_cause.entry(j.cause).or_default() += 1;
        c.in_window += u64::from(j.in_window);
        let was_under_way =
            j.candidates.iter().all(|c| j.request.begun() < timeline.ends[c.termination].t0.earliest);
        let is_known = j.candidates.iter().any(|c| c.why.is_certain());
        c.in_flight += u64::from(j.in_window && was_under_way);
        c.by_time += u64::from(j.in_window && !was_under_way && !is_known);
        c.outside_window += u64::from(!j.in_window);
        c.unattributed += u64::from(j.cause == Cause::Unattributed);
        c.ambiguous += u64::from(j.candidates.len() > 1);
        // Only the generator's own connections are tracked.
        if j.cause == Cause::StaleFlow {
            c.stale_flow_own += 1;
            *c.stale_flow_own_by_outcome.entry(row.outcome).or_default() += 1;
        }
        let method = method(row);
        let is_idempotent = retry::is_idempotent(method) && row.outcome != Outcome::HttpError;
        c.retry_hidden.safe_idempotent += u64::from(is_idempotent);
        let go_hides = retry::go_hides(row, has_key || retry::go_replays(method));
        c.retry_hidden.go_net_http += u64::from(go_hides);
    }
    debug_assert!(c.closes(), "accounting does not balance: {c:?}");
    c
}

pub(crate) fn only_target(targets: &[Target]) -> Option<TargetName> {
    match targets {
        [Target { name, consumer, .. }] => {
            Some(TargetName { name: name.clone(), consumer: consumer.clone() })
        }
        _ => None,
    }
}

/// Counts the requests to each target; empty if there is only one.
pub(crate) fn targets(
    timeline: &Timeline,
    sums: &Sums<'_>,
    terminations: &[Termination],
    (judged, errors): (&[&JudgedRequest<'_>], &[ErrorWhileEnding]),
    disrupted: &Periods,
) -> Vec<TargetResult> {
    let of = |(index, (target, part)): (usize, (&Target, &RequestTotals<'_>))| {
        let is_its = |j: &&&JudgedRequest<'_>| timeline.target_of(&j.request.row) == Some(index);
        let its: Vec<&JudgedRequest<'_>> = judged.iter().filter(is_its).copied().collect();
        TargetResult {
            name: target.name.clone(),
            consumer: target.consumer.clone(),
            requests: count(
                timeline,
                part,
                (&its, errors.iter().filter(|error| error.target == Some(index)).count()),
                disrupted,
            ),
            latency_ms: part.latencies(timeline.info.load.is_closed_loop()),
            longest_outage_s: part.apart.outages.longest_s(),
            is_failing_at_end: part.apart.outages.are_open(),
            terminations: shares::requests(terminations.len(), &its),
            groups: shares::groups(timeline, terminations, &its),
        }
    };
    timeline.info.targets.iter().zip(&sums.targets).enumerate().map(of).collect()
}
