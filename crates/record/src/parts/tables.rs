//! Rows and columns of each table, in file order.
//!
//! Columns are named only in this module. The row type, its Parquet schema, reading and writing, CSV lines and the JSON
//! form are all derived from the definitions here, and a test compares them with the tables in `docs/run-directory.md`.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use parquet::errors::Result;
use serde::{Deserialize, Serialize};

use super::cells::Cell;
use super::column_buffers::GroupWriter;
use super::csv::CsvWriter;
use super::group_reader::GroupReader;
use super::sealed::Columns;
use super::{Row, Wanted};
use crate::{Outcome, Phase, Protocol, RequestId, ServedEnd, Stamp, StreamEnd, TlsSession};

/// Defines the in-memory row. The JSON form uses the column names (`columns`) or the field names (`fields`), and omits
/// absent values.
macro_rules! row {
    (columns: $(#[$of_row:meta])* $row:ident { $($(#[$meta:meta])* $column:literal => $field:ident: $cell:ty,)* }) => {
        $(#[$of_row])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub struct $row {
            $($(#[$meta])* #[serde(rename = $column, skip_serializing_if = "Cell::is_absent")] pub $field: $cell,)*
        }
    };
    (fields: $(#[$of_row:meta])* $row:ident { $($(#[$meta:meta])* $column:literal => $field:ident: $cell:ty,)* }) => {
        $(#[$of_row])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub struct $row {
            $($(#[$meta])* #[serde(skip_serializing_if = "Cell::is_absent")] pub $field: $cell,)*
        }
    };
}

macro_rules! table {
    (
        $(#[$of_row:meta])*
        pub struct $row:ident in $buffer:ident, read from $open:ident as $table:literal, json by $json:ident {
            $($(#[$meta:meta])* $column:literal => $field:ident: $cell:ty,)*
        }
    ) => {
        row! { $json: $(#[$of_row])* $row { $($(#[$meta])* $column => $field: $cell,)* } }

        #[doc = concat!("Rows of the table `", $table, "` in memory, by column.")]
        #[derive(Default)]
        pub struct $buffer {
            $($field: <$cell as Cell>::Buffer,)*
        }

        #[doc = concat!("The wanted columns of a row group of the table `", $table, "`.")]
        pub struct $open {
            $($field: Option<<$cell as Cell>::Column>,)*
        }

        impl Row for $row {
            const TABLE: &'static str = $table;
        }

        impl Columns for $row {
            type Buffer = $buffer;
            type Open = $open;

            fn schema() -> String {
                let mut columns = String::new();
                $(<$cell as Cell>::declare($column, &mut columns);)*
                format!("message {} {{ {columns} }}", $table)
            }

            fn push(&self, columns: &mut $buffer) -> Result<()> {
                $(Cell::push(&self.$field, &mut columns.$field)?;)*
                Ok(())
            }

            fn write(columns: &mut $buffer, group: &mut GroupWriter<'_>) -> Result<()> {
                $(<$cell as Cell>::write(&mut columns.$field, group)?;)*
                Ok(())
            }

            fn open(group: &mut GroupReader<'_>, wanted: Wanted) -> Result<$open> {
                $(let $field = match wanted.has($column) {
                    true => Some(<$cell as Cell>::open($column, group)?),
                    false => None,
                };)*
                Ok($open { $($field,)* })
            }

            fn blank() -> Self {
                Self { $($field: <$cell as Cell>::blank(),)* }
            }

            fn read(&mut self, columns: &mut $open) -> Result<()> {
                $(if let Some(column) = &mut columns.$field {
                    Cell::read(&mut self.$field, column)?;
                })*
                Ok(())
            }

            fn take_from(&mut self, row: &Self, wanted: Wanted) {
                $(if wanted.has($column) {
                    self.$field.clone_from(&row.$field);
                })*
            }

            fn names() -> Vec<&'static str> {
                let mut names = Vec::new();
                $(names.extend(<$cell as Cell>::names($column));)*
                names
            }

            fn csv<W: Write>(&self, line: &mut CsvWriter<W>) -> io::Result<()> {
                $(Cell::csv(&self.$field, line)?;)*
                line.end_line()
            }
        }
    };
}

table! {
    /// A scheduled request as seen by its load worker, with the columns of `requests/*.parquet`.
    ///
    /// This is the flat on-disk form, so a stage that was not reached is `None`. All stamps are on the clock of
    /// `source`. The JSON form is an object with the table's non-null columns.
    pub struct RequestRow in RequestColumns, read from RequestGroup as "requests", json by columns {
        /// Load worker that sent the request.
        "source" => source: Arc<str>,
        /// Sequence number of the request within its source, from 0.
        "seq" => seq: u64,
        /// Name of the request's target.
        "target" => target: Arc<str>,
        /// Phase of the run: warm-up or counted.
        "phase" => phase: Phase,
        /// Intended send time.
        "scheduled_ns" => scheduled: Stamp,
        /// Time the connection attempt began; `None` on a reused connection.
        "connect_start_ns" => connect_start: Option<Stamp>,
        /// Time the connection was established; `None` on a reused connection.
        "connected_ns" => connected: Option<Stamp>,
        /// Time the TLS handshake completed; `None` on a reused connection and without TLS.
        "tls_ns" => tls: Option<Stamp>,
        /// Kind of TLS session that the handshake established.
        "tls_session" => tls_session: Option<TlsSession>,
        /// Time the request was written, after any wait for its turn on an HTTP/2 connection.
        "sent_ns" => sent: Option<Stamp>,
        /// Time the response head was complete.
        "head_ns" => head: Option<Stamp>,
        /// Time the request ended, whatever its outcome.
        "end_ns" => end: Stamp,
        /// Outcome of the first attempt.
        "outcome" => outcome: Outcome,
        /// Error number from the operating system that explains the outcome.
        "errno" => errno: Option<i32>,
        /// Protocol-level explanation of the outcome, if there is no error number: a TLS alert, a certificate error, or
        /// a DNS response.
        "detail" => detail: Option<Arc<str>>,
        /// HTTP status of the response.
        "status" => status: Option<u16>,
        /// gRPC status of the response.
        "grpc_status" => grpc_status: Option<i32>,
        /// Reason why the request was not sent.
        "not_sent_reason" => not_sent_reason: Option<Arc<str>>,
        /// Number of the connection within its source; `None` if no connection was opened or taken.
        "conn" => conn: Option<u64>,
        /// True if the connection had carried an earlier request.
        "conn_reused" => conn_reused: bool,
        /// Stream number on the connection; `None` for HTTP/1.1, which has no streams.
        "stream" => stream: Option<u32>,
        /// Local port of the connection.
        "local_port" => local_port: Option<u16>,
        /// Address that the client connected to.
        "remote_addr" => remote_addr: Option<Arc<str>>,
        /// Address that the kernel routed the connection to, after translating `remote_addr`; `None` if the kernel was
        /// not asked or has no entry for the connection.
        "routed_to" => routed_to: Option<SocketAddr>,
        /// Bytes written for this request.
        "bytes_sent" => bytes_sent: u64,
        /// Bytes read for this request: response head and body.
        "bytes_received" => bytes_received: u64,
        /// Name of the responding pod: the value of the configured response header, usually `rolldrop-pod`.
        "pod" => pod: Option<Arc<str>>,
        /// Selected response headers, as a JSON object; only for requests that are not `ok`.
        "headers" => headers: Option<Arc<str>>,
        /// Number of attempts made; 1 unless retries are modelled.
        "attempts" => attempts: u32,
        /// Final outcome for a retrying client; equals `outcome` without retries.
        "final_outcome" => final_outcome: Outcome,
    }
}

table! {
    /// The response to a request as a sequence of events, with the columns of `streams/*.parquet`.
    ///
    /// `source` and `seq` identify the request, whose row has its send and end times, its outcome and its pod. Every
    /// request that was sent as a stream has a row, even if no event arrived.
    pub struct StreamRow in StreamColumns, read from StreamGroup as "streams", json by columns {
        /// Load worker that sent the request.
        "source" => source: Arc<str>,
        /// Sequence number of the request within its source.
        "seq" => seq: u64,
        /// Time the first event arrived.
        "first_event_ns" => first_event: Option<Stamp>,
        /// Time the last event arrived.
        "last_event_ns" => last_event: Option<Stamp>,
        /// Number of events; for a download, the number of reads that returned bytes.
        "events" => events: u64,
        /// Bytes of the body, without its framing.
        "bytes" => bytes: u64,
        /// Number of tokens; `None` if this kind of stream does not report it.
        "tokens" => tokens: Option<u64>,
        /// Longest time between two successive events, in nanoseconds.
        "longest_gap_ns" => longest_gap: Option<u64>,
        /// Time the longest gap began.
        "gap_start_ns" => gap_start: Option<Stamp>,
        /// Event that decided how the stream ended or, without such an event, the end of its transport.
        "terminal" => terminal: StreamEnd,
        /// Message with which the server ended the stream early.
        "goodbye" => goodbye: Option<Arc<str>>,
    }
}

table! {
    /// Gaps of equal length between successive events of streams, from one second of the counted part, with the columns
    /// of `gaps/*.parquet`.
    ///
    /// All stamps are on the clock of `source`.
    pub struct GapRow in GapColumns, read from GapGroup as "gaps", json by columns {
        /// Load worker that received the events.
        "source" => source: Arc<str>,
        /// Beginning of the second in which the later events arrived.
        "second_ns" => second: Stamp,
        /// Length in nanoseconds, accurate to 1.6 %.
        "gap_ns" => gap_ns: u64,
        /// Number of such gaps.
        "gaps" => gaps: u64,
    }
}

table! {
    /// A request as seen by a proxy, or a connection whose requests are invisible to the proxy, with the columns of
    /// `served/*.parquet`.
    ///
    /// All stamps are on the clock of `source`.
    pub struct ServedRow in ServedColumns, read from ServedGroup as "served", json by fields {
        /// Name of the proxy, which is its pod's name.
        "source" => source: Arc<str>,
        /// Id of the request, if the client sent one.
        "request" => request: Option<RequestId>,
        /// Pod of the proxy.
        "pod" => pod: Arc<str>,
        /// Address and port of the client; empty if the proxy withheld it because its admin port had no token.
        "peer_addr" => peer_addr: Arc<str>,
        /// Protocol that the connection carries.
        "protocol" => protocol: Protocol,
        /// Time the client's connection was accepted.
        "accepted_ns" => accepted: Stamp,
        /// Time the request head was complete; `None` if the row describes a connection.
        "head_ns" => head: Option<Stamp>,
        /// Time the request or connection ended, whatever the reason.
        "end_ns" => end: Stamp,
        /// Status of the app's response.
        "status" => status: Option<u16>,
        /// gRPC status of the app's response.
        "grpc_status" => grpc_status: Option<i32>,
        /// End of the request or connection.
        "end" => ended: ServedEnd,
        /// HTTP/2-level explanation of the end: the error code of a RST_STREAM or GOAWAY frame.
        "detail" => detail: Option<Arc<str>>,
        /// Number of the client's connection within this proxy.
        "conn" => conn: u64,
        /// True if this was the first request on the connection.
        "conn_first_request" => conn_first_request: bool,
        /// Stream number on the connection; `None` if the protocol has no streams.
        "stream" => stream: Option<u32>,
        /// Bytes from the client, if the row describes a connection.
        "bytes_from_client" => bytes_from_client: Option<u64>,
        /// Bytes from the app, if the row describes a connection.
        "bytes_from_app" => bytes_from_app: Option<u64>,
    }
}
