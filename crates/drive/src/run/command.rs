//! COMMAND of `rolldrop run -- COMMAND...`, which terminates pods.
//!
//! The command runs on this machine, in its own process group. Its output goes to stderr, because stdout is for the
//! result.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio_util::sync::CancellationToken;

use super::error::RunError;

/// Time that an interrupted command may take to exit before it is killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// A command whose program exists.
#[derive(Debug)]
pub struct UserCommand {
    program: PathBuf,
    words: Vec<OsString>,
}

impl UserCommand {
    /// Finds the program; returns `None` if there are no words.
    pub fn find(words: Vec<OsString>) -> Result<Option<Self>, RunError> {
        let Some(name) = words.first() else { return Ok(None) };
        let failed = || format!("failed to find the command {}", name.to_string_lossy());
        let program = find_program(name).map_err(RunError::failed(failed()))?;
        Ok(Some(Self { program, words }))
    }

    /// Returns the words for display.
    pub(super) fn words(&self) -> Vec<String> {
        self.words.iter().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    /// Runs the command until it exits. On `stop`, it gets SIGINT; if it does not exit in time, or on `abort`, it gets
    /// SIGKILL.
    pub(super) async fn run(
        &self,
        kubeconfig: Option<&OsStr>,
        stop: &CancellationToken,
        abort: &CancellationToken,
    ) -> io::Result<ExitStatus> {
        let mut command = tokio::process::Command::new(&self.program);
        command.args(&self.words[1..]).stdout(io::stderr()).kill_on_drop(true);
        // The command's process group is not in the terminal's foreground, so it cannot read from the terminal.
        command.stdin(if io::stdin().is_terminal() { Stdio::null() } else { Stdio::inherit() });
        command.process_group(0);
        if let Some(kubeconfig) = kubeconfig {
            command.env("KUBECONFIG", kubeconfig);
        }
        let mut child = command.spawn()?;
        tokio::select! {
            status = child.wait() => return status,
            () = stop.cancelled() => signal(&child, Signal::SIGINT),
        }
        tokio::select! {
            status = child.wait() => return status,
            () = abort.cancelled() => {}
            () = tokio::time::sleep(PATIENCE) => {}
        }
        signal(&child, Signal::SIGKILL);
        child.wait().await
    }
}

/// Sends a signal to the command's whole process group.
fn signal(child: &Child, which: Signal) {
    let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) else { return };
    // A process that has just exited needs no signal.
    let _ = killpg(Pid::from_raw(pid), which);
}

/// Finds a program by path, or by name in PATH, as a shell does.
fn find_program(name: &OsStr) -> Result<PathBuf, &'static str> {
    let path = Path::new(name);
    if path.components().count() > 1 {
        if !is_program(path) {
            return Err("it does not exist, or is not executable");
        }
        return Ok(path.to_owned());
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders)
        .map(|folder| folder.join(name))
        .find(|path| is_program(path))
        .ok_or("it is not in PATH; a shell built-in needs a shell: -- sh -c '...'")
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_command_resolves_through_path() {
        let find = |name: &str| UserCommand::find(vec![name.into()]);
        assert!(find("sh").unwrap().unwrap().program.is_absolute());
        assert!(find("/bin/sh").unwrap().is_some());
        let error = |name: &str| find(name).unwrap_err().in_words();
        assert!(error("no-such-command").contains("it is not in PATH"), "{}", error("no-such-command"));
        assert!(error("/etc/passwd").contains("not executable"));
        assert!(UserCommand::find(Vec::new()).unwrap().is_none());
    }
}
