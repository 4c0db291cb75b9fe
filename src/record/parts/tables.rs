//! How the rows of each table are laid out in columns.

use std::collections::HashSet;
use std::sync::Arc;

use parquet::data_type::{BoolType, ByteArray, ByteArrayType, Int32Type, Int64Type};
use parquet::errors::ParquetError;

use super::columns::{GroupReader, GroupWriter, Numbers, OptionalNumbers, Texts};
use super::sealed::Columns;
use crate::record::{RequestId, RequestRow, ServedRow, Stamp, TlsSession};

/// The columns of [`RequestRow`], in the schema's order.
#[derive(Default)]
pub struct RequestColumns {
    source: Texts,
    seq: Numbers<Int64Type>,
    target: Texts,
    phase: Texts,
    scheduled_ns: Numbers<Int64Type>,
    connect_start_ns: OptionalNumbers<Int64Type>,
    connected_ns: OptionalNumbers<Int64Type>,
    tls_ns: OptionalNumbers<Int64Type>,
    tls_session: Texts,
    sent_ns: OptionalNumbers<Int64Type>,
    head_ns: OptionalNumbers<Int64Type>,
    end_ns: Numbers<Int64Type>,
    outcome: Texts,
    errno: OptionalNumbers<Int32Type>,
    detail: Texts,
    status: OptionalNumbers<Int32Type>,
    grpc_status: OptionalNumbers<Int32Type>,
    not_sent_reason: Texts,
    conn: OptionalNumbers<Int64Type>,
    conn_reused: Numbers<BoolType>,
    stream: OptionalNumbers<Int32Type>,
    local_port: OptionalNumbers<Int32Type>,
    remote_addr: Texts,
    routed_to: Texts,
    bytes_sent: Numbers<Int64Type>,
    bytes_received: Numbers<Int64Type>,
    pod: Texts,
    attempts: Numbers<Int32Type>,
    final_outcome: Texts,
}

impl Columns for RequestRow {
    type Buffer = RequestColumns;

