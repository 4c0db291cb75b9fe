//! Tests of collecting rows from proxies, including unreadable data.

use std::collections::BTreeSet;

use super::*;
use rolldrop_record::event::ProxyPhase;
use rolldrop_record::run_info::{Rows, Source};
use rolldrop_record::wire::ProxyLine;

/// Returns the first line of a proxy that started at `started`, before the row `next`.
fn hello(started: i64, next: u64) -> ProxyLine {
    let started_ns = Stamp::from_unix_ns(started);
    ProxyLine::Hello { source: "web-1".into(), pod: "web-1".into(), started_ns, next }
}

fn end(recorded: u64) -> ProxyLine {
    ProxyLine::End { recorded }
}

fn pre_stop(t_ns: i64) -> ProxyLine {
    ProxyLine::Phase { phase: ProxyPhase::PreStop, t_ns: Stamp::from_unix_ns(t_ns) }
}

#[tokio::test]
async fn proxy_rows_are_recorded_once() {
    let rows = |seqs: [u64; 2]| seqs.map(|seq| ProxyLine::Row(served(seq)));
    let first = [vec![hello(7, 0), pre_stop(1)], rows([0, 1]).to_vec()].concat();
    // The stream breaks and is resumed at the same position; every stream repeats the phases.
    let second = [vec![hello(7, 2), pre_stop(1)], rows([2, 3]).to_vec(), vec![end(4)]].concat();
    let collected = collected(vec![first, second]).await;
    let rows = Rows { recorded: Some(4), known: 4, in_flight: 0, received: 4 };
    assert_eq!(collected.ends, [("web-1".to_owned(), rows)]);
    assert_eq!(collected.rows, [0, 1, 2, 3].map(served));
    assert_eq!(collected.phases, ["web-1"]);
}

#[tokio::test]
async fn killed_proxy_leaves_missing_rows() {
    let state = ProxyLine::State { recorded: 5, in_flight: 3 };
    let killed = vec![hello(7, 0), pre_stop(1), ProxyLine::Row(served(0)), state];
    let restarted = vec![hello(8, 0), pre_stop(2), ProxyLine::Row(served(0)), end(1)];
    let collected = collected(vec![killed, restarted]).await;
    let lost = Rows { recorded: None, known: 5, in_flight: 3, received: 1 };
    let whole = Rows { recorded: Some(1), known: 1, in_flight: 0, received: 1 };
    assert_eq!(collected.ends, [("web-1".to_owned(), lost), ("web-1~1".to_owned(), whole)]);
    assert_eq!(collected.rows, [served(0), ServedRow { source: "web-1~1".into(), ..served(0) }]);
    assert_eq!(collected.phases, ["web-1", "web-1~1"]);
}

#[tokio::test]
async fn killed_proxy_leaves_open_responses() {
    let open = |seq| ServedRow { ended: ServedEnd::Open, ..served(seq) };
    let opened = [0, 1].map(|seq| ProxyLine::Open(open(seq))).to_vec();
    let again = vec![ProxyLine::Row(served(0)), ProxyLine::Open(open(1))];
    let killed = [vec![hello(7, 0)], opened, again].concat();
    let restarted = vec![hello(8, 0), ProxyLine::Open(open(2)), ProxyLine::Row(served(2)), end(1)];
    let collected = collected(vec![killed, restarted]).await;
    let lost = Rows { recorded: None, known: 1, in_flight: 0, received: 1 };
    assert_eq!(collected.ends[0], ("web-1".to_owned(), lost));
    assert_eq!(collected.rows, [open(1), served(0), ServedRow { source: "web-1~1".into(), ..served(2) }]);
}

#[tokio::test]
async fn clean_restart_starts_new_source() {
    let lives = [7, 8].map(|started| vec![hello(started, 0), ProxyLine::Row(served(0)), end(1)]);
    let collected = collected(lives.to_vec()).await;
    let whole = Rows { recorded: Some(1), known: 1, in_flight: 0, received: 1 };
    assert_eq!(collected.ends, [("web-1".to_owned(), whole), ("web-1~1".to_owned(), whole)]);
    assert_eq!(collected.rows.len(), 2);
}

