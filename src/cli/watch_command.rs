//! `rolldrop watch`: shows pod terminations as they happen, and ranks the workloads, worst first.

mod declared_consumers;
mod exported_metrics;
mod gateway_lines;
mod kept_history;
mod metrics_port;
mod read_sidecars;
mod watch_report_command;
mod workload_events;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::admin_token::TokenArgs;
use super::exit::Exit;
use super::formats::LoadFormat;
use super::headings::CLUSTER;
use super::parse_duration;
use super::say::{print, say};
use super::signals::SignalListener;
use exported_metrics::ExportedMetrics;
use gateway_lines::{GatewayLines, LogArg};
use kept_history::KeptHistory;
use metrics_port::MetricsPort;
use rolldrop_drive::cluster::{ChosenCluster, Cluster};
use rolldrop_drive::collect::{JournalDelivery, SidecarJournals, SidecarSource};
use rolldrop_drive::observe::{
    BeatObject, GatewayLogs, LogDelivery, LogSource, TerminationWatchOptions, TerminationWatches, WatchScope,
    WatchedEvent,
};
use rolldrop_explain::count::workload_ranking::WorkloadRanking;
use rolldrop_explain::model::{LogGap, WatchedTermination};
use rolldrop_explain::timeline::TerminationWatch;
use rolldrop_record::{Clock, EventKind, Stamp};
use rolldrop_report::{WatchInterruption, WatchOutput, WatchSummary, unusable_beats, watch_ranking};
use workload_events::WorkloadEvents;

/// Interval at which settled terminations are shown.
const SHOWN_EVERY: Duration = Duration::from_millis(500);
/// Time added at the end of the watch so that the last terminations count as settled without further evidence.
const NO_LONGER: Duration = Duration::from_secs(3600);

/// Arguments of `rolldrop watch`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rolldrop watch -n shop                        the pods of a namespace, until Ctrl-C
  rolldrop watch -A --for 24h --format json     all pods, for a day, one JSON object per line
  rolldrop watch -n shop --context staging      another cluster of the kubeconfig
  rolldrop watch -n shop --logs edge/deployment/envoy=envoy-json
                                                also tell which requests a gateway lost
  rolldrop watch -n shop --sidecars shop/deployment/web --admin-token-file token
                                                also tell what the pods' own sidecars saw (rolldrop inject)
  rolldrop watch -n shop --beats                date deletions to about 0.1 s, by writing to a ConfigMap
  rolldrop watch -A --out history               keep 30 days of terminations, at most 1 GiB
  rolldrop watch report history --since 7d      rank the workloads of a week

It sends no load, and changes nothing; --events adds Events, --beats a ConfigMap. It prints a line for each pod that was \
terminated: who ended it, how much of its grace period it used, and whether SIGKILL ended it. At the end, it ranks the \
workloads, worst first.

Exit status: 0 watched until Ctrl-C, SIGTERM or --for; 2 the watch could not start, or could not write to --out.")]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct WatchArgs {
    #[command(subcommand)]
    command: Option<WatchCommand>,
    /// Namespace to watch [default: the context's].
    #[arg(short, long, value_name = "NS")]
    namespace: Option<String>,
    /// Watch all namespaces.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Time to watch, such as 30m or 24h [default: until Ctrl-C or SIGTERM].
    #[arg(long = "for", value_name = "D", value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Format of the output on stdout.
    #[arg(long, value_enum, default_value_t = LoadFormat::Text)]
    format: LoadFormat,
    /// Gateway access log: NS/KIND/NAME=FORMAT (with NAME:CONTAINER if it is not the first container) or
    /// FILE=FORMAT; repeatable.
    #[arg(long, value_name = "LOG")]
    logs: Vec<LogArg>,
    /// Workload whose pods have rolldrop's sidecar: NS/KIND/NAME; repeatable. The sidecars' records of requests count
    /// where no log names the pod.
    #[arg(long, value_name = "WORKLOAD")]
    sidecars: Vec<SidecarSource>,
    #[command(flatten)]
    admin_token: TokenArgs,
    /// Lines per second above which a gateway pod's log is no longer read.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    max_log_rate: u32,
    /// Write Events about workloads that lose requests, whose pods are killed, or whose preStop hooks fail.
    #[arg(long)]
    events: bool,
    /// Date deletions to about 0.1 s, by writing to a ConfigMap ten times a second while pods end.
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true, default_missing_value = "rolldrop-watch-beats")]
    beats: Option<String>,
    /// Directory to record the terminations in, for `rolldrop watch report`. One directory per cluster.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Address and port to serve Prometheus metrics on, at /metrics, such as 0.0.0.0:9464; a port alone means
    /// localhost.
    #[arg(long, value_name = "ADDR", value_parser = port_or_address)]
    metrics: Option<SocketAddr>,
    /// Context in the kubeconfig [default: the current one].
    #[arg(long, value_name = "CTX", help_heading = CLUSTER)]
    context: Option<String>,
    /// Kubeconfig of the cluster [default: KUBECONFIG, or ~/.kube/config].
    #[arg(long, value_name = "FILE", help_heading = CLUSTER)]
    kubeconfig: Option<PathBuf>,
    /// Use the cluster that this pod runs in, with the pod's service account.
    #[arg(long, conflicts_with_all = ["context", "kubeconfig"], help_heading = CLUSTER)]
    in_cluster: bool,
}

