//! Report entries about each termination.

use std::collections::{BTreeMap, BTreeSet};

use crate::attribute::judged::JudgedRequest;
use crate::attribute::shares;
use crate::count::sums::Sums;
use crate::count::while_ending::ErrorWhileEnding;
use crate::model::{self, Mode, Stage, Termination, Window};
use crate::route::arrivals::ArrivalTail;
use crate::route::facts::Facts;
use crate::timeline::{PodEnd, Timeline};
use rolldrop_record::Stamp;

pub(crate) fn terminations(
    facts: &Facts<'_>,
    modes: &[Mode],
    sums: &Sums<'_>,
    (judged, errors): (&[JudgedRequest<'_>], &[ErrorWhileEnding]),
    (windows, tails): (Vec<Vec<Window>>, &[Vec<ArrivalTail>]),
) -> Vec<Termination> {
    let timeline = facts.timeline;
    let mut terminations: Vec<Termination> = timeline
        .ends
        .iter()
        .zip(modes)
        .zip(windows)
        .zip(tails)
        .map(|(((end, mode), windows), tails)| {
            let last =
                tails.iter().filter_map(ArrivalTail::last_certain).max().filter(|at| *at > end.t0.latest);
            Termination {
                pod: end.pod.clone(),
                uid: end.uid.clone(),
                node: end.node.clone(),
                mode: *mode,
                disruption: end.disruption,
                repetition: end.repetition,
                cause: end.cause.clone(),
                watch_gaps: timeline
                    .gaps_of(end)
                    .map(|gap| model::WatchGap {
                        resource: gap.resource.clone(),
                        from_s: timeline.seconds(gap.from),
                        to_s: timeline.seconds(gap.to),
                        lost: gap.is_lost,
                    })
                    .collect(),
                t0_basis: end.t0.basis,
                t0_uncertainty_s: end.t0.latest.seconds_since(end.t0.earliest),
                t0_s: timeline.seconds(end.t0.latest),
                timeline: stages(end, last),
                pre_stop_seconds: end.pre_stop_sleep_s.map(|s| u64::try_from(s).unwrap_or(0)),
                grace_period_seconds: u64::try_from(end.grace_s).unwrap_or(0),
                exit_code: end.exit_code,
                killed_at_grace_end: killed_at_grace_end(timeline, end),
                failed_hooks: failed_hooks(timeline, end),
                stopping_seconds: end.stopping_s(),
                windows,
                requests: model::TerminationRequests::default(),
                app_errors_after_t0: None,
                streams: None,
                dead_seconds: None,
            }
        })
        .collect();
    for (e, (t, lost)) in terminations
        .iter_mut()
        .zip(shares::requests(timeline.ends.len(), &judged.iter().collect::<Vec<_>>()))
        .enumerate()
    {
        let names_it =
            |j: &JudgedRequest<'_>| j.candidates.iter().any(|c| c.termination == e && c.why.is_certain());
        let own_errors = errors.iter().filter(|error| error.termination == Some(e)).count() as u64;
        let has_served = |life: usize| facts.first_served[life].is_some();
        let is_named = sums.seen[e] > 0
            || timeline.pods.iter().position(|life| life.uid == t.uid).is_some_and(has_served)
            || judged.iter().any(names_it);
        let seen = is_named.then(|| sums.seen[e] + lost.dropped.at_least);
        t.requests = model::TerminationRequests { seen, ..lost };
        t.app_errors_after_t0 = is_named.then_some(own_errors);
    }
    let dead = shares::dead_seconds(timeline, &terminations, judged, tails);
    for (t, dead_seconds) in terminations.iter_mut().zip(dead) {
        t.dead_seconds = dead_seconds;
    }
    terminations
}

fn killed_at_grace_end(timeline: &Timeline, end: &PodEnd) -> Option<bool> {
    end.killed_at_grace_end(|at| timeline.gaps.iter().find(|gap| gap.is_of_pods() && gap.may_delay(at)))
}

/// Returns the containers whose preStop hooks failed; `None` if none is known and an Event may have been missed.
fn failed_hooks(timeline: &Timeline, end: &PodEnd) -> Option<BTreeSet<String>> {
    let failed = timeline.failed_hooks_of(end).map(|failed| failed.container.clone().unwrap_or_default());
    let failed: BTreeSet<String> = failed.collect();
    (!failed.is_empty() || !timeline.may_miss_hooks_of(end)).then_some(failed)
}

fn stages(end: &PodEnd, last_connection: Option<Stamp>) -> BTreeMap<Stage, f64> {
    let s = &end.stages;
    [
        (Stage::DeleteSent, s.delete_sent),
        (Stage::DeletionSeen, s.deletion_seen),
        (Stage::EndpointTerminating, s.endpoint_terminating),
        (Stage::KillBegan, s.kill_began),
        (Stage::AppSigterm, end.pre_stop_sleep_s.filter(|sleep| *sleep > 0).map(|_| end.may_stop_from())),
        (Stage::ListenerClosed, s.listener_closed),
        (Stage::AppExited, s.app_exited),
        (Stage::LastConnection, last_connection),
        (Stage::ContainersTerminated, s.containers_terminated),
        (Stage::EndpointRemoved, s.endpoint_removed),
        (Stage::PodDeleted, s.pod_deleted),
    ]
    .into_iter()
    .filter_map(|(stage, at)| Some((stage, at?.seconds_since(end.t0.latest))))
    .collect()
}
