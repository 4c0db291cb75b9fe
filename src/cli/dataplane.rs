//! `--dataplane` of the embedded cluster, which `rolldrop run` and `rolldrop cluster` share.

use rolldrop_drive::embedded::lab::config::DataplaneChoice;

/// The dataplane as the command line names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum DataplaneArg {
    /// `kernel` if it works, else `userspace`
    Auto,
    /// Network namespaces and nftables rules
    Kernel,
    /// Loopback addresses and TCP proxies
    Userspace,
}

impl From<DataplaneArg> for DataplaneChoice {
    fn from(arg: DataplaneArg) -> Self {
        match arg {
            DataplaneArg::Auto => Self::Auto,
            DataplaneArg::Kernel => Self::Kernel,
            DataplaneArg::Userspace => Self::Userspace,
        }
    }
}
