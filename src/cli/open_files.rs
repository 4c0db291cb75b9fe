//! The limit on open files, which bounds a server's connections.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the limit to the maximum that the system allows, and returns the new limit.
pub(super) fn raise_open_files() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return u64::MAX };
    if setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() { hard } else { soft }
}