#[tokio::test]
async fn proxy_requiring_token_causes_one_warning() {
    // The API server passes on the admin port's response.
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let (client, _) = api(move |_, path| {
        if path.ends_with("/rows") {
            count.fetch_add(1, Ordering::SeqCst);
        }
        (401, "the admin port needs a token\n".to_owned())
    });
    let events = events_until_asked_thrice(client, &asked).await;
    assert_eq!(warnings(&events), ["the proxy of pod web-1 requires a token (--admin-token-file)"]);
}

#[tokio::test]
async fn proxy_with_endless_line_causes_one_warning() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let (client, _) = api(move |_, path| {
        if !path.ends_with("/rows") {
            // The response about the clock is too long, too.
            return (200, " ".repeat(1 << 20));
        }
        count.fetch_add(1, Ordering::SeqCst);
        let good: String = [hello(7, 0), ProxyLine::Row(served(0))]
            .iter()
            .map(|line| serde_json::to_string(line).unwrap() + "\n")
            .collect();
        (200, good + &"x".repeat(crate::collect::lines::LINE_BYTES + 1) + "\n" + "{}\n")
    });
    let events = events_until_asked_thrice(client, &asked).await;
    assert_eq!(
        warnings(&events),
        ["the proxy of pod web-1 sends unreadable data: a line is longer than 65536 bytes"]
    );
    assert!(!events.iter().any(|event| matches!(event.kind, EventKind::ClockSample { .. })));
}

#[tokio::test(start_paused = true)]
async fn interrupted_run_collects_available_rows() {
    let limits = TimeLimits { outage: Duration::from_secs(3600), ..TimeLimits::default() };
    for is_away in [false, true] {
        let asked = AtomicUsize::new(0);
        let streams = Arc::new((asked, [0, 1].map(|row| [hello(7, row), ProxyLine::Row(served(row))])));
        let (client, _) = api(move |_, path| {
            let (asked, streams) = &*streams;
            let clock = json!({"now_ns": 8, "started_ns": 7, "recorded": 2});
            match path.rsplit('/').next() {
                _ if is_away => status(500, "InternalError", "out of order"),
                Some("clock") => (200, clock.to_string()),
                // Sends one row at a time.
                _ => match streams.get(asked.fetch_add(1, Ordering::SeqCst)) {
                    Some(lines) => {
                        (200, lines.iter().map(|line| serde_json::to_string(line).unwrap() + "\n").collect())
                    }
                    None => status(503, "ServiceUnavailable", "away"),
                },
            }
        });
        let (mut session, _run_dir, _dir) = session(client, limits);
        follow_proxies(&mut session);
        while session.collector.sources().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let begun = Instant::now();
        session.hand_over().await;
        assert!(begun.elapsed() <= 2 * limits.hand_over, "{:?}", begun.elapsed());
        let rows = session.collector.sources().pop().unwrap().rows.unwrap();
        let received = if is_away { 0 } else { 2 };
        assert_eq!((rows.received, rows.recorded), (received, (!is_away).then_some(2)));
        finish(session).await;
    }
}

/// Returns the recorded events of a proxy whose rows are requested three times.
async fn events_until_asked_thrice(client: Client, asked: &AtomicUsize) -> Vec<rolldrop_record::Event> {
    let (mut session, run_dir, _dir) = session(client, TimeLimits::default());
    follow_proxies(&mut session);
    let again = async {
        while asked.load(Ordering::SeqCst) < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), again).await.unwrap();
    finish(session).await;
    events_of(&run_dir)
}

fn warnings(events: &[rolldrop_record::Event]) -> Vec<&str> {
    let warnings = events.iter().filter_map(|event| match &event.kind {
        EventKind::Warning { message } => Some(message.as_str()),
        _ => None,
    });
    warnings.collect()
}

/// Collects records from the proxy in the pod `web-1`.
fn follow_proxies(session: &mut Session) {
    let mut running = pod("web-1", container("running", "", ""));
    running.admin_port = Some(8082);
    session.observer.views().update(|view| {
        view.pods_listed = true;
        view.pods.insert(running.event.uid.clone(), running);
    });
    session.collector = Collector::begin(&session.caller, &session.observer, None, &mut session.tasks);
}

/// Records from a proxy.
struct Collected {
    ends: Vec<(String, Rows)>,
    rows: Vec<ServedRow>,
    /// Sources that reported a phase.
    phases: Vec<String>,
}

