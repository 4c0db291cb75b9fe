//! Determines whether lost HTTP/2 requests were alone on their connections.
//!
//! When an idle connection is closed, the request that crosses the close is lost. When a connection is closed while the
//! server is working on requests, the connection was not idle, and those requests are lost.

use std::collections::HashMap;
use std::sync::Arc;

use crate::timeline::requests::ConnectionId;
use rolldrop_record::{Outcome, RequestRow, Stamp};

/// HTTP/2 connections on which requests were lost.
#[derive(Debug, Default)]
pub(crate) struct StreamCarriers(HashMap<ConnectionId, Carrier>);

#[derive(Debug, Default)]
struct Carrier {
    /// Lost requests that were sent, ordered by send time.
    lost: Vec<LostStream>,
    /// True if a request was sent over the connection.
    is_used: bool,
    /// True if any part of a response arrived over the connection.
    has_answered: bool,
}

#[derive(Debug)]
struct LostStream {
    from: Stamp,
    seq: u64,
    to: Stamp,
    /// Latest end among this request and those that began before it.
    latest: Stamp,
    /// True if the server may have been working on another request at the same time.
    is_shared: bool,
}

fn connection(row: &RequestRow) -> Option<ConnectionId> {
    row.stream?;
    Some((Arc::clone(&row.source), row.conn?))
}

