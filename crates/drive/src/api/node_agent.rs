//! Commands to a node's agent for which Kubernetes has no call.

use http::Request;
use kube::Client;

use rolldrop_kubernetes::guard::object_names::in_path;

/// Returns the API path where a node's agent accepts a command for which Kubernetes has no call.
pub(crate) fn agent_path(node: &str, command: &str) -> String {
    format!("/api/v1/nodes/{}/proxy/{command}", in_path(node))
}

/// Sends a command to a node's agent.
pub(crate) async fn ask_agent(client: &Client, node: &str, command: &str) -> kube::Result<()> {
    let request = Request::post(agent_path(node, command)).body(Vec::new());
    client.request_text(request.map_err(kube::Error::HttpError)?).await.map(drop)
}
