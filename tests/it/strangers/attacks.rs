//! Attacks by a hostile client on one connection.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep, sleep_until};

/// Id of all hostile requests, which no proxy mistakes for one of ours.
pub(crate) const HOSTILE_ID: &str = "hostile";

/// A way to make the other side hold resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attack {
    /// Connects, and sends nothing.
    Idle,
    /// Sends a head byte by byte.
    SlowHead,
    /// Requests a large response, and does not read it.
    StalledReader,
    /// Sends requests repeatedly, and reads nothing.
    Pipeline,
    /// Sends nearly 1 MiB of an endless head.
    LongHead,
    /// Sends an incomplete HEADERS frame of nearly 1 MiB.
    LongFrame,
    /// Opens forbidden streams, and streams that never finish, and ignores GOAWAY.
    Streams,
}

/// Reaction of a client when the other side closes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    /// Closes its own side, too.
    Leaves,
    /// Keeps its own side open.
    Stays,
}

impl Attack {
    pub(crate) const ALL: [Attack; 7] = [
        Attack::Idle,
        Attack::SlowHead,
        Attack::StalledReader,
        Attack::Pipeline,
        Attack::LongHead,
        Attack::LongFrame,
        Attack::Streams,
    ];

    /// Returns true if the attack speaks HTTP/2.
    pub(crate) fn is_http2(self) -> bool {
        matches!(self, Attack::LongFrame | Attack::Streams)
    }

    /// Connects to `to` and attacks until `end`, or until the other side resets the connection. A client that stays
    /// keeps its side open when the other side closes.
    pub(crate) async fn run(self, to: SocketAddr, end: Instant, client: Client) -> io::Result<()> {
        let socket = TcpSocket::new_v4()?;
        // Bytes that the client does not read must remain buffered on the other side.
        socket.set_recv_buffer_size(4096)?;
        let mut stream = tokio::select! {
            stream = socket.connect(to) => stream?,
            () = sleep_until(end) => return Ok(()),
        };
        let attack = async {
            self.attack(&mut stream).await?;
            if client == Client::Stays {
                stream.ready(Interest::ERROR).await?;
            }
            Ok(())
        };
        tokio::select! {
            done = attack => done,
            () = sleep_until(end) => Ok(()),
        }
    }

    async fn attack(self, stream: &mut TcpStream) -> io::Result<()> {
        match self {
            Attack::Idle => {}
            Attack::SlowHead => {
                stream
                    .write_all(format!("GET / HTTP/1.1\r\nrolldrop-id: {HOSTILE_ID}\r\nx: ").as_bytes())
                    .await?;
                loop {
                    stream.write_all(b"x").await?;
                    sleep(Duration::from_secs(1)).await;
                }
            }
            Attack::StalledReader => {
                stream.write_all(request("/large").as_bytes()).await?;
                stream.ready(Interest::ERROR).await?;
                return Ok(());
            }
            Attack::Pipeline => {
                let requests = request("/large").repeat(100);
                loop {
                    stream.write_all(requests.as_bytes()).await?;
                }
            }
            Attack::LongHead => {
                stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n").await?;
                let line = format!("x: {}\r\n", "x".repeat(1000));
                stream.write_all(line.repeat(1_000_000 / line.len()).as_bytes()).await?;
            }
            Attack::LongFrame => {
                stream.write_all(PREFACE).await?;
                stream.write_all(&frame(1_000_000, 1, 4, 1)).await?;
                stream.write_all(&[0x82; 999_999]).await?;
            }
            Attack::Streams => {
                stream.write_all(PREFACE).await?;
                // The fields are the method, scheme and path of an unfinished request, and its id as a literal (RFC
                // 7541, 6.2.2).
                let fields = [&b"\x82\x86\x84\0\x0brolldrop-id\x07"[..], HOSTILE_ID.as_bytes()].concat();
                let length = u32::try_from(fields.len()).map_err(io::Error::other)?;
                for first in (1..0x7fff_0000).step_by(1000) {
                    let frames = (first..first + 1000)
                        .map(|stream| [&frame(length, 1, 4, stream)[..], &fields].concat());
                    stream.write_all(&frames.collect::<Vec<_>>().concat()).await?;
                }
            }
        }
        // Reads until the other side closes the connection.
        while stream.read(&mut [0; 1024]).await? > 0 {}
        Ok(())
    }
}

/// HTTP/2 preface and an empty SETTINGS frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Returns the header of a frame.
pub(crate) fn frame(length: u32, kind: u8, flags: u8, stream: u32) -> [u8; 9] {
    let ([_, a, b, c], [d, e, f, g]) = (length.to_be_bytes(), stream.to_be_bytes());
    [a, b, c, kind, flags, d, e, f, g]
}

/// Returns a request of a hostile client.
pub(crate) fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: hostile\r\nrolldrop-id: {HOSTILE_ID}\r\n\r\n")
}
