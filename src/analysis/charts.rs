//! The series behind the charts, in seconds since the counted part of the load began.

use super::Judged;
use super::model::{ChartData, Drop, LatencyHistograms};
use super::sums::Sums;
use crate::timeline::Timeline;

pub(super) fn charts(timeline: &Timeline, judged: &[Judged<'_>], sums: Sums<'_>) -> ChartData {
    let mut charts = ChartData {
        drops: judged.iter().map(|j| dropped(timeline, j)).collect(),
        late_ok: sums.late_ok,
        latency: LatencyHistograms { steady: sums.steady.buckets(), disrupted: sums.disrupted.buckets() },
        end_s: sums.end_s,
        ..ChartData::default()
    };
    if timeline.stages.len() > 1 {
        charts.stages =
            timeline.stages.iter().map(|(at, from, to)| (timeline.seconds(*at), *from, *to)).collect();
    }
    for (mut second, times) in sums.seconds {
        if second.ok > 0 {
            let percentiles = times.values().percentiles();
            second.p50_ms = Some(percentiles.p50);
            second.p99_ms = Some(percentiles.p99);
        }
        charts.seconds.push(second);
    }
    charts
}

fn dropped(timeline: &Timeline, j: &Judged<'_>) -> Drop {
    Drop {
        scheduled_s: timeline.seconds(j.request.row.scheduled),
        begun_s: timeline.seconds(j.request.begun()),
        ended_s: timeline.seconds(j.request.row.end),
        outcome: j.request.row.outcome,
        cause: j.cause,
        termination: j.termination,
        in_window: j.in_window,
    }
}
