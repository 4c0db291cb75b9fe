//! `rolldrop workload`.

mod sample_stream_args;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use super::named_values::{find, one_of};
use super::open_files::raise_open_files;
use anyhow::Context;
use rolldrop_record::clock::Clock;
use rolldrop_record::expect::Share;
use rolldrop_workload::{Habit, LogTarget, StopSignal, WorkloadConfig, WorkloadServer};

use sample_stream_args::SampleStreamArgs;

/// Arguments of `rolldrop workload`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  rolldrop workload --listen 127.0.0.1:8080 --on-sigterm drain --drain-for 3s
  rolldrop workload --listen 127.0.0.1:8080 --on-sigterm finish --streams-on-sigterm cut-after:5s --log -")]
pub(super) struct WorkloadArgs {
    /// Address and port to listen on
    #[arg(long, value_name = "ADDR:PORT", value_parser = super::proxy_command::address)]
    listen: SocketAddr,
    /// Delay from the start until the server listens; until then, connections are refused
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = super::parse_duration)]
    listen_after: Duration,
    /// Reaction to SIGTERM, and to SIGINT and SIGQUIT unless --on sets another
    #[arg(long, value_name = "HABIT", value_parser = one_of(&HABITS), default_value = "exit")]
    on_sigterm: Habit,
    /// Reaction to SIGINT, SIGQUIT, SIGHUP, SIGUSR1 or SIGUSR2; repeatable. By default, the last three are only logged
    #[arg(long, value_name = "SIGNAL=HABIT", value_parser = signal_habit)]
    on: Vec<(StopSignal, Habit)>,
    /// Time for which `drain` and `close-idle` keep serving after the signal
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = super::parse_duration)]
    drain_for: Duration,
    /// Time for which the server hangs after the signal before it stops; meanwhile it reads and answers nothing
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = super::parse_duration)]
    stop_work: Duration,
    /// Time after which the server closes an idle HTTP/1.1 connection
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = super::parse_duration)]
    idle_timeout: Duration,
    /// Delay before every response
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = super::parse_duration)]
    response_time: Duration,
    /// Share of requests to answer with 500 (gRPC: INTERNAL), evenly spread. Health checks never fail
    #[arg(long, value_name = "SHARE", default_value = "0%", value_parser = share)]
    fail_share: Share,
    /// Size in bytes of the response body of `/` [default: a short text]
    #[arg(long, value_name = "N")]
    body_bytes: Option<usize>,
    /// Time from the start until `/readyz` succeeds
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = super::parse_duration)]
    ready_after: Duration,
    /// Exit code after a reaction to a signal
    #[arg(long, value_name = "CODE", default_value_t = 0)]
    exit_code: u8,
    /// Read this pod's object from the API server this often, and log the result
    #[arg(long, value_name = "DURATION", value_parser = super::parse_duration)]
    ask_api_every: Option<Duration>,
    /// File to log each request and signal to, as JSON lines; `-` is stdout
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Name to send in the `rolldrop-pod` response header
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pod_name: Option<String>,
    #[command(flatten)]
    streams: SampleStreamArgs,
}

/// Reactions to a signal.
const HABITS: [(&str, &str, Habit); 5] = [
    ("exit", "Exit immediately; requests in flight are lost", Habit::Exit),
    (
        "drain",
        "Fail readiness, keep serving for --drain-for, then stop accepting and finish requests in flight",
        Habit::Drain,
    ),
    ("ignore", "Do nothing until killed", Habit::Ignore),
    ("finish", "Stop accepting immediately, finish requests in flight", Habit::Finish),
    (
        "close-idle",
        "Like drain, but close idle HTTP/1.1 connections at the signal, even if an unread request has arrived",
        Habit::CloseIdle,
    ),
];

fn signal_habit(text: &str) -> Result<(StopSignal, Habit), String> {
    let (signal, habit) = text.split_once('=').ok_or("expected SIGNAL=HABIT, such as SIGINT=drain")?;
    let habit =
        find(&HABITS, habit).ok_or("expected exit, drain, ignore, finish or close-idle after the signal")?;
    Ok((signal.parse()?, habit))
}

fn share(text: &str) -> Result<Share, &'static str> {
    Share::parse(text).ok_or("expected a percentage, such as 1%")
}

impl WorkloadArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let on_stop = self.on_sigterm;
        let on_signal: BTreeMap<_, Habit> = self.on.into_iter().collect();
        let streams = self.streams.settings(on_signal.values().copied().chain([on_stop]))?;
        let config = WorkloadConfig {
            listen: self.listen,
            listen_after: self.listen_after,
            on_stop,
            on_signal,
            drain_for: self.drain_for,
            stop_work: self.stop_work,
            idle_timeout: self.idle_timeout,
            response_time: self.response_time,
            fail_share: self.fail_share.0,
            body_bytes: self.body_bytes,
            ready_after: self.ready_after,
            streams,
            ask_api_every: self.ask_api_every,
            log: self.log.map(|path| match path.to_str() {
                Some("-") => LogTarget::Stdout,
                _ => LogTarget::File(path),
            }),
            pod_name: self.pod_name.filter(|name| !name.is_empty()),
        };
        // Each open stream needs a file. If this fails, the server accepts as many connections as the limit allows.
        raise_open_files();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("failed to start the runtime")?;
        let clock = Clock::start();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            WorkloadServer::new(&config, Box::new(move || clock.now().unix_ns()))?.run().await?;
            Ok(ExitCode::from(self.exit_code))
        })
    }
}
