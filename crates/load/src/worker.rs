//! One worker thread: its share of the schedule, its connections and its counts.
//!
//! A worker is a thread with a single-threaded runtime. Its loop wakes when a request is due and hands it to a lane: a
//! task that serves one request after another. A new lane is created when all others are busy, and is kept afterwards.
//! A lane that finishes takes the next request itself if that request is already due, which is always the case in a
//! closed loop. The loop and the lanes borrow the worker's state in turn, never across an await; the state is neither
//! locked nor shared with other threads, and sending a request allocates nothing.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::mpsc::SyncSender;
use std::task::{Poll, Waker};
use std::time::Duration;

use tokio::runtime::LocalOptions;
use tokio::sync::Notify;
use tokio::task::{JoinSet, yield_now};
use tokio::time::MissedTickBehavior;

use super::connection::Connection;
use super::control::Control;
use super::due_timer::DueTimer;
use super::exchange::{Exchange, Via};
use super::exchange_context::ExchangeContext;
use super::feed::RequestFeed;
use super::http1_pool::Http1Pool;
use super::http2_client::{Http2Pool, PoolLimits};
use super::late_requests;
use super::not_sent_reason::NotSentReason;
use super::open_streams::OpenRows;
use super::request::Persistence;
use super::schedule::DueRequest;
use super::source_port_pool::SourcePorts;
use super::tally::Tally;
use super::websocket_client;
use rolldrop_record::event::AnswerHeaders;
use rolldrop_record::load::{ConnectionMode, Http};
use rolldrop_record::{GapRow, RequestRow, Stamp, StreamRow};

/// Number of rows at which the worker flushes a batch; that many still fit in the processor's cache.
const BATCH_ROWS: usize = 512;
/// Maximum age of a batch before the worker flushes it.
const BATCH_AGE: Duration = Duration::from_millis(200);
/// Number of tasks that the runtime polls before it checks for events; small enough that no due time is missed by much.
const TASKS_PER_TURN: u32 = 16;
/// Number of requests released before the lanes get their turn. A request takes several turns of its lane, so this is
/// well below [`TASKS_PER_TURN`]; otherwise, a worker that is behind would do nothing but start requests.
const RELEASES_PER_TURN: u32 = TASKS_PER_TURN / 4;

/// Rows on their way to the recorder, with counts from the worker.
pub(super) struct RowBatch {
    /// The worker's number.
    pub(super) worker: usize,
    /// Rows of requests that ended since the last batch.
    pub(super) rows: Vec<RequestRow>,
    /// Rows of streams that ended since the last batch, in any order.
    pub(super) streams: Vec<StreamRow>,
    /// Times between the events of streams.
    pub(super) gaps: Vec<GapRow>,
    /// Streams that are open, if it is time to list them.
    pub(super) open: Option<OpenRows>,
    /// Number of requests that the worker has scheduled so far.
    pub(super) scheduled: u64,
    /// Number of requests in flight.
    pub(super) in_flight: u64,
}

/// A worker's input.
pub(super) struct Task {
    /// The worker's number, from 0.
    pub(super) worker: usize,
    /// State shared by the worker's exchanges.
    pub(super) context: ExchangeContext,
    /// Requests to send.
    pub(super) feed: RequestFeed,
    /// Maximum number of open connections.
    pub(super) max_connections: usize,
    /// Control of the load, which may end the schedule early or abort all exchanges immediately.
    pub(super) control: Control,
    /// Channel for rows. While it is full, the worker waits, so that a recorder that cannot keep up causes send lag
    /// instead of unbounded memory use.
    pub(super) batches: SyncSender<RowBatch>,
}

/// A worker's results.
pub(super) struct WorkerResult {
    /// Number of scheduled requests; each has a row.
    pub(super) scheduled: u64,
    /// Counts and histograms of the scheduled requests.
    pub(super) tally: Tally,
    /// Response header statistics, by target.
    pub(super) answers: Vec<AnswerHeaders>,
    /// Number of times the worker took a source port.
    pub(super) ports_taken: usize,
}

