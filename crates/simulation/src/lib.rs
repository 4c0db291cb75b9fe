//! Simulated runs with known ground truth, for tests of the crates that explain and judge runs.
#![expect(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    reason = "a panic fails the test that built the run"
)]

mod service;
mod streams;

pub use service::{Naming, Service, all_at_once};
pub use streams::{StreamPodEnd, drained_streams, stream, streams};

use std::sync::Arc;

use rolldrop_record::event::{
    Action, ActionName, Change, ContainerState, EndpointSliceEvent, EndpointState, PodEvent,
};
use rolldrop_record::load::Pacing;
use rolldrop_record::run_info::{
    Balances, BalancesBecause, ClusterInfo, FORMAT_VERSION, LoadPlan, Target, Tool,
};
use rolldrop_record::{
    Event, EventKind, Expect, Mode, Outcome, Phase, Protocol, Records, RequestId, RequestRow, RunId, RunInfo,
    ServedEnd, ServedRow, Stamp,
};

/// Nanoseconds in a millisecond.
pub const MS: i64 = 1_000_000;

/// Returns a time in the run, given in milliseconds from the start of the load.
pub fn at(ms: i64) -> Stamp {
    Stamp::from_unix_ns(1_800_000_000_000_000_000 + ms * MS)
}

/// Returns the run id, which all request ids of a simulated run share.
pub fn run() -> RunId {
    "k3v9x2abcdef".parse().unwrap()
}

/// Returns the run.json of a complete simulated run with fresh connections to one Service.
pub fn info(rate: f64, duration_s: f64, (started, ended): (Stamp, Stamp)) -> RunInfo {
    RunInfo {
        format: FORMAT_VERSION,
        tool: Tool { name: "rolldrop".into(), version: "0".into() },
        run: run(),
        name: "made-up".into(),
        scenario: serde_json::Value::Null,
        expect: Expect::default(),
        cluster: ClusterInfo::default(),
        targets: vec![Target {
            name: "web".into(),
            url: "http://web".into(),
            consumer: "service web".into(),
            balances: Balances::Connections,
            balances_because: BalancesBecause::Assumed,
            service: None,
            routing: None,
            node: None,
        }],
        load: LoadPlan {
            pacing: Pacing::Constant,
            rate,
            duration_s,
            warmup_s: 0.0,
            connect_timeout_s: 1.0,
            response_timeout_s: 5.0,
            success: vec![(200, 299)],
            ..LoadPlan::default()
        },
        sources: Vec::new(),
        started,
        ended: Some(ended),
        complete: true,
        interrupted: false,
        max_busy: None,
        aborted: None,
        looks: None,
        rounds: None,
        policy: rolldrop_record::Policy::default(),
        events: None,
    }
}

/// Returns a run of three pods, `a`, `b` and `c`, to which no request has been sent yet.
pub fn records() -> Records {
    let info = info(300.0, 10.0, (at(0), at(10_000)));
    let load = EventKind::LoadStarted { rate: 300.0, duration_s: 10.0, warmup_s: 0.0 };
    let mut events = vec![Event::new(at(0), "coordinator", load)];
    for pod in ["a", "b", "c"] {
        events.push(pod_event(-1000, pod, Change::Applied));
    }
    Records {
        info,
        events,
        requests: Vec::new(),
        streams: Vec::new(),
        gaps: Vec::new(),
        served: Vec::new(),
        torn: Vec::new(),
        corrupt: Vec::new(),
        altered: Vec::new(),
    }
}

/// Returns an event for a pod that is ready or gone.
pub fn pod_event(ms: i64, pod: &str, change: Change) -> Event {
    let event = PodEvent {
        change,
        namespace: "default".into(),
        name: pod.into(),
        uid: format!("uid-{pod}"),
        resource_version: "1".into(),
        node: Some("n1".into()),
        ip: Some("10.0.0.1".into()),
        phase: "Running".into(),
        ready: true,
        deletion_timestamp: None,
        deletion_grace_s: None,
        grace_s: 30,
        disruption_target: None,
        disruption_message: None,
        reason: None,
        owner: None,
        containers: serde_json::from_value::<Vec<ContainerState>>(serde_json::json!([
            {"name": "app", "sidecar": false, "pre_stop_other": false, "state": "running", "restarts": 0}
        ]))
        .unwrap(),
    };
    Event::new(at(ms), "coordinator", EventKind::Pod(event))
}

