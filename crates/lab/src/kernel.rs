//! The kernel dataplane: private kernel namespaces for a cluster, its nodes and its pods.
//!
//! While this process has only one thread, [`enter`] takes it into a new network namespace (and a user namespace if it
//! is not already privileged) and starts the first process (`init`) of a PID namespace for all containers, which the
//! kernel kills when `init` exits. The process is then in the cluster's [`Fabric`], the network namespace between the
//! nodes, where the control plane runs. Every node has a network namespace below it, and every pod has one below its
//! node's (`links`), with its own host name. A container starts in its pod's namespaces, in its own mount namespace
//! (`mounts`), and as the first process of a PID namespace (`first_process`). `join` takes an outside command into a
//! node's or pod's namespaces.
//!
//! This module knows nothing about Services; the Service proxy programs their rules.

mod delay;
mod entry;
mod first_process;
pub mod init;
pub mod join;
mod links;
mod mounts;
mod namespace;
mod tool;

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use nix::sched::CloneFlags;
use nix::sys::wait::waitpid;
use nix::unistd::sethostname;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};

use super::config::GoneAddress;
use super::hop_latency::HopLatency;
pub use delay::Delays;
pub use entry::{Entered, KernelError, enter};
pub use first_process::First;
pub use links::NodePlan;
pub use mounts::Bind;
use namespace::Namespace;
pub(super) use tool::HostTool;

/// A cluster's network and everything else that its pods need.
#[derive(Debug)]
pub struct Fabric {
    entered: Entered,
    nodes: Vec<NodeNetwork>,
    ip: HostTool,
    /// Delays of the links between consumers and pods, if any link has one.
    delays: Option<Arc<Delays>>,
    /// Directory of links to the namespaces, by node and pod name.
    names: PathBuf,
}

/// A node's part of the network.
#[derive(Debug)]
struct NodeNetwork {
    net: Namespace,
    address: Ipv4Addr,
}

impl Fabric {
    /// Creates the network for these nodes around the control plane's address. Links to the namespaces go in the
    /// directory `names`.
    ///
    /// # Errors
    ///
    /// Fails if the kernel, `ip` or `nft` rejects part of the setup.
    pub fn build(
        entered: Entered,
        control_plane: Ipv4Addr,
        plans: &[NodePlan],
        gone: GoneAddress,
        names: PathBuf,
    ) -> Result<Self, KernelError> {
        let (ip, nft) = (HostTool::find("ip")?, HostTool::find("nft")?);
        let network = |source| KernelError::Network { source };
        links::forward_packets().map_err(network)?;
        ip.run(&["-batch", "-"], &links::fabric(control_plane)).map_err(network)?;
        fs::create_dir_all(names.join("nodes")).map_err(network)?;
        let mut nodes = Vec::new();
        for (number, plan) in (1..).zip(plans) {
            let net = Namespace::new(CloneFlags::CLONE_NEWNET, "net").map_err(network)?;
            let scripts = links::node(number, plan, control_plane, &net.path());
            ip.run(&["-batch", "-"], &scripts.outside).map_err(network)?;
            let set_up = net.run(|| {
                links::forward_packets()?;
                links::send_all_icmp_errors()?;
                ip.run(&["-batch", "-"], &scripts.inside)?;
                match gone {
                    GoneAddress::Drop => Ok(()),
                    GoneAddress::Unreachable => nft.run(&["-f", "-"], &links::gone_is_unreachable()),
                }
            });
            set_up.map_err(network)?;
            link(&net, &names.join("nodes").join(&plan.name)).map_err(network)?;
            nodes.push(NodeNetwork { net, address: plan.address });
        }
        Ok(Self { entered, nodes, ip, delays: None, names })
    }

    /// Makes links to pods delay packets.
    pub fn delay_links(&mut self, delays: Delays) {
        self.delays = Some(Arc::new(delays));
    }

    /// Sets up name resolution for outside commands, given the text of a `resolv.conf`.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be written.
    pub fn look_names_up_by(&self, resolv_conf: &str) -> Result<(), KernelError> {
        fs::write(self.names.join(RESOLV_CONF), resolv_conf).map_err(|source| KernelError::Network { source })
    }

