//! Pod terminations on the embedded cluster, compared with those recorded on a real v1.36.2 cluster.
//!
//! Most cases wait for tens of seconds, so all of them run concurrently on one cluster, each in its own namespace,
//! when a test first needs one. The compared facts can be seen from outside: API watches, signals received by the pods'
//! programs (from their own logs), and process exits (from the kernel).

pub(crate) mod case;
mod claims;
mod client_view;
mod golden;
mod hops;
pub(crate) mod lab;
mod node;
mod node_agent;
mod recorded;
mod recording;
mod services;
mod signals;
mod under_load;

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::FutureExt;
use serde_json::json;
use tokio::task::JoinSet;

use recording::Recording;

use crate::lab::Setup;
use crate::machine::wait_until_quiet;
use crate::runs::APART;

/// Recordings on one cluster, by case; the error is the reason why a case could not be recorded.
type Recorded = BTreeMap<&'static str, Result<Recording, String>>;

/// The dataplanes that the cases are recorded on.
const DATAPLANES: [&str; 2] = ["userspace", "kernel"];

/// Lag beyond which the machine may change the order of events. The cases are then recorded again.
const MAX_LAG_S: f64 = 10.0;

/// Time between the starts of two cases, so that not all pods start at the same time.
const STAGGER: Duration = Duration::from_millis(200);

/// Returns the recordings of a case, one for each dataplane.
#[track_caller]
fn recordings(case: &str) -> Vec<&'static Recording> {
    static RECORDED: OnceLock<Vec<Recorded>> = OnceLock::new();
    let recorded = RECORDED.get_or_init(|| {
        // The lock is taken on a separate thread, because the test may be asynchronous.
        let _apart = std::thread::spawn(|| APART.blocking_lock()).join().expect("a turn");
        let recorded = record_both();
        if lag_s(&recorded) <= MAX_LAG_S {
            return recorded;
        }
        wait_until_quiet();
        record_both()
    });
    let of_case = recorded.iter().map(|cases| match cases.get(case) {
        Some(Ok(recording)) => recording,
        Some(Err(why)) => panic!("{case} could not be recorded: {why}"),
        None => panic!("there is no case {case}"),
    });
    of_case.collect()
}

/// Runs all cases on each dataplane at the same time.
fn record_both() -> Vec<Recorded> {
    let both = DATAPLANES.map(|dataplane| std::thread::spawn(move || record(dataplane)));
    both.into_iter().map(|one| one.join().expect("a recorded cluster")).collect()
}

/// Returns the maximum delay that the machine may have caused in these recordings.
fn lag_s(recorded: &[Recorded]) -> f64 {
    recorded.iter().flat_map(|cases| cases.values().flatten()).map(|case| case.lag_s).fold(0.0, f64::max)
}

/// Runs all cases on a cluster of their own.
fn record(dataplane: &'static str) -> Recorded {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        // Each case was recorded alone, so the controllers' rate limit must not affect the concurrent cases.
        let controllers = json!({"kubeApiQps": 1000, "kubeApiBurst": 1000});
        // As in the official image.
        let images = json!({"nginx": {"stopSignal": "SIGQUIT"}});
        let setup = Setup::on(dataplane).with(json!({"controllers": controllers, "images": images}));
        let lab = Arc::new(setup.watched().await);
        let mut running = JoinSet::new();
        let pods =
            [recorded::cases(&lab), node_agent::cases(&lab), claims::cases(&lab), services::cases(&lab)];
        // Cases with several pods take less time, so they start after all single-pod cases.
        let pods = pods.into_iter().flatten().map(|(name, case)| (name, case.run().boxed()));
        for (n, (name, case)) in (0..).zip(pods.chain(services::flows(&lab))) {
            let case = tokio::time::sleep(STAGGER * n).then(|()| case);
            running.spawn(async move {
                let recording = std::panic::AssertUnwindSafe(case).catch_unwind().await;
                (name, recording.map_err(|panic| message_of(&*panic)))
            });
        }
        let mut recorded = Recorded::new();
        while let Some(done) = running.join_next().await {
            let (name, recording) = done.expect("a case that catches its panics");
            recorded.insert(name, recording);
        }
        recorded
    })
}

fn message_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}
