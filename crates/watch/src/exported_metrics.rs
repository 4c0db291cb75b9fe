//! Exports the metrics of `rolldrop watch --metrics`: counts over terminations, and the health of what the watch reads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::gateway_lines::{GatewayLines, LogArg};
use crate::metrics_port::MetricsPort;
use crate::viewer::WatchViewer;
use rolldrop_drive::collect::SidecarSource;
use rolldrop_drive::observe::TerminationWatches;
use rolldrop_explain::model::{LogGap, WatchedTermination};
use rolldrop_explain::timeline::TerminationWatch;
use rolldrop_record::{EventKind, Stamp};
use rolldrop_report::{MAX_WORKLOADS, SourceHealth, WatchMetrics};

/// Metrics behind an open port.
pub(crate) struct ExportedMetrics {
    port: MetricsPort,
    metrics: WatchMetrics,
    /// Health of each source, by name.
    sources: BTreeMap<String, SourceHealth>,
    has_told_limit: bool,
    viewer: Arc<dyn WatchViewer>,
}

impl ExportedMetrics {
    pub(crate) fn of(
        port: MetricsPort,
        logs: &[LogArg],
        sidecars: &[SidecarSource],
        viewer: Arc<dyn WatchViewer>,
    ) -> Self {
        viewer.say(&format!("metrics are at http://{}/metrics", port.address));
        let health = |unread| SourceHealth { is_up: true, unread, ..SourceHealth::default() };
        let logs = logs.iter().map(|log| (log.name.clone(), health(Some(0))));
        let sidecars = sidecars.iter().map(|of| (of.to_string(), health(None)));
        let sources = logs.chain(sidecars).collect();
        Self { port, metrics: WatchMetrics::default(), sources, has_told_limit: false, viewer }
    }

    /// Notes an event of the watches.
    pub(crate) fn observe(&mut self, at: Stamp, kind: &EventKind) {
        match kind {
            EventKind::WatchGap { resource, from } => self.add_gap(resource, *from, at),
            // Such a watch shows no sign of life.
            EventKind::NotWatched { resource, .. } => self.mark_down(resource),
            _ => {}
        }
    }

    /// Notes a period in which lines of a log may be missing.
    pub(crate) fn add_log_gap(&mut self, source: &str, gap: &LogGap) {
        match gap.to_ns {
            Some(to) => self.add_gap(source, gap.from_ns, to),
            None => self.mark_down(source),
        }
    }

    fn add_gap(&mut self, source: &str, from: Stamp, to: Stamp) {
        self.sources.entry(source.to_owned()).or_default().gap_s += to.seconds_since(from).max(0.0);
    }

    /// Notes that a part of a source is not read, or is no longer read.
    fn mark_down(&mut self, source: &str) {
        self.sources.entry(source.to_owned()).or_default().is_up = false;
    }

    /// Counts a termination.
    pub(crate) fn add(&mut self, now: Stamp, end: &WatchedTermination) {
        self.metrics.add(now, end);
        if self.metrics.has_others() && !self.has_told_limit {
            self.has_told_limit = true;
            self.viewer.say(&format!(
                "more than {MAX_WORKLOADS} workloads: the metrics count the rest together, as \"(others)\""
            ));
        }
    }

    /// Responds to the scrapers that are waiting.
    pub(crate) fn respond(
        &mut self,
        watch: &TerminationWatch,
        watches: &TerminationWatches,
        lines: Option<&GatewayLines>,
    ) {
        let Self { port, metrics, sources, .. } = self;
        port.respond(|format| {
            metrics.set_terminating(watch.terminating());
            for resource in watches.resources() {
                sources.entry(resource.to_owned()).or_default().is_up = true;
            }
            for (resource, _) in watches.trouble() {
                sources.entry(resource.to_owned()).or_default().is_up = false;
            }
            sources.values_mut().for_each(|source| source.unread = source.unread.map(|_| 0));
            for (source, unread) in lines.iter().flat_map(|lines| lines.unread()) {
                *sources.entry(source.to_owned()).or_default().unread.get_or_insert(0) += unread;
            }
            let interrupted: BTreeSet<&str> = lines.iter().flat_map(|lines| lines.interrupted()).collect();
            let shown = |(name, health): (&'_ String, &SourceHealth)| SourceHealth {
                is_up: health.is_up && !interrupted.contains(name.as_str()),
                ..*health
            };
            metrics.render(format, sources.iter().map(|source| (source.0.as_str(), shown(source))))
        });
    }
}
