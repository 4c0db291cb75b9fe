//! The real, unmodified kubectl against a running `rolldrop cluster`.
//!
//! All tests share one cluster of three nodes; each test has its own namespace. The cluster exits with the test
//! process, which holds the other end of its lifeline pipe.

mod apply;
mod change;
mod create;
mod delete;
mod describe;
mod get;
mod logs;
mod nodes;
mod rights;
mod rollout;
mod sets;
mod unsupported;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::json;

use crate::harness::{LIMIT, fed, wait_for};
use crate::lab::{Cluster, Setup};

/// Waits until the app is ready.
pub(crate) const ROLLED_OUT: &str = "rollout status deployment/web --timeout=300s";

pub(crate) const KUBECTL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/test-venv/bin/kubectl");

/// The cluster that all tests share.
pub(crate) struct SharedCluster {
    process: Cluster,
}

impl SharedCluster {
    /// Returns the cluster; the first caller starts it.
    pub(crate) fn get() -> &'static Self {
        static CLUSTER: OnceLock<SharedCluster> = OnceLock::new();
        CLUSTER.get_or_init(|| Self::start("kubectl-cluster"))
    }

    /// Starts another cluster like it, in a directory with this name. The cluster is shut down when dropped.
    pub(crate) fn start(name: &str) -> Self {
        // The directory is below target, where leftovers do no harm, because statics are never dropped.
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        if let Err(error) = std::fs::remove_dir_all(&dir) {
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{}: {error}", dir.display());
        }
        std::fs::create_dir_all(&dir).expect("a directory");
        // Bookmarks are frequent so that no test waits long for one.
        let bookmarks = json!({"apiServer": {"bookmarkPeriod": "1s"}});
        Self { process: Setup::new().nodes(3).with(bookmarks).within(&dir).start() }
    }

    /// Returns the path for a test's own file, beside the cluster's files.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.process.dir().join(name)
    }

    /// Returns the pid of the cluster.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns the cluster's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.process.kubeconfig()
    }
}

/// Returns the command `kubectl ARGS...`, split at spaces, for the cluster of this kubeconfig. It runs in the
/// kubeconfig's directory.
fn command(kubeconfig: &Path, args: &str) -> Command {
    let dir = kubeconfig.parent().expect("a directory");
    let mut command = Command::new(KUBECTL);
    command
        .args(args.split_whitespace())
        .env("KUBECONFIG", kubeconfig)
        .env("HOME", dir)
        .env_remove("KUBECTL_EXTERNAL_DIFF")
        .current_dir(dir)
        .stdin(Stdio::null());
    command
}

/// Runs kubectl until it exits, with any status and with this input on stdin.
#[track_caller]
pub(crate) fn run(kubeconfig: &Path, args: &str, input: &str) -> Ran {
    Ran { line: format!("kubectl {args}"), output: fed(&mut command(kubeconfig, args), input) }
}

/// kubectl with its own namespace.
pub(crate) struct Kubectl {
    namespace: String,
}

impl Kubectl {
    /// Creates a new namespace, named after the subject of the test.
    #[track_caller]
    pub(crate) fn in_namespace(what: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let namespace = format!("{what}-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let kubectl = Self { namespace };
        let manifest =
            format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {}}}}}", kubectl.namespace);
        kubectl.apply(&manifest);
        kubectl
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the command for `kubectl ARGS...`, split at spaces.
    pub(crate) fn command(&self, args: &str) -> Command {
        command(&SharedCluster::get().kubeconfig(), &self.in_it(args))
    }

    fn in_it(&self, args: &str) -> String {
        format!("--namespace {} {args}", self.namespace)
    }

    /// Runs `kubectl ARGS...` until it exits, with any status.
    pub(crate) fn run(&self, args: &str) -> Ran {
        self.run_with(args, "")
    }

    fn run_with(&self, args: &str, input: &str) -> Ran {
        run(&SharedCluster::get().kubeconfig(), &self.in_it(args), input)
    }

    /// Runs `kubectl ARGS...`, which must succeed, and returns its stdout.
    #[track_caller]
    pub(crate) fn ok(&self, args: &str) -> String {
        self.run(args).ok()
    }

    /// Runs `kubectl ARGS...`, which must fail, and returns its stderr.
    #[track_caller]
    pub(crate) fn fails(&self, args: &str) -> String {
        let ran = self.run(args);
        assert!(!ran.output.status.success(), "it should fail\n{ran}");
        ran.stderr()
    }

    /// Runs `kubectl ARGS... -f -` with a manifest.
    #[track_caller]
    pub(crate) fn with_manifest(&self, args: &str, manifest: &str) -> Ran {
        self.run_with(&format!("{args} -f -"), manifest)
    }

    /// Applies a manifest.
    #[track_caller]
    pub(crate) fn apply(&self, manifest: &str) -> String {
        self.with_manifest("apply", manifest).ok()
    }

    /// Returns one field of an object, by its JSON path.
    #[track_caller]
    pub(crate) fn field(&self, object: &str, path: &str) -> String {
        self.ok(&format!("get {object} -o jsonpath={{{path}}}"))
    }

    /// Waits until `kubectl ARGS...` succeeds with the desired output.
    #[track_caller]
    pub(crate) fn until(&self, args: &str, wished: impl Fn(&str) -> bool) -> String {
        wait_for(&format!("kubectl {args}"), LIMIT, || {
            let ran = self.run(args);
            Some(ran.stdout()).filter(|stdout| ran.output.status.success() && wished(stdout))
        })
    }

    /// Creates a Deployment `web` of idle pods, and waits until all are ready.
    #[track_caller]
    pub(crate) fn run_web(&self, replicas: u32) {
        self.apply(&web(replicas));
        self.ok(ROLLED_OUT);
    }
}

impl Drop for Kubectl {
    fn drop(&mut self) {
        // The pods would take CPU time from other tests.
        self.run(&format!("delete namespace {} --wait=false", self.namespace));
    }
}

/// Returns a Deployment `web` whose pods do nothing, and exit immediately when deleted.
pub(crate) fn web(replicas: u32) -> String {
    format!(
        "
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web, labels: {{app: web}}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      containers: [{{name: app, image: host/sleep:1, command: [sleep, '1000'], ports: [{{containerPort: 8080}}]}}]
"
    )
}

/// Returns a pod that runs a shell script.
pub(crate) fn pod(name: &str, script: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  restartPolicy: Never
  containers:
  - name: app
    image: host/shell:1
    command: [sh, -c, {script:?}]
"
    )
}

/// A finished run of kubectl.
pub(crate) struct Ran {
    line: String,
    output: Output,
}

impl Ran {
    /// Returns stdout; fails unless the command succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert!(self.output.status.success(), "it should succeed\n{self}");
        self.stdout()
    }

    /// Returns the exit code.
    pub(crate) fn code(&self) -> Option<i32> {
        self.output.status.code()
    }

    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "$ {}\n--- {}", self.line, self.output.status)?;
        writeln!(f, "--- stdout\n{}", self.stdout())?;
        writeln!(f, "--- stderr\n{}", self.stderr())
    }
}

/// Splits a table into lines and words.
pub(crate) fn rows(table: &str) -> Vec<Vec<&str>> {
    table.lines().map(|line| line.split_whitespace().collect()).collect()
}
