//! One pass over all rows, where that is enough, yields the same result as several passes.

#![expect(clippy::disallowed_types, reason = "reads recorded runs")]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Mutex;

use super::*;
use rolldrop_record::parts::{Lane, Wanted};
use rolldrop_record::service_proxy::ServiceProxy;
use rolldrop_record::{GapRow, RunDir, StreamRow};

/// Returns a pod's address.
fn address(pod: &str) -> [u8; 4] {
    [10, 0, 0, *pod.as_bytes().first().unwrap()]
}

/// Features of a synthetic run.
#[derive(Clone, Copy, Debug)]
struct Has {
    kept_connections: bool,
    gateway: bool,
    relay: bool,
    proxies: bool,
    ipvs: bool,
    closed_loop: bool,
}

impl Has {
    fn records(self) -> Records {
        let mut records = records();
        records.events.push(pod_event(-1000, "gate", Change::Applied));
        for event in &mut records.events {
            if let EventKind::Pod(pod) = &mut event.kind {
                pod.ip = Some(std::net::Ipv4Addr::from(address(&pod.name)).to_string());
            }
        }
        delete(&mut records, 3000, "a");
        delete(&mut records, 3100, "b");
        let info = &mut records.info;
        if self.gateway {
            info.targets.push(Target { name: "shop".into(), ..info.targets[0].clone() });
        }
        if self.ipvs {
            info.cluster.dataplane = ServiceProxy::Ipvs;
        }
        if self.closed_loop {
            info.load.pacing = Pacing::ClosedLoop;
        }
        records
    }

    /// Adds a request.
    fn add(self, records: &mut Records, (at, kind, pod, conn, took): Drawn) {
        const KINDS: [Outcome; 8] = [
            Outcome::ConnectTimeout,
            Outcome::ConnectRefused,
            Outcome::ResetBeforeResponse,
            Outcome::EofBeforeResponse,
            Outcome::ResponseTimeout,
            Outcome::H2Goaway,
            Outcome::HttpError,
            Outcome::NotSent,
        ];
        let outcome = KINDS.get(kind).copied().unwrap_or(Outcome::Ok);
        // A kept connection reaches only one pod, except through a gateway.
        let reached = if self.gateway { pod } else { usize::try_from(conn).unwrap() % 3 };
        let pod = ["a", "b", "c"].get(pod).map(|_| ["a", "b", "c"][reached]);
        request(records, at * 50 * MS, outcome, pod);
        let row = records.requests.last_mut().unwrap();
        row.source = ["load-0", "load-1"][kind % 2].into();
        row.phase = if at < 10 { Phase::Warmup } else { Phase::Main };
        row.sent = Some(row.scheduled.shifted_ns(MS));
        row.end = row.scheduled.shifted_ns(took * 4 * MS);
        row.conn = Some(conn);
        row.conn_reused = self.kept_connections && at % 3 > 0;
        row.connect_start = row.connect_start.filter(|_| !row.conn_reused);
        row.stream = (conn > 2).then_some(1);
        row.bytes_received = u64::from(outcome == Outcome::Ok);
        row.grpc_status = [None, None, Some(0), Some(14)][kind % 4];
        let port = 40_000 + u16::try_from(conn % 2).unwrap();
        (row.local_port, row.remote_addr) =
            (Some(port), Some(["10.0.0.8:80", "10.0.0.9:80"][kind % 2].into()));
        if self.gateway && conn > 2 {
            row.target = "shop".into();
            row.status = (outcome == Outcome::HttpError).then_some(502);
        }
        row.routed_to = pod.filter(|_| self.ipvs).map(|pod| SocketAddr::from((address(pod), 80)));
        match pod {
            Some(pod) if self.relay => row.pod = Some(format!("{pod}, gate").into()),
            Some(_) if self.ipvs && conn == 1 => row.pod = None,
            _ => {}
        }
        if self.proxies && conn > 0 {
            row.pod = None;
            let served = served(row, pod.unwrap_or("c"), ServedEnd::Complete);
            records.served.push(served);
        }
    }
}

/// Randomly drawn request: time, outcome, pod, connection and duration.
type Drawn = (i64, usize, usize, u64, i64);

proptest! {
    #[test]
    fn single_pass_matches_two_pass(
        rows in proptest::collection::vec((0i64..200, 0..20_usize, 0..4_usize, 0..5_u64, 1..90_i64), 0..80),
        has in any::<[bool; 6]>(),
    ) {
        let [kept_connections, gateway, relay, proxies, ipvs, closed_loop] = has;
        // Only some runs have proxies, because with them the rows are always read again.
        let has = Has { kept_connections, gateway, relay, proxies: proxies && gateway, ipvs, closed_loop };
        let mut records = has.records();
        rows.into_iter().for_each(|drawn| has.add(&mut records, drawn));
        // `analysed` compares the two ways.
        analysed(records);
    }
}

#[test]
fn single_pass_matches_two_pass_on_recorded_runs() {
    let runs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/reference/runs");
    for run in ["both", "ingress", "plain-one"] {
        let read = || RunDir::open(&runs.join(run).join("run")).unwrap().recorded().unwrap();
        let (mut log, tables) = read();
        let (timeline, requests) = Timeline::build(log.clone(), tables).unwrap();
        // The consumers, as inferred from responses, are known from the beginning, so the rows need not be read again.
        log.info.targets.clone_from(&timeline.info.targets);
        let step_by_step = analyse(&timeline, &requests, None).unwrap();
        let at_once = Analysed::of(log, read().1).unwrap().analysis;
        assert_eq!(format!("{at_once:?}"), format!("{step_by_step:?}"), "{run}");
    }
}

/// Rows, with the number of columns read in each pass.
#[derive(Debug)]
struct Watched(Records, Arc<Mutex<Vec<Option<usize>>>>);

impl RowSource for Watched {
    fn lanes(&self) -> usize {
        self.0.lanes()
    }

    fn requests(&self, lanes: &mut [&mut dyn Lane<RequestRow>]) -> Result<(), PartError> {
        self.1.lock().unwrap().push(match lanes[0].wanted() {
            Wanted::All => None,
            Wanted::Only(columns) => Some(columns.len()),
        });
        self.0.requests(lanes)
    }

    fn streams(&self, lanes: &mut [&mut dyn Lane<StreamRow>]) -> Result<(), PartError> {
        self.0.streams(lanes)
    }

    fn gaps(&self, lanes: &mut [&mut dyn Lane<GapRow>]) -> Result<(), PartError> {
        self.0.gaps(lanes)
    }

    fn has_served(&self) -> bool {
        self.0.has_served()
    }

    fn served(&self, lanes: &mut [&mut dyn Lane<ServedRow>]) -> Result<(), PartError> {
        self.0.served(lanes)
    }
}

#[test]
fn analysis_reads_full_rows_once() {
    let looks = |records: Records| {
        let looks = Arc::default();
        Analysed::of(records.log(), Watched(records, Arc::clone(&looks))).unwrap();
        Arc::into_inner(looks).unwrap().into_inner().unwrap()
    };
    assert_eq!(looks(ended(three_pods())), [None, Some(13)]);
    // The extra pass finds the pod of a kept connection for a lost request that does not name it.
    let mut kept = ended(three_pods());
    kept.requests.iter_mut().for_each(|row| row.conn_reused = row.seq % 2 > 0);
    assert_eq!(looks(kept), [None, Some(18), Some(13)]);
    // The end of the load is not known in advance.
    assert_eq!(looks(three_pods()), [None, None, Some(13)]);
}
