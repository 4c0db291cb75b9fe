//! One scheduled request from its dispatch to its end: the attempt that its row records, and the retries that a
//! retrying client would make.
//!
//! Facts from the wire go into the row as they become known, so that an exchange that is cut short (by a timeout, or by
//! the end of the run) leaves all facts known by then. `carry` sends over a connection that the request has to itself,
//! and `http2_client` over a shared one.

use std::cell::RefCell;
use std::pin::pin;

use tokio::time::sleep;

use super::carry::{carry, connect};
use super::connection::Connection;
use super::exchange_context::ExchangeContext;
use super::failure::{ExchangeFailure, Result};
use super::http2_client;
use super::request::Persistence;
use rolldrop_record::retry::is_retried;
use rolldrop_record::{Outcome, RequestRow, Stamp};

/// Connection over which a request reaches its target.
pub(super) enum Via {
    /// A connection that no other request shares.
    Own {
        /// An idle connection, or the new one once it is established; `None` if it is still to be opened.
        connection: Option<Connection>,
        /// Number for a new connection.
        id: u64,
    },
    /// A connection that may speak HTTP/2; `None` once the ticket has been used.
    Http2(Option<http2_client::Ticket>),
}

impl Via {
    /// Returns the variant for a new connection with this number.
    pub(super) const fn dial(id: u64) -> Self {
        Via::Own { connection: None, id }
    }

    /// Returns true if a new connection must be opened.
    pub(super) const fn is_to_dial(&self) -> bool {
        matches!(self, Via::Own { connection: None, .. })
    }

    /// Takes the connection, if there is one.
    pub(super) const fn take(&mut self) -> Option<Connection> {
        match self {
            Via::Own { connection, .. } => connection.take(),
            Via::Http2(_) => None,
        }
    }
}

/// A request to send now. It is not moved until it has ended, because its parts are large.
pub(super) struct Exchange {
    /// Index of the endpoint.
    pub(super) endpoint: usize,
    /// Connection to the endpoint. A connection left here at the end can carry another request.
    pub(super) via: Via,
    /// Persistence of the connection after the response.
    pub(super) persistence: Persistence,
    /// Row of the request; the fields known to the schedule are already filled in.
    pub(super) row: RequestRow,
}

impl Exchange {
    /// Sends the request and follows it to its end. Returns the time the last attempt ended.
    pub(super) async fn run(
        &mut self,
        context: &ExchangeContext,
        http2: &RefCell<http2_client::Http2Pool>,
    ) -> Stamp {
        let Self { endpoint, via, persistence, row } = self;
        let result = {
            let attempt = pin!(attempt(context, http2, *endpoint, via, *persistence, row));
            context.unless_aborted(attempt).await
        };
        let is_reusable = match result.unwrap_or(Err(ExchangeFailure::new(Outcome::Cancelled, None))) {
            Ok(is_reusable) => is_reusable,
            Err(failure) => {
                row.end = context.clock.now();
                row.outcome = failure.outcome;
                row.errno = failure.errno;
                row.detail = failure.detail;
                false
            }
        };
        if !is_reusable && let Some(connection) = via.take() {
            context.buffers.give(connection.into_buffer());
        }
        row.final_outcome = row.outcome;
        if context.plan.settings.retry.times == 0 {
            return row.end;
        }
        if context.unless_aborted(pin!(retry(context, http2, *endpoint, row))).await.is_none() {
            row.final_outcome = Outcome::Cancelled;
        }
        context.clock.now()
    }
}

/// Acts like a retrying client: resends the request on a new connection while it fails and attempts are left. The row
/// keeps the facts of the first attempt.
async fn retry(
    context: &ExchangeContext,
    http2: &RefCell<http2_client::Http2Pool>,
    endpoint: usize,
    row: &mut RequestRow,
) {
    let method = context.endpoints[endpoint].method.as_str();
    let settings = &context.plan.settings;
    let mut is_wanted = is_retried(method, row);
    while row.attempts <= settings.retry.times && is_wanted {
        if !settings.retry.delay.is_zero() {
            sleep(settings.retry.delay).await;
        }
        row.attempts += 1;
        let now = context.clock.now();
        let (source, target) = (row.source.clone(), row.target.clone());
        let again = RequestRow::not_sent(source, row.seq, target, row.phase, row.scheduled, now);
        let mut again = RequestRow { attempts: row.attempts, ..again };
        // The retry's connection has no row and is not kept, so it needs no number.
        let mut via = match context.endpoints[endpoint].http2 {
            Some(_) => Via::Http2(Some(http2_client::Ticket::alone())),
            None => Via::dial(0),
        };
        let ended = attempt(context, http2, endpoint, &mut via, Persistence::Close, &mut again).await;
        if let Err(failure) = ended {
            again.outcome = failure.outcome;
        }
        row.final_outcome = again.outcome;
        is_wanted = is_retried(method, &again);
    }
}

/// Makes one attempt. Returns true if the connection can carry another request.
async fn attempt(
    context: &ExchangeContext,
    http2: &RefCell<http2_client::Http2Pool>,
    target: usize,
    via: &mut Via,
    persistence: Persistence,
    row: &mut RequestRow,
) -> Result<bool> {
    let endpoint = &context.endpoints[target];
    let connection = match via {
        Via::Own { connection: Some(connection), .. } => connection,
        Via::Own { connection, id } => connection.insert(connect(context, endpoint, *id, row).await?),
        Via::Http2(ticket) => {
            let Some(ticket) = ticket.take() else { unreachable!("a ticket is for one attempt") };
            let attempt = http2_client::attempt(context, http2, target, ticket, persistence, row);
            return attempt.await.map(|()| false);
        }
    };
    carry(context, endpoint, persistence, connection, row).await
}
