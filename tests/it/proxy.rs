//! The recording proxy as a process: its memory cost if one side does not read.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::harness::{LIMIT, Rolldrop, wait_for};

/// Number of connections on which one side does not read.
const SLOW: usize = 16;
/// Maximum memory that they may cost the proxy, in MiB: a buffer for each, plus some for the allocator.
const MOST_MIB: u64 = 8;

/// A proxy in front of an app.
struct Proxy {
    child: Child,
    _dir: TempDir,
    data: SocketAddr,
}

impl Proxy {
    fn start(upstream: SocketAddr, mode: &str) -> Self {
        let (child, dir) = Rolldrop::new(Self::args(&upstream.to_string())).args(["--mode", mode]).start();
        Self::started(child, dir)
    }

    /// Starts the proxy from a shell that first runs this command.
    fn start_under(said: &str, upstream: &str, mode: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let log = std::fs::File::create(dir.path().join("stderr.log")).expect("a file");
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{said} && exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_rolldrop")]);
        let child = shell.args(Self::args(upstream)).args(["--mode", mode]).stderr(log).spawn();
        Self::started(child.expect("the binary starts"), dir)
    }

    fn args(upstream: &str) -> [&str; 9] {
        let listen = "127.0.0.1:0";
        ["proxy", "--listen", listen, "--admin", listen, "--upstream", upstream, "--pod", "web-1"]
    }

    fn started(child: Child, dir: TempDir) -> Self {
        let log = dir.path().join("stderr.log");
        let data = wait_for("a proxy", LIMIT, || {
            let said = std::fs::read_to_string(&log).ok()?;
            said.split_once("proxy on ")?.1.split_once(',')?.0.parse().ok()
        });
        Self { child, _dir: dir, data }
    }

    fn resident_mib(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("its status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") / 1024
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Bytes that both sides exchange before one of them sends endlessly.
#[derive(Clone, Copy)]
struct Conversation {
    mode: &'static str,
    ask: &'static [u8],
    answer: &'static [u8],
    /// Returns the piece that is sent repeatedly.
    piece: fn() -> Vec<u8>,
}

/// HTTP/2's preface, SETTINGS, and a HEADERS frame that begins stream 1.
const H2_ASK: &[u8] =
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x04\x01\x04\0\0\0\x01\x83\x86\x84\x81";
/// SETTINGS, and a HEADERS frame with status 200.
const H2_ANSWER: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\x01\x01\x04\0\0\0\x01\x88";

fn plain() -> Vec<u8> {
    vec![b'x'; 64 * 1024]
}

/// Returns a DATA frame on stream 1.
fn frame() -> Vec<u8> {
    [&[0, 0x40, 0, 0, 0, 0, 0, 0, 1][..], &[b'x'; 0x4000]].concat()
}

fn chunk() -> Vec<u8> {
    [&b"4000;q\r\n"[..], &[b'x'; 0x4000], b"\r\n"].concat()
}

#[rustfmt::skip]
const CONVERSATIONS: [Conversation; 4] = [
    Conversation { mode: "http", ask: b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", answer: b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", piece: plain },
    Conversation { mode: "http", ask: b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", answer: b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", piece: chunk },
    Conversation { mode: "http", ask: H2_ASK, answer: H2_ANSWER, piece: frame },
    Conversation { mode: "tcp", ask: b"ask", answer: b"answer", piece: plain },
];

/// Sends endlessly, and counts the bytes sent.
fn flood(mut stream: TcpStream, piece: &[u8], sent: &AtomicU64, is_over: &AtomicBool) {
    stream.set_write_timeout(Some(Duration::from_millis(100))).expect("a timeout");
    let mut at = 0;
    while !is_over.load(Ordering::Relaxed) {
        match stream.write(&piece[at..]) {
            Ok(written) => {
                sent.fetch_add(written as u64, Ordering::Relaxed);
                at = (at + written) % piece.len();
            }
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}")
            }
        }
    }
}

fn say(stream: &mut TcpStream, what: &[u8], to: &mut TcpStream) {
    stream.write_all(what).expect("sent");
    to.set_read_timeout(Some(LIMIT)).expect("a timeout");
    // The response also carries the pod header.
    to.read_exact(&mut vec![0; what.len()]).expect("it arrives");
}

#[test]
fn slow_reader_blocks_sender_with_bounded_memory() {
    for conversation in CONVERSATIONS {
        let app = TcpListener::bind("127.0.0.1:0").expect("a port");
        let proxy = Proxy::start(app.local_addr().expect("an address"), conversation.mode);
        for client_sends in [true, false] {
            let (sent, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
            let (mut floods, mut unread) = (Vec::new(), Vec::new());
            let before = proxy.resident_mib();
            for _ in 0..SLOW {
                let mut client = TcpStream::connect(proxy.data).expect("the proxy");
                let (mut server, _) = app.accept().expect("its connection");
                say(&mut client, conversation.ask, &mut server);
                say(&mut server, conversation.answer, &mut client);
                let (sender, reader) = if client_sends { (client, server) } else { (server, client) };
                unread.push(reader);
                let (sent, is_over) = (sent.clone(), is_over.clone());
                floods.push(thread::spawn(move || flood(sender, &(conversation.piece)(), &sent, &is_over)));
            }
            // The senders stall once the system's own buffers on either side of the proxy are full.
            let mut last = 0;
            wait_for("blocked senders", LIMIT, || {
                thread::sleep(Duration::from_millis(500));
                let now = sent.load(Ordering::Relaxed);
                (now > 0 && std::mem::replace(&mut last, now) == now).then_some(())
            });
            let grown = proxy.resident_mib().saturating_sub(before);
            let told =
                format!("{} MiB sent, {grown} MiB more memory, client sends: {client_sends}", last >> 20);
            assert!(grown <= MOST_MIB, "{told}");
            is_over.store(true, Ordering::Relaxed);
            floods.into_iter().for_each(|flood| flood.join().expect("no failure"));
        }
    }
}

#[test]
fn proxy_raises_file_limit_and_queues_clients() {
    let app = TcpListener::bind("127.0.0.1:0").expect("a port");
    let upstream = app.local_addr().expect("an address").to_string();
    let proxy = Proxy::start_under("ulimit -Sn 100 && ulimit -Hn 224", &upstream, "http");
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", proxy.child.id())).expect("its limits");
    let files = limits.lines().find(|line| line.starts_with("Max open files")).expect("a line");
    assert_eq!(files.split_whitespace().nth(3), Some("224"), "{files}");
    thread::spawn(move || {
        while let Ok((mut server, _)) = app.accept() {
            thread::spawn(move || {
                let _ = server.read(&mut [0; 1024]);
                let _ = server.write_all(b"HTTP/1.1 204 None\r\n\r\n");
                let _ = server.read(&mut [0; 1024]);
            });
        }
    });
    let mut clients: Vec<TcpStream> =
        (0..150).map(|_| TcpStream::connect(proxy.data).expect("the proxy")).collect();
    for client in &mut clients {
        client.set_read_timeout(Some(LIMIT)).expect("a timeout");
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
    }
    // Each client that has received its response makes room for another.
    for mut client in clients {
        let mut status = [0; 12];
        client.read_exact(&mut status).expect("a response");
        assert_eq!(&status, b"HTTP/1.1 204");
    }
}
