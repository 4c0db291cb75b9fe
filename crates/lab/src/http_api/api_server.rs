//! State used only by the API server: its users' tokens and its access to the node agents.

use super::super::agents::Agents;
use super::super::api_tokens::ApiTokens;
use super::super::shared::ClusterContext;
use super::server_identity::ServerIdentity;

/// State of an API server.
#[derive(Debug)]
pub(crate) struct ApiServerState {
    pub(super) shared: ClusterContext,
    pub(crate) agents: Agents,
    pub(crate) tokens: ApiTokens,
    pub(crate) identity: ServerIdentity,
}

impl ApiServerState {
    pub(crate) fn new(
        shared: ClusterContext,
        agents: Agents,
        tokens: ApiTokens,
        identity: ServerIdentity,
    ) -> Self {
        Self { shared, agents, tokens, identity }
    }
}
