//! Request counts and histograms.
//!
//! Each worker has its own tally; the tallies are merged at the end of the run.

mod breakdown;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Deref;
use std::str::FromStr;
use std::sync::Arc;

use hdrhistogram::Histogram;
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};

pub use breakdown::{ServiceTimeParts, TargetTally};
use rolldrop_record::retry::go_hides;
use rolldrop_record::{Outcome, Phase, RequestRow};

/// Number of significant decimal digits of every histogram.
const DIGITS: u8 = 3;

/// Histogram of durations in nanoseconds, which grows as needed and keeps 3 significant digits.
#[derive(Clone, Debug)]
pub struct Times(Histogram<u64>);

impl Default for Times {
    fn default() -> Self {
        match Histogram::new(DIGITS) {
            Ok(histogram) => Self(histogram),
            Err(e) => unreachable!("{DIGITS} digits are within the histogram's range: {e}"),
        }
    }
}

impl Deref for Times {
    type Target = Histogram<u64>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Times {
    /// Adds a duration. Timestamps from one clock never go backwards, so a negative value cannot occur; it would count
    /// as 0.
    pub fn record(&mut self, ns: i64) {
        let recorded = self.0.record(u64::try_from(ns).unwrap_or(0));
        debug_assert!(recorded.is_ok(), "a histogram that grows accepts every value: {recorded:?}");
    }

    /// Adds the values of another histogram. This cannot fail.
    pub(super) fn merge(&mut self, other: &Histogram<u64>) {
        let added = self.0.add(other);
        debug_assert!(added.is_ok(), "{added:?}");
    }
}

/// Returns true if there was a complete response.
pub(super) fn is_answered(row: &RequestRow) -> bool {
    matches!(row.outcome, Outcome::Ok | Outcome::HttpError)
}

/// Returns the name of an error number if the system has one, and otherwise the number itself as text.
pub fn errno_name(errno: i32) -> String {
    match nix::errno::Errno::from_raw(errno) {
        nix::errno::Errno::UnknownErrno => format!("errno {errno}"),
        known => format!("{known:?}"),
    }
}

/// Request counts by outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "BTreeMap<Outcome, u64>", into = "BTreeMap<Outcome, u64>")]
pub struct OutcomeCounts([u64; Outcome::ALL.len()]);

impl From<BTreeMap<Outcome, u64>> for OutcomeCounts {
    fn from(counts: BTreeMap<Outcome, u64>) -> Self {
        let mut all = Self::default();
        counts.into_iter().for_each(|(outcome, count)| all.add(outcome, count));
        all
    }
}

impl From<OutcomeCounts> for BTreeMap<Outcome, u64> {
    fn from(counts: OutcomeCounts) -> Self {
        counts.iter().collect()
    }
}

impl OutcomeCounts {
    /// Returns the number of requests with this outcome.
    pub fn of(&self, outcome: Outcome) -> u64 {
        self.0[outcome as usize]
    }

    /// Returns the total number of ended requests.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the outcomes that occurred, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (Outcome, u64)> {
        Outcome::ALL.iter().map(|outcome| (*outcome, self.of(*outcome))).filter(|(_, count)| *count > 0)
    }

    /// Adds `count` requests with this outcome.
    pub fn add(&mut self, outcome: Outcome, count: u64) {
        self.0[outcome as usize] += count;
    }

    /// Adds the counts of `other`.
    pub(super) fn merge(&mut self, other: &OutcomeCounts) {
        for (outcome, count) in other.iter() {
            self.add(outcome, count);
        }
    }
}

/// Counts of the statuses of complete responses outside the success set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ErrorStatuses {
    /// Counts by HTTP status.
    #[serde(
        rename = "error_statuses",
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "by_number"
    )]
    pub http: BTreeMap<u16, u64>,
    /// Counts by gRPC status; these requests are not counted under their HTTP status.
    #[serde(
        rename = "grpc_statuses",
        skip_serializing_if = "BTreeMap::is_empty",
        deserialize_with = "by_number"
    )]
    pub grpc: BTreeMap<i32, u64>,
}

impl ErrorStatuses {
    /// Adds the status of an ended request, if its outcome is `http_error`.
    pub(super) fn add(&mut self, row: &RequestRow) {
        match (row.outcome, row.grpc_status, row.status) {
            (Outcome::HttpError, Some(grpc), _) => *self.grpc.entry(grpc).or_default() += 1,
            (Outcome::HttpError, None, Some(http)) => *self.http.entry(http).or_default() += 1,
            _ => {}
        }
    }

