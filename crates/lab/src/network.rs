//! Pod networks: the only seam between the two dataplanes and the code that runs pods.
//!
//! A [`PodSandbox`] corresponds to a container runtime's pod sandbox: it holds the pod's address and, on the kernel
//! dataplane, its namespaces. On the userspace dataplane it is only a loopback address; the pod's processes share the
//! machine's network and files.

use std::io;
use std::net::Ipv4Addr;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, OnceLock};

use nix::unistd::Pid;
use tokio::process::{Child, ChildStderr, ChildStdout, Command};

use super::hop_latency::HopLatency;
pub(crate) use super::kernel::{Bind, MountDirectory, Pids};
use super::kernel::{ContainerNamespaces, Fabric, First, PodNetwork};
use super::registry::Registry;
use super::sync::lock;

/// Dataplane that carries connections to pods.
#[derive(Clone, Debug)]
pub(crate) enum Network {
    /// Loopback addresses, and TCP proxies for Services.
    Userspace,
    /// Namespaces, and nftables rules for Services.
    Kernel(Arc<Fabric>),
}

impl Network {
    /// Returns the directory for files that containers mount; `None` if nothing can be mounted.
    pub(crate) fn store(&self) -> Option<MountDirectory> {
        match self {
            Self::Userspace => None,
            Self::Kernel(fabric) => Some(fabric.store()),
        }
    }

    /// Returns the proxy mode in kube-proxy's terms.
    pub(crate) fn proxy_mode(&self) -> &'static str {
        match self {
            Self::Userspace => "userspace",
            Self::Kernel(_) => "nftables",
        }
    }
}

/// Address and namespaces of one pod.
#[derive(Debug)]
pub(crate) struct PodSandbox {
    network: Network,
    registry: Registry,
    node_index: u8,
    /// `namespace/name`.
    pod: String,
    host_name: String,
    /// Delay of the pod's links to other pods, as a consumer.
    own_delay: Option<HopLatency>,
    address: OnceLock<Ipv4Addr>,
    /// Namespaces on the kernel dataplane, while they exist.
    namespaces: Mutex<Option<Arc<PodNetwork>>>,
}

impl PodSandbox {
    /// Describes the sandbox of the pod `pod` (`namespace/name`) with the host name `host_name`, on node `node_index`
    /// (from 0). [`PodSandbox::prepare`] creates it.
    pub(crate) fn new(
        network: Network,
        registry: Registry,
        node_index: u8,
        (pod, host_name): (String, String),
        own_delay: Option<HopLatency>,
    ) -> Self {
        let (address, namespaces) = (OnceLock::new(), Mutex::default());
        Self { network, registry, node_index, pod, host_name, own_delay, address, namespaces }
    }

    /// Returns the pod's address, once it has one.
    pub(crate) fn address(&self) -> Option<Ipv4Addr> {
        self.address.get().copied()
    }

    /// Gives the pod its address and, on the kernel dataplane, its network.
    ///
    /// # Errors
    ///
    /// Fails if no address is free, or the system rejects part of the setup. The caller may try again.
    pub(crate) async fn prepare(&self) -> io::Result<()> {
        let taken = || io::Error::other("all pod addresses on the node are in use");
        let address = match self.address() {
            Some(address) => address,
            None => {
                let address = self.registry.addresses().next_pod(self.node_index).ok_or_else(taken)?;
                *self.address.get_or_init(|| address)
            }
        };
        if let Network::Kernel(fabric) = &self.network {
            let (fabric, index, pod) = (Arc::clone(fabric), self.node_index, self.pod.clone());
            let (host_name, own_delay) = (self.host_name.clone(), self.own_delay);
            let make = move || fabric.pod(index, &pod, &host_name, address, own_delay);
            let made = tokio::task::spawn_blocking(make).await?;
            *lock(&self.namespaces) = Some(Arc::new(made?));
        }
        Ok(())
    }

    /// Prepares a place for one of the pod's containers, with these mounts and process ids. On the userspace dataplane,
    /// a container sees the machine's files and processes unchanged.
    ///
    /// # Errors
    ///
    /// Fails if something cannot be mounted.
    pub(crate) fn place(&self, binds: &[Bind], pids: Pids) -> io::Result<Placement> {
        match &self.network {
            Network::Userspace => Ok(Placement { place: None, pids }),
            Network::Kernel(_) => {
                let gone = || io::Error::other("the pod has no sandbox");
                let namespaces = lock(&self.namespaces).clone().ok_or_else(gone)?;
                Ok(Placement { place: Some(Arc::new(namespaces.place(binds, pids)?)), pids })
            }
        }
    }

    /// Removes the pod from the network. Its address is gone when this returns.
    pub(crate) async fn remove(&self) {
        let Some(namespaces) = lock(&self.namespaces).take() else { return };
        let removed = tokio::task::spawn_blocking(move || namespaces.remove()).await;
        if let Err(error) = removed.map_err(io::Error::from).flatten() {
            tracing::warn!(%error, pod = %self.pod, "cannot remove the pod's network");
        }
    }
}

impl Drop for PodSandbox {
    fn drop(&mut self) {
        if let Some(address) = self.address() {
            self.registry.addresses().release_pod(address);
        }
    }
}

/// Place where a container's processes start. Clones refer to the same place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placement {
    /// `None` if it is the machine itself.
    place: Option<Arc<ContainerNamespaces>>,
    pids: Pids,
}

impl Placement {
    /// Returns true if the place is the machine itself. There, the kernel kills none of the processes that this process
    /// has started, so this process must kill them itself.
    pub(crate) fn is_the_machine(&self) -> bool {
        self.place.is_none()
    }

    /// Returns true if the container's first process should be process 1 but has another id in the kernel.
    pub(crate) fn stands_for_process_1(&self) -> bool {
        self.is_the_machine() && self.pids == Pids::Own
    }

    /// Starts the container's first process in this place.
    ///
    /// # Errors
    ///
    /// Fails if the command cannot be started.
    pub(crate) fn start(&self, command: &mut Command) -> io::Result<StartedProcess> {
        let (mut child, first) = match &self.place {
            None => (command.spawn()?, None),
            Some(place) => place.start(command)?,
        };
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let process = first.map_or_else(|| FirstProcess::Child(child), FirstProcess::First);
        Ok(StartedProcess { process, stdout, stderr })
    }

    /// Starts another command in this place.
    ///
    /// # Errors
    ///
    /// Fails if the command cannot be started.
    pub(crate) fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        match &self.place {
            None => command.spawn(),
            Some(place) => place.spawn(command),
        }
    }
}

/// Returns the id of a process; `None` once it has been waited for.
pub(crate) fn pid_of(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw)
}

/// First process of a container, just started.
#[derive(Debug)]
pub(crate) struct StartedProcess {
    pub(crate) process: FirstProcess,
    pub(crate) stdout: Option<ChildStdout>,
    pub(crate) stderr: Option<ChildStderr>,
}

/// First process of a container.
#[derive(Debug)]
pub(crate) enum FirstProcess {
    /// One of several processes in its PID namespace.
    Child(Child),
    /// Process 1 of its own PID namespace.
    First(First),
}

impl FirstProcess {
    /// Returns the process id, or `None` once a child has been waited for.
    pub(crate) fn pid(&self) -> Option<Pid> {
        match self {
            Self::Child(child) => pid_of(child),
            Self::First(first) => Some(first.pid()),
        }
    }

    /// Waits until the process exits.
    ///
    /// # Errors
    ///
    /// Fails if the exit status cannot be read.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        match self {
            Self::Child(child) => child.wait().await,
            Self::First(first) => first.wait().await,
        }
    }
}
