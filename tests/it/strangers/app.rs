//! An app that gives clients 10 s for each step; real servers have similar defaults with other numbers.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::attacks::frame;

/// Maximum time for a head to arrive, and for a client to read nothing of its response.
const PATIENCE: Duration = Duration::from_secs(10);
const LARGE_BYTES: usize = 8 * 1024 * 1024;
const MAX_HEAD_BYTES: usize = 16 * 1024;

/// Starts the app, which stops when the tasks are dropped.
pub(super) async fn start() -> (JoinSet<()>, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let large: Arc<[u8]> = vec![b'x'; 64 * 1024].into();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                    let large = large.clone();
                    connections.spawn(async move { serve(stream, &large).await });
                },
                Some(_) = connections.join_next() => {}
            }
        }
    });
    (tasks, address)
}

async fn serve(mut stream: TcpStream, large: &[u8]) {
    if answer_all(&mut stream, large).await.is_err() {
        // A client that does not read its response is reset so that no memory is kept for it.
        let _ = stream.set_zero_linger();
    }
}

/// Answers requests until the client has sent nothing for too long.
async fn answer_all(stream: &mut TcpStream, large: &[u8]) -> io::Result<()> {
    let mut held = Vec::new();
    loop {
        let head = async {
            loop {
                if held.starts_with(b"PRI * HTTP/2.0") {
                    return Ok(None);
                }
                if let Some(at) = held.windows(4).position(|end| end == b"\r\n\r\n") {
                    return Ok(Some(held.drain(..at + 4).collect::<Vec<u8>>()));
                }
                if held.len() > MAX_HEAD_BYTES || stream.read_buf(&mut held).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        };
        let head: io::Result<Option<Vec<u8>>> = match timeout(PATIENCE, head).await {
            Ok(head) => head,
            Err(_) => return Ok(()),
        };
        let Ok(head) = head else { return Ok(()) };
        let Some(head) = head else { return http2(stream).await };
        let (length, is_last) = match head.starts_with(b"GET /large") {
            true => (LARGE_BYTES, false),
            false => (5, head.windows(17).any(|part| part == b"connection: close")),
        };
        write(stream, format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n").as_bytes()).await?;
        for _ in 0..length / large.len() {
            write(stream, large).await?;
        }
        write(stream, &large[..length % large.len()]).await?;
        if is_last {
            return stream.shutdown().await;
        }
    }
}

/// Writes bytes, which the client must read in time.
async fn write(stream: &mut TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = timeout(PATIENCE, stream.write(bytes)).await.map_err(io::Error::other)??;
        bytes = &bytes[written..];
    }
    Ok(())
}

/// Responds on no stream, sends GOAWAY, and keeps reading while the client sends.
async fn http2(stream: &mut TcpStream) -> io::Result<()> {
    let goaway = [&frame(8, 7, 0, 0)[..], &[0; 8]].concat();
    stream.write_all(&[&frame(0, 4, 0, 0)[..], &goaway].concat()).await?;
    let mut bytes = vec![0; 64 * 1024];
    while timeout(PATIENCE, stream.read(&mut bytes)).await.is_ok_and(|read| read.is_ok_and(|read| read > 0)) {
    }
    Ok(())
}
