//! State shared by the parts of a pod: its manifest, its environment, and the wording of messages about the pod.

use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::Value;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::agent_mode::{AgentMode, until_up};
use super::container_action::ActionTarget;
use super::container_process::{ContainerProcess, Keeper};
use super::container_view::ContainerRole;
use super::env::{self, ConfigData, KeySource, Surroundings};
use super::hosts;
use super::info::{COMPONENT, NodeInfo};
use super::launch::{self, LaunchError};
use super::outside_commands::Outside;
use super::service_account;
use super::volumes::{self, MadeVolumes, VolumeError};
use crate::dns;
use crate::logs::{self, ContainerLog};
use crate::network::{Bind, MountDirectory, Pids, PodSandbox};
use crate::registry::{ContainerSource, EventType};
use crate::resource::Resource;
use crate::selector::ObjectSelection;
use crate::shared::ClusterContext;
use crate::sync::lock;
use crate::well_known::ROOT_CA;

/// State shared by the parts of a pod.
pub(super) struct PodContext {
    pub(super) shared: ClusterContext,
    pub(super) node: Arc<NodeInfo>,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    /// Pod as it was bound.
    pod: Pod,
    object: Arc<Value>,
    /// The pod's network.
    pub(super) sandbox: PodSandbox,
    pub(super) host_ip: String,
    log_dir: PathBuf,
    /// Volumes created for the pod; empty where nothing can be mounted.
    volumes: OnceLock<MadeVolumes>,
    /// The pod's token, once requested.
    token: OnceLock<String>,
    /// Notified when a container's view has changed.
    pub(super) changed: Notify,
    /// Hooks that outlast their containers.
    beside: Mutex<JoinSet<()>>,
    /// Mode of the node agent.
    pub(super) mode: watch::Receiver<AgentMode>,
}

impl PodContext {
    pub(super) fn new(
        shared: ClusterContext,
        node: Arc<NodeInfo>,
        object: Arc<Value>,
        pod: Pod,
        mode: watch::Receiver<AgentMode>,
    ) -> Self {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let (namespace, name, uid) =
            (text(&pod.metadata.namespace), text(&pod.metadata.name), text(&pod.metadata.uid));
        let (network, registry) = (shared.network.clone(), shared.registry.clone());
        let own_delay = shared.config.latencies.link_of_pod(&object["metadata"]["labels"]);
        let names = (format!("{namespace}/{name}"), env::host_name(&pod));
        Self {
            log_dir: logs::pod_log_dir(&shared.log_dir, &namespace, &name, &uid),
            sandbox: PodSandbox::new(network, registry, node.index, names, own_delay),
            host_ip: node.address.to_string(),
            volumes: OnceLock::new(),
            token: OnceLock::new(),
            changed: Notify::new(),
            beside: Mutex::default(),
            shared,
            node,
            namespace,
            name,
            uid,
            pod,
            object,
            mode,
        }
    }

    /// Waits until the node agent is up.
    pub(super) async fn until_up(&self) {
        until_up(&self.mode).await;
    }

    /// Returns the pod's address, or an empty string while it has none.
    pub(super) fn pod_ip(&self) -> String {
        self.sandbox.address().map(|address| address.to_string()).unwrap_or_default()
    }

    fn spec(&self) -> Option<&PodSpec> {
        self.pod.spec.as_ref()
    }

    pub(super) fn containers(&self) -> Vec<(Container, ContainerRole)> {
        let Some(spec) = self.spec() else { return Vec::new() };
        let init = spec.init_containers.iter().flatten().map(|container| {
            let sidecar = container.restart_policy.as_deref() == Some("Always");
            (container.clone(), if sidecar { ContainerRole::Sidecar } else { ContainerRole::Init })
        });
        init.chain(spec.containers.iter().map(|container| (container.clone(), ContainerRole::Main))).collect()
    }

    pub(super) fn has_init_containers(&self) -> bool {
        self.spec().is_some_and(|spec| spec.init_containers.iter().flatten().next().is_some())
    }

