//! The client connections of a proxy: accepting them, and closing idle ones to make room.
//!
//! A peer can hold a connection open for as long as the app allows. To prevent a crowd of such peers from keeping
//! everyone else out, a full proxy closes an idle connection when another one arrives, as nginx does when it runs out
//! of connections. It chooses a connection from the address with the most idle ones so that an address with few keeps
//! them. No other connection is closed; new ones wait in the kernel's accept queue until one becomes idle. There is no
//! limit per address, because a gateway's address represents all of the gateway's clients.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::budget::Unrecorded;
use super::origin::RowOrigin;
use super::proxied_connection::{self, Accepted};
use super::sides::Idleness;
use super::{ProxyState, admin, reap};
use rolldrop_record::Stamp;
use rolldrop_record::event::ProxyPhase;

/// Interval at which the drain checks for completion.
pub(super) const DRAIN_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum wait at the end of the drain for connections whose protocol is not yet known.
const LAST_WORDS: Duration = Duration::from_millis(80);
/// Length of a tick. The proxy counts ticks while it may become full.
const TICK: Duration = Duration::from_millis(500);

/// Returns the number of silent ticks after which a connection may have to make room.
const fn patience_ticks(idleness: Idleness) -> u32 {
    match idleness {
        Idleness::NoRequest => 3,
        Idleness::Stalled => 10,
        Idleness::Unanswered => 120,
    }
}

/// Accepts a connection from any of the listeners. `turn` is the number of the listener that comes first, so that none is
/// left out while another is busy.
async fn accept_any(listeners: &[TcpListener], turn: u64) -> io::Result<(TcpStream, SocketAddr)> {
    let first = usize::try_from(turn).unwrap_or_default() % listeners.len();
    let in_turn = listeners[first..].iter().chain(&listeners[..first]);
    poll_fn(|context| {
        let accepted = in_turn.clone().map(|listener| listener.poll_accept(context)).find(Poll::is_ready);
        accepted.unwrap_or(Poll::Pending)
    })
    .await
}

