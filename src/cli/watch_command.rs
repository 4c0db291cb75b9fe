//! `rolldrop watch`: shows pod terminations as they happen, and ranks the workloads, worst first.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::exit::Exit;
use super::formats::LoadFormat;
use super::headings::CLUSTER;
use super::parse_duration;
use super::say::{print, say};
use super::signals::SignalListener;
use rolldrop_drive::cluster::{ChosenCluster, Cluster};
use rolldrop_drive::observe::{TerminationWatches, WatchScope, WatchedEvent};
use rolldrop_explain::count::workload_ranking::WorkloadRanking;
use rolldrop_explain::timeline::TerminationWatch;
use rolldrop_record::{Clock, EventKind, Stamp};
use rolldrop_report::{WatchInterruption, WatchOutput, WatchSummary, watch_ranking};

/// Interval at which settled terminations are shown.
const SHOWN_EVERY: Duration = Duration::from_millis(500);
/// Time added at the end of the watch so that the last terminations count as settled without further evidence.
const NO_LONGER: Duration = Duration::from_secs(3600);

/// Arguments of `rolldrop watch`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rolldrop watch -n shop                        the pods of a namespace, until Ctrl-C
  rolldrop watch -A --for 24h --format json     all pods, for a day, a JSON object a line
  rolldrop watch -n shop --context staging      another cluster of the kubeconfig

It changes nothing and sends no load. It prints a line for each pod that was terminated: who ended it, how much of its \
grace period it used, and if SIGKILL ended it. In the end, it ranks the workloads, worst first.

Exit status: 0 watched until Ctrl-C, SIGTERM or --for; 2 the watch could not start.")]
pub(super) struct WatchArgs {
    /// Namespace to watch [default: of the context].
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

impl WatchArgs {
    /// Runs the command.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.watch())?;
        Ok(Exit::Ok.into())
    }

    async fn watch(self) -> anyhow::Result<()> {
        let choice = match self.in_cluster {
            true => ChosenCluster::InCluster,
            false => ChosenCluster::Kubeconfig { path: self.kubeconfig, context: self.context },
        };
        let signals = SignalListener::begin().context("failed to listen for signals")?;
        let cluster = Cluster::connect(choice).await?;
        let namespace = self.namespace.as_deref().unwrap_or(cluster.default_namespace());
        let (scope, what) = match self.all_namespaces {
            true => (WatchScope::Cluster, "all namespaces".to_owned()),
            false => (WatchScope::Namespace(namespace.to_owned()), format!("namespace {namespace}")),
        };
        let (clock, client) = (Clock::start(), cluster.client());
        let stop = &signals.interrupts.stop;
        let begun = stop.run_until_cancelled(TerminationWatches::begin(&client, &scope, clock)).await;
        let Some(begun) = begun else { return Ok(()) };
        let mut watches = begun?;
        let title = cluster.title().unwrap_or_default();
        say(&format!("watching pod terminations in {what} of {title}; press Ctrl-C for the ranking"));
        let mut shown = ShownWatch::begin(clock.now(), self.format);
        let over = async {
            match self.duration {
                Some(duration) => sleep(duration).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            shown = shown.follow(&mut watches, clock) => shown?,
            () = over => {}
            () = stop.cancelled() => {}
        }
        watches.stop().await.iter().try_for_each(|event| shown.take(event))?;
        shown.finish(clock.now())
    }
}

/// A watch as shown so far.
struct ShownWatch {
    watch: TerminationWatch,
    ranking: WorkloadRanking,
    begun: Stamp,
    format: LoadFormat,
    /// Watches that were reported as interrupted.
    interrupted: Vec<&'static str>,
}

impl ShownWatch {
    fn begin(begun: Stamp, format: LoadFormat) -> Self {
        let (watch, ranking) = (TerminationWatch::default(), WorkloadRanking::default());
        Self { watch, ranking, begun, format, interrupted: Vec::new() }
    }

    /// Shows terminations until output fails.
    async fn follow(&mut self, watches: &mut TerminationWatches, clock: Clock) -> anyhow::Result<()> {
        let mut ticks = interval(SHOWN_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = watches.next() => event.iter().try_for_each(|event| self.take(event))?,
                _ = ticks.tick() => {
                    // With an incomplete list, the pods that have not arrived yet would look lost.
                    let now = clock.now();
                    while let Some(event) = watches.next_arrived() {
                        self.take(&event)?;
                    }
                    self.show_settled(now)?;
                    self.tell_trouble(&watches.trouble());
                }
            }
        }
    }

    fn take(&mut self, WatchedEvent { at, namespace, kind }: &WatchedEvent) -> anyhow::Result<()> {
        self.watch.observe(*at, namespace.as_deref(), kind);
        let gap = |resource: &String, from: &Stamp, is_lost| {
            WatchOutput::Gap(WatchInterruption {
                resource: resource.clone(),
                from_ns: *from,
                to_ns: *at,
                is_lost,
            })
        };
        match kind {
            EventKind::WatchGap { resource, from } => self.show(&gap(resource, from, true)),
            EventKind::WatchLate { resource, from } => self.show(&gap(resource, from, false)),
            EventKind::NotWatched { resource, why } => {
                self.show(&WatchOutput::NotWatched { resource: resource.clone(), why: why.clone() })
            }
            EventKind::Warning { message } => {
                say(&format!("warning: {message}"));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn show_settled(&mut self, now: Stamp) -> anyhow::Result<()> {
        for termination in self.watch.settled(now) {
            self.ranking.add(&termination);
            self.show(&WatchOutput::Termination(Box::new(termination)))?;
        }
        Ok(())
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
    fn finish(mut self, now: Stamp) -> anyhow::Result<()> {
        self.show_settled(now + NO_LONGER)?;
        let ranked = self.ranking.ranked();
        let summary = WatchSummary {
            from_ns: self.begun,
            to_ns: now,
            terminations: self.ranking.terminations(),
            workloads: self.ranking.workloads(),
            still_terminating: u64::try_from(self.watch.terminating()).unwrap_or(u64::MAX),
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
