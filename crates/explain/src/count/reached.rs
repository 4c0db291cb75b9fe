//! Findings about the servers that the requests reached: rows that belong to no request, retries of gateways, and
//! headers and bodies that name no pod.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::figures::{count, counted, either};
use crate::model::finding;
use crate::model::{Finding, Severity};
use crate::timeline::requests::{Strangers, Unmatched};
use crate::timeline::{Request, Requests, Timeline};
use rolldrop_record::row::POD_HEADER;
use rolldrop_record::run_info::LoadPlan;

/// Maximum number of pods that a finding names.
const MAX_NAMED: usize = 3;

/// Sums over all requests, including the warm-up.
#[derive(Debug, Default)]
pub(crate) struct Reached {
    strangers: Strangers,
    unmatched: Unmatched,
    /// Answers that named a pod.
    named: u64,
    /// Rows of proxies with a request's id, read before it was sent.
    early_rows: u64,
    /// Such rows, read after the request's client had seen its end.
    late_rows: u64,
    /// Requests that were answered after a pod had failed them.
    saved: u64,
    /// By pod, the failed attempts at these requests.
    hidden: BTreeMap<Arc<str>, u64>,
}

impl Reached {
    /// Adds the sums that were known before the requests were read.
    pub(crate) fn know(&mut self, requests: &Requests) {
        (self.strangers, self.unmatched) = (requests.strangers, requests.unmatched.clone());
    }

    /// Adds a request; `is_ok` is true if it succeeded for its client.
    pub(crate) fn add(&mut self, request: &Request, is_ok: bool) {
        self.named += u64::from(request.row.pod.is_some());
        self.early_rows += u64::from(request.misfits.early);
        self.late_rows += u64::from(request.misfits.late);
        let mut failed = request.other_attempts.iter().filter(|attempt| attempt.has_failed()).peekable();
        if is_ok && failed.peek().is_some() {
            self.saved += 1;
            failed.for_each(|attempt| *self.hidden.entry(Arc::clone(&attempt.pod)).or_default() += 1);
        }
    }

    /// Adds the sums of other requests.
    pub(crate) fn merge(&mut self, other: Self) {
        self.named += other.named;
        self.early_rows += other.early_rows;
        self.late_rows += other.late_rows;
        self.saved += other.saved;
        for (pod, failed) in other.hidden {
            *self.hidden.entry(pod).or_default() += failed;
        }
    }

    /// Returns the findings.
    pub(crate) fn findings(&self, timeline: &Timeline) -> Vec<Finding> {
        let findings = [
            self.strange(),
            self.unknown(),
            self.early(),
            self.late(),
            self.retried(),
            self.unmatched(&timeline.info.load),
        ];
        findings.into_iter().flatten().collect()
    }

    fn strange(&self) -> Option<Finding> {
        let n = self.strangers.other_runs;
        let (requests, carry) = (counted(n, "request"), either(n, "carries", "carry"));
        let what = format!("{requests} that the proxies recorded {carry} an id of another run: not counted");
        let why = "anybody can send the header rolldrop-id; this run's ids have a random part";
        let remedy =
            "none if another run measures the same pods; otherwise see who sends them (served/*.parquet)";
        (n > 0).then(|| finding(Severity::Info, what, why, remedy))
    }

    fn unknown(&self) -> Option<Finding> {
        let n = self.strangers.no_request;
        let (requests, carry) = (counted(n, "request"), either(n, "carries", "carry"));
        let what = format!(
            "{requests} that the proxies recorded {carry} an id of this run and the number of no request that it \
             recorded: not counted"
        );
        let why =
            "rows of the load are missing, or somebody who saw the run's requests sent others with such ids";
        (n > 0).then(|| finding(Severity::Warning, what, why, "see who else sends them (served/*.parquet)"))
    }

    fn early(&self) -> Option<Finding> {
        let n = self.early_rows;
        let (rows, have) = (counted(n, "row"), either(n, "has", "have"));
        let what =
            format!("{rows} of the proxies {have} a request's id and a time before it was sent: not counted");
        let why = "somebody who saw the run's requests repeats their ids, or a clock went wrong by more than \
                   was measured";
        (n > 0).then(|| finding(Severity::Warning, what, why, "see who sends them (served/*.parquet)"))
    }

    fn late(&self) -> Option<Finding> {
        let n = self.late_rows;
        let (requests, were) = (counted(n, "request"), either(n, "was", "were"));
        let what =
            format!("{requests} {were} read by a proxy after the client had seen the end: not counted there");
        let why = "what lies between client and pod may end a request towards the client and still pass it on, as a \
                   gateway or a mirror does";
        (n > 0).then(|| finding(Severity::Info, what, why, "none: they count as their clients saw them"))
    }

