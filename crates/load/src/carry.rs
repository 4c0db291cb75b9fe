//! Sends a request over an unshared connection, which is either new or kept from an earlier request.

use std::io;
use std::pin::pin;

use super::connection::{self, CannotDial, Connection};
use super::deadlines::Elapsed;
use super::exchange_context::{ExchangeContext, TargetEndpoint};
use super::failure::{
    ExchangeFailure, ResponseProgress, Result, connect_outcome, ended_early, lost, not_sent, overdue,
};
use super::http1_client::Http1Exchange;
use super::not_sent_reason::NotSentReason;
use super::request::Persistence;
use super::request_write::RequestWrite;
use super::websocket_client;
use rolldrop_record::{Outcome, RequestRow};

/// Sends the request over the connection. Returns true if the connection can carry another request.
pub(super) async fn carry(
    context: &ExchangeContext,
    endpoint: &TargetEndpoint,
    persistence: Persistence,
    connection: &mut Connection,
    row: &mut RequestRow,
) -> Result<bool> {
    if connection.requests > 0 {
        row.conn = Some(connection.id);
        row.conn_reused = true;
        row.local_port = connection.local_port;
        row.remote_addr = Some(connection.remote.clone());
    }
    connection.requests += 1;
    let sent = context.clock.now();
    row.sent = Some(sent);
    let limit = context.plan.settings.response_timeout();
    let mut talk = Http1Exchange { context, endpoint, connection, row, write: RequestWrite::Complete };
    let ended = match (&endpoint.websocket, context.streams.settings()) {
        (None, None) => context.deadlines.within(sent, limit, pin!(talk.exchange(persistence))).await,
        // Boxed, so that other requests do not reserve space for it.
        (None, Some(stream)) => Ok(Box::pin(talk.receive_stream(stream, persistence)).await),
        (Some(templates), _) => {
            let exchange = Box::pin(websocket_client::exchange(&mut talk, templates, persistence));
            context.deadlines.within(sent, limit, exchange).await
        }
    };
    let Http1Exchange { connection, row, .. } = talk;
    let ended = ended.unwrap_or_else(|Elapsed| Err(overdue(row)));
    if let Some(beginning) = connection.beginning.take() {
        endpoint.name_pod(context, &beginning, ended.is_ok(), &mut connection.pod, row);
    }
    Ok(ended? && persistence == Persistence::Keep)
}

/// Opens a connection with this number, inside TLS if the endpoint uses TLS.
pub(super) async fn connect(
    context: &ExchangeContext,
    endpoint: &TargetEndpoint,
    id: u64,
    row: &mut RequestRow,
) -> Result<Connection> {
    let start = context.clock.now();
    let address = endpoint.walk.next().map_err(|why| ExchangeFailure::with_detail(Outcome::DnsError, why))?;
    let dialing = connection::dial(&address.remote, context.ports.as_ref()).map_err(|e| {
        let (reason, e) = match e {
            CannotDial::Socket(e) => (NotSentReason::NoSocket, e),
            CannotDial::LocalPort(e) => (NotSentReason::NoLocalPort, e),
        };
        ExchangeFailure { errno: e.raw_os_error(), ..not_sent(row, reason) }
    })?;
    row.connect_start = Some(start);
    row.conn = Some(id);
    row.local_port = dialing.local_port;
    row.remote_addr = Some(address.text.clone());
    let settings = &context.plan.settings;
    let connected = pin!(dialing.connected(id, address.text.clone(), context.clock));
    let mut connection = match context.deadlines.within(start, settings.timeout.connect, connected).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(e)) => return Err(ExchangeFailure::new(connect_outcome(&e), e.raw_os_error())),
        Err(Elapsed) => return Err(ExchangeFailure::new(Outcome::ConnectTimeout, None)),
    };
    let connected = connection.since;
    row.connected = Some(connected);
    connection.buffer = context.buffers.take();
    let Some(tls) = &endpoint.tls else { return Ok(connection) };
    let secured = pin!(connection.secured(tls));
    let connection = match context.deadlines.within(connected, settings.timeout.tls, secured).await {
        Ok(Ok(connection)) => connection,
        // TLS was not established yet, so this is a plain end of stream, not a TLS truncation.
        Ok(Err(e)) if e.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(ended_early(ResponseProgress::Connection, None));
        }
        Ok(Err(e)) => return Err(lost(ResponseProgress::Connection, &e, None)),
        Err(Elapsed) => return Err(ExchangeFailure::with_detail(Outcome::TlsError, "timeout")),
    };
    row.tls = Some(context.clock.now());
    row.tls_session = connection.tls_session();
    Ok(connection)
}
