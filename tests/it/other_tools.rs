//! Output of a load for other programs, read by those programs or according to their rules.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::Rolldrop;
use crate::load::Server;

/// Runs a Python program with this argument, in the environment that `scripts/test` creates, and parses the JSON that
/// the program prints.
fn python(program: &str, dir: &Path) -> Value {
    let python = concat!(env!("CARGO_MANIFEST_DIR"), "/target/test-venv/bin/python");
    let output = Command::new(python)
        .args(["-c", program])
        .current_dir(dir)
        .output()
        .unwrap_or_else(|e| panic!("{python}: {e}; scripts/test installs it"));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// The Python port of HdrHistogram reads the interval log, and DuckDB the tables. The percentile table is parsed as
/// the plotter parses it: lines of numbers in four columns, with no number in the last column at 100 %.
const HISTOGRAMS_AND_TABLES: &str = r##"
import collections, json, re, duckdb
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader

answered = HdrHistogram(1, 3600 * 10**9, 3)
reader = HistogramLogReader("run/latency.hlog", answered)
tags = collections.Counter()
while (interval := reader.get_next_interval_histogram()) is not None:
    tags[interval.get_tag()] += interval.get_total_count()
    if interval.get_tag() == "ok":
        answered.add(interval)

rows = [line.split() for line in open("latency.hgrm") if re.match(r"\s*\d", line)]
assert all(len(row) == 4 for row in rows[:-1]) and len(rows[-1]) == 3, rows
median = next(float(row[0]) for row in rows if float(row[1]) >= 0.5)

table = duckdb.sql("select outcome, count(*) from 'run/requests/*.parquet' group by all").fetchall()
print(json.dumps({
    "tags": tags, "p50": answered.get_value_at_percentile(50) / 1e6, "max": answered.get_max_value() / 1e6,
    "hgrm_p50": median, "hgrm_n": int(rows[-1][2]), "table": dict(table),
}))
"##;

#[test]
fn python_tools_read_histograms_and_tables() {
    let server = Server::start();
    let finished = Rolldrop::new(["load", &server.url("/"), &server.url("/lost"), "-r", "100", "-n", "120"])
        .args(["--out", "run", "--hgrm", "latency.hgrm", "--format", "json", "--response-timeout", "60s"])
        .finish()
        .expect_code(0);
    let result: Value = serde_json::from_str(&finished.stdout()).expect("JSON");
    let read = python(HISTOGRAMS_AND_TABLES, finished.dir());
    let outcomes = json!({"ok": 60, "eof_before_response": 60});
    assert_eq!((&read["tags"], &read["table"]), (&outcomes, &outcomes), "{finished}");
    assert_eq!(read["hgrm_n"], 60, "{read}");
    // Equal to three digits.
    let close = |a: &Value, b: &Value| {
        let (a, b) = (a.as_f64().expect("a number"), b.as_f64().expect("a number"));
        assert!((a - b).abs() <= 0.002 * b, "{a} is not {b}: {read} {finished}");
    };
    let response = &result["latency_ms"]["response"];
    close(&read["p50"], &response["p50"]);
    close(&read["max"], &response["max"]);
    close(&read["hgrm_p50"], &response["p50"]);
}

/// vegeta's decoders (lib/results.go) in Python. CSV: twelve fields, numbers where it parses numbers, a base64 body,
/// base64 headers or nothing. JSON: one object per line, these names, an RFC 3339 time, and null for absent values.
const VEGETA: &str = r##"
import base64, csv, datetime, json, re

def second(ns):
    return ns // 10**9

from_csv = []
for record in csv.reader(open("hits.csv", newline="")):
    assert len(record) == 12, record
    ns, code, latency, out, into, seq = (int(record[i]) for i in (0, 1, 2, 3, 4, 8))
    assert 0 <= code < 65536 and latency >= 0 and out >= 0 and into >= 0
    assert base64.b64decode(record[6]) == b"" and record[11] == ""
    from_csv.append([second(ns), code, latency, out, into, record[5], record[7], seq, record[9], record[10]])

from_json = []
for line in open("hits.json"):
    hit = json.loads(line)
    assert set(hit) == {"attack", "seq", "code", "timestamp", "latency", "bytes_out", "bytes_in", "error",
                        "body", "method", "url", "headers"}, hit
    assert hit["body"] is None and hit["headers"] is None
    whole = re.fullmatch(r"(.*T\d\d:\d\d:\d\d)(\.\d{1,9})?Z", hit["timestamp"]).group(1)
    at = int(datetime.datetime.fromisoformat(whole + "+00:00").timestamp())
    from_json.append([at] + [hit[name] for name in ("code", "latency", "bytes_out", "bytes_in", "error", "attack",
                                                    "seq", "method", "url")])
print(json.dumps({"same": from_csv == from_json, "hits": sorted(from_csv, key=lambda hit: hit[7])}))
"##;

#[test]
fn vegeta_records_follow_its_decoder_rules() {
    let server = Server::start();
    let (ok, lost) = (server.url("/a,b?c=%22d%22"), server.url("/lost"));
    let finished = Rolldrop::new(["load", &ok, &lost, "-r", "100", "-n", "40", "--warmup", "100ms"])
        .args(["--record", "vegeta-csv=hits.csv", "--record", "vegeta-json=hits.json"])
        .args(["--response-timeout", "60s"])
        .finish()
        .expect_code(0);
    let read = python(VEGETA, finished.dir());
    assert_eq!(read["same"], true, "{read}");
    let hits = read["hits"].as_array().expect("hits");
    assert_eq!(hits.len(), 40, "without the warm-up: {read}");
    for (i, hit) in hits.iter().enumerate() {
        let (url, code, error) = if i % 2 == 0 { (&ok, 200, "") } else { (&lost, 0, "eof_before_response") };
        let expected = json!([code, error, "load-0", i + 10, "GET", url]);
        assert_eq!(json!([hit[1], hit[5], hit[6], hit[7], hit[8], hit[9]]), expected, "{finished}");
    }
}
