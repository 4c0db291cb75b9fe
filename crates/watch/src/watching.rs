//! The watch itself: what happens between its beginning and its ranking.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use crate::error::{Result, WatchError};
use crate::exported_metrics::ExportedMetrics;
use crate::gateway_lines::{GatewayLines, LogArg};
use crate::kept_history::KeptHistory;
use crate::metrics_port::MetricsPort;
use crate::viewer::WatchViewer;
use crate::workload_events::WorkloadEvents;
use rolldrop_drive::cluster::Cluster;
use rolldrop_drive::collect::{JournalDelivery, SidecarJournals, SidecarSource};
use rolldrop_drive::observe::{
    BeatObject, GatewayLogs, LogDelivery, LogSource, TerminationWatchOptions, TerminationWatches, WatchScope,
    WatchedEvent,
};
use rolldrop_explain::count::workload_ranking::{RankedWorkload, WorkloadRanking};
use rolldrop_explain::model::{LogGap, WatchedTermination};
use rolldrop_explain::timeline::TerminationWatch;
use rolldrop_record::wire::AdminToken;
use rolldrop_record::{Clock, EventKind, Stamp};
use rolldrop_report::{WatchInterruption, WatchOutput, WatchSummary, unusable_beats};

/// Interval at which settled terminations are shown.
const SHOWN_EVERY: Duration = Duration::from_millis(500);
/// Time added at the end of the watch so that the last terminations count as settled without further evidence.
const NO_LONGER: Duration = Duration::from_secs(3600);

/// Settings of a watch.
pub struct WatchSettings {
    /// Namespaces to watch.
    pub scope: WatchScope,
    /// Time to watch; `None` for no limit.
    pub duration: Option<Duration>,
    /// Access logs of gateways.
    pub logs: Vec<LogArg>,
    /// Lines per second above which a gateway pod's log is no longer read.
    pub max_log_rate: u32,
    /// Workloads whose pods have a sidecar.
    pub sidecars: Vec<SidecarSource>,
    /// Token for the sidecars' admin ports.
    pub admin_token: Option<AdminToken>,
    /// ConfigMap whose updates date deletions; `None` for none.
    pub beats: Option<BeatObject>,
    /// True if Events are written about workloads.
    pub writes_events: bool,
    /// Directory of the history; `None` if nothing is kept.
    pub history_dir: Option<PathBuf>,
    /// Port for metrics.
    pub metrics: Option<MetricsPort>,
}

/// Ranking at the end of a watch.
#[derive(Debug)]
pub struct RankedWatch {
    /// Totals.
    pub summary: WatchSummary,
    /// Workloads, worst first.
    pub workloads: Vec<RankedWorkload>,
}

