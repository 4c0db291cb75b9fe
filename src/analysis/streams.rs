//! HTTP/2 connections by their requests: whether a lost request was alone on its own.
//!
//! A connection that is closed while it is idle loses the request that crosses the close. One
//! that is closed while the server works on its requests loses these, and was not idle.

use std::collections::HashMap;
use std::sync::Arc;

use crate::record::{Outcome, RequestRow, Stamp};
use crate::timeline::Timeline;

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
    /// Those of a run.
    pub(super) fn new(timeline: &'a Timeline) -> Self {
        let mut connections: HashMap<_, Connection> = HashMap::new();
        for row in timeline.requests.iter().map(|request| &request.row) {
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