    /// Waits until the containers' PID namespace is gone, and every container with it.
    ///
    /// # Errors
    ///
    /// Fails if the state of the PID namespace cannot be read.
    pub async fn ended(&self) -> io::Result<()> {
        let mut pipe = pipe::Receiver::from_owned_fd(self.entered.sign_of_life()?)?;
        while pipe.read(&mut [0; 64]).await? > 0 {}
        Ok(())
    }

    /// Runs `work` on a thread in the network namespace of node `index` (from 0).
    ///
    /// # Errors
    ///
    /// Fails if `work` fails or there is no such node.
    pub fn on_node<T: Send>(&self, index: u8, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        self.node(index)?.net.run(work)
    }

    /// Creates the namespaces for a pod (`namespace/name`) on node `index` (from 0). `own_delay` is the delay of the
    /// pod's links to other pods.
    ///
    /// # Errors
    ///
    /// Fails if the kernel or `ip` rejects part of the setup.
    pub fn pod(
        self: &Arc<Self>,
        index: u8,
        name: &str,
        host_name: &str,
        address: Ipv4Addr,
        own_delay: Option<HopLatency>,
    ) -> io::Result<PodNetwork> {
        let node = self.node(index)?;
        let net = Namespace::new(CloneFlags::CLONE_NEWNET, "net")?;
        let uts = Namespace::new(CloneFlags::CLONE_NEWUTS, "uts")?;
        uts.run(|| Ok(sethostname(host_name)?))?;
        let scripts = links::pod(node.address, address);
        let ip = |script: &str| self.ip.run(&["-batch", "-"], script);
        let delayed = match &self.delays {
            None => {
                node.net.run(|| ip(&links::pod_ends(address, &net.path())))?;
                None
            }
            Some(delays) => {
                let outer = node.net.run(|| delay::tun(&links::pod_link(address)))?;
                let inner = net.run(|| delay::tun(links::IN_POD))?;
                own_delay.inspect(|delay| delays.set(address, *delay));
                Some(delay::DelayedLink::between(outer, inner, delays)?)
            }
        };
        node.net.run(|| ip(&scripts.outside))?;
        net.run(|| ip(&scripts.inside))?;
        let names = self.names.join("pods").join(name);
        fs::create_dir_all(&names)?;
        link(&net, &names.join("net"))?;
        link(&uts, &names.join("uts"))?;
        let (fabric, own) = (Arc::clone(self), Arc::new([net, uts]));
        Ok(PodNetwork { fabric, index, address, own, _delayed: delayed, names })
    }

    /// Returns the directory for files that containers mount. The files are in memory and disappear with the cluster.
    pub fn store(&self) -> MountDirectory {
        let below = mounts::STORE.trim_start_matches('/');
        MountDirectory { made_at: self.entered.root().join(below), known_as: PathBuf::from(mounts::STORE) }
    }

    fn node(&self, index: u8) -> io::Result<&NodeNetwork> {
        self.nodes
            .get(usize::from(index))
            .ok_or_else(|| io::Error::other(format!("there is no node {index}")))
    }
}

/// Directory for files that containers mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountDirectory {
    /// Path as this process sees it.
    pub made_at: PathBuf,
    /// Path to use as the source of a [`Bind`].
    pub known_as: PathBuf,
}

/// Creates a link to a namespace at `path`, replacing any existing link.
fn link(namespace: &Namespace, path: &Path) -> io::Result<()> {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    std::os::unix::fs::symlink(namespace.path(), path)
}

/// A pod's namespaces.
#[derive(Debug)]
pub struct PodNetwork {
    fabric: Arc<Fabric>,
    index: u8,
    address: Ipv4Addr,
    /// Network and UTS (host name) namespaces.
    own: Arc<[Namespace; 2]>,
    /// Link that passes packets to and from the pod, if links have a delay.
    _delayed: Option<delay::DelayedLink>,
    names: PathBuf,
}

