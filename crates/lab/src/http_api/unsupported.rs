//! Pod subresources that a real cluster serves but this one does not: those that enter a container, forward its ports,
//! or change a pod's containers. The response states this and suggests an alternative.

use super::super::network::Network;
use super::super::resource::Resource;
use super::super::shared::ClusterContext;
use super::super::status::Status;

/// Pod subresources that are not supported.
pub(super) const UNSUPPORTED: [&str; 5] = ["attach", "ephemeralcontainers", "exec", "portforward", "resize"];

/// Returns the response to a request for an unsupported subresource of the pod `name`: the reason, and an alternative.
pub(super) fn answer(subresource: &str, shared: &ClusterContext, namespace: &str, name: &str) -> Status {
    if let Err(status) = shared.registry.get(Resource::Pods, namespace, name) {
        return status;
    }
    let on_kernel = matches!(shared.network, Network::Kernel(_));
    let (what, instead) = match subresource {
        "attach" => ("attach", format!("use `kubectl logs -f -n {namespace} {name}`")),
        "exec" if on_kernel => {
            ("exec", format!("use `rolldrop cluster exec --pod {namespace}/{name} -- COMMAND`"))
        }
        "exec" => {
            ("exec", "its containers are processes on this machine, so run the command here".to_owned())
        }
        "portforward" if on_kernel => (
            "port-forward",
            format!(
                "use /api/v1/namespaces/{namespace}/pods/{name}:PORT/proxy/, or `rolldrop cluster exec -- COMMAND`"
            ),
        ),
        "portforward" => ("port-forward", "connect to the pod's address directly".to_owned()),
        _ => ("changing the containers of a running pod", "create a new pod".to_owned()),
    };
    Status::plain(501, format!("the embedded cluster does not support {what}: {instead}"))
}
