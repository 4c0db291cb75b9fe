//! State used only by the API server: its users' tokens and its access to the node agents.

use super::super::agents::Agents;
use super::super::shared::Shared;
use super::super::tokens::Tokens;
use super::tls::Identity;

/// State of an API server.
#[derive(Debug)]
pub(crate) struct Server {
    pub(super) shared: Shared,
    pub(crate) agents: Agents,
    pub(crate) tokens: Tokens,
    pub(crate) identity: Identity,
}

impl Server {
    pub(crate) fn new(shared: Shared, agents: Agents, tokens: Tokens, identity: Identity) -> Self {
        Self { shared, agents, tokens, identity }
    }
}
