//! Facts that the kernel and the Service proxy recorded beside a run: `connections.csv.gz`, `rules.csv`, `pods.csv`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use rolldrop_explain::timeline::Request;
use rolldrop_record::Stamp;

/// Maximum difference between conntrack's event and the client's stamp for the same connection, because an event may be
/// printed late.
const SAME_CONNECTION_NS: i64 = 100_000_000;
/// Maximum time by which a gateway's dial may precede the client's send stamp, due to clock noise.
const DIAL_BEFORE_NS: i64 = 1_000_000;
/// Maximum time until a gateway dials for a request.
const DIAL_AFTER_NS: i64 = 30_000_000;
/// Maximum delay with which `conntrack -E` prints a connection.
const PRINTED_LATER_NS: i64 = 3_000_000;

/// UID of a pod.
pub(super) type Uid = String;

/// A new connection in the kernel's table.
#[derive(Clone, Debug)]
struct Connection {
    at: Stamp,
    pod: Uid,
}

/// Ground truth, recorded independently of rolldrop.
pub(super) struct Truth {
    /// Connections to a Service, by client port, in chronological order.
    routed: HashMap<u16, Vec<Connection>>,
    /// Connections directly to a pod's address, by a gateway or by the kubelet's probes, in chronological order.
    dialled: Vec<Connection>,
    /// Times at which the Service's rules changed, and the pods in them from then on.
    rules: Vec<(Stamp, BTreeSet<Uid>)>,
}

impl Truth {
    /// Reads the ground truth in `dir`.
    pub(super) fn read(dir: &Path) -> Self {
        let text = |name: &str| fs::read_to_string(dir.join(name)).expect(name);
        let pods: HashMap<String, Uid> =
            rows(&text("pods.csv")).map(|row| (row[0].clone(), row[2].clone())).collect();
        let routed_to = |ips: &str| ips.split_whitespace().filter_map(|ip| pods.get(ip).cloned()).collect();
        let rules = rows(&text("rules.csv")).map(|row| (stamp(&row[0]), routed_to(&row[1]))).collect();
        let mut connections = String::new();
        let file = File::open(dir.join("connections.csv.gz")).expect("connections.csv.gz");
        GzDecoder::new(file).read_to_string(&mut connections).expect("gzip");
        let mut truth = Self { routed: HashMap::new(), dialled: Vec::new(), rules };
        for row in rows(&connections) {
            let [at, _, from_port, to, _, pod_ip] = &row[..] else { panic!("{row:?}") };
            let Some(pod) = pods.get(pod_ip) else { continue };
            let connection = Connection { at: stamp(at), pod: pod.clone() };
            if to == pod_ip {
                truth.dialled.push(connection);
            } else {
                truth.routed.entry(from_port.parse().expect("a port")).or_default().push(connection);
            }
        }
        truth
    }

    /// Returns the pod to which the kernel routed this request's connection; `None` if it was routed to none.
    pub(super) fn routed_to(&self, request: &Request) -> Option<&Uid> {
        let of_port = self.routed.get(&request.row.local_port?)?;
        let distance = |c: &&Connection| c.at.ns_since(request.begun()).abs();
        let nearest = of_port.iter().min_by_key(distance)?;
        (distance(&nearest) <= SAME_CONNECTION_NS).then_some(&nearest.pod)
    }

    /// Returns the time of the last connection that was routed to each pod through the Service.
    pub(super) fn last_routed(&self) -> BTreeMap<&Uid, Stamp> {
        let mut last = BTreeMap::new();
        for connection in self.routed.values().flatten() {
            let at = last.entry(&connection.pod).or_insert(connection.at);
            *at = connection.at.max(*at);
        }
        last
    }

    /// Returns the pods that a gateway may have dialled for this request: those in `ending` to which a connection was
    /// made just after the request was sent. `ending` contains the time from which each pod's connections count.
    pub(super) fn dialled_for(&self, request: &Request, ending: &BTreeMap<Uid, Stamp>) -> BTreeSet<Uid> {
        let from = request.begun().shifted_ns(-DIAL_BEFORE_NS);
        let until =
            request.begun().shifted_ns(DIAL_AFTER_NS).min(request.row.end).shifted_ns(PRINTED_LATER_NS);
        let first = self.dialled.partition_point(|c| c.at < from);
        let near = self.dialled[first..].iter().take_while(|c| c.at <= until);
        near.filter(|c| ending.get(&c.pod).is_some_and(|from| c.at >= *from)).map(|c| c.pod.clone()).collect()
    }

    /// Returns the time of the last connection made directly to a pod's address.
    pub(super) fn last_dialled(&self, pod: &Uid) -> Option<Stamp> {
        self.dialled.iter().rfind(|c| c.pod == *pod).map(|c| c.at)
    }

    /// Returns the time at which a pod left the Service's rules: the first change after `t0` without the pod.
    pub(super) fn left_rules(&self, pod: &Uid, t0: Stamp) -> Option<Stamp> {
        self.rules.iter().find(|(at, pods)| *at >= t0 && !pods.contains(pod)).map(|(at, _)| *at)
    }
}

fn rows(text: &str) -> impl Iterator<Item = Vec<String>> {
    text.lines().skip(1).map(|line| line.split(',').map(str::to_owned).collect())
}

fn stamp(text: &str) -> Stamp {
    Stamp::from_unix_ns(text.parse().expect("nanoseconds"))
}
