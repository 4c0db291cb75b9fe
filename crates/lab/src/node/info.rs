//! What an agent knows of its node, and of the cluster around it.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;

use crate::agents::Agents;
use crate::tokens::Tokens;

/// What events name as their source.
pub(super) const COMPONENT: &str = "kubelet";

/// What an agent knows of its node.
#[derive(Clone, Debug)]
pub(crate) struct NodeInfo {
    pub(crate) name: String,
    /// Its place among the nodes, from 0.
    pub(crate) index: u8,
    pub(crate) address: Ipv4Addr,
    /// The program that runs for the image `rolldrop`.
    pub(crate) own_binary: PathBuf,
    /// Where the agent gets its commands, and where its containers can be killed.
    pub(crate) agents: Agents,
    /// Those of the pods' service accounts.
    pub(crate) tokens: Tokens,
    /// The certificate of the API server's authority.
    pub(crate) authority: Arc<str>,
}
