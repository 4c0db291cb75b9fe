//! The columns of each table, in the order in which they stand in its files.
//!
//! This is the one place that names a column: its Parquet schema, how rows are written and how they
//! are read follow from it, and lines of CSV. What a column means stands at the field of the row, and for
//! users in `docs/run-directory.md`. Files of earlier versions are read without the columns that were
//! added `with` later versions, which are optional.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use parquet::errors::ParquetError;

use super::cells::Cell;
use super::columns::{GroupReader, GroupWriter};
use super::csv::CsvWriter;
use super::sealed::Columns;
use crate::record::{
    Outcome, Phase, Protocol, RequestId, RequestRow, ServedEnd, ServedRow, Stamp, TlsSession,
};

macro_rules! table {
    (
        $row:ident in $buffer:ident as $table:literal, with $added:expr;
        $($column:literal => $field:ident: $cell:ty,)*
    ) => {
        #[doc = concat!("Rows of the table `", $table, "` in memory, by column.")]
        #[derive(Default)]
        pub struct $buffer {
            $($field: <$cell as Cell>::Buffer,)*
        }

        impl Columns for $row {
            type Buffer = $buffer;

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

            fn read(group: &GroupReader<'_>) -> Result<Vec<Self>, ParquetError> {
                $(let mut $field = <$cell as Cell>::open($column, group)?;)*
                let row = |_| Ok($row { $($field: <$cell as Cell>::next(&mut $field)?,)* });
                (0..group.rows).map(row).collect()
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
    RequestRow in RequestColumns as "requests", with ["routed_to", "headers"];
    "source" => source: Arc<str>,
    "seq" => seq: u64,
    "target" => target: Arc<str>,
    "phase" => phase: Phase,
    "scheduled_ns" => scheduled: Stamp,
    "connect_start_ns" => connect_start: Option<Stamp>,
    "connected_ns" => connected: Option<Stamp>,
    "tls_ns" => tls: Option<Stamp>,
    "tls_session" => tls_session: Option<TlsSession>,
    "sent_ns" => sent: Option<Stamp>,
    "head_ns" => head: Option<Stamp>,
    "end_ns" => end: Stamp,
    "outcome" => outcome: Outcome,
    "errno" => errno: Option<i32>,
    "detail" => detail: Option<Arc<str>>,
    "status" => status: Option<u16>,
    "grpc_status" => grpc_status: Option<i32>,
    "not_sent_reason" => not_sent_reason: Option<Arc<str>>,
    "conn" => conn: Option<u64>,
    "conn_reused" => conn_reused: bool,
    "stream" => stream: Option<u32>,
    "local_port" => local_port: Option<u16>,
    "remote_addr" => remote_addr: Option<Arc<str>>,
    "routed_to" => routed_to: Option<SocketAddr>,
    "bytes_sent" => bytes_sent: u64,
    "bytes_received" => bytes_received: u64,
    "pod" => pod: Option<Arc<str>>,
    "headers" => headers: Option<Arc<str>>,
    "attempts" => attempts: u32,
    "final_outcome" => final_outcome: Outcome,
}

table! {
    ServedRow in ServedColumns as "served", with ["request_run"];
    "source" => source: Arc<str>,
    "request" => request: Option<RequestId>,
    "pod" => pod: Arc<str>,
    "peer_addr" => peer_addr: Arc<str>,
    "protocol" => protocol: Protocol,
    "accepted_ns" => accepted: Stamp,
    "head_ns" => head: Option<Stamp>,
    "end_ns" => end: Stamp,
    "status" => status: Option<u16>,
    "grpc_status" => grpc_status: Option<i32>,
    "end" => ended: ServedEnd,
    "detail" => detail: Option<Arc<str>>,
    "conn" => conn: u64,
    "conn_first_request" => conn_first_request: bool,
    "stream" => stream: Option<u32>,
    "bytes_from_client" => bytes_from_client: Option<u64>,
    "bytes_from_app" => bytes_from_app: Option<u64>,
}
