//! Volumes, which hold files for containers.
//!
//! Volumes are directories on the machine, which the dataplane mounts at the paths in the manifest. Their contents are
//! as they were when the pod was bound to the node; a change to a ConfigMap or Secret does not reach a running pod. A
//! claim's volume outlives the pod; each claim has a directory, regardless of its class and size. The claim object need
//! not exist.
//!
//! Source: kubernetes/kubernetes, `pkg/volume/{configmap,secret,projected,downwardapi,emptydir,hostpath}`.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::{
    ConfigMapProjection, Container, DownwardAPIVolumeFile, HostPathVolumeSource, KeyToPath, Pod,
    SecretProjection, Volume, VolumeProjection,
};

use super::env::{self, ConfigData, KeySource, Surroundings};
use super::expand::expand;
use super::service_account;
use crate::network::{Bind, MountDirectory};

const DEFAULT_MODE: i32 = 0o644;
/// Directory for the claims' contents, next to the pods' directories.
const CLAIMS: &str = "claims";

/// Error that keeps a volume from being created or mounted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("MountVolume.SetUp failed for volume \"{volume}\" : {why}")]
pub(super) struct VolumeError {
    volume: String,
    why: String,
}

impl VolumeError {
    /// Returns an error for service account files that cannot be written.
    pub(super) fn of_service_account(pod: &Pod, why: &io::Error) -> Self {
        Self { volume: service_account::volume(pod).unwrap_or_default().to_owned(), why: why.to_string() }
    }
}

/// A pod's volumes, by name.
pub(super) type MadeVolumes = BTreeMap<String, MadeVolume>;

/// Volume that containers can mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MadeVolume {
    /// Path as this process sees it.
    made_at: PathBuf,
    /// Path to use as the source of a mount.
    source: PathBuf,
    read_only: bool,
}

/// File or directory mounted at a path in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) bind: Bind,
    /// Path as this process sees it.
    made_at: PathBuf,
}

/// Returns the path where this process finds the container's `path`.
pub(super) fn on_machine(path: &Path, mounts: &[Mount]) -> PathBuf {
    let covering = mounts.iter().filter_map(|mount| {
        let below = path.strip_prefix(&mount.bind.target).ok()?;
        Some((mount, below))
    });
    match covering.max_by_key(|(mount, _)| mount.bind.target.components().count()) {
        Some((mount, below)) if below.as_os_str().is_empty() => mount.made_at.clone(),
        Some((mount, below)) => mount.made_at.join(below),
        None => path.to_owned(),
    }
}

/// Creates in `store` the volumes that the pod's containers mount. `token` issues a service account token.
///
/// # Errors
///
/// The error for the first volume that cannot be created. The caller may try again.
pub(super) fn make(
    pod: &Pod,
    store: &MountDirectory,
    around: &Surroundings<'_>,
    token: &dyn Fn() -> String,
) -> Result<MadeVolumes, VolumeError> {
    let mounted = mounted_volumes(pod);
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let volumes = volumes.filter(|volume| mounted.contains(&volume.name.as_str()));
    let maker = Maker { around, token };
    volumes
        .map(|volume| {
            let made = maker.make(volume, store);
            let error = |why| VolumeError { volume: volume.name.clone(), why };
            Ok((volume.name.clone(), made.map_err(error)?))
        })
        .collect()
}

/// Checks that the pod needs no mounts, for a dataplane that has none. Only a path that already exists can be mounted
/// there, and the pod gets its token in another way.
///
/// # Errors
///
/// The first volume that would have to be mounted.
pub(super) fn need_no_mount(pod: &Pod) -> Result<(), VolumeError> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let token = service_account::volume(pod);
    for container in containers(pod) {
        let mounts = container.volume_mounts.iter().flatten();
        for mount in mounts.filter(|mount| Some(mount.name.as_str()) != token) {
            let volume = spec.volumes.iter().flatten().find(|volume| volume.name == mount.name);
            let in_place = volume
                .and_then(|volume| volume.host_path.as_ref())
                .is_some_and(|host| host.path == mount.mount_path);
            if !in_place {
                let why = format!(
                    "the userspace dataplane cannot mount anything at {:?}: use the kernel dataplane, or pass the \
                     configuration in variables (valueFrom, envFrom)",
                    mount.mount_path
                );
                return Err(VolumeError { volume: mount.name.clone(), why });
            }
        }
    }
    Ok(())
}

fn containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = pod.spec.iter();
    spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers))
}

fn mounted_volumes(pod: &Pod) -> Vec<&str> {
    let mounts = containers(pod).flat_map(|container| container.volume_mounts.iter().flatten());
    mounts.map(|mount| mount.name.as_str()).collect()
}

