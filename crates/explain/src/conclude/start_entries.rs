//! Report entries about each pod that started.

use crate::attribute::judged::JudgedRequest;
use crate::model::{Start, StartStage};
use crate::route::facts::Facts;
use crate::timeline::PodLife;
use rolldrop_record::{Cause, Stamp};

/// Longest and shortest time before a pod's first response at which requests must have been lost for the pod to count
/// as awaited. A pod that consumers have only just discovered gets its first request some time after the others.
const AWAITED_NS: [i64; 2] = [1_000_000_000, 200_000_000];

pub(crate) fn starts(facts: &Facts<'_>, judged: &[JudgedRequest<'_>]) -> Vec<Start> {
    let began = facts.timeline.pods.iter().zip(&facts.first_served).filter(|(p, _)| !p.listed);
    let lost = judged.iter().filter(|judged| judged.cause == Cause::NotReadyYet);
    let lost: Vec<Stamp> = lost.map(|judged| judged.request.begun()).collect();
    let was_awaited = |p: &PodLife, served: Stamp| {
        let [from, to] = AWAITED_NS.map(|ns| served.shifted_ns(-ns));
        lost.iter().any(|at| (from..=to).contains(at) && *at >= p.created)
    };
    began
        .map(|(p, first_served)| Start {
            pod: p.name.clone(),
            uid: p.uid.clone(),
            was_awaited: first_served.is_some_and(|served| was_awaited(p, served)),
            timeline: [
                (StartStage::Created, Some(p.created)),
                (StartStage::IpReported, p.ip_reported),
                (StartStage::Ready, p.ready),
                (StartStage::EndpointReady, p.endpoint_ready),
                (StartStage::FirstRequest, *first_served),
            ]
            .into_iter()
            .filter_map(|(stage, at)| Some((stage, at?.seconds_since(p.created))))
            .collect(),
        })
        .collect()
}
