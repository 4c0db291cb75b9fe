//! `rolldrop workload`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;

use crate::record::clock::Clock;
use crate::workload::{Config, Habit, LogTarget, Server};

/// Arguments of `rolldrop workload`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  rolldrop workload --listen 127.0.0.1:8080 --on-sigterm drain --drain-for 3s"
)]
pub(super) struct WorkloadArgs {
    /// Address and port to listen on
    #[arg(long, value_name = "ADDR:PORT")]
    listen: SocketAddr,
    /// What to do on SIGTERM (SIGINT and SIGQUIT count as well)
    #[arg(long, value_name = "HABIT", value_enum, default_value_t = HabitArg::Exit)]
    on_sigterm: HabitArg,
    /// How long `drain` serves on after the signal
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = super::parse_duration)]
    drain_for: Duration,
    /// Delay before every answer
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = super::parse_duration)]
    response_time: Duration,
    /// Size of the body of `/` [default: a short text]
    #[arg(long, value_name = "N")]
    body_bytes: Option<usize>,
    /// How long after the start `/readyz` begins to succeed
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = super::parse_duration)]
    ready_after: Duration,
    /// Log what was done with each request, as JSON lines; `-` is stdout
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Name that the answers carry in `rolldrop-pod`
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pod_name: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum HabitArg {
    /// Exit at once; requests in flight are lost
    Exit,
    /// Fail readiness, serve on for --drain-for, then stop accepting and finish
    Drain,
    /// Do nothing until killed
    Ignore,
    /// Stop accepting at once, finish what is in flight
    Finish,
}

impl WorkloadArgs {
    /// Runs the command.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let config = Config {
            listen: self.listen,
            on_stop: match self.on_sigterm {
                HabitArg::Exit => Habit::Exit,
                HabitArg::Drain => Habit::Drain,
                HabitArg::Ignore => Habit::Ignore,
                HabitArg::Finish => Habit::Finish,
            },
            drain_for: self.drain_for,
            response_time: self.response_time,
            body_bytes: self.body_bytes,
            ready_after: self.ready_after,
            log: self.log.map(|path| match path.to_str() {
                Some("-") => LogTarget::Stdout,
                _ => LogTarget::File(path),
            }),
            pod_name: self.pod_name.filter(|name| !name.is_empty()),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("start the async runtime")?;
        let clock = Clock::start();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            Server::bind(&config, Box::new(move || clock.now().unix_ns()))?.run().await;
            Ok(ExitCode::SUCCESS)
        })
    }
}