/// Returns a container's mounts.
///
/// # Errors
///
/// Fails if a path within a volume cannot be used.
pub(super) fn mounts(
    container: &Container,
    made: &MadeVolumes,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Vec<Mount>, VolumeError> {
    let mounts = container.volume_mounts.iter().flatten().map(|mount| {
        let error = |why: String| VolumeError { volume: mount.name.clone(), why };
        let volume = made.get(&mount.name).ok_or_else(|| error("there is no such volume".to_owned()))?;
        let sub_path = match (&mount.sub_path, &mount.sub_path_expr) {
            (Some(path), _) if !path.is_empty() => path.clone(),
            (_, Some(text)) if !text.is_empty() => expand(text, &variable),
            _ => String::new(),
        };
        let (mut made_at, mut source) = (volume.made_at.clone(), volume.source.clone());
        if !sub_path.is_empty() {
            let below = within(&sub_path).map_err(error)?;
            made_at.push(&below);
            source.push(below);
            if !made_at.exists() && !volume.read_only {
                fs::create_dir_all(&made_at).map_err(|io| error(io.to_string()))?;
            }
        }
        let read_only = volume.read_only || mount.read_only == Some(true);
        let bind = Bind { source, target: PathBuf::from(&mount.mount_path), read_only };
        Ok(Mount { bind, made_at })
    });
    mounts.collect()
}

struct Maker<'a> {
    around: &'a Surroundings<'a>,
    token: &'a dyn Fn() -> String,
}

/// Files of a volume: path, content, mode.
type VolumeFiles = Vec<(String, Vec<u8>, i32)>;

impl Maker<'_> {
    fn make(&self, volume: &Volume, store: &MountDirectory) -> Result<MadeVolume, String> {
        let dir = &store.made_at.join(&volume.name);
        let is_empty_dir = volume.empty_dir.is_some();
        let made = || MadeVolume {
            made_at: dir.clone(),
            source: store.known_as.join(&volume.name),
            read_only: !is_empty_dir,
        };
        let text = |error: io::Error| error.to_string();
        let mode = |given: Option<i32>| given.unwrap_or(DEFAULT_MODE);
        let files = if let Some(host) = &volume.host_path {
            let path = host_path(host)?;
            return Ok(MadeVolume { made_at: path.clone(), source: path, read_only: false });
        } else if let Some(claim) = &volume.persistent_volume_claim {
            return self.claimed(&claim.claim_name, claim.read_only == Some(true), store);
        } else if is_empty_dir {
            fs::create_dir_all(dir)
                .and_then(|()| fs::set_permissions(dir, Permissions::from_mode(0o777)))
                .map_err(text)?;
            return Ok(made());
        } else if let Some(map) = &volume.config_map {
            let (name, optional) = (&map.name, map.optional == Some(true));
            self.keys(KeySource::ConfigMap, name, map.items.as_deref(), optional, mode(map.default_mode))?
        } else if let Some(secret) = &volume.secret {
            let name = secret.secret_name.clone().unwrap_or_default();
            let (items, optional) = (secret.items.as_deref(), secret.optional == Some(true));
            self.keys(KeySource::Secret, &name, items, optional, mode(secret.default_mode))?
        } else if let Some(downward) = &volume.downward_api {
            self.fields(downward.items.as_deref().unwrap_or_default(), mode(downward.default_mode))?
        } else if let Some(projected) = &volume.projected {
            let mut files = VolumeFiles::new();
            for source in projected.sources.iter().flatten() {
                files.extend(self.projection(source, mode(projected.default_mode))?);
            }
            files
        } else {
            return Err("the embedded cluster does not support this kind of volume".to_owned());
        };
        // Files from a failed attempt must not remain.
        let _ = fs::remove_dir_all(dir);
        fs::create_dir_all(dir).map_err(text)?;
        for (path, content, mode) in files {
            let path = dir.join(within(&path)?);
            let write = || {
                fs::create_dir_all(path.parent().unwrap_or(dir))?;
                fs::write(&path, &content)?;
                fs::set_permissions(&path, Permissions::from_mode(mode.unsigned_abs() & 0o777))
            };
            write().map_err(text)?;
        }
        Ok(made())
    }

    /// Returns the volume for a claim: a directory that outlives the pod and follows it to other nodes.
    fn claimed(&self, claim: &str, read_only: bool, store: &MountDirectory) -> Result<MadeVolume, String> {
        let namespace = self.around.pod.metadata.namespace.as_deref().unwrap_or_default();
        let below = Path::new(CLAIMS).join(namespace).join(within(claim)?);
        // The claims' directory is next to the pod's own.
        let beside = |path: &Path| path.parent().unwrap_or(path).join(&below);
        let made_at = beside(&store.made_at);
        fs::create_dir_all(&made_at)
            .and_then(|()| fs::set_permissions(&made_at, Permissions::from_mode(0o777)))
            .map_err(|error| error.to_string())?;
        Ok(MadeVolume { made_at, source: beside(&store.known_as), read_only })
    }

    fn projection(&self, source: &VolumeProjection, mode: i32) -> Result<VolumeFiles, String> {
        if let Some(ConfigMapProjection { name, items, optional }) = &source.config_map {
            self.keys(KeySource::ConfigMap, name, items.as_deref(), *optional == Some(true), mode)
        } else if let Some(SecretProjection { name, items, optional }) = &source.secret {
            self.keys(KeySource::Secret, name, items.as_deref(), *optional == Some(true), mode)
        } else if let Some(downward) = &source.downward_api {
            self.fields(downward.items.as_deref().unwrap_or_default(), mode)
        } else if let Some(token) = &source.service_account_token {
            Ok(vec![(token.path.clone(), (self.token)().into_bytes(), mode)])
        } else {
            Err("the embedded cluster does not support this kind of projection".to_owned())
        }
    }

    fn keys(
        &self,
        kind: KeySource,
        name: &str,
        items: Option<&[KeyToPath]>,
        optional: bool,
        mode: i32,
    ) -> Result<VolumeFiles, String> {
        let data: ConfigData = match (self.around.data)(kind, name) {
            Some(data) => data,
            None if optional => ConfigData::new(),
            None => {
                return Err(env::not_found(kind, name));
            }
        };
        let Some(items) = items.filter(|items| !items.is_empty()) else {
            return Ok(data.into_iter().map(|(key, value)| (key, value, mode)).collect());
        };
        let mut files = VolumeFiles::new();
        for item in items {
            match data.get(&item.key) {
                Some(value) => files.push((item.path.clone(), value.clone(), item.mode.unwrap_or(mode))),
                None if optional => {}
                None => return Err(format!("references non-existent key: {}", item.key)),
            }
        }
        Ok(files)
    }

    fn fields(&self, items: &[DownwardAPIVolumeFile], mode: i32) -> Result<VolumeFiles, String> {
        let file = |item: &DownwardAPIVolumeFile| {
            let value = if let Some(field) = &item.field_ref {
                env::field_value(&field.field_path, self.around)
            } else if let Some(field) = &item.resource_field_ref {
                let name = field.container_name.as_deref().unwrap_or_default();
                match containers(self.around.pod).find(|container| container.name == name) {
                    Some(container) => env::resource_value(field, container, self.around),
                    None => return Err(format!("there is no container {name:?}")),
                }
            } else {
                return Err("a file needs a fieldRef or a resourceFieldRef".to_owned());
            };
            Ok((item.path.clone(), value?.into_bytes(), item.mode.unwrap_or(mode)))
        };
        items.iter().map(file).collect()
    }
}

