//! One worker's HTTP/1.1 connections: the idle ones that it keeps, and the limit on all that it opens.

use std::collections::VecDeque;

use super::connection::Connection;
use super::exchange::Via;
use super::http2_client;
use super::request::Persistence;
use super::websocket_client;
use rolldrop_record::Stamp;

/// The worker's connections: idle ones, and the number in use.
pub(super) struct Http1Pool {
    /// Idle connections by endpoint, longest idle first.
    idle: Vec<VecDeque<Connection>>,
    in_use: usize,
    pub(super) limits: http2_client::PoolLimits,
    next_id: u64,
}

impl Http1Pool {
    pub(super) fn new(endpoints: usize, limits: http2_client::PoolLimits) -> Self {
        let idle = std::iter::repeat_with(VecDeque::new).take(endpoints).collect();
        Self { idle, in_use: 0, limits, next_id: 0 }
    }

    /// Takes a connection for one request; returns `None` if no more connections are allowed. Drops idle connections
    /// that the peer has already closed; no request was sent on them.
    pub(super) fn take(
        &mut self,
        endpoint: usize,
        persistence: Persistence,
        is_usable: fn(&mut Connection) -> bool,
        now: Stamp,
    ) -> Option<Via> {
        if persistence == Persistence::Keep {
            while let Some(mut connection) = self.idle[endpoint].pop_front() {
                let is_young = self.limits.age.is_none_or(|age| now < connection.since + age);
                if is_young && is_usable(&mut connection) {
                    self.in_use += 1;
                    return Some(Via::Own { id: connection.id, connection: Some(connection) });
                }
                websocket_client::part(connection);
            }
        }
        let open = self.in_use + self.idle.iter().map(VecDeque::len).sum::<usize>();
        // Close an idle connection that this request cannot use, to make room for one that it can.
        if open >= self.limits.connections {
            websocket_client::part(self.idle.iter_mut().find_map(VecDeque::pop_front)?);
        }
        self.in_use += 1;
        let id = self.next_id;
        self.next_id += 1;
        Some(Via::dial(id))
    }

    /// Removes and returns all idle connections.
    pub(super) fn take_idle(&mut self) -> Vec<Connection> {
        self.idle.iter_mut().flat_map(std::mem::take).collect()
    }

    pub(super) fn give_back(&mut self, endpoint: usize, connection: Option<Connection>) {
        self.in_use -= 1;
        self.idle[endpoint]
            .extend(connection.filter(|connection| connection.requests < self.limits.requests));
    }
}
