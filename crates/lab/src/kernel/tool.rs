//! Host programs that set up the network.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::KernelError;

/// Directories of system programs, which may be missing from an ordinary user's `PATH`.
const SYSTEM_DIRS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// Program on the host.
#[derive(Clone, Debug)]
pub(crate) struct HostTool(PathBuf);

impl HostTool {
    /// Finds a program by name.
    pub(crate) fn find(name: &'static str) -> Result<Self, KernelError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut dirs = std::env::split_paths(&path).chain(SYSTEM_DIRS.map(PathBuf::from));
        let found = dirs.find_map(|dir| Some(dir.join(name)).filter(|file| file.is_file()));
        found.map(Self).ok_or(KernelError::NoTool { name })
    }

    /// Returns a command that starts the program.
    pub(crate) fn command(&self) -> Command {
        Command::new(&self.0)
    }

    /// Runs the program with `input` as its standard input, in this thread's namespaces.
    ///
    /// # Errors
    ///
    /// Fails if the program cannot be started, or exits with an error.
    pub(crate) fn run(&self, args: &[&str], input: &str) -> io::Result<()> {
        let mut command = self.command();
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(input.as_bytes()));
        let output = child.wait_with_output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let said: Vec<_> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
            return Err(io::Error::other(format!("{}: {}", self.0.display(), said.join("; "))));
        }
        written
    }
}
