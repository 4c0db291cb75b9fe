//! `rolldrop load --stream` against the sample server, whose log says what it did with each stream.

use std::collections::{BTreeMap, BTreeSet};

use rolldrop_record::parts::read_table;
use rolldrop_record::{Outcome, RequestId, RequestRow, RunDir, StreamRow};

use crate::harness::{LIMIT, Rolldrop, wait_for};
use crate::sample_server::Server;

/// Every way in which a server can end a stream.
const FAULTS: [&str; 6] =
    ["cut-fin:15%", "cut-rst:15%", "unfinished:15%", "abort:15%", "error-event:15%", "stall:10%"];
const STREAMS: usize = 120;

/// Sends streams to a server with faults. Checks that each stream has the outcome that matches its end in the
/// server's log, and as many events as the server sent.
fn outcomes_match_log(path: &str, kind: &[&str], outcome_of: impl Fn(&str) -> Outcome) {
    let mut faults: Vec<&str> = FAULTS.iter().flat_map(|fault| ["--stream-fault", fault]).collect();
    faults.extend([
        "--stream-length",
        "lognormal:300ms,0.6",
        "--stream-gap",
        "exp:20ms",
        "--pod-name",
        "web-1",
    ]);
    let server = Server::start("exit", &faults);
    let url = format!("http://{}{path}", server.address);
    let load = Rolldrop::new(["load", &url, "--stream"]).args(kind).args(["-r", "60", "-d", "2s"]);
    let finished = load.args(["--out", "run", "--stall-timeout", "2s"]).finish().expect_code(0);

    let run = finished.dir().join("run");
    let info = RunDir::open(&run).expect("a run").info().expect("run.json");
    let rows: Vec<RequestRow> = read_table(&run).expect("rows");
    let streams: Vec<StreamRow> = read_table(&run).expect("rows of streams");
    let streams: BTreeMap<u64, &StreamRow> = streams.iter().map(|stream| (stream.seq, stream)).collect();
    let sent: Vec<&RequestRow> = rows.iter().filter(|row| row.sent.is_some()).collect();
    let ends = wait_for("the ends of all streams in the log", LIMIT, || {
        let ends = server.log().into_iter().filter(|line| line["event"] == "stream_ended");
        let ends: BTreeMap<String, _> =
            ends.map(|line| (line["id"].as_str().expect("an id").to_owned(), line)).collect();
        (ends.len() == sent.len()).then_some(ends)
    });
    assert_eq!(rows.len(), STREAMS, "{finished}");
    for row in sent {
        let told = &ends[&RequestId::new(&info.run, &row.source, row.seq).to_string()];
        let end = told["end"].as_str().expect("the end of a stream");
        assert_eq!(row.outcome, outcome_of(end), "{told}\n{row:?}");
        assert_eq!(streams[&row.seq].events, told["events"], "{told}\n{:?}", streams[&row.seq]);
        assert_eq!(row.pod.as_deref(), Some("web-1"), "{row:?}");
    }
    let met: BTreeSet<&str> = ends.values().filter_map(|told| told["end"].as_str()).collect();
    let all = ["aborted", "complete", "cut_fin", "cut_rst", "error_event", "stalled", "unfinished"];
    assert_eq!(met, BTreeSet::from(all));
}

#[test]
fn openai_streams_match_server_log() {
    outcomes_match_log("/v1/chat/completions", &["openai"], |end| match end {
        "complete" => Outcome::Ok,
        "cut_fin" | "cut_rst" => Outcome::StreamCut,
        "unfinished" => Outcome::StreamUnfinished,
        "aborted" | "error_event" => Outcome::StreamAborted,
        "stalled" => Outcome::StreamStalled,
        end => panic!("{end}"),
    });
}

/// Without a known last event, a proper end of the response completes a stream of events.
#[test]
fn event_streams_match_server_log() {
    outcomes_match_log("/events", &["sse"], |end| match end {
        "complete" | "unfinished" | "aborted" => Outcome::Ok,
        "cut_fin" | "cut_rst" => Outcome::StreamCut,
        "error_event" => Outcome::StreamAborted,
        "stalled" => Outcome::StreamStalled,
        end => panic!("{end}"),
    });
}

#[test]
fn stream_end_pattern_detects_unfinished_streams() {
    outcomes_match_log("/events", &["sse", "--stream-end", r"^\[DONE\]$"], |end| match end {
        "complete" | "aborted" => Outcome::Ok,
        "cut_fin" | "cut_rst" => Outcome::StreamCut,
        "unfinished" => Outcome::StreamUnfinished,
        "error_event" => Outcome::StreamAborted,
        "stalled" => Outcome::StreamStalled,
        end => panic!("{end}"),
    });
}
