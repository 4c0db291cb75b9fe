//! What signals do to the sample server, seen by a client and by its exit status.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::harness::{Rolldrop, wait_for};
use crate::runs::json_lines;

const LIMIT: Duration = Duration::from_secs(20);

struct Server {
    child: Child,
    dir: tempfile::TempDir,
    address: String,
}

impl Server {
    fn start(habit: &str) -> Self {
        let args = ["workload", "--listen", "127.0.0.1:0", "--on-sigterm", habit, "--log", "log.jsonl"];
        let (child, dir) = Rolldrop::new(args).start();
        let log = dir.path().join("log.jsonl");
        let address = wait_for("a listening server", LIMIT, || {
            let lines = if log.exists() { json_lines(&log) } else { Vec::new() };
            lines.iter().find_map(|line| line["address"].as_str().map(str::to_owned))
        });
        Self { child, dir, address }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"));
        kill(pid, signal).expect("a signal");
    }

    /// Sends a request and leaves the answer to be read.
    fn ask(&self, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).expect("a connection");
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nrolldrop-id: t-1\r\nconnection: close\r\n\r\n")
            .expect("sent");
        stream
    }

    fn wait_for_line(&self, what: &str) {
        wait_for(what, LIMIT, || self.said(what).then_some(()));
    }

    fn said(&self, what: &str) -> bool {
        let lines = json_lines(&self.dir.path().join("log.jsonl"));
        lines.iter().any(|line| line["event"] == what || line["name"] == what)
    }

    fn end(&mut self) -> ExitStatus {
        self.child.wait().expect("its end")
    }
}

/// What comes of an answer.
fn read(mut stream: TcpStream) -> String {
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    text
}

#[test]
fn c04_sigterm_lets_the_server_finish_and_sigkill_does_not() {
    let mut server = Server::start("finish");
    let answer = server.ask("/slow?ms=500");
    server.wait_for_line("received");
    server.signal(Signal::SIGTERM);
    assert!(read(answer).starts_with("HTTP/1.1 200"));
    assert_eq!(server.end().code(), Some(0));
    assert!(server.said("SIGTERM") && server.said("answered") && server.said("exiting"));

    let mut server = Server::start("finish");
    let answer = server.ask("/slow?ms=500");
    server.wait_for_line("received");
    server.signal(Signal::SIGKILL);
    assert_eq!(read(answer), "");
    assert_eq!(server.end().signal(), Some(9));
    assert!(!server.said("SIGKILL") && !server.said("answered") && !server.said("exiting"));
}

#[test]
fn c04_hangup_interrupt_quit_and_stop_mean_other_things() {
    let mut server = Server::start("exit");
    server.signal(Signal::SIGHUP);
    server.wait_for_line("SIGHUP");
    assert!(read(server.ask("/")).starts_with("HTTP/1.1 200"), "it serves on");

    // Stopped, the kernel still takes connections for it; it answers when it goes on.
    server.signal(Signal::SIGSTOP);
    let mut answer = server.ask("/");
    answer.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
    assert!(answer.read(&mut [0; 1]).is_err(), "no answer while stopped");
    server.signal(Signal::SIGCONT);
    answer.set_read_timeout(Some(LIMIT)).expect("a timeout");
    assert!(read(answer).starts_with("HTTP/1.1 200"));

    server.signal(Signal::SIGINT);
    assert_eq!(server.end().code(), Some(0));
    assert!(server.said("SIGINT") && server.said("exiting"));

    let mut server = Server::start("exit");
    server.signal(Signal::SIGQUIT);
    assert_eq!(server.end().code(), Some(0));
    assert!(server.said("SIGQUIT") && server.said("exiting"));
}
