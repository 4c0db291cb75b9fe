//! Effects of signals on the sample server, as seen by a client and in the exit status.

use std::io::Read;
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::harness::LIMIT;
use crate::sample_server::Server;

/// Reads a response to its end, and returns whatever arrived.
fn read(mut stream: TcpStream) -> String {
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    text
}

#[test]
fn c04_only_sigterm_allows_finishing() {
    let mut server = Server::start("finish", &[]);
    let answer = server.ask("/slow?ms=500");
    server.wait_for_line("received");
    server.signal(Signal::SIGTERM);
    assert!(read(answer).starts_with("HTTP/1.1 200"));
    assert_eq!(server.end().code(), Some(0));
    assert!(server.said("SIGTERM") && server.said("answered") && server.said("exiting"));

    let mut server = Server::start("finish", &[]);
    let answer = server.ask("/slow?ms=600000");
    server.wait_for_line("received");
    server.signal(Signal::SIGKILL);
    assert_eq!(read(answer), "");
    assert_eq!(server.end().signal(), Some(9));
    assert!(!server.said("SIGKILL") && !server.said("answered") && !server.said("exiting"));
}

#[test]
fn c04_other_signals_act_differently() {
    let mut server = Server::start("exit", &[]);
    server.signal(Signal::SIGHUP);
    server.wait_for_line("SIGHUP");
    assert!(read(server.ask("/")).starts_with("HTTP/1.1 200"), "it keeps serving");

    // While the server is stopped, the kernel still accepts connections for it. The server responds once it continues.
    server.stop();
    let mut answer = server.ask("/");
    answer.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
    assert!(answer.read(&mut [0; 1]).is_err(), "no answer while stopped");
    server.signal(Signal::SIGCONT);
    answer.set_read_timeout(Some(LIMIT)).expect("a timeout");
    assert!(read(answer).starts_with("HTTP/1.1 200"));

    server.signal(Signal::SIGINT);
    assert_eq!(server.end().code(), Some(0));
    assert!(server.said("SIGINT") && server.said("exiting"));

    let mut server = Server::start("exit", &[]);
    server.signal(Signal::SIGQUIT);
    assert_eq!(server.end().code(), Some(0));
    assert!(server.said("SIGQUIT") && server.said("exiting"));
}

#[test]
fn sigterm_cuts_streams_as_logged() {
    let mut server =
        Server::start("finish", &["--streams-on-sigterm", "cut-after:10ms", "--stream-gap", "5ms"]);
    let stream = server.ask("/v1/chat/completions?length=600s");
    // Events arrive before the signal.
    stream.peek(&mut [0; 1]).expect("the first byte");
    server.signal(Signal::SIGTERM);
    let answer = read(stream);
    assert!(answer.starts_with("HTTP/1.1 200") && !answer.ends_with("\r\n0\r\n\r\n"), "{answer}");
    assert_eq!(server.end().code(), Some(0));
    let log = server.log();
    let entry = log.iter().find(|line| line["event"] == "stream_ended").expect("the stream's end");
    assert_eq!(entry["end"], "cut_at_sigterm");
    assert_eq!(entry["after_stop_signal"], true);
    assert_eq!(entry["last_event"], answer.matches("\"content\"").count());
    let times = ["accepted_ns", "started_ns", "ended_ns"].map(|name| entry[name].as_i64().expect("a time"));
    assert!(times.is_sorted(), "{times:?}");
    assert_eq!(log.last().expect("a line")["event"], "exiting");
}
