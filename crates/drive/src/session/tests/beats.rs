//! Tests of beats with an API server whose responses each test defines.

use super::*;

#[tokio::test(start_paused = true)]
async fn beats_adapt_to_refusals_and_resume() {
    let asked = Arc::new(AtomicUsize::new(0));
    let patches = Arc::clone(&asked);
    let (client, calls) = api(move |method, path| match *method {
        Method::PATCH => match patches.fetch_add(1, Ordering::SeqCst) {
            1 => status(429, "TooManyRequests", "slow down"),
            2 => status(500, "InternalError", "away"),
            40..43 => status(403, "Forbidden", "configmaps is forbidden"),
            n => {
                let mut object = owner();
                object["apiVersion"] = "meta.k8s.io/v1".into();
                object["kind"] = "PartialObjectMetadata".into();
                object["metadata"]["resourceVersion"] = (100 + 2 * n).to_string().into();
                (200, object.to_string())
            }
        },
        Method::GET if path.ends_with("/pods") => {
            let version = 100 + 2 * patches.load(Ordering::SeqCst) - 1;
            let list = json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                "metadata": {"resourceVersion": version.to_string()}, "items": []});
            (200, list.to_string())
        }
        _ => with_discovery(method, path, (200, service().to_string())),
    });
    let (session, run_dir, _dir) = session(client, TimeLimits::default());
    // The run continues; only the caller stops the beats.
    let beats = tokio::time::timeout(Duration::from_secs(60), session.beat()).await;
    assert!(beats.is_err());
    finish(session).await;
    let events = events_of(&run_dir);
    let beats = events.iter().filter(|event| matches!(event.kind, EventKind::Beat { .. })).count();
    let checks = events.iter().filter(|event| matches!(event.kind, EventKind::BeatCheck { .. })).count();
    // Beats pause for 30 s in total.
    assert!(beats > 200 && beats < 350, "{beats}");
    assert_eq!(beats, asked.load(Ordering::SeqCst) - 5);
    assert!(checks >= 20, "{checks}");
    let warnings = events.iter().filter_map(|event| match &event.kind {
        EventKind::Warning { message } => Some(message.as_str()),
        _ => None,
    });
    let warnings: Vec<&str> = warnings.collect();
    assert!(warnings.len() == 1 && warnings[0].starts_with("stopped writing beats: "), "{warnings:?}");
    let calls = calls.lock().unwrap();
    let mut patched = calls.iter().filter(|(method, ..)| *method == Method::PATCH);
    let is_own = |path: &str| path == "/api/v1/namespaces/shop/configmaps/rolldrop-run-my-run";
    assert!(patched.all(|(_, path, body)| is_own(path) && body["data"]["beat"].is_string()), "{calls:?}");
    let deleted = calls.iter().filter(|(method, path, _)| *method == Method::DELETE && is_own(path));
    assert_eq!(deleted.count(), 1, "{calls:?}");
}
