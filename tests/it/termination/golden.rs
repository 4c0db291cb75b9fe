//! The event orders recorded on a real v1.36.2 cluster, and ours in the same notation.
//!
//! `scripts/proofs/distil-reference` writes `golden/orders.txt` by the same rules as this module: it drops repeats, and
//! puts neighbouring events of two watches into one order.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;

use super::lab::Seen;
use super::recording::Recording;

const ORDERS: &str = include_str!("../golden/orders.txt");

/// Maximum time by which an API event may be earlier or later than recorded: many recorded cases ran concurrently, as
/// do these.
const API_SLACK_S: (f64, f64) = (1.5, 2.0);
/// The same for signals and process exits.
const PROCESS_SLACK_S: (f64, f64) = (0.6, 1.5);

/// States that last no longer than this may be missing, because a node agent and the EndpointSlice controller write
/// only the newest state.
const MERGING_S: f64 = 0.5;

/// States that may be missing, with the two events between which they last: the status with which the node agent
/// confirms the deletion of a pod that exits immediately, and the endpoint of a pod that runs but is not ready yet.
const PASSING: [Passing; 2] = [
    Passing {
        begins: "Pod MODIFIED generation=2/1 ",
        ends: "Pod MODIFIED generation=2/2 ",
        text: "Pod MODIFIED generation=2/2 ",
    },
    Passing {
        begins: "Pod MODIFIED generation=1/1 Running app=running ",
        ends: "Pod MODIFIED generation=1/1 Running app=running,ready ",
        text: "EndpointSlice endpoint ready=false serving=false terminating=false",
    },
];

/// A passing state: the first words of the two events between which it lasts, and its own text.
struct Passing {
    begins: &'static str,
    ends: &'static str,
    text: &'static str,
}

/// Recorded facts about a case.
#[derive(Debug, Default)]
pub(crate) struct Golden {
    /// Each observed order of API events: `(earliest, latest, text)`.
    orders: Vec<Vec<(f64, f64, String)>>,
    /// Signals and process exits.
    process: BTreeMap<String, (f64, f64)>,
    /// Number of Events by reason: at least, at most.
    events: BTreeMap<String, (usize, usize)>,
}

impl Golden {
    pub(crate) fn of(case: &str) -> Self {
        let title = format!("case {case}\n");
        let (_, after) = ORDERS.split_once(&title).unwrap_or_else(|| panic!("no case {case}"));
        let (mut golden, mut part) = (Self::default(), "");
        for line in after.lines().take_while(|line| !line.starts_with("case ")) {
            let Some(line) = line.strip_prefix("  ") else {
                part = line.split(' ').next().unwrap_or_default();
                if part == "order" {
                    golden.orders.push(Vec::new());
                }
                continue;
            };
            let mut words = line.trim_start().splitn(2, ' ');
            let low = words.next().expect("a number");
            let (high, text) =
                words.next().expect("a second number").trim_start().split_once(' ').expect("a string");
            let number = |text: &str| text.parse::<f64>().expect("seconds");
            let count = |text: &str| text.parse::<usize>().expect("a count");
            match part {
                "order" => {
                    let order = golden.orders.last_mut().expect("an order");
                    order.push((number(low), number(high), text.to_owned()));
                }
                "process" => drop(golden.process.insert(text.to_owned(), (number(low), number(high)))),
                "events" => drop(golden.events.insert(text.to_owned(), (count(low), count(high)))),
                _ => panic!("unknown part {part:?}"),
            }
        }
        golden
    }

    /// Fails unless the case went as recorded: the exact order of API events, all times, and the Events.
    #[track_caller]
    pub(crate) fn check(&self, ours: &Recording) {
        self.check_order(ours);
        self.check_process(ours);
        self.check_events(ours);
    }