    /// Adds the counts of `other`.
    pub(super) fn merge(&mut self, other: &ErrorStatuses) {
        merge(&mut self.http, &other.http);
        merge(&mut self.grpc, &other.grpc);
    }
}

/// Reads counts keyed by number. JSON quotes numbers that are keys, and serde does not remove the quotes if the counts
/// are part of a flattened object.
fn by_number<'de, D, N>(deserializer: D) -> Result<BTreeMap<N, u64>, D::Error>
where
    D: Deserializer<'de>,
    N: FromStr<Err: Display> + Ord,
{
    let quoted = BTreeMap::<String, u64>::deserialize(deserializer)?;
    quoted.into_iter().map(|(number, count)| Ok((number.parse().map_err(D::Error::custom)?, count))).collect()
}

fn merge<K: Ord + Clone>(own: &mut BTreeMap<K, u64>, other: &BTreeMap<K, u64>) {
    for (of, count) in other {
        *own.entry(of.clone()).or_default() += count;
    }
}

/// Counts and histograms for the requests of one or more workers. Warm-up requests are only counted.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Number of warm-up requests.
    pub warmup: u64,
    /// Outcome counts of the counted part.
    pub outcomes: OutcomeCounts,
    /// Counts of the statuses of complete responses outside the success set.
    pub error_statuses: ErrorStatuses,
    /// Error numbers of the outcomes that have one, with their counts.
    pub errnos: BTreeMap<(Outcome, i32), u64>,
    /// Outcome details provided by the protocols, with their counts.
    pub details: BTreeMap<(Outcome, Arc<str>), u64>,
    /// Final outcomes for clients that retry, if the load models retries.
    pub final_outcomes: OutcomeCounts,
    /// Number of requests that were sent more than once.
    pub retried: u64,
    /// Number of failures that Go's net/http would have hidden by resending the request.
    pub go_hidden: u64,
    /// Counts of requests that were not sent, by reason.
    pub not_sent: BTreeMap<Arc<str>, u64>,
    /// Response times of the requests with a complete response (`ok`, `http_error`), in nanoseconds, as defined by
    /// [`RequestRow::response_ns`].
    pub response_ns: Times,
    /// Service times of the requests with a complete response, as defined by [`RequestRow::service_ns`].
    pub service_ns: Times,
    /// Send lag of every request sent, in nanoseconds, as defined by [`RequestRow::send_lag_ns`].
    pub send_lag_ns: Times,
    /// Durations of the parts of each service time.
    pub parts: ServiceTimeParts,
    /// Counts and histograms by target name.
    pub targets: BTreeMap<Arc<str>, TargetTally>,
}

impl Tally {
    /// Adds an ended request. `go_replays` is true if its method and headers allow Go's net/http to replay it.
    pub(super) fn add(&mut self, row: &RequestRow, go_replays: bool) {
        if row.phase == Phase::Warmup {
            self.warmup += 1;
            return;
        }
        self.parts.add(row);
        self.of_target(&row.target).add(row);
        self.outcomes.add(row.outcome, 1);
        self.final_outcomes.add(row.final_outcome, 1);
        self.retried += u64::from(row.attempts > 1);
        self.go_hidden += u64::from(go_hides(row, go_replays));
        self.error_statuses.add(row);
        if let Some(errno) = row.errno {
            *self.errnos.entry((row.outcome, errno)).or_default() += 1;
        }
        if let Some(detail) = &row.detail {
            *self.details.entry((row.outcome, detail.clone())).or_default() += 1;
        }
        if let Some(reason) = &row.not_sent_reason {
            *self.not_sent.entry(reason.clone()).or_default() += 1;
        }
        let (Some(lag_ns), Some(service_ns)) = (row.send_lag_ns(), row.service_ns()) else { return };
        self.send_lag_ns.record(lag_ns);
        if is_answered(row) {
            self.response_ns.record(row.response_ns());
            self.service_ns.record(service_ns);
        }
    }

    /// Adds the tally of another worker.
    pub(super) fn merge(&mut self, other: &Tally) {
        self.warmup += other.warmup;
        self.outcomes.merge(&other.outcomes);
        self.final_outcomes.merge(&other.final_outcomes);
        self.retried += other.retried;
        self.go_hidden += other.go_hidden;
        self.error_statuses.merge(&other.error_statuses);
        merge(&mut self.details, &other.details);
        merge(&mut self.errnos, &other.errnos);
        merge(&mut self.not_sent, &other.not_sent);
        self.response_ns.merge(&other.response_ns);
        self.service_ns.merge(&other.service_ns);
        self.send_lag_ns.merge(&other.send_lag_ns);
        self.parts.merge(&other.parts);
        for (target, of_target) in &other.targets {
            self.of_target(target).merge(of_target);
        }
    }

