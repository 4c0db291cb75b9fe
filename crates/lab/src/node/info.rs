//! Information for an agent about its node and the cluster.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use crate::agents::Agents;
use crate::api_tokens::ApiTokens;

/// Component name, used as the source of the agent's events.
pub(super) const COMPONENT: &str = "kubelet";

/// Information for an agent about its node.
#[derive(Clone, Debug)]
pub(crate) struct NodeInfo {
    pub(crate) name: String,
    /// Index among the nodes, from 0.
    pub(crate) index: u8,
    pub(crate) address: Ipv4Addr,
    /// Program to run for the `rolldrop` image.
    pub(crate) own_binary: PathBuf,
    /// Channel for commands to the agent, and registry of the containers that can be killed.
    pub(crate) agents: Agents,
    /// Tokens of the pods' service accounts.
    pub(crate) tokens: ApiTokens,
}
