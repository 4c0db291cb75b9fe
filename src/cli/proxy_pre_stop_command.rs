//! `rolldrop proxy-pre-stop`: the preStop hook of a container that runs `rolldrop proxy`.

use std::net::SocketAddr;
use std::process::ExitCode;

use rolldrop_sidecar::mark_pre_stop;

/// Arguments of `rolldrop proxy-pre-stop`.
#[derive(Debug, clap::Args)]
pub(super) struct ProxyPreStopArgs {
    /// Address of the proxy's admin port, as passed to the proxy
    #[arg(long, env = "ROLLDROP_ADMIN", value_name = "ADDR", value_parser = super::proxy_command::address)]
    admin: SocketAddr,
}

impl ProxyPreStopArgs {
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        mark_pre_stop(self.admin)?;
        Ok(ExitCode::SUCCESS)
    }
}