/// Watches until `stop` is cancelled or the time is over, and returns the ranking; `None` if `stop` was cancelled
/// before the watch had begun.
///
/// # Errors
/// Fails if the watch cannot begin, or if something that it found cannot be shown or kept.
pub async fn watch(
    cluster: &Cluster,
    settings: WatchSettings,
    stop: &CancellationToken,
    viewer: Arc<dyn WatchViewer>,
) -> Result<Option<RankedWatch>> {
    let WatchSettings { scope, duration, logs, max_log_rate, sidecars, admin_token, beats, .. } = settings;
    let (clock, client) = (Clock::start(), cluster.client());
    // Only access logs contain the addresses of Services.
    let options = TerminationWatchOptions { beats, with_services: !logs.is_empty() };
    let begun = stop.run_until_cancelled(TerminationWatches::begin(&client, &scope, options, clock)).await;
    let Some(begun) = begun else { return Ok(None) };
    let mut watches = begun?;
    let (namespace, what) = match scope {
        WatchScope::Cluster => (None, "all namespaces".to_owned()),
        WatchScope::Namespace(namespace) => {
            let what = format!("namespace {namespace}");
            (Some(namespace), what)
        }
    };
    let title = cluster.title().unwrap_or_default();
    let begun = clock.now();
    let listed: Vec<WatchedEvent> = std::iter::from_fn(|| watches.next_arrived()).collect();
    let open = |dir: &PathBuf| {
        let pods = listed.iter().filter_map(|event| match &event.kind {
            EventKind::Pod(pod) => Some(pod.uid.as_str()),
            _ => None,
        });
        KeptHistory::open(dir, &title, namespace, begun, &pods.collect(), &*viewer)
    };
    let how_to_rank = match &settings.history_dir {
        Some(dir) => format!("`rolldrop watch report {}` ranks the workloads", dir.display()),
        None => "press Ctrl-C for the ranking".to_owned(),
    };
    let history = settings.history_dir.as_ref().map(open).transpose()?;
    let sources: Vec<LogSource> = logs.iter().map(|log| log.source.clone()).collect();
    let followed_logs = GatewayLogs::begin(&client, &sources, begun, max_log_rate, clock);
    let Some(followed_logs) = stop.run_until_cancelled(followed_logs).await else { return Ok(None) };
    let mut followed_logs = followed_logs.map_err(WatchError::Logs)?;
    let journals = SidecarJournals::begin(&client, &sidecars, admin_token, clock);
    let Some(journals) = stop.run_until_cancelled(journals).await else { return Ok(None) };
    let mut journals = journals.map_err(WatchError::Sidecars)?;
    viewer.say(&format!("watching pod terminations in {what} of {title}; {how_to_rank}"));
    let has_lines = !logs.is_empty() || !sidecars.is_empty();
    let mut shown = OngoingWatch {
        watch: TerminationWatch::default(),
        ranking: WorkloadRanking::default(),
        begun,
        history,
        lines: has_lines.then(|| GatewayLines::of(&logs, &sidecars, clock.now(), Arc::clone(&viewer))),
        waiting: VecDeque::new(),
        events: settings.writes_events.then(|| WorkloadEvents::of(client.clone(), Arc::clone(&viewer))),
        metrics: settings
            .metrics
            .map(|port| ExportedMetrics::of(port, &logs, &sidecars, Arc::clone(&viewer))),
        interrupted: Vec::new(),
        are_beats_unusable: false,
        viewer,
    };
    // Frees the list, which may have thousands of pods.
    listed.into_iter().try_for_each(|event| shown.take(&event))?;
    let over = async {
        match duration {
            Some(duration) => sleep(duration).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        shown = shown.follow(&mut watches, &mut followed_logs, &mut journals, clock) => shown?,
        () = over => {}
        () = stop.cancelled() => {}
    }
    let alive = watches.pods_alive();
    watches.stop().await.iter().try_for_each(|event| shown.take(event))?;
    shown.finish(clock.now(), alive).await.map(Some)
}

/// A watch that is under way.
struct OngoingWatch {
    watch: TerminationWatch,
    ranking: WorkloadRanking,
    begun: Stamp,
    history: Option<KeptHistory>,
    /// Requests in gateway logs.
    lines: Option<GatewayLines>,
    /// Terminations whose requests may not all be in the logs yet, with the time at which they settled.
    waiting: VecDeque<(Stamp, WatchedTermination)>,
    events: Option<WorkloadEvents>,
    metrics: Option<ExportedMetrics>,
    /// Watches that were reported as interrupted.
    interrupted: Vec<&'static str>,
    /// True if the beats were reported as unusable.
    are_beats_unusable: bool,
    viewer: Arc<dyn WatchViewer>,
}

impl OngoingWatch {
    /// Shows terminations until output fails.
    async fn follow(
        &mut self,
        watches: &mut TerminationWatches,
        logs: &mut GatewayLogs,
        journals: &mut SidecarJournals,
        clock: Clock,
    ) -> Result<()> {
        let mut ticks = interval(SHOWN_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = watches.next() => event.iter().try_for_each(|event| self.take(event))?,
                Some(delivery) = logs.next() => self.take_line(clock.now(), delivery)?,
                Some(delivery) = journals.next() => self.take_journal(clock.now(), delivery)?,
                _ = ticks.tick() => {
                    // With an incomplete list, the pods that have not arrived yet would look lost.
                    let (now, alive) = (clock.now(), watches.pods_alive());
                    while let Some(event) = watches.next_arrived() {
                        self.take(&event)?;
                    }
                    self.show_settled(now, Duration::ZERO)?;
                    self.events.iter_mut().for_each(|events| events.begin(now));
                    self.record_time(now, alive, KeptHistory::is_due)?;
                    self.tell_trouble(&watches.trouble());
                    if let Some(metrics) = &mut self.metrics {
                        metrics.respond(&self.watch, watches, self.lines.as_ref());
                    }
                }
            }
        }
    }

    fn take(&mut self, WatchedEvent { at, namespace, kind }: &WatchedEvent) -> Result<()> {
        self.watch.observe(*at, namespace.as_deref(), kind);
        if let Some(lines) = &mut self.lines {
            lines.observe(*at, namespace.as_deref(), kind);
        }
        if let Some(metrics) = &mut self.metrics {
            metrics.observe(*at, kind);
        }
        let gap = |resource: &String, from: &Stamp, is_lost| {
            WatchOutput::Gap(WatchInterruption {
                resource: resource.clone(),
                from_ns: *from,
                to_ns: *at,
                is_lost,
            })
        };
        match kind {
            EventKind::WatchGap { resource, from } => self.report(*at, &gap(resource, from, true)),
            EventKind::WatchLate { resource, from } => self.report(*at, &gap(resource, from, false)),
            EventKind::NotWatched { resource, why } => {
                self.report(*at, &WatchOutput::NotWatched { resource: resource.clone(), why: why.clone() })
            }
            EventKind::Warning { message } => {
                self.viewer.say(&format!("warning: {message}"));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Reports the terminations that are settled now, or will be after some time without further evidence.
    fn show_settled(&mut self, now: Stamp, after: Duration) -> Result<()> {
        for termination in self.watch.settled(now + after) {
            if self.history.as_ref().is_some_and(|history| history.has(&termination.uid)) {
                continue;
            }
            self.waiting.push_back((now, termination));
        }
        if let Some(why) = unusable_beats(self.watch.beats_state()).filter(|_| !self.are_beats_unusable) {
            self.viewer.say(&format!("warning: {why}"));
            self.are_beats_unusable = true;
        }
        // Without logs, nothing is waited for.
        let lines = self.lines.as_ref().filter(|_| after.is_zero());
        let wait_ns = lines.map_or(0, GatewayLines::complete_within_ns);
        while let Some((_, mut termination)) =
            self.waiting.pop_front_if(|(at, _)| now.ns_since(*at) >= wait_ns)
        {
            if let Some(lines) = &mut self.lines {
                termination.traffic = lines.explain(&termination, now)?;
            }
            self.ranking.add(&termination);
            if let Some(metrics) = &mut self.metrics {
                metrics.add(now, &termination);
            }
            if let Some(events) = &mut self.events {
                events.add(now, &termination);
            }
            self.report(now, &WatchOutput::Termination(Box::new(termination)))?;
        }
        if let Some(lines) = &mut self.lines {
            lines.forget_before(now);
        }
        Ok(())
    }

    fn take_line(&mut self, now: Stamp, delivery: LogDelivery) -> Result<()> {
        let Some(lines) = &mut self.lines else { return Ok(()) };
        let number = delivery.number;
        let Some(gap) = lines.take(now, delivery)? else { return Ok(()) };
        let source = lines.name(number).to_owned();
        self.report_log_gap(now, &source, gap)
    }

    fn take_journal(&mut self, now: Stamp, delivery: JournalDelivery) -> Result<()> {
        let Some(lines) = &mut self.lines else { return Ok(()) };
        let number = delivery.number;
        let Some(gap) = lines.take_journal(delivery) else { return Ok(()) };
        let source = lines.sidecar_name(number).to_owned();
        self.report_log_gap(now, &source, gap)
    }

    fn report_log_gap(&mut self, now: Stamp, source: &str, gap: LogGap) -> Result<()> {
        if let Some(metrics) = &mut self.metrics {
            metrics.add_log_gap(source, &gap);
        }
        self.report(now, &WatchOutput::LogGap(gap))
    }

    /// Records the time up to which the history is complete, if `is_due` says so. `alive` is the last sign of life of
    /// the watch of pods; everything that it had shown by then must have been processed.
    fn record_time(
        &mut self,
        now: Stamp,
        alive: Option<Stamp>,
        is_due: impl FnOnce(&KeptHistory, Stamp) -> bool,
    ) -> Result<()> {
        // A termination that waits is lost if the watch is killed.
        let waiting = self.waiting.iter().map(|(_, termination)| termination.t0_earliest_ns).min();
        let until = alive.and_then(|alive| self.watch.complete_until(alive));
        let until = until.map(|until| waiting.map_or(until, |waiting| until.min(waiting)));
        match (&mut self.history, until) {
            (Some(history), Some(until)) if is_due(history, until) => history.watched_until(now, until),
            _ => Ok(()),
        }
    }

    /// Shows and records a termination or a gap. Shows it first, so that it reaches the reader even if the disk is
    /// full.
    fn report(&mut self, now: Stamp, line: &WatchOutput) -> Result<()> {
        self.show(line)?;
        self.history.as_mut().map_or(Ok(()), |history| history.add(now, line))
    }

    /// Reports which watches are interrupted whenever that changes. A watch's gap is shown once it is open again.
    fn tell_trouble(&mut self, trouble: &[(&'static str, String)]) {
        let interrupted: Vec<&'static str> = trouble.iter().map(|(what, _)| *what).collect();
        if interrupted == self.interrupted {
            return;
        }
        match trouble.first() {
            Some((_, why)) => {
                self.viewer.say(&format!("interrupted watches: {} ({why})", interrupted.join(", ")));
            }
            None => self.viewer.say("all watches have resumed"),
        }
        self.interrupted = interrupted;
    }

    fn show(&self, line: &WatchOutput) -> Result<()> {
        self.viewer.show(line).map_err(WatchError::Output)
    }

    /// Shows the terminations that have ended, and ranks all of them.
    async fn finish(mut self, now: Stamp, alive: Option<Stamp>) -> Result<RankedWatch> {
        self.show_settled(now, NO_LONGER)?;
        self.record_time(now, alive, |_, _| true)?;
        if let Some(events) = &mut self.events {
            events.finish(now + NO_LONGER).await;
        }
        for reading in self.lines.iter().flat_map(GatewayLines::readings) {
            self.show(&WatchOutput::Log(reading.clone()))?;
        }
        let summary = WatchSummary {
            from_ns: self.begun,
            to_ns: now,
            terminations: self.ranking.terminations(),
            workloads: self.ranking.workloads(),
            still_terminating: self.watch.terminating().into_values().sum(),
        };
        Ok(RankedWatch { summary, workloads: self.ranking.ranked() })
    }
}
