//! The series behind the charts, in seconds since the counted part of the load began.

use std::sync::Arc;

use super::Judged;
use super::model::{ChartData, LatencyHistograms, Lost};
use super::sums::Sums;
use crate::timeline::Timeline;

pub(super) fn charts(timeline: &Timeline, sums: Sums<'_>) -> ChartData {
    let mut charts = ChartData {
        late_ok: sums.late_ok,
        latency: LatencyHistograms {
            steady: sums.all.steady.buckets(),
            disrupted: sums.all.disrupted.buckets(),
        },
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

/// The dropped requests, as files and charts hold them.
pub(super) fn lost(timeline: &Timeline, judged: Vec<Judged<'_>>) -> Vec<Lost> {
    let lost = |j: Judged<'_>| {
        let row = &j.request.row;
        Lost {
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
            in_window: j.in_window,
            candidates: j.candidates,
        }
    };
    judged.into_iter().map(lost).collect()
}