    fn of_target(&mut self, target: &Arc<str>) -> &mut TargetTally {
        self.targets.entry(target.clone()).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rolldrop_record::Stamp;

    fn row(outcome: Outcome, connect_start: Option<i64>, sent: Option<i64>, end: i64) -> RequestRow {
        let ms = |ms: i64| Stamp::from_unix_ns(ms * 1_000_000);
        RequestRow {
            connect_start: connect_start.map(ms),
            sent: sent.map(ms),
            outcome,
            status: (outcome == Outcome::HttpError).then_some(503),
            not_sent_reason: (outcome == Outcome::NotSent).then(|| "late".into()),
            final_outcome: outcome,
            ..RequestRow::not_sent("load-0".into(), 0, "web".into(), Phase::Main, ms(100), ms(end))
        }
    }

    /// Returns the smallest and the largest value of a histogram in milliseconds, rounded, and the number of values.
    fn extent(histogram: &Histogram<u64>) -> (u64, u64, u64) {
        let ms = |ns: u64| (ns + 500_000) / 1_000_000;
        (ms(histogram.min()), ms(histogram.max()), histogram.len())
    }

    #[test]
    fn latency_excludes_unanswered_requests() {
        let mut first = Tally::default();
        first.add(&row(Outcome::Ok, Some(101), Some(103), 110), true);
        first.add(&row(Outcome::HttpError, None, Some(105), 150), true);
        let mut second = Tally::default();
        second.add(&row(Outcome::ConnectTimeout, Some(120), None, 9_000), true);
        second.add(&row(Outcome::NotSent, None, None, 100), true);
        second.add(&RequestRow { phase: Phase::Warmup, ..row(Outcome::Ok, None, Some(100), 101) }, true);
        let mut all = Tally::default();
        all.merge(&first);
        all.merge(&second);
        assert_eq!(extent(&all.response_ns), (10, 50, 2));
        assert_eq!(extent(&all.service_ns), (9, 45, 2));
        assert_eq!(extent(&all.send_lag_ns), (1, 20, 3));
        assert_eq!((all.warmup, all.outcomes.total(), all.outcomes.of(Outcome::Ok)), (1, 4, 1));
        assert_eq!(all.error_statuses.http, BTreeMap::from([(503, 1)]));
        assert_eq!(all.not_sent, BTreeMap::from([("late".into(), 1)]));
        let of_web = &all.targets["web"];
        assert_eq!((of_web.outcomes.total(), &of_web.statuses), (4, &BTreeMap::from([(503, 1)])));
        assert_eq!(extent(&of_web.response_ns), (10, 50, 2));
    }

    #[test]
    fn tally_measures_only_existing_request_parts() {
        let ms = |ms: i64| Some(Stamp::from_unix_ns(ms * 1_000_000));
        let fresh = RequestRow {
            connected: ms(103),
            tls: ms(108),
            head: ms(115),
            ..row(Outcome::Ok, Some(101), Some(109), 120)
        };
        let reused = RequestRow { head: ms(112), ..row(Outcome::Ok, None, Some(110), 120) };
        let lost =
            RequestRow { connected: ms(131), ..row(Outcome::EofBeforeResponse, Some(101), Some(131), 140) };
        let mut all = Tally::default();
        [&fresh, &reused, &lost].into_iter().for_each(|row| all.add(row, true));
        let ServiceTimeParts { connect_ns, tls_ns, head_ns } = &all.parts;
        assert_eq!(extent(connect_ns), (2, 30, 2));
        assert_eq!(extent(tls_ns), (5, 5, 1));
        assert_eq!(extent(head_ns), (2, 6, 2));
    }

    #[test]
    fn error_counts_prefer_grpc_status() {
        let plain = row(Outcome::HttpError, None, Some(105), 150);
        let grpc = RequestRow { status: Some(200), grpc_status: Some(14), ..plain.clone() };
        let fine = row(Outcome::Ok, None, Some(105), 150);
        let mut statuses = ErrorStatuses::default();
        [&plain, &grpc, &grpc, &fine].into_iter().for_each(|row| statuses.add(row));
        statuses.merge(&statuses.clone());
        assert_eq!(statuses.http, BTreeMap::from([(503, 2)]));
        assert_eq!(statuses.grpc, BTreeMap::from([(14, 4)]));
    }
}
