//! Command line: clap types, dispatch, exit status.

mod cluster;
mod load;
mod proxy;
mod workload;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measures which requests are lost when Kubernetes pods go away, why, and what setting would have saved them.
#[derive(Debug, Parser)]
#[command(name = "rolldrop", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the load generator alone.
    Load(load::LoadArgs),
    /// Run the recording proxy beside a pod.
    Proxy(proxy::ProxyArgs),
    /// Run the embedded cluster alone, until Ctrl-C.
    Cluster(cluster::ClusterArgs),
    /// Run the sample server.
    Workload(workload::WorkloadArgs),
}

/// Parses the command line, runs the command, and answers the exit status.
pub fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Load(args) => args.run(),
        Command::Proxy(args) => args.run(),
        Command::Cluster(args) => args.run(),
        Command::Workload(args) => args.run(),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("rolldrop: {error:#}");
            ExitCode::from(2)
        }
    }
}
