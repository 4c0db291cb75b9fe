//! Checks during and at the end of a session.

use super::FuzzedSession;
use super::pair::{Pair, PeerEnding};
use crate::journal::Cursor;
use crate::{ProxyState, TrafficMode};
use rolldrop_record::wire::ProxyLine;
use rolldrop_record::{Protocol, ServedEnd};
use rolldrop_testing::Meter;

/// Maximum number of bytes that a connection uses in addition to its share of the pool: two buffers of its own, and the
/// needs of the relay and the runtime.
const CONNECTION_BYTES: usize = 32 * 1024;
/// Maximum number of bytes that the proxy uses when no one is connected, and additionally while it examines a head.
const FIXED_BYTES: usize = 256 * 1024;
const PASSING_BYTES: usize = 4 * 1024 * 1024;
/// Maximum number of bytes used for each user of the admin port.
const ASKER_BYTES: usize = 64 * 1024;

impl FuzzedSession {
    /// Checks the limits that apply whenever the proxy is at rest.
    pub(super) fn check(&self) {
        let ProxyState { budget, pool, in_flight, open, journal, .. } = &*self.shared;
        let (open, in_flight) = (open.count(), in_flight.count());
        assert!(open <= budget.connections, "{open} connections");
        let most = budget.requests.min(open * budget.requests_per_connection) + open;
        assert!(in_flight <= most, "{in_flight} requests are in flight on {open} connections");
        let most = budget.held_bytes + open * 4096;
        assert!(pool.used() <= most, "{} bytes are held, more than {most}", pool.used());
        if let [pair] = &self.pairs[..]
            && let Some(most) = pair.rules.streams_at_once()
            && pair.app.got.len() == pair.client.sent.len()
            && self.config.mode == TrafficMode::Http
        {
            assert!(in_flight <= most.max(1), "{in_flight} streams, but the client may have only {most}");
        }
        let recorded = usize::try_from(journal.counts().recorded).unwrap_or(usize::MAX);
        let rows = recorded.min(budget.rows);
        let row_bytes = 2 * size_of::<rolldrop_record::ServedRow>() + 128;
        let most = FIXED_BYTES
            + budget.held_bytes
            + open * CONNECTION_BYTES
            + self.askers.len() * ASKER_BYTES
            + in_flight * 512
            + rows * row_bytes;
        let held = Meter::held().saturating_sub(self.before);
        assert!(held <= most, "{held} bytes are held, more than {most}");
        let peak = Meter::peak().saturating_sub(self.before);
        assert!(peak <= most + PASSING_BYTES, "{peak} bytes at the peak, {most} allowed at rest");
    }

    pub(super) fn check_nothing_is_left(&self) {
        let ProxyState { pool, sockets, in_flight, pending, open, .. } = &*self.shared;
        let left = (open.count(), pending.count(), in_flight.count(), pool.used(), sockets.used());
        assert_eq!(left, (0, 0, 0, 0, 0), "connections, pending connections, requests, bytes, socket bytes");
    }

    /// Checks that all bytes have arrived, and that each connection ended as it should.
    pub(super) fn check_arrived(&self) {
        if self.is_ending() {
            return;
        }
        let missing = |pair: &&Pair| !pair.is_disturbed && !pair.is_refused && !pair.is_complete();
        let missing: Vec<_> = self.pairs.iter().filter(missing).collect();
        let counts = self.shared.journal.counts();
        let broken = usize::try_from(counts.rejected + counts.made_room).unwrap_or(usize::MAX);
        let said = |pair: &Pair| {
            let ends = [&pair.client, &pair.app].map(|end| (end.sent.len(), end.got.len(), end.ended));
            let is_reset = ends.iter().any(|(.., ended)| *ended == Some(PeerEnding::Reset));
            format!("{ends:?}{}", if is_reset { ", reset" } else { "" })
        };
        let shown: Vec<_> = missing.iter().map(|pair| said(pair)).collect();
        let refused = self.pairs.iter().filter(|pair| pair.is_refused).count();
        let why = (counts.rejected, counts.made_room);
        assert!(
            missing.len() + refused <= broken,
            "not all bytes arrived: {shown:?}; (rejected, made room): {why:?}"
        );
    }

    /// Checks that there are no more rows than requests, and one row for each answered request.
    pub(super) fn check_rows(&self) {
        let journal = &self.shared.journal;
        let mut rows = vec![(0, 0); self.pairs.len()];
        let mut cursor = Cursor::at(0);
        loop {
            let batch = journal.read(cursor);
            for line in batch.lines(None) {
                let ProxyLine::Row(row) = line else { continue };
                let at = usize::try_from(row.conn).unwrap_or(usize::MAX);
                let (all, good) = rows.get_mut(at).expect("a known connection");
                *all += 1;
                let is_http = matches!(row.protocol, Protocol::Http1 | Protocol::Http2);
                *good += usize::from(is_http && row.status == Some(200) && row.ended == ServedEnd::Complete);
            }
            if batch.next == cursor {
                break;
            }
            cursor = batch.next;
        }
        let is_whole = journal.counts().dropped == 0 && self.config.mode == TrafficMode::Http;
        for (pair, (all, good)) in self.pairs.iter().zip(rows) {
            let most = match self.config.mode {
                TrafficMode::Tcp => 1,
                TrafficMode::Http => pair.rules.most_rows(&pair.client.sent, &pair.app.sent),
            };
            assert!(all <= most, "{all} rows for {most} requests");
            assert!(good >= pair.answered || !is_whole, "{good} rows for {} responses", pair.answered);
        }
    }
}