/// Deletes `pod` at `ms`. The API server responds after 10 ms, and the pod is gone after 800 ms.
pub fn delete(records: &mut Records, ms: i64, pod: &str) {
    let action = Action {
        is_undone: false,
        disruption: 0,
        action: ActionName::DeletePod,
        mode: Some(Mode::Isolated),
        pod: Some(pod.into()),
        uid: Some(format!("uid-{pod}")),
        answered: at(ms + 10),
        status: Some(200),
        error: None,
    };
    records.events.push(Event::new(at(ms), "coordinator", EventKind::Action(action)));
    records.events.push(pod_event(ms + 800, pod, Change::Deleted));
}

/// Adds a request on a fresh connection. The request begins at `ns` and ends 1 ms later.
pub fn request(records: &mut Records, ns: i64, outcome: Outcome, pod: Option<&str>) {
    let begun = at(0).shifted_ns(ns);
    let seq = records.requests.len() as u64;
    let end = begun.shifted_ns(MS);
    records.requests.push(RequestRow {
        connect_start: Some(begun),
        connected: Some(begun),
        sent: Some(begun),
        outcome,
        conn: Some(seq),
        pod: pod.map(Arc::from),
        final_outcome: outcome,
        ..RequestRow::not_sent("load-0".into(), seq, "web".into(), Phase::Main, begun, end)
    });
}

/// Returns a request as recorded by a pod's proxy.
pub fn served(row: &RequestRow, pod: &str, ended: ServedEnd) -> ServedRow {
    served_at(
        [row.scheduled, row.scheduled, row.end],
        RequestId::new(&run(), &row.source, row.seq),
        pod,
        ended,
    )
}

/// Returns a request as recorded by a pod's proxy. `times` holds the times at which the connection was accepted, the
/// head arrived and the request ended.
pub fn served_at(times: [Stamp; 3], id: RequestId, pod: &str, ended: ServedEnd) -> ServedRow {
    let [accepted, head, end] = times;
    ServedRow {
        source: pod.into(),
        request: Some(id),
        pod: pod.into(),
        peer_addr: "10.0.0.9:4000".into(),
        protocol: Protocol::Http1,
        accepted,
        head: Some(head),
        end,
        status: None,
        grpc_status: None,
        ended,
        detail: None,
        conn: 0,
        conn_first_request: true,
        stream: None,
        bytes_from_client: None,
        bytes_from_app: None,
    }
}

/// Returns a run of 10 s at 300 requests/s, sent to three pods in turn. Pod `b` is deleted at 5 s; it refuses
/// connections from 30 ms after that, and requests are routed to it for 100 ms.
pub fn three_pods() -> Records {
    let mut records = records();
    delete(&mut records, 5000, "b");
    for i in 0..3000i64 {
        let ns = i * 10 * MS / 3;
        let pod = ["a", "b", "c"][usize::try_from(i % 3).unwrap()];
        match ns / MS - 5000 {
            late if pod != "b" || late < 30 => request(&mut records, ns, Outcome::Ok, Some(pod)),
            late if late < 100 => request(&mut records, ns, Outcome::ConnectRefused, None),
            _ => request(&mut records, ns, Outcome::Ok, Some("a")),
        }
    }
    records
}

/// Adds the event for the end of the load, as in a complete run.
pub fn ended(mut records: Records) -> Records {
    if let Some(end) = records.requests.iter().map(|row| row.end).max() {
        let ended = EventKind::LoadEnded { scheduled: records.requests.len() as u64 };
        records.events.push(Event::new(end, "coordinator", ended));
    }
    records
}

/// Returns a run, without requests yet, in which `b` loses its label at 5 s and gets it back at 8 s.
pub fn relabelled() -> Records {
    let mut records = records();
    for (ms, pods) in [(-900, &["a", "b"][..]), (5100, &["a"]), (8000, &["a", "b"])] {
        slice(&mut records, ms, "web", pods);
    }
    let relabel = Action {
        is_undone: false,
        disruption: 0,
        action: ActionName::Relabel,
        mode: None,
        pod: Some("b".into()),
        uid: Some("uid-b".into()),
        answered: at(5010),
        status: Some(200),
        error: None,
    };
    records.events.push(Event::new(at(5000), "coordinator", EventKind::Action(relabel)));
    records.events.sort_by_key(|event| event.at);
    records
}

