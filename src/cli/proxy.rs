//! `rolldrop proxy`.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::proxy::{Config, Counts, DEFAULT_MAX_KEPT_ROWS, PodHeader, Proxy, Report};
use crate::record::Clock;

/// Arguments of `rolldrop proxy`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    rolldrop proxy --listen 0.0.0.0:8081 --upstream 127.0.0.1:8080 --admin 0.0.0.0:8082 --pod web-1\n\n\
    On SIGTERM it drains, hands its rows over to the reader of /rows on the admin port, and exits with 0.")]
pub(super) struct ProxyArgs {
    /// Address that clients connect to
    #[arg(long, value_name = "ADDR")]
    listen: SocketAddr,
    /// Address of the app
    #[arg(long, value_name = "ADDR")]
    upstream: SocketAddr,
    /// Address of the admin port: /healthz /readyz /clock /prestop /rows /metrics
    #[arg(long, value_name = "ADDR")]
    admin: SocketAddr,
    /// Name of the pod beside which it runs
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pod: String,
    /// Path of the app that says whether it is ready; without it, an accepted connection is enough
    #[arg(long, value_name = "PATH")]
    app_ready_path: Option<String>,
    /// How long to go on accepting after the app is gone, so that late connections are recorded
    #[arg(long, value_name = "D", default_value = "500ms", value_parser = super::parse_duration)]
    linger: Duration,
    /// Do not add the rolldrop-pod header to responses
    #[arg(long)]
    no_pod_header: bool,
}

impl ProxyArgs {
    /// Runs the command.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = tokio::runtime::Runtime::new().context("failed to start the runtime")?;
        runtime.block_on(async {
            let mut sigterm = signal(SignalKind::terminate()).context("failed to listen for SIGTERM")?;
            let mut sigint = signal(SignalKind::interrupt()).context("failed to listen for SIGINT")?;
            let mut signalled = async move || {
                tokio::select! {
                    _ = sigterm.recv() => {}
                    _ = sigint.recv() => {}
                }
            };
            let proxy = Proxy::bind(self.config(), Clock::start())?;
            eprintln!("rolldrop: proxy on {}, admin on {}", proxy.local_addr(), proxy.admin_addr());
            let (stop, stopped) = oneshot::channel();
            let (hurry, hurried) = oneshot::channel();
            // On a worker thread, not on this one: connections are handed to tasks without a detour.
            let mut running = JoinSet::new();
            running.spawn(proxy.run(heard(stopped), heard(hurried)));
            for sign in [stop, hurry] {
                tokio::select! {
                    () = signalled() => {
                        // Not heard any more only if the proxy has ended: seen right below.
                        let _ = sign.send(());
                    }
                    Some(report) = running.join_next() => return say(report?),
                }
            }
            let report = running.join_next().await.context("the proxy has no result")??;
            say(report)
        })
    }

    fn config(self) -> Config {
        Config {
            listen: self.listen,
            upstream: self.upstream,
            admin: self.admin,
            pod: self.pod,
            pod_header: if self.no_pod_header { PodHeader::Omitted } else { PodHeader::Added },
            app_ready_path: self.app_ready_path,
            linger: self.linger,
            max_kept_rows: DEFAULT_MAX_KEPT_ROWS,
        }
    }
}

/// Becomes ready when the other end says so, and never if it is dropped unsaid.
async fn heard(sign: oneshot::Receiver<()>) {
    if sign.await.is_err() {
        std::future::pending().await
    }
}

fn say(report: Report) -> anyhow::Result<ExitCode> {
    let Counts { recorded, handed_over, dropped, .. } = report.counts;
    eprintln!(
        "rolldrop: {recorded} requests on {} connections; {handed_over} rows handed over, {dropped} dropped",
        report.connections,
    );
    Ok(ExitCode::SUCCESS)
}
