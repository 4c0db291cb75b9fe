//! Limits the connections that an HTTP server holds, and decides the order in which it closes them.
//!
//! Like any HTTP server, this one may close a connection without a request in progress at any time: when its
//! [`Patience`] runs out, or immediately if all places are taken. In the latter case, the address with the most idle
//! connections loses the one that has been idle longest so that a crowd of idle connections cannot keep other clients
//! out.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use tokio::io::AsyncRead;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;
use tokio_util::io::InspectReader;
use tokio_util::sync::CancellationToken;

/// Time limits for a connection without a request in progress.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Maximum time between two requests, and before the first one.
    pub idle: Duration,
    /// Maximum time from the first byte of a head to its end.
    pub head: Duration,
}

/// Limited set of places for connections.
#[derive(Debug)]
pub struct Places {
    free: Arc<Semaphore>,
    patience: Patience,
    /// Connections that may be closed, longest idle first, each with its peer address.
    idle: Mutex<BTreeMap<IdleSince, (IpAddr, CancellationToken)>>,
    became_idle: Notify,
    next_number: AtomicU64,
}

/// Instant since which a connection has been idle, and the connection's number.
type IdleSince = (Instant, u64);

impl Places {
    /// Creates `count` free places.
    pub fn new(count: usize, patience: Patience) -> Arc<Self> {
        Arc::new(Self {
            free: Arc::new(Semaphore::new(count)),
            patience,
            idle: Mutex::default(),
            became_idle: Notify::new(),
            next_number: AtomicU64::new(0),
        })
    }

    /// Takes a place for a connection from `peer`, closing an idle connection if necessary.
    pub async fn take(self: &Arc<Self>, peer: IpAddr) -> Arc<ConnectionPlace> {
        let free = loop {
            let became_idle = self.became_idle.notified();
            if let Ok(free) = Arc::clone(&self.free).try_acquire_owned() {
                break Some(free);
            }
            let next_free = Arc::clone(&self.free).acquire_owned();
            match self.remove_from_crowd() {
                Some(close) => {
                    close.cancel();
                    break next_free.await.ok();
                }
                None => tokio::select! {
                    free = next_free => break free.ok(),
                    () = became_idle => {}
                },
            }
        };
        let place = ConnectionPlace {
            places: Arc::clone(self),
            peer: peer.to_canonical(),
            number: self.next_number.fetch_add(1, Ordering::Relaxed),
            state: watch::Sender::new(PlaceState::Busy),
            close: CancellationToken::new(),
            free: Mutex::new(free),
        };
        place.enter(|since| PlaceState::Idle { since });
        Arc::new(place)
    }

    /// Removes the longest-idle connection of the address that has the most idle connections.
    fn remove_from_crowd(&self) -> Option<CancellationToken> {
        let mut idle = lock(&self.idle);
        let mut addresses = HashMap::<IpAddr, (usize, Reverse<IdleSince>)>::new();
        for (since, (peer, _)) in &*idle {
            addresses.entry(*peer).or_insert((0, Reverse(*since))).0 += 1;
        }
        let (_, Reverse(longest)) = addresses.into_values().max()?;
        idle.remove(&longest).map(|(_, close)| close)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone, Copy, Debug)]
enum PlaceState {
    /// Nothing has arrived since the last response.
    Idle { since: Instant },
    /// Part of a head has arrived.
    Head { since: Instant },
    /// A request is being served, or its response is being sent.
    Busy,
}

impl PlaceState {
    fn since(self) -> Option<Instant> {
        match self {
            Self::Idle { since } | Self::Head { since } => Some(since),
            Self::Busy => None,
        }
    }
}

/// The place of one connection, which becomes free when this is dropped.
#[derive(Debug)]
pub struct ConnectionPlace {
    places: Arc<Places>,
    peer: IpAddr,
    number: u64,
    state: watch::Sender<PlaceState>,
    close: CancellationToken,
    /// Permit that holds the place; `None` after [`ConnectionPlace::keep`].
    free: Mutex<Option<OwnedSemaphorePermit>>,
}

