//! Runs the binary, and shows the command and its output on failure.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::machine::{Meanwhile, figure, wait_until_quiet};
use crate::runs::Dataplane;

/// Time limit for every wait in a test. It is far longer than needed on a busy machine, so a test fails only if the
/// event never comes.
pub(crate) const LIMIT: Duration = Duration::from_secs(300);

/// Folder of the programs that scripts/test installs.
pub(crate) const VENV: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/test-venv/bin");

/// A call to the binary under test, in a directory of its own.
pub(crate) struct Rolldrop {
    args: Vec<OsString>,
    files: Vec<(String, String)>,
    env: Vec<(String, String)>,
}

/// Returns the repository's root folder.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the contents of a file in the repository.
#[track_caller]
pub(crate) fn tracked(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A finished run of the binary.
pub(crate) struct Finished {
    line: String,
    output: Output,
    dir: TempDir,
    /// Share of CPU time used by others during the run.
    pub(crate) taken: f64,
}

impl Rolldrop {
    /// Returns `rolldrop ARGS...`, in an empty directory.
    pub(crate) fn new<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Self {
        Self { args: Vec::new(), files: Vec::new(), env: Vec::new() }.args(args)
    }

    /// Returns `rolldrop run` for a scenario, given by name or as the contents of a file. The run directory is `run`.
    pub(crate) fn run(scenario: &str) -> Self {
        if scenario.contains('\n') {
            Self::new(["run", "scenario.yaml", "--out", "run"]).file("scenario.yaml", scenario)
        } else {
            Self::new(["run", scenario, "--out", "run"])
        }
    }

    /// Selects an embedded cluster with this dataplane.
    pub(crate) fn on(self, dataplane: Dataplane) -> Self {
        self.args(["--dataplane", dataplane.into()])
    }

    /// Selects the cluster of this kubeconfig, without asking for consent.
    pub(crate) fn on_cluster(self, kubeconfig: &Path) -> Self {
        self.args(["--yes", "--kubeconfig"]).args([kubeconfig])
    }

    /// Overrides fields of the scenario.
    pub(crate) fn set(self, fields: &[&str]) -> Self {
        self.args(fields.iter().flat_map(|field| ["--set", field]))
    }

    /// Adds arguments.
    pub(crate) fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Adds a file to the directory.
    pub(crate) fn file(mut self, name: &str, text: &str) -> Self {
        self.files.push((name.to_owned(), text.to_owned()));
        self
    }

    /// Sets an environment variable.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Puts the programs that scripts/test installs, such as kubectl, on the PATH.
    pub(crate) fn with_tools(self) -> Self {
        let path = std::env::var("PATH").unwrap_or_default();
        self.env("PATH", &format!("{VENV}:{path}"))
    }

    /// Returns the command, and a new directory with its files.
    pub(crate) fn command(&self) -> (Command, TempDir) {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for (name, text) in &self.files {
            std::fs::write(dir.path().join(name), text).expect("a file");
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_rolldrop"));
        command
            .args(&self.args)
            .current_dir(dir.path())
            .env("NO_COLOR", "1")
            // Other tests and builds may use the whole machine.
            .env("ROLLDROP_MAX_BUSY", "100%")
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        (command, dir)
    }

    /// Runs the program until it exits.
    pub(crate) fn finish(&self) -> Finished {
        let (mut command, dir) = self.command();
        let (line, meanwhile) = (format!("{command:?}"), Meanwhile::begins());
        let output = command.output().expect("the binary starts");
        Finished { line, output, dir, taken: meanwhile.taken() }
    }

    /// Runs the program until it exits. Repeats the run while the machine makes the measurement invalid, which is no
    /// fault of the program.
    pub(crate) fn measured(&self) -> Finished {
        again_while_invalid(|| self.finish(), Finished::is_invalid)
    }

    /// Starts the program and leaves it running. Its output goes to `stdout.log` and `stderr.log`.
    pub(crate) fn start(&self) -> (Child, TempDir) {
        let (mut command, dir) = self.command();
        let log = |name: &str| std::fs::File::create(dir.path().join(name)).expect("a file");
        command.stdout(log("stdout.log")).stderr(log("stderr.log"));
        (command.spawn().expect("the binary starts"), dir)
    }
}

/// Maximum number of repetitions of a run that a starved machine made invalid.
const REPETITIONS: usize = 4;

/// Runs a measurement, and repeats it while it is invalid, each time once the other tests use little CPU time.
pub(crate) fn again_while_invalid<T>(run: impl Fn() -> T, is_invalid: impl Fn(&T) -> bool) -> T {
    let mut ran = run();
    for _ in 0..REPETITIONS {
        if !is_invalid(&ran) {
            break;
        }
        wait_until_quiet();
        ran = run();
    }
    ran
}

impl Finished {
    /// Fails with full details unless the program exited with this code. The validity of a measurement is a figure.
    #[track_caller]
    pub(crate) fn expect_code(self, code: i32) -> Self {
        if self.is_invalid() {
            self.figure(self.code() == Some(code));
        }
        assert_eq!(self.output.status.code(), Some(code), "exit status\n{self}");
        self
    }

    /// Returns true if the run reports its own measurement as invalid.
    pub(crate) fn is_invalid(&self) -> bool {
        self.stdout().contains("INVALID")
    }

    /// Asserts a figure that the program measured.
    #[track_caller]
    pub(crate) fn figure(&self, holds: bool) {
        figure(self.taken, holds, || self.to_string());
    }

    /// Returns the program's exit code, if no signal ended it.
    pub(crate) fn code(&self) -> Option<i32> {
        self.output.status.code()
    }

    /// Returns the program's output on stdout.
    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    /// Returns the program's output on stderr.
    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    /// Returns the directory that the program ran in.
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

/// First of the ports that stay free on a test's own host ([`own_host`]) while nothing listens on them. A port in
/// `ip_local_port_range` may not: the kernel may assign it to a process that listens on all addresses, including this
/// host's.
pub(crate) const OWN_PORT: u16 = 16443;

/// Returns a loopback address for the caller alone. Embedded clusters use lower addresses.
pub(crate) fn own_host() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(0);
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 192 + NEXT.fetch_add(1, Ordering::Relaxed) % 64, high, low.clamp(1, 254))
}

/// Returns the text that a container wrote, taken from its log entries `TIME STREAM TAG TEXT`.
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

/// Returns the CPU time used by a process so far, in seconds (proc_pid_stat(5), with 100 ticks per second).
pub(crate) fn cpu_s(process: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("its CPU times");
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<f64>().expect("a number")).sum::<f64>() / 100.0
}

