//! The admin port's reports about the pod's termination, and the row hand-over.

use super::*;
use rolldrop_record::wire::ClockAnswer;

#[tokio::test]
async fn termination_records_every_proxy_phase() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let (_client, mut server) = proxy.asked(&app, &get(0)).await;
    for _ in 0..2 {
        proxy.call_pre_stop().await;
    }
    let mut rows = proxy.rows().await;
    drop(app);
    within(async {
        while !phases(&rows.lines).contains(&ProxyPhase::ListenerClosed) && rows.next_line().await {}
    })
    .await;
    // The proxy waits for a request in flight, although the listener has closed.
    proxy.stop.send(()).unwrap();
    within(async { while !phases(&rows.lines).contains(&ProxyPhase::Sigterm) && rows.next_line().await {} })
        .await;
    server.write_all(b"HTTP/1.1 204 None\r\n\r\n").await.unwrap();
    drop(server);
    within(rows.read_to_end()).await;
    use ProxyPhase::*;
    // Hook calls in quick succession count as one.
    let mut passed = phases(&rows.lines);
    passed.dedup();
    assert_eq!(
        passed,
        [PreStop, LastListening, ListenerClosed, Sigterm, LastConnection, LastRequest, Drained, Exit]
    );
    assert_eq!(facts(&served(&rows.lines)[0]), (0, Some(204), ServedEnd::Complete, 0, true));
    assert_eq!(rows.lines.last(), Some(&ProxyLine::End { recorded: 1 }));
    assert_eq!(within(proxy.report).await.unwrap().counts.handed_over, 1);
}

/// A Service's address is not in the proxy's network namespace, where no listener could be found for it.
#[tokio::test]
async fn remote_app_has_no_listener_phases() {
    let proxy = Running::start("192.0.2.1:80".parse().unwrap());
    proxy.call_pre_stop().await;
    let (lines, _) = proxy.end().await;
    use ProxyPhase::*;
    assert_eq!(phases(&lines), [PreStop, Sigterm, Drained, Exit]);
}

#[tokio::test]
async fn hurried_drain_cancels_requests_in_flight() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    let (mut client, _server) = proxy.asked(&app, &get(0)).await;
    let mut rows = proxy.rows().await;
    proxy.stop.send(()).unwrap();
    proxy.hurry.send(()).unwrap();
    expect_reset(&mut client).await;
    within(rows.read_to_end()).await;
    assert_eq!(facts(&served(&rows.lines)[0]), (0, None, ServedEnd::Cancelled, 0, true));
}

#[tokio::test]
async fn reconnecting_reader_gets_every_row_once() {
    const ROWS: u64 = 300;
    let (app, address) = app().await;
    drop(app);
    let proxy = Running::start(address);
    for seq in 0..ROWS {
        let mut client = proxy.client().await;
        client.write_all(get(seq).as_bytes()).await.unwrap();
        expect_reset(&mut client).await;
    }
    proxy.recorded(ROWS).await;
    let mut taken = Vec::new();
    // All rows have been sent to the first reader, which disconnects without reading the rest.
    for wanted in [1, 120] {
        let mut reader = proxy.rows_from(taken.len()).await;
        while served(&reader.lines).len() < wanted {
            assert!(within(reader.next_line()).await);
        }
        taken.extend(served(&reader.lines));
    }
    let mut last = proxy.rows_from(taken.len()).await;
    let [ProxyLine::Hello { next: 121, started_ns, .. }] = last.lines[..] else { panic!("{:?}", last.lines) };
    // A row number from another proxy means nothing, so the reader gets all available rows.
    let other = proxy.hello(&format!("from=121&of={}", started_ns.unix_ns() + 1)).await;
    assert!(matches!(other, ProxyLine::Hello { next: 0, .. }), "{other:?}");
    let same = proxy.hello(&format!("from=121&of={}", started_ns.unix_ns())).await;
    assert!(matches!(same, ProxyLine::Hello { next: 121, .. }), "{same:?}");
    proxy.stop.send(()).unwrap();
    within(last.read_to_end()).await;
    taken.extend(served(&last.lines));
    let conns: Vec<_> = taken.iter().map(|row| row.conn).collect();
    assert_eq!(conns, (0..ROWS).collect::<Vec<_>>());
    let counts = within(proxy.report).await.unwrap().counts;
    assert_eq!((counts.handed_over, counts.dropped), (ROWS, 0));
}

#[tokio::test]
async fn admin_port_serves_clock_and_readiness() {
    let (app, address) = app().await;
    let proxy = Running::start(address);
    assert!(proxy.get("/healthz").await.starts_with("HTTP/1.1 200 "));
    assert!(proxy.get("/readyz").await.starts_with("HTTP/1.1 200 "));
    drop(app);
    assert!(proxy.get("/readyz").await.starts_with("HTTP/1.1 503 "));
    assert!(proxy.get("/nothing").await.starts_with("HTTP/1.1 404 "));
    assert!(proxy.get("/rows?from=x").await.starts_with("HTTP/1.1 400 "));
    let clock = proxy.get("/clock").await;
    let body = clock.split_once("\r\n\r\n").unwrap().1;
    assert!(serde_json::from_str::<ClockAnswer>(body).unwrap().now_ns > Stamp::from_unix_ns(0));
}
