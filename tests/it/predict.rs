//! `rolldrop predict` on a load of streams, against the lengths in the sample servers' logs.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness::{Finished, Rolldrop, tracked};
use crate::load::json;
use crate::runs::seconds;
use crate::sample_server::Server;

/// A load of streams to two pods, half of which last longer than a second.
struct StreamLoad {
    finished: Finished,
    /// Times at which the servers began and ended each stream, in Unix seconds.
    spans: Vec<(f64, f64)>,
}

impl StreamLoad {
    fn send() -> Self {
        let laws = ["--stream-length", "list:200ms,1400ms", "--stream-gap", "fixed:50ms", "--pod-name"];
        let servers = ["web-1", "web-2"].map(|pod| Server::start("exit", &[&laws[..], &[pod]].concat()));
        let urls = servers.each_ref().map(|server| format!("http://{}/events", server.address));
        let load = Rolldrop::new(["load"]).args(urls).args(["--stream", "sse", "-r", "100", "-d", "5s"]);
        let finished = load.args(["--out", "run"]).finish().expect_code(0);
        let ends = servers.iter().flat_map(Server::log).filter(|line| line["event"] == "stream_ended");
        let spans = ends.map(|line| (seconds(&line["started_ns"]), seconds(&line["ended_ns"]))).collect();
        Self { finished, spans }
    }

    fn run(&self) -> PathBuf {
        self.finished.dir().join("run")
    }

    /// Returns the mean number of streams on a pod that still last this long, at a random time.
    fn outlasting(&self, rest_s: f64) -> f64 {
        let first = self.spans.iter().map(|(started, _)| *started).fold(f64::INFINITY, f64::min);
        let last = self.spans.iter().map(|(started, _)| *started).fold(0.0, f64::max);
        let beyond = |(started, ended): &(f64, f64)| (ended - started - rest_s).max(0.0);
        self.spans.iter().map(beyond).sum::<f64>() / (last - first) / 2.0
    }
}

fn predict(run: &Path, further: &[&str]) -> Finished {
    Rolldrop::new(["predict"]).args([run]).args(further).finish()
}

/// Checks a prediction in JSON against the streams in the servers' logs.
fn expect_truth(load: &StreamLoad, predicted: &Finished) {
    let found = json(predicted);
    assert_eq!((&found["pods"], &found["least_grace"]["known"]), (&2.into(), &1.into()), "{predicted}");
    assert_eq!(found["least_sleep"], found["least_grace"], "{predicted}");
    for (key, expected) in [("rate_per_pod", 50.0), ("open_per_pod", load.outlasting(0.0))] {
        let value = found[key].as_f64().expect("a figure");
        assert!((value / expected - 1.0).abs() < 0.15, "{key}: {expected} in the log\n{predicted}");
    }
    let forecasts = found["draining"].as_array().expect("forecasts");
    let one_second = forecasts.iter().find(|forecast| forecast["end"]["grace_s"] == 1.0);
    let cut = &one_second.expect("a forecast for 1 s")["cut"]["known"];
    let [lower, upper] = ["lower", "upper"].map(|key| cut[key].as_f64().expect("a bound"));
    let cut = load.outlasting(1.0);
    assert!((lower..=upper).contains(&cut), "{cut} in the log\n{predicted}");
}

#[test]
fn prediction_matches_server_log() {
    let load = StreamLoad::send();
    let schema: Value = serde_json::from_str(&tracked("docs/predict.schema.json")).expect("a schema");
    let in_json = |further: &[&str]| {
        let predicted = predict(&load.run(), &[further, &["--format", "json"]].concat()).expect_code(0);
        let met = rolldrop_testing::schema::meets(&json(&predicted), &schema);
        assert_eq!(met, Ok(()), "{predicted}");
        predicted
    };
    let known = in_json(&["--max-cut", "20"]);
    expect_truth(&load, &known);
    let unknown = json(&in_json(&["--max-cut", "0.1"]));
    assert_eq!(json(&in_json(&["--max-cut", "20", "--sleep", "300ms"]))["sleep_s"], 0.3);

    let found = json(&known);
    let text = predict(&load.run(), &["--max-cut", "20"]).expect_code(0);
    let rate = format!("{:.3}", found["rate_per_pod"].as_f64().expect("a rate"));
    for figure in [&rate, &format!("{} streams", found["streams"]), " 1 s", "2 pods"] {
        assert!(text.stdout().contains(figure), "{figure}\n{text}");
    }
    let more = unknown["least_grace"]["unknown"]["more_streams"].to_string();
    let text = predict(&load.run(), &["--max-cut", "0.1"]).expect_code(0);
    assert!(text.stdout().contains(&more), "{more}\n{text}");
}

#[test]
fn unsuitable_runs_predict_nothing() {
    let server = Server::start("exit", &["--stream-length", "fixed:2s", "--pod-name", "web-1"]);
    let load = |path: &str, further: &[&str]| {
        let url = format!("http://{}{path}", server.address);
        let load = Rolldrop::new(["load", &url, "-r", "40", "-n", "20", "--out", "run"]).args(further);
        load.finish().expect_code(0)
    };
    let streams = load("/events", &["--stream", "sse"]);
    let growing = predict(&streams.dir().join("run"), &[]).expect_code(3);
    assert_eq!(growing.stdout(), "", "{growing}");
    let unnamed = load("/events", &["--stream", "sse", "--pod-header", "x-none"]);
    let refused = predict(&unnamed.dir().join("run"), &[]).expect_code(3);
    assert!(refused.stderr().contains("20 streams"), "{refused}");
    let failed = load("/status/404", &["--stream", "sse"]);
    let refused = predict(&failed.dir().join("run"), &[]).expect_code(2);
    assert!(refused.stderr().contains("contains no streams"), "{refused}");
    let refused = predict(&streams.dir().join("run"), &["--max-cut", "0"]).expect_code(2);
    assert!(refused.stderr().contains("--max-cut 0 must be above 0"), "{refused}");
    let missing = predict(Path::new("no-such-run"), &[]).expect_code(2);
    assert!(missing.stderr().contains("no-such-run"), "{missing}");
}
