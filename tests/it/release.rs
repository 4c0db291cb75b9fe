//! Parts of a release (`scripts/release`): archives, checksums, krew's manifest, and the places where `cargo binstall`
//! looks for them; and the files that the image is built from.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

const VERSION: &str = env!("CARGO_PKG_VERSION");
const URL: &str = "https://git.example.org/somebody/rolldrop";
/// Targets, each with krew's names for the platform.
const TARGETS: [(&str, &str, &str); 3] = [
    ("x86_64-unknown-linux-musl", "linux", "amd64"),
    ("aarch64-unknown-linux-musl", "linux", "arm64"),
    ("aarch64-apple-darwin", "darwin", "arm64"),
];

fn release(out: &TempDir, args: &[&str]) -> Output {
    Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/release"))
        .args(args)
        .env("ROLLDROP_RELEASE_DIR", out.path())
        .output()
        .expect("scripts/release starts")
}

fn expect_success(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the output of a program that reads the release's files.
fn shown(out: &TempDir, program: &str, args: &[&str]) -> String {
    expect_success(&Command::new(program).args(args).current_dir(out.path()).output().expect("it starts"))
}

/// Returns a value from `package.metadata.binstall`, with its variables replaced.
fn binstall(key: &str, target: &str) -> String {
    let manifest =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).expect("a manifest");
    let start = format!("{key} = \"");
    let value = manifest.lines().find_map(|line| line.strip_prefix(&start)?.strip_suffix('"'));
    let replaced =
        [("repo", URL), ("version", VERSION), ("target", target), ("bin", "rolldrop"), ("binary-ext", "")];
    replaced.iter().fold(value.expect("a value").to_owned(), |text, (name, by)| {
        text.replace(&format!("{{ {name} }}"), by)
    })
}

#[test]
fn program_with_symbols_is_not_packed() {
    let out = tempfile::tempdir().expect("a directory");
    let packed = release(&out, &["pack", TARGETS[0].0, env!("CARGO_BIN_EXE_rolldrop")]);
    let said = String::from_utf8_lossy(&packed.stderr);
    assert!(!packed.status.success() && said.contains("has its symbols"), "{said}");
}

#[test]
fn release_manifests_match_archives() {
    let out = tempfile::tempdir().expect("a directory");
    let program = out.path().join("built");
    fs::write(&program, "#!/bin/sh\necho packed\n").expect("a program");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).expect("its permissions");

    for (target, _, _) in TARGETS {
        let incomplete = release(&out, &["finish", URL]);
        let said = String::from_utf8_lossy(&incomplete.stderr);
        assert!(!incomplete.status.success() && said.contains(target), "{said}");
        expect_success(&release(&out, &["pack", target, program.to_str().expect("a path")]));
    }
    expect_success(&release(&out, &["finish", URL]));
    let checked = shown(&out, "sha256sum", &["--check", "SHA256SUMS"]);
    assert_eq!(checked.lines().filter(|line| line.ends_with(": OK")).count(), 2 * TARGETS.len(), "{checked}");

    let text = fs::read_to_string(out.path().join("rolldrop.yaml")).expect("krew's manifest");
    let krew: Value = serde_saphyr::from_str(&text).expect("YAML");
    assert_eq!(krew["apiVersion"], "krew.googlecontainertools.github.com/v1alpha2");
    assert_eq!((&krew["kind"], &krew["metadata"]["name"]), (&"Plugin".into(), &"rolldrop".into()));
    let spec = &krew["spec"];
    assert_eq!((&spec["version"], &spec["homepage"]), (&format!("v{VERSION}").into(), &URL.into()));
    let about = ["shortDescription", "description"].map(|key| spec[key].as_str().expect("a string"));
    assert!(about.iter().all(|text| !text.is_empty()) && about[0].len() <= 50, "{about:?}");
    let platforms = spec["platforms"].as_array().expect("platforms");
    assert_eq!(platforms.len(), TARGETS.len());

    let sums = fs::read_to_string(out.path().join("SHA256SUMS")).expect("checksums");
    for ((target, os, arch), platform) in TARGETS.iter().zip(platforms) {
        let labels = &platform["selector"]["matchLabels"];
        assert_eq!((&labels["os"], &labels["arch"]), (&(*os).into(), &(*arch).into()));
        let uri = platform["uri"].as_str().expect("an address");
        assert_eq!(uri, binstall("pkg-url", target));
        let archive = uri
            .strip_prefix(&format!("{URL}/releases/download/v{VERSION}/"))
            .expect("a path below the release");
        let sum = format!("{}  {archive}", platform["sha256"].as_str().expect("a checksum"));
        assert!(sums.lines().any(|line| line == sum), "{sum} is not among\n{sums}");

        let folder = Path::new(archive.strip_suffix(".tar.gz").expect("an archive"));
        let listed = shown(&out, "tar", &["--list", "--file", archive]);
        for name in ["LICENSE", "NOTICES", "README.md", "rolldrop", "rolldrop.cdx.json"] {
            let path = folder.join(name).display().to_string();
            assert!(listed.lines().any(|line| line == path), "{path} is not in\n{listed}");
        }
        assert_eq!(listed.lines().count(), 1 + 5, "{listed}");
        assert_eq!(binstall("bin-dir", target), folder.join("rolldrop").display().to_string());
        assert_eq!(platform["files"][0]["from"], format!("{}/*", folder.display()));
        assert_eq!((&platform["files"][0]["to"], &platform["bin"]), (&".".into(), &"rolldrop".into()));
        shown(&out, "tar", &["--extract", "--file", archive]);
        let unpacked = out.path().join(folder).join("rolldrop");
        assert_eq!(shown(&out, unpacked.to_str().expect("a path"), &[]), "packed\n");
        let notices = fs::read_to_string(out.path().join(folder).join("NOTICES")).expect("notices");
        assert!(notices.contains("Copyright"), "{notices}");
    }
}

