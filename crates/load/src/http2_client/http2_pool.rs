//! A worker's HTTP/2 connections: chooses the connection for the next request.
//!
//! A request uses a kept connection that currently carries no other request. If there is none, the request opens a
//! connection while there are fewer than the user asked for, and shares one otherwise. If the user did not ask for a
//! number, sharing is preferred. No request waits for a free stream, except one whose connection ended while it waited
//! for its turn. If TLS negotiates the HTTP version, no request waits for a connection that another request is opening.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use super::http2_link::{Http2Link, LinkPlace, LinkState};
use crate::not_sent_reason::NotSentReason;
use crate::request::Persistence;
use rolldrop_record::Stamp;

/// Limits on connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolLimits {
    /// Maximum number of open connections that accept requests.
    pub(crate) connections: usize,
    /// True if the user asked for this number of connections. Otherwise, as few as possible are opened.
    pub(crate) is_wanted: bool,
    /// Maximum number of concurrent requests per connection.
    pub(crate) streams: usize,
    /// True if requests may wait for a connection that another request is opening.
    pub(crate) awaits: bool,
    /// Maximum total number of requests per connection.
    pub(crate) requests: u64,
    /// Age at which a connection stops accepting requests; `None` for no limit.
    pub(crate) age: Option<Duration>,
}

/// A request's place on a connection.
pub(crate) struct Ticket {
    pub(super) link: Rc<Http2Link>,
    pub(super) place: LinkPlace,
}

impl Ticket {
    /// Creates a new connection for one request that has no row of its own.
    pub(crate) fn alone() -> Self {
        Self::to_open(Http2Link::new(0, 1, None))
    }

    /// Returns true if the connection to be shared accepts no more requests.
    pub(crate) fn is_void(&self) -> bool {
        matches!(self.place, LinkPlace::Stream) && self.link.standing() == LinkState::Over
    }

    fn to_open(link: Rc<Http2Link>) -> Self {
        Self { link, place: LinkPlace::Opener }
    }
}

/// A kept connection. Its requests also hold the link until they end.
struct KeptConnection {
    link: Rc<Http2Link>,
    carried: u64,
}

impl KeptConnection {
    fn streams(&self) -> usize {
        Rc::strong_count(&self.link) - 1
    }
}

/// The worker's HTTP/2 connections.
pub(crate) struct Http2Pool {
    /// Kept connections by endpoint, most recently used last.
    kept: Vec<VecDeque<KeptConnection>>,
    /// Token held by each single-request connection, to count these connections.
    fresh: Rc<()>,
    limits: PoolLimits,
    next_id: u64,
}

impl Http2Pool {
    /// Creates a pool without connections.
    pub(crate) fn new(endpoints: usize, limits: PoolLimits) -> Self {
        let kept = std::iter::repeat_with(VecDeque::new).take(endpoints).collect();
        Self { kept, fresh: Rc::default(), limits, next_id: 0 }
    }

    /// Chooses the connection for the next request.
    ///
    /// # Errors
    /// Returns an error if the limits leave no room for the request.
    pub(crate) fn take(
        &mut self,
        endpoint: usize,
        persistence: Persistence,
        now: Stamp,
    ) -> Result<Ticket, NotSentReason> {
        self.forget_the_useless(now);
        if persistence == Persistence::Close {
            self.make_room().then_some(()).ok_or(NotSentReason::MaxConnections)?;
            let link = Http2Link::new(self.new_id(), 1, Some(self.fresh.clone()));
            return Ok(Ticket::to_open(link));
        }
        while let Some(index) = self.to_share(endpoint) {
            if let Some(ticket) = self.share(endpoint, index) {
                return Ok(ticket);
            }
        }
        if self.make_room() {
            let link = Http2Link::new(self.new_id(), self.limits.streams, None);
            self.kept[endpoint].push_back(KeptConnection { link: link.clone(), carried: 1 });
            self.retire_the_last(endpoint);
            return Ok(Ticket::to_open(link));
        }
        Err(if self.kept[endpoint].is_empty() {
            NotSentReason::MaxConnections
        } else {
            NotSentReason::MaxConcurrentStreams
        })
    }

