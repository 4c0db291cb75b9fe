//! The rows and the columns of each table, in the order of its files.
//!
//! This is the one place that names a column: the row type, its Parquet schema, how rows are written and read, lines of
//! CSV and the row as JSON follow from it, and a test compares the tables of `docs/run-directory.md` with it. Files of
//! earlier versions are read without the columns that were added `with` later versions, which are optional.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use parquet::errors::ParquetError;
use serde::{Deserialize, Serialize};

use super::cells::Cell;
use super::columns::GroupWriter;
use super::csv::CsvWriter;
use super::read::GroupReader;
use super::sealed::Columns;
use super::{Row, Wanted};
use crate::{Outcome, Phase, Protocol, RequestId, ServedEnd, Stamp, TlsSession};

/// A row as it is in memory. In JSON its fields have the names of the `columns`, or their own; absent ones are left out.
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
        pub struct $row:ident in $buffer:ident, read from $open:ident as $table:literal, with $added:expr, json by $json:ident {
            $($(#[$meta:meta])* $column:literal => $field:ident: $cell:ty,)*
        }
    ) => {
        row! { $json: $(#[$of_row])* $row { $($(#[$meta])* $column => $field: $cell,)* } }

        #[doc = concat!("Rows of the table `", $table, "` in memory, by column.")]
        #[derive(Default)]
        pub struct $buffer {
            $($field: <$cell as Cell>::Buffer,)*
        }

        #[doc = concat!("The columns of a row group of the table `", $table, "` that are read.")]
        pub struct $open {
            $($field: Option<<$cell as Cell>::Column>,)*
        }

        impl Row for $row {
            const TABLE: &'static str = $table;
        }

        impl Columns for $row {
            type Buffer = $buffer;
            type Open = $open;

            const ADDED: &'static [&'static str] = &$added;

            fn schema() -> String {
                let mut columns = String::new();
                $(<$cell as Cell>::declare($column, &mut columns);)*
                format!("message {} {{ {columns} }}", $table)
            }

            fn push(&self, columns: &mut $buffer) -> Result<(), ParquetError> {
                $(Cell::push(&self.$field, &mut columns.$field)?;)*
                Ok(())
            }

            fn write(columns: &mut $buffer, group: &mut GroupWriter<'_>) -> Result<(), ParquetError> {
                $(<$cell as Cell>::write(&mut columns.$field, group)?;)*
                Ok(())
            }

            fn open(group: &mut GroupReader<'_>, wanted: Wanted) -> Result<$open, ParquetError> {
                $(let $field = match wanted.has($column) {
                    true => Some(<$cell as Cell>::open($column, group)?),
                    false => None,
                };)*
                Ok($open { $($field,)* })
            }

            fn blank() -> Self {
                Self { $($field: <$cell as Cell>::blank(),)* }
            }

            fn read(&mut self, columns: &mut $open) -> Result<(), ParquetError> {
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
    /// A scheduled request as its load worker saw it: the columns of `requests/*.parquet`.
    ///
    /// This is the flat form that goes to disk, so a stage that was not reached is
    /// `None`. All stamps are on the clock of `source`. As JSON it is an object with the table's columns,
    /// without those that are null.
    pub struct RequestRow in RequestColumns, read from RequestGroup as "requests", with ["routed_to", "headers"], json by columns {
        /// The load worker.
        "source" => source: Arc<str>,
        /// The request's number within its source, from 0.
        "seq" => seq: u64,
        /// The name of the target it went to.
        "target" => target: Arc<str>,
        /// Warm-up or counted.
        "phase" => phase: Phase,
        /// The intended send time.
        "scheduled_ns" => scheduled: Stamp,
        /// When connecting began; `None` on a reused connection.
        "connect_start_ns" => connect_start: Option<Stamp>,
        /// When the connection stood; `None` on a reused connection.
        "connected_ns" => connected: Option<Stamp>,
        /// When the TLS handshake was done; `None` on a reused connection and without TLS.
        "tls_ns" => tls: Option<Stamp>,
        /// How that handshake went.
        "tls_session" => tls_session: Option<TlsSession>,
        /// When the request was written.
        "sent_ns" => sent: Option<Stamp>,
        /// When the complete response head was there.
        "head_ns" => head: Option<Stamp>,
        /// When the request ended, however it ended.
        "end_ns" => end: Stamp,
        /// What happened to the first attempt.
        "outcome" => outcome: Outcome,
        /// The operating system's error number behind the outcome.
        "errno" => errno: Option<i32>,
        /// What a protocol said for itself behind the outcome, where no error number does: a TLS
        /// alert, a certificate's fault, an answer of the DNS.
        "detail" => detail: Option<Arc<str>>,
        /// HTTP status.
        "status" => status: Option<u16>,
        /// gRPC status.
        "grpc_status" => grpc_status: Option<i32>,
        /// Why it was not sent.
        "not_sent_reason" => not_sent_reason: Option<Arc<str>>,
        /// The connection's number within its source; `None` when none was opened or taken.
        "conn" => conn: Option<u64>,
        /// Whether the connection had carried a request before.
        "conn_reused" => conn_reused: bool,
        /// The stream's number on its connection; `None` in HTTP/1.1, which has none.
        "stream" => stream: Option<u32>,
        /// The client's port.
        "local_port" => local_port: Option<u16>,
        /// The address that was connected to.
        "remote_addr" => remote_addr: Option<Arc<str>>,
        /// The address that the kernel sent the connection to, after it translated `remote_addr`; `None`
        /// where the kernel was not asked or has no entry for the connection.
        "routed_to" => routed_to: Option<SocketAddr>,
        /// Bytes written for this request.
        "bytes_sent" => bytes_sent: u64,
        /// Bytes read for this request, head and body.
        "bytes_received" => bytes_received: u64,
        /// What names the pod that answered: the value of the chosen response header, `rolldrop-pod` as a rule.
        "pod" => pod: Option<Arc<str>>,
        /// Chosen headers of the response, as a JSON object; only of a request that is not `ok`.
        "headers" => headers: Option<Arc<str>>,
        /// Attempts made; 1 unless retries are modelled.
        "attempts" => attempts: u32,
        /// What a retrying client saw in the end; equals `outcome` without retries.
        "final_outcome" => final_outcome: Outcome,
    }
}

table! {
    /// A request as a proxy saw it, or a connection whose requests it cannot see: the
    /// columns of `served/*.parquet`.
    ///
    /// All stamps are on the clock of `source`.
    pub struct ServedRow in ServedColumns, read from ServedGroup as "served", with ["request_run"], json by fields {
        /// The proxy, named like its pod.
        "source" => source: Arc<str>,
        /// The request's id, where the client sent one.
        "request" => request: Option<RequestId>,
        /// The proxy's pod.
        "pod" => pod: Arc<str>,
        /// The client's address and port; empty where the proxy did not say it, as its admin port had no token.
        "peer_addr" => peer_addr: Arc<str>,
        /// What the connection carries.
        "protocol" => protocol: Protocol,
        /// When the client's connection was accepted.
        "accepted_ns" => accepted: Stamp,
        /// When the request head had been read; `None` if the row is a connection's.
        "head_ns" => head: Option<Stamp>,
        /// When the request or connection ended, however it ended.
        "end_ns" => end: Stamp,
        /// The app's status.
        "status" => status: Option<u16>,
        /// The app's gRPC status.
        "grpc_status" => grpc_status: Option<i32>,
        /// How it ended.
        "end" => ended: ServedEnd,
        /// What HTTP/2 said behind the end: the code of a RST_STREAM or GOAWAY.
        "detail" => detail: Option<Arc<str>>,
        /// The client connection's number within this proxy.
        "conn" => conn: u64,
        /// Whether this was the connection's first request.
        "conn_first_request" => conn_first_request: bool,
        /// The stream's number on its connection; `None` where the protocol has none.
        "stream" => stream: Option<u32>,
        /// Bytes that came from the client, if the row is a connection's.
        "bytes_from_client" => bytes_from_client: Option<u64>,
        /// Bytes that came from the app, if the row is a connection's.
        "bytes_from_app" => bytes_from_app: Option<u64>,
    }
}
