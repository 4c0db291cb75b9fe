//! Rows that proxies hand over, and that cannot all be read.

use super::*;

/// A proxy with three rows, of which nobody can read the second. Its first stream breaks off.
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
async fn a_row_that_cannot_be_read_is_missing_and_those_after_it_come_once() {
    let asked = Arc::new(AtomicUsize::new(0));
    let client =
        Client::new(tower::service_fn(move |request| rows_from(Arc::clone(&asked), request)), "shop");
    let (session, run_dir, _dir) = session(client, Limits::default());
    let (stop, running) = follow_proxies(&session);
    let has_ended = async {
        let ended = |source: &Source| source.rows.is_some_and(|rows| rows.recorded.is_some());
        while !session.collector.sources().last().is_some_and(ended) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), has_ended).await.unwrap();
    stop.cancel();
    running.await.unwrap();
    session.finish(CancellationToken::new()).await.unwrap();
    let ended = events_of(&run_dir).into_iter().find_map(|event| match event.kind {
        EventKind::ProxyEnded { rows, .. } => Some(rows),
        _ => None,
    });
    assert_eq!(ended, Some(Rows { recorded: Some(3), known: 3, in_flight: 0, received: 2 }));
    let rows = rolldrop_record::parts::read_table::<ServedRow>(run_dir.path()).unwrap();
    assert_eq!(rows, [served(0), served(2)]);
}
