//! What the cluster says it is.

/// The version of the API server and of the node agents.
pub(crate) const GIT_VERSION: &str = "v1.36.2+rolldrop";

/// This machine's architecture, as Go calls it.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
