//! Subresources of running containers that a real cluster serves and this one does not: entering a container,
//! forwarding its ports, adding one. The answer says so, and names an alternative.

use super::super::network::Network;
use super::super::resource::Resource;
use super::super::shared::Shared;
use super::super::status::Status;

/// A subresource of pods that is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsupported {
    Attach,
    EphemeralContainers,
    Exec,
    PortForward,
    Resize,
}

impl Unsupported {
    const ALL: [Self; 5] =
        [Self::Attach, Self::EphemeralContainers, Self::Exec, Self::PortForward, Self::Resize];

    /// Returns its name in paths.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Attach => "attach",
            Self::EphemeralContainers => "ephemeralcontainers",
            Self::Exec => "exec",
            Self::PortForward => "portforward",
            Self::Resize => "resize",
        }
    }

    /// Finds a subresource by its name.
    pub(super) fn find(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unsupported| unsupported.name() == name)
    }

    /// Returns the answer for the pod `name`: why the subresource is not available, and the alternative.
    pub(super) fn answer(self, shared: &Shared, namespace: &str, name: &str) -> Status {
        if let Err(status) = shared.registry.get(Resource::Pods, namespace, name) {
            return status;
        }
        let on_kernel = matches!(shared.network, Network::Kernel(_));
        let (what, instead) = match self {
            Self::Attach => ("attach", format!("see `kubectl logs -f -n {namespace} {name}`")),
            Self::Exec if on_kernel => {
                ("exec", format!("use `rolldrop cluster exec --pod {namespace}/{name} -- COMMAND`"))
            }
            Self::Exec => ("exec", "its containers are processes of this machine".to_owned()),
            Self::PortForward if on_kernel => (
                "port-forward",
                format!(
                    "ask at /api/v1/namespaces/{namespace}/pods/{name}:PORT/proxy/, or by `rolldrop cluster exec -- COMMAND`"
                ),
            ),
            Self::PortForward => ("port-forward", "the pod's address can be reached as it is".to_owned()),
            Self::EphemeralContainers | Self::Resize => {
                ("a change of a running pod's containers", "make a new pod".to_owned())
            }
        };
        Status::not_implemented(format!("{what} is not supported by the embedded cluster: {instead}"))
    }
}