    const SCHEMA: &'static str = "message requests {
        required binary source (STRING);
        required int64 seq;
        required binary target (STRING);
        required binary phase (STRING);
        required int64 scheduled_ns;
        optional int64 connect_start_ns;
        optional int64 connected_ns;
        optional int64 tls_ns;
        optional binary tls_session (STRING);
        optional int64 sent_ns;
        optional int64 head_ns;
        required int64 end_ns;
        required binary outcome (STRING);
        optional int32 errno;
        optional binary detail (STRING);
        optional int32 status;
        optional int32 grpc_status;
        optional binary not_sent_reason (STRING);
        optional int64 conn;
        required boolean conn_reused;
        optional int32 stream;
        optional int32 local_port;
        optional binary remote_addr (STRING);
        optional binary routed_to (STRING);
        required int64 bytes_sent;
        required int64 bytes_received;
        optional binary pod (STRING);
        required int32 attempts;
        required binary final_outcome (STRING);
    }";

    const ADDED: &'static [&'static str] = &["routed_to"];

    fn push(&self, columns: &mut RequestColumns) -> Result<(), ParquetError> {
        columns.source.push(Some(&self.source))?;
        columns.seq.push(signed(self.seq));
        columns.target.push(Some(&self.target))?;
        columns.phase.push(Some(self.phase.as_str()))?;
        columns.scheduled_ns.push(self.scheduled.unix_ns());
        columns.connect_start_ns.push(self.connect_start.map(Stamp::unix_ns));
        columns.connected_ns.push(self.connected.map(Stamp::unix_ns));
        columns.tls_ns.push(self.tls.map(Stamp::unix_ns));
        columns.tls_session.push(self.tls_session.map(TlsSession::as_str))?;
        columns.sent_ns.push(self.sent.map(Stamp::unix_ns));
        columns.head_ns.push(self.head.map(Stamp::unix_ns));
        columns.end_ns.push(self.end.unix_ns());
        columns.outcome.push(Some(self.outcome.as_str()))?;
        columns.errno.push(self.errno);
        columns.detail.push(self.detail.as_deref())?;
        columns.status.push(self.status.map(i32::from));
        columns.grpc_status.push(self.grpc_status);
        columns.not_sent_reason.push(self.not_sent_reason.as_deref())?;
        columns.conn.push(self.conn.map(signed));
        columns.conn_reused.push(self.conn_reused);
        columns.stream.push(self.stream.and_then(|id| i32::try_from(id).ok()));
        columns.local_port.push(self.local_port.map(i32::from));
        columns.remote_addr.push(self.remote_addr.as_deref())?;
        columns.routed_to.push(self.routed_to.map(|to| to.to_string()).as_deref())?;
        columns.bytes_sent.push(signed(self.bytes_sent));
        columns.bytes_received.push(signed(self.bytes_received));
        columns.pod.push(self.pod.as_deref())?;
        columns.attempts.push(i32::try_from(self.attempts).unwrap_or(i32::MAX));
        columns.final_outcome.push(Some(self.final_outcome.as_str()))?;
        Ok(())
    }

    fn write(columns: &mut RequestColumns, group: &mut GroupWriter<'_>) -> Result<(), ParquetError> {
        columns.source.write(group)?;
        columns.seq.write(group)?;
        columns.target.write(group)?;
        columns.phase.write(group)?;
        columns.scheduled_ns.write(group)?;
        columns.connect_start_ns.write(group)?;
        columns.connected_ns.write(group)?;
        columns.tls_ns.write(group)?;
        columns.tls_session.write(group)?;
        columns.sent_ns.write(group)?;
        columns.head_ns.write(group)?;
        columns.end_ns.write(group)?;
        columns.outcome.write(group)?;
        columns.errno.write(group)?;
        columns.detail.write(group)?;
        columns.status.write(group)?;
        columns.grpc_status.write(group)?;
        columns.not_sent_reason.write(group)?;
        columns.conn.write(group)?;
        columns.conn_reused.write(group)?;
        columns.stream.write(group)?;
        columns.local_port.write(group)?;
        columns.remote_addr.write(group)?;
        columns.routed_to.write(group)?;
        columns.bytes_sent.write(group)?;
        columns.bytes_received.write(group)?;
        columns.pod.write(group)?;
        columns.attempts.write(group)?;
        columns.final_outcome.write(group)
    }

    fn read(group: &mut GroupReader<'_>) -> Result<Vec<Self>, ParquetError> {
        let [mut sources, mut targets, mut details, mut reasons, mut addrs, mut pods] =
            [(); 6].map(|()| Names::default());
        let rows = group.rows;
        let mut source = group.required::<ByteArrayType>()?;
        let mut seq = group.required::<Int64Type>()?;
        let mut target = group.required::<ByteArrayType>()?;
        let mut phase = group.required::<ByteArrayType>()?;
        let mut scheduled = group.required::<Int64Type>()?;
        let mut connect_start = group.optional::<Int64Type>()?;
        let mut connected = group.optional::<Int64Type>()?;
        let mut tls = group.optional::<Int64Type>()?;
        let mut tls_session = group.optional::<ByteArrayType>()?;
        let mut sent = group.optional::<Int64Type>()?;
        let mut head = group.optional::<Int64Type>()?;
        let mut end = group.required::<Int64Type>()?;
        let mut outcome = group.required::<ByteArrayType>()?;
        let mut errno = group.optional::<Int32Type>()?;
        let mut detail = group.optional::<ByteArrayType>()?;
        let mut status = group.optional::<Int32Type>()?;
        let mut grpc_status = group.optional::<Int32Type>()?;
        let mut not_sent_reason = group.optional::<ByteArrayType>()?;
        let mut conn = group.optional::<Int64Type>()?;
        let mut conn_reused = group.required::<BoolType>()?;
        let mut stream = group.optional::<Int32Type>()?;
        let mut local_port = group.optional::<Int32Type>()?;
        let mut remote_addr = group.optional::<ByteArrayType>()?;
        let mut routed_to = group.added::<ByteArrayType>("routed_to")?;
        let mut bytes_sent = group.required::<Int64Type>()?;
        let mut bytes_received = group.required::<Int64Type>()?;
        let mut pod = group.optional::<ByteArrayType>()?;
        let mut attempts = group.required::<Int32Type>()?;
        let mut final_outcome = group.required::<ByteArrayType>()?;
        (0..rows)
            .map(|_| {
                Ok(RequestRow {
                    source: sources.get(&value(source.next())?)?,
                    seq: unsigned(value(seq.next())?)?,
                    target: targets.get(&value(target.next())?)?,
                    phase: parse(&value(phase.next())?)?,
                    scheduled: Stamp::from_unix_ns(value(scheduled.next())?),
                    connect_start: value(connect_start.next())?.map(Stamp::from_unix_ns),
                    connected: value(connected.next())?.map(Stamp::from_unix_ns),
                    tls: value(tls.next())?.map(Stamp::from_unix_ns),
                    tls_session: value(tls_session.next())?.map(|name| parse(&name)).transpose()?,
                    sent: value(sent.next())?.map(Stamp::from_unix_ns),
                    head: value(head.next())?.map(Stamp::from_unix_ns),
                    end: Stamp::from_unix_ns(value(end.next())?),
                    outcome: parse(&value(outcome.next())?)?,
                    errno: value(errno.next())?,
                    detail: details.get_optional(value(detail.next())?)?,
                    status: value(status.next())?.map(narrow).transpose()?,
                    grpc_status: value(grpc_status.next())?,
                    not_sent_reason: reasons.get_optional(value(not_sent_reason.next())?)?,
                    conn: value(conn.next())?.map(unsigned).transpose()?,
                    conn_reused: value(conn_reused.next())?,
                    stream: value(stream.next())?.map(narrow).transpose()?,
                    local_port: value(local_port.next())?.map(narrow).transpose()?,
                    remote_addr: addrs.get_optional(value(remote_addr.next())?)?,
                    routed_to: value(routed_to.next())?.map(|to| parse(&to)).transpose()?,
                    bytes_sent: unsigned(value(bytes_sent.next())?)?,
                    bytes_received: unsigned(value(bytes_received.next())?)?,
                    pod: pods.get_optional(value(pod.next())?)?,
                    attempts: narrow(value(attempts.next())?)?,
                    final_outcome: parse(&value(final_outcome.next())?)?,
                })
            })
            .collect()
    }
}