type DynUntil<'a> = Pin<&'a mut (dyn Future<Output = ()> + Send + 'a)>;

/// The data port and its connections.
pub(super) struct DataPort {
    /// Listeners at the same port of several addresses.
    listeners: Vec<TcpListener>,
    shared: Arc<ProxyState>,
    connections: JoinSet<()>,
    /// State of each connection, by task id.
    places: HashMap<Id, AcceptedClient>,
    /// Connections that may have to make room, all found at the same tick, each with its kind of idleness and the tick
    /// at which it became idle. The last one makes room first.
    idle: Vec<(Id, (Idleness, u32))>,
    /// Tick at which `idle` was computed.
    idle_at: Option<u32>,
    pub(super) accepted: u64,
    pub(super) last_accepted: Option<Stamp>,
}

struct AcceptedClient {
    origin: Arc<RowOrigin>,
    peer: IpAddr,
    task: AbortHandle,
}

impl DataPort {
    /// Returns the port, without connections.
    pub(super) fn new(listeners: Vec<TcpListener>, shared: Arc<ProxyState>) -> Self {
        Self {
            listeners,
            shared,
            connections: JoinSet::new(),
            places: HashMap::new(),
            idle: Vec::new(),
            idle_at: None,
            accepted: 0,
            last_accepted: None,
        }
    }

    /// Accepts and relays connections until `until` is ready.
    pub(super) async fn accept_until(&mut self, until: impl Future<Output = ()> + Send) {
        self.accept(pin!(until)).await;
    }

    // Neither generic nor async, so it is compiled in this crate, with this crate's optimisations, and not where it is
    // awaited.
    fn accept<'a>(&'a mut self, until: DynUntil<'a>) -> BoxFuture<'a, ()> {
        self.accept_each(until).boxed()
    }

    async fn accept_each(&mut self, mut until: DynUntil<'_>) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            let most = self.shared.budget.connections;
            let has_place = self.places.len() < most;
            let idlest = if has_place { None } else { self.idlest() };
            tokio::select! {
                biased;
                () = &mut until => return,
                _ = ticks.tick(), if self.places.len() >= most / 2 => {
                    self.shared.ticks.fetch_add(1, Ordering::Relaxed);
                }
                // Finished tasks keep their memory until they are joined.
                Some(ended) = self.connections.join_next_with_id() => self.ended(ended),
                accepted = accept_any(&self.listeners, self.accepted), if has_place || idlest.is_some() => match accepted {
                    Ok((stream, peer)) => {
                        if let Some(idlest) = idlest {
                            self.close(idlest);
                        }
                        self.relay(stream, peer);
                    }
                    Err(error) => {
                        self.shared.trouble("failed to accept a connection", &error);
                        tokio::time::sleep(admin::ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }

    /// Returns the next connection to make room, if one has been idle for long enough.
    fn idlest(&mut self) -> Option<Id> {
        let now = self.shared.ticks.load(Ordering::Relaxed);
        if self.idle.is_empty() && self.idle_at != Some(now) {
            self.idle = self.find_idle(now);
            self.idle_at = Some(now);
        }
        while let Some((id, was)) = self.idle.last() {
            if self.places.get(id).is_some_and(|place| place.origin.sides.idle() == *was) {
                return Some(*id);
            }
            self.idle.pop();
        }
        None
    }

    /// Returns the connections that have been idle for long enough, in reverse order: the last one makes room first.
    /// Connections that wait for the app make room after all others. Within each group, those from the address with the
    /// most connections make room first; an address with at most half as many keeps its connections.
    fn find_idle(&self, now: u32) -> Vec<(Id, (Idleness, u32))> {
        let idle = self.places.iter().filter_map(|(id, place)| {
            let was = place.origin.sides.idle();
            let kind = (place.peer, was.0 == Idleness::Unanswered);
            (was.1 < now).then_some((*id, kind, was))
        });
        let mut has = HashMap::<(IpAddr, bool), usize>::new();
        for (_, kind, _) in idle.clone() {
            *has.entry(kind).or_default() += 1;
        }
        let most = |of: &dyn Fn(bool) -> bool| {
            has.iter().filter(|((_, waits), _)| of(*waits)).map(|(_, has)| *has).max().unwrap_or_default()
        };
        let (most_idle, most) = (most(&|waits| !waits), most(&|_| true));
        let makes_room = |(_, kind, (idleness, since)): &(Id, (IpAddr, bool), (Idleness, u32))| {
            let is_crowd = has[kind] > self.shared.budget.connections / 2;
            let patience = match idleness {
                Idleness::Stalled if is_crowd => Idleness::NoRequest,
                idleness => *idleness,
            };
            let most = if kind.1 { most } else { most_idle };
            2 * has[kind] > most && now.saturating_sub(*since) >= patience_ticks(patience)
        };
        let mut idle: Vec<_> = idle.filter(makes_room).collect();
        idle.sort_unstable_by_key(|(_, kind, was)| Reverse((kind.1, Reverse(has[kind]), *was)));
        idle.into_iter().map(|(id, _, was)| (id, was)).collect()
    }

    /// Closes a connection to make room.
    fn close(&mut self, id: Id) {
        let Some(place) = self.places.remove(&id) else { return };
        // A request in flight gets a row that shows this outcome.
        self.shared.journal.made_room(place.origin.sides.give_way());
        place.task.abort();
    }

    fn relay(&mut self, stream: TcpStream, peer: SocketAddr) {
        let at = self.shared.clock.now();
        let conn = self.accepted;
        self.accepted += 1;
        self.last_accepted = Some(at);
        let (pending, open) = (self.shared.pending.take(), self.shared.open.take());
        let origin = Arc::new(RowOrigin::new(self.shared.clone(), peer, at, conn));
        let accepted = Accepted { stream, origin: origin.clone(), pending, open };
        let task = self.connections.spawn(proxied_connection::serve(accepted));
        let peer = peer.ip().to_canonical();
        self.places.insert(task.id(), AcceptedClient { origin, peer, task });
    }

    /// Accepts connections until the app is gone and the requests in flight are finished, then a little longer to catch
    /// late connections; `limit` cuts the drain short.
    pub(super) async fn drain(&mut self, limit: impl Future<Output = ()> + Send, linger: Duration) {
        let shared = self.shared.clone();
        let mut drained = None;
        let steps = async {
            while !(shared.is_app_gone() && shared.in_flight.count() == 0) {
                tokio::time::sleep(DRAIN_INTERVAL).await;
            }
            drained = Some(shared.clock.now());
            tokio::time::sleep(linger).await;
        };
        self.accept_until(async {
            tokio::select! {
                () = steps => {}
                () = limit => {}
            }
        })
        .await;
        // To the client, connections in the kernel's queue look accepted. They are reset, and recorded if there is room
        // for one more connection.
        while let Some(Ok((stream, peer))) = accept_any(&self.listeners, self.accepted).now_or_never() {
            if self.places.len() < shared.budget.connections {
                self.relay(stream, peer);
            } else {
                shared.journal.unrecorded(Unrecorded::Connections);
                let _ = stream.set_zero_linger();
            }
        }
        let all_clear = async {
            while shared.pending.count() > 0 {
                tokio::time::sleep(DRAIN_INTERVAL).await;
            }
        };
        // A connection that sends nothing in that time loses nothing.
        self.accept_until(async {
            let _ = timeout(LAST_WORDS, all_clear).await;
        })
        .await;
        // All remaining connections are reset, and their requests are recorded as cancelled.
        self.connections.shutdown().await;
        self.shared.journal.phase(ProxyPhase::Drained, drained.unwrap_or_else(|| self.shared.clock.now()));
    }

    fn ended(&mut self, ended: Result<(Id, ()), JoinError>) {
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, ())| *id);
        self.places.remove(&id);
        reap(ended.map(|(_, ())| ()));
    }
}
