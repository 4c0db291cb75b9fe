//! Compares every statement about the five recorded runs with the ground truth (`tests/reference/runs`).
//!
//! `cargo test --test it recorded_runs -- --nocapture` prints the table of required and actual values.

mod statements;
mod truth;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use rolldrop_record::run_info::Balances;
use rolldrop_record::{Cause, Stamp};
use serde_json::Value;
use statements::{Group, Lost, Statements, Termination};
use truth::{Truth, Uid};

/// Noise between the clocks of the ground truth and of the run.
const NOISE_NS: i64 = 3_000_000;

const RUNS: [&str; 5] = ["plain-one", "plain-rollout", "plain-all", "ingress", "both"];

/// One statement, its required value, and its actual value.
struct Row {
    run: &'static str,
    statement: &'static str,
    required: &'static str,
    seen: String,
    holds: bool,
}

/// Rows for one run.
struct Table {
    run: &'static str,
    rows: Vec<Row>,
}

impl Table {
    fn row(&mut self, statement: &'static str, required: &'static str, seen: String, holds: bool) {
        self.rows.push(Row { run: self.run, statement, required, seen, holds });
    }

    /// Adds a row for `n` cases out of `of`, which must be at least the required share.
    fn share(
        &mut self,
        statement: &'static str,
        required: &'static str,
        (n, of): (usize, usize),
        least: f64,
    ) {
        let holds = of > 0 && n as f64 >= least * of as f64;
        self.row(statement, required, format!("{n} of {of}"), holds);
    }

    /// Adds a row for values whose median must be at most `most`.
    fn median(&mut self, statement: &'static str, required: &'static str, values: Vec<f64>, most: f64) {
        let Some((median, largest)) = median_and_largest(values) else {
            return self.row(statement, required, "none".to_owned(), false);
        };
        self.row(statement, required, format!("{median:.3}, at most {largest:.3}"), median <= most);
    }
}

fn median_and_largest(mut values: Vec<f64>) -> Option<(f64, f64)> {
    values.sort_by(f64::total_cmp);
    let median = values.get(values.len() / 2)?;
    Some((*median, *values.last()?))
}

fn dir(run: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/reference/runs", run].iter().collect()
}

/// A recorded run: rolldrop's statements and the ground truth.
struct Recorded {
    said: Statements,
    truth: Truth,
}

impl Recorded {
    fn read(name: &str) -> Self {
        let dir = dir(name);
        Self { said: Statements::of(&dir.join("run")), truth: Truth::read(&dir) }
    }

    /// Returns the index of the target with this way of balancing.
    fn target(&self, balances: Balances) -> usize {
        self.said.balances.iter().position(|(_, b)| *b == balances).expect("a target with this balancing")
    }

    fn lost(&self, target: usize) -> impl Iterator<Item = &Lost> {
        let name = &self.said.balances[target].0;
        self.said.lost.iter().filter(move |lost| *lost.request.row.target == **name)
    }

    /// Adds the rows for a Service whose responses do not name pods.
    fn service(&self, table: &mut Table) {
        let target = self.target(Balances::Connections);
        self.windows(table, target);
        let true_pods: Vec<(&Lost, Option<&Uid>)> =
            self.lost(target).map(|lost| (lost, self.truth.routed_to(&lost.request))).collect();
        let known: Vec<(&Lost, &Uid)> =
            true_pods.iter().filter_map(|(lost, pod)| Some((*lost, (*pod)?))).collect();
        let contained = known.iter().filter(|(lost, pod)| lost.candidates.contains(*pod)).count();
        table.share("candidates hold the true pod of a lost request", "all", (contained, known.len()), 1.0);
        let to_none: Vec<&Lost> =
            true_pods.iter().filter(|(_, pod)| pod.is_none()).map(|(lost, _)| *lost).collect();
        let is_told = |lost: &&&Lost| [Cause::Unattributed, Cause::RuleSwap].contains(&lost.cause);
        let told = to_none.iter().filter(is_told).count();
        table.row(
            "lost requests that went to no pod: rule_swap or unattributed",
            "all",
            format!("{told} of {}", to_none.len()),
            told == to_none.len(),
        );
        let dead_from = first_lost(&known);
        let dead_and_routed = |at: Stamp| {
            let dead = dead_from.iter().filter(|(pod, from)| {
                **from <= at && self.truth.left_rules(pod, **from).is_none_or(|left| at <= left)
            });
            dead.count().max(1)
        };
        let sizes = known.iter().filter(|(lost, _)| !lost.candidates.is_empty());
        let sizes = sizes
            .map(|(lost, _)| lost.candidates.len() as f64 / dead_and_routed(lost.request.begun()) as f64);
        table.median("candidates, by dead pods in the rules", "median at most 2", sizes.collect(), 2.0);
        // A pod's losses include those through all consumers, and the pods that a gateway dialled are not known for
        // every request.
        if self.said.balances.len() == 1 {
            self.shares(table, target, &known);
            self.groups(table, target, &known);
        }
    }