/// Returns [`three_pods`], but requests take 500 ms, and `b` is killed at 5.2 s with its requests in flight. `named` is
/// the pod that those requests are attributed to, if any.
pub fn three_pods_killed_in_flight(named: Option<&str>) -> Records {
    let mut records = records();
    delete(&mut records, 5000, "b");
    for i in 0..3000i64 {
        let ns = i * 10 * MS / 3;
        let pod = match (["a", "b", "c"][usize::try_from(i % 3).unwrap()], ns / MS) {
            ("b", 5100..) => "a",
            (pod, _) => pod,
        };
        let is_cut_off = pod == "b" && ns >= 4700 * MS;
        let (outcome, told) = match is_cut_off {
            true => (Outcome::EofBeforeResponse, named),
            false => (Outcome::Ok, Some(pod)),
        };
        request(&mut records, ns, outcome, told);
        records.requests.last_mut().unwrap().end = at(if is_cut_off { 5200 } else { ns / MS + 500 });
    }
    records
}

/// Adds a connection attempt from this port, with this outcome.
pub fn connect(records: &mut Records, ms: i64, port: u16, outcome: Outcome) {
    request(records, ms * MS, outcome, None);
    let row = records.requests.last_mut().unwrap();
    row.local_port = Some(port);
    row.remote_addr = Some(Arc::from("10.0.0.9:80"));
}

/// Adds a connection attempt from this port that times out after 1 s.
pub fn timeout(records: &mut Records, ms: i64, port: u16) {
    connect(records, ms, port, Outcome::ConnectTimeout);
    let row = records.requests.last_mut().unwrap();
    row.end = row.scheduled.shifted_ns(1000 * MS);
}

/// Adds an update to a Service's only EndpointSlice, in which these pods are ready.
pub fn slice(records: &mut Records, ms: i64, service: &str, pods: &[&str]) {
    let endpoints = pods
        .iter()
        .map(|pod| EndpointState {
            pod: Some((*pod).into()),
            address: "10.0.0.1".into(),
            ready: true,
            serving: true,
            terminating: false,
            node: None,
        })
        .collect();
    let event = EndpointSliceEvent {
        change: Change::Applied,
        namespace: "default".into(),
        name: format!("{service}-x"),
        service: Some(service.into()),
        endpoints,
    };
    records.events.push(Event::new(at(ms), "coordinator", EventKind::EndpointSlice(event)));
}

/// Returns a run in which `n` pods are deleted one after another, and requests are routed to each for 100 ms after its
/// deletion.
pub fn many(n: i64) -> Records {
    let mut records = records();
    for e in 0..n {
        let pod = format!("p{e}");
        records.events.push(pod_event(-1000, &pod, Change::Applied));
        delete(&mut records, 2000 * (e + 1), &pod);
        for i in 0..200i64 {
            let ms = 2000 * e + 10 * i;
            request(&mut records, ms * MS, Outcome::Ok, Some(&pod));
        }
        for i in 0..10i64 {
            let ms = 2000 * (e + 1) + 10 * i + 5;
            request(&mut records, ms * MS, Outcome::ConnectRefused, None);
        }
    }
    for i in 0..100i64 {
        request(&mut records, (2000 * n + 100 + 10 * i) * MS, Outcome::Ok, Some("a"));
    }
    records
}

/// Returns [`three_pods`], but `b` responds with this status on kept-alive connections for 600 ms, starting 20 ms after
/// its deletion.
pub fn refusing(status: u16, is_named: bool) -> Records {
    let mut records = three_pods();
    records.info.targets[0].balances_because = BalancesBecause::Service;
    for i in 0..60i64 {
        request(&mut records, (5020 + 10 * i) * MS, Outcome::HttpError, is_named.then_some("b"));
        let row = records.requests.last_mut().unwrap();
        (row.status, row.conn_reused, row.connect_start, row.conn) =
            (Some(status), true, None, Some(1 << 40));
    }
    records
}
