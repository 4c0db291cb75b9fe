//! `rolldrop cluster`: runs the embedded cluster alone, or a command inside it.

mod exec;

use std::fs::{self, File};
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::available_parallelism;

use anyhow::Context;
use tempfile::{NamedTempFile, TempDir};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use super::measure::DATAPLANES;
use super::named_values::one_of;
use super::runtime;
use super::say::say;
use super::signals::SignalListener;
use rolldrop_drive::embedded::child::ClusterReady;
use rolldrop_drive::private_dir;
use rolldrop_lab::config::DataplaneChoice;
use rolldrop_lab::dataplane_check;
use rolldrop_lab::descendants::KillDescendants;
use rolldrop_lab::kernel::{self, Entered};
use rolldrop_lab::parameters::{self, Parameter};
use rolldrop_lab::{ClusterConfig, Embedded, EmbeddedOptions};

/// Arguments of `rolldrop cluster`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = after_help(), args_conflicts_with_subcommands = true)]
pub(super) struct ClusterArgs {
    #[command(subcommand)]
    action: Option<ClusterCommand>,
    #[command(flatten)]
    serve: ServeArgs,
}

#[derive(Debug, clap::Subcommand)]
enum ClusterCommand {
    /// Run a command inside the network of a running embedded cluster.
    Exec(exec::ExecArgs),
    /// The first process of the containers' PID namespace.
    #[command(name = kernel::init::COMMAND, hide = true)]
    Init {
        /// Files and directories to remove at the end.
        leftovers: Vec<PathBuf>,
    },
    /// Try out the kernel dataplane once.
    #[command(name = dataplane_check::COMMAND, hide = true)]
    Check,
}

/// Arguments of a cluster that runs until Ctrl-C.
#[derive(Debug, clap::Args)]
struct ServeArgs {
    /// Kubeconfig to write [default: `kubeconfig` in the log directory].
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Directory for the logs of pods and Service proxies [default: a temporary directory].
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,
    /// Parameters of the cluster in JSON, in the form of `spec.cluster.embedded` in a scenario.
    #[arg(long, value_name = "JSON", value_parser = parse_config)]
    config: Option<Box<ClusterConfig>>,
    /// Pod network: kernel (network namespaces and rules), userspace (TCP proxies on loopback), or auto (kernel
    /// if it works) [default: from --config].
    #[arg(long, value_parser = one_of(&DATAPLANES))]
    dataplane: Option<DataplaneChoice>,
    /// End when standard input, a pipe, is closed; announce in JSON that the cluster is ready.
    #[arg(long, hide = true)]
    lifeline: bool,
}

fn parse_config(json: &str) -> Result<Box<ClusterConfig>, String> {
    let config: ClusterConfig = serde_json::from_str(json).map_err(|error| error.to_string())?;
    config.validate().map_err(|error| error.to_string())?;
    Ok(Box::new(config))
}

/// Returns the help on parameters, laid out like a configuration.
fn after_help() -> String {
    let mut help = "Example:\n  rolldrop cluster --kubeconfig ./kubeconfig --config '{\"nodes\": 2}'\n\n\
                    Parameters of the configuration, with their defaults and, in parentheses, the sources\n\
                    of the defaults. A latency is one duration, or {min, median, p95, max}, shown as min /\n\
                    median / p95 / max. \"row\" refers to a measurement on a real v1.36.2.\n\n"
        .to_owned();
    let mut section = String::new();
    for Parameter { name, default, about } in parameters::all() {
        let (own_section, key) = name.rsplit_once('.').unwrap_or(("", &name));
        if own_section != section {
            own_section.clone_into(&mut section);
            help.push_str(&format!("\n  {section}:\n"));
        }
        let indent = if section.is_empty() { 2 } else { 4 };
        help.push_str(&format!("{:indent$}{key}: {default}\n", ""));
        let indent = " ".repeat(indent + 4);
        let options = textwrap::Options::new(98)
            .initial_indent(&indent)
            .subsequent_indent(&indent)
            .break_words(false)
            .word_splitter(textwrap::WordSplitter::NoHyphenation);
        help.push_str(&textwrap::fill(&about, options));
        help.push('\n');
    }
    help
}

