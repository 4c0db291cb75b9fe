//! All faults together, in one open-loop load with fresh and kept connections.
//!
//! This test sends a few thousand requests; `scripts/proofs/known-answers` sends 100,000.

use std::io::Write;

use socket2::{Protocol, SockRef};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::*;

/// Environment variable for the number of requests and their rate.
const SIZE: &str = "KNOWN_ANSWERS";
/// Size of this test within the test suite: number of requests, and requests per second.
const SMALL: (f64, f64) = (4_000.0, 800.0);
/// Value of every timeout, which no response exceeds even on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Number of rounds of the prompt scripts for each round of the hanging ones.
const ROUNDS: usize = 25;

/// Parses `REQUESTS@RATE` from the environment.
pub(super) fn size() -> (f64, f64) {
    let parse = |size: String| {
        let (requests, rate) = size.split_once('@')?;
        Some((requests.parse().ok()?, rate.parse().ok()?))
    };
    std::env::var(SIZE).map_or(SMALL, |size| parse(size).expect("REQUESTS@RATE"))
}

/// Returns an address on which one listener replaces another. No listener accepts, so when one is closed, the kernel
/// resets the connections in its accept queue.
pub(super) async fn reset_before_accept(tasks: &mut JoinSet<()>) -> SocketAddr {
    fn listen(address: SocketAddr) -> Socket {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        socket.set_reuse_port(true).unwrap();
        socket.bind(&address.into()).unwrap();
        socket.listen(128).unwrap();
        socket
    }
    let first = listen((Ipv4Addr::LOCALHOST, 0).into());
    let address = first.local_addr().unwrap().as_socket().unwrap();
    tasks.spawn(async move {
        let mut current = first;
        loop {
            tokio::time::sleep(Duration::from_millis(2)).await;
            // The next listener starts before this one is closed, so that no connection is refused.
            drop(std::mem::replace(&mut current, listen(address)));
        }
    });
    address
}

/// Resets every connection as soon as it is accepted, and counts the connections.
pub(super) async fn reset_after_accept(tasks: &mut JoinSet<()>) -> (SocketAddr, Arc<Mutex<u64>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(Mutex::new(0));
    let counted = count.clone();
    tasks.spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            *counted.lock().unwrap() += 1;
            SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        }
    });
    (address, count)
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mixed_load_outcomes_match_server_log() {
    let (requests, rate) = size();
    let scripts: Vec<Http1Script> = (0..ROUNDS).flat_map(|_| PROMPT).chain(HANGING).collect();
    let server = Http1Server::start(&scripts).await;
    let mut others = JoinSet::new();
    let queue_reset = reset_before_accept(&mut others).await;
    let (accept_reset, accepted) = reset_after_accept(&mut others).await;
    let (_refusing, refused) = closed_address();
    let (_sockets, unanswered) = black_hole();
    let target = |name: &str, address, weight| LoadTarget {
        weight,
        ..LoadTarget::new(name, format!("http://{address}/"))
    };
    let (summary, rows) = run(Load {
        targets: vec![
            target("script", server.address, 188),
            target("refused", refused, 4),
            target("queue_reset", queue_reset, 4),
            target("accept_reset", accept_reset, 3),
            target("unanswered", unanswered, 1),
        ],
        pace: Pace::constant(rate, Duration::from_secs_f64(requests / rate)),
        connections: Connections { max: Some(10_000), ..Connections::mixed(0.4) },
        timeout: Timeouts { connect: TIMEOUT, response: Some(TIMEOUT), ..Timeouts::default() },
        workers: 2,
        // Two addresses double the ports, so that ports in TIME_WAIT are not reused.
        source_addresses: vec![Ipv4Addr::new(127, 0, 0, 8).into(), Ipv4Addr::new(127, 0, 0, 9).into()],
        ..Load::new("")
    })
    .await;
    let (scripted, others): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| &*row.target == "script");
    assert_agree(&scripted, &server.log);
    let mut resets = 0;
    for row in others.iter().filter(|row| row.outcome != Outcome::NotSent) {
        let reset = Some(Errno::ECONNRESET as i32);
        let expected = match &*row.target {
            "refused" => (Outcome::ConnectRefused, Some(Errno::ECONNREFUSED as i32)),
            "queue_reset" => (Outcome::ResetBeforeResponse, reset),
            "accept_reset" => (Outcome::ResetBeforeResponse, reset),
            _ => (Outcome::ConnectTimeout, None),
        };
        resets += u64::from(&*row.target == "accept_reset");
        assert_eq!((row.outcome, row.errno), expected, "{row:?}");
    }
    assert_eq!(resets, *accepted.lock().unwrap());
    tell_played("HTTP/1.1", &summary, &server.log, PROMPT.len() + HANGING.len());
}

/// Fails unless all scripts were played, connections were lost on reuse, and the client and the server count the same
/// number of failures that Go hides.
pub(super) fn tell_played(what: &str, summary: &LoadSummary, log: &Http1Log, scripts: usize) {
    let log = log.lock().unwrap();
    let hidden =
        log.values().filter(|truth| truth.reused && lost_before_answer(truth.outcome)).count() as u64;
    assert_eq!(summary.tally.go_hidden, hidden, "by the server's own count");
    let mut played: BTreeMap<_, u64> = BTreeMap::new();
    log.values().for_each(|truth| *played.entry(truth.script).or_default() += 1);
    assert_eq!(played.len(), scripts + 1, "{played:?}");
    tell(what, summary, log.values().filter(|truth| truth.reused).count());
}

/// Prints the numbers of requests sent and agreed on, for the proof's table; shown by `cargo test -- --nocapture`.
pub(super) fn tell(what: &str, summary: &LoadSummary, reused: usize) {
    let tally = &summary.tally;
    let mut out = std::io::stderr();
    writeln!(
        out,
        "{what}: {} requests, {} not sent, {reused} on reused connections, {} hidden by Go: \
         0 disagreements, {:?}",
        summary.scheduled,
        tally.outcomes.of(Outcome::NotSent),
        tally.go_hidden,
        tally.outcomes.iter().collect::<Vec<_>>()
    )
    .unwrap();
}

fn lost_before_answer(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::EofBeforeResponse | Outcome::ResetBeforeResponse)
}