impl Task {
    /// Runs until every scheduled request has ended. Call it on a separate thread.
    ///
    /// # Errors
    /// Returns an error if the operating system cannot create a runtime or a timer.
    pub(super) fn run(self) -> io::Result<WorkerResult> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .event_interval(TASKS_PER_TURN)
            .build_local(LocalOptions::default())?;
        runtime.block_on(async {
            let timer = DueTimer::new(self.context.clock, self.context.plan.settings.spin)?;
            let control = self.control.clone();
            let worker = Rc::new(Worker::new(self));
            worker.run(timer, &control).await?;
            let mut state = worker.state.borrow_mut();
            let answers = worker.context.endpoints.iter();
            let answers =
                answers.map(|endpoint| endpoint.answers.borrow().of_target(&endpoint.name)).collect();
            Ok(WorkerResult {
                scheduled: state.scheduled,
                tally: std::mem::take(&mut state.tally),
                answers,
                ports_taken: worker.context.ports.as_ref().map_or(0, SourcePorts::taken),
            })
        })
    }
}

struct Worker {
    context: ExchangeContext,
    /// HTTP/2 connections, which the exchanges share with the worker's state.
    http2: Rc<RefCell<Http2Pool>>,
    state: RefCell<WorkerState>,
    /// Notified by a lane when the loop must check the state.
    turn: Notify,
}

impl Worker {
    fn new(task: Task) -> Self {
        let settings = &task.context.plan.settings;
        let limits = PoolLimits {
            connections: task.max_connections,
            is_wanted: settings.connections.max.is_some(),
            streams: settings.max_concurrent_streams(),
            awaits: settings.http == Http::Http2,
            requests: settings.connections.max_requests.unwrap_or(u64::MAX),
            age: settings.connections.max_age,
        };
        let http2 = Http2Pool::new(task.context.endpoints.len(), limits);
        let http2 = Rc::new(RefCell::new(http2));
        let state = WorkerState {
            worker: task.worker,
            pool: Http1Pool::new(task.context.endpoints.len(), limits),
            http2: Rc::clone(&http2),
            shares_streams: settings.http != Http::Http1
                && settings.connections.mode == ConnectionMode::Keepalive,
            feed: task.feed,
            batches: task.batches,
            scheduled: 0,
            in_flight: 0,
            lanes: Vec::new(),
            resting: Vec::new(),
            tally: Tally::default(),
            rows: Vec::new(),
        };
        Self { context: task.context, http2, state: RefCell::new(state), turn: Notify::new() }
    }

