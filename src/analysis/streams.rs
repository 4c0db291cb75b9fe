//! HTTP/2 connections by their requests: whether a lost request was alone on its own.
//!
//! A connection that is closed while it is idle loses the request that crosses the close. One
//! that is closed while the server works on its requests loses these, and was not idle.

use std::collections::HashMap;
use std::sync::Arc;

use crate::record::{Outcome, RequestRow, Stamp};

/// The connections of a run on which streams were opened.
pub(super) struct Streams<'a>(HashMap<(&'a Arc<str>, u64), Connection>);

#[derive(Default)]
struct Connection {
    /// From when to when the server may have been at work on a request.
    work: Vec<Work>,
    /// Whether anything of an answer has come over it.
    has_answered: bool,
}

struct Work {
    seq: u64,
    from: Stamp,
    to: Stamp,
    /// The latest end of those that began before this one, with it.
    latest: Stamp,
}

impl<'a> Streams<'a> {
    /// Those of a run, by its requests.
    pub(super) fn new(rows: impl IntoIterator<Item = &'a RequestRow>) -> Self {
        let mut connections: HashMap<_, Connection> = HashMap::new();
        for row in rows {
            let (Some(conn), Some(from), true) = (row.conn, row.sent, row.stream.is_some()) else { continue };
            let connection = connections.entry((&row.source, conn)).or_default();
            connection.has_answered |= row.bytes_received > 0;
            // What was left out or refused was never worked on.
            if !matches!(row.outcome, Outcome::H2Goaway | Outcome::H2RefusedStream) {
                connection.work.push(Work { seq: row.seq, from, to: row.end, latest: row.end });
            }
        }
        for connection in connections.values_mut() {
            connection.work.sort_unstable_by_key(|work| work.from);
            let mut latest = Stamp::from_unix_ns(i64::MIN);
            for work in &mut connection.work {
                latest = latest.max(work.to);
                work.latest = latest;
            }
        }
        Self(connections)
    }

    fn of(&self, row: &'a RequestRow) -> Option<&Connection> {
        self.0.get(&(&row.source, row.conn?)).filter(|_| row.stream.is_some())
    }

    /// Whether the server may have been at work on another request of the connection while this
    /// one was on its way.
    pub(super) fn shared(&self, row: &'a RequestRow) -> bool {
        let Some((connection, from)) = self.of(row).zip(row.sent) else { return false };
        let before = connection.work.partition_point(|work| work.from < row.end);
        let earlier = connection.work[..before].iter().rev().take_while(|work| work.latest > from);
        earlier.filter(|work| work.seq != row.seq).any(|work| work.to > from)
    }

    /// Whether the connection has served. One that was opened by another request, and broke
    /// before anything came over it, is as new to whoever shared it.
    pub(super) fn has_answered(&self, row: &'a RequestRow) -> bool {
        self.of(row).is_none_or(|connection| connection.has_answered)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::Phase;

    fn at(ms: i64) -> Stamp {
        Stamp::from_unix_ns(1_800_000_000_000_000_000 + ms * 1_000_000)
    }

    /// Answered, on stream 2 `seq` + 1 of connection 0.
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

    /// Lost without a byte.
    fn lost(seq: u64, sent_ms: i64, end_ms: i64, outcome: Outcome) -> RequestRow {
        RequestRow { outcome, bytes_received: 0, ..row(seq, sent_ms, end_ms) }
    }

    /// What `shared` says of each row.
    fn shared(rows: &[RequestRow]) -> Vec<bool> {
        let streams = Streams::new(rows);
        rows.iter().map(|row| streams.shared(row)).collect()
    }

    #[test]
    fn a_request_shares_its_connection_with_those_under_way_at_the_same_time() {
        let eof = |seq, sent, end| lost(seq, sent, end, Outcome::EofBeforeResponse);
        assert_eq!(shared(&[row(0, 0, 10), eof(1, 20, 30)]), [false, false], "one after the other");
        assert_eq!(shared(&[row(0, 0, 10), eof(1, 10, 30)]), [false, false], "as soon as it was answered");
        assert_eq!(shared(&[eof(0, 0, 30), eof(1, 10, 30)]), [true, true]);
        assert_eq!(shared(&[eof(0, 0, 30), eof(1, 10, 30), row(2, 40, 50)]), [true, true, false]);
        // The first is still under way behind those that were answered since.
        assert!(shared(&[eof(0, 0, 50), row(1, 5, 6), row(2, 10, 20), eof(3, 40, 50)])[3]);
    }

    #[test]
    fn what_was_left_out_or_refused_was_no_work_and_may_have_met_some() {
        for outcome in [Outcome::H2Goaway, Outcome::H2RefusedStream] {
            let [eof, left_out] = [lost(0, 0, 30, Outcome::EofBeforeResponse), lost(1, 10, 30, outcome)];
            assert_eq!(shared(&[eof, left_out]), [false, true], "{outcome}");
        }
    }

    #[test]
    fn only_streams_of_the_same_connection_count() {
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
    fn a_connection_has_answered_once_a_byte_has_come_over_it() {
        let eof = |seq, conn| RequestRow { conn: Some(conn), ..lost(seq, 0, 30, Outcome::EofBeforeResponse) };
        let rows = [eof(0, 0), eof(1, 0), eof(2, 1), RequestRow { conn: Some(1), ..row(3, 5, 6) }];
        let streams = Streams::new(&rows);
        let answered: Vec<_> = rows.iter().map(|row| streams.has_answered(row)).collect();
        assert_eq!(answered, [false, false, true, true]);
        let http1 = RequestRow { stream: None, ..eof(4, 0) };
        assert!(streams.has_answered(&http1), "HTTP/1.1 is judged by its own bytes");
    }

    proptest! {
        #[test]
        fn it_is_as_if_each_were_held_against_each(
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
