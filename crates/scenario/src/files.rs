//! Reads the files that a scenario names: only regular files of bounded size.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Maximum size in bytes of a scenario and of each file that it names.
pub(super) const FILE_BYTES: u64 = 16 * 1024 * 1024;

/// Reads a file that a scenario names.
///
/// # Errors
/// Fails with the operating system's error, or if the file is not a regular file (a device may never end, a pipe may
/// never begin) or is longer than [`FILE_BYTES`].
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    // Checked before opening the file, because opening a pipe waits for a writer.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("is not a regular file"));
    }
    bounded(File::open(path)?)
}

/// Reads a file that a scenario names, as text.
pub(super) fn read_text(path: &Path) -> io::Result<String> {
    text(read(path)?)
}

/// Reads the scenario file itself, which may be a pipe.
pub(super) fn read_scenario(path: &Path) -> io::Result<String> {
    text(bounded(File::open(path)?)?)
}

fn bounded(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(FILE_BYTES + 1).read_to_end(&mut bytes)?;
    match u64::try_from(bytes.len()) {
        Ok(..=FILE_BYTES) => Ok(bytes),
        _ => Err(io::Error::other(format!("is longer than {FILE_BYTES} bytes"))),
    }
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn special_and_oversized_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let why = |path: &Path| read(path).unwrap_err().to_string();
        assert_eq!(why(Path::new("/dev/zero")), "is not a regular file");
        assert_eq!(why(dir.path()), "is not a regular file");
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(why(&pipe), "is not a regular file");
        assert_eq!(
            read_scenario(Path::new("/dev/zero")).unwrap_err().to_string(),
            "is longer than 16777216 bytes"
        );
        let long = dir.path().join("long");
        File::create(&long).unwrap().set_len(FILE_BYTES + 1).unwrap();
        assert_eq!(why(&long), "is longer than 16777216 bytes");
        File::create(&long).unwrap().set_len(FILE_BYTES).unwrap();
        assert_eq!(read(&long).unwrap().len() as u64, FILE_BYTES);
    }
}
