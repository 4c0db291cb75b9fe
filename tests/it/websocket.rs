//! `rolldrop load ws://...` against the sample server, which shuts down during the load.

use std::collections::BTreeMap;

use nix::sys::signal::Signal;
use rolldrop_record::parts::read_table;
use rolldrop_record::{Outcome, RequestRow, RunDir};

use crate::harness::Rolldrop;
use crate::sample_server::Server;

#[test]
fn websocket_echoes_until_going_away() {
    let mut server = Server::start("drain", &["--drain-for", "500ms"]);
    let url = format!("ws://{}/ws", server.address);
    let load = std::thread::spawn(move || {
        Rolldrop::new(["load", &url, "-r", "200", "-d", "3s", "-c", "20", "--body", "hello", "--out", "run"])
            .args(["--connect-timeout", "60s", "--response-timeout", "60s"])
            .finish()
    });
    server.wait_for_line("answered");
    server.signal(Signal::SIGTERM);
    assert_eq!(server.end().code(), Some(0));
    let finished = load.join().expect("the load").expect_code(0);

    let mut did: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in server.log().iter().filter(|line| line["id"].is_string()) {
        let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        did.entry(text("id")).or_default().push(text("event"));
    }
    let info = RunDir::open(&finished.dir().join("run")).and_then(|run| run.info()).expect("run.json");
    let rows = read_table::<RequestRow>(&finished.dir().join("run")).expect("rows");
    let mut outcomes: BTreeMap<Outcome, u64> = BTreeMap::new();
    for row in &rows {
        let id = info.request_id(row).to_string();
        let is_answered = did.get(&id).is_some_and(|did| *did == ["received", "answered"]);
        assert_eq!(row.outcome == Outcome::Ok, is_answered, "{row:?}\n{finished}");
        if row.outcome == Outcome::EofBeforeResponse {
            assert_eq!(row.detail.as_deref(), Some("close 1001 draining"), "{row:?}\n{finished}");
        }
        *outcomes.entry(row.outcome).or_default() += 1;
    }
    assert_eq!(rows.len(), 600, "{finished}");
    assert!(outcomes.contains_key(&Outcome::ConnectRefused), "{outcomes:?}\n{finished}");
    assert!(rows.iter().any(|row| row.conn_reused && row.outcome == Outcome::Ok), "{finished}");
}
