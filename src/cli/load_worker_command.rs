//! `rolldrop load-worker`: sends a load for another process. The two communicate over standard input and output
//! (`load::load_process::worker_protocol`), or over HTTP if the worker is in a pod (`load::remote`). The command is not
//! meant for people, so `--help` does not show it.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use tokio::io::BufReader;
use tokio::net::TcpListener;

use super::signals::SignalListener;
use rolldrop_drive::run::check_here;
use rolldrop_load as load;
use rolldrop_load::load_process::order_executor;
use rolldrop_load::remote::worker_server::{self, Visit};
use rolldrop_record::wire::AdminToken;
use rolldrop_record::{Clock, Evidence, RunDir};

/// Environment variable with the run's token, for a worker in a pod.
pub(super) const TOKEN_VARIABLE: &str = "ROLLDROP_LOAD_TOKEN";

/// Arguments of `rolldrop load-worker`.
#[derive(Debug, clap::Args)]
pub(super) struct LoadWorkerArgs {
    /// Run directory for the rows; with --listen, an empty directory for this worker alone.
    #[arg(long, value_name = "DIR", required_unless_present_any = ["check_evidence", "check_ports"])]
    out: Option<PathBuf>,
    /// Send nothing: check whether this evidence is available here.
    #[arg(long, value_name = "EVIDENCE")]
    check_evidence: Option<Evidence>,
    /// Send nothing: check whether there are enough source ports here for the load on standard input.
    #[arg(long)]
    check_ports: bool,
    /// Take orders over HTTP on this address, from clients with the token in ROLLDROP_LOAD_TOKEN.
    #[arg(long, value_name = "ADDRESS", value_parser = super::proxy_command::address)]
    listen: Option<SocketAddr>,
    /// Also connect to the coordinator at this address, and take its orders over that connection.
    #[arg(long, value_name = "HOST:PORT", requires_all = ["listen", "name"])]
    visit: Option<String>,
    /// Name by which the coordinator knows this worker.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

impl LoadWorkerArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(Evidence::Conntrack) = self.check_evidence {
            load::check_conntrack()?;
            return Ok(ExitCode::SUCCESS);
        }
        if self.check_ports {
            let order = serde_json::from_reader(io::stdin()).context("failed to read the load")?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(check_here(order))?;
            return Ok(ExitCode::SUCCESS);
        }
        let out = self.out.clone().unwrap_or_default();
        match self.listen {
            Some(address) => self.serve_run(address, &out)?,
            None => Self::serve_parent(&out)?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn serve_parent(out: &Path) -> anyhow::Result<()> {
        // In a session of its own, the worker gets no Ctrl-C from the terminal; only the controlling process does. The
        // call fails for a session leader, which needs none.
        let _ = nix::unistd::setsid();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let orders = BufReader::new(tokio::io::stdin());
        runtime.block_on(order_executor::serve(
            || RunDir::open(out),
            None,
            Clock::start(),
            orders,
            |report| {
                let mut stdout = io::stdout().lock();
                serde_json::to_writer(&mut stdout, report)?;
                writeln!(stdout)?;
                stdout.flush()
            },
        ));
        // This does not wait for further commands.
        runtime.shutdown_background();
        Ok(())
    }

    fn serve_run(self, address: SocketAddr, out: &Path) -> anyhow::Result<()> {
        let token = std::env::var(TOKEN_VARIABLE)?.parse::<AdminToken>();
        let token =
            token.with_context(|| format!("failed to read a token from the variable {TOKEN_VARIABLE}"))?;
        let run_dir = RunDir::create(out).context("failed to create the directory for the rows")?;
        let visit = self.visit.zip(self.name).map(|(address, name)| Visit { address, name });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let signals = SignalListener::begin()?;
            let listener = TcpListener::bind(address).await;
            let listener = listener.with_context(|| format!("failed to listen on {address}"))?;
            let settings = worker_server::WorkerServerSettings { run_dir, token, visit };
            worker_server::serve(listener, settings, signals.interrupts.stop.clone()).await;
            anyhow::Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, FromArgMatches};

    use super::*;

    /// The Job's manifest has `$(POD_IP):9901`.
    #[test]
    fn worker_listens_on_ipv6_address_of_pod() {
        let command = LoadWorkerArgs::augment_args(clap::Command::new("load-worker"));
        let words = ["load-worker", "--listen", "fd00::5:9901", "--out", "/rows"];
        let matches = command.try_get_matches_from(words).expect("an address");
        let listen = LoadWorkerArgs::from_arg_matches(&matches).expect("arguments").listen;
        assert_eq!(listen.expect("an address").to_string(), "[fd00::5]:9901");
    }
}