impl ConnectionPlace {
    /// Completes when the connection should be closed.
    pub async fn closing(&self) {
        let mut state = self.state.subscribe();
        loop {
            let ends_at = match *state.borrow_and_update() {
                PlaceState::Idle { since } => Some(since + self.places.patience.idle),
                PlaceState::Head { since } => Some(since + self.places.patience.head),
                PlaceState::Busy => None,
            };
            let closing = async {
                match ends_at {
                    Some(ends_at) => tokio::select! {
                        () = self.close.cancelled() => {}
                        () = tokio::time::sleep_until(ends_at) => {}
                    },
                    // A request that arrived at the last moment is served first.
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = closing => return,
                // This struct owns the sender, so it cannot be gone.
                _ = state.changed() => {}
            }
        }
    }

    /// Marks the beginning of a request; dropping the guard marks its end.
    pub fn begin_request(self: &Arc<Self>) -> InHand {
        self.enter(|_| PlaceState::Busy);
        InHand(Arc::clone(self))
    }

    /// Exempts the connection from closing, and releases its place to others.
    pub fn keep(&self) {
        self.enter(|_| PlaceState::Busy);
        lock(&self.free).take();
    }

    /// Wraps the connection's `stream` to detect the beginning of a request.
    pub fn noticing<S: AsyncRead>(
        self: &Arc<Self>,
        stream: S,
    ) -> InspectReader<S, impl FnMut(&[u8]) + use<S>> {
        let place = Arc::clone(self);
        InspectReader::new(stream, move |bytes: &[u8]| {
            if !bytes.is_empty() {
                place.begin_head();
            }
        })
    }

    fn begin_head(&self) {
        if matches!(*self.state.borrow(), PlaceState::Idle { .. }) {
            self.enter(|since| PlaceState::Head { since });
        }
    }

    fn enter(&self, state: impl FnOnce(Instant) -> PlaceState) {
        let state = state(Instant::now());
        let before = self.state.send_replace(state);
        let mut idle = lock(&self.places.idle);
        if let Some(since) = before.since() {
            idle.remove(&(since, self.number));
        }
        if let Some(since) = state.since()
            && !self.close.is_cancelled()
        {
            idle.insert((since, self.number), (self.peer, self.close.clone()));
            drop(idle);
            self.places.became_idle.notify_waiters();
        }
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        if let Some(since) = self.state.borrow().since() {
            lock(&self.places.idle).remove(&(since, self.number));
        }
    }
}

/// Guard for a request in progress.
#[derive(Debug)]
pub struct InHand(Arc<ConnectionPlace>);

impl Drop for InHand {
    fn drop(&mut self) {
        self.0.enter(|since| PlaceState::Idle { since });
    }
}

/// A response body that marks the end of its request when it ends.
pub struct TrackedBody<B> {
    /// The wrapped body.
    pub body: B,
    /// Guard for the request that this body responds to.
    pub _request: InHand,
}

impl<B: Body + Unpin> Body for TrackedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures::FutureExt;

    use super::*;

    const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
    const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
    const CROWD: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
    const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const PATIENCE: Patience = Patience { idle: IDLE_TIMEOUT, head: HEAD_TIMEOUT };

    #[tokio::test(start_paused = true)]
    async fn longest_idle_connection_makes_room_first() {
        let places = Places::new(2, PATIENCE);
        let first = places.take(CROWD).await;
        let request = first.begin_request();
        tokio::time::advance(Duration::from_secs(1)).await;
        let second = places.take(CROWD).await;
        let (third, ()) = tokio::join!(places.take(CROWD), async {
            second.closing().await;
            drop(second);
        });
        assert!(first.closing().now_or_never().is_none());

        // All connections are busy, so a new one waits until one of them becomes idle.
        let another = third.begin_request();
        let mut fourth = Box::pin(places.take(CROWD));
        assert!(fourth.as_mut().now_or_never().is_none());
        drop(request);
        tokio::join!(fourth, async {
            first.closing().await;
            drop(first);
        });
        drop(another);
        assert!(third.closing().now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn unfinished_heads_close_before_idle_connections() {
        let places = Places::new(1, PATIENCE);
        let place = places.take(CROWD).await;
        tokio::time::advance(IDLE_TIMEOUT - Duration::from_secs(1)).await;
        assert!(place.closing().now_or_never().is_none());
        place.begin_head();
        let begun = Instant::now();
        place.closing().await;
        assert!(begun.elapsed() >= HEAD_TIMEOUT && begun.elapsed() < IDLE_TIMEOUT);
        drop(place.begin_request());
        let begun = Instant::now();
        place.closing().await;
        assert!(begun.elapsed() >= IDLE_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn crowded_address_makes_room_for_others() {
        let places = Places::new(3, PATIENCE);
        let early = places.take(OTHER).await;
        let crowd = [places.take(CROWD).await, places.take(CROWD).await];
        let [first, second] = crowd;
        tokio::join!(places.take(CROWD), async {
            first.closing().await;
            drop(first);
        });
        assert!(early.closing().now_or_never().is_none() && second.closing().now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn kept_connection_frees_its_place() {
        let places = Places::new(1, PATIENCE);
        let kept = places.take(CROWD).await;
        kept.keep();
        let next = places.take(CROWD).await;
        tokio::time::advance(IDLE_TIMEOUT).await;
        assert!(kept.closing().now_or_never().is_none() && next.closing().now_or_never().is_some());
    }
}