/// Runs a command until it exits, with this input on stdin.
#[track_caller]
pub(crate) fn fed(command: &mut Command, input: &str) -> Output {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = command.spawn();
    let mut child =
        started.unwrap_or_else(|e| panic!("{command:?}: {e}; scripts/test installs third-party programs"));
    child.stdin.take().expect("its stdin").write_all(input.as_bytes()).expect("the command reads its stdin");
    child.wait_with_output().expect("an exit status")
}

/// Sends a signal to a child process.
pub(crate) fn signal(child: &Child, signal: Signal) {
    signal_pid(child.id(), signal);
}

fn signal_pid(pid: u32, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(pid).expect("a pid")), signal).expect("it exists");
}

/// A process. Its start time distinguishes it from a later process with the same pid.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    pid: u32,
    parent: u32,
    started: u64,
}

impl Process {
    fn read(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name, in parentheses, may contain anything; only numbers follow it.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let is_zombie = fields.first() == Some(&"Z");
        let process =
            Self { pid, parent: fields.get(1)?.parse().ok()?, started: fields.get(19)?.parse().ok()? };
        (!is_zombie).then_some(process)
    }

    /// Returns true if the process is still running.
    pub(crate) fn is_alive(&self) -> bool {
        Self::read(self.pid).is_some_and(|now| now.started == self.started)
    }

    /// Returns true if `pid` was the process's parent when it was found.
    pub(crate) fn is_child_of(&self, pid: u32) -> bool {
        self.parent == pid
    }

    /// Returns true if the process has this pid.
    pub(crate) fn is(&self, pid: u32) -> bool {
        self.pid == pid
    }

    /// Returns true if `parent` was the process's parent when it was found.
    pub(crate) fn is_child_of_process(&self, parent: &Self) -> bool {
        self.parent == parent.pid
    }

    /// Returns true if the process runs this subcommand of a program.
    pub(crate) fn runs(&self, subcommand: &str) -> bool {
        self.arguments().get(1).is_some_and(|argument| argument == subcommand)
    }

    /// Returns the process's command-line arguments.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let arguments = std::fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        let words = arguments.strip_suffix(b"\0").unwrap_or(&arguments).split(|byte| *byte == 0);
        words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
    }

    /// Returns true if a signal has stopped the process.
    pub(crate) fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
    }

    /// Returns the CPU time that the process and its exited children have used so far, in ticks.
    pub(crate) fn ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        // utime, stime, cutime, cstime
        fields.skip(11).take(4).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
    }

    /// Returns a variable from the process's environment.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        let all = std::fs::read(format!("/proc/{}/environ", self.pid)).ok()?;
        let mut all = all.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        all.find_map(|variable| Some(variable.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
    }

    /// Returns this process and all of its descendants.
    pub(crate) fn tree(&self) -> Vec<Self> {
        process_tree(self.pid)
    }

    /// Kills the process with SIGKILL.
    pub(crate) fn kill(&self) {
        self.signal(Signal::SIGKILL);
    }

    /// Sends a signal to the process.
    pub(crate) fn signal(&self, signal: Signal) {
        signal_pid(self.pid, signal);
    }
}

/// Returns the process `pid` and all of its descendants.
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