impl StreamCarriers {
    /// Collects the streams of lost requests.
    pub(crate) fn of<'a>(lost: impl IntoIterator<Item = &'a RequestRow>) -> Self {
        let mut carriers: HashMap<ConnectionId, Carrier> = HashMap::new();
        for row in lost {
            let Some(connection) = connection(row) else { continue };
            let carrier = carriers.entry(connection).or_default();
            carrier.lost.extend(row.sent.map(|from| LostStream {
                from,
                seq: row.seq,
                to: row.end,
                latest: row.end,
                is_shared: false,
            }));
        }
        for carrier in carriers.values_mut() {
            carrier.lost.sort_unstable_by_key(|lost| (lost.from, lost.seq));
            let mut latest = Stamp::from_unix_ns(i64::MIN);
            for lost in &mut carrier.lost {
                latest = latest.max(lost.to);
                lost.latest = latest;
            }
        }
        Self(carriers)
    }

    /// Adds a request, lost or not.
    pub(crate) fn add(&mut self, row: &RequestRow) {
        if self.0.is_empty() {
            return;
        }
        let Some(from) = row.sent else { return };
        let Some(carrier) = connection(row).and_then(|connection| self.0.get_mut(&connection)) else {
            return;
        };
        carrier.is_used = true;
        carrier.has_answered |= row.bytes_received > 0;
        // The server never worked on a request that it excluded or refused.
        if matches!(row.outcome, Outcome::H2Goaway | Outcome::H2RefusedStream) {
            return;
        }
        let before = carrier.lost.partition_point(|lost| lost.from < row.end);
        let earlier = carrier.lost[..before].iter_mut().rev().take_while(|lost| lost.latest > from);
        let met = earlier.filter(|lost| lost.seq != row.seq && lost.to > from);
        met.for_each(|lost| lost.is_shared = true);
    }

    /// Adds the evidence collected by another part for the same lost requests.
    pub(crate) fn merge(&mut self, mut other: Self) {
        for (connection, carrier) in &mut self.0 {
            let Some(others) = other.0.remove(connection) else { continue };
            carrier.is_used |= others.is_used;
            carrier.has_answered |= others.has_answered;
            for (own, other) in carrier.lost.iter_mut().zip(others.lost) {
                own.is_shared |= other.is_shared;
            }
        }
    }

    fn of_lost(&self, row: &RequestRow) -> Option<&Carrier> {
        self.0.get(&connection(row)?)
    }

    /// Returns true if the server may have been working on another request on the connection while this lost request
    /// was in flight.
    pub(crate) fn shared(&self, row: &RequestRow) -> bool {
        let Some((carrier, from)) = self.of_lost(row).zip(row.sent) else { return false };
        let found = carrier.lost.binary_search_by_key(&(from, row.seq), |lost| (lost.from, lost.seq));
        found.is_ok_and(|index| carrier.lost[index].is_shared)
    }

    /// Returns true if this lost request's connection has carried a response. If another request opened the connection
    /// and it broke before anything arrived, it counts as new for all requests that share it.
    pub(crate) fn has_answered(&self, row: &RequestRow) -> bool {
        self.of_lost(row).is_none_or(|carrier| carrier.has_answered || !carrier.is_used)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use rolldrop_record::Phase;

    fn at(ms: i64) -> Stamp {
        Stamp::from_unix_ns(1_800_000_000_000_000_000 + ms * 1_000_000)
    }

    /// Returns an answered request, on stream 2 `seq` + 1 of connection 0.
    fn row(seq: u64, sent_ms: i64, end_ms: i64) -> RequestRow {
        RequestRow {
            seq,
            sent: Some(at(sent_ms)),
            end: at(end_ms),
            outcome: Outcome::Ok,
            conn: Some(0),
            stream: u32::try_from(2 * seq + 1).ok(),
            bytes_received: 80,
            ..RequestRow::not_sent("load-0".into(), seq, "web".into(), Phase::Main, at(sent_ms), at(end_ms))
        }
    }

    /// Returns a request that was lost before a byte arrived.
    fn lost(seq: u64, sent_ms: i64, end_ms: i64, outcome: Outcome) -> RequestRow {
        RequestRow { outcome, bytes_received: 0, ..row(seq, sent_ms, end_ms) }
    }

    /// Collects the streams as if all requests were lost.
    fn streams(rows: &[RequestRow]) -> StreamCarriers {
        let mut streams = StreamCarriers::of(rows);
        rows.iter().for_each(|row| streams.add(row));
        streams
    }

    /// Returns `shared` for each row.
    fn shared(rows: &[RequestRow]) -> Vec<bool> {
        let streams = streams(rows);
        rows.iter().map(|row| streams.shared(row)).collect()
    }

    #[test]
    fn overlapping_requests_share_connection() {
        let eof = |seq, sent, end| lost(seq, sent, end, Outcome::EofBeforeResponse);
        assert_eq!(shared(&[row(0, 0, 10), eof(1, 20, 30)]), [false, false], "one after the other");
        assert_eq!(shared(&[row(0, 0, 10), eof(1, 10, 30)]), [false, false], "as soon as it was answered");
        assert_eq!(shared(&[eof(0, 0, 30), eof(1, 10, 30)]), [true, true]);
        assert_eq!(shared(&[eof(0, 0, 30), eof(1, 10, 30), row(2, 40, 50)]), [true, true, false]);
        // The first request is still in flight, although later ones were answered.
        assert!(shared(&[eof(0, 0, 50), row(1, 5, 6), row(2, 10, 20), eof(3, 40, 50)])[3]);
    }

    #[test]
    fn unprocessed_streams_do_not_count() {
        for outcome in [Outcome::H2Goaway, Outcome::H2RefusedStream] {
            let [eof, left_out] = [lost(0, 0, 30, Outcome::EofBeforeResponse), lost(1, 10, 30, outcome)];
            assert_eq!(shared(&[eof, left_out]), [false, true], "{outcome}");
        }
    }

    #[test]
    fn streams_overlap_only_within_connection() {
        let eof = lost(0, 0, 30, Outcome::EofBeforeResponse);
        let others = [
            RequestRow { conn: Some(1), ..row(1, 10, 20) },
            RequestRow { source: "load-1".into(), ..row(1, 10, 20) },
            RequestRow { stream: None, ..row(1, 10, 20) },
            RequestRow { sent: None, ..row(1, 10, 20) },
        ];
        for other in others {
            assert_eq!(shared(&[eof.clone(), other.clone()]), [false, false], "{other:?}");
        }
        let http1 = RequestRow { stream: None, ..eof };
        assert_eq!(shared(&[http1, row(1, 10, 20)]), [false, false]);
    }

    #[test]
    fn received_byte_marks_connection_answered() {
        let eof = |seq, conn| RequestRow { conn: Some(conn), ..lost(seq, 0, 30, Outcome::EofBeforeResponse) };
        let rows = [eof(0, 0), eof(1, 0), eof(2, 1), RequestRow { conn: Some(1), ..row(3, 5, 6) }];
        let streams = streams(&rows);
        let answered: Vec<_> = rows.iter().map(|row| streams.has_answered(row)).collect();
        assert_eq!(answered, [false, false, true, true]);
        let http1 = RequestRow { stream: None, ..eof(4, 0) };
        assert!(streams.has_answered(&http1), "HTTP/1.1 is judged by its own bytes");
    }

    proptest! {
        #[test]
        fn stream_overlaps_match_pairwise_check(
            drawn in prop::collection::vec((0_i64..60, 0_i64..20, 0_u64..3, 0_usize..4), 0..40)
        ) {
            let outcomes = [Outcome::Ok, Outcome::EofBeforeResponse, Outcome::H2Goaway, Outcome::H2RefusedStream];
            let rows: Vec<_> = drawn
                .iter()
                .zip(0..)
                .map(|((sent, length, conn, outcome), seq)| RequestRow {
                    conn: Some(*conn),
                    outcome: outcomes[*outcome],
                    ..row(seq, *sent, sent + length)
                })
                .collect();
            let is_work = |row: &RequestRow| !matches!(row.outcome, Outcome::H2Goaway | Outcome::H2RefusedStream);
            let meets = |a: &RequestRow, b: &RequestRow| {
                (a.conn, a.seq != b.seq, is_work(b)) == (b.conn, true, true)
                    && a.sent.is_some_and(|from| b.end > from)
                    && b.sent.is_some_and(|from| from < a.end)
            };
            let expected: Vec<_> = rows.iter().map(|a| rows.iter().any(|b| meets(a, b))).collect();
            prop_assert_eq!(shared(&rows), expected);
        }
    }
}