    /// Chooses another connection for a request whose first one accepts no more requests. If all are full, the request
    /// waits on the one with the fewest requests.
    ///
    /// # Errors
    /// Returns an error if there is no connection on which the request can wait.
    pub(crate) fn take_again(
        &mut self,
        endpoint: usize,
        persistence: Persistence,
        now: Stamp,
    ) -> Result<Ticket, NotSentReason> {
        self.take(endpoint, persistence, now).or_else(|reason| {
            let is_shareable = |link: &Http2Link| match link.standing() {
                LinkState::Up(_) => link.may_speak_http2(),
                LinkState::Connecting => self.limits.awaits,
                LinkState::Over => false,
            };
            let places = self.kept[endpoint].iter().enumerate().filter(|(_, kept)| is_shareable(&kept.link));
            let index = places.min_by_key(|(_, kept)| kept.streams()).map(|(index, _)| index);
            index.and_then(|index| self.share(endpoint, index)).ok_or(reason)
        })
    }

    /// Returns the index of the kept connection for the next request; `None` if a new one should be opened.
    fn to_share(&self, endpoint: usize) -> Option<usize> {
        let (standing, streams, index) = self.best(endpoint)?;
        let is_idle = matches!(standing, LinkState::Up(_)) && streams == 0;
        let opens_another = self.limits.is_wanted && self.open() < self.limits.connections;
        (is_idle || !opens_another).then_some(index)
    }

    /// Returns true if a kept connection, or one that may still be opened, has room for another request. A connection that
    /// carries none can be closed to make room, even if its server allows no streams.
    pub(crate) fn has_room(&self) -> bool {
        let is_free = |kept: &KeptConnection| {
            let (standing, streams) = (kept.link.standing(), kept.streams());
            standing == LinkState::Over || streams == 0 || streams < self.most(standing)
        };
        self.open() < self.limits.connections || self.kept.iter().flatten().any(is_free)
    }

    /// Returns the best kept connection with a free stream: established connections come first, then those with the
    /// fewest streams, then those unused for longest.
    fn best(&self, endpoint: usize) -> Option<(LinkState, usize, usize)> {
        let place = |(index, kept): (usize, &KeptConnection)| (kept.link.standing(), kept.streams(), index);
        let places = self.kept[endpoint].iter().enumerate().map(place);
        let free = places.filter(|(standing, streams, _)| *streams < self.most(*standing));
        free.min_by_key(|(standing, streams, index)| (*standing == LinkState::Connecting, *streams, *index))
    }

    /// Returns the maximum number of concurrent streams on a connection.
    fn most(&self, standing: LinkState) -> usize {
        match standing {
            LinkState::Up(Some(peer)) => self.limits.streams.min(usize::try_from(peer).unwrap_or(usize::MAX)),
            LinkState::Connecting if !self.limits.awaits => 1,
            LinkState::Up(None) | LinkState::Connecting => self.limits.streams,
            LinkState::Over => 0,
        }
    }

    /// Returns a place on a kept connection. Returns `None`, and removes the connection, if it has ended.
    fn share(&mut self, endpoint: usize, index: usize) -> Option<Ticket> {
        let kept = self.kept[endpoint].remove(index)?;
        let (link, place) = (kept.link.clone(), kept.link.place()?);
        self.kept[endpoint].push_back(KeptConnection { carried: kept.carried + 1, ..kept });
        self.retire_the_last(endpoint);
        Some(Ticket { link, place })
    }

    /// Removes from the pool a connection that has carried its maximum number of requests; it closes after the last
    /// one.
    fn retire_the_last(&mut self, endpoint: usize) {
        let kept = &mut self.kept[endpoint];
        if kept.back().is_some_and(|last| last.carried >= self.limits.requests) {
            kept.pop_back();
        }
    }

    /// Removes connections that have ended or are too old, because they accept no more requests.
    fn forget_the_useless(&mut self, now: Stamp) {
        let age = self.limits.age;
        let is_young = |link: &Http2Link| age.zip(link.since()).is_none_or(|(age, since)| now < since + age);
        for kept in &mut self.kept {
            kept.retain(|kept| {
                let is_spent = kept.streams() == 0 && kept.link.is_spent();
                kept.link.standing() != LinkState::Over && !is_spent && is_young(&kept.link)
            });
        }
    }