impl ClusterArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        match self.action {
            None => self.serve.run(),
            Some(ClusterCommand::Exec(exec)) => exec.run(),
            Some(ClusterCommand::Init { leftovers }) => {
                kernel::init::run(&leftovers)?;
                Ok(ExitCode::SUCCESS)
            }
            Some(ClusterCommand::Check) => {
                let scratch = temporary_dir("check").context("failed to create a temporary directory")?;
                dataplane_check::run(scratch.path())?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

/// Creates a private directory for this process, with an unguessable name.
fn temporary_dir(purpose: &str) -> io::Result<TempDir> {
    private_dir(&format!("rolldrop-{purpose}-{}-", std::process::id()))
}

/// Part of the name of each cluster's temporary directory.
const PURPOSE: &str = "cluster";

/// Marks a temporary directory as in use until the returned file is dropped, or the process is killed.
fn mark_as_in_use(dir: &Path) -> io::Result<File> {
    let file = File::open(dir)?;
    file.lock()?;
    Ok(file)
}

/// Removes temporary directories left behind by clusters that were killed.
fn remove_those_of_the_killed() {
    let prefix = format!("rolldrop-{PURPOSE}-");
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(&prefix)) else { continue };
        let pid = rest.split('-').next().unwrap_or_default();
        let has_ended = !Path::new("/proc").join(pid).exists();
        // A process in another PID namespace may be alive and using the directory.
        let is_free = || File::open(entry.path()).is_ok_and(|dir| dir.try_lock().is_ok());
        if has_ended && is_free() {
            // Fails for another user's directory, which is not ours to remove.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Paths to a cluster's files.
struct ClusterFiles {
    log_dir: PathBuf,
    kubeconfig: PathBuf,
    /// True if the log directory is removed with the cluster.
    is_temporary: bool,
}

impl ClusterFiles {
    /// Returns the paths that must not outlive the cluster.
    fn leftovers(&self) -> Vec<PathBuf> {
        let dir = if self.is_temporary { self.log_dir.clone() } else { kernel::names_dir(&self.log_dir) };
        vec![self.kubeconfig.clone(), dir]
    }

    fn remove(&self) {
        note_left_over(&self.kubeconfig, fs::remove_file(&self.kubeconfig));
        if self.is_temporary {
            note_left_over(&self.log_dir, fs::remove_dir_all(&self.log_dir));
        }
    }
}

/// Dataplane of a new cluster.
struct ClusterDataplane {
    /// Namespaces that this process entered for the kernel dataplane.
    entered: Option<Entered>,
    /// Reason for falling back from the kernel to the userspace dataplane, if that happened.
    notice: Option<String>,
}

impl ClusterDataplane {
    /// Moves this process, while it is still single-threaded, into the dataplane's namespaces.
    fn choose(choice: DataplaneChoice, leftovers: &[PathBuf]) -> anyhow::Result<Self> {
        if choice == DataplaneChoice::Userspace {
            return Ok(Self { entered: None, notice: None });
        }
        match (dataplane_check::check(), choice) {
            (Err(why), DataplaneChoice::Auto) => {
                let why = anyhow::Error::from(why);
                Ok(Self { entered: None, notice: Some(format!("using the userspace dataplane: {why:#}")) })
            }
            (checked, _) => {
                let entered = checked.and_then(|()| kernel::enter(leftovers));
                Ok(Self {
                    entered: Some(entered.context("the kernel dataplane is not possible here")?),
                    notice: None,
                })
            }
        }
    }
}

impl ServeArgs {
    fn run(self) -> anyhow::Result<ExitCode> {
        if self.lifeline {
            // In a session of its own, this process gets no Ctrl-C from the terminal; only the parent does.
            nix::unistd::setsid().context("failed to start a session")?;
        }
        // Dropped last, after the runtime and all its tasks.
        let _no_process_is_left =
            KillDescendants::on_drop().context("failed to become the parent of orphaned processes")?;
        let absolute =
            |path: PathBuf| std::path::absolute(path).context("failed to find the current directory");
        let is_temporary = self.log_dir.is_none();
        let log_dir = match self.log_dir {
            Some(dir) => dir,
            // The directory is removed at exit or, if this process is killed, by the next cluster.
            None => temporary_dir(PURPOSE).context("failed to create a temporary directory")?.keep(),
        };
        let log_dir = absolute(log_dir)?;
        // Held until the process exits.
        let _mark_of_life = if is_temporary {
            remove_those_of_the_killed();
            Some(mark_as_in_use(&log_dir).with_context(|| format!("failed to lock {}", log_dir.display()))?)
        } else {
            None
        };
        let kubeconfig = absolute(self.kubeconfig.unwrap_or_else(|| log_dir.join("kubeconfig")))?;
        let files = ClusterFiles { log_dir, kubeconfig, is_temporary };
        let config = *self.config.unwrap_or_default();
        // Opened outside the cluster's network so that clients on this host can reach the API.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("failed to listen on loopback")?;
        let dataplane =
            ClusterDataplane::choose(self.dataplane.unwrap_or(config.dataplane), &files.leftovers())?;
        if let Some(notice) = &dataplane.notice {
            say(notice);
        }
        let runtime = runtime::with_threads(available_parallelism().map_or(1, usize::from))?;
        let served = runtime.block_on(serve(config, listener, dataplane, &files, self.lifeline));
        files.remove();
        served
    }
}

async fn serve(
    config: ClusterConfig,
    listener: TcpListener,
    ClusterDataplane { entered, notice }: ClusterDataplane,
    files: &ClusterFiles,
    has_lifeline: bool,
) -> anyhow::Result<ExitCode> {
    let ClusterFiles { log_dir, kubeconfig, .. } = files;
    let has_network = entered.is_some();
    let signals = SignalListener::begin().context("failed to handle signals")?;
    let lifeline = if has_lifeline { Some(open_lifeline()?) } else { None };

    let options = EmbeddedOptions {
        log_dir: log_dir.clone(),
        listener,
        entered,
        own_binary: std::env::current_exe().context("failed to find this program's own file")?,
    };
    let mut cluster = Embedded::start(config, options).await?;
    write_private(kubeconfig, &cluster.kubeconfig())
        .with_context(|| format!("failed to write the kubeconfig {}", kubeconfig.display()))?;
    let ready =
        ClusterReady { ready: true, server: cluster.server(), kubeconfig: kubeconfig.clone(), notice };
    if has_lifeline {
        writeln!(io::stdout(), "{}", serde_json::to_string(&ready)?)
    } else {
        announce(&ready, cluster.dns(), log_dir, has_network)
    }
    .context("failed to announce that the cluster is ready")?;

    let failure = tokio::select! {
        failure = cluster.failure() => Some(failure),
        () = signals.interrupts.stop.cancelled() => None,
        () = wait_for_end(lifeline) => None,
    };
    cluster.stop().await;
    match failure {
        Some(failure) => Err(failure.into()),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Opens standard input as a pipe. The parent holds the other end.
fn open_lifeline() -> anyhow::Result<pipe::Receiver> {
    let stdin = io::stdin().as_fd().try_clone_to_owned().context("failed to duplicate standard input")?;
    pipe::Receiver::from_owned_fd(stdin).context("--lifeline needs a pipe as standard input")
}

/// Waits until the parent closes its end of the lifeline; without a lifeline, waits forever.
async fn wait_for_end(lifeline: Option<pipe::Receiver>) {
    let Some(mut lifeline) = lifeline else { return std::future::pending().await };
    let mut ignored = [0; 64];
    while matches!(lifeline.read(&mut ignored).await, Ok(1..)) {}
}

fn announce(ready: &ClusterReady, dns: SocketAddr, log_dir: &Path, has_network: bool) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    let ClusterReady { server, kubeconfig, .. } = ready;
    writeln!(stdout, "the cluster is ready at {server}; Ctrl-C ends it")?;
    writeln!(stdout, "  export KUBECONFIG={}", kubeconfig.display())?;
    if has_network {
        writeln!(stdout, "  rolldrop cluster exec -- curl http://SERVICE.NAMESPACE.svc.cluster.local/")?;
    }
    writeln!(stdout, "DNS for cluster.local is at {dns} (UDP and TCP)")?;
    writeln!(stdout, "pod logs are in {}", log_dir.join("pods").display())?;
    stdout.flush()
}

/// Writes a file atomically, readable only by its owner, as temporary files are.
fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut draft = NamedTempFile::new_in(path.parent().context("the path does not name a file")?)?;
    draft.write_all(text.as_bytes())?;
    draft.persist(path)?;
    Ok(())
}

fn note_left_over(path: &Path, removed: io::Result<()>) {
    if let Err(error) = removed
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(%error, path = %path.display(), "not removed");
    }
}
