//! A stand-in for GitHub's web servers: the API or the releases.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// A request that the server received.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) method: String,
    /// Path and query.
    pub(super) path: String,
    pub(super) host: String,
    pub(super) authorization: String,
    pub(super) body: String,
}

/// A response: status, additional headers, body.
pub(super) struct Answer(pub(super) u16, pub(super) String, pub(super) Vec<u8>);

/// A server on a loopback port, which runs until the test process exits.
pub(super) struct StandIn {
    pub(super) url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl StandIn {
    pub(super) fn start(answer: impl Fn(&Asked) -> Answer + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                serve(stream, &log, &answer);
            }
        });
        Self { url, asked }
    }

    /// Returns the requests received since the last call.
    pub(super) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut *self.asked.lock().expect("a lock"))
    }
}

fn serve(stream: TcpStream, log: &Mutex<Vec<Asked>>, answer: &impl Fn(&Asked) -> Answer) {
    let mut reader = BufReader::new(stream);
    let mut line = || {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    };
    let first = line();
    let headers: Vec<String> = std::iter::from_fn(|| Some(line()).filter(|line| !line.is_empty())).collect();
    let header = |name: &str| {
        let of = |line: &String| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        };
        headers.iter().find_map(of).unwrap_or_default()
    };
    let mut body = vec![0; header("content-length").parse().unwrap_or(0)];
    reader.read_exact(&mut body).expect("a body");
    let mut words = first.split(' ').map(str::to_owned);
    let asked = Asked {
        method: words.next().unwrap_or_default(),
        path: words.next().unwrap_or_default(),
        host: header("host"),
        authorization: header("authorization"),
        body: String::from_utf8(body).expect("text"),
    };
    let Answer(status, more, bytes) = answer(&asked);
    log.lock().expect("a lock").push(asked);
    let head = format!(
        "HTTP/1.1 {status} Status\r\nContent-Length: {}\r\nConnection: close\r\n{more}\r\n",
        bytes.len()
    );
    let stream = reader.get_mut();
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&bytes)).expect("a client that reads");
}