impl PodNetwork {
    /// Returns a place for a container, with the pod's network and host name, a new mount namespace with `binds` and,
    /// unless the pod shares process ids, a PID namespace of its own.
    ///
    /// # Errors
    ///
    /// Fails if something cannot be mounted.
    pub fn place(&self, binds: &[Bind], pids: Pids) -> io::Result<ContainerNamespaces> {
        let mounts = mounts::container(self.fabric.entered.mounts(), binds)?;
        link(&mounts, &self.names.join("mnt"))?;
        link(self.fabric.entered.pids(), &self.names.join("pid"))?;
        let own_pids = (pids == Pids::Own).then(OnceLock::new);
        let names = self.names.clone();
        Ok(ContainerNamespaces {
            fabric: Arc::clone(&self.fabric),
            of_pod: Arc::clone(&self.own),
            mounts,
            own_pids,
            names,
        })
    }

    /// Removes the pod from the network. Its address is gone when this returns.
    ///
    /// # Errors
    ///
    /// Fails if `ip` fails.
    pub fn remove(&self) -> io::Result<()> {
        if let Some(delays) = &self.fabric.delays {
            delays.remove(self.address);
        }
        let node = self.fabric.node(self.index)?;
        node.net.run(|| self.fabric.ip.run(&["-batch", "-"], &links::remove_pod(self.address)))
    }
}

impl Drop for PodNetwork {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.names) {
            tracing::debug!(%error, path = %self.names.display(), "cannot remove the links to a pod's namespaces");
        }
    }
}

/// Process ids visible in a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pids {
    /// A separate set, in which the container's program is process 1.
    #[default]
    Own,
    /// A set shared with other containers: `shareProcessNamespace` or `hostPID`.
    Shared,
}

/// Namespaces in which a container's processes start.
#[derive(Debug)]
pub struct ContainerNamespaces {
    fabric: Arc<Fabric>,
    of_pod: Arc<[Namespace; 2]>,
    mounts: Namespace,
    /// PID namespace, set once the container's first process has started; `None` if the container shares one.
    own_pids: Option<OnceLock<Namespace>>,
    /// Directory of links to the pod's namespaces.
    names: PathBuf,
}

impl ContainerNamespaces {
    /// Starts the container's first process in these namespaces and returns it.
    ///
    /// # Errors
    ///
    /// Fails if the command cannot be started.
    pub fn start(&self, command: &mut Command) -> io::Result<(Child, Option<First>)> {
        let Some(own_pids) = &self.own_pids else { return Ok((self.spawn(command)?, None)) };
        let birth = first_process::Birth::of(command)?;
        let started = self.spawn(command);
        let pid = birth.process()?;
        let child = started.inspect_err(|_| {
            // The process could not execute the program.
            let _ = pid.map(|pid| waitpid(pid, None));
        })?;
        let pid = pid.ok_or_else(|| io::Error::other("the container's first process has no id"))?;
        let first = first_process::watched(pid)?;
        let pids = Namespace::open(Path::new(&format!("/proc/{pid}/ns/pid")), CloneFlags::CLONE_NEWPID)?;
        link(own_pids.get_or_init(|| pids), &self.names.join("pid"))?;
        Ok((child, Some(first)))
    }

    /// Starts another command in these namespaces.
    ///
    /// # Errors
    ///
    /// Fails if the command cannot be started.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let runtime = tokio::runtime::Handle::current();
        let directory = std::env::current_dir()?;
        namespace::on_thread(|| {
            // A child inherits the namespaces of the thread that starts it.
            self.of_pod.iter().try_for_each(Namespace::join)?;
            let pids = self.own_pids.as_ref().and_then(OnceLock::get);
            pids.unwrap_or(self.fabric.entered.pids()).join()?;
            self.mounts.join()?;
            // Keep the directory that the command would have without namespaces. The manifest may name another, and a
            // volume may cover this one.
            nix::unistd::chdir(&directory).or_else(|_| nix::unistd::chdir("/"))?;
            let _reactor = runtime.enter();
            command.spawn()
        })
    }
}

/// Name of the file in the links directory that configures name resolution for outside commands.
const RESOLV_CONF: &str = "resolv.conf";

/// Returns the directory for links to namespaces, within a cluster's log directory.
pub fn names_dir(log_dir: &Path) -> PathBuf {
    log_dir.join("namespaces")
}

impl Drop for Fabric {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.names) {
            tracing::debug!(%error, path = %self.names.display(), "cannot remove the links to namespaces");
        }
    }
}
