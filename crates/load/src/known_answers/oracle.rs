//! Random responses, intact and damaged, in pieces of any size. Our result must agree with hyper's for each of them.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::http1_differential::hyper;
use super::*;
use rolldrop_record::RequestId;

const CASES: u64 = 800;

/// Bytes to send, and the positions at which to split them.
#[derive(Clone, Debug)]
struct ResponseCase {
    answer: Vec<u8>,
    cuts: Vec<usize>,
}

/// Result of reading a response.
#[derive(Debug, PartialEq, Eq)]
enum ReadResult {
    Complete(u16),
    EndsEarly,
    Malformed,
}

/// Damage to a response before it is sent.
#[derive(Clone, Debug)]
enum Damage {
    None,
    Cut(prop::sample::Index),
    Delete(prop::sample::Index),
    Insert(prop::sample::Index, u8),
    Replace(prop::sample::Index, u8),
}

fn heads() -> impl Strategy<Value = (String, bool)> {
    let version = prop_oneof![4 => Just("1.1"), 1 => Just("1.0")];
    let interim = prop_oneof![
        4 => Just(""),
        1 => Just("HTTP/1.1 100 Continue\r\n\r\n"),
        1 => Just("HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"),
    ];
    let status =
        prop::sample::select(vec!["200 OK", "204 No Content", "304 Not Modified", "404 Not Found", "503 "]);
    let framing = prop::sample::select(vec![
        ("", false),
        ("content-length: 12\r\n", false),
        ("Content-Length: 12\r\nContent-Length: 12\r\n", false),
        ("content-length: 12, 12\r\n", false),
        ("content-length: 12\r\ncontent-length: 13\r\n", false),
        ("content-length: +12\r\n", false),
        ("transfer-encoding: chunked\r\n", true),
        ("Transfer-Encoding: gzip, Chunked\r\n", true),
        ("content-length: 3\r\ntransfer-encoding: chunked\r\n", true),
        ("transfer-encoding: chunked, gzip\r\n", false),
    ]);
    let field = prop::sample::select(vec!["", "x: y\r\n", "connection: close\r\n", "server:\r\n"]);
    (version, interim, status, framing, field).prop_map(
        |(version, interim, status, (framing, chunked), field)| {
            (format!("{interim}HTTP/{version} {status}\r\n{field}{framing}\r\n"), chunked)
        },
    )
}

fn chunks() -> impl Strategy<Value = String> {
    let extension = prop::sample::select(vec!["", ";a", ";a=b", " ;a=\"b c\"", " "]);
    let chunk = (1_usize..40, any::<bool>(), extension).prop_map(|(size, is_upper, extension)| {
        let digits = if is_upper { format!("{size:03X}") } else { format!("{size:x}") };
        format!("{digits}{extension}\r\n{}\r\n", "x".repeat(size))
    });
    (
        prop::collection::vec(chunk, 0..4),
        prop::sample::select(vec!["0\r\n\r\n", "000\r\n\r\n", "0;x\r\n\r\n"]),
    )
        .prop_map(|(chunks, last)| chunks.concat() + last)
}

fn damages() -> impl Strategy<Value = Damage> {
    let byte = || prop::sample::select(b"\r\n :;,0159afgx\x00\x7f\xff".to_vec());
    let at = any::<prop::sample::Index>;
    prop_oneof![
        2 => Just(Damage::None),
        2 => at().prop_map(Damage::Cut),
        1 => at().prop_map(Damage::Delete),
        1 => (at(), byte()).prop_map(|(at, byte)| Damage::Insert(at, byte)),
        1 => (at(), byte()).prop_map(|(at, byte)| Damage::Replace(at, byte)),
    ]
}

