//! The sidecar container.

use std::num::NonZeroUsize;

use serde_json::{Value, json};

use super::annotated_object::SIDECAR;
use super::options::{Absent, AppProtocol, InjectOptions};
use rolldrop_manifest::ManifestObject;

/// Name of the sidecar. Other containers may have the same name; `place` identifies ours.
pub const NAME: &str = "rolldrop";
/// Name of the sidecar's admin port; the other port takes over the app's port name.
pub const ADMIN_PORT_NAME: &str = "rolldrop-admin";
/// Path of the program within the image (see the Dockerfile).
const PROGRAM: &str = "/rolldrop";
/// The proxy's default connection limit.
const CONNECTIONS: usize = 4096;

/// The sidecar's ports, which are the same in all workloads so that one Service can route to several workloads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ports {
    pub(super) listen: u16,
    pub(super) admin: u16,
}

/// The app port that the sidecar takes over, and the sidecar's own ports.
#[derive(Debug)]
pub(super) struct Front {
    pub(super) app_port: u16,
    /// Path of the app's readiness probe, if the probe uses that port.
    pub(super) ready_path: Option<String>,
    /// Name that moves from the app's port to the sidecar's.
    pub(super) moved_name: Option<String>,
    pub(super) ports: Ports,
}

/// Creates the native sidecar: an init container that is always restarted (KEP-753), so it starts before the app and
/// exits after it.
///
/// The sidecar has no probes, because they would affect the pod's readiness; the app's own probes still go to the app.
/// The preStop hook runs the same program, to mark the time at which the kubelet begins to terminate the pod. The hook
/// finds the proxy through an environment variable, because the kubelet does not expand values in a hook's command.
/// There is no CPU limit, because throttling would show up as app latency.
pub(super) fn container(front: &Front, options: &InjectOptions) -> Value {
    let address = |port: u16| format!("$(POD_IP):{port}");
    let mut args = vec![
        "proxy".to_owned(),
        // A dual-stack pod has two addresses, and its Services may lead to either.
        format!("--listen=$(POD_IPS):{}", front.ports.listen),
        format!("--upstream={}", address(front.app_port)),
    ];
    if options.mode == Some(AppProtocol::Tcp) {
        args.push("--mode=tcp".to_owned());
    }
    args.extend(options.max_connections.map(|most| format!("--max-connections={most}")));
    args.extend(front.ready_path.iter().map(|path| format!("--app-ready-path={path}")));
    let field =
        |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let mut env = vec![
        field("POD_NAME", "metadata.name"),
        field("POD_IP", "status.podIP"),
        field("POD_IPS", "status.podIPs"),
        json!({"name": "ROLLDROP_ADMIN", "value": address(front.ports.admin)}),
    ];
    env.extend(options.admin_token.iter().map(|secret| {
        let mut from = json!({"name": secret.name, "key": secret.key});
        if secret.absent == Absent::TellsNobody {
            from["optional"] = true.into();
        }
        json!({"name": "ROLLDROP_ADMIN_TOKEN", "valueFrom": {"secretKeyRef": from}})
    }));
    let memory = format!("{}Mi", memory_mib(options.max_connections.map_or(CONNECTIONS, NonZeroUsize::get)));
    let mut port = json!({"containerPort": front.ports.listen});
    if let Some(name) = &front.moved_name {
        port["name"] = name.as_str().into();
    }
    json!({
        "name": NAME,
        "image": options.image,
        "restartPolicy": "Always",
        "args": args,
        "env": env,
        "ports": [port, {"name": ADMIN_PORT_NAME, "containerPort": front.ports.admin}],
        "lifecycle": {"preStop": {"exec": {"command": [PROGRAM, "proxy-pre-stop"]}}},
        "resources": {"requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"memory": memory}},
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": 65532,
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    })
}

/// Returns the sidecar's memory limit, in MiB: a fixed part, plus 40 KiB per connection, most of it for the kernel
/// buffers of the connection's two sockets (`docs/proxy.md`).
fn memory_mib(connections: usize) -> usize {
    96 + connections.max(CONNECTIONS).saturating_mul(40).div_ceil(1024)
}

/// Finds the index of a workload's sidecar among the init containers. The pods must have the annotation [`SIDECAR`],
/// and the container with the sidecar's name must have the annotated image, or another image named `rolldrop`, because
/// registries rewrite image names. The container name alone is not enough, because the container may be the user's own,
/// such as a migration.
pub(super) fn place(object: &ManifestObject, pod: &str) -> Option<usize> {
    let added = object.get(&format!("{pod}/metadata/annotations"))[SIDECAR].as_str()?;
    let containers = object.get(&format!("{pod}/spec/initContainers")).as_array()?;
    let is_ours = |container: &Value| {
        let image = container["image"].as_str().unwrap_or_default();
        container["name"] == *NAME && (image == added || base_name(image) == NAME)
    };
    containers.iter().position(is_ours)
}

/// Returns the last part of an image name, without tag and digest.
fn base_name(image: &str) -> &str {
    let last = image.rsplit('/').next().unwrap_or_default();
    last.split(['@', ':']).next().unwrap_or_default()
}

/// Returns the ports of a workload's sidecar.
pub(super) fn ports(object: &ManifestObject, pod: &str) -> Option<Ports> {
    let at = place(object, pod)?;
    let port = |index: usize| {
        let pointer = format!("{pod}/spec/initContainers/{at}/ports/{index}/containerPort");
        u16::try_from(object.get(&pointer).as_u64()?).ok()
    };
    Some(Ports { listen: port(0)?, admin: port(1)? })
}

/// Returns the app's port and the sidecar's own ports of a workload that has the sidecar.
pub(super) fn front(object: &ManifestObject, pod: &str) -> Option<Front> {
    let sidecar = object.get(&format!("{pod}/spec/initContainers/{}", place(object, pod)?));
    let mut args = sidecar["args"].as_array()?.iter().filter_map(Value::as_str);
    let upstream = args.find_map(|arg| arg.strip_prefix("--upstream="))?;
    Some(Front {
        app_port: upstream.rsplit(':').next()?.parse().ok()?,
        ready_path: None,
        moved_name: moved_name(sidecar).map(str::to_owned),
        ports: ports(object, pod)?,
    })
}

/// Returns the port name that the sidecar took over from the app.
pub(super) fn moved_name(sidecar: &Value) -> Option<&str> {
    let mut names = sidecar["ports"].as_array()?.iter().filter_map(|port| port["name"].as_str());
    names.find(|name| *name != ADMIN_PORT_NAME)
}
