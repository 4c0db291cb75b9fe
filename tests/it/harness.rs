//! Runs the binary; when something fails, shows what was run and what it said.

use std::ffi::OsStr;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use kube::config::{KubeConfigOptions, Kubeconfig};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

/// The binary under test, in a directory of its own.
pub(crate) struct Rolldrop {
    command: Command,
    dir: TempDir,
}

/// A finished run of the binary.
pub(crate) struct Finished {
    line: String,
    output: Output,
    dir: TempDir,
}

impl Rolldrop {
    /// `rolldrop ARGS...`, in an empty directory.
    pub(crate) fn new<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut command = Command::new(env!("CARGO_BIN_EXE_rolldrop"));
        command
            .args(args)
            .current_dir(dir.path())
            .env("NO_COLOR", "1")
            // Other tests and builds fill the machine.
            .env("ROLLDROP_MAX_BUSY", "100%")
            .stdin(Stdio::null());
        Self { command, dir }
    }

    /// Further arguments.
    pub(crate) fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.command.args(args);
        self
    }

    /// Writes a file into the directory.
    pub(crate) fn file(self, name: &str, text: &str) -> Self {
        std::fs::write(self.dir.path().join(name), text).expect("a file");
        self
    }

    /// A variable of its environment.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Runs it to its end.
    pub(crate) fn finish(mut self) -> Finished {
        let line = format!("{:?}", self.command);
        let output = self.command.output().expect("the binary starts");
        Finished { line, output, dir: self.dir }
    }

    /// Starts it, and leaves it running. It writes to `stdout.log` and `stderr.log`.
    pub(crate) fn start(mut self) -> (Child, TempDir) {
        let log = |name: &str| std::fs::File::create(self.dir.path().join(name)).expect("a file");
        let (stdout, stderr) = (log("stdout.log"), log("stderr.log"));
        let child = self.command.stdout(stdout).stderr(stderr).spawn().expect("the binary starts");
        (child, self.dir)
    }
}

impl Finished {
    /// Fails, with all that is known, unless it exited so.
    #[track_caller]
    pub(crate) fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.output.status.code(), Some(code), "exit status\n{self}");
        self
    }

    /// Its exit status, if no signal ended it.
    pub(crate) fn code(&self) -> Option<i32> {
        self.output.status.code()
    }

    /// What it wrote to stdout.
    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    /// What it wrote to stderr.
    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    /// The directory it ran in.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }
}

impl fmt::Display for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "command:   {}", self.line)?;
        writeln!(f, "directory: {}", self.dir.path().display())?;
        writeln!(f, "status:    {}", self.output.status)?;
        writeln!(f, "--- stdout\n{}", self.stdout())?;
        writeln!(f, "--- stderr\n{}", self.stderr())
    }
}

/// How long a cluster may take to end.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// A `rolldrop cluster` whose lifeline this value holds: it ends with it.
pub(crate) struct ClusterProcess {
    child: Child,
    ready: Value,
    dir: PathBuf,
    _temporary: Option<TempDir>,
}

impl ClusterProcess {
    /// One with this configuration and a log directory of its own.
    #[track_caller]
    pub(crate) fn start(config: &Value) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let program = Command::new(env!("CARGO_BIN_EXE_rolldrop"));
        let mut cluster = Self::start_as(program, config, dir.path());
        cluster._temporary = Some(dir);
        cluster
    }

    /// The same, started by another command, with its logs in a directory that is the caller's.
    #[track_caller]
    pub(crate) fn start_as(mut program: Command, config: &Value, dir: &Path) -> Self {
        let log = std::fs::File::create(dir.join("stderr.log")).expect("a file");
        program.args(["cluster", "--lifeline", "--config", &config.to_string(), "--log-dir"]).arg(dir);
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = program.spawn().expect("the binary starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("its stdout");
        BufReader::new(stdout).read_line(&mut line).expect("a line when it is ready");
        let ready: Value = serde_json::from_str(&line).unwrap_or_default();
        let cluster = Self { child, ready, dir: dir.to_owned(), _temporary: None };
        assert_eq!(cluster.ready["ready"], true, "no cluster: {line:?}\n{}", cluster.said());
        cluster
    }

    /// What it said when it was ready.
    pub(crate) fn ready(&self) -> &Value {
        &self.ready
    }

    /// What it has written to stderr.
    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(self.dir.join("stderr.log")).unwrap_or_default()
    }

    /// Its log directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How kube-rs reaches it.
    pub(crate) async fn client_config(&self) -> kube::Config {
        let file = Kubeconfig::read_from(self.kubeconfig()).expect("a kubeconfig");
        let options = KubeConfigOptions::default();
        let mut config = kube::Config::from_custom_kubeconfig(file, &options).await.expect("a config");
        config.proxy_url = None;
        config
    }

    /// A client of it.
    pub(crate) async fn client(&self) -> kube::Client {
        kube::Client::try_from(self.client_config().await).expect("a client")
    }

    /// Lets go of its lifeline.
    pub(crate) fn let_go(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Lets go of its lifeline, and waits for its end.
    #[track_caller]
    pub(crate) fn end(&mut self) -> ExitStatus {
        self.let_go();
        wait_for("the cluster's end", STOP_LIMIT, || self.child.try_wait().expect("its state"))
    }
}

