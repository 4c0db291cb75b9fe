//! Tests whether the kernel dataplane works on this machine by using every part of it.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use super::config::GoneAddress;
use super::kernel::{Fabric, HostTool, KernelError, NodePlan, Pids, enter, names_dir};
use super::service_proxies::nft_script;

/// Subcommand of `rolldrop cluster` that runs [`run`].
pub const COMMAND: &str = "check-kernel";

/// Tries the kernel dataplane in a separate process, because a process that has entered namespaces cannot leave them.
///
/// # Errors
///
/// The reason why the dataplane does not work.
pub fn check() -> Result<(), KernelError> {
    let tried = |error: std::io::Error| KernelError::Tried(error.to_string());
    let program = std::env::current_exe().map_err(tried)?;
    let mut command = Command::new(program);
    command.args(["cluster", COMMAND]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let output = command.output().map_err(tried)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().last().unwrap_or("it exited without a message").trim_start_matches("rolldrop: ");
    Err(KernelError::Tried(said.to_owned()))
}

/// Uses every part of the dataplane once, in this process; `scratch` is an empty directory.
///
/// # Errors
///
/// The error from the first part that fails.
pub fn run(scratch: &Path) -> Result<(), KernelError> {
    let nft = HostTool::find("nft")?;
    HostTool::find("ip")?;
    let network = |source| KernelError::Network { source };
    let address = Ipv4Addr::new(10, 0, 0, 1);
    let plan = NodePlan { name: "node-1".to_owned(), address, pods: Ipv4Addr::new(10, 244, 1, 0) };
    let control_plane = Ipv4Addr::new(10, 0, 0, 254);
    let gone = GoneAddress::default();
    let entered = enter(&[])?;
    let fabric = Arc::new(Fabric::build(entered, control_plane, &[plan], gone, names_dir(scratch))?);
    let rules = fabric.on_node(0, || nft.run(&["-f", "-"], &nft_script::trial(address)));
    rules.map_err(|source| KernelError::Rules { source })?;
    let pod = fabric.pod(0, "default/trial", "trial", Ipv4Addr::new(10, 244, 1, 2), None).map_err(network)?;
    pod.place(&[], Pids::Own).map_err(network)?;
    pod.remove().map_err(network)
}
