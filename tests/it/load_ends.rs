//! Interrupted `rolldrop load`: results are kept, and marked as partial.

use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use rolldrop_record::parts::read_table;
use rolldrop_record::{Outcome, RequestRow};
use serde_json::Value;

use crate::harness::{LIMIT, Rolldrop, again_while_invalid, signal, wait_for};
use crate::load::Server;
use crate::runs::result;

fn read(dir: &Path, name: &str) -> String {
    std::fs::read_to_string(dir.join(name)).unwrap_or_default()
}

fn rows(dir: &Path, run: &str) -> Vec<RequestRow> {
    read_table(&dir.join(run)).expect("rows")
}

#[test]
fn first_signal_keeps_partial_results() {
    for first in [Signal::SIGINT, Signal::SIGTERM] {
        let interrupted = || {
            let server = Server::start();
            let (mut child, dir) =
                Rolldrop::new(["load", &server.url("/"), "-d", "10m", "--out", "run"]).start();
            wait_for("answers", LIMIT, || (server.got().len() > 20).then_some(()));
            signal(&child, first);
            assert_eq!(child.wait().expect("an exit status").code(), Some(130), "{first}");
            let said = read(dir.path(), "stdout.log");
            (dir, said)
        };
        let (dir, said) = again_while_invalid(interrupted, |(_, said)| said.starts_with("INVALID"));
        let info = read(dir.path(), "run/run.json");
        assert!(said.starts_with("PARTIAL: interrupted after "), "{first}: {said}");
        assert!(said.contains(" of 600 s; the figures cover the requests sent until then\n\n"), "{said}");
        let info: Value = serde_json::from_str(&info).expect("run.json");
        assert_eq!((&info["interrupted"], &info["complete"]), (&true.into(), &false.into()), "{first}");
        let rows = rows(dir.path(), "run");
        assert!(rows.len() > 20 && rows.iter().all(|row| row.outcome == Outcome::Ok), "{first}: {said}");
        let total: u64 = said
            .lines()
            .nth(2)
            .and_then(|line| line.split(' ').next()?.replace(',', "").parse().ok())
            .unwrap();
        assert_eq!(total, rows.len() as u64, "every row is counted: {said}");
    }
}

/// Fills the disk during a load. The rows recorded so far are kept, and the error says how to see them.
#[test]
fn full_disk_keeps_recorded_rows() {
    let server = Server::start();
    let program = env!("CARGO_BIN_EXE_rolldrop");
    // A part is closed after 5 s. The first part, about 45 kB, fits however busy the machine is; a second one does not.
    let script = format!(
        "mount -t tmpfs -o size=96k none disk && cd disk && {program} load {} -r 400 -d 10m --quiet --out 'a run'; \
         echo status $?; cp -r 'a run' ../kept; {program} report ../kept; echo status $?",
        server.url("/")
    );
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(dir.path().join("disk")).expect("a directory");
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script])
        .current_dir(dir.path())
        .env("NO_COLOR", "1")
        .output()
        .expect("unshare from util-linux");
    let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let all = format!("{said}{told}");
    let kept = "the load was cut short (rolldrop report 'a run' shows the recorded part): ";
    assert!(told.contains(kept) && told.contains("No space left on device"), "{all}");
    assert_eq!(told.matches("No space").count(), 1, "{all}");
    assert!(!rows(dir.path(), "kept").is_empty(), "{all}");
    assert!(said.starts_with("status 2\n"), "no more than the recorded part: {all}");
    // On a busy machine, the load is invalid as well.
    assert!(said.to_lowercase().contains("partial") && said.contains(" requests were dropped"), "{all}");
    assert!(!result(&dir.path().join("kept")).complete, "{all}");
}

#[test]
fn second_signal_cancels_requests_in_flight() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("an address"));
    // This server reads, but never responds.
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || stream.read_to_end(&mut Vec::new()));
        }
    });
    let (mut child, dir) =
        Rolldrop::new(["load", &url, "-r", "50", "-d", "10m", "--response-timeout", "10m"])
            .args(["-c", "10000", "--out", "run"])
            .start();
    // The first line about the state of the load appears after 10 s.
    wait_for("requests that were sent", LIMIT, || {
        read(dir.path(), "stderr.log").contains(" requests, ").then_some(())
    });
    signal(&child, Signal::SIGINT);
    wait_for("a reaction to the first signal", LIMIT, || {
        read(dir.path(), "stderr.log").contains("waiting for requests in flight").then_some(())
    });
    assert!(child.try_wait().expect("its state").is_none(), "it waits for requests in flight");
    signal(&child, Signal::SIGINT);
    assert_eq!(child.wait().expect("an exit status").code(), Some(130));
    let rows = rows(dir.path(), "run");
    assert!(!rows.is_empty() && rows.iter().all(|row| row.outcome == Outcome::Cancelled));
    assert!(read(dir.path(), "stdout.log").starts_with("PARTIAL: "));
}
