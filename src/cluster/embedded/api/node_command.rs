//! The nodes' `proxy` subresource: what can be asked of a node's agent.
//!
//! This is the embedded cluster's own: `POST /api/v1/nodes/NAME/proxy/restart` restarts the
//! agent, starts it if it was stopped, and boots a node that was shut down; `.../proxy/stop` stops
//! the agent alone; `.../proxy/shutdown?grace=SECONDS` shuts the node down.

use http::{Method, Request, StatusCode};
use serde_json::json;

use super::super::Shared;
use super::super::node::Command;
use super::super::resource::Resource;
use super::super::status::Status;
use super::respond::{self, Answer};
use super::route::Query;

/// The grace of a shutdown that does not say, in seconds.
const SHUTDOWN_GRACE_S: i64 = 30;

/// Passes a command on to the agent of `node`.
pub(super) fn answer<B>(
    request: &Request<B>,
    shared: &Shared,
    query: &Query,
    node: &str,
    path: &str,
) -> Result<Answer, Status> {
    let command = match path {
        "/restart" => Command::Restart,
        "/stop" => Command::Stop,
        "/shutdown" => {
            let grace_seconds = match query.get("grace") {
                "" => SHUTDOWN_GRACE_S,
                seconds => seconds
                    .parse()
                    .ok()
                    .filter(|seconds| *seconds >= 0)
                    .ok_or_else(|| Status::bad_request(format!("invalid grace: {seconds:?}")))?,
            };
            Command::Shutdown { grace_seconds }
        }
        _ => return Err(Status::unknown_path()),
    };
    if request.method() != Method::POST {
        return Err(Status::method_not_allowed());
    }
    shared.agents.command(node, command).map_err(|_| Status::not_found(Resource::Nodes, node))?;
    let success = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"});
    Ok(respond::json(StatusCode::OK, &success))
}
