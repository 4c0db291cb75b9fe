//! The proxy's own log of its routing, independent of everything that measures it.
//!
//! `service-proxy.jsonl` has one line for each change to a Service's endpoints that took effect, and one for each
//! connection. Tests compare measurements with it.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use tokio::fs::File;
use tokio::io::{AsyncWriteExt, BufWriter};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use super::service_table::Backend;
use rolldrop_record::clock::Stamp;

const FLUSH_EVERY: Duration = Duration::from_millis(100);

/// Line of the log.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum ProxyLogLine<'a> {
    /// The endpoints of a Service port changed: connections used the old table until `swap_begin_ns`, and have used
    /// this one since `t_ns`.
    Sync {
        t_ns: Stamp,
        swap_begin_ns: Stamp,
        node: &'a str,
        service: &'a str,
        port: u16,
        endpoints: &'a [Backend],
        /// Endpoints for connections to the node port from outside, if they differ from `endpoints`.
        #[serde(skip_serializing_if = "Option::is_none")]
        node_port_endpoints: Option<&'a [Backend]>,
    },
    /// A connection arrived; `t_ns` is when its endpoint was picked.
    Connection { t_ns: Stamp, service: &'a str, client: SocketAddr, pod: Option<&'a str>, result: Routed },
}

/// Result of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Routed {
    Connected,
    Refused,
    Unreachable,
    NoEndpoint,
}

/// Handle that writes lines; clones write to the same file.
#[derive(Clone, Debug)]
pub(super) struct TruthLog(mpsc::UnboundedSender<Vec<u8>>);

/// Receiving end of the log, which owns the file.
pub(super) struct Writer {
    lines: mpsc::UnboundedReceiver<Vec<u8>>,
    file: BufWriter<File>,
}

impl TruthLog {
    /// Opens the file at `path` for appending. Nothing is written unless [`Writer::run`] runs.
    pub(super) async fn open(path: &Path) -> io::Result<(Self, Writer)> {
        let file = File::options().create(true).append(true).open(path).await?;
        let (sender, lines) = mpsc::unbounded_channel();
        Ok((Self(sender), Writer { lines, file: BufWriter::with_capacity(64 << 10, file) }))
    }

    pub(super) fn write(&self, line: &ProxyLogLine<'_>) {
        // Neither step can fail while the proxy is running, because the lines hold plain values and the writer outlives
        // its senders.
        if let Ok(mut bytes) = serde_json::to_vec(line) {
            bytes.push(b'\n');
            let _ = self.0.send(bytes);
        }
    }
}

impl Writer {
    /// Writes until every [`TruthLog`] is gone, then flushes.
    pub(super) async fn run(mut self) -> io::Result<()> {
        let mut flush = interval(FLUSH_EVERY);
        flush.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                line = self.lines.recv() => match line {
                    Some(line) => self.file.write_all(&line).await?,
                    None => break,
                },
                _ = flush.tick() => self.file.flush().await?,
            }
        }
        self.file.flush().await
    }
}
