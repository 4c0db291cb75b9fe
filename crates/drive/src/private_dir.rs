//! Directories for secrets.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;

/// Creates a temporary directory that has an unguessable name and that only its owner can enter.
///
/// # Errors
/// Fails if the directory cannot be created.
pub fn private_dir(prefix: &str) -> io::Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix(prefix).permissions(Permissions::from_mode(0o700)).tempdir()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn private_dir_is_owner_only_and_unpredictable() {
        use std::os::unix::fs::PermissionsExt;
        let [one, other] = [(); 2].map(|()| private_dir("rolldrop-test-").unwrap());
        assert_ne!(one.path(), other.path());
        for dir in [one, other] {
            assert_eq!(std::fs::metadata(dir.path()).unwrap().permissions().mode() & 0o777, 0o700);
            let name = dir.path().file_name().unwrap().to_str().unwrap();
            let drawn = name.strip_prefix("rolldrop-test-").unwrap();
            assert!(drawn.len() >= 6 && drawn != std::process::id().to_string(), "{name}");
        }
    }
}
