//! The process that the embedded cluster runs in, as seen from its parent.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use rolldrop_lab::config::ConfigError;
use rolldrop_lab::{ClusterConfig, descendants, kernel};

/// Time that the cluster may take to become ready.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Time that the cluster may take to clean up before it is killed.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between checks of the process.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Number of bytes from the end of the cluster's log to show in an error.
const TAIL_BYTES: usize = 2000;

/// Line that the cluster process prints on its standard output once it is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterReady {
    /// Always true, because the process prints nothing before it is ready.
    pub ready: bool,
    /// The API server's URL.
    pub server: String,
    /// Path of the cluster's kubeconfig.
    pub kubeconfig: PathBuf,
    /// Notice for the user: the reason that the preferred dataplane is not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
}

/// Reason that the cluster process did not become ready.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum ChildError {
    /// A parameter cannot be honoured; nothing was started.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The process's log cannot be written.
    #[error("cannot write its log {}", path.display())]
    Log { path: PathBuf, source: io::Error },
    /// The process could not be started at all.
    #[error("cannot run {}", program.display())]
    Spawn { program: PathBuf, source: io::Error },
    /// The process exited before it was ready.
    #[error("it exited before it was ready ({status}):\n{log}")]
    Ended { status: ExitStatus, log: String },
    /// The process was not ready in time.
    #[error("it was not ready after {} s:\n{log}", START_TIMEOUT.as_secs())]
    Slow { log: String },
}

/// The cluster process exited unexpectedly.
#[derive(Debug, thiserror::Error)]
#[error("the embedded cluster died ({how}), which ended the run{}", last_words(log))]
pub struct Died {
    /// Exit status of the process, or the signal that killed it, in words.
    how: String,
    /// Last part of the process's log.
    log: String,
}

fn last_words(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("; its log ends:\n{log}") }
}

/// A running cluster process. Dropping this value closes the pipe to the process, which then exits.
#[derive(Debug)]
pub(crate) struct ClusterProcess {
    /// The process; its standard input is the lifeline.
    child: Child,
    /// Process ID. The process is the leader of its own session.
    pid: i32,
    kubeconfig: PathBuf,
    log: PathBuf,
    /// Directory with the cluster's links to namespaces, if the cluster uses the kernel dataplane.
    namespaces: PathBuf,
    notice: Option<String>,
}

impl ClusterProcess {
    /// Starts this program's own `cluster` command and waits until it is ready.
    pub(crate) async fn start(config: &ClusterConfig, log_dir: &Path) -> Result<Self, ChildError> {
        config.validate()?;
        let program = std::env::current_exe();
        let program = program.map_err(|source| ChildError::Spawn { program: "rolldrop".into(), source })?;
        let spawn_error = |source| ChildError::Spawn { program: program.clone(), source };
        // If the cluster process is killed, its pods become children of this process.
        descendants::adopt_orphans().map_err(spawn_error)?;
        let log_path = log_dir.join("cluster.log");
        let log = std::fs::create_dir_all(log_dir).and_then(|()| std::fs::File::create(&log_path));
        let log = log.map_err(|source| ChildError::Log { path: log_path.clone(), source })?;
        let config = serde_json::to_string(config).map_err(|error| spawn_error(error.into()))?;
        let kubeconfig = log_dir.join("kubeconfig");
        let mut child = Command::new(&program)
            .args(["cluster", "--lifeline", "--config", &config, "--kubeconfig"])
            .arg(&kubeconfig)
            .arg("--log-dir")
            .arg(log_dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(spawn_error)?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).unwrap_or(-1);
        let stdout = child.stdout.take();
        let namespaces = kernel::names_dir(log_dir);
        let mut process = Self { child, pid, kubeconfig, log: log_path.clone(), namespaces, notice: None };

        let first_line = async {
            match stdout {
                Some(stdout) => BufReader::new(stdout).lines().next_line().await,
                None => Ok(None),
            }
        };
        let tail = || tail_of(&log_path);
        let ready = tokio::time::timeout(START_TIMEOUT, first_line)
            .await
            .map(|line| serde_json::from_str::<ClusterReady>(&line.ok().flatten().unwrap_or_default()));
        match ready {
            Ok(Ok(ready)) => {
                process.notice = ready.notice;
                Ok(process)
            }
            Ok(Err(_)) => {
                process.end().await;
                let status = process.child.wait().await.map_err(spawn_error)?;
                Err(ChildError::Ended { status, log: tail() })
            }
            Err(_) => {
                process.end().await;
                Err(ChildError::Slow { log: tail() })
            }
        }
    }

    /// Returns the path of the cluster's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Returns the cluster's notice for the user, if there is one.
    pub(crate) fn notice(&self) -> Option<&str> {
        self.notice.as_deref()
    }

    /// Waits until the process has exited or been killed, and none of its pods is left.
    pub(crate) async fn died(&self) -> Died {
        let pid = Pid::from_raw(self.pid);
        // Leaves the process to be reaped through `child`.
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let how = loop {
            match waitid(Id::Pid(pid), flags) {
                Ok(WaitStatus::Exited(_, code)) => break format!("exit status {code}"),
                Ok(WaitStatus::Signaled(_, signal, _)) => break format!("killed by {signal}"),
                Ok(WaitStatus::StillAlive) | Err(Errno::EINTR) => tokio::time::sleep(LOOK_AGAIN).await,
                Ok(other) => break format!("{other:?}"),
                Err(error) => break error.to_string(),
            }
        };
        // The pods are children of this process now.
        let cluster = self.pid;
        let _ = tokio::task::spawn_blocking(move || descendants::kill_cluster(cluster)).await;
        Died { how, log: tail_of(&self.log) }
    }

    /// Stops the cluster and removes its leftovers.
    pub(crate) async fn stop(mut self) {
        self.end().await;
    }

    async fn end(&mut self) {
        drop(self.child.stdin.take());
        if tokio::time::timeout(STOP_TIMEOUT, self.child.wait()).await.is_err()
            && let Err(error) = self.child.kill().await
        {
            tracing::warn!(%error, "the cluster process could not be killed");
        }
    }
}

impl Drop for ClusterProcess {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // A live process cleans up after itself; if it was killed, its pods are children of this process.
        if !matches!(self.child.try_wait(), Ok(None)) {
            descendants::kill_cluster(self.pid);
            // The process removes its kubeconfig and its links itself, unless it was killed.
            let removed = [
                (&self.kubeconfig, std::fs::remove_file(&self.kubeconfig)),
                (&self.namespaces, std::fs::remove_dir_all(&self.namespaces)),
            ];
            for (path, removed) in removed {
                if let Err(error) = removed
                    && error.kind() != io::ErrorKind::NotFound
                {
                    tracing::warn!(%error, path = %path.display(), "not removed");
                }
            }
        }
    }
}

fn tail_of(path: &Path) -> String {
    let log = std::fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&log[log.len().saturating_sub(TAIL_BYTES)..]).trim_end().to_owned()
}
