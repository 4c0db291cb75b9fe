//! Per-second batches that report a load's requests while it runs.
//!
//! A [`LiveJournal`] keeps the batches for a reader that cannot access the run directory. Each batch has the number of
//! its second, counted from the schedule's zero. Its counts and histograms are complete. It contains a limited number
//! of rows for requests that were not `ok`, and counts the rest, because in an outage nearly every request fails.

mod live_journal;

use std::collections::BTreeMap;
use std::io::Cursor;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use serde::{Deserialize, Serialize};

use crate::latency_log::ByOutcome;
use crate::tally::{self, OutcomeCounts, Times};
pub use live_journal::LiveJournal;
pub(crate) use live_journal::LiveJournalWriter;
use rolldrop_record::{Outcome, Phase, RequestRow};

/// Maximum number of non-`ok` rows to report per second, over all workers: about 1 MB.
pub const LIVE_ROWS: usize = 2_000;

/// One line of the live stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LiveLine {
    /// A completed second.
    Batch(Box<LiveBatch>),
    /// The last line: every scheduled request has a row in a closed part.
    End {
        /// Final progress of each source.
        sources: Vec<SourceProgress>,
    },
}

/// Progress of a source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceProgress {
    /// Name of the source.
    pub source: String,
    /// Number of requests that have become due.
    pub scheduled: u64,
    /// Number of requests in flight.
    pub in_flight: u64,
    /// Number of requests that have ended, which equals the number of rows.
    pub rows: u64,
    /// Outcome counts of the ended requests in the counted part.
    #[serde(default)]
    pub main: OutcomeCounts,
}

/// Requests that ended within one second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LiveBatch {
    /// Number of the second.
    pub n: u64,
    /// Progress of each source at the end of the second.
    pub sources: Vec<SourceProgress>,
    /// Outcome counts of the warm-up.
    pub warmup: OutcomeCounts,
    /// Outcome counts of the counted part.
    pub main: OutcomeCounts,
    /// Response times of the counted part, by outcome, as in `latency.hlog`.
    pub response: BTreeMap<Outcome, Packed>,
    /// Service times of the requests in the counted part that got a complete response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<Packed>,
    /// Number of requests that were not `ok` and have no row in this batch.
    pub left: u64,
    /// Rows of requests that were not `ok`.
    pub rows: Vec<RequestRow>,
}

impl LiveBatch {
    /// Keeps at most `most` rows.
    #[must_use]
    pub fn with_rows(mut self, most: usize) -> Self {
        self.left += self.rows.len().saturating_sub(most) as u64;
        self.rows.truncate(most);
        self
    }
}

/// A histogram in HdrHistogram's own encoding (V2, deflated), as Base64.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Packed(String);

/// Error for text that does not contain a histogram.
#[derive(Debug, thiserror::Error)]
#[error("failed to read a histogram: {0}")]
pub struct BadHistogram(String);

impl Packed {
    /// Packs a histogram.
    pub fn pack(histogram: &Histogram<u64>) -> Self {
        let mut bytes = Vec::new();
        let packed = V2DeflateSerializer::new().serialize(histogram, &mut bytes);
        debug_assert!(packed.is_ok(), "writing to memory cannot fail: {packed:?}");
        Self(BASE64_STANDARD.encode(bytes))
    }

    /// Unpacks the histogram.
    ///
    /// # Errors
    /// Returns an error if the text does not contain a histogram.
    pub fn unpack(&self) -> Result<Histogram<u64>, BadHistogram> {
        let bytes = BASE64_STANDARD.decode(&self.0).map_err(|e| BadHistogram(e.to_string()))?;
        Deserializer::new().deserialize(&mut Cursor::new(bytes)).map_err(|e| BadHistogram(e.to_string()))
    }
}

/// Batch of a second that is not over yet, without the response times.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    batch: LiveBatch,
    service: Option<Times>,
}