impl Drop for ClusterProcess {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Whether it ends in good order is no question any more.
            let _ = self.child.kill();
            let _ = self.child.wait();
        } else {
            self.end();
        }
    }
}

/// Waits for a condition, up to a limit.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, limit: Duration, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What a container wrote, from the entries of its log: `TIME STREAM TAG TEXT`.
pub(crate) fn written(log: &str) -> String {
    let mut text = String::new();
    for entry in log.lines() {
        let mut parts = entry.splitn(4, ' ').skip(2);
        let (Some(tag), Some(piece)) = (parts.next(), parts.next()) else { continue };
        text.push_str(piece);
        if tag == "F" {
            text.push('\n');
        }
    }
    text
}

/// A process' processor time so far, in seconds (proc_pid_stat(5), with 100 ticks a second).
pub(crate) fn cpu_s(process: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("its times");
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<f64>().expect("a number")).sum::<f64>() / 100.0
}

/// Runs a command to its end, with this on its stdin.
#[track_caller]
pub(crate) fn fed(command: &mut Command, input: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = command.spawn();
    let mut child =
        started.unwrap_or_else(|e| panic!("{command:?}: {e}; scripts/test installs what is not ours"));
    child.stdin.take().expect("its stdin").write_all(input.as_bytes()).expect("it reads");
    child.wait_with_output().expect("an end")
}

/// A process, told from a later one with the same number by when it started.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    pid: u32,
    parent: u32,
    started: u64,
}

impl Process {
    fn read(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in brackets, may hold anything; what follows it is numbers.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let is_zombie = fields.first() == Some(&"Z");
        let process =
            Self { pid, parent: fields.get(1)?.parse().ok()?, started: fields.get(19)?.parse().ok()? };
        (!is_zombie).then_some(process)
    }

    /// Whether it still runs.
    pub(crate) fn is_alive(&self) -> bool {
        Self::read(self.pid).is_some_and(|now| now.started == self.started)
    }

    /// Whether `pid` was its parent when it was found.
    pub(crate) fn is_child_of(&self, pid: u32) -> bool {
        self.parent == pid
    }

    /// Whether it is the one with this number.
    pub(crate) fn is(&self, pid: u32) -> bool {
        self.pid == pid
    }

    /// Whether this process was its parent when it was found.
    pub(crate) fn is_child_of_process(&self, parent: &Self) -> bool {
        self.parent == parent.pid
    }

    /// Whether it is this subcommand of a program.
    pub(crate) fn runs(&self, subcommand: &str) -> bool {
        let arguments = std::fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        arguments.split(|byte| *byte == 0).nth(1) == Some(subcommand.as_bytes())
    }

    /// A variable of its environment.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        let all = std::fs::read(format!("/proc/{}/environ", self.pid)).ok()?;
        let mut all = all.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        all.find_map(|variable| Some(variable.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
    }

    /// All processes below it, itself included.
    pub(crate) fn tree(&self) -> Vec<Self> {
        process_tree(self.pid)
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill(&self) {
        self.signal(Signal::SIGKILL);
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.pid).expect("a pid"));
        kill(pid, signal).expect("it is there");
    }
}

/// Every process below `pid`, itself included.
pub(crate) fn process_tree(pid: u32) -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let all: Vec<Process> = pids.filter_map(Process::read).collect();
    let mut tree: Vec<Process> = all.iter().filter(|p| p.pid == pid).cloned().collect();
    let mut next = 0;
    while let Some(parent) = tree.get(next).map(|p| p.pid) {
        tree.extend(all.iter().filter(|p| p.parent == parent).cloned());
        next += 1;
    }
    tree
}
