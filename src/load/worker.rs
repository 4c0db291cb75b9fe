//! One worker: its share of the schedule, its connections, its counts.
//!
//! A worker is a thread with a single-threaded runtime. One loop owns all its
//! state and wakes for two reasons: a request is due, or one has ended. Each
//! request in flight is a task that owns its row and its connection and hands
//! both back, so that nothing here is shared or locked.

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::connection::Connection;
use super::exchange::{Context, Ended, Exchange, NotSent, Via};
use super::feed::Feed;
use super::http2;
use super::pacer::Pacer;
use super::plan::{Connections, Http, Settings};
use super::request::Persistence;
use super::schedule::Due;
use super::tally::Tally;
use crate::record::{RequestRow, Stamp};

/// A request that the worker comes to later than this after its intended send
/// time is not sent: it would no longer belong to the load that was asked for.
pub const LATE_LIMIT: Duration = Duration::from_secs(1);

/// Rows leave the worker when there are this many of them,
const BATCH_ROWS: usize = 1024;
/// or when this long has passed.
const BATCH_AGE: Duration = Duration::from_millis(200);
/// Tasks that run before the runtime looks for events again: few, so that a due
/// time is not missed for long.
const TASKS_PER_TURN: u32 = 16;
/// Requests that are released before the tasks get their turn. A request takes some
/// turns of its task, so a worker that is behind must not release as many as run:
/// it would only ever begin.
const RELEASES_PER_TURN: u32 = TASKS_PER_TURN / 4;

/// Rows on their way to the recorder, with the worker's state.
pub(super) struct Batch {
    /// The worker.
    pub(super) worker: usize,
    /// Requests that have ended since the last batch.
    pub(super) rows: Vec<RequestRow>,
    /// Requests that the worker has scheduled so far.
    pub(super) scheduled: u64,
    /// Requests that are in flight.
    pub(super) in_flight: u64,
}

/// What a worker is to do.
pub(super) struct Task {
    /// Its number, from 0.
    pub(super) worker: usize,
    /// What its exchanges share.
    pub(super) context: Arc<Context>,
    /// Its requests.
    pub(super) feed: Feed,
    /// The most connections that it may have open.
    pub(super) max_connections: usize,
    /// Ends its schedule early.
    pub(super) stop: CancellationToken,
    /// Where its rows go. While this is full the worker waits: a recorder that
    /// cannot keep up shows as send lag, not as unbounded memory.
    pub(super) batches: SyncSender<Batch>,
}

/// What a worker did.
pub(super) struct Done {
    /// Requests that it scheduled; each has a row.
    pub(super) scheduled: u64,
    /// What became of them.
    pub(super) tally: Tally,
}

impl Task {
    /// Works until every scheduled request has ended. To be called on a thread of its own.
    ///
    /// # Errors
    /// When the operating system refuses a runtime or a timer.
    pub(super) fn run(self) -> io::Result<Done> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .event_interval(TASKS_PER_TURN)
            .build()?;
        runtime.block_on(async {
            let pacer = Pacer::new(self.context.clock)?;
            Worker::new(self).run(pacer).await
        })
    }
}

struct Worker {
    task: Task,
    scheduled: u64,
    in_flight: JoinSet<Ended>,
    pool: Pool,
    http2: http2::Pool,
    tally: Tally,
    rows: Vec<RequestRow>,
}

impl Worker {
    fn new(task: Task) -> Self {
        let settings = &task.context.plan.settings;
        let limits = Limits {
            connections: task.max_connections,
            requests: settings.max_requests.unwrap_or(u64::MAX),
            age: settings.max_age,
        };
        let pool = Pool::new(task.context.endpoints.len(), limits);
        let limits = http2::Limits {
            connections: task.max_connections,
            is_wanted: settings.max_connections.is_some(),
            streams: task.context.plan.streams(),
            requests: limits.requests,
            age: limits.age,
        };
        let http2 = http2::Pool::new(task.context.endpoints.len(), limits);
        Self {
            task,
            scheduled: 0,
            in_flight: JoinSet::new(),
            pool,
            http2,
            tally: Tally::default(),
            rows: Vec::new(),
        }
    }

