//! Directories for secrets.

use std::io;

/// Creates a temporary directory with an unguessable name that only its owner can enter.
///
/// # Errors
/// Fails if the directory cannot be created.
pub fn private_dir(prefix: &str) -> io::Result<tempfile::TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix);
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700));
    builder.tempdir()
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
