//! `rolldrop predict` on a load of streams, compared with the lengths in the sample servers' logs.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness::{Finished, Rolldrop, tracked};
use crate::load::json;
use crate::machine::{figure, measured};
use crate::runs::seconds;
use crate::sample_server::Server;

/// A load of streams to two pods. Half of the streams last longer than a second.
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

    /// Returns the end of the steady part: the time at which the last stream began.
    fn steady_until(&self) -> f64 {
        self.spans.iter().map(|(started, _)| *started).fold(0.0, f64::max)
    }

    /// Returns the number of streams per pod per second that began in a steady part of this length.
    fn rate(&self, steady_s: f64) -> f64 {
        let from = self.steady_until() - steady_s;
        self.spans.iter().filter(|(started, _)| *started >= from).count() as f64 / steady_s / 2.0
    }

    /// Returns the mean number of streams on a pod that last at least `rest_s` longer, at a random time that is at
    /// least `rest_s` before the end of the steady part.
    fn outlasting(&self, rest_s: f64, steady_s: f64) -> f64 {
        let until = self.steady_until();
        let from = until - steady_s;
        let stretch =
            |(started, ended): &(f64, f64)| (ended.min(until) - rest_s - started.max(from)).max(0.0);
        self.spans.iter().map(stretch).sum::<f64>() / (steady_s - rest_s) / 2.0
    }
}

fn predict(run: &Path, further: &[&str]) -> Finished {
    Rolldrop::new(["predict"]).args([run]).args(further).finish()
}

/// Checks a prediction in JSON against the streams in the servers' logs. On a machine that others use, a server may
/// begin a stream so much later than the load that the two see different rates, so the results are figures.
fn expect_truth(load: &StreamLoad, predicted: &Finished) {
    let found = json(predicted);
    assert_eq!(found["pods"], 2, "{predicted}");
    for least in ["least_grace", "least_sleep"] {
        figure(load.finished.taken, found[least]["known"] == 1, || {
            format!("{least} is not 1 s\n{predicted}")
        });
    }
    let steady_s = found["steady_s"].as_f64().expect("a length");
    for (key, expected) in
        [("rate_per_pod", load.rate(steady_s)), ("open_per_pod", load.outlasting(0.0, steady_s))]
    {
        let value = found[key].as_f64().expect("a figure");
        figure(load.finished.taken, (value / expected - 1.0).abs() < 0.05, || {
            format!("{key}: {expected} in the log\n{predicted}")
        });
    }
    let forecasts = found["draining"].as_array().expect("forecasts");
    let one_second = forecasts.iter().find(|forecast| forecast["end"]["grace_s"] == 1.0);
    let cut = &one_second.expect("a forecast for 1 s")["cut"]["known"];
    let [lower, upper] = ["lower", "upper"].map(|key| cut[key].as_f64().expect("a bound"));
    let cut = load.outlasting(1.0, steady_s);
    figure(load.finished.taken, (lower..=upper).contains(&cut), || format!("{cut} in the log\n{predicted}"));
}

#[test]
fn prediction_matches_server_log() {
    measured(|| expect_prediction(&StreamLoad::send()));
}

/// Predicts from a load, and compares all forms of the prediction with each other and with the servers' logs.
fn expect_prediction(load: &StreamLoad) {
    let schema: Value = serde_json::from_str(&tracked("docs/predict.schema.json")).expect("a schema");
    let in_json = |further: &[&str]| {
        let predicted = predict(&load.run(), &[further, &["--format", "json"]].concat()).expect_code(0);
        let met = rolldrop_testing::schema::meets(&json(&predicted), &schema);
        assert_eq!(met, Ok(()), "{predicted}");
        predicted
    };
    let known = in_json(&["--max-cut", "20"]);
    expect_truth(load, &known);
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
    assert!(refused.stderr().contains("must be above 0: no measurement"), "{refused}");
    let refused = predict(&streams.dir().join("run"), &["--confidence", "100%"]).expect_code(2);
    assert!(refused.stderr().contains("--confidence is 100 %"), "{refused}");
    let missing = predict(Path::new("no-such-run"), &[]).expect_code(2);
    assert!(missing.stderr().contains("no-such-run"), "{missing}");
}
