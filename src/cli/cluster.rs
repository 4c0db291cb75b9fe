//! `rolldrop cluster`: the embedded cluster alone.

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};

use crate::cluster::Ready;
use crate::cluster::embedded::descendants::KillDescendants;
use crate::cluster::embedded::latency::Latencies;
use crate::cluster::embedded::{Config, Embedded, Options};

/// Arguments of `rolldrop cluster`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = after_help())]
pub(super) struct ClusterArgs {
    /// Where to write the kubeconfig [default: `kubeconfig` in the log directory].
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Where the logs of pods and of Service proxies go [default: a temporary directory].
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,
    /// Parameters of the cluster, as `spec.cluster.embedded` of a scenario, in JSON.
    #[arg(long, value_name = "JSON", value_parser = parse_config)]
    config: Option<Box<Config>>,
    /// End when standard input, a pipe, is closed; say in JSON when the cluster is ready.
    #[arg(long, hide = true)]
    lifeline: bool,
}

fn parse_config(json: &str) -> Result<Box<Config>, String> {
    let config: Config = serde_json::from_str(json).map_err(|error| error.to_string())?;
    config.validate().map_err(|error| error.to_string())?;
    Ok(Box::new(config))
}

fn after_help() -> String {
    let mut help = "Example:\n  rolldrop cluster --kubeconfig ./kubeconfig --config '{\"nodes\": 2}'\n\n\
                    Latencies (`latencies` in the configuration), each one duration or\n\
                    {min, median, p95, max}, with defaults measured on a real v1.36.2:\n"
        .to_owned();
    for (name, latency) in Latencies::default().named() {
        help.push_str(&format!("  {name:<28} {latency}\n"));
    }
    help
}

impl ClusterArgs {
    /// Runs the command.
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if self.lifeline {
            // A session of its own: a Ctrl-C at the parent's terminal is the parent's business.
            nix::unistd::setsid().context("start a session")?;
        }
        // Dropped last, after the runtime and all its tasks.
        let _no_process_is_left = KillDescendants::on_drop().context("adopt orphaned processes")?;
        let runtime = tokio::runtime::Runtime::new().context("start the async runtime")?;
        runtime.block_on(self.serve())
    }

    async fn serve(self) -> anyhow::Result<ExitCode> {
        match self.log_dir.clone() {
            Some(log_dir) => self.serve_in(log_dir).await,
            None => {
                let log_dir = std::env::temp_dir().join(format!("rolldrop-cluster-{}", std::process::id()));
                let served = self.serve_in(log_dir.clone()).await;
                note_left_over(&log_dir, fs::remove_dir_all(&log_dir));
                served
            }
        }
    }

    async fn serve_in(self, log_dir: PathBuf) -> anyhow::Result<ExitCode> {
        let mut interrupt = signal(SignalKind::interrupt()).context("catch SIGINT")?;
        let mut terminate = signal(SignalKind::terminate()).context("catch SIGTERM")?;
        let lifeline = if self.lifeline { Some(open_lifeline()?) } else { None };

        let kubeconfig = self.kubeconfig.unwrap_or_else(|| log_dir.join("kubeconfig"));
        let options = Options {
            log_dir: log_dir.clone(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            own_binary: std::env::current_exe().context("find this program's own file")?,
        };
        let mut cluster = Embedded::start(*self.config.unwrap_or_default(), options).await?;
        write_private(&kubeconfig, &cluster.kubeconfig())
            .with_context(|| format!("write the kubeconfig {}", kubeconfig.display()))?;
        let ready = Ready { ready: true, server: cluster.server(), kubeconfig: kubeconfig.clone() };
        announce(&ready, cluster.dns(), &log_dir, lifeline.is_some())
            .context("say that the cluster is ready")?;

        let failure = tokio::select! {
            failure = cluster.failure() => Some(failure),
            _ = interrupt.recv() => None,
            _ = terminate.recv() => None,
            () = wait_for_end(lifeline) => None,
        };
        cluster.stop().await;
        note_left_over(&kubeconfig, fs::remove_file(&kubeconfig));
        match failure {
            Some(failure) => Err(failure.into()),
            None => Ok(ExitCode::SUCCESS),
        }
    }
}

/// Standard input as a pipe whose other end the parent holds.
fn open_lifeline() -> anyhow::Result<pipe::Receiver> {
    let stdin = io::stdin().as_fd().try_clone_to_owned().context("duplicate standard input")?;
    pipe::Receiver::from_owned_fd(stdin).context("--lifeline needs a pipe as standard input")
}

/// Waits until the parent has closed its end, or for ever without a lifeline.
async fn wait_for_end(lifeline: Option<pipe::Receiver>) {
    let Some(mut lifeline) = lifeline else { return std::future::pending().await };
    let mut ignored = [0; 64];
    while matches!(lifeline.read(&mut ignored).await, Ok(1..)) {}
}

fn announce(ready: &Ready, dns: SocketAddr, log_dir: &Path, in_json: bool) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    if in_json {
        writeln!(stdout, "{}", serde_json::to_string(ready)?)?;
    } else {
        let Ready { server, kubeconfig, .. } = ready;
        writeln!(stdout, "the cluster is ready at {server}; Ctrl-C ends it")?;
        writeln!(stdout, "  export KUBECONFIG={}", kubeconfig.display())?;
        writeln!(stdout, "names of cluster.local are answered at {dns} (UDP and TCP)")?;
        writeln!(stdout, "logs of pods are in {}", log_dir.join("pods").display())?;
    }
    stdout.flush()
}

/// Writes a file that its owner alone may read, whole or not at all.
fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    let Some(name) = path.file_name() else { bail!("the path names no file") };
    let mut draft = path.to_owned();
    draft.set_file_name(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    let mut file: File = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        note_left_over(&draft, fs::remove_file(&draft));
    }
    Ok(written?)
}

fn note_left_over(path: &Path, removed: io::Result<()>) {
    if let Err(error) = removed
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(%error, path = %path.display(), "not removed");
    }
}
