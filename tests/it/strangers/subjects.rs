//! The proxies under attack: ours, nginx and HAProxy, each with a single relaying process.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::memory::Cgroup;
use crate::harness::LIMIT;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Rolldrop,
    Nginx,
    Haproxy,
}

impl Kind {
    pub(super) const ALL: [Kind; 3] = [Kind::Rolldrop, Kind::Nginx, Kind::Haproxy];

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Rolldrop => "rolldrop",
            Kind::Nginx => "nginx",
            Kind::Haproxy => "HAProxy",
        }
    }
}

/// A proxy in a cgroup.
pub(super) struct Subject {
    child: Child,
    pids: Vec<u32>,
    pub(super) http1: SocketAddr,
    pub(super) http2: SocketAddr,
    _dir: TempDir,
}

impl Subject {
    /// Starts a proxy in front of an app.
    pub(super) async fn start(kind: Kind, upstream: SocketAddr, cgroup: &Cgroup) -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let (program, args) = match kind {
            Kind::Rolldrop => {
                let binary = std::env::var_os("HOSTILE_ROLLDROP");
                let binary = binary.map_or(PathBuf::from(env!("CARGO_BIN_EXE_rolldrop")), PathBuf::from);
                let upstream = upstream.to_string();
                let args = ["proxy", "--pod", "hostile", "--open-admin", "--upstream", &upstream];
                let args = args.into_iter().chain(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
                (binary, args.map(str::to_owned).collect::<Vec<_>>())
            }
            Kind::Nginx | Kind::Haproxy => {
                let [http1, http2] = free_ports()?;
                let conf = dir.path().join("conf");
                let (name, text, option) = match kind {
                    Kind::Nginx => ("nginx", nginx(upstream, http1, http2, dir.path()), "-c"),
                    _ => ("haproxy", haproxy(upstream, http1, http2), "-f"),
                };
                std::fs::write(&conf, text).map_err(|error| error.to_string())?;
                let args = vec![option.to_owned(), conf.display().to_string()];
                let mut command = cgroup.command(Path::new(name));
                command.args(args).stdout(Stdio::null()).stderr(Stdio::null());
                let child = command.spawn().map_err(|error| error.to_string())?;
                let mut subject = Self { child, pids: Vec::new(), http1, http2, _dir: dir };
                subject.listens(cgroup).map_err(|why| format!("{name} {why}"))?;
                return Ok(subject);
            }
        };
        let mut command = cgroup.command(&program);
        let mut child = command
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut said = BufReader::new(child.stderr.take().ok_or("no stderr")?);
        let mut line = String::new();
        said.read_line(&mut line).map_err(|error| error.to_string())?;
        // Later output must not block the proxy.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        let data = line.split_once("proxy on ").and_then(|(_, said)| said.split_once(','));
        let data = data.and_then(|(data, _)| data.parse().ok()).ok_or(format!("it says {line:?}"))?;
        let mut subject = Self { child, pids: Vec::new(), http1: data, http2: data, _dir: dir };
        subject.listens(cgroup)?;
        Ok(subject)
    }

    /// Waits until the proxy accepts connections, and stores its pids.
    fn listens(&mut self, cgroup: &Cgroup) -> Result<(), String> {
        let begun = Instant::now();
        while std::net::TcpStream::connect(self.http1).is_err() {
            if begun.elapsed() > LIMIT || self.child.try_wait().is_ok_and(|ended| ended.is_some()) {
                return Err("does not start".to_owned());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.pids = cgroup.pids();
        // The proxy has dropped the test connection by the time anything is counted.
        std::thread::sleep(Duration::from_millis(500));
        Ok(())
    }

    /// Returns the number of file descriptors in all processes of the proxy.
    pub(super) fn descriptors(&self) -> usize {
        let of = |pid: &u32| std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        self.pids.iter().map(of).sum()
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        // nginx's worker exits with its master on SIGTERM.
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"));
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(10) {
            if self.child.try_wait().is_ok_and(|ended| ended.is_some()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_ports() -> Result<[SocketAddr; 2], String> {
    let held = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0"));
    let [a, b] = held.map(|held| held.and_then(|held| held.local_addr()));
    Ok([a.map_err(|error| error.to_string())?, b.map_err(|error| error.to_string())?])
}

fn nginx(upstream: SocketAddr, http1: SocketAddr, http2: SocketAddr, dir: &Path) -> String {
    let (dir, connections) = (dir.display(), super::files());
    format!(
        "daemon off; user root; worker_processes 1; pid {dir}/pid; error_log /dev/null;\n\
         events {{ worker_connections {connections}; }}\n\
         http {{ access_log off; client_body_temp_path {dir}/b; proxy_temp_path {dir}/p; fastcgi_temp_path {dir}/f;\n\
         uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;\n\
         server {{ listen {http1} backlog=4096; listen {http2} http2; location / {{ proxy_pass http://{upstream}; }} }} }}\n"
    )
}

fn haproxy(upstream: SocketAddr, http1: SocketAddr, http2: SocketAddr) -> String {
    // The proxy needs two files per connection, and some for itself.
    let connections = super::files() / 2 - 100;
    format!(
        "global\n maxconn {connections}\n nbthread 1\n\
         defaults\n mode http\n timeout connect 60s\n timeout client 60s\n timeout server 60s\n timeout http-request 60s\n\
         frontend f\n bind {http1} backlog 4096\n bind {http2} proto h2\n default_backend b\n\
         backend b\n server s {upstream}\n"
    )
}