impl Beside {
    /// Adds an ended request.
    pub(crate) fn add(&mut self, row: &RequestRow) {
        let batch = &mut self.batch;
        match row.phase {
            Phase::Warmup => batch.warmup.add(row.outcome, 1),
            Phase::Main => batch.main.add(row.outcome, 1),
        }
        if row.outcome != Outcome::Ok {
            if batch.rows.len() < LIVE_ROWS {
                batch.rows.push(row.clone());
            } else {
                batch.left += 1;
            }
        }
        if let (Phase::Main, true, Some(ns)) = (row.phase, tally::is_answered(row), row.service_ns()) {
            self.service.get_or_insert_default().record(ns);
        }
    }

    /// Builds the batch for this second.
    pub(crate) fn batch(self, n: u64, response: &ByOutcome, reached: &[SourceProgress]) -> LiveBatch {
        LiveBatch {
            n,
            sources: reached.to_vec(),
            response: response.iter().map(|(outcome, times)| (*outcome, Packed::pack(times))).collect(),
            service: self.service.as_deref().map(Packed::pack),
            ..self.batch
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency_log;
    use rolldrop_record::{Stamp, TlsSession};

    fn row(seq: u64, phase: Phase, outcome: Outcome, response_ms: i64) -> RequestRow {
        let at = |ms: i64| Stamp::from_unix_ns(1_800_000_000_000_000_000 + ms * 1_000_000);
        RequestRow {
            sent: Some(at(1)),
            outcome,
            final_outcome: outcome,
            tls_session: (seq.is_multiple_of(2)).then_some(TlsSession::Resumed13),
            detail: Some("alert unknown_ca (48)".into()),
            ..RequestRow::not_sent("load-0".into(), seq, "web".into(), phase, at(0), at(response_ms))
        }
    }

    fn batch(rows: &[RequestRow]) -> LiveBatch {
        let (mut beside, mut response) = (Beside::default(), ByOutcome::new());
        for row in rows {
            beside.add(row);
            latency_log::add(&mut response, row);
        }
        let reached =
            SourceProgress { source: "load-0".into(), rows: rows.len() as u64, ..SourceProgress::default() };
        beside.batch(3, &response, &[reached])
    }

    #[test]
    fn batch_round_trips_with_histograms() {
        let rows = [
            row(0, Phase::Warmup, Outcome::Ok, 5),
            row(1, Phase::Main, Outcome::Ok, 11),
            row(2, Phase::Main, Outcome::ResetBeforeResponse, 21),
            row(3, Phase::Main, Outcome::NotSent, 0),
        ];
        let line = serde_json::to_string(&LiveLine::Batch(Box::new(batch(&rows)))).unwrap();
        let LiveLine::Batch(read) = serde_json::from_str(&line).unwrap() else { panic!("{line}") };
        assert_eq!(*read, batch(&rows));
        assert_eq!(read.rows, rows[2..]);
        assert_eq!((read.warmup.total(), read.main.total(), read.left), (1, 3, 0));
        let outcomes: Vec<_> = read.response.keys().copied().collect();
        assert_eq!(outcomes, [Outcome::Ok, Outcome::ResetBeforeResponse]);
        let about = |histogram: Histogram<u64>| (histogram.len(), histogram.max() / 1_000_000);
        assert_eq!(about(read.response[&Outcome::Ok].unpack().unwrap()), (1, 11));
        assert_eq!(about(read.service.unwrap().unpack().unwrap()), (1, 10));
        assert!(serde_json::from_str::<Packed>("\"HISTFAAA\"").unwrap().unpack().is_err());
    }

    #[test]
    fn batch_counts_rows_beyond_limit() {
        let rows: Vec<_> = (0..10_000).map(|seq| row(seq, Phase::Main, Outcome::ConnectRefused, 2)).collect();
        let batch = batch(&rows);
        assert_eq!((batch.rows.len(), batch.left), (LIVE_ROWS, 10_000 - LIVE_ROWS as u64));
        let fewer = batch.clone().with_rows(20);
        assert_eq!((fewer.rows.len(), fewer.left), (20, 9_980));
        assert_eq!(fewer.main.of(Outcome::ConnectRefused), 10_000);
        let line = serde_json::to_string(&LiveLine::Batch(Box::new(fewer))).unwrap();
        assert!(line.len() < 20 * 700, "{}", line.len());
    }
}
