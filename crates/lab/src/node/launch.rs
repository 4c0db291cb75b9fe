//! Turns a container's manifest into a command that can be started.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::Container;

use super::container_process::Launch;
use super::env::{self, Surroundings};
use super::expand::expand;
use super::volumes::{self, MadeVolumes, Mount, on_machine};
use crate::network::Placement;

/// Variables from the agent's own environment that every container gets, because the host's programs need them to be
/// found and to run.
const INHERITED: [&str; 6] = ["PATH", "HOME", "TMPDIR", "LANG", "LD_LIBRARY_PATH", "NIX_LD"];

/// Name of the image that represents this program.
const OWN_IMAGE: &str = "rolldrop";
/// Path of this program in that image.
const OWN_PROGRAM: &str = "/rolldrop";

/// Reason why a container cannot be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(super) struct LaunchError {
    /// Reason as shown in the container's status.
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl LaunchError {
    /// Reason for a missing variable or volume, which may be created without a change to the pod.
    pub(super) const CONFIGURATION: &str = "CreateContainerConfigError";

    fn configuration(message: String) -> Self {
        Self { reason: Self::CONFIGURATION, message }
    }

    /// Returns the error for a container that cannot be created.
    pub(super) fn create(message: String) -> Self {
        Self { reason: "CreateContainerError", message }
    }

    /// Returns the error for a program that cannot be run.
    pub(super) fn run(program: &str, why: &str) -> Self {
        Self { reason: "RunContainerError", message: format!("exec: {program:?}: {why}") }
    }
}

/// Builds the launch of a container. `volumes` are those that the container can mount; `None` where nothing can be
/// mounted.
///
/// # Errors
///
/// The reason why the container cannot be launched.
pub(super) fn launch(
    container: &Container,
    around: &Surroundings<'_>,
    own_binary: &Path,
    volumes: Option<&MadeVolumes>,
) -> Result<Launch, LaunchError> {
    let own_env = env::environment(container, around).map_err(LaunchError::configuration)?;
    let mounts = match volumes {
        Some(made) => volumes::mounts(container, made, |name| own_env.get(name).cloned())
            .map_err(|error| LaunchError::configuration(error.to_string()))?,
        None => Vec::new(),
    };
    let lookup = |name: &str| own_env.get(name).cloned();
    let mut words = container.command.iter().flatten().map(|word| expand(word, lookup));
    let working_dir = container.working_dir.as_ref().filter(|dir| !dir.is_empty()).map(PathBuf::from);
    if let Some(dir) = working_dir.as_ref().filter(|dir| !on_machine(dir, &mounts).is_dir()) {
        let dir = dir.display().to_string();
        return Err(LaunchError::create(format!("workingDir {dir:?} does not exist on this machine")));
    }

    let mut env: BTreeMap<String, String> =
        INHERITED.into_iter().filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?))).collect();
    env.insert("HOSTNAME".to_owned(), env::host_name(around.pod));
    env.extend(own_env.clone());

    let image = container.image.as_deref().unwrap_or_default();
    let own_program = (image_name(image) == OWN_IMAGE).then(|| own_binary.to_owned());
    let places = ProgramPaths {
        working_dir: working_dir.as_deref(),
        path: env.get("PATH"),
        mounts: &mounts,
        own_program: own_program.as_deref(),
    };
    let program = match words.next() {
        Some(word) => places.find_program(&word)?,
        None => own_program.clone().ok_or_else(|| {
            LaunchError::create(format!(
                "the embedded cluster cannot run image {image:?}: its pods are processes on this machine, so set \
                 `command` to a program on this machine"
            ))
        })?,
    };
    let mut args: Vec<String> = words.collect();
    args.extend(container.args.iter().flatten().map(|arg| expand(arg, lookup)));
    let container_id = format!("{:032x}{:032x}", rand::random::<u128>(), rand::random::<u128>());
    Ok(Launch {
        program,
        args,
        env: env.into_iter().collect(),
        working_dir,
        container_id,
        placement: Placement::default(),
        mounts,
        own_program,
    })
}

/// Returns the last component of an image name, without tag or digest.
pub(super) fn image_name(image: &str) -> &str {
    let without_digest = image.split('@').next().unwrap_or_default();
    let last = without_digest.rsplit('/').next().unwrap_or_default();
    last.split(':').next().unwrap_or_default()
}