/// Checks that a path stays within the volume, and returns it.
fn within(path: &str) -> Result<PathBuf, String> {
    let path = Path::new(path);
    let stays = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if stays { Ok(path.to_owned()) } else { Err(format!("{} is outside the volume", path.display())) }
}

fn host_path(host: &HostPathVolumeSource) -> Result<PathBuf, String> {
    let path = PathBuf::from(&host.path);
    let failed = |what: &str| Err(format!("hostPath type check failed: {} is not {what}", host.path));
    let make = |made: io::Result<()>| made.map_err(|error| error.to_string());
    match host.type_.as_deref().unwrap_or_default() {
        "DirectoryOrCreate" if !path.exists() => make(fs::create_dir_all(&path))?,
        "FileOrCreate" if !path.exists() => make(fs::write(&path, ""))?,
        "Directory" | "DirectoryOrCreate" if !path.is_dir() => return failed("a directory"),
        "File" | "FileOrCreate" if !path.is_file() => return failed("a file"),
        _ if !path.exists() => return Err(format!("{} does not exist on this machine", host.path)),
        _ => {}
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(volumes: Value, mounts: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "web-1", "namespace": "shop", "labels": {"app": "web"}},
            "spec": {"volumes": volumes, "containers": [{"name": "app", "volumeMounts": mounts}]},
        }))
        .unwrap()
    }

    fn made(pod: &Pod, root: &Path) -> Result<MadeVolumes, VolumeError> {
        let data = |kind, name: &str| {
            (kind == KeySource::ConfigMap && name == "settings").then(|| {
                let entry = |key: &str, value: &str| (key.to_owned(), value.as_bytes().to_vec());
                ConfigData::from([entry("mode", "fast"), entry("level", "3")])
            })
        };
        let around = Surroundings {
            pod,
            pod_ip: "10.244.0.7",
            host_ip: "10.99.0.1",
            data: &data,
            given: &BTreeMap::new(),
            allocatable: &BTreeMap::new(),
        };
        let store = MountDirectory { made_at: root.to_owned(), known_as: "/known".into() };
        make(pod, &store, &around, &|| "t0ken".to_owned())
    }

    fn mount(name: &str, path: &str) -> Value {
        json!({"name": name, "mountPath": path})
    }

    #[test]
    fn volume_files_match_their_sources() {
        let dir = tempfile::tempdir().unwrap();
        let volumes = json!([
            {"name": "cfg", "configMap": {"name": "settings", "defaultMode": 0o600}},
            {"name": "one", "configMap": {"name": "settings", "items": [{"key": "mode", "path": "a/m"}]}},
            {"name": "none", "secret": {"secretName": "nope", "optional": true}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "unused", "configMap": {"name": "nope"}},
            {"name": "api", "projected": {"sources": [
                {"serviceAccountToken": {"path": "token"}},
                {"downwardAPI": {"items": [
                    {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}},
                    {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                ]}},
            ]}},
        ]);
        let mut sub = mount("tmp", "/data");
        sub["subPath"] = json!("below/it");
        let mounts = json!([
            mount("cfg", "/etc/cfg"),
            mount("one", "/etc/one"),
            mount("none", "/etc/none"),
            mount("api", "/run/api"),
            sub,
        ]);
        let pod = pod(volumes, mounts);
        let made = made(&pod, dir.path()).unwrap();
        let read = |path: &str| fs::read_to_string(dir.path().join(path)).unwrap();
        assert_eq!(
            (read("cfg/mode"), read("cfg/level"), read("one/a/m")),
            ("fast".into(), "3".into(), "fast".into())
        );
        assert_eq!((read("api/token"), read("api/namespace")), ("t0ken".into(), "shop".into()));
        assert_eq!(read("api/labels"), "app=\"web\"");
        assert_eq!(fs::metadata(dir.path().join("cfg/mode")).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!made.contains_key("unused"));

        let container = &pod.spec.as_ref().unwrap().containers[0];
        let mounted = super::mounts(container, &made, |_| None).unwrap();
        assert_eq!(mounted.len(), 5);
        assert!(mounted[0].bind.read_only && !mounted[4].bind.read_only);
        assert_eq!(mounted[4].bind.source, Path::new("/known/tmp/below/it"));
        assert!(mounted[4].made_at.is_dir());
        assert_eq!(on_machine(Path::new("/etc/cfg/mode"), &mounted), dir.path().join("cfg/mode"));
        assert_eq!(on_machine(Path::new("/etc/hosts"), &mounted), Path::new("/etc/hosts"));
    }

    #[test]
    fn invalid_volume_source_fails_mount() {
        let dir = tempfile::tempdir().unwrap();
        for (source, why) in [
            (json!({"configMap": {"name": "nope"}}), "configmap \"nope\" not found"),
            (
                json!({"configMap": {"name": "settings", "items": [{"key": "x", "path": "x"}]}}),
                "references non-existent key: x",
            ),
            (
                json!({"configMap": {"name": "settings", "items": [{"key": "mode", "path": "../x"}]}}),
                "../x is outside the volume",
            ),
            (json!({"nfs": {"server": "s", "path": "/"}}), "does not support this kind of volume"),
        ] {
            let mut volume = source;
            volume["name"] = json!("v");
            let error = made(&pod(json!([volume]), json!([mount("v", "/v")])), dir.path()).unwrap_err();
            let text = error.to_string();
            assert!(text.starts_with("MountVolume.SetUp failed for volume \"v\" : "), "{text}");
            assert!(text.contains(why), "{text}");
        }
    }

    #[test]
    fn claim_volume_outlives_pod() {
        let dir = tempfile::tempdir().unwrap();
        let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data-web-0"}}]);
        let pod = pod(volumes, json!([mount("data", "/data")]));
        let first = made(&pod, &dir.path().join("uid-1")).unwrap();
        fs::write(first["data"].made_at.join("kept"), "x").unwrap();
        let second = made(&pod, &dir.path().join("uid-2")).unwrap();
        assert_eq!(fs::read_to_string(second["data"].made_at.join("kept")).unwrap(), "x");
        assert!(!second["data"].read_only);
        assert_eq!(second["data"].source, Path::new("/claims/shop/data-web-0"));
    }

    #[test]
    fn userspace_volume_requires_same_path() {
        let volumes = json!([{"name": "h", "hostPath": {"path": "/tmp"}}]);
        assert_eq!(need_no_mount(&pod(volumes.clone(), json!([mount("h", "/tmp")]))), Ok(()));
        let error = need_no_mount(&pod(volumes, json!([mount("h", "/srv")]))).unwrap_err();
        assert!(error.to_string().contains("use the kernel dataplane"), "{error}");
    }
}
