//! HTTP/2 and gRPC against the sample server: alone, and through a Service whose pods are terminated.

use std::collections::BTreeSet;
use std::fs;

use rolldrop_record::{Outcome, RequestRow};

use crate::harness::Rolldrop;
use crate::machine::{Meanwhile, figure, measured};
use crate::runs::{Dataplane, MeasuredRun, measure};
use crate::sample_server::Server;
use crate::web::Web;

/// Returns a scenario whose pods keep serving for a while after SIGTERM, without a sidecar.
fn scenario(path: &str) -> String {
    let web = Web::new(2).named().args(&["--on-sigterm", "drain", "--drain-for", "3s"]);
    web.scenario(
        "http2",
        &format!(
            "
  cluster: {{embedded: {{nodes: 1}}}}
  target: {{service: web, port: http, path: '{path}'}}
  load:
    http: 2
    rate: 200
    warmup: 1s
    duration: 8s
    connections: {{mode: mixed, share: 0.1, maxConcurrentStreams: 4}}
    timeout: {{connect: 10s, response: 30s}}
    retry: {{times: 1}}
  disruptions: [{{at: 2s, action: deletePod, selector: app=web, count: 1, every: 1s, repeat: 1}}]
"
        ),
    )
}

/// Returns the rows of requests that were sent. Their number is a figure, because a slow machine may not send all.
fn sent(run: &MeasuredRun) -> Vec<&RequestRow> {
    let rows: Vec<_> = run.records.requests.iter().filter(|row| row.outcome != Outcome::NotSent).collect();
    run.finished.figure(rows.len() * 2 > run.records.requests.len());
    rows
}

/// Checks that no request was lost. Requests beyond a GOAWAY's last stream were not processed, and any client may retry
/// them (RFC 9113, 6.8).
fn expect_none_lost(run: &MeasuredRun, rows: &[&RequestRow]) {
    let is_left_out = |row: &RequestRow| row.outcome == Outcome::H2Goaway && row.final_outcome == Outcome::Ok;
    let lost: Vec<_> = rows.iter().filter(|row| row.outcome != Outcome::Ok && !is_left_out(row)).collect();
    assert!(lost.is_empty(), "{lost:?}");
    let answered = rows.iter().filter(|row| row.outcome == Outcome::Ok).count();
    println!("{answered} of {} on the first attempt", rows.len());
    run.finished.figure(answered * 100 > rows.len() * 95);
}

#[test]
fn graceful_drain_drops_no_http2_request() {
    measured(|| {
        let run = measure(&scenario("/slow?ms=30"), Dataplane::Userspace, &[]);
        let rows = sent(&run);
        expect_none_lost(&run, &rows);
        assert!(rows.iter().all(|row| row.stream.is_some()), "every row used HTTP/2");
        let pods: BTreeSet<_> = rows.iter().filter_map(|row| row.pod.as_deref()).collect();
        assert!(pods.len() >= 2, "{pods:?}");
    });
}

#[test]
fn graceful_drain_drops_no_grpc_call() {
    measured(|| {
        let calls = ["--set", "load.grpc.method=shop.v1.Cart/Get"];
        // A call's path is determined by its method.
        let scenario = scenario("/");
        let run = measure(&scenario, Dataplane::Userspace, &calls);
        let rows = sent(&run);
        expect_none_lost(&run, &rows);
        assert!(rows.iter().all(|row| row.outcome != Outcome::Ok || row.grpc_status == Some(0)));
    });
}

#[test]
fn http2_and_grpc_loads_each_use_one_connection() {
    measured(all_share_one_connection);
}

fn all_share_one_connection() {
    let meanwhile = Meanwhile::begins();
    let server = Server::start("exit", &["--pod-name", "web-1"]);
    let url = format!("http://{}/", server.address);
    let load = |more: &[&str]| {
        let args = ["load", url.as_str(), "-n", "200", "--connections", "keepalive", "--record", "csv=rows"];
        let load = Rolldrop::new(args.iter().chain(more)).finish().expect_code(0);
        fs::read_to_string(load.dir().join("rows")).expect("the rows")
    };
    let plain = load(&["--http", "2"]);
    let calls = load(&["--grpc", "shop.v1.Cart/Get", "--body-hex", "0a0131"]);
    for rows in [&plain, &calls] {
        let mut lines = rows.lines();
        let columns: Vec<_> = lines.next().expect("a header").split(',').collect();
        let column = |name: &str| columns.iter().position(|column| *column == name).expect("the column");
        let cells: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
        assert_eq!(cells.len(), 200);
        let expected = if std::ptr::eq(rows, &calls) { "0" } else { "" };
        for row in &cells {
            assert_eq!((row[column("outcome")], row[column("status")]), ("ok", "200"), "{row:?}");
            assert_eq!((row[column("grpc_status")], row[column("pod")]), (expected, "web-1"), "{row:?}");
        }
        let streams: BTreeSet<_> = cells.iter().map(|row| row[column("stream")]).collect();
        // A late load has more requests at once than one connection may carry.
        figure(meanwhile.taken(), streams.len() == 200, || {
            format!("not one connection carried all of them: {} streams", streams.len())
        });
    }
}