/// Places where a container's programs are looked up.
pub(super) struct ProgramPaths<'a> {
    pub(super) working_dir: Option<&'a Path>,
    pub(super) path: Option<&'a String>,
    pub(super) mounts: &'a [Mount],
    /// Path on this machine of the program that the image has at [`OWN_PROGRAM`].
    pub(super) own_program: Option<&'a Path>,
}

impl ProgramPaths<'_> {
    /// Returns the path to a program.
    ///
    /// # Errors
    ///
    /// Fails if the program does not exist.
    pub(super) fn find_program(&self, word: &str) -> Result<PathBuf, LaunchError> {
        if let Some(program) = self.own_program.filter(|_| word == OWN_PROGRAM) {
            return Ok(program.to_owned());
        }
        let exists = |file: &PathBuf| on_machine(file, self.mounts).is_file();
        let found = if word.contains('/') {
            let program = self.working_dir.map_or_else(|| PathBuf::from(word), |dir| dir.join(word));
            Some(program).filter(exists)
        } else {
            self.path.and_then(|path| std::env::split_paths(path).map(|dir| dir.join(word)).find(exists))
        };
        found.ok_or_else(|| LaunchError::run(word, "no such executable on this machine"))
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    use super::*;

    fn try_launch(container: Value) -> Result<Launch, LaunchError> {
        let pod = serde_json::from_value::<Pod>(json!({"metadata": {"name": "web-1"}})).unwrap();
        let container = serde_json::from_value(container).unwrap();
        let around = Surroundings {
            pod: &pod,
            pod_ip: "127.64.1.1",
            host_ip: "127.64.0.1",
            data: &|_, _| None,
            given: &BTreeMap::new(),
            allocatable: &BTreeMap::new(),
        };
        launch(&container, &around, Path::new("/opt/rolldrop"), None)
    }

    #[test]
    fn rolldrop_image_runs_current_binary() {
        for image in ["rolldrop", "rolldrop:dev", "ghcr.io/a/rolldrop@sha256:00", "localhost:5000/rolldrop:1"]
        {
            let launch = try_launch(json!({"name": "c", "image": image, "args": ["workload"]})).unwrap();
            assert_eq!((launch.program.to_str(), launch.args.len()), (Some("/opt/rolldrop"), 1), "{image}");
        }
        for image in ["rolldropper", "rolldrop/nginx", "nginx", ""] {
            let error = try_launch(json!({"name": "c", "image": image})).unwrap_err();
            assert_eq!(error.reason, "CreateContainerError", "{image}");
        }
        let named = json!({"name": "c", "image": "rolldrop:1", "command": ["/rolldrop", "workload"]});
        assert_eq!(try_launch(named).unwrap().program.to_str(), Some("/opt/rolldrop"));
        let elsewhere = json!({"name": "c", "image": "nginx", "command": ["/rolldrop"]});
        assert_eq!(try_launch(elsewhere).unwrap_err().reason, "RunContainerError");
    }

    #[test]
    fn launch_error_names_missing_program() {
        let error = try_launch(json!({"name": "c", "command": ["/no/such/file"]})).unwrap_err();
        assert_eq!(error.reason, "RunContainerError");
        assert!(error.to_string().contains("/no/such/file"), "{error}");
        let error = try_launch(json!({"name": "c", "command": ["no-such-program"]})).unwrap_err();
        assert!(error.to_string().contains("no-such-program"), "{error}");
    }

    #[test]
    fn command_and_args_expand_variables() {
        let launch = try_launch(json!({
            "name": "c",
            "command": ["sh", "-c", "echo $(LISTEN) $(NOPE)"],
            "args": ["$(LISTEN)", "$$(LISTEN)"],
            "env": [{"name": "LISTEN", "value": "0.0.0.0:8080"}],
        }))
        .unwrap();
        assert_eq!(launch.args, ["-c", "echo 0.0.0.0:8080 $(NOPE)", "0.0.0.0:8080", "$(LISTEN)"]);
        let env: BTreeMap<_, _> = launch.env.into_iter().collect();
        assert_eq!((env["HOSTNAME"].as_str(), env.contains_key("PATH")), ("web-1", true));
    }
}