/// Returns the records from a proxy that sends these row streams, one after another. The last one ends properly.
async fn collected(streams: Vec<Vec<ProxyLine>>) -> Collected {
    let text = |lines: &Vec<ProxyLine>| {
        let lines = lines.iter().map(|line| serde_json::to_string(line).unwrap() + "\n");
        lines.collect::<String>()
    };
    let texts: Vec<String> = streams.iter().map(text).collect();
    let asked = Arc::new(AtomicUsize::new(0));
    let (client, _) = api(move |_, path| match path.rsplit('/').next() {
        Some("rows") => {
            let text = texts.get(asked.fetch_add(1, Ordering::SeqCst));
            (200, text.cloned().unwrap_or_default())
        }
        _ => (503, String::new()),
    });
    let (mut session, run_dir, _dir) = session(client, TimeLimits::default());
    follow_proxies(&mut session);
    let collector = session.collector.clone();
    let whole = |source: &Source| source.rows.is_some_and(|rows| rows.recorded.is_some());
    let has_ended = async {
        while !collector.sources().last().is_some_and(whole) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    // The first of two recorders ends, but the pod's rows do not end with it.
    let lives = async {
        let started = |line: &ProxyLine| match line {
            ProxyLine::Hello { started_ns, .. } => Some(*started_ns),
            _ => None,
        };
        let lives: BTreeSet<Stamp> = streams.iter().flatten().filter_map(started).collect();
        while collector.sources().len() < lives.len() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        has_ended.await;
    };
    tokio::time::timeout(Duration::from_secs(20), lives).await.unwrap();
    collector.catch_up(&TimeLimits { hand_over: Duration::from_secs(5), ..TimeLimits::default() }).await;
    finish(session).await;
    let (mut ends, mut phases) = (Vec::new(), Vec::new());
    for event in events_of(&run_dir) {
        match event.kind {
            EventKind::ProxyEnded { of, rows, .. } => ends.push((of, rows)),
            EventKind::ProxyPhase { .. } => phases.push(event.source),
            _ => {}
        }
    }
    let rows = rolldrop_record::parts::read_table::<ServedRow>(run_dir.path()).unwrap();
    Collected { ends, rows, phases }
}

/// Responds as a proxy with three rows, the second of which cannot be parsed. The first stream breaks off.
async fn rows_from(asked: Arc<AtomicUsize>, request: Request<Body>) -> kube::Result<Response<Body>> {
    let uri = request.uri();
    let text = if uri.path().ends_with("/rows") {
        let from = uri.query().and_then(|query| query.split('&').find_map(|part| part.strip_prefix("from=")));
        let from: usize = from.map_or(0, |from| from.parse().unwrap());
        let row = |seq| serde_json::to_string(&ProxyLine::Row(served(seq))).unwrap();
        let rows = [row(0), r#"{"row":{"outcome":"of_tomorrow"}}"#.to_owned(), row(2)];
        let mut lines = vec![serde_json::to_string(&hello(7, from as u64)).unwrap()];
        lines.extend(rows.into_iter().skip(from));
        if asked.fetch_add(1, Ordering::SeqCst) > 0 {
            lines.push(serde_json::to_string(&end(3)).unwrap());
        }
        lines.into_iter().map(|line| line + "\n").collect()
    } else {
        json!({"now_ns": 8, "started_ns": 7, "recorded": 3}).to_string()
    };
    Ok(Response::new(Body::from(text.into_bytes())))
}

#[tokio::test]
async fn later_rows_are_kept_after_unreadable_row() {
    let asked = Arc::new(AtomicUsize::new(0));
    let client =
        Client::new(tower::service_fn(move |request| rows_from(Arc::clone(&asked), request)), "shop");
    let (mut session, run_dir, _dir) = session(client, TimeLimits::default());
    follow_proxies(&mut session);
    let has_ended = async {
        let ended = |source: &Source| source.rows.is_some_and(|rows| rows.recorded.is_some());
        while !session.collector.sources().last().is_some_and(ended) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), has_ended).await.unwrap();
    finish(session).await;
    let ended = events_of(&run_dir).into_iter().find_map(|event| match event.kind {
        EventKind::ProxyEnded { rows, .. } => Some(rows),
        _ => None,
    });
    assert_eq!(ended, Some(Rows { recorded: Some(3), known: 3, in_flight: 0, received: 2 }));
    let rows = rolldrop_record::parts::read_table::<ServedRow>(run_dir.path()).unwrap();
    assert_eq!(rows, [served(0), served(2)]);
}
