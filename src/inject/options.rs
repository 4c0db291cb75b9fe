//! What to add, for which Kubernetes, and why that may not be possible.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::object::TARGET_PORTS;

/// What to add.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The image of the sidecar.
    pub image: String,
    /// The app's port, if several are possible.
    pub port: Option<u16>,
    /// The oldest Kubernetes that the result is for.
    pub kubernetes: KubernetesVersion,
    /// Where the admin port's token is; `None` if it needs none.
    pub admin_token: Option<SecretKey>,
}

/// A value of a Secret in the workload's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SecretKey {
    /// The Secret.
    pub name: String,
    /// The key in it.
    pub key: String,
    /// What happens to a pod that is created while the Secret does not exist.
    pub absent: Absent,
}

/// What happens to a pod whose Secret does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// It waits until the Secret exists.
    Waits,
    /// It starts, and its admin port serves only health and readiness.
    TellsNobody,
}

/// A text that does not name a value of a Secret.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("not the name of a Secret, or NAME/KEY")]
pub(crate) struct BadSecretKey;

impl FromStr for SecretKey {
    type Err = BadSecretKey;

    /// `NAME`, or `NAME/KEY`; the default key is `token`.
    fn from_str(text: &str) -> Result<Self, BadSecretKey> {
        let (name, key) = text.split_once('/').unwrap_or((text, "token"));
        let good = |part: &str| {
            !part.is_empty()
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
        };
        if !good(name) || !good(key) {
            return Err(BadSecretKey);
        }
        Ok(Self { name: name.to_owned(), key: key.to_owned(), absent: Absent::Waits })
    }
}

/// A minor version of Kubernetes 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KubernetesVersion(u32);

impl KubernetesVersion {
    /// 1.`minor`.
    pub(crate) const fn minor(minor: u32) -> Self {
        Self(minor)
    }

    /// The first with native sidecars switched on (KEP-753, beta).
    pub(crate) const NATIVE_SIDECARS: Self = Self(29);
    /// The first with the sleep action of hooks switched on (KEP-3960, beta).
    pub(crate) const SLEEP_ACTIONS: Self = Self(30);
    /// The first whose EndpointSlices know named ports of native sidecars (kubernetes/kubernetes#128850,
    /// not brought back to earlier ones).
    pub(crate) const NAMED_SIDECAR_PORTS: Self = Self(33);
}

/// A text that is not a version of Kubernetes.
#[derive(Debug, Error)]
#[error("not a version of Kubernetes, such as 1.33")]
pub(crate) struct BadVersion;

impl FromStr for KubernetesVersion {
    type Err = BadVersion;

    /// Reads the first two numbers of a server's version, such as `v1.33.4-gke.1`.
    fn from_str(text: &str) -> Result<Self, BadVersion> {
        let mut parts = text.strip_prefix('v').unwrap_or(text).split('.');
        let (Some("1"), Some(minor)) = (parts.next(), parts.next()) else { return Err(BadVersion) };
        minor.parse().map(Self).map_err(|_| BadVersion)
    }
}

impl fmt::Display for KubernetesVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{}", self.0)
    }
}

/// Why manifests cannot be changed.
#[derive(Debug, Error)]
pub(crate) enum InjectError {
    /// The text is neither YAML nor JSON.
    #[error("not YAML: {0}")]
    Unreadable(String),
    /// The result is for a version that cannot run it.
    #[error("native sidecars need Kubernetes {since} or later, not {0}", since = KubernetesVersion::NATIVE_SIDECARS)]
    TooOld(KubernetesVersion),
    /// All ports are taken.
    #[error("no two ports are left for the sidecar")]
    NoPort,
    /// No workload is among the manifests.
    #[error("no Pod, Deployment, StatefulSet, DaemonSet or ReplicaSet among the manifests")]
    NoWorkload,
    /// A Service has our annotation, but with a value that was not written here.
    #[error("{0} has an annotation {TARGET_PORTS} that was not written here: remove it")]
    Annotated(String),
    /// No workload uses the port that was asked for.
    #[error("no workload declares port {0}, and no Service uses it")]
    NoSuchPort(u16),
    /// A workload cannot have the sidecar.
    #[error("{workload}: {why}")]
    Workload {
        /// Its kind and name.
        workload: String,
        /// Why not, and what to do.
        why: String,
    },
}
