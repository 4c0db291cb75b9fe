//! The `proxy` subresource for nodes: commands for a node's agent.
//!
//! These commands exist only in the embedded cluster. `POST /api/v1/nodes/NAME/proxy/restart` restarts the agent,
//! starts it if it was stopped, and boots a node that was shut down. `.../proxy/stop` stops only the agent.
//! `.../proxy/shutdown?grace=SECONDS` shuts down the node. `.../proxy/kill/NAMESPACE/POD/CONTAINER` kills a container's
//! process. All of them accept only POST. Other methods get a 405 response, which tells the client that the path
//! exists.

use http::{Method, Request, StatusCode};
use serde_json::Value;

use super::super::agents::AgentCommand;
use super::super::object_fields::uid;
use super::super::resource::Resource;
use super::super::status::Status;
use super::ApiServerState;
use super::query::Query;
use super::respond::{self, ApiResponse};

/// Default grace period for a shutdown, in seconds.
const SHUTDOWN_GRACE_S: i64 = 30;

/// Passes a command on to the agent on `node`.
pub(super) fn answer<B>(
    request: &Request<B>,
    server: &ApiServerState,
    query: &Query,
    node: &str,
    path: &str,
) -> Result<ApiResponse, Status> {
    let command = match path {
        "/restart" => AgentCommand::Restart,
        "/stop" => AgentCommand::Stop,
        _ if path.starts_with("/kill/") => return kill(request, server, node, path),
        "/shutdown" => {
            let grace_seconds = match query.get("grace") {
                "" => SHUTDOWN_GRACE_S,
                seconds => seconds.parse().ok().filter(|seconds| *seconds >= 0).ok_or_else(|| {
                    Status::bad_request(format!("invalid grace: {seconds:?}; use a number of seconds"))
                })?,
            };
            AgentCommand::Shutdown { grace_seconds }
        }
        _ => return Err(Status::unknown_path()),
    };
    if request.method() != Method::POST {
        return Err(Status::method_not_allowed());
    }
    if !server.agents.command(node, command) {
        return Err(Status::not_found(Resource::Nodes, node));
    }
    Ok(respond::success(StatusCode::OK, Value::Null))
}

/// Kills the process of a container in one of the node's pods.
fn kill<B>(
    request: &Request<B>,
    server: &ApiServerState,
    node: &str,
    path: &str,
) -> Result<ApiResponse, Status> {
    let mut names = path.split('/').skip(2);
    let (Some(namespace), Some(name), Some(container), None) =
        (names.next(), names.next(), names.next(), names.next())
    else {
        return Err(Status::unknown_path());
    };
    if request.method() != Method::POST {
        return Err(Status::method_not_allowed());
    }
    let pod = server.shared.registry.get(Resource::Pods, namespace, name)?;
    if pod["spec"]["nodeName"] != node {
        return Err(Status::not_found(Resource::Pods, name));
    }
    if !server.agents.kill(uid(&pod), container) {
        let why = format!("container {container:?} of pod {name:?} is not running");
        return Err(Status::bad_request(why));
    }
    Ok(respond::success(StatusCode::OK, Value::Null))
}
