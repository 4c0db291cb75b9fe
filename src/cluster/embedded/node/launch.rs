//! From a container's manifest to a command that can be started.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod};

use super::expand::expand;
use super::process::Launch;
use crate::cluster::embedded::network::Placement;

/// Variables of the agent's own environment that every container gets: what programs of
/// the host need to be found and to run.
const INHERITED: [&str; 6] = ["PATH", "HOME", "TMPDIR", "LANG", "LD_LIBRARY_PATH", "NIX_LD"];

/// Why a container cannot be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LaunchError {
    /// There is no image to take the command from.
    #[error(
        "image {image:?} is not available to the embedded cluster: pods run as processes of this machine, \
         so set `command` to a program found here"
    )]
    NoCommand { image: String },
    /// The program does not exist.
    #[error("exec: {program:?}: no such executable on this machine")]
    NoProgram { program: String },
    /// The working directory does not exist.
    #[error("workingDir {dir:?} does not exist on this machine")]
    NoWorkingDir { dir: String },
    /// A variable's source cannot be read.
    #[error("env {name:?}: {why}")]
    Env { name: String, why: String },
    /// Its mounts cannot be made.
    #[error("{0}")]
    Place(String),
    /// The operating system refused.
    #[error("exec: {program:?}: {why}")]
    Start { program: String, why: String },
}

impl LaunchError {
    /// The reason that the container's status shows.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::NoCommand { .. } | Self::NoWorkingDir { .. } | Self::Place(_) => "CreateContainerError",
            Self::Env { .. } => "CreateContainerConfigError",
            Self::NoProgram { .. } | Self::Start { .. } => "RunContainerError",
        }
    }
}

/// What a launch draws on besides the container's manifest.
pub(super) struct Surroundings<'a> {
    pub(super) pod: &'a Pod,
    pub(super) pod_ip: &'a str,
    pub(super) host_ip: &'a str,
    /// The program that runs for the image `rolldrop`.
    pub(super) own_binary: &'a Path,
    /// A key of a ConfigMap or Secret: `(kind, name, key)`; `None` when it does not exist.
    pub(super) keys: &'a dyn Fn(KeySource, &str, &str) -> Option<String>,
}

/// Where a variable's value may be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeySource {
    ConfigMap,
    Secret,
}

/// The launch of a container.
pub(super) fn launch(container: &Container, around: &Surroundings<'_>) -> Result<Launch, LaunchError> {
    let own_env = environment(container, around)?;
    let lookup = |name: &str| own_env.get(name).cloned();
    let mut words = container.command.iter().flatten().map(|word| expand(word, lookup));
    let working_dir = container.working_dir.as_ref().filter(|dir| !dir.is_empty()).map(PathBuf::from);
    if let Some(dir) = working_dir.as_ref().filter(|dir| !dir.is_dir()) {
        return Err(LaunchError::NoWorkingDir { dir: dir.display().to_string() });
    }

    let mut env: BTreeMap<String, String> =
        INHERITED.into_iter().filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?))).collect();
    env.insert("HOSTNAME".to_owned(), around.pod.metadata.name.clone().unwrap_or_default());
    env.extend(own_env.clone());

    let program = match words.next() {
        Some(word) => find_program(&word, working_dir.as_deref(), env.get("PATH"))?,
        None => {
            let image = container.image.as_deref().unwrap_or_default();
            if !is_own_image(image) {
                return Err(LaunchError::NoCommand { image: image.to_owned() });
            }
            around.own_binary.to_owned()
        }
    };
    let mut args: Vec<String> = words.collect();
    args.extend(container.args.iter().flatten().map(|arg| expand(arg, lookup)));
    let placement = Placement::default();
    Ok(Launch { program, args, env: env.into_iter().collect(), working_dir, placement })
}

/// Whether an image is this program: its last path component, without tag or digest, is
/// `rolldrop`.
fn is_own_image(image: &str) -> bool {
    let without_digest = image.split('@').next().unwrap_or_default();
    let last = without_digest.rsplit('/').next().unwrap_or_default();
    last.split(':').next() == Some("rolldrop")
}

pub(super) fn find_program(
    word: &str,
    working_dir: Option<&Path>,
    path: Option<&String>,
) -> Result<PathBuf, LaunchError> {
    let found = if word.contains('/') {
        let program = working_dir.map_or_else(|| PathBuf::from(word), |dir| dir.join(word));
        program.is_file().then_some(program)
    } else {
        path.and_then(|path| {
            std::env::split_paths(path).map(|dir| dir.join(word)).find(|file| file.is_file())
        })
    };
    found.ok_or_else(|| LaunchError::NoProgram { program: word.to_owned() })
}

/// The variables that the manifest names, each able to refer to those before it.
fn environment(
    container: &Container,
    around: &Surroundings<'_>,
) -> Result<BTreeMap<String, String>, LaunchError> {
    let mut env = BTreeMap::new();
    for variable in container.env.iter().flatten() {
        if let Some(value) = value_of(variable, around, &env)? {
            env.insert(variable.name.clone(), value);
        }
    }
    Ok(env)
}