    async fn run(self: &Rc<Self>, mut timer: DueTimer, control: &Control) -> io::Result<()> {
        let mut lanes = JoinSet::new();
        let (mut stopped, mut aborted) = (pin!(control.stop.cancelled()), pin!(control.abort.cancelled()));
        let mut deadlines = pin!(self.context.deadlines.keep());
        let mut streams = pin!(self.context.poll_streams());
        let mut flush = tokio::time::interval(BATCH_AGE);
        flush.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            // The loop may have woken for any reason; due requests come first.
            let is_behind = self.release_due(&mut lanes);
            let now = self.context.clock.now();
            let (due, is_over, is_idle) = {
                let state = self.state.borrow();
                (state.next(now).map(|next| next.at), state.feed.is_over(now), state.in_flight == 0)
            };
            if is_over && is_idle {
                break;
            }
            tokio::select! {
                biased;
                () = &mut stopped, if !is_over => self.end_schedule(&mut lanes),
                () = &mut aborted, if !self.context.is_aborted.get() => self.abort(),
                () = yield_now(), if is_behind => {}
                reached = timer.wait_until(due.unwrap_or_default()), if due.is_some() && !is_behind => reached?,
                () = self.turn.notified() => {}
                never = &mut deadlines => match never {},
                failed = &mut streams => match failed? {},
                Some(Err(e)) = lanes.join_next() => std::panic::resume_unwind(e.into_panic()),
                _ = flush.tick() => self.state.borrow_mut().flush(&self.context),
            }
        }
        self.state.borrow_mut().flush(&self.context);
        let kept = self.state.borrow_mut().pool.take_idle();
        if !self.context.is_aborted.get() {
            websocket_client::take_leave(kept.into_iter().filter(|connection| connection.is_websocket)).await;
        }
        Ok(())
    }

    /// Dispatches the requests that are due, up to one turn's worth; returns true if some are left.
    fn release_due(self: &Rc<Self>, lanes: &mut JoinSet<()>) -> bool {
        for _ in 0..RELEASES_PER_TURN {
            let released = self.state.borrow_mut().release(&self.context, self.context.clock.now());
            match released {
                Some(Ok(exchange)) => self.give(exchange, lanes),
                Some(Err(_)) => {}
                None => return false,
            }
        }
        true
    }

    /// Dispatches all requests that are due by now, without a limit, and then ends the schedule. In a closed loop
    /// nothing is ever overdue.
    fn end_schedule(self: &Rc<Self>, lanes: &mut JoinSet<()>) {
        let end = self.context.clock.now();
        loop {
            let mut state = self.state.borrow_mut();
            if !state.feed.is_open_loop() || state.next(end).is_none_or(|due| due.at > end) {
                return state.feed.end();
            }
            let released = state.release(&self.context, self.context.clock.now());
            drop(state);
            if let Some(Ok(exchange)) = released {
                self.give(exchange, lanes);
            }
        }
    }

    /// Aborts all exchanges; each ends at its next turn, which comes immediately.
    fn abort(&self) {
        self.context.is_aborted.set(true);
        for lane in &self.state.borrow().lanes {
            lane.waker.wake_by_ref();
        }
    }

    /// Hands a request to a lane.
    fn give(self: &Rc<Self>, exchange: Exchange, lanes: &mut JoinSet<()>) {
        let mut state = self.state.borrow_mut();
        match state.resting.pop() {
            Some(lane) => {
                state.lanes[lane].next = Some(exchange);
                state.lanes[lane].waker.wake_by_ref();
            }
            None => {
                let lane = state.lanes.len();
                state.lanes.push(RequestLane { next: Some(exchange), waker: Waker::noop().clone() });
                lanes.spawn_local(Rc::clone(self).serve(lane));
            }
        }
    }

    async fn serve(self: Rc<Self>, lane: usize) {
        poll_fn(|context| {
            self.state.borrow_mut().lanes[lane].waker.clone_from(context.waker());
            Poll::Ready(())
        })
        .await;
        loop {
            let next = poll_fn(|_| match self.state.borrow_mut().lanes[lane].next.take() {
                Some(exchange) => Poll::Ready(exchange),
                None => Poll::Pending,
            });
            let mut place = Some(next.await);
            while let Some(exchange) = &mut place {
                let ended = exchange.run(&self.context, &self.http2).await;
                self.end(&mut place, ended, lane);
                // Let other lanes close their connections first. A server wakes only once for connections that arrive
                // back to back, but once per connection if they arrive singly.
                if place.as_ref().is_some_and(|next| next.via.is_to_dial()) {
                    yield_now().await;
                }
            }
        }
    }

    /// Ends the current request of a lane. If another request is due, that one replaces it; otherwise the lane rests.
    fn end(&self, place: &mut Option<Exchange>, at: Stamp, lane: usize) {
        let state = &mut *self.state.borrow_mut();
        state.in_flight -= 1;
        if let Some(exchange) = place.as_mut() {
            let endpoint = exchange.endpoint;
            if self.context.endpoints[endpoint].http2.is_none() {
                state.pool.give_back(endpoint, exchange.via.take());
            }
            state.count(&self.context, &exchange.row, endpoint);
        }
        state.keep(&self.context, place.take().map(|exchange| exchange.row));
        *place = state.release(&self.context, at).and_then(Result::ok);
        if place.is_some() {
            return;
        }
        // In an open loop, the worker's loop already has the next due time. In a closed loop, that time has just
        // changed.
        let is_drained = state.in_flight == 0 && state.feed.is_over(at);
        if is_drained || !state.feed.is_open_loop() {
            self.turn.notify_one();
        }
        state.resting.push(lane);
    }
}

/// Slot of one task, which serves the requests that are put here.
struct RequestLane {
    next: Option<Exchange>,
    waker: Waker,
}