    pub(super) fn restart_policy(&self) -> Option<&str> {
        self.spec()?.restart_policy.as_deref()
    }

    /// Returns the pod's own grace period in seconds, which applies unless a deletion sets another.
    pub(super) fn grace_period_seconds(&self) -> i64 {
        self.spec().and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(30)
    }

    /// Returns the pod's name as it appears in a kubelet's messages.
    pub(super) fn full_name(&self) -> String {
        format!("{}_{}({})", self.name, self.namespace, self.uid)
    }

    /// Records a warning about the pod as a whole.
    pub(super) fn warn_pod(&self, reason: &str, message: &str) {
        self.shared.registry.record_event(&self.object, EventType::Warning, reason, message, COMPONENT);
    }

    /// Records a normal event about a container.
    pub(super) fn note(&self, container: &str, reason: &str, message: &str) {
        self.record(container, EventType::Normal, reason, message);
    }

    /// Records a warning about a container.
    pub(super) fn warn(&self, container: &str, reason: &str, message: &str) {
        self.record(container, EventType::Warning, reason, message);
    }

    fn record(&self, container: &str, event_type: EventType, reason: &str, message: &str) {
        let init = self.spec().and_then(|spec| spec.init_containers.as_ref()).into_iter().flatten();
        let list =
            if init.into_iter().any(|init| init.name == container) { "initContainers" } else { "containers" };
        let source = ContainerSource { path: format!("spec.{list}{{{container}}}"), node: &self.node.name };
        let registry = &self.shared.registry;
        registry.record_event_of(&self.object, Some(&source), event_type, reason, message, COMPONENT);
    }

    /// Creates the pod's volumes.
    ///
    /// # Errors
    ///
    /// The error for the first volume that cannot be created. The caller may try again.
    pub(super) fn make_volumes(&self) -> Result<(), VolumeError> {
        let make = |store: &MountDirectory| {
            self.with_surroundings(|around| volumes::make(&self.pod, store, around, &|| self.token()))
        };
        if let Some(store) = self.store() {
            let made = make(&store)?;
            self.volumes.get_or_init(|| made);
            return Ok(());
        }
        volumes::need_no_mount(&self.pod)?;
        // The service account's files are created, but in another place.
        if let Some(dir) = self.service_account_dir() {
            let parent = self.unmounted_volumes();
            make(&MountDirectory { made_at: parent.clone(), known_as: parent })?;
            let written = service_account::write_kubeconfig(&dir, &self.service_variables(), &self.namespace);
            written.map_err(|error| VolumeError::of_service_account(&self.pod, &error))?;
        }
        Ok(())
    }

    /// Returns the directory for volumes that cannot be mounted.
    fn unmounted_volumes(&self) -> PathBuf {
        let dir = self.log_dir.join("volumes");
        // Containers may start in a different directory from this process.
        std::path::absolute(&dir).unwrap_or(dir)
    }

    /// Returns the directory for the files of the pod's service account, if it has one and the files cannot be mounted.
    fn service_account_dir(&self) -> Option<PathBuf> {
        let volume = service_account::volume(&self.pod).filter(|_| self.store().is_none())?;
        Some(self.unmounted_volumes().join(volume))
    }

    /// Returns the mount of the `resolv.conf` that points to the cluster's DNS; `None` if the pod's `dnsPolicy` is
    /// `Default` or nothing can be mounted.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be written.
    fn name_resolution(&self) -> io::Result<Option<Bind>> {
        let policy = self.spec().and_then(|spec| spec.dns_policy.as_deref());
        let service = self.shared.registry.get(Resource::Services, "kube-system", "kube-dns");
        let (Some(store), Ok(service)) = (self.store(), service) else { return Ok(None) };
        let Some(server) = service["spec"]["clusterIP"].as_str().filter(|_| policy != Some("Default")) else {
            return Ok(None);
        };
        in_etc(&store, "resolv.conf", &dns::resolv_conf(&self.namespace, server)).map(Some)
    }

