//! `kubectl rolldrop`: the real kubectl finds the program as a plugin, asks it for completions, and passes on its exit
//! status.

use std::os::unix::fs::symlink;
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::harness::Rolldrop;
use crate::kubectl::{KUBECTL, Kubectl, ROLLED_OUT, SharedCluster};
use crate::web::Web;

/// Returns a directory for the PATH, which contains both names that kubectl looks for.
fn installed() -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["kubectl-rolldrop", "kubectl_complete-rolldrop"] {
        symlink(env!("CARGO_BIN_EXE_rolldrop"), dir.path().join(name)).expect("a link");
    }
    dir
}

fn kubectl(installed: &TempDir, args: &[&str]) -> Output {
    let path = format!("{}:{}", installed.path().display(), std::env::var("PATH").expect("a PATH"));
    Command::new(KUBECTL)
        .args(args)
        .env("PATH", path)
        .env("KUBECONFIG", SharedCluster::get().kubeconfig())
        .env("NO_COLOR", "1")
        .current_dir(installed.path())
        .output()
        .expect("kubectl starts: scripts/test installs it")
}

fn stdout(output: &Output) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    stdout
}

#[test]
fn plugin_help_names_kubectl_rolldrop() {
    let installed = installed();
    let listed = stdout(&kubectl(&installed, &["plugin", "list"]));
    assert!(listed.contains("/kubectl-rolldrop"), "{listed}");

    for (args, usage) in [
        (&["rolldrop", "--help"][..], "Usage: kubectl rolldrop <COMMAND>"),
        (
            &["rolldrop", "run", "--help"],
            "Usage: kubectl rolldrop run [OPTIONS] [SCENARIO] [-- <COMMAND>...]",
        ),
        (&["rolldrop", "help", "gate"], "Usage: kubectl rolldrop gate [OPTIONS] <RUN>"),
    ] {
        let help = stdout(&kubectl(&installed, args));
        assert!(help.contains(usage), "{help}");
        for line in help.lines() {
            let typed = ["  rolldrop ", "`rolldrop ", "| rolldrop "];
            assert!(typed.iter().all(|typed| !line.contains(typed)), "{line}");
        }
    }
    let run = stdout(&kubectl(&installed, &["rolldrop", "run", "-h"]));
    assert!(
        run.contains("  kubectl rolldrop run --target svc/web -n shop --image IMAGE -- kubectl rollout"),
        "{run}"
    );

    // Called by its own name, the program shows that name.
    let own = Rolldrop::new(["run", "--help"]).finish().expect_code(0);
    assert!(
        own.stdout().contains("Usage: rolldrop run") && !own.stdout().contains("kubectl rolldrop"),
        "{own}"
    );

    let wrong = kubectl(&installed, &["rolldrop", "run", "--no-such"]);
    assert_eq!(wrong.status.code(), Some(2));
    let said = String::from_utf8_lossy(&wrong.stderr);
    assert!(said.contains("Usage: kubectl rolldrop run"), "{said}");
}

#[test]
fn kubectl_completes_plugin_arguments() {
    let installed = installed();
    let complete =
        |words: &[&str]| stdout(&kubectl(&installed, &[&["__complete", "rolldrop"], words].concat()));
    let commands = complete(&[""]);
    assert!(commands.contains("run\tMeasure a scenario"), "{commands}");
    assert!(!commands.contains("load-worker"), "{commands}");
    let options = complete(&["run", "--dry"]);
    assert_eq!(
        options.lines().next().and_then(|line| line.split('\t').next()),
        Some("--dry-run"),
        "{options}"
    );
    let values = complete(&["run", "--dataplane", "k"]);
    assert_eq!(values.lines().next().and_then(|line| line.split('\t').next()), Some("kernel"), "{values}");
    // cobra's ShellCompDirectiveNoFileComp.
    assert!(values.contains("\n:4\n"), "{values}");
}

#[test]
fn plugin_measures_cluster_of_kubeconfig() {
    let shop = Kubectl::in_namespace("plugin");
    shop.apply(&Web::new(1).manifests());
    shop.ok(ROLLED_OUT);
    let installed = installed();
    let args = ["rolldrop", "run", "--target", "svc/web", "-n", shop.namespace(), "-r", "50", "-d", "1s"];
    let measured = kubectl(&installed, &[&args[..], &["--out", "run", "--quiet"]].concat());
    let said =
        format!("{}{}", String::from_utf8_lossy(&measured.stdout), String::from_utf8_lossy(&measured.stderr));
    // The run is invalid on a starved machine.
    assert!([Some(0), Some(3)].contains(&measured.status.code()), "{said}");
    assert!(said.contains("50 requests"), "{said}");
    let junit = std::fs::read_to_string(installed.path().join("run/junit.xml")).expect("junit.xml");
    assert!(junit.contains("<testsuite name=\"web\""), "{junit}");
}
