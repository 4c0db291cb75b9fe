//! State used only by the API server: its users' tokens and its access to the node agents.

use super::super::agents::Agents;
use super::super::shared::ClusterContext;
use super::super::tokens::Tokens;
use super::server_identity::ServerIdentity;

/// State of an API server.
#[derive(Debug)]
pub(crate) struct ApiServerState {
    pub(super) shared: ClusterContext,
    pub(crate) agents: Agents,
    pub(crate) tokens: Tokens,
    pub(crate) identity: ServerIdentity,
}

impl ApiServerState {
    pub(crate) fn new(
        shared: ClusterContext,
        agents: Agents,
        tokens: Tokens,
        identity: ServerIdentity,
    ) -> Self {
        Self { shared, agents, tokens, identity }
    }
}