    /// Returns the mount of `/etc/hosts`; `None` if nothing can be mounted or the container mounts its own.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be written.
    fn known_hosts(&self, container: &Container) -> io::Result<Option<Bind>> {
        let mut mounts = container.volume_mounts.iter().flatten();
        let Some(store) = self.store().filter(|_| !mounts.any(|mount| mount.mount_path == "/etc/hosts"))
        else {
            return Ok(None);
        };
        in_etc(&store, "hosts", &hosts::text(&self.pod, &self.pod_ip())).map(Some)
    }

    /// Returns the directory for the pod's volumes.
    fn store(&self) -> Option<MountDirectory> {
        let MountDirectory { made_at, known_as } = self.shared.network.store()?;
        Some(MountDirectory { made_at: made_at.join(&self.uid), known_as: known_as.join(&self.uid) })
    }

    /// Runs `hook` in the background until it completes or the pod is gone.
    pub(super) fn run_beside(&self, hook: impl Future<Output = ()> + Send + 'static) {
        lock(&self.beside).spawn(hook);
    }

    /// Removes everything that belonged to the pod alone: volumes, the token, and hooks that are still running.
    pub(super) async fn clean_up(&self) {
        let mut beside = mem::take(&mut *lock(&self.beside));
        beside.shutdown().await;
        self.revoke_token();
        let Some(store) = self.store() else { return };
        if let Err(error) = std::fs::remove_dir_all(&store.made_at)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, pod = %self.name, "cannot remove volumes");
        }
    }

    fn token(&self) -> String {
        let account = env::service_account(&self.pod);
        let issue = || self.node.tokens.issue(&self.namespace, account);
        self.token.get_or_init(issue).clone()
    }

    pub(super) fn revoke_token(&self) {
        if let Some(token) = self.token.get() {
            self.node.tokens.revoke(token);
        }
    }

    fn with_surroundings<T>(&self, then: impl FnOnce(&Surroundings<'_>) -> T) -> T {
        let mut given = self.service_variables();
        if let Some(dir) = self.service_account_dir() {
            given.extend(service_account::variables(&dir));
        }
        then(&Surroundings {
            pod: &self.pod,
            pod_ip: &self.pod_ip(),
            host_ip: &self.host_ip,
            data: &|kind, name| self.data(kind, name),
            given: &given,
            allocatable: &self.allocatable(),
        })
    }

    /// Starts a container's process.
    pub(super) fn launch(
        &self,
        container: &Container,
    ) -> Result<(ContainerProcess, Keeper, ActionTarget), LaunchError> {
        let (binary, volumes) = (&self.node.own_binary, self.volumes.get());
        let mut launch =
            self.with_surroundings(|around| launch::launch(container, around, binary, volumes))?;
        let image = container.image.as_deref().unwrap_or_default();
        let present =
            format!("Container image \"{image}\" already present on machine and can be accessed by the pod");
        self.note(&container.name, "Pulled", &present);
        self.note(&container.name, "Created", "Container created");
        let mut binds: Vec<_> = launch.mounts.iter().map(|mount| mount.bind.clone()).collect();
        let refused = |error: io::Error| LaunchError::create(error.to_string());
        binds.extend(self.name_resolution().map_err(refused)?);
        binds.extend(self.known_hosts(container).map_err(refused)?);
        launch.placement = self.sandbox.place(&binds, self.pids()).map_err(refused)?;
        let program = launch.program.display().to_string();
        if launch.placement.is_the_machine()
            && let Some(outside) = Outside::of([&program].into_iter().chain(&launch.args))
        {
            return Err(LaunchError::create(format!("exec: {program:?}: refused: {outside}")));
        }
        let path = logs::container_log(&self.log_dir, &container.name);
        let start = std::fs::create_dir_all(&self.log_dir)
            .and_then(|()| ContainerLog::begin(&path, self.shared.clock))
            .and_then(|log| launch.start(log));
        let (process, keeper) = start.map_err(|error| LaunchError::run(&program, &error.to_string()))?;
        let ports = container.ports.clone().unwrap_or_default();
        Ok((process, keeper, ActionTarget { pod_ip: self.pod_ip(), ports, launch }))
    }

    fn pids(&self) -> Pids {
        let spec = self.pod.spec.as_ref();
        let is_shared = spec
            .is_some_and(|spec| spec.share_process_namespace == Some(true) || spec.host_pid == Some(true));
        if is_shared { Pids::Shared } else { Pids::Own }
    }

    /// Returns the data of a ConfigMap or Secret in the pod's namespace.
    fn data(&self, kind: KeySource, name: &str) -> Option<ConfigData> {
        let resource = match kind {
            KeySource::ConfigMap => Resource::ConfigMaps,
            KeySource::Secret => Resource::Secrets,
        };
        let Ok(object) = self.shared.registry.get(resource, &self.namespace, name) else {
            // Pods must start even if a user has deleted this ConfigMap, which every namespace has.
            let is_root_ca = kind == KeySource::ConfigMap && name == ROOT_CA;
            let ca = || self.shared.registry.authority().as_bytes().to_vec();
            return is_root_ca.then(|| ConfigData::from([("ca.crt".to_owned(), ca())]));
        };
        let entries = |field: &str| object[field].as_object().into_iter().flatten();
        let decoded = |text: &str| BASE64_STANDARD.decode(text).unwrap_or_default();
        let mut data = ConfigData::new();
        for (key, value) in entries("data") {
            let text = value.as_str().unwrap_or_default();
            let bytes = match kind {
                KeySource::ConfigMap => text.as_bytes().to_vec(),
                KeySource::Secret => decoded(text),
            };
            data.insert(key.clone(), bytes);
        }
        for (key, value) in entries("binaryData") {
            data.insert(key.clone(), decoded(value.as_str().unwrap_or_default()));
        }
        Some(data)
    }

    /// Returns the variables for the Services that exist now: those in the pod's namespace, unless the pod wants none,
    /// and always those for the API server's Service.
    fn service_variables(&self) -> BTreeMap<String, String> {
        let registry = &self.shared.registry;
        let mut variables = BTreeMap::new();
        if self.spec().and_then(|spec| spec.enable_service_links) != Some(false) {
            let list = registry.list(Resource::Services, Some(&self.namespace), &ObjectSelection::all());
            variables.extend(list.items.iter().flat_map(|service| env::service_variables(service)));
        }
        if let Ok(service) = registry.get(Resource::Services, "default", "kubernetes") {
            variables.extend(env::service_variables(&service));
        }
        variables
    }

    fn allocatable(&self) -> BTreeMap<String, Quantity> {
        let node = self.shared.registry.get(Resource::Nodes, "", &self.node.name);
        let allocatable = node.map(|node| node["status"]["allocatable"].clone()).unwrap_or_default();
        let quantity = |value: &Value| Quantity(value.as_str().unwrap_or_default().to_owned());
        allocatable.as_object().into_iter().flatten().map(|(name, v)| (name.clone(), quantity(v))).collect()
    }
}

impl Drop for PodContext {
    fn drop(&mut self) {
        let volumes = self.unmounted_volumes();
        if let Err(error) = std::fs::remove_dir_all(&volumes)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, "cannot remove {}", volumes.display());
        }
    }
}

/// Writes a file to be mounted in `/etc`.
fn in_etc(store: &MountDirectory, name: &str, text: &str) -> io::Result<Bind> {
    // The dot keeps the name distinct from any volume's name.
    let file = format!("etc.{name}");
    std::fs::create_dir_all(&store.made_at)?;
    std::fs::write(store.made_at.join(&file), text)?;
    Ok(Bind { source: store.known_as.join(file), target: Path::new("/etc").join(name), read_only: false })
}
