//! Passes bytes between a client and a pod over a link that may have a delay.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use crate::hop_latency::{HopLatency, Sampler};

/// Maximum number of pieces in flight on a connection, per direction.
const MAX_UNDER_WAY: usize = 256;
/// Maximum size of a piece.
const PIECE_BYTES: usize = 16 << 10;

/// Link between a node and pods.
#[derive(Clone, Debug)]
pub(super) struct PodLink {
    /// One-way delay.
    pub(super) delay: HopLatency,
    pub(super) sampler: Sampler,
}

/// Event that arrives at the other end of the link.
enum Arrival {
    Bytes(Vec<u8>),
    End,
    Reset(io::Error),
}

impl PodLink {
    /// Waits for the link's delay.
    pub(super) async fn cross(&self) {
        if self.delay != HopLatency::ZERO {
            sleep(self.sampler.sample(&self.delay)).await;
        }
    }

    /// Copies bytes in both directions until both sides have closed or one was reset.
    pub(super) async fn pass_on(&self, mut client: TcpStream, mut server: TcpStream) {
        // A failure here costs a few milliseconds but affects no results.
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        let passed = if self.delay == HopLatency::ZERO {
            copy_bidirectional(&mut client, &mut server).await.map(drop)
        } else {
            let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
            let both =
                tokio::try_join!(self.carry(from_client, to_server), self.carry(from_server, to_client));
            both.map(drop)
        };
        if passed.is_err() {
            reset(client);
            reset(server);
        }
    }

    /// Carries bytes in one direction until that direction is closed.
    async fn carry(&self, from: ReadHalf<'_>, to: WriteHalf<'_>) -> io::Result<()> {
        let (sender, arrivals) = mpsc::channel(MAX_UNDER_WAY);
        tokio::join!(self.send(from, sender), self.deliver(arrivals, to)).1
    }

    async fn send(&self, mut from: ReadHalf<'_>, under_way: mpsc::Sender<(Instant, Arrival)>) {
        let mut buffer = vec![0; PIECE_BYTES];
        let mut last = Instant::now();
        loop {
            let arrival = match from.read(&mut buffer).await {
                Ok(0) => Arrival::End,
                Ok(length) => Arrival::Bytes(buffer[..length].to_owned()),
                Err(error) => Arrival::Reset(error),
            };
            let is_last = !matches!(arrival, Arrival::Bytes(_));
            // Arrivals stay in order, whatever delay was drawn for each.
            last = last.max(Instant::now() + self.sampler.sample(&self.delay));
            if under_way.send((last, arrival)).await.is_err() || is_last {
                return;
            }
        }
    }

    async fn deliver(
        &self,
        mut arrivals: mpsc::Receiver<(Instant, Arrival)>,
        mut to: WriteHalf<'_>,
    ) -> io::Result<()> {
        while let Some((at, arrival)) = arrivals.recv().await {
            sleep_until(at).await;
            let delivered = match arrival {
                Arrival::Bytes(bytes) => to.write_all(&bytes).await,
                Arrival::End => return to.shutdown().await,
                Arrival::Reset(error) => return Err(error),
            };
            if let Err(error) = delivered {
                // The other side sees the reset once it has crossed the link.
                self.cross().await;
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Closes the connection with a reset instead of an end of stream.
pub(super) fn reset(stream: TcpStream) {
    // This fails only on a socket that is already dead.
    let _ = stream.set_zero_linger();
    drop(stream);
}