fn value_of(
    variable: &EnvVar,
    around: &Surroundings<'_>,
    before: &BTreeMap<String, String>,
) -> Result<Option<String>, LaunchError> {
    let error = |why: String| LaunchError::Env { name: variable.name.clone(), why };
    let Some(source) = &variable.value_from else {
        let text = variable.value.as_deref().unwrap_or_default();
        return Ok(Some(expand(text, |name| before.get(name).cloned())));
    };
    if let Some(field) = &source.field_ref {
        let value = field_value(&field.field_path, around);
        return value
            .map(Some)
            .ok_or_else(|| error(format!("fieldPath {:?} is not supported", field.field_path)));
    }
    let (kind, name, key, optional) = if let Some(source) = &source.config_map_key_ref {
        (KeySource::ConfigMap, &source.name, &source.key, source.optional)
    } else if let Some(source) = &source.secret_key_ref {
        (KeySource::Secret, &source.name, &source.key, source.optional)
    } else {
        return Err(error("this kind of valueFrom is not supported".to_owned()));
    };
    match (around.keys)(kind, name, key) {
        Some(value) => Ok(Some(value)),
        None if optional == Some(true) => Ok(None),
        None => Err(error(format!("{kind:?} {name:?} has no key {key:?}"))),
    }
}

fn field_value(path: &str, around: &Surroundings<'_>) -> Option<String> {
    let metadata = &around.pod.metadata;
    let spec = around.pod.spec.as_ref();
    let keyed = |prefix: &str| path.strip_prefix(prefix)?.strip_suffix("']");
    match path {
        "metadata.name" => metadata.name.clone(),
        "metadata.namespace" => metadata.namespace.clone(),
        "metadata.uid" => metadata.uid.clone(),
        "spec.nodeName" => spec?.node_name.clone(),
        "spec.serviceAccountName" => Some(spec?.service_account_name.clone().unwrap_or_default()),
        "status.podIP" | "status.podIPs" => Some(around.pod_ip.to_owned()),
        "status.hostIP" | "status.hostIPs" => Some(around.host_ip.to_owned()),
        _ => {
            let (map, key) = match keyed("metadata.labels['") {
                Some(key) => (&metadata.labels, key),
                None => (&metadata.annotations, keyed("metadata.annotations['")?),
            };
            Some(map.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn try_launch(container: Value) -> Result<Launch, LaunchError> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web-1", "namespace": "shop", "uid": "u-1", "labels": {"app": "web"}},
            "spec": {"nodeName": "node-1", "containers": []},
        }))
        .unwrap();
        let keys = |kind, name: &str, key: &str| {
            (kind == KeySource::ConfigMap && name == "settings" && key == "mode").then(|| "fast".to_owned())
        };
        let container = serde_json::from_value(container).unwrap();
        launch(
            &container,
            &Surroundings {
                pod: &pod,
                pod_ip: "127.64.1.1",
                host_ip: "127.64.0.1",
                own_binary: Path::new("/opt/rolldrop"),
                keys: &keys,
            },
        )
    }

    fn field(name: &str, path: &str) -> Value {
        json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
    }

    #[test]
    fn the_own_image_is_the_running_binary() {
        for image in ["rolldrop", "rolldrop:dev", "ghcr.io/a/rolldrop@sha256:00", "localhost:5000/rolldrop:1"]
        {
            let launch = try_launch(json!({"name": "c", "image": image, "args": ["workload"]})).unwrap();
            assert_eq!((launch.program.to_str(), launch.args.len()), (Some("/opt/rolldrop"), 1), "{image}");
        }
        for image in ["rolldropper", "rolldrop/nginx", "nginx", ""] {
            let error = try_launch(json!({"name": "c", "image": image})).unwrap_err();
            assert_eq!(error.reason(), "CreateContainerError", "{image}");
        }
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = try_launch(json!({"name": "c", "command": ["/no/such/file"]})).unwrap_err();
        assert_eq!(error.reason(), "RunContainerError");
        assert!(error.to_string().contains("/no/such/file"), "{error}");
        let error = try_launch(json!({"name": "c", "command": ["no-such-program"]})).unwrap_err();
        assert!(error.to_string().contains("no-such-program"), "{error}");
    }

    #[test]
    fn the_environment_holds_what_the_manifest_says() {
        let launch = try_launch(json!({
            "name": "c",
            "command": ["sh", "-c", "echo $(LISTEN)"],
            "env": [
                field("POD_IP", "status.podIP"),
                {"name": "LISTEN", "value": "$(POD_IP):8080"},
                field("UID_", "metadata.uid"),
                field("APP", "metadata.labels['app']"),
                {"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "mode"}}},
                {"name": "NONE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": true}}},
            ],
        }))
        .unwrap();
        assert_eq!(launch.args, ["-c", "echo 127.64.1.1:8080"]);
        let env: BTreeMap<_, _> = launch.env.into_iter().collect();
        for (name, value) in [
            ("POD_IP", "127.64.1.1"),
            ("LISTEN", "127.64.1.1:8080"),
            ("UID_", "u-1"),
            ("APP", "web"),
            ("MODE", "fast"),
            ("HOSTNAME", "web-1"),
        ] {
            assert_eq!(env[name], value);
        }
        assert!(!env.contains_key("NONE") && env.contains_key("PATH"));
    }

    #[test]
    fn a_missing_key_is_an_error_that_names_it() {
        let error = try_launch(json!({
            "name": "c",
            "command": ["sh"],
            "env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "other"}}}],
        }))
        .unwrap_err();
        assert_eq!(error.reason(), "CreateContainerConfigError");
        assert!(error.to_string().contains("other"), "{error}");
    }
}