/// The columns of [`ServedRow`], in the schema's order.
#[derive(Default)]
pub struct ServedColumns {
    source: Texts,
    request_source: Texts,
    request_seq: OptionalNumbers<Int64Type>,
    pod: Texts,
    peer_addr: Texts,
    protocol: Texts,
    accepted_ns: Numbers<Int64Type>,
    head_ns: OptionalNumbers<Int64Type>,
    end_ns: Numbers<Int64Type>,
    status: OptionalNumbers<Int32Type>,
    grpc_status: OptionalNumbers<Int32Type>,
    end: Texts,
    detail: Texts,
    conn: Numbers<Int64Type>,
    conn_first_request: Numbers<BoolType>,
    stream: OptionalNumbers<Int32Type>,
    bytes_from_client: OptionalNumbers<Int64Type>,
    bytes_from_app: OptionalNumbers<Int64Type>,
}

impl Columns for ServedRow {
    type Buffer = ServedColumns;

    const SCHEMA: &'static str = "message served {
        required binary source (STRING);
        optional binary request_source (STRING);
        optional int64 request_seq;
        required binary pod (STRING);
        required binary peer_addr (STRING);
        required binary protocol (STRING);
        required int64 accepted_ns;
        optional int64 head_ns;
        required int64 end_ns;
        optional int32 status;
        optional int32 grpc_status;
        required binary end (STRING);
        optional binary detail (STRING);
        required int64 conn;
        required boolean conn_first_request;
        optional int32 stream;
        optional int64 bytes_from_client;
        optional int64 bytes_from_app;
    }";

    fn push(&self, columns: &mut ServedColumns) -> Result<(), ParquetError> {
        columns.source.push(Some(&self.source))?;
        columns.request_source.push(self.request.as_ref().map(|id| &*id.source))?;
        columns.request_seq.push(self.request.as_ref().map(|id| signed(id.seq)));
        columns.pod.push(Some(&self.pod))?;
        columns.peer_addr.push(Some(&self.peer_addr))?;
        columns.protocol.push(Some(self.protocol.as_str()))?;
        columns.accepted_ns.push(self.accepted.unix_ns());
        columns.head_ns.push(self.head.map(Stamp::unix_ns));
        columns.end_ns.push(self.end.unix_ns());
        columns.status.push(self.status.map(i32::from));
        columns.grpc_status.push(self.grpc_status);
        columns.end.push(Some(self.ended.as_str()))?;
        columns.detail.push(self.detail.as_deref())?;
        columns.conn.push(signed(self.conn));
        columns.conn_first_request.push(self.conn_first_request);
        columns.stream.push(self.stream.and_then(|id| i32::try_from(id).ok()));
        columns.bytes_from_client.push(self.bytes_from_client.map(signed));
        columns.bytes_from_app.push(self.bytes_from_app.map(signed));
        Ok(())
    }

    fn write(columns: &mut ServedColumns, group: &mut GroupWriter<'_>) -> Result<(), ParquetError> {
        columns.source.write(group)?;
        columns.request_source.write(group)?;
        columns.request_seq.write(group)?;
        columns.pod.write(group)?;
        columns.peer_addr.write(group)?;
        columns.protocol.write(group)?;
        columns.accepted_ns.write(group)?;
        columns.head_ns.write(group)?;
        columns.end_ns.write(group)?;
        columns.status.write(group)?;
        columns.grpc_status.write(group)?;
        columns.end.write(group)?;
        columns.detail.write(group)?;
        columns.conn.write(group)?;
        columns.conn_first_request.write(group)?;
        columns.stream.write(group)?;
        columns.bytes_from_client.write(group)?;
        columns.bytes_from_app.write(group)
    }

    fn read(group: &mut GroupReader<'_>) -> Result<Vec<Self>, ParquetError> {
        let [mut sources, mut pods, mut details] = [(); 3].map(|()| Names::default());
        let rows = group.rows;
        let mut source = group.required::<ByteArrayType>()?;
        let mut request_source = group.optional::<ByteArrayType>()?;
        let mut request_seq = group.optional::<Int64Type>()?;
        let mut pod = group.required::<ByteArrayType>()?;
        let mut peer_addr = group.required::<ByteArrayType>()?;
        let mut protocol = group.required::<ByteArrayType>()?;
        let mut accepted = group.required::<Int64Type>()?;
        let mut head = group.optional::<Int64Type>()?;
        let mut end = group.required::<Int64Type>()?;
        let mut status = group.optional::<Int32Type>()?;
        let mut grpc_status = group.optional::<Int32Type>()?;
        let mut ended = group.required::<ByteArrayType>()?;
        let mut detail = group.optional::<ByteArrayType>()?;
        let mut conn = group.required::<Int64Type>()?;
        let mut conn_first_request = group.required::<BoolType>()?;
        let mut stream = group.optional::<Int32Type>()?;
        let mut bytes_from_client = group.optional::<Int64Type>()?;
        let mut bytes_from_app = group.optional::<Int64Type>()?;
        (0..rows)
            .map(|_| {
                let request = value(request_source.next())?.zip(value(request_seq.next())?);
                Ok(ServedRow {
                    source: sources.get(&value(source.next())?)?,
                    request: match request {
                        Some((source, seq)) => {
                            Some(RequestId { source: text(&source)?.to_owned(), seq: unsigned(seq)? })
                        }
                        None => None,
                    },
                    pod: pods.get(&value(pod.next())?)?,
                    peer_addr: text(&value(peer_addr.next())?)?.into(),
                    protocol: parse(&value(protocol.next())?)?,
                    accepted: Stamp::from_unix_ns(value(accepted.next())?),
                    head: value(head.next())?.map(Stamp::from_unix_ns),
                    end: Stamp::from_unix_ns(value(end.next())?),
                    status: value(status.next())?.map(narrow).transpose()?,
                    grpc_status: value(grpc_status.next())?,
                    ended: parse(&value(ended.next())?)?,
                    detail: details.get_optional(value(detail.next())?)?,
                    conn: unsigned(value(conn.next())?)?,
                    conn_first_request: value(conn_first_request.next())?,
                    stream: value(stream.next())?.map(narrow).transpose()?,
                    bytes_from_client: value(bytes_from_client.next())?.map(unsigned).transpose()?,
                    bytes_from_app: value(bytes_from_app.next())?.map(unsigned).transpose()?,
                })
            })
            .collect()
    }
}

