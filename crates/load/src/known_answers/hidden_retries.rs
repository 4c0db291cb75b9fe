//! Retries that some clients make and hide from their users: compares our count of them with the server's.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::*;
use rolldrop_record::RequestId;

fn settings(address: SocketAddr, requests: u64) -> Load {
    Load {
        pace: Pace::Closed(Length::Requests(requests)),
        connections: Connections { max: Some(10), ..Connections::KEEPALIVE },
        timeout: PATIENT,
        ..Load::new(format!("http://{address}/"))
    }
}

/// Runs against a server that reads the 11th request of each connection and then closes the connection. Returns the
/// server's count of such requests, and the client's count of those that Go would hide.
async fn eleventh(change: impl FnOnce(&mut Load)) -> (u64, u64) {
    let server = Http1Server::closing_on(11).await;
    let mut settings = settings(server.address, 1100);
    change(&mut settings);
    let (summary, rows) = run(settings).await;
    assert_agree(&rows, &server.log);
    let log = server.log.lock().unwrap();
    let lost = log.values().filter(|truth| truth.outcome == Outcome::EofBeforeResponse).count() as u64;
    assert_eq!(summary.tally.outcomes.of(Outcome::EofBeforeResponse), lost);
    assert_eq!(summary.tally.outcomes.of(Outcome::Ok), 1100 - lost);
    (lost, summary.tally.go_hidden)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tally_counts_requests_go_would_replay() {
    let (lost, hidden) = eleventh(|_| {}).await;
    assert!(lost >= 90, "{lost}");
    assert_eq!(hidden, lost);
    let (lost, hidden) = eleventh(|s| s.method = "POST".into()).await;
    assert!(lost >= 90 && hidden == 0, "Go does not resend a POST: {hidden} of {lost}");
    let key = ("Idempotency-Key".to_owned(), "1".into());
    let (lost, hidden) = eleventh(|s| (s.method, s.headers) = ("POST".into(), vec![key])).await;
    assert!(lost >= 90 && hidden == lost, "Go resends a POST with an idempotency key: {hidden} of {lost}");
}

/// Responds to every request that it reads, and closes a connection that has been idle for about as long as the client
/// takes to reuse it. Logs the requests that it has read.
async fn impatient(log: Arc<Mutex<BTreeSet<u64>>>, listener: TcpListener) {
    let mut connections = JoinSet::new();
    for number in 0_u64.. {
        let (mut stream, _) = listener.accept().await.unwrap();
        let log = log.clone();
        // Values from 0 to 3 ms, in irregular order.
        let patience = Duration::from_micros(number * 1_237 % 3_000);
        connections.spawn(async move {
            let mut request = vec![0; 4096];
            let mut wait = Duration::from_secs(60);
            while let Ok(Ok(count)) = timeout(wait, stream.read(&mut request)).await
                && count > 0
            {
                let text = std::str::from_utf8(&request[..count]).unwrap();
                let id = text.lines().find_map(|line| line.strip_prefix("rolldrop-id: ")).unwrap();
                log.lock().unwrap().insert(id.parse::<RequestId>().unwrap().seq);
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
                wait = patience;
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_on_reuse_outcomes_match_server_log() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let read = Arc::new(Mutex::new(BTreeSet::new()));
    let mut server = JoinSet::new();
    server.spawn(impatient(read.clone(), listener));
    let (summary, rows) = run(Load {
        pace: Pace::constant(1000.0, Duration::from_secs(2)),
        connections: Connections::KEEPALIVE,
        ..settings(address, 0)
    })
    .await;
    let read = read.lock().unwrap();
    let mut lost = 0;
    for row in rows.iter().filter(|row| row.outcome != Outcome::NotSent) {
        if read.contains(&row.seq) {
            assert_eq!(row.outcome, Outcome::Ok, "{row:?}");
        } else {
            let outcomes = [Outcome::EofBeforeResponse, Outcome::ResetBeforeResponse];
            assert!(row.conn_reused && outcomes.contains(&row.outcome), "{row:?}");
            lost += 1;
        }
    }
    assert_eq!(summary.tally.go_hidden, lost, "by the server's own count");
}
