//! The series behind the charts, in seconds since the counted part of the load began.

use super::Judged;
use super::latency::Values;
use super::model::{ChartData, Drop, LateArrival, LatencyHistograms, Second, Termination};
use super::policy::Class;
use crate::timeline::Timeline;

pub(super) fn charts(
    timeline: &Timeline,
    judged: &[Judged<'_>],
    terminations: &[Termination],
    latency: LatencyHistograms,
) -> ChartData {
    let mut charts = ChartData { latency, ..ChartData::default() };
    if timeline.stages.len() > 1 {
        charts.stages =
            timeline.stages.iter().map(|(at, from, to)| (timeline.seconds(*at), *from, *to)).collect();
    }
    let mut times: Vec<Values> = Vec::new();
    for j in judged {
        let row = &j.request.row;
        let scheduled_s = timeline.seconds(row.scheduled);
        let begun_s = timeline.seconds(j.request.begun());
        charts.end_s = charts.end_s.max(scheduled_s);
        let second = usize::try_from(row.scheduled.ns_since(timeline.origin) / 1_000_000_000).unwrap_or(0);
        while charts.seconds.len() <= second {
            charts.seconds.push(Second { at_s: charts.seconds.len() as f64, ..Second::default() });
            times.push(Values::new());
        }
        let entry = &mut charts.seconds[second];
        match (j.class, j.cause) {
            (Class::Ok, _) => {
                entry.ok += 1;
                times[second].add(row.end.ns_since(row.scheduled));
            }
            (_, Some(cause)) => {
                *entry.dropped.entry(row.outcome).or_default() += 1;
                charts.drops.push(Drop {
                    scheduled_s,
                    begun_s,
                    ended_s: timeline.seconds(row.end),
                    outcome: row.outcome,
                    cause,
                    termination: j.termination,
                    in_window: j.in_window,
                });
            }
            _ => entry.other += 1,
        }
        if j.class == Class::Ok
            && let Some(end) = j.request.pod().and_then(|pod| timeline.end_of(pod, j.request.begun()))
            && begun_s > terminations[end].t0_s
        {
            let new_connection = j.request.is_new_connection();
            charts.late_ok.push(LateArrival { termination: end, begun_s, new_connection });
        }
    }
    for (second, times) in charts.seconds.iter_mut().zip(&times).filter(|(_, t)| t.n() > 0) {
        let percentiles = times.percentiles();
        second.p50_ms = Some(percentiles.p50);
        second.p99_ms = Some(percentiles.p99);
    }
    charts
}
