//! A memory cgroup (version 1 or 2) for one process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Memory limit of a sidecar.
pub(super) const LIMIT_BYTES: u64 = 256 * 1024 * 1024;

/// A cgroup. It is removed when this value is dropped, once its process has exited.
pub(super) struct Cgroup {
    dir: PathBuf,
    is_v2: bool,
}

/// Memory in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Memory {
    /// Memory of the process itself.
    pub(super) anonymous: u64,
    /// Memory without the page cache, including kernel and socket memory.
    pub(super) all: u64,
    /// Memory of sockets.
    pub(super) sockets: u64,
}

impl Memory {
    /// Returns the larger value of each kind.
    pub(super) fn max(self, other: Self) -> Self {
        Self {
            anonymous: self.anonymous.max(other.anonymous),
            all: self.all.max(other.all),
            sockets: self.sockets.max(other.sockets),
        }
    }
}

impl Cgroup {
    /// Creates a cgroup with a sidecar's limit; the error is the reason why none can be made.
    pub(super) fn new() -> Result<Self, String> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("rolldrop-strangers-{}-{number}", std::process::id());
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let is_v2 = !v1.join("memory.usage_in_bytes").exists();
        let parent = if is_v2 { Path::new("/sys/fs/cgroup") } else { v1 };
        if is_v2 {
            // Fails if the controller is already enabled.
            let _ = fs::write(parent.join("cgroup.subtree_control"), "+memory");
        }
        let cgroup = Self { dir: parent.join(name), is_v2 };
        let made = || {
            fs::create_dir(&cgroup.dir)?;
            let limit = if is_v2 { "memory.max" } else { "memory.limit_in_bytes" };
            fs::write(cgroup.dir.join(limit), LIMIT_BYTES.to_string())?;
            if is_v2 {
                // Without swap, there is nothing to forbid.
                let _ = fs::write(cgroup.dir.join("memory.swap.max"), "0");
                return Ok(());
            }
            // In version 1, socket memory has its own account, which starts once a limit is set.
            fs::write(cgroup.dir.join("memory.kmem.tcp.limit_in_bytes"), (4 * LIMIT_BYTES).to_string())
        };
        made().map_err(|error: std::io::Error| format!("{}: {error}", cgroup.dir.display()))?;
        Ok(cgroup)
    }

    /// Returns a command that runs a program in this cgroup.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
            .arg(self.dir.join("cgroup.procs"))
            .arg(program);
        command
    }

    /// Returns the cgroup's memory now.
    pub(super) fn memory(&self) -> Memory {
        let number = |file: &str| self.read(file).trim().parse::<u64>().unwrap_or_default();
        let stat = self.read("memory.stat");
        let stat = |name: &str| {
            let value = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            value.and_then(|value| value.parse::<u64>().ok()).unwrap_or_default()
        };
        if self.is_v2 {
            let all = number("memory.current").saturating_sub(stat("file"));
            return Memory { anonymous: stat("anon"), all, sockets: stat("sock") };
        }
        let sockets = number("memory.kmem.tcp.usage_in_bytes");
        let all = number("memory.usage_in_bytes").saturating_sub(stat("cache")) + sockets;
        Memory { anonymous: stat("rss"), all, sockets }
    }

    /// Returns how often the kernel killed a process because of the limit.
    pub(super) fn kills(&self) -> u64 {
        let events = self.read(if self.is_v2 { "memory.events" } else { "memory.oom_control" });
        let kills = events.lines().find_map(|line| line.strip_prefix("oom_kill "));
        kills.and_then(|kills| kills.trim().parse().ok()).unwrap_or_default()
    }

    /// Returns the pids in the cgroup.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.read("cgroup.procs").lines().filter_map(|pid| pid.parse().ok()).collect()
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.dir.join(file)).unwrap_or_default()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for _ in 0..100 {
            if fs::remove_dir(&self.dir).is_ok() || !self.dir.exists() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}
