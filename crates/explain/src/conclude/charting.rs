//! Computes the series drawn in the charts, in seconds since the counted part of the load began.

use std::sync::Arc;

use crate::attribute::judged::JudgedRequest;
use crate::count::sums::{OneSecond, Sums};
use crate::model::{ChartData, ClusterAction, Deed, LatencyHistograms, LostRequest, PodSpan};
use crate::timeline::{PodLife, Timeline};
use rolldrop_record::Stamp;

pub(crate) fn charts(timeline: &Timeline, sums: Sums<'_>) -> ChartData {
    let mut charts = ChartData {
        late_ok: sums.late_ok,
        latency: LatencyHistograms {
            steady: sums.all.apart.steady.buckets(),
            disrupted: sums.all.apart.disrupted.buckets(),
        },
        heat: sums.heat.finish(),
        traffic: sums.traffic.finish(),
        end_s: sums.end_s,
        origin: timeline.origin,
        pods: pods(timeline),
        actions: actions(timeline),
        ..ChartData::default()
    };
    if timeline.stages.len() > 1 {
        charts.stages =
            timeline.stages.iter().map(|(at, from, to)| (timeline.seconds(*at), *from, *to)).collect();
    }
    for OneSecond { counts: mut second, times } in sums.seconds {
        if second.ok > 0 {
            let percentiles = times.values().percentiles();
            second.p50_ms = Some(percentiles.p50);
            second.p99_ms = Some(percentiles.p99);
        }
        charts.seconds.push(second);
    }
    charts
}

/// Returns the pods that existed under load.
fn pods(timeline: &Timeline) -> Vec<PodSpan> {
    let seconds = |at| timeline.seconds(at);
    let ended: Vec<_> = timeline.ends.iter().map(|end| end.uid.as_str()).collect();
    let span = |life: &PodLife| {
        // StatefulSets reuse names; later events belong to the next pod of that name.
        let same = timeline.pods.iter().filter(|other| other.name == life.name);
        let next = same.map(|other| other.created).filter(|at| *at > life.created).min();
        let is_its = |pod: &str, at: Stamp| {
            pod == life.name && at >= life.created && next.is_none_or(|next| at < next)
        };
        let periods = |all: &mut dyn Iterator<Item = (&String, Stamp, Option<Stamp>)>| {
            let its = all.filter(|(pod, from, _)| is_its(pod, *from));
            its.map(|(_, from, to)| (seconds(from), to.map(seconds))).collect()
        };
        PodSpan {
            name: life.name.clone(),
            created_s: (!life.listed).then(|| seconds(life.created)),
            ready_s: life.endpoint_ready.or(life.ready).map(seconds),
            termination: ended.iter().position(|uid| *uid == life.uid),
            down_s: periods(&mut timeline.restarts.iter().map(|r| (&r.pod, r.from, r.to))),
            out_s: periods(
                &mut timeline
                    .withdrawals
                    .iter()
                    .filter_map(|w| Some((&w.pod, w.endpoint_removed?, w.returned))),
            ),
        }
    };
    let under_load = timeline.pods.iter().filter(|life| life.created <= timeline.load_ended);
    under_load.map(span).collect()
}

/// Returns the run's actions and commands up to the end of the load.
fn actions(timeline: &Timeline) -> Vec<ClusterAction> {
    let calls = timeline.calls.iter().map(|call| {
        let deed = if call.is_done { Deed::Action } else { Deed::Refused };
        (call.at, deed(call.action, call.pod.clone()))
    });
    let starts = timeline.commands.iter().map(|c| (c.started, Deed::CommandStarted(c.words.clone())));
    let ends = timeline.commands.iter().filter_map(|c| Some((c.ended?, Deed::CommandEnded(c.code))));
    let all = calls.chain(starts).chain(ends).filter(|(at, _)| *at <= timeline.load_ended);
    let mut acts: Vec<ClusterAction> =
        all.map(|(at, what)| ClusterAction { at_s: timeline.seconds(at), what }).collect();
    acts.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    acts
}

/// Converts the lost requests to the form used in files and charts.
pub(crate) fn lost(timeline: &Timeline, judged: Vec<JudgedRequest<'_>>) -> Vec<LostRequest> {
    let lost = |j: JudgedRequest<'_>| {
        let row = &j.request.row;
        LostRequest {
            source: Arc::clone(&row.source),
            seq: row.seq,
            target: Arc::clone(&row.target),
            scheduled: row.scheduled,
            begun: j.request.begun(),
            ended: row.end,
            begun_s: timeline.seconds(j.request.begun()),
            outcome: row.outcome,
            status: row.status,
            cause: j.cause,
            unclear: j.unclear,
            in_window: j.in_window,
            candidates: j.candidates,
        }
    };
    judged.into_iter().map(lost).collect()
}