    async fn run(mut self, mut pacer: Pacer) -> io::Result<Done> {
        let mut stopped = pin!(self.task.stop.clone().cancelled_owned());
        let mut flush = tokio::time::interval(BATCH_AGE);
        flush.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // Whatever woke the loop: what is due comes first.
            let is_behind = self.release_due();
            let now = self.task.context.clock.now();
            let is_over = self.task.feed.is_over(now);
            let due = self.next(now).map(|next| next.at);
            if is_over && self.in_flight.is_empty() {
                break;
            }
            tokio::select! {
                biased;
                () = &mut stopped, if !is_over => self.end_schedule(),
                () = tokio::task::yield_now(), if is_behind => {}
                reached = pacer.wait_until(due.unwrap_or_default()), if due.is_some() && !is_behind => reached?,
                Some(ended) = self.in_flight.join_next() => match ended {
                    Ok(ended) => self.end(ended),
                    Err(e) => std::panic::resume_unwind(e.into_panic()),
                },
                _ = flush.tick() => self.flush(),
            }
        }
        self.flush();
        Ok(Done { scheduled: self.scheduled, tally: self.tally })
    }

    /// Dispatches the requests whose time has come, in one turn; answers whether some are left.
    fn release_due(&mut self) -> bool {
        for _ in 0..RELEASES_PER_TURN {
            let now = self.task.context.clock.now();
            match self.next(now).filter(|due| due.at <= now) {
                Some(due) => self.release(due, now),
                None => return false,
            }
        }
        true
    }

    /// Dispatches what is due by now, however much that is, and nothing after it. In a closed
    /// loop nothing is ever overdue.
    fn end_schedule(&mut self) {
        let end = self.task.context.clock.now();
        while let Some(due) = self.next(end).filter(|due| due.at <= end && self.task.feed.is_open_loop()) {
            self.release(due, self.task.context.clock.now());
        }
        self.task.feed.end();
    }

    /// The next request, due now or later; `None` while there is none to wait for.
    fn next(&self, now: Stamp) -> Option<Due> {
        self.task.feed.next(now, || match self.task.context.plan.settings {
            Settings { http: Http::Http2, connections: Connections::Keepalive, .. } => self.http2.has_room(),
            _ => self.in_flight.len() < self.task.max_connections,
        })
    }

    fn release(&mut self, due: Due, now: Stamp) {
        self.task.feed.advance(due);
        self.scheduled += 1;
        self.dispatch(due, now);
    }

    fn dispatch(&mut self, due: Due, now: Stamp) {
        let endpoint = endpoint_of(due.index, &self.task.context.plan.cycle);
        let row = self.row(due, endpoint, now);
        let persistence = if self.task.context.plan.settings.connections.is_fresh(due.seq) {
            Persistence::Close
        } else {
            Persistence::Keep
        };
        let via = if now > due.at + LATE_LIMIT {
            Err(NotSent::Late)
        } else if self.task.context.endpoints[endpoint].http2.is_some() {
            self.http2.take(endpoint, persistence, now).map(Via::Http2)
        } else {
            self.pool.take(endpoint, persistence, now).ok_or(NotSent::MaxConnections)
        };
        match via {
            Ok(via) => {
                let context = self.task.context.clone();
                self.in_flight.spawn(Exchange { context, endpoint, via, persistence, row }.run());
            }
            Err(reason) => {
                self.finish(RequestRow { not_sent_reason: Some(reason.as_str().into()), ..row }, endpoint);
            }
        }
    }

    fn row(&self, due: Due, endpoint: usize, now: Stamp) -> RequestRow {
        let context = &self.task.context;
        let target = context.endpoints[endpoint].name.clone();
        RequestRow::not_sent(context.source.clone(), due.seq, target, due.phase, due.at, now)
    }

    fn end(&mut self, ended: Ended) {
        if self.task.context.endpoints[ended.endpoint].http2.is_none() {
            self.pool.give_back(ended.endpoint, ended.connection);
        }
        self.finish(ended.row, ended.endpoint);
    }

    fn finish(&mut self, row: RequestRow, endpoint: usize) {
        self.task.feed.ended(&row);
        let go_replays = self.task.context.endpoints.get(endpoint).is_some_and(|e| e.go_replays);
        self.tally.add(&row, go_replays);
        self.rows.push(row);
        if self.rows.len() >= BATCH_ROWS {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let batch = Batch {
            worker: self.task.worker,
            rows: std::mem::take(&mut self.rows),
            scheduled: self.scheduled,
            in_flight: self.in_flight.len() as u64,
        };
        // The recorder outlives its workers unless it panicked, which ends the run anyway.
        let _ = self.task.batches.send(batch);
    }
}

/// Requests go to the endpoints in turn, as the plan's cycle has it.
fn endpoint_of(index: u64, cycle: &[usize]) -> usize {
    let turn = usize::try_from(index % cycle.len().max(1) as u64).unwrap_or(0);
    cycle.get(turn).copied().unwrap_or(0)
}

/// What connections may do.
#[derive(Clone, Copy)]
struct Limits {
    /// So many may be open.
    connections: usize,
    /// Each may carry so many requests,
    requests: u64,
    /// and no further one when it is older than this.
    age: Option<Duration>,
}

/// The worker's connections: idle ones at hand, those in use counted.
struct Pool {
    /// Per endpoint; the one that has been idle for longest is first.
    idle: Vec<VecDeque<Connection>>,
    in_use: usize,
    limits: Limits,
    next_id: u64,
}

impl Pool {
    fn new(endpoints: usize, limits: Limits) -> Self {
        let idle = std::iter::repeat_with(VecDeque::new).take(endpoints).collect();
        Self { idle, in_use: 0, limits, next_id: 0 }
    }

    /// A connection for one request; `None` when no more are allowed. An idle
    /// one whose close has already arrived is dropped: no request was ever put on it.
    fn take(&mut self, endpoint: usize, persistence: Persistence, now: Stamp) -> Option<Via> {
        if persistence == Persistence::Keep {
            while let Some(mut connection) = self.idle[endpoint].pop_front() {
                let is_young = self.limits.age.is_none_or(|age| now < connection.since + age);
                if is_young && connection.is_idle() {
                    self.in_use += 1;
                    return Some(Via::Idle(connection));
                }
            }
        }
        let open = self.in_use + self.idle.iter().map(VecDeque::len).sum::<usize>();
        // An idle connection that this request cannot use makes room for one that it can.
        if open >= self.limits.connections && !self.idle.iter_mut().any(|idle| idle.pop_front().is_some()) {
            return None;
        }
        self.in_use += 1;
        let id = self.next_id;
        self.next_id += 1;
        Some(Via::Dial(id))
    }

    fn give_back(&mut self, endpoint: usize, connection: Option<Connection>) {
        self.in_use -= 1;
        self.idle[endpoint]
            .extend(connection.filter(|connection| connection.requests < self.limits.requests));
    }
}
