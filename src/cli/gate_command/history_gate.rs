//! `rolldrop gate` on a watch history: judges real traffic.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::{Context, bail};

use super::GateArgs;
use crate::cli::exit::Exit;
use crate::cli::say::say;
use rolldrop_explain::model::WatchedTermination;
use rolldrop_judge::gate::{self, HistorySums};
use rolldrop_record::termination_store::read_history;
use rolldrop_record::{Clock, Expect};
use rolldrop_report::{HistoryGate, WatchHistory, WatchOutput};
use rolldrop_scenario::expectations::{self, ExpectFile};
use rolldrop_scenario::nearest::alike;

/// Number of workloads that the error about an unknown one lists.
const LISTED: usize = 5;

/// A workload: its namespace, its kind (`None` for any kind), and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WorkloadArg {
    namespace: String,
    kind: Option<String>,
    name: String,
}

impl WorkloadArg {
    /// Parses `NAMESPACE/NAME` or `NAMESPACE/KIND/NAME`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split('/').collect();
        let (namespace, kind, name) = match parts[..] {
            [namespace, name] => (namespace, None, name),
            [namespace, kind, name] => (namespace, Some(kind), name),
            _ => ("", None, ""),
        };
        if namespace.is_empty() || name.is_empty() || kind == Some("") {
            return Err(
                "expected NAMESPACE/NAME or NAMESPACE/KIND/NAME, such as shop/deployment/web".to_owned()
            );
        }
        Ok(Self { namespace: namespace.to_owned(), kind: kind.map(str::to_owned), name: name.to_owned() })
    }

    fn is_of(&self, end: &WatchedTermination) -> bool {
        let (kind, name) = end.workload.as_deref().and_then(|of| of.split_once(' ')).unwrap_or_default();
        self.namespace == end.namespace
            && self.name == name
            && self.kind.as_ref().is_none_or(|only| only.eq_ignore_ascii_case(kind))
    }

    fn text(&self) -> String {
        match &self.kind {
            Some(kind) => format!("{}/{}/{}", self.namespace, kind.to_ascii_lowercase(), self.name),
            None => format!("{}/{}", self.namespace, self.name),
        }
    }
}

/// Returns the name of the workload in the form of an argument; `None` if the pod has no controller.
fn name_of(end: &WatchedTermination) -> Option<String> {
    let (kind, name) = end.workload.as_deref()?.split_once(' ')?;
    Some(format!("{}/{}/{name}", end.namespace, kind.to_ascii_lowercase()))
}

/// Judges a history.
pub(super) fn judge(args: &GateArgs) -> anyhow::Result<ExitCode> {
    let dir = args.run.display();
    if !args.compare.baseline.is_empty() || args.save_baseline.is_some() {
        bail!("{dir} is a `rolldrop watch` history: only runs can be compared with a baseline");
    }
    let expect = expectations(args)?;
    let now = Clock::start().now();
    let mut history = WatchHistory::new(args.since.map(|since| now - since), now);
    let mut sums = HistorySums::default();
    let mut known = BTreeSet::new();
    let mut found = vec![false; args.workload.len()];
    let mut take = |recorded, line: &[u8]| {
        let record = WatchOutput::read(line)?;
        if let WatchOutput::Termination(end) = &record {
            let mut is_meant = args.workload.is_empty();
            for (workload, found) in args.workload.iter().zip(&mut found) {
                (is_meant, *found) = (is_meant || workload.is_of(end), *found || workload.is_of(end));
            }
            known.extend(name_of(end).filter(|name| !known.contains(name)));
            if is_meant && history.covers(recorded) {
                sums.add(end);
            }
        }
        history.take(recorded, &record);
        Ok(())
    };
    let skipped =
        read_history(&args.run, &mut take).with_context(|| format!("failed to read the history in {dir}"))?;
    skipped.iter().for_each(|skipped| say(skipped));
    if let Some((unknown, _)) = args.workload.iter().zip(&found).find(|(_, found)| !**found) {
        bail!("{}", no_termination_of(unknown, &known));
    }
    let namespaces = args.workload.iter().map(|workload| workload.namespace.clone()).collect();
    let time = history.judged_time(&namespaces);
    let checks = sums.checks(&expect, time.unwatched_s);
    let workloads: Vec<String> = args.workload.iter().map(WorkloadArg::text).collect();
    let gate = HistoryGate::new(time, &workloads, sums.terminations(), &checks);
    if let Some(path) = &args.junit {
        super::write_junit(path, &gate.junit())?;
    }
    args.format.show_history(&gate)?;
    Ok(Exit::of_verdict(gate.verdict()).settled(args.inconclusive).into())
}

/// Returns the expectations from the command line.
fn expectations(args: &GateArgs) -> anyhow::Result<Expect> {
    let file = args.expect.as_deref().map(ExpectFile::read).transpose()?;
    let expect = expectations::with(&Expect::default(), "--set", file.as_ref(), &args.assignments())?;
    if let Some(key) = gate::needs_run(&expect) {
        bail!(
            "expect.{key} needs a run. A `rolldrop watch` history can be judged by {}",
            gate::OF_HISTORIES.join(", ")
        );
    }
    if expect.is_empty() {
        say(
            "no limits are given, so the default gate applies: no request lost, no pod killed at the end of its grace \
             period, no preStop hook failed",
        );
    }
    Ok(expect)
}

/// Returns the name of a known workload, without its kind if the user gave none: a kind on one side only would make
/// similar names look different.
fn without_kind(known: &str, unknown: &WorkloadArg) -> String {
    let mut parts: Vec<&str> = known.split('/').collect();
    if unknown.kind.is_none() {
        parts.remove(1);
    }
    parts.join("/")
}

fn no_termination_of(unknown: &WorkloadArg, known: &BTreeSet<String>) -> String {
    let text = unknown.text();
    let names: BTreeSet<String> = known.iter().map(|name| without_kind(name, unknown)).collect();
    let mut near = alike(&text, names.iter().map(String::as_str));
    if near.is_empty() {
        let namespace = format!("{}/", unknown.namespace);
        near = names.iter().map(String::as_str).filter(|name| name.starts_with(&namespace)).collect();
    }
    near.truncate(LISTED);
    match near.is_empty() {
        true => format!("the history has no termination of {text}"),
        false => format!("the history has no termination of {text}; it has {}", near.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_workload_lists_similar_workloads() {
        let known: BTreeSet<String> =
            ["shop/deployment/web", "shop/statefulset/db", "edge/deployment/envoy"].map(str::to_owned).into();
        let said = |text: &str| no_termination_of(&WorkloadArg::parse(text).unwrap(), &known);
        assert_eq!(said("shop/wbe"), "the history has no termination of shop/wbe; it has shop/web, shop/db");
        assert!(
            said("shop/Deployment/wed").ends_with("it has shop/deployment/web"),
            "{}",
            said("shop/Deployment/wed")
        );
        assert!(
            said("shop/payments-api").ends_with("it has shop/db, shop/web"),
            "{}",
            said("shop/payments-api")
        );
        assert_eq!(said("bank/x"), "the history has no termination of bank/x");
        for wrong in ["web", "shop/", "/web", "a/b/c/d", "a//b"] {
            assert!(WorkloadArg::parse(wrong).is_err(), "{wrong}");
        }
    }
}