#[derive(Debug, clap::Subcommand)]
enum WatchCommand {
    /// Report on the terminations that `rolldrop watch --out` has recorded, worst workloads first.
    Report(watch_report_command::WatchReportArgs),
}

impl WatchArgs {
    /// Runs the command.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(WatchCommand::Report(args)) = self.command {
            return args.run();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.watch())?;
        Ok(Exit::Ok.into())
    }

    async fn watch(self) -> anyhow::Result<()> {
        let choice = match self.in_cluster {
            true => ChosenCluster::InCluster,
            false => ChosenCluster::Kubeconfig { path: self.kubeconfig, context: self.context },
        };
        let admin_token = self.admin_token.token()?;
        let signals = SignalListener::begin().context("failed to listen for signals")?;
        let port = match self.metrics {
            Some(address) => Some(MetricsPort::open(address).await?),
            None => None,
        };
        let cluster = Cluster::connect(choice).await?;
        let namespace = self.namespace.as_deref().unwrap_or(cluster.default_namespace());
        let (scope, what) = match self.all_namespaces {
            true => (WatchScope::Cluster, "all namespaces".to_owned()),
            false => (WatchScope::Namespace(namespace.to_owned()), format!("namespace {namespace}")),
        };
        if let WatchScope::Namespace(watched) = &scope
            && let Some(other) = self.sidecars.iter().find(|of| of.namespace() != watched)
        {
            bail!("--sidecars {other} is not in the watched namespace, {watched}: use -A or -n");
        }
        let (clock, client) = (Clock::start(), cluster.client());
        let stop = &signals.interrupts.stop;
        let own = if self.in_cluster { cluster.default_namespace() } else { namespace };
        let beats = self.beats.map(|name| BeatObject { namespace: own.to_owned(), name });
        // Only access logs contain the addresses of Services.
        let options = TerminationWatchOptions { beats, with_services: !self.logs.is_empty() };
        let begun =
            stop.run_until_cancelled(TerminationWatches::begin(&client, &scope, options, clock)).await;
        let Some(begun) = begun else { return Ok(()) };
        let mut watches = begun?;
        let title = cluster.title().unwrap_or_default();
        let begun = clock.now();
        let listed: Vec<WatchedEvent> = std::iter::from_fn(|| watches.next_arrived()).collect();
        let open = |dir: PathBuf| {
            let namespace = (!self.all_namespaces).then(|| namespace.to_owned());
            let pods = listed.iter().filter_map(|event| match &event.kind {
                EventKind::Pod(pod) => Some(pod.uid.as_str()),
                _ => None,
            });
            KeptHistory::open(&dir, &title, namespace, begun, &pods.collect())
        };
        let how_to_rank = match &self.out {
            Some(dir) => format!("`rolldrop watch report {}` ranks the workloads", dir.display()),
            None => "press Ctrl-C for the ranking".to_owned(),
        };
        let history = self.out.map(open).transpose()?;
        let sources: Vec<LogSource> = self.logs.iter().map(|log| log.source.clone()).collect();
        let logs = GatewayLogs::begin(&client, &sources, begun, self.max_log_rate, clock);
        let Some(logs) = stop.run_until_cancelled(logs).await else { return Ok(()) };
        let mut logs = logs.context("failed to follow the logs")?;
        let journals = SidecarJournals::begin(&client, &self.sidecars, admin_token, clock);
        let Some(journals) = stop.run_until_cancelled(journals).await else { return Ok(()) };
        let mut journals = journals.context("failed to follow the pods with sidecars")?;
        say(&format!("watching pod terminations in {what} of {title}; {how_to_rank}"));
        let has_lines = !self.logs.is_empty() || !self.sidecars.is_empty();
        let lines = has_lines.then(|| GatewayLines::of(&self.logs, &self.sidecars, clock.now()));
        let events = self.events.then(|| WorkloadEvents::of(client.clone()));
        let metrics = port.map(|port| ExportedMetrics::of(port, &self.logs, &self.sidecars));
        let mut shown = ShownWatch::begin(begun, self.format, history, lines, events, metrics);
        // Frees the list, which may have thousands of pods.
        listed.into_iter().try_for_each(|event| shown.take(&event))?;
        let over = async {
            match self.duration {
                Some(duration) => sleep(duration).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            shown = shown.follow(&mut watches, &mut logs, &mut journals, clock) => shown?,
            () = over => {}
            () = stop.cancelled() => {}
        }
        let alive = watches.pods_alive();
        watches.stop().await.iter().try_for_each(|event| shown.take(event))?;
        shown.finish(clock.now(), alive).await
    }
}