    fn retried(&self) -> Option<Finding> {
        let failures: u64 = self.hidden.values().sum();
        let mut by_pod: Vec<(&Arc<str>, u64)> = self.hidden.iter().map(|(pod, n)| (pod, *n)).collect();
        by_pod.sort_by_key(|(pod, n)| (std::cmp::Reverse(*n), Arc::clone(pod)));
        let named: Vec<String> =
            by_pod.iter().take(MAX_NAMED).map(|(pod, n)| format!("{pod} {}", count(*n))).collect();
        let more = by_pod.len().saturating_sub(MAX_NAMED);
        let more = if more > 0 { format!(" and {more} more pods") } else { String::new() };
        let what = format!(
            "a gateway's retries hid {} ({}{more}): another pod gave the answer",
            counted(failures, "failure"),
            named.join(", "),
        );
        let why = "the id of one request reached several pods; these requests count as ok, as their clients saw them";
        let remedy = "a client that reaches the pods without that gateway would have lost them";
        (self.saved > 0).then(|| finding(Severity::Info, what, why, remedy))
    }

    fn unmatched(&self, load: &LoadPlan) -> Option<Finding> {
        let Unmatched { answers, values } = &self.unmatched;
        let header = load.pod_header.as_deref().unwrap_or(POD_HEADER);
        let (place, remedy) = match load.pod_body.as_deref() {
            None => (
                header.to_owned(),
                "name another header (--pod-header); nothing to do if these are other pods",
            ),
            Some(pattern) => (
                format!("{header}, or by {pattern:?} in the body,"),
                "give another pattern (--pod-body) or header (--pod-header); nothing to do if these are other pods",
            ),
        };
        let some: Vec<String> = values.iter().take(MAX_NAMED).map(|value| format!("{value:?}")).collect();
        let (n, name) = (counted(*answers, "answer"), either(*answers, "names", "name"));
        let what =
            format!("{n} {name} a pod in {place} that the run did not watch, such as {}", some.join(", "));
        let why = "they count as answers whose pod is not known: a pod is named by its name, its host name, \
                   NAME.NAMESPACE or its address";
        let severity = if self.named == 0 { Severity::Warning } else { Severity::Info };
        (*answers > 0).then(|| finding(severity, what, why, remedy))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn findings_count_unusable_proxy_rows() {
        let told = |reached: Reached| {
            let found = [reached.strange(), reached.unknown(), reached.early(), reached.late()];
            let found = found.into_iter().flatten();
            found.map(|finding| (finding.severity, finding.what)).collect::<Vec<_>>()
        };
        assert_eq!(told(Reached::default()), []);
        let strangers = Strangers { other_runs: 900, no_request: 1 };
        let expected = [
            (
                Severity::Info,
                "900 requests that the proxies recorded carry an id of another run: not counted",
            ),
            (
                Severity::Warning,
                "1 request that the proxies recorded carries an id of this run and the number of no request that it \
                 recorded: not counted",
            ),
            (
                Severity::Warning,
                "2 rows of the proxies have a request's id and a time before it was sent: not counted",
            ),
            (
                Severity::Info,
                "1 request was read by a proxy after the client had seen the end: not counted there",
            ),
        ];
        let expected = expected.map(|(severity, what)| (severity, what.to_owned()));
        assert_eq!(told(Reached { strangers, early_rows: 2, late_rows: 1, ..Reached::default() }), expected);
    }

    #[test]
    fn finding_counts_hidden_retries_by_pod() {
        let hidden = BTreeMap::from([("web-1".into(), 1), ("web-2".into(), 2)]);
        let reached = Reached { saved: 3, hidden, ..Reached::default() };
        let what = reached.retried().unwrap().what;
        assert_eq!(
            what,
            "a gateway's retries hid 3 failures (web-2 2, web-1 1): another pod gave the answer"
        );
    }

    #[test]
    fn finding_quotes_unknown_name_source() {
        let unmatched = Unmatched { answers: 12, values: ["edge-7".into()].into() };
        let reached = Reached { unmatched, ..Reached::default() };
        let told = |further: Value| {
            let mut load = json!({
                "pacing": "constant", "rate": 1.0, "duration_s": 1.0, "warmup_s": 0.0, "connections": "fresh",
                "connect_timeout_s": 1.0, "response_timeout_s": 5.0, "success": [[200, 399]],
            });
            load.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
            let finding = reached.unmatched(&serde_json::from_value(load).unwrap()).unwrap();
            (finding.what, finding.remedy)
        };
        let (what, remedy) = told(json!({"pod_header": "x-served-by"}));
        assert_eq!(
            what,
            "12 answers name a pod in x-served-by that the run did not watch, such as \"edge-7\""
        );
        assert!(remedy.starts_with("name another header (--pod-header)"), "{remedy}");
        let (what, remedy) = told(json!({"pod_body": "pod=(.+)"}));
        let expected = "12 answers name a pod in rolldrop-pod, or by \"pod=(.+)\" in the body, that the run did \
                        not watch, \
                        such as \"edge-7\"";
        assert_eq!(what, expected);
        assert!(remedy.starts_with("give another pattern (--pod-body)"), "{remedy}");
    }
}