fn cases() -> impl Strategy<Value = ResponseCase> {
    let body = "[a-z]{0,20}";
    (heads(), chunks(), body, damages(), prop::collection::vec(any::<prop::sample::Index>(), 0..3)).prop_map(
        |((head, chunked), chunks, body, damage, cuts)| {
            let mut answer = (head + if chunked { &chunks } else { &body }).into_bytes();
            let length = answer.len();
            match damage {
                Damage::None => {}
                Damage::Cut(at) => answer.truncate(at.index(length)),
                Damage::Delete(at) => drop(answer.remove(at.index(length))),
                Damage::Insert(at, byte) => answer.insert(at.index(length), byte),
                Damage::Replace(at, byte) => answer[at.index(length)] = byte,
            }
            let mut cuts: Vec<_> = cuts.iter().map(|at| at.index(answer.len() + 1)).collect();
            cuts.sort_unstable();
            ResponseCase { answer, cuts }
        },
    )
}

/// Responds to a request with the case given by its number, and closes the connection.
async fn answer(mut stream: TcpStream, cases: Arc<Vec<ResponseCase>>) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        if stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let text = String::from_utf8(request).unwrap();
    let id = text.lines().find_map(|line| line.strip_prefix("rolldrop-id: ")).unwrap();
    let ResponseCase { answer, cuts } =
        &cases[usize::try_from(id.parse::<RequestId>().unwrap().seq).unwrap()];
    stream.set_nodelay(true)?;
    let mut from = 0;
    for to in cuts.iter().copied().chain([answer.len()]) {
        stream.write_all(&answer[from..to]).await?;
        tokio::task::yield_now().await;
        from = to;
    }
    Ok(())
}

fn ours(row: &RequestRow) -> ReadResult {
    match (row.outcome, row.status) {
        (Outcome::Ok | Outcome::HttpError, Some(status)) => ReadResult::Complete(status),
        (Outcome::EofBeforeResponse | Outcome::TruncatedBody, _) => ReadResult::EndsEarly,
        (Outcome::ProtocolError, _) => ReadResult::Malformed,
        _ => panic!("{row:?}"),
    }
}

fn theirs(said: &str) -> ReadResult {
    match said {
        "IncompleteMessage" | "UnexpectedEof" => ReadResult::EndsEarly,
        "Parse" | "TooLarge" | "InvalidInput" | "InvalidData" => ReadResult::Malformed,
        status => ReadResult::Complete(status.parse().unwrap_or_else(|_| panic!("{status}"))),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_answer_outcomes_match_hyper() {
    // The cases are always the same, so that a failure can be investigated.
    let mut runner = TestRunner::deterministic();
    let drawn = (0..CASES).map(|_| cases().new_tree(&mut runner).unwrap().current()).collect();
    let cases: Arc<Vec<ResponseCase>> = Arc::new(drawn);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut server = JoinSet::new();
    let served = cases.clone();
    server.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            connections.spawn(answer(stream, served.clone()));
        }
    });
    let (_, rows) = run(Load {
        pace: Pace::Closed(Length::Requests(CASES)),
        connections: Connections { max: Some(8), ..Connections::FRESH },
        timeout: PATIENT,
        ..Load::new(format!("http://{address}/"))
    })
    .await;
    let mut differ = Vec::new();
    for row in &rows {
        let case = &cases[usize::try_from(row.seq).unwrap()];
        let said = hyper(address, row.seq).await;
        let (ours, theirs) = (ours(row), theirs(&said));
        // hyper parses a head that arrives in pieces only once it is complete, and continues reading after a bare LF at
        // the beginning of a trailer line.
        let is_stricter = row.status.is_none() || case.answer.windows(4).any(|w| w == b"0\r\n\n");
        let is_allowed = is_stricter && (&ours, &theirs) == (&ReadResult::Malformed, &ReadResult::EndsEarly);
        if ours != theirs && !is_allowed {
            differ.push(format!("{ours:?}, hyper {theirs:?}: {}", case.answer.escape_ascii()));
        }
    }
    assert_eq!(rows.len() as u64, CASES);
    assert!(differ.is_empty(), "{} of {CASES}\n{}", differ.len(), differ.join("\n"));
}
