//! `rolldrop workload` as a separate process, with its log.

use std::io::Write;
use std::net::TcpStream;
use std::process::{Child, ExitStatus};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::{self, LIMIT, Rolldrop, wait_for};
use crate::runs::json_lines;

/// A sample server.
pub(crate) struct Server {
    child: Child,
    dir: tempfile::TempDir,
    /// Address that the server listens on.
    pub(crate) address: String,
}

impl Server {
    /// Starts a server with this reaction to SIGTERM.
    pub(crate) fn start(habit: &str, further: &[&str]) -> Self {
        let args = ["workload", "--listen", "127.0.0.1:0", "--on-sigterm", habit, "--log", "log.jsonl"];
        let (child, dir) = Rolldrop::new(args).args(further).start();
        let log = dir.path().join("log.jsonl");
        let address = wait_for("a listening server", LIMIT, || {
            let lines = if log.exists() { json_lines(&log) } else { Vec::new() };
            lines.iter().find_map(|line| line["address"].as_str().map(str::to_owned))
        });
        Self { child, dir, address }
    }

    /// Sends a signal to the server.
    pub(crate) fn signal(&self, signal: Signal) {
        harness::signal(&self.child, signal);
    }

    /// Stops the server, and waits until all its threads have stopped, because each has to notice the signal.
    pub(crate) fn stop(&self) {
        self.signal(Signal::SIGSTOP);
        let threads = format!("/proc/{}/task", self.child.id());
        let stands = |thread: std::fs::DirEntry| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).expect("its state");
            stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
        };
        wait_for("all its threads to stop", LIMIT, || {
            std::fs::read_dir(&threads).expect("its threads").flatten().all(stands).then_some(())
        });
    }

    /// Sends a request, and returns the stream with the response unread.
    pub(crate) fn ask(&self, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).expect("a connection");
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nrolldrop-id: t-1\r\nconnection: close\r\n\r\n")
            .expect("sent");
        stream
    }

    /// Returns the server's log so far.
    pub(crate) fn log(&self) -> Vec<Value> {
        json_lines(&self.dir.path().join("log.jsonl"))
    }

    /// Returns true if the server's log contains this event or signal.
    pub(crate) fn said(&self, what: &str) -> bool {
        self.log().iter().any(|line| line["event"] == what || line["name"] == what)
    }

    /// Waits until the server's log contains this event or signal.
    pub(crate) fn wait_for_line(&self, what: &str) {
        wait_for(what, LIMIT, || self.said(what).then_some(()));
    }

    /// Waits until the server exits.
    pub(crate) fn end(&mut self) -> ExitStatus {
        self.child.wait().expect("its exit status")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
