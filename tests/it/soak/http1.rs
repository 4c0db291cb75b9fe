//! HTTP/1.1, with heads sent in small pieces, pipelining, and closes and resets at random bytes.

use std::io::{self, ErrorKind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::{Ledger, bytes, one_of, reset};

/// Reads up to and including the next empty line.
async fn head(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read_until(b'\n', &mut head).await? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
    String::from_utf8(head).map_err(io::Error::other)
}

async fn line(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<String> {
    let mut line = String::new();
    match stream.read_line(&mut line).await? {
        0 => Err(ErrorKind::UnexpectedEof.into()),
        _ => Ok(line),
    }
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

async fn skip(stream: &mut (impl AsyncBufRead + Unpin), length: usize) -> io::Result<()> {
    stream.read_exact(&mut vec![0; length]).await.map(|_| ())
}

/// Reads a body whose length is known or whose end is marked. Returns true if the end arrived.
async fn body(stream: &mut (impl AsyncBufRead + Unpin), head: &str) -> io::Result<bool> {
    if field(head, "transfer-encoding").is_some() {
        loop {
            let size = line(stream).await?;
            let digits = size.split([';', '\r']).next().unwrap_or_default();
            match usize::from_str_radix(digits, 16).map_err(io::Error::other)? {
                0 => break,
                size => skip(stream, size + 2).await?,
            }
        }
        // Reads the trailers, which end with an empty line like a head.
        while line(stream).await? != "\r\n" {}
        return Ok(true);
    }
    match field(head, "content-length") {
        Some(length) => skip(stream, length.parse().map_err(io::Error::other)?).await.map(|()| true),
        None => Ok(false),
    }
}

/// Runs an app's side of a connection.
pub(super) async fn serve(stream: TcpStream, mut rng: StdRng, ledger: &Ledger) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    while answer(&mut stream, &mut rng, ledger).await? {}
    Ok(())
}

/// Responds to a request; returns true if the connection is kept.
async fn answer(stream: &mut BufReader<TcpStream>, rng: &mut StdRng, ledger: &Ledger) -> io::Result<bool> {
    let request = head(stream).await?;
    ledger.read_by_app(field(&request, "rolldrop-id").unwrap_or_default());
    if rng.random_bool(0.05) {
        break_off(stream, rng);
        return Ok(false);
    }
    if field(&request, "upgrade").is_some() {
        stream.write_all(b"HTTP/1.1 101 Go\r\nconnection: upgrade\r\nupgrade: soak\r\n\r\n").await?;
        let (mut from, mut to) = stream.get_mut().split();
        tokio::io::copy(&mut from, &mut to).await?;
        return Ok(false);
    }
    if field(&request, "expect").is_some() {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
    }
    body(stream, &request).await?;
    if rng.random_bool(0.1) {
        sleep(Duration::from_millis(rng.random_range(0..50))).await;
    }
    let length = one_of(rng, &[0, 3, 500, 40_000, 300_000]);
    let body = bytes(rng, length);
    let mut text = Vec::new();
    if rng.random_bool(0.1) {
        text.extend_from_slice(b"HTTP/1.1 103 Hints\r\nx: y\r\n\r\n");
    }
    let kind = rng.random_range(0..4);
    match kind {
        0 | 1 => {
            text.extend_from_slice(format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n").as_bytes());
            text.extend_from_slice(body);
        }
        2 => {
            text.extend_from_slice(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
            for piece in body.chunks(7_000) {
                text.extend_from_slice(format!("{:x};q\r\n", piece.len()).as_bytes());
                text.extend_from_slice(piece);
                text.extend_from_slice(b"\r\n");
            }
            text.extend_from_slice(b"0\r\nx-sum: 1\r\n\r\n");
        }
        _ => {
            text.extend_from_slice(b"HTTP/1.1 200 OK\r\n\r\n");
            text.extend_from_slice(body);
        }
    }
    let ends_by_close = kind == 3;
    if !ends_by_close && rng.random_bool(0.1) {
        let at = rng.random_range(0..text.len());
        stream.write_all(&text[..at]).await?;
        break_off(stream, rng);
        return Ok(false);
    }
    stream.write_all(&text).await?;
    Ok(!ends_by_close && rng.random_bool(0.95))
}

/// Closes or resets the connection at random.
fn break_off(stream: &BufReader<TcpStream>, rng: &mut StdRng) {
    if rng.random() {
        reset(stream.get_ref());
    }
}

fn request(id: u64, rng: &mut StdRng) -> Vec<u8> {
    let length = one_of(rng, &[0, 10, 2_000, 100_000]);
    let method = if length == 0 { "GET" } else { "POST" };
    let head = format!("{method} / HTTP/1.1\r\nhost: soak\r\nrolldrop-id: run-soak-{id}\r\n");
    let (framing, before, after) = match (length, rng.random_range(0..8)) {
        (0, _) => (String::new(), String::new(), ""),
        (_, 0) => (format!("expect: 100-continue\r\ncontent-length: {length}\r\n"), String::new(), ""),
        (_, 1..4) => (format!("content-length: {length}\r\n"), String::new(), ""),
        _ => ("transfer-encoding: chunked\r\n".to_owned(), format!("{length:x}\r\n"), "\r\n0\r\n\r\n"),
    };
    let body = bytes(rng, length);
    [head.as_bytes(), framing.as_bytes(), b"\r\n", before.as_bytes(), body, after.as_bytes()].concat()
}

/// Runs a client's side of a connection.
pub(super) async fn converse(mut stream: TcpStream, rng: &mut StdRng, ledger: &Ledger) -> io::Result<()> {
    for _ in 0..rng.random_range(1..20) {
        let ids: Vec<u64> = (0..one_of(rng, &[1, 1, 1, 2, 5])).map(|_| ledger.new_id()).collect();
        let requests: Vec<u8> = ids.iter().flat_map(|id| request(*id, rng)).collect();
        let habit = rng.random_range(0..100);
        if habit < 4 {
            // The client breaks off at any byte.
            let at = rng.random_range(0..requests.len());
            stream.write_all(&requests[..at]).await?;
            sleep(Duration::from_millis(one_of(rng, &[0, 10]))).await;
            if rng.random() {
                reset(&stream);
            }
            return Ok(());
        }
        if habit < 6 {
            return is_refused(stream, ledger).await;
        }
        if habit < 8 {
            return switch(stream, ids[0], rng, ledger).await;
        }
        if habit < 11 {
            stream.write_all(&requests).await?;
            sleep(Duration::from_millis(one_of(rng, &[0, 20]))).await;
            reset(&stream);
            return Ok(());
        }
        let is_slow = rng.random_bool(0.05);
        let (from, mut to) = stream.split();
        let mut from = BufReader::new(from);
        let is_cut_off = AtomicBool::new(false);
        let send = async {
            let drips = if habit < 15 { requests.len().min(300) } else { 0 };
            for drip in requests[..drips].chunks(7) {
                to.write_all(drip).await?;
                tokio::task::yield_now().await;
            }
            to.write_all(&requests[drips..]).await
        };
        // A connection reports an error only once, so if the writer gets it, the reader sees a normal end of stream.
        let send = async { send.await.inspect_err(|_| is_cut_off.store(true, Ordering::Relaxed)) };
        let answers = async {
            for id in &ids {
                if is_slow {
                    sleep(Duration::from_millis(50)).await;
                }
                if !read_answer(&mut from, *id, &is_cut_off, ledger).await {
                    // Later requests may not have reached anyone.
                    return false;
                }
            }
            true
        };
        // A client that does not read while it sends could wait forever, and so could the app.
        let (mut send, mut answers) = (pin!(send), pin!(answers));
        let is_kept = tokio::select! {
            is_kept = &mut answers => is_kept && send.await.is_ok(),
            sent = &mut send => answers.await && sent.is_ok(),
        };
        if !is_kept {
            return Ok(());
        }
    }
    Ok(())
}

/// Reads a response; returns true if another may follow.
async fn read_answer(
    from: &mut (impl AsyncBufRead + Unpin),
    id: u64,
    is_cut_off: &AtomicBool,
    ledger: &Ledger,
) -> bool {
    let mut has_begun = false;
    let read = async {
        let mut answer = head(from).await?;
        has_begun = true;
        ledger.begun(id);
        while answer.starts_with("HTTP/1.1 1") {
            answer = head(from).await?;
        }
        if body(from, &answer).await? {
            return Ok(true);
        }
        from.read_to_end(&mut Vec::new()).await.map(|_| false)
    };
    match read.await {
        // The body's end was marked.
        Ok(true) => {
            ledger.ended(id, true);
            true
        }
        Ok(false) => {
            if !is_cut_off.load(Ordering::Relaxed) {
                ledger.ended(id, true);
            }
            false
        }
        Err(error) => {
            // As far as the reader knows, a response that was reset may have been complete.
            if has_begun && error.kind() == ErrorKind::UnexpectedEof && !is_cut_off.load(Ordering::Relaxed) {
                ledger.ended(id, false);
            }
            false
        }
    }
}

/// Sends a request that a proxy must refuse.
async fn is_refused(mut stream: TcpStream, ledger: &Ledger) -> io::Result<()> {
    stream.write_all(b"GET / HTTP/1.1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n").await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    // The app may have closed the connection earlier.
    if !(answer.is_empty() || answer.starts_with(b"HTTP/1.1 400 ")) {
        ledger.fault(format!(
            "a request that must be refused was answered {:?}",
            String::from_utf8_lossy(&answer)
        ));
    }
    Ok(())
}

/// Switches from HTTP to another protocol, and expects an echo.
async fn switch(mut stream: TcpStream, id: u64, rng: &mut StdRng, ledger: &Ledger) -> io::Result<()> {
    let ask = format!(
        "GET / HTTP/1.1\r\nrolldrop-id: run-soak-{id}\r\nconnection: upgrade\r\nupgrade: soak\r\n\r\n"
    );
    stream.write_all(ask.as_bytes()).await?;
    let (from, mut to) = stream.split();
    let mut from = BufReader::new(from);
    let answer = head(&mut from).await?;
    if !answer.starts_with("HTTP/1.1 101 ") {
        ledger.fault(format!("an upgrade was answered {answer:?}"));
    }
    let message = bytes(rng, 10_000);
    to.write_all(message).await?;
    let mut echo = vec![0; message.len()];
    from.read_exact(&mut echo).await?;
    if echo != message {
        ledger.fault(format!("soak-{id}: the echo differs"));
    }
    Ok(())
}