    #[track_caller]
    pub(crate) fn check_order(&self, ours: &Recording) {
        let told = order(ours);
        let texts: Vec<&str> = told.iter().map(|(_, text)| text.as_str()).collect();
        let mut orders = self.orders.clone();
        let first = |begins: &str| told.iter().find(|(_, text)| text.starts_with(begins)).map(|(at, _)| at);
        for passing in &PASSING {
            let lasted = first(passing.ends).zip(first(passing.begins)).map(|(ends, begins)| ends - begins);
            if lasted.is_some_and(|seconds| seconds < MERGING_S + ours.lag_s) {
                orders.extend(self.orders.iter().map(|order| passing.left_out_of(order)));
            }
        }
        let same = |order: &&Vec<(f64, f64, String)>| order.iter().map(|(.., text)| text).eq(texts.iter());
        let Some(recorded) = orders.iter().find(same) else {
            panic!("the order differs from every recorded one\n{}", self.side_by_side(&told, ours));
        };
        for ((at, text), (low, high, _)) in told.iter().zip(recorded) {
            let fits = ours.fits(*at, low - API_SLACK_S.0..high + API_SLACK_S.1);
            assert!(fits, "{text}: at {at:.3} s, recorded {low} to {high} s\n{ours}");
        }
    }

    /// Returns the recorded orders of API events for one kind.
    pub(crate) fn orders_of(&self, kind: &str) -> Vec<Vec<&str>> {
        let of_kind = |order: &'_ [(f64, f64, String)]| -> Vec<usize> {
            (0..order.len()).filter(|n| order[*n].2.starts_with(kind)).collect()
        };
        self.orders.iter().map(|o| of_kind(o).into_iter().map(|n| o[n].2.as_str()).collect()).collect()
    }

    #[track_caller]
    pub(crate) fn check_process(&self, ours: &Recording) {
        for (text, (low, high)) in &self.process {
            let Some((at, _)) = ours.process.iter().find(|(_, ours)| ours == text) else {
                // The exit of a hook's process is not watched, but the hook's log is.
                assert!(text.contains("hook"), "no {text:?}\n{ours}");
                continue;
            };
            let fits = ours.fits(*at, low - PROCESS_SLACK_S.0..high + PROCESS_SLACK_S.1);
            assert!(fits, "{text}: at {at:.3} s, recorded {low} to {high} s\n{ours}");
        }
    }

    #[track_caller]
    pub(crate) fn check_events(&self, ours: &Recording) {
        for (reason, count) in ours.events_by_reason() {
            let (low, high) = self.events.get(reason.as_str()).copied().unwrap_or_default();
            let low_enough = count >= low && (count <= high || reason == "Unhealthy");
            assert!(low_enough, "{count} events {reason}, recorded {low} to {high}\n{ours}");
        }
        for (reason, (low, _)) in &self.events {
            assert!(
                *low == 0 || reason == "Unhealthy" || ours.events_by_reason().contains_key(reason),
                "no event {reason}\n{ours}"
            );
        }
    }

    fn side_by_side(&self, told: &[(f64, String)], ours: &Recording) -> String {
        let mut text = "ours:\n".to_owned();
        for (at, line) in told {
            let _ = writeln!(text, "  {at:8.3} {line}");
        }
        for recorded in &self.orders {
            text.push_str("recorded:\n");
            for (low, high, line) in recorded {
                let _ = writeln!(text, "  {low:8.3} {high:8.3} {line}");
            }
        }
        let _ = write!(text, "{ours}");
        text
    }
}

impl Passing {
    fn left_out_of(&self, order: &[(f64, f64, String)]) -> Vec<(f64, f64, String)> {
        let first = order.iter().position(|(.., text)| text.starts_with(self.text));
        order.iter().enumerate().filter(|(at, _)| Some(*at) != first).map(|(_, line)| line.clone()).collect()
    }
}

/// Returns our API events for one kind, in order.
pub(crate) fn order_of(kind: &str, ours: &Recording) -> Vec<String> {
    order(ours).into_iter().map(|(_, text)| text).filter(|text| text.starts_with(kind)).collect()
}

