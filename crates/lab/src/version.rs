//! Version and architecture reported by the cluster.

/// Version of the API server and of the node agents.
pub(crate) const GIT_VERSION: &str = "v1.36.2+rolldrop";

/// Returns this machine's architecture, in Go's terms.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