    /// Returns true if another connection may be opened. Closes an idle one that is currently unusable, if necessary.
    fn make_room(&mut self) -> bool {
        if self.open() < self.limits.connections {
            return true;
        }
        self.kept.iter_mut().any(|kept| {
            let idle = kept.iter().position(|kept| kept.streams() == 0);
            idle.and_then(|index| kept.remove(index)).is_some()
        })
    }

    fn open(&self) -> usize {
        Rc::strong_count(&self.fresh) - 1 + self.kept.iter().map(VecDeque::len).sum::<usize>()
    }

    fn new_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(connections: usize, is_wanted: bool, streams: usize) -> Http2Pool {
        Http2Pool::new(
            1,
            PoolLimits { connections, is_wanted, streams, awaits: true, requests: u64::MAX, age: None },
        )
    }

    /// Takes connections for this many requests, none of which ends.
    fn taken(
        pool: &mut Http2Pool,
        requests: usize,
        persistence: Persistence,
    ) -> Vec<Result<u64, NotSentReason>> {
        let now = Stamp::from_unix_ns(0);
        let tickets: Vec<_> = (0..requests).map(|_| pool.take(0, persistence, now)).collect();
        tickets.iter().map(|ticket| ticket.as_ref().map(|ticket| ticket.link.id).map_err(|e| *e)).collect()
    }

    #[test]
    fn pool_fills_connection_before_opening_another() {
        let taken = taken(&mut pool(2, false, 2), 5, Persistence::Keep);
        assert_eq!(taken, [Ok(0), Ok(0), Ok(1), Ok(1), Err(NotSentReason::MaxConcurrentStreams)]);
    }

    #[test]
    fn pool_opens_requested_connections_before_sharing() {
        let taken = taken(&mut pool(2, true, 2), 5, Persistence::Keep);
        assert_eq!(taken, [Ok(0), Ok(1), Ok(0), Ok(1), Err(NotSentReason::MaxConcurrentStreams)]);
    }

    #[test]
    fn moved_request_waits_on_emptiest_connection() {
        let (mut pool, now) = (pool(2, false, 2), Stamp::from_unix_ns(0));
        let mut tickets: Vec<_> = (0..4).map(|_| pool.take(0, Persistence::Keep, now).unwrap()).collect();
        tickets.extend((0..3).map(|_| pool.take_again(0, Persistence::Keep, now).unwrap()));
        assert_eq!(tickets.iter().map(|ticket| ticket.link.id).collect::<Vec<_>>(), [0, 0, 1, 1, 0, 1, 0]);
        pool.limits.awaits = false;
        let refused = pool.take_again(0, Persistence::Keep, now).err();
        assert_eq!(refused, Some(NotSentReason::MaxConcurrentStreams));
    }

    #[test]
    fn pending_alpn_prevents_connection_sharing() {
        let mut pool = pool(2, false, 10);
        pool.limits.awaits = false;
        assert_eq!(
            taken(&mut pool, 3, Persistence::Keep),
            [Ok(0), Ok(1), Err(NotSentReason::MaxConcurrentStreams)]
        );
    }

    #[test]
    fn fresh_connection_carries_one_request() {
        let mut pool = pool(2, false, 10);
        assert_eq!(
            taken(&mut pool, 3, Persistence::Close),
            [Ok(0), Ok(1), Err(NotSentReason::MaxConnections)]
        );
        assert_eq!(pool.open(), 0);
        // A kept idle connection is closed to make room.
        assert_eq!(taken(&mut pool, 1, Persistence::Keep), [Ok(2)]);
        assert_eq!(taken(&mut pool, 2, Persistence::Close), [Ok(3), Ok(4)]);
    }

    #[test]
    fn pool_respects_request_limit_per_connection() {
        let mut pool = pool(8, false, 10);
        pool.limits.requests = 2;
        let taken = taken(&mut pool, 5, Persistence::Keep);
        assert_eq!(taken, [Ok(0), Ok(0), Ok(1), Ok(1), Ok(2)]);
    }
}