    /// Adds the rows for the windows of the Service.
    fn windows(&self, table: &mut Table, target: usize) {
        let ends = &self.said.terminations;
        let last_routed = self.truth.last_routed();
        let (mut above, mut excess_s) = (0, Vec::new());
        let (mut too_high, mut without, mut lowers) = (0, 0, 0);
        for end in ends {
            let left = self.truth.left_rules(&end.uid, end.earliest).expect("a pod that left the rules");
            let bounds = &end.windows[target];
            if let Some(upper) = bounds.upper {
                above += usize::from(upper >= left.shifted_ns(-NOISE_NS));
                excess_s.push(upper.seconds_since(left));
            }
            if let Some(lower) = bounds.lower {
                lowers += 1;
                too_high += usize::from(lower > left.shifted_ns(NOISE_NS));
                let last = last_routed.get(&end.uid);
                without += usize::from(last.is_none_or(|last| lower > last.shifted_ns(NOISE_NS)));
            }
        }
        table.share("windows with an upper bound", "all", (excess_s.len(), ends.len()), 1.0);
        table.share("upper bounds that are true", "95 %", (above, excess_s.len()), 0.95);
        table.median("upper bound beyond the truth, s", "median at most 0.5", excess_s, 0.5);
        table.row("lower bounds that are false", "none", format!("{too_high} of {lowers}"), too_high == 0);
        table.row(
            "lower bounds after the last connection to the pod",
            "none",
            format!("{without} of {lowers}"),
            without == 0,
        );
    }

    /// Adds the rows for the number of requests attributed to each pod.
    fn shares(&self, table: &mut Table, target: usize, known: &[(&Lost, &Uid)]) {
        let mut of_pod: BTreeMap<&Uid, u64> = BTreeMap::new();
        for (_, pod) in known {
            *of_pod.entry(pod).or_default() += 1;
        }
        let mut equal: BTreeMap<&Uid, f64> = BTreeMap::new();
        for lost in self.lost(target) {
            for pod in &lost.candidates {
                *equal.entry(pod).or_default() += 1.0 / lost.candidates.len() as f64;
            }
        }
        let (mut inside, mut error, mut equal_error) = (0, 0.0, 0.0);
        for end in &self.said.terminations {
            let n = of_pod.get(&end.uid).copied().unwrap_or(0);
            inside += usize::from((end.dropped.at_least..=end.dropped.at_most).contains(&n));
            error += (end.dropped.estimate - n as f64).abs();
            equal_error += (equal.get(&end.uid).unwrap_or(&0.0) - n as f64).abs();
        }
        let pods = self.said.terminations.len();
        table.share("pods whose lost requests are in their interval", "all", (inside, pods), 1.0);
        table.row(
            "estimate: requests charged to the wrong pod, and by an equal split",
            "fewer",
            format!("{:.0}, {:.0}", error / 2.0, equal_error / 2.0),
            error < equal_error || error <= 1.0,
        );
    }

    /// Adds the rows for a gateway's requests.
    fn gateway(&self, table: &mut Table) {
        let target = self.target(Balances::Requests);
        let lost: Vec<&Lost> = self.lost(target).collect();
        let unattributed = lost.iter().filter(|lost| lost.cause == Cause::Unattributed).count();
        table.row(
            "gateway: unattributed",
            "at most 5 %",
            format!("{unattributed} of {}", lost.len()),
            unattributed as f64 <= 0.05 * lost.len() as f64,
        );
        let ending: BTreeMap<Uid, Stamp> = self
            .said
            .terminations
            .iter()
            .map(|end| (end.uid.clone(), end.seen.unwrap_or(end.earliest).shifted_ns(-100_000_000)))
            .collect();
        let explained = lost.iter().filter(|lost| lost.cause != Cause::Unattributed);
        let dialled: Vec<(&Lost, BTreeSet<Uid>)> = explained
            .map(|lost| (*lost, self.truth.dialled_for(&lost.request, &ending)))
            .filter(|(_, pods)| !pods.is_empty())
            .collect();
        let one: Vec<_> = dialled.iter().filter(|(_, pods)| pods.len() == 1).collect();
        let holds = |lost: &Lost, pods: &BTreeSet<Uid>| !lost.candidates.is_disjoint(pods);
        let contained = one.iter().filter(|(lost, pods)| holds(lost, pods)).count();
        table.share("gateway: candidates hold the dialled pod", "99 %", (contained, one.len()), 0.99);
        let any = dialled.iter().filter(|(lost, pods)| holds(lost, pods)).count();
        table.share("gateway: the same, or one of several", "99 %", (any, dialled.len()), 0.99);
        let (mut lowers, mut early) = (0, 0);
        for group in &self.said.groups {
            let Some(lower_s) = group.lower_s[target] else { continue };
            lowers += 1;
            let lasted = |end: &&Termination| {
                let last = self.truth.last_dialled(&end.uid);
                last.is_some_and(|at| at.seconds_since(end.earliest) >= lower_s - NOISE_NS as f64 / 1e9)
            };
            early += usize::from(self.of_group(group).any(|end| lasted(&end)));
        }
        table.share("gateway: groups with a lower bound", "all", (lowers, self.said.groups.len()), 1.0);
        table.share(
            "gateway: the same, before the last connection to a pod of the group",
            "all",
            (early, lowers),
            1.0,
        );
    }

