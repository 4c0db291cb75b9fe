//! The connections that an HTTP server holds, and the order in which it closes them.
//!
//! A connection without a request in hand may be closed at any time, as by any HTTP server: when its [`Patience`] is
//! over, or at once when all places are taken and it has been idle longest. So clients that only hold connections keep
//! no others out.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Time for which the server keeps a connection that requests nothing.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Longest time between two requests, and before the first one.
    pub idle: Duration,
    /// Longest time from the first byte of a head to its end.
    pub head: Duration,
}

/// The places for connections.
#[derive(Debug)]
pub struct Places {
    free: Arc<Semaphore>,
    patience: Patience,
    /// Connections that may be closed, longest idle first.
    idle: Mutex<BTreeMap<IdleSince, CancellationToken>>,
    became_idle: Notify,
    next_number: AtomicU64,
}

/// Instant since which a connection has been idle, and its number.
type IdleSince = (Instant, u64);

impl Places {
    /// Returns this many free places.
    pub fn new(count: usize, patience: Patience) -> Arc<Self> {
        Arc::new(Self {
            free: Arc::new(Semaphore::new(count)),
            patience,
            idle: Mutex::default(),
            became_idle: Notify::new(),
            next_number: AtomicU64::new(0),
        })
    }

    /// Takes a place, if need be the one of the connection that has been idle longest.
    pub async fn take(self: &Arc<Self>) -> Option<Place> {
        let free = loop {
            let free = Arc::clone(&self.free);
            if let Ok(free) = Arc::clone(&free).try_acquire_owned() {
                break free;
            }
            let became_idle = self.became_idle.notified();
            let longest_idle = self.lock().pop_first();
            match longest_idle {
                Some((_, close)) => {
                    close.cancel();
                    break free.acquire_owned().await.ok()?;
                }
                None => tokio::select! {
                    free = free.acquire_owned() => break free.ok()?,
                    () = became_idle => {}
                },
            }
        };
        let place = Place {
            places: Arc::clone(self),
            number: self.next_number.fetch_add(1, Ordering::Relaxed),
            state: watch::Sender::new(State::Busy),
            close: CancellationToken::new(),
            _free: free,
        };
        place.enter(|since| State::Idle { since });
        Some(place)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<IdleSince, CancellationToken>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Nothing has come since the last answer.
    Idle { since: Instant },
    /// A head has begun.
    Head { since: Instant },
    /// A request is in hand, or its answer is being sent.
    Busy,
}

impl State {
    fn since(self) -> Option<Instant> {
        match self {
            Self::Idle { since } | Self::Head { since } => Some(since),
            Self::Busy => None,
        }
    }
}

/// The place of one connection; free again when dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    number: u64,
    state: watch::Sender<State>,
    close: CancellationToken,
    _free: OwnedSemaphorePermit,
}

impl Place {
    /// Completes when the connection should be closed.
    pub async fn closing(&self) {
        let mut state = self.state.subscribe();
        loop {
            let ends_at = match *state.borrow_and_update() {
                State::Idle { since } => Some(since + self.places.patience.idle),
                State::Head { since } => Some(since + self.places.patience.head),
                State::Busy => None,
            };
            let closing = async {
                match ends_at {
                    Some(ends_at) => tokio::select! {
                        () = self.close.cancelled() => {}
                        () = tokio::time::sleep_until(ends_at) => {}
                    },
                    // A request that came at the last moment is answered first.
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = closing => return,
                // The sender is ours.
                _ = state.changed() => {}
            }
        }
    }

    /// Notes that a request has come; the request ends when the guard is dropped.
    pub fn begin_request(self: &Arc<Self>) -> InHand {
        self.enter(|_| State::Busy);
        InHand(Arc::clone(self))
    }

    fn begin_head(&self) {
        if matches!(*self.state.borrow(), State::Idle { .. }) {
            self.enter(|since| State::Head { since });
        }
    }

    fn enter(&self, state: impl FnOnce(Instant) -> State) {
        let state = state(Instant::now());
        let before = self.state.send_replace(state);
        let mut idle = self.places.lock();
        if let Some(since) = before.since() {
            idle.remove(&(since, self.number));
        }
        if let Some(since) = state.since()
            && !self.close.is_cancelled()
        {
            idle.insert((since, self.number), self.close.clone());
            drop(idle);
            self.places.became_idle.notify_waiters();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(since) = self.state.borrow().since() {
            self.places.lock().remove(&(since, self.number));
        }
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub struct InHand(Arc<Place>);

impl Drop for InHand {
    fn drop(&mut self) {
        self.0.enter(|since| State::Idle { since });
    }
}

/// The body of an answer, at whose end the request is no longer in hand.
pub struct AnswerBody<B> {
    /// The body itself.
    pub body: B,
    /// The request that it answers.
    pub _request: InHand,
}

impl<B: Body + Unpin> Body for AnswerBody<B> {
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

/// A connection's stream, which notices when a request begins.
pub struct Noticed<S> {
    /// The stream itself.
    pub stream: S,
    /// Place of the connection.
    pub place: Arc<Place>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Noticed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if buffer.filled().len() > before {
            self.place.begin_head();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Noticed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
    const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
    const PATIENCE: Patience = Patience { idle: IDLE_TIMEOUT, head: HEAD_TIMEOUT };

    #[tokio::test(start_paused = true)]
    async fn longest_idle_connection_makes_room_first() {
        let places = Places::new(2, PATIENCE);
        let first = Arc::new(places.take().await.unwrap());
        let request = first.begin_request();
        tokio::time::advance(Duration::from_secs(1)).await;
        let second = places.take().await.unwrap();
        let (third, ()) = tokio::join!(places.take(), async {
            second.closing().await;
            drop(second);
        });
        let third = Arc::new(third.unwrap());
        assert!(first.closing().now_or_never().is_none());

        // All are busy: one more waits until one of them is not.
        let another = third.begin_request();
        let mut fourth = Box::pin(places.take());
        assert!(fourth.as_mut().now_or_never().is_none());
        drop(request);
        let (fourth, ()) = tokio::join!(fourth, async {
            first.closing().await;
            drop(first);
        });
        assert!(fourth.is_some());
        drop(another);
        assert!(third.closing().now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn unfinished_heads_close_before_idle_connections() {
        let places = Places::new(1, PATIENCE);
        let place = Arc::new(places.take().await.unwrap());
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
}