#[test]
fn mismatched_tag_makes_no_release() {
    let out = tempfile::tempdir().expect("a directory");
    let refused = release(&out, &["check", "v0.0.0"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains(VERSION), "{said}");
}

#[test]
fn image_is_built_from_whole_manifest() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| fs::read_to_string(root.join(name)).expect("a file");
    let (dockerfile, ignored) = (read("Dockerfile"), read(".dockerignore"));
    let admitted: Vec<&str> = ignored.lines().filter_map(|line| line.strip_prefix('!')).collect();
    let built = tempfile::tempdir().expect("a directory");
    for line in dockerfile.lines().filter_map(|line| line.strip_prefix("COPY ")) {
        let paths: Vec<&str> = line.split_whitespace().collect();
        let (to, sources) = paths.split_last().expect("a destination");
        if line.starts_with("--from=") {
            continue;
        }
        for source in sources {
            let is_admitted = admitted.iter().any(|path| Path::new(source).starts_with(path));
            assert!(is_admitted && root.join(source).exists(), "{source} is not in the build context");
            let mut to = built.path().join(to.trim_start_matches('/'));
            if line.ends_with('/') {
                to.push(Path::new(source).file_name().expect("a name"));
            }
            fs::create_dir_all(to.parent().expect("a folder")).expect("its folder");
            symlink(root.join(source), to).expect("a copy");
        }
    }
    // Cargo builds nothing if a target that the manifest names is not there, and leaves out a build script that is not.
    assert_eq!(cargo_targets(built.path()), cargo_targets(root));
}

/// Returns package, kind and name of everything that cargo could build in a folder.
fn cargo_targets(folder: &Path) -> BTreeSet<String> {
    let args = ["metadata", "--locked", "--offline", "--no-deps", "--format-version=1"];
    let read = Command::new(env!("CARGO")).args(args).current_dir(folder).output();
    let manifest: Value = serde_json::from_str(&expect_success(&read.expect("cargo starts"))).expect("JSON");
    let packages = manifest["packages"].as_array().expect("packages").iter();
    let targets = packages.flat_map(|package| {
        let targets = package["targets"].as_array().expect("targets").iter();
        targets.map(|target| format!("{} {} {}", package["name"], target["kind"], target["name"]))
    });
    targets.collect()
}