struct WorkerState {
    worker: usize,
    feed: RequestFeed,
    batches: SyncSender<RowBatch>,
    scheduled: u64,
    /// Number of requests in flight, each in its own lane.
    in_flight: usize,
    lanes: Vec<RequestLane>,
    /// Indexes of idle lanes.
    resting: Vec<usize>,
    pool: Http1Pool,
    http2: Rc<RefCell<Http2Pool>>,
    /// True if requests share connections, so that there may be more requests than connections.
    shares_streams: bool,
    tally: Tally,
    rows: Vec<RequestRow>,
}

impl WorkerState {
    /// Returns the next request, whether due now or later; `None` if there is currently nothing to wait for.
    fn next(&self, now: Stamp) -> Option<DueRequest> {
        self.feed.next(now, || match self.shares_streams {
            true => self.http2.borrow().has_room(),
            false => self.in_flight < self.pool.limits.connections,
        })
    }

    /// Takes the next request from the schedule if it is already due. A request that cannot be sent ends here.
    fn release(&mut self, context: &ExchangeContext, now: Stamp) -> Option<Result<Exchange, NotSentReason>> {
        let due = self.next(now).filter(|due| due.at <= now)?;
        self.feed.advance(due);
        self.scheduled += 1;
        let settings = &context.plan.settings;
        let endpoint = endpoint_of(due.index, &context.plan.cycle);
        let target = context.endpoints[endpoint].name.clone();
        let row = RequestRow::not_sent(context.source.clone(), due.seq, target, due.phase, due.at, now);
        let persistence =
            if settings.connections.is_fresh(due.seq) { Persistence::Close } else { Persistence::Keep };
        let via = if late_requests::is_too_late(due.at, now) {
            Err(NotSentReason::Late)
        } else if context.endpoints[endpoint].http2.is_some() {
            self.http2.borrow_mut().take(endpoint, persistence, now).map(|ticket| Via::Http2(Some(ticket)))
        } else {
            let is_usable = match context.endpoints[endpoint].websocket {
                None => Connection::is_idle,
                Some(_) => websocket_client::is_open,
            };
            self.pool.take(endpoint, persistence, is_usable, now).ok_or(match settings.stream {
                None => NotSentReason::MaxConnections,
                Some(_) => NotSentReason::MaxOpen,
            })
        };
        Some(match via {
            Ok(via) => {
                self.in_flight += 1;
                Ok(Exchange { endpoint, via, persistence, row })
            }
            Err(reason) => {
                let row = RequestRow { not_sent_reason: Some(reason.as_str().into()), ..row };
                self.count(context, &row, endpoint);
                self.keep(context, Some(row));
                Err(reason)
            }
        })
    }

    fn count(&mut self, context: &ExchangeContext, row: &RequestRow, endpoint: usize) {
        self.feed.ended(row);
        let go_replays = context.endpoints.get(endpoint).is_some_and(|e| e.go_replays);
        self.tally.add(row, go_replays);
    }

    /// Queues a row for the recorder.
    fn keep(&mut self, context: &ExchangeContext, row: Option<RequestRow>) {
        self.rows.extend(row);
        if self.rows.len() >= BATCH_ROWS {
            self.flush(context);
        }
    }

    fn flush(&mut self, context: &ExchangeContext) {
        let now = context.clock.now();
        let batch = RowBatch {
            worker: self.worker,
            rows: std::mem::replace(&mut self.rows, Vec::with_capacity(BATCH_ROWS)),
            streams: context.streams.take_ended(),
            gaps: context.streams.take_gaps(now),
            open: context.streams.list(now),
            scheduled: self.scheduled,
            in_flight: self.in_flight as u64,
        };
        // The recorder outlives its workers unless it panicked, which ends the run anyway.
        let _ = self.batches.send(batch);
    }
}

/// Returns the endpoint for a request: requests rotate through the endpoints in the order of the plan's cycle.
fn endpoint_of(index: u64, cycle: &[usize]) -> usize {
    let turn = usize::try_from(index % cycle.len().max(1) as u64).unwrap_or(0);
    cycle.get(turn).copied().unwrap_or(0)
}
