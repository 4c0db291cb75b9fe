//! Detects when the embedded cluster stalls because its process was stopped or its machine has no CPU time for it.
//!
//! The cluster's Service proxy and controllers also stall, which looks like an overloaded target.

use std::convert::Infallible;
use std::time::Duration;

use http::Request;
use kube::Client;
use kube::client::Body;
use tokio::time::{Instant, sleep};

use super::event_recorder::RecorderHandle;
use rolldrop_record::EventKind;

/// Time from one response to the next request.
const PERIOD: Duration = Duration::from_millis(500);
/// Minimum response time to record.
const NOTED: Duration = Duration::from_secs(2);

/// Requests the API server's version repeatedly, and records each slow response.
pub(crate) async fn watch(client: Client, recorder: RecorderHandle) -> Infallible {
    loop {
        sleep(PERIOD).await;
        let Ok(request) = Request::get("/version").body(Body::empty()) else { continue };
        let (from, begun) = (recorder.clock().now(), Instant::now());
        let answer = client.send(request).await;
        if answer.is_ok() && begun.elapsed() >= NOTED {
            recorder.record(EventKind::ApiSilence { from });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::Response;
    use rolldrop_record::{Clock, RunDir};

    use super::*;
    use crate::observe::event_recorder::EventRecorder;
    use crate::viewer::Nobody;

    #[tokio::test(start_paused = true)]
    async fn only_long_standstills_are_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let run_dir = RunDir::create(&dir.path().join("run")).unwrap();
        let clock = Clock::start();
        let recorder = EventRecorder::start(&run_dir, clock, Arc::new(Nobody)).unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let service = tower::service_fn(move |_: Request<Body>| {
            let number = count.fetch_add(1, Ordering::SeqCst);
            async move {
                sleep(if number == 3 { NOTED } else { NOTED / 2 }).await;
                Response::builder().body(Body::empty()).map_err(kube::Error::HttpError)
            }
        });
        let watching = watch(Client::new(service, "default"), recorder.handle().clone());
        let until = async {
            while asked.load(Ordering::SeqCst) < 6 {
                sleep(PERIOD).await;
            }
        };
        tokio::select! {
            never = watching => match never {},
            () = until => {}
        }
        assert_eq!(recorder.finish().await.unwrap().lines, 1);
    }
}