    fn of_group<'a>(&'a self, group: &'a Group) -> impl Iterator<Item = &'a Termination> {
        self.said.terminations.iter().filter(|end| group.pods.contains(&end.uid))
    }

    /// Adds the rows for requests attributed to groups of pods.
    fn groups(&self, table: &mut Table, target: usize, known: &[(&Lost, &Uid)]) {
        let groups = &self.said.groups;
        let is_exact = |group: &&Group| {
            let n = known.iter().filter(|(_, pod)| group.pods.contains(*pod)).count();
            group.dropped == n as u64
        };
        let exact = groups.iter().filter(is_exact).count();
        table.share("groups whose total is exact", "all", (exact, groups.len()), 1.0);
        let with_lower: Vec<(&Group, f64)> =
            groups.iter().filter_map(|group| Some((group, group.lower_s[target]?))).collect();
        let is_true = |(group, lower_s): &&(&Group, f64)| {
            self.of_group(group).any(|end| {
                let left = self.truth.left_rules(&end.uid, end.earliest);
                left.is_none_or(|at| at.seconds_since(end.earliest) >= lower_s - NOISE_NS as f64 / 1e9)
            })
        };
        let true_ones = with_lower.iter().filter(is_true).count();
        table.row(
            "lower bounds of groups that are true",
            "all",
            format!("{true_ones} of {}", with_lower.len()),
            true_ones == with_lower.len(),
        );
    }
}

/// Returns the time at which the first request was lost at each pod.
fn first_lost<'a>(known: &[(&Lost, &'a Uid)]) -> BTreeMap<&'a Uid, Stamp> {
    let mut first = BTreeMap::new();
    for (lost, pod) in known {
        let at = first.entry(*pod).or_insert(lost.request.begun());
        *at = lost.request.begun().min(*at);
    }
    first
}

/// Returns every row of every run.
fn table() -> Vec<Row> {
    let mut rows = Vec::new();
    for run in RUNS {
        let recorded = Recorded::read(run);
        let mut table = Table { run, rows: Vec::new() };
        if run != "ingress" {
            recorded.service(&mut table);
        }
        if ["ingress", "both"].contains(&run) {
            recorded.gateway(&mut table);
        }
        rows.extend(table.rows);
    }
    rows
}

/// Prints the table as Markdown.
fn print(rows: &[Row]) {
    println!("| run | statement | required | seen | holds |\n|---|---|---|---|---|");
    for Row { run, statement, required, seen, holds } in rows {
        println!("| {run} | {statement} | {required} | {seen} | {} |", if *holds { "yes" } else { "**no**" });
    }
}

#[test]
fn kernel_record_shows_pods_of_lost_requests() {
    for (run, known, lost) in [("plain-one", 57, 58), ("plain-rollout", 488, 488), ("plain-all", 588, 588)] {
        let recorded = Recorded::read(run);
        let pods = recorded.said.lost.iter().map(|lost| recorded.truth.routed_to(&lost.request));
        let found: Vec<_> = pods.collect();
        assert_eq!((found.iter().flatten().count(), found.len()), (known, lost), "{run}");
    }
}

#[test]
fn statements_about_recorded_runs_match_ground_truth() {
    let rows = table();
    print(&rows);
    let untrue: Vec<_> = rows.iter().filter(|row| !row.holds).map(|row| (row.run, row.statement)).collect();
    assert!(untrue.is_empty(), "{untrue:?}");
}

/// Collects the differences between `before` and `now`. `before` contains none of the result's sentences, and figures
/// may differ by rounding.
fn differences(place: &str, before: &Value, now: &Value, found: &mut Vec<String>) {
    let is_close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs().max(b.abs());
    match (before, now) {
        (Value::Object(before), Value::Object(now)) => {
            for (key, before) in before {
                differences(&format!("{place}.{key}"), before, now.get(key).unwrap_or(&Value::Null), found);
            }
        }
        (Value::Array(before), Value::Array(now)) if before.len() == now.len() => {
            for (i, (before, now)) in before.iter().zip(now).enumerate() {
                differences(&format!("{place}[{i}]"), before, now, found);
            }
        }
        (before, now) if before == now => {}
        (before, now) if before.as_f64().zip(now.as_f64()).is_some_and(|(a, b)| is_close(a, b)) => {}
        _ => found.push(format!("{place}: {before} is now {now}")),
    }
}

#[test]
fn recorded_results_stay_unchanged() {
    for run in RUNS {
        let before = std::fs::read(dir(run).join("result.json")).expect("a result");
        let before = serde_json::from_slice(&before).expect("JSON");
        let mut found = Vec::new();
        differences(run, &before, &Recorded::read(run).said.result, &mut found);
        assert!(found.is_empty(), "{found:#?}");
    }
}