/// A watch as shown so far.
struct ShownWatch {
    watch: TerminationWatch,
    ranking: WorkloadRanking,
    begun: Stamp,
    format: LoadFormat,
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
}

impl ShownWatch {
    fn begin(
        begun: Stamp,
        format: LoadFormat,
        history: Option<KeptHistory>,
        lines: Option<GatewayLines>,
        events: Option<WorkloadEvents>,
        metrics: Option<ExportedMetrics>,
    ) -> Self {
        Self {
            watch: TerminationWatch::default(),
            ranking: WorkloadRanking::default(),
            begun,
            format,
            history,
            lines,
            waiting: VecDeque::new(),
            events,
            metrics,
            interrupted: Vec::new(),
            are_beats_unusable: false,
        }
    }

    /// Shows terminations until output fails.
    async fn follow(
        &mut self,
        watches: &mut TerminationWatches,
        logs: &mut GatewayLogs,
        journals: &mut SidecarJournals,
        clock: Clock,
    ) -> anyhow::Result<()> {
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

    fn take(&mut self, WatchedEvent { at, namespace, kind }: &WatchedEvent) -> anyhow::Result<()> {
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
                say(&format!("warning: {message}"));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Reports the terminations that are settled now, or will be after some time without further evidence.
    fn show_settled(&mut self, now: Stamp, after: Duration) -> anyhow::Result<()> {
        for termination in self.watch.settled(now + after) {
            if self.history.as_ref().is_some_and(|history| history.has(&termination.uid)) {
                continue;
            }
            self.waiting.push_back((now, termination));
        }
        if let Some(why) = unusable_beats(self.watch.beats_state()).filter(|_| !self.are_beats_unusable) {
            say(&format!("warning: {why}"));
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

    fn take_line(&mut self, now: Stamp, delivery: LogDelivery) -> anyhow::Result<()> {
        let Some(lines) = &mut self.lines else { return Ok(()) };
        let number = delivery.number;
        let Some(gap) = lines.take(now, delivery)? else { return Ok(()) };
        let source = lines.name(number).to_owned();
        self.report_log_gap(now, &source, gap)
    }

    fn take_journal(&mut self, now: Stamp, delivery: JournalDelivery) -> anyhow::Result<()> {
        let Some(lines) = &mut self.lines else { return Ok(()) };
        let number = delivery.number;
        let Some(gap) = lines.take_journal(delivery) else { return Ok(()) };
        let source = lines.sidecar_name(number).to_owned();
        self.report_log_gap(now, &source, gap)
    }

    fn report_log_gap(&mut self, now: Stamp, source: &str, gap: LogGap) -> anyhow::Result<()> {
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
    ) -> anyhow::Result<()> {
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
    fn report(&mut self, now: Stamp, line: &WatchOutput) -> anyhow::Result<()> {
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
            Some((_, why)) => say(&format!("interrupted watches: {} ({why})", interrupted.join(", "))),
            None => say("all watches have resumed"),
        }
        self.interrupted = interrupted;
    }

    fn show(&self, line: &WatchOutput) -> anyhow::Result<()> {
        match self.format {
            LoadFormat::Json => print(&line.json()),
            LoadFormat::Text => line.text().map_or(Ok(()), |text| print(&text)),
        }
    }

    /// Shows the terminations that have ended, and the ranking.
    async fn finish(mut self, now: Stamp, alive: Option<Stamp>) -> anyhow::Result<()> {
        self.show_settled(now, NO_LONGER)?;
        self.record_time(now, alive, |_, _| true)?;
        if let Some(events) = &mut self.events {
            events.finish(now + NO_LONGER).await;
        }
        for reading in self.lines.iter().flat_map(GatewayLines::readings) {
            self.show(&WatchOutput::Log(reading.clone()))?;
        }
        let ranked = self.ranking.ranked();
        let summary = WatchSummary {
            from_ns: self.begun,
            to_ns: now,
            terminations: self.ranking.terminations(),
            workloads: self.ranking.workloads(),
            still_terminating: self.watch.terminating().into_values().sum(),
        };
        match self.format {
            LoadFormat::Text => print(&watch_ranking(&summary, &ranked)),
            LoadFormat::Json => {
                for workload in ranked {
                    self.show(&WatchOutput::Workload(Box::new(workload)))?;
                }
                self.show(&WatchOutput::Summary(summary))
            }
        }
    }
}

/// Parses an address with a port, or a port on localhost.
fn port_or_address(text: &str) -> Result<SocketAddr, String> {
    let of_localhost = text.parse().map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    of_localhost.or_else(|_| super::proxy_command::address(text)).map_err(|error| {
        format!("{error}: use a port, such as 9464, or an address with a port, such as 0.0.0.0:9464")
    })
}