/// Texts of a column that repeat from row to row share one allocation.
#[derive(Default)]
struct Names {
    known: HashSet<Arc<str>>,
    /// That of the row before, which is most often the next one's.
    last: Option<Arc<str>>,
}

impl Names {
    fn get(&mut self, bytes: &ByteArray) -> Result<Arc<str>, ParquetError> {
        if let Some(last) = self.last.as_ref().filter(|last| last.as_bytes() == bytes.data()) {
            return Ok(Arc::clone(last));
        }
        let name = text(bytes)?;
        let name = match self.known.get(name) {
            Some(known) => Arc::clone(known),
            None => {
                let new: Arc<str> = name.into();
                self.known.insert(Arc::clone(&new));
                new
            }
        };
        self.last = Some(Arc::clone(&name));
        Ok(name)
    }

    fn get_optional(&mut self, bytes: Option<ByteArray>) -> Result<Option<Arc<str>>, ParquetError> {
        bytes.map(|bytes| self.get(&bytes)).transpose()
    }
}

fn text(bytes: &ByteArray) -> Result<&str, ParquetError> {
    std::str::from_utf8(bytes.data()).map_err(|e| ParquetError::General(e.to_string()))
}

fn parse<T: std::str::FromStr<Err: std::fmt::Display>>(bytes: &ByteArray) -> Result<T, ParquetError> {
    text(bytes)?.parse().map_err(|e: T::Err| ParquetError::General(e.to_string()))
}

fn value<T>(value: Option<T>) -> Result<T, ParquetError> {
    value.ok_or_else(|| ParquetError::General("a column ends before its row group".into()))
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn unsigned(n: i64) -> Result<u64, ParquetError> {
    u64::try_from(n).map_err(|e| ParquetError::General(e.to_string()))
}

fn narrow<T: TryFrom<i32, Error: std::fmt::Display>>(n: i32) -> Result<T, ParquetError> {
    T::try_from(n).map_err(|e| ParquetError::General(e.to_string()))
}
