//! Findings about the servers that requests reached: rows that belong to no request, gateway retries, and headers and
//! bodies that name no pod.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::account::Measurement;
use crate::timeline::requests::{Strangers, Unmatched};
use crate::timeline::{Request, Requests};
use rolldrop_record::row_values::POD_HEADER;
use rolldrop_record::run_info::LoadPlan;

/// Totals over all requests, including the warm-up.
#[derive(Debug, Default)]
pub(crate) struct ReachedTotals {
    strangers: Strangers,
    unmatched: Unmatched,
    /// Number of responses that named a pod.
    named: u64,
    /// Number of proxy rows that carry a request's id but were read before the request was sent.
    early_rows: u64,
    /// Number of proxy rows that carry a request's id but were read after the client had seen the request end.
    late_rows: u64,
    /// Number of requests that succeeded although an attempt at a pod had failed.
    saved: u64,
    /// Failed attempts at these requests, by pod.
    hidden: BTreeMap<Arc<str>, u64>,
}

impl ReachedTotals {
    /// Sets the totals known before the requests are read.
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

    /// Adds the totals over other requests.
    pub(crate) fn merge(&mut self, other: Self) {
        self.named += other.named;
        self.early_rows += other.early_rows;
        self.late_rows += other.late_rows;
        self.saved += other.saved;
        for (pod, failed) in other.hidden {
            *self.hidden.entry(pod).or_default() += failed;
        }
    }

    /// Returns the findings about rows that belong to no request, retries, and headers and bodies that name no pod.
    pub(crate) fn findings(&self, load: &LoadPlan) -> impl Iterator<Item = Measurement> {
        let counted = [
            (Measurement::OtherRuns as fn(u64) -> Measurement, self.strangers.other_runs),
            (Measurement::UnknownRequests, self.strangers.no_request),
            (Measurement::EarlyRows, self.early_rows),
            (Measurement::LateRows, self.late_rows),
        ];
        let counted = counted.into_iter().filter(|(_, n)| *n > 0).map(|(finding, n)| finding(n));
        counted.chain(self.retried()).chain(self.unmatched(load))
    }

    fn retried(&self) -> Option<Measurement> {
        let mut by_pod: Vec<(Arc<str>, u64)> =
            self.hidden.iter().map(|(pod, n)| (Arc::clone(pod), *n)).collect();
        by_pod.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        (self.saved > 0).then_some(Measurement::Retried(by_pod))
    }

    fn unmatched(&self, load: &LoadPlan) -> Option<Measurement> {
        let Unmatched { answers, values } = &self.unmatched;
        (*answers > 0).then(|| Measurement::UnmatchedNames {
            answers: *answers,
            header: load.pod_header.as_deref().unwrap_or(POD_HEADER).to_owned(),
            body: load.pod_body.clone(),
            examples: values.iter().cloned().collect(),
            are_all: self.named == 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_count_unusable_proxy_rows() {
        let told = |reached: ReachedTotals| {
            let load = rolldrop_simulation::records().info.load;
            reached.findings(&load).collect::<Vec<_>>()
        };
        assert_eq!(told(ReachedTotals::default()), []);
        let strangers = Strangers { other_runs: 900, no_request: 1 };
        let reached = ReachedTotals { strangers, early_rows: 2, late_rows: 1, ..ReachedTotals::default() };
        let expected = [
            Measurement::OtherRuns(900),
            Measurement::UnknownRequests(1),
            Measurement::EarlyRows(2),
            Measurement::LateRows(1),
        ];
        assert_eq!(told(reached), expected);
    }

    #[test]
    fn unmatched_name_finding_cites_source() {
        let unmatched = Unmatched { answers: 12, values: ["edge-7".into()].into() };
        let mut reached = ReachedTotals { unmatched, ..ReachedTotals::default() };
        let mut load = rolldrop_simulation::records().info.load;
        let expected = |header: &str, body: Option<&str>, are_all| {
            let (header, body, examples) = (header.into(), body.map(str::to_owned), vec!["edge-7".into()]);
            Some(Measurement::UnmatchedNames { answers: 12, header, body, examples, are_all })
        };
        load.pod_body = Some("pod=(.+)".into());
        assert_eq!(reached.unmatched(&load), expected(POD_HEADER, Some("pod=(.+)"), true));
        (load.pod_header, load.pod_body, reached.named) = (Some("x-served-by".into()), None, 1);
        assert_eq!(reached.unmatched(&load), expected("x-served-by", None, false));
    }

    #[test]
    fn finding_counts_hidden_retries_by_pod() {
        let hidden = BTreeMap::from([("web-1".into(), 1), ("web-2".into(), 2)]);
        let reached = ReachedTotals { saved: 3, hidden, ..ReachedTotals::default() };
        let by_pod = vec![("web-2".into(), 2), ("web-1".into(), 1)];
        assert_eq!(reached.retried(), Some(Measurement::Retried(by_pod)));
    }
}
