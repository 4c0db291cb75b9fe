//! Runs `nft` transactions in one long-lived process if `nft` supports that, and otherwise in a new process for each.
//!
//! Starting a process and loading its libraries takes tens of milliseconds on a busy machine, which is longer than some
//! of the measured delays within which a transaction must complete. An interactive `nft` takes one transaction per line
//! and needs less than a millisecond for each. It prints nothing about a committed transaction, so an invalid command
//! follows each transaction, and the complaint about that command serves as the response.

use std::io;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdin, Command};
use tokio::time::timeout;

use crate::kernel::{Fabric, HostTool, KernelError};

/// Time limit for a transaction, after which the process counts as stuck.
const LIMIT: Duration = Duration::from_secs(10);

/// Runner of transactions in one node's network namespace.
#[derive(Debug)]
pub(super) struct Nft {
    fabric: Arc<Fabric>,
    tool: HostTool,
    /// Index of the node, from 0.
    node: u8,
    interactive: Interactive,
}

#[derive(Debug)]
enum Interactive {
    /// Not requested yet, or the process has exited.
    NotRunning,
    Running(Box<NftSession>),
    /// This `nft` was built without interactive mode.
    Unsupported,
}

impl Nft {
    /// Finds `nft` without starting it.
    pub(super) fn new(fabric: Arc<Fabric>, node: u8) -> Result<Self, KernelError> {
        Ok(Self { fabric, tool: HostTool::find("nft")?, node, interactive: Interactive::NotRunning })
    }

    /// Runs a script of any form in a separate process, in one transaction.
    ///
    /// # Errors
    ///
    /// Fails if the process cannot be started, or `nft` rejects the script.
    pub(super) async fn run_script(&self, script: String) -> io::Result<()> {
        let (fabric, tool, node) = (Arc::clone(&self.fabric), self.tool.clone(), self.node);
        let run = move || fabric.on_node(node, || tool.run(&["-f", "-"], &script));
        tokio::task::spawn_blocking(run).await.map_err(io::Error::from).flatten()
    }

    /// Runs a script with one command per line in one transaction, in the long-lived process.
    ///
    /// # Errors
    ///
    /// Fails if `nft` rejects the script, or the process does not respond.
    pub(super) async fn run_lines(&mut self, script: String) -> io::Result<()> {
        let Interactive::Running(session) = &mut self.interactive else {
            return self.run_script(script).await;
        };
        let done = session.run(&script).await;
        if done.is_err() {
            self.interactive = Interactive::NotRunning;
        }
        done
    }

    /// Starts the long-lived process, unless it is running or this `nft` does not support it.
    pub(super) async fn stay(&mut self) {
        if matches!(self.interactive, Interactive::NotRunning) {
            self.interactive = match self.session().await {
                Ok(session) => Interactive::Running(Box::new(session)),
                Err(error) => {
                    tracing::debug!(%error, "no interactive nft: starting a process for each transaction");
                    Interactive::Unsupported
                }
            };
        }
    }

    /// Returns true if the long-lived process is running.
    pub(super) fn stays(&self) -> bool {
        matches!(self.interactive, Interactive::Running(_))
    }

    async fn session(&self) -> io::Result<NftSession> {
        let mut command = Command::from(self.tool.command());
        command
            .arg("--interactive")
            // Keeps `nft` from writing to the user's command history.
            .env("HOME", "/dev/null")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let runtime = tokio::runtime::Handle::current();
        let mut child = self.fabric.on_node(self.node, || {
            let _reactor = runtime.enter();
            command.spawn()
        })?;
        let gone = || io::Error::other("its pipes are missing");
        let input = child.stdin.take().ok_or_else(gone)?;
        let said = BufReader::new(child.stderr.take().ok_or_else(gone)?).lines();
        let mut session = NftSession { input, said, transactions: 0, _child: child };
        session.run("").await?;
        Ok(session)
    }
}

/// Interactive `nft` process. It exits when this is dropped, or when its standard input closes.
#[derive(Debug)]
struct NftSession {
    input: ChildStdin,
    said: Lines<BufReader<ChildStderr>>,
    transactions: u64,
    _child: Child,
}

impl NftSession {
    async fn run(&mut self, script: &str) -> io::Result<()> {
        self.transactions += 1;
        let end = format!("end-of-{}", self.transactions);
        let commands: Vec<_> = script.lines().collect();
        let lines = format!("{}\n{end}\n", commands.join("; "));
        let answered = timeout(LIMIT, async {
            self.input.write_all(lines.as_bytes()).await?;
            let mut said = Vec::new();
            loop {
                let line = self.said.next_line().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
                if line.trim() == end {
                    return Ok::<_, io::Error>(said);
                }
                said.push(line);
            }
        });
        let said = answered.await??;
        complaint(&said).map_or(Ok(()), |said| Err(io::Error::other(said)))
    }
}

/// Returns the complaints about all commands except the final, invalid one, whose own error comes last.
fn complaint(said: &[String]) -> Option<String> {
    let (_of_the_end, said) = said.split_last()?;
    // Marker lines point to the mistake; those for the previous final command come first.
    let is_text = |line: &&str| !line.is_empty() && line.chars().any(|c| !matches!(c, '^' | '~' | ' '));
    let text: Vec<_> = said.iter().map(|line| line.trim()).filter(is_text).collect();
    (!text.is_empty()).then(|| text.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nft_complaint_ignores_final_error() {
        let said = |text: &str| complaint(&text.lines().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(said("Error: syntax error, unexpected string"), None);
        assert_eq!(said("^^^^^^^^\nError: syntax error, unexpected string"), None);
        let refused = "^^^^^^^^\nError: No such file or directory\nflush chain ip kube-proxy x\n      \
                       ^^^^\nError: syntax error, unexpected string";
        assert_eq!(
            said(refused).as_deref(),
            Some("Error: No such file or directory; flush chain ip kube-proxy x")
        );
    }
}