/// Returns the API events of the pod and its endpoint, in the notation of the recorded ones: `(seconds, text)`.
pub(crate) fn order(ours: &Recording) -> Vec<(f64, String)> {
    let mut order: Vec<(f64, String)> = Vec::new();
    let mut last: BTreeMap<&str, String> = BTreeMap::new();
    // Watches of different kinds reach the client separately; the revision shows what came first.
    let mut by_revision: Vec<&Seen> = ours.seen.iter().collect();
    by_revision.sort_by_key(|seen| revision(seen));
    for seen in by_revision {
        let text = match seen.kind() {
            "Pod" if seen.name() == ours.pod => format!("Pod {}", pod_text(seen)),
            "EndpointSlice" => format!("EndpointSlice {}", endpoint_text(&seen.object, &ours.pod)),
            _ => continue,
        };
        let at = ours.at(seen.at_ns);
        let kind = if seen.kind() == "Pod" { "Pod" } else { "EndpointSlice" };
        // An endpoint that never existed has not disappeared.
        let is_news = match last.get(kind) {
            Some(before) => *before != text,
            None => kind == "Pod" || !text.ends_with("no endpoint"),
        };
        last.insert(kind, text.replacen("ADDED", "MODIFIED", 1));
        if is_news && at >= 0.0 {
            order.push((at, text));
        }
    }
    for n in (1..order.len()).rev() {
        let (pod, endpoint) = (&order[n - 1].1, &order[n].1);
        let only_observed = pod.contains("generation=2/2")
            && pod.contains(" Ready=True")
            && endpoint.contains("serving=true");
        let leaving = pod.contains(" grace=0 ") && endpoint.ends_with("no endpoint");
        if pod.starts_with("Pod") && endpoint.starts_with("Endpoint") && (only_observed || leaving) {
            order.swap(n - 1, n);
        }
    }
    order
}

fn revision(seen: &Seen) -> u64 {
    let revision = seen.object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok());
    revision.expect("a number")
}

fn pod_text(seen: &Seen) -> String {
    let pod = &seen.object;
    let (meta, status) = (&pod["metadata"], &pod["status"]);
    let observed = status["observedGeneration"].as_i64().map_or("-".to_owned(), |n| n.to_string());
    let mut text = format!("{} generation={}/{observed}", seen.event, meta["generation"]);
    if let Some(grace) = meta["deletionGracePeriodSeconds"].as_i64() {
        let _ = write!(text, " grace={grace}");
    }
    let address = if status["podIP"].is_string() { "" } else { ", no address" };
    let _ = write!(text, " {}{address}", status["phase"].as_str().unwrap_or_default());
    let list = |field: &str| status[field].as_array().cloned().unwrap_or_default();
    for container in list("containerStatuses").into_iter().chain(list("initContainerStatuses")) {
        let _ = write!(text, " {}", container_text(&container));
    }
    let mut conditions = list("conditions");
    conditions.sort_by_key(|condition| condition["type"].as_str().map(str::to_owned));
    for condition in conditions {
        let word = |field: &str| condition[field].as_str().unwrap_or_default();
        let _ = write!(text, " {}={}", word("type"), word("status"));
        if !word("reason").is_empty() {
            let _ = write!(text, "({})", word("reason"));
        }
    }
    text
}

fn container_text(container: &Value) -> String {
    let state = container["state"].as_object().and_then(|state| state.iter().next());
    let (name, inner) = state.map_or(("waiting", &Value::Null), |(name, inner)| (name.as_str(), inner));
    let end = inner["exitCode"].as_i64().map_or_else(String::new, |code| {
        format!("({code} {})", inner["reason"].as_str().unwrap_or_default())
    });
    let ready = if container["ready"] == true { ",ready" } else { "" };
    format!("{}={name}{end}{ready}", container["name"].as_str().unwrap_or_default())
}

fn endpoint_text(slice: &Value, pod: &str) -> String {
    let endpoints = slice["endpoints"].as_array().map(Vec::as_slice).unwrap_or_default();
    let Some(endpoint) = endpoints.iter().find(|endpoint| endpoint["targetRef"]["name"] == pod) else {
        return "no endpoint".to_owned();
    };
    let mut text = "endpoint".to_owned();
    for name in ["ready", "serving", "terminating"] {
        let _ = write!(text, " {name}={}", endpoint["conditions"][name]);
    }
    text
}
