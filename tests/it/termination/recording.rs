//! Everything seen in one case, timed from its first act.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::path::Path;

use rolldrop_record::RequestRow;
use serde_json::Value;

use super::golden;
use super::lab::{Answer, Seen};

/// Everything seen in a case about one pod.
#[derive(Clone, Debug)]
pub(crate) struct Recording {
    pub(crate) case: String,
    /// Dataplane of the cluster.
    pub(crate) dataplane: &'static str,
    /// Name of the pod that the case is about.
    pub(crate) pod: String,
    /// Time at which the first act was sent.
    pub(crate) zero_ns: i64,
    /// Watch events in the case's namespace.
    pub(crate) seen: Vec<Seen>,
    /// Time by which this machine may have delayed the timed events.
    pub(crate) lag_s: f64,
    /// Events logged by the containers' programs, and their process exits: seconds, and `CONTAINER SIGTERM`, `CONTAINER
    /// hook begins`, `CONTAINER hook ends`, `CONTAINER gone`, …
    pub(crate) process: Vec<(f64, String)>,
    /// API responses to the acts, in order.
    pub(crate) answers: Vec<Answer>,
    /// Requests of the case's client, if it has one.
    pub(crate) rows: Vec<RequestRow>,
}

impl Recording {
    /// Returns the seconds since the first act.
    #[expect(clippy::cast_precision_loss, reason = "a case takes a minute")]
    pub(crate) fn at(&self, ns: i64) -> f64 {
        (ns - self.zero_ns) as f64 / 1e9
    }

    /// Returns true if a time is in a range, or outside it by no more than this machine's lag.
    pub(crate) fn fits(&self, seconds: f64, range: Range<f64>) -> bool {
        (range.start - self.lag_s..range.end + self.lag_s).contains(&seconds)
    }

    /// Returns the same recording, but about another pod and timed from another moment.
    pub(crate) fn about(&self, pod: &str, zero_ns: i64) -> Self {
        Self { pod: pod.to_owned(), zero_ns, ..self.clone() }
    }

    /// Returns the time at which something first happened to a process.
    #[track_caller]
    pub(crate) fn first(&self, what: &str) -> f64 {
        let found = self.process.iter().find(|(_, text)| text == what);
        found.unwrap_or_else(|| panic!("no {what:?}\n{self}")).0
    }

    /// Returns how often something happened to a process since the first act.
    pub(crate) fn count(&self, what: &str) -> usize {
        self.process.iter().filter(|(at, text)| *at >= 0.0 && text == what).count()
    }

    /// Returns the time at which something last happened to a process.
    #[track_caller]
    pub(crate) fn last(&self, what: &str) -> f64 {
        let found = self.process.iter().rfind(|(_, text)| text == what);
        found.unwrap_or_else(|| panic!("no {what:?}\n{self}")).0
    }

    /// Returns watch events of the case's pod since the first act.
    pub(crate) fn pods(&self) -> impl Iterator<Item = (f64, &Seen)> {
        let ours = |seen: &&Seen| seen.kind() == "Pod" && seen.name() == self.pod;
        self.seen.iter().filter(ours).map(|seen| (self.at(seen.at_ns), seen)).filter(|(at, _)| *at >= 0.0)
    }

    /// Returns the time at which the pod was first seen in a state, and its object.
    #[track_caller]
    pub(crate) fn pod_seen(&self, what: &str, state: impl Fn(&Seen) -> bool) -> (f64, Value) {
        let found = self.pods().find(|(_, seen)| state(seen));
        let (at, seen) = found.unwrap_or_else(|| panic!("{what} was not seen\n{self}"));
        (at, seen.object.clone())
    }

    /// Returns the time at which the pod's deletion was seen.
    #[track_caller]
    pub(crate) fn deleted(&self) -> f64 {
        self.pod_seen("its end", |seen| seen.event == "DELETED").0
    }

    /// Returns the number of distinct Events about the pod since the first act, by reason.
    pub(crate) fn events_by_reason(&self) -> BTreeMap<String, usize> {
        let text = |event: &Value, field: &str| event[field].as_str().unwrap_or_default().to_owned();
        let distinct: BTreeSet<_> =
            self.events().map(|event| (text(event, "reason"), text(event, "message"))).collect();
        let mut count = BTreeMap::new();
        for (reason, _) in distinct {
            *count.entry(reason).or_default() += 1;
        }
        count
    }

    /// Returns the Events about the pod since the first act.
    pub(crate) fn events(&self) -> impl Iterator<Item = &Value> {
        self.seen
            .iter()
            .filter(|seen| seen.kind() == "Event" && self.at(seen.at_ns) >= 0.0)
            .map(|seen| &seen.object)
            .filter(|event| event["involvedObject"]["name"] == *self.pod)
    }

    /// Returns the messages of Events with this reason.
    pub(crate) fn messages(&self, reason: &str) -> Vec<&str> {
        self.events().filter(|e| e["reason"] == reason).filter_map(|e| e["message"].as_str()).collect()
    }

    /// Returns a container's final exit code, as shown by the API.
    #[track_caller]
    pub(crate) fn exit_code(&self, container: &str) -> i64 {
        let code = |object: &Value| {
            let statuses = ["containerStatuses", "initContainerStatuses"];
            let all = statuses.into_iter().flat_map(|field| object["status"][field].as_array().cloned());
            let ours = all.flatten().find(|status| status["name"] == container);
            ours.and_then(|status| status["state"]["terminated"]["exitCode"].as_i64())
        };
        let found = self.pods().find_map(|(_, seen)| code(&seen.object));
        found.unwrap_or_else(|| panic!("no exit code of {container}\n{self}"))
    }

    /// Adds the events that a container's program logged, as JSON lines with `t_ns` and `event`.
    pub(crate) fn add_log(&mut self, container: &str, log: &Path) {
        for line in std::fs::read_to_string(log).unwrap_or_default().lines() {
            let line: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
            let at = self.at(line["t_ns"].as_i64().expect("a time"));
            let what = match line["event"].as_str().expect("an event") {
                "signal" => line["name"].as_str().expect("a signal").to_owned(),
                event => event.replace('_', " "),
            };
            self.process.push((at, format!("{container} {what}")));
        }
        self.process.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
}

impl fmt::Display for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "--- {} on the {} dataplane, lag {:.3} s", self.case, self.dataplane, self.lag_s)?;
        for (at, text) in golden::order(self) {
            writeln!(f, "  {at:8.3} {text}")?;
        }
        for (at, text) in &self.process {
            writeln!(f, "  {at:8.3} {text}")?;
        }
        for event in self.events() {
            writeln!(f, "  event {} {} {}", event["reason"], event["count"], event["message"])?;
        }
        for answer in &self.answers {
            writeln!(f, "  answer {} after {:.3} s", answer.status, self.at(answer.answered_ns))?;
        }
        Ok(())
    }
}
