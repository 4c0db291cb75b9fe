//! Options for adding the sidecar, the Kubernetes versions that they apply to, and errors.

use std::fmt;
use std::num::NonZeroUsize;
use std::str::FromStr;

use thiserror::Error;

use super::annotated_object::WorkloadName;
use rolldrop_manifest::ManifestError;

/// Options for adding the sidecar.
#[derive(Clone, Debug)]
pub struct InjectOptions {
    /// Image of the sidecar.
    pub image: String,
    /// The app's port, if several are possible.
    pub port: Option<u16>,
    /// Oldest Kubernetes version that the result must support.
    pub kubernetes: KubernetesVersion,
    /// Secret with the admin port's token; `None` if the port needs no token.
    pub admin_token: Option<SecretKey>,
    /// Content of the app's connections. `None` means HTTP, and a port that carries anything else is refused.
    pub mode: Option<AppProtocol>,
    /// Maximum number of client connections to the sidecar, if not the proxy's default.
    pub max_connections: Option<NonZeroUsize>,
    /// The workloads that get the sidecar.
    pub selection: Selection,
}

impl InjectOptions {
    /// Returns the options for a run: the sidecar is added to every workload that receives the run's requests.
    pub fn of_a_run(image: String, kubernetes: KubernetesVersion, admin_token: SecretKey) -> Self {
        Self {
            image,
            port: None,
            kubernetes,
            admin_token: Some(admin_token),
            mode: None,
            max_connections: None,
            selection: Selection::All,
        }
    }
}

/// Content of an app's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppProtocol {
    /// HTTP, recorded by request.
    Http,
    /// Any protocol, recorded by connection.
    Tcp,
}

/// The workloads that get the sidecar.
#[derive(Clone, Debug)]
pub enum Selection {
    /// All workloads that can have the sidecar.
    Fit,
    /// All workloads. A workload that cannot have the sidecar is an error, unless it has no port or does not carry
    /// HTTP.
    All,
    /// These workloads. A workload that cannot have the sidecar is an error.
    Named(Vec<WorkloadName>),
}

/// A value of a Secret in the workload's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretKey {
    /// Name of the Secret.
    pub name: String,
    /// Key in the Secret.
    pub key: String,
    /// Behaviour of a pod created while the Secret does not exist.
    pub absent: Absent,
}

/// Behaviour of a pod whose Secret does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// The pod waits until the Secret exists.
    Waits,
    /// The pod starts, and its admin port serves only health and readiness.
    TellsNobody,
}

/// Error for text that does not name a Secret value.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("expected the name of a Secret, or NAME/KEY")]
pub struct BadSecretKey;

impl FromStr for SecretKey {
    type Err = BadSecretKey;

    /// Parses `NAME`, or `NAME/KEY`; the default key is `token`.
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
pub struct KubernetesVersion(u32);

impl KubernetesVersion {
    /// Returns version 1.`minor`.
    pub const fn minor(minor: u32) -> Self {
        Self(minor)
    }

    /// First version with native sidecars enabled by default (KEP-753, beta).
    pub const NATIVE_SIDECARS: Self = Self(29);
    /// First version with the sleep action of hooks enabled by default (KEP-3960, beta).
    pub(crate) const SLEEP_ACTIONS: Self = Self(30);
    /// First version whose EndpointSlices support named ports of native sidecars (kubernetes/kubernetes#128850, not
    /// backported).
    pub const NAMED_SIDECAR_PORTS: Self = Self(33);
}

/// Error for text that is not a Kubernetes version.
#[derive(Debug, Error)]
#[error("expected a Kubernetes version, such as 1.33")]
pub struct BadVersion;

impl FromStr for KubernetesVersion {
    type Err = BadVersion;

    /// Parses the first two numbers of a server version, such as `v1.33.4-gke.1`.
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

/// Reason why manifests cannot be changed.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum InjectError {
    /// The text is not a manifest.
    #[error(transparent)]
    Unreadable(#[from] ManifestError),
    /// The requested Kubernetes version cannot run the sidecar.
    #[error("native sidecars need Kubernetes {since} or later, but the result must support {0}", since = KubernetesVersion::NATIVE_SIDECARS)]
    TooOld(KubernetesVersion),
    /// No ports are free.
    #[error("the sidecar needs two free ports from 18080 up, but the workloads declare all of them")]
    NoPort,
    /// There is no workload among the manifests.
    #[error(
        "no Pod, Deployment, StatefulSet, DaemonSet, ReplicaSet, ReplicationController or Rollout among the manifests{instead}"
    )]
    NoWorkload { instead: String },
    /// A named workload is not among the manifests.
    #[error("{named} is not among the manifests, or has no pod template; these have one: {known}")]
    NotThere { named: WorkloadName, known: String },
    /// No workload uses the requested port.
    #[error(
        "no workload declares port {0}, and no Service uses it: name the workload with --workload KIND/NAME"
    )]
    NoSuchPort(u16),
    /// Some workloads cannot have the sidecar.
    #[error("{}", .0.join("\n"))]
    Refused(Vec<String>),
    /// Another error, with the name of the file.
    #[error("{file}: {error}")]
    In { file: String, error: Box<InjectError> },
}

impl InjectError {
    /// Adds the file name, if the error has none.
    pub(super) fn of(self, file: &str) -> Self {
        match self {
            Self::NoPort | Self::NoWorkload { .. } | Self::NotThere { .. } | Self::NoSuchPort(_) => {
                Self::In { file: file.to_owned(), error: Box::new(self) }
            }
            other => other,
        }
    }
}
