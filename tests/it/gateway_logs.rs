//! Gateway logs are followed without loss and without duplicates, through everything that interrupts them. The
//! gateway is a shell script that numbers its lines.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::request::Parts;
use kube::Client;
use rolldrop_drive::cluster::{ChosenCluster, Cluster as Connected};
use rolldrop_drive::observe::{GatewayLogs, LogDelivery, LogDeliveryKind};
use rolldrop_record::Clock;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::faulty_api::{Act, FaultyApi, is_watch};
use crate::harness::{LIMIT, wait_for};
use crate::lab::{Cluster, Setup};
use crate::machine::{Meanwhile, figure, measured};

/// Number of lines that a flood writes; about 12 MiB, so that the log is rotated.
const FLOOD: usize = 12_000;

/// A cluster with a gateway, and its logs as they are delivered.
struct FollowedGateway {
    orders: TempDir,
    delivered: Arc<Mutex<Vec<LogDelivery>>>,
    runtime: Runtime,
    api: FaultyApi,
    cluster: Cluster,
}

/// Lines of one run of the gateway, as delivered.
#[derive(Debug, Default)]
struct GatewayRun {
    numbers: Vec<usize>,
    /// Number of lines that it wrote, once it has ended.
    written: Option<usize>,
}

impl FollowedGateway {
    fn new() -> Self {
        let cluster = Setup::new().start();
        let api = FaultyApi::before(&cluster);
        let runtime = Runtime::new().expect("a runtime");
        let orders = tempfile::tempdir().expect("a directory");
        Self { orders, delivered: Arc::default(), runtime, api, cluster }
    }

    /// Returns the gateway's container. It carries out orders, each given as a file.
    fn container(&self) -> Value {
        let script = "
            run=$(cat /proc/sys/kernel/random/uuid); n=0; padding=$(printf '%01000d' 0)
            log() { i=0; while [ $i -lt $1 ]; do echo $run $n $2; n=$((n+1)); i=$((i+1)); done; }
            end() { log 50; echo $run end $n; exit 1; }
            trap end TERM
            is_ordered() { rm ORDERS/$1 2>/dev/null; }
            while :; do
                log 10
                is_ordered crash && end
                is_ordered flood && log FLOOD $padding
                sleep 0.05
            done";
        let orders = self.orders.path().to_str().expect("a name");
        let script = script.replace("ORDERS", orders).replace("FLOOD", &FLOOD.to_string());
        json!({"name": "gateway", "image": "host", "command": ["sh", "-c", script]})
    }

    /// Orders the gateway to do something, and waits until it begins.
    fn order(&self, what: &str) {
        let path = self.orders.path().join(what);
        std::fs::write(&path, "").expect("a file");
        wait_for(what, LIMIT, || (!Path::new(&path).exists()).then_some(()));
    }

    fn client(&self) -> Client {
        let choice = ChosenCluster::Kubeconfig { path: Some(self.api.kubeconfig()), context: None };
        self.runtime.block_on(Connected::connect(choice)).expect("a client").client()
    }

    fn follow(&self, source: &str, max_rate: u32) {
        let source = source.parse().expect("a source");
        let clock = Clock::start();
        let client = self.client();
        let logs = GatewayLogs::begin(&client, std::slice::from_ref(&source), clock.now(), max_rate, clock);
        let mut logs = self.runtime.block_on(logs).expect("the first list");
        let delivered = Arc::clone(&self.delivered);
        self.runtime.spawn(async move {
            while let Some(delivery) = logs.next().await {
                delivered.lock().expect("no panic").push(delivery);
            }
        });
    }

    /// Returns the delivered lines, grouped by gateway run, oldest run first.
    fn runs(&self) -> Vec<GatewayRun> {
        let (mut order, mut runs) = (Vec::new(), BTreeMap::<String, GatewayRun>::new());
        for delivery in self.delivered.lock().expect("no panic").iter() {
            let LogDeliveryKind::Line { written, bytes, .. } = &delivery.kind else { continue };
            assert!(written.is_some());
            let text = String::from_utf8(bytes.to_vec()).expect("UTF-8");
            let words: Vec<&str> = text.split(' ').collect();
            let run = runs.entry(words[0].to_owned()).or_insert_with(|| {
                order.push(words[0].to_owned());
                GatewayRun::default()
            });
            match words[1] {
                "end" => run.written = Some(words[2].parse().expect("a number")),
                number => run.numbers.push(number.parse().expect("a number")),
            }
        }
        order.iter().map(|run| runs.remove(run).expect("a run")).collect()
    }

    /// Waits until this many more lines of a run, counted from 0, have been delivered.
    fn await_lines(&self, run: usize, more: usize) {
        let count = || self.runs().get(run).map_or(0, |run| run.numbers.len());
        let wanted = count() + more;
        wait_for(&format!("{wanted} lines of run {run}"), LIMIT, || (count() >= wanted).then_some(()));
    }

    fn await_end(&self, run: usize) {
        wait_for(&format!("the end of run {run}"), LIMIT, || self.runs().get(run)?.written);
    }

    /// Returns all deliveries except lines, interruptions and resumptions.
    fn facts(&self) -> Vec<LogDeliveryKind> {
        use LogDeliveryKind::{Interrupted, Line, Resumed};
        let delivered = self.delivered.lock().expect("no panic");
        let kinds = delivered.iter().map(|delivery| delivery.kind.clone());
        kinds.filter(|kind| !matches!(kind, Line { .. } | Interrupted { .. } | Resumed)).collect()
    }
}

impl GatewayRun {
    #[track_caller]
    fn is_complete(&self) {
        assert!(self.numbers.iter().copied().eq(0..self.numbers.len()), "{self:?}");
        assert!(self.written.is_none_or(|written| written == self.numbers.len()), "{self:?}");
    }
}

fn is_log(request: &Parts) -> bool {
    request.uri.path().ends_with("/log")
}

#[test]
fn gateway_lines_arrive_exactly_once() {
    let gateway = FollowedGateway::new();
    let labels = json!({"app": "gateway"});
    let pod = json!({"terminationGracePeriodSeconds": 30, "containers": [gateway.container()]});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "gateway"},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod}}});
    gateway.cluster.apply(&deployment.to_string());
    gateway.follow("default/deployment/gateway", 2000);
    gateway.cluster.kubectl("scale deployment gateway --replicas 1");
    gateway.await_lines(0, 50);

    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let cut_often = move |request: &Parts| {
        let is_followed = request.uri.query().is_some_and(|query| query.contains("follow=true"));
        match count.fetch_add(usize::from(is_log(request)), Ordering::SeqCst) % 4 {
            _ if !is_log(request) => Act::Pass,
            0 => Act::status(503, "ServiceUnavailable"),
            1 => Act::LoseAnswer,
            _ if is_followed => Act::EndAfter(Duration::from_millis(300)),
            _ => Act::Pass,
        }
    };
    gateway.api.set(cut_often);
    gateway.api.refuse();
    std::thread::sleep(Duration::from_secs(1));
    gateway.api.accept();
    wait_for("many cuts", LIMIT, || (asked.load(Ordering::SeqCst) > 12).then_some(()));
    gateway.await_lines(0, 100);
    // The streams are still cut off while the container restarts.
    gateway.order("crash");
    gateway.await_end(0);
    gateway.await_lines(1, 500);
    // The container restarts while the API server is away.
    gateway.api.refuse();
    gateway.order("crash");
    gateway.api.accept();
    gateway.await_end(1);
    gateway.api.pass();
    gateway.await_lines(2, 100);

    gateway.cluster.kubectl("rollout restart deployment gateway");
    gateway.await_end(2);
    gateway.await_lines(3, 100);
    let (runs, facts) = (gateway.runs(), gateway.facts());
    assert_eq!((runs.len(), facts.len()), (4, 0), "{facts:?}");
    runs.iter().for_each(GatewayRun::is_complete);
    let sources: BTreeSet<_> =
        gateway.delivered.lock().expect("no panic").iter().map(|delivery| delivery.source.clone()).collect();
    assert_eq!(sources.len(), 2, "{sources:?}");
    assert!(sources.iter().all(|source| source.starts_with("default/gateway-")), "{sources:?}");
}

#[test]
fn lines_lost_to_rotation_leave_gap() {
    measured(|| {
        let gateway = FollowedGateway::new();
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gateway"},
            "spec": {"containers": [gateway.container()]}});
        let meanwhile = Meanwhile::begins();
        gateway.follow("default/pod/gateway:gateway", u32::MAX);
        gateway.cluster.apply(&pod.to_string());
        gateway.await_lines(0, 20);
        for _ in 0..2 {
            gateway.order("flood");
            gateway.await_lines(0, FLOOD);
        }
        gateway.await_lines(0, 20);
        gateway.runs()[0].is_complete();
        // A watch that is seconds behind cannot know that it missed nothing.
        let facts = gateway.facts();
        figure(meanwhile.taken(), facts.is_empty(), || format!("{facts:?}"));

        gateway.api.refuse();
        for _ in 0..3 {
            gateway.order("flood");
        }
        // The last flood has ended.
        gateway.order("crash");
        gateway.api.accept();
        gateway.await_lines(1, 20);
        let facts = gateway.facts();
        let [LogDeliveryKind::Gap { from, to, why }] = &facts[..] else { panic!("{facts:?}") };
        assert!(from < to && why.contains("the last line that was read is no longer kept"), "{facts:?}");
        let runs = gateway.runs();
        let missing: Vec<_> =
            runs[0].numbers.windows(2).filter(|pair| pair[1] != pair[0] + 1).map(<[usize]>::to_vec).collect();
        assert!(missing.len() == 1 && missing[0][0] < missing[0][1], "one gap, and forward: {missing:?}");
        assert_eq!(runs[0].written, runs[0].numbers.last().map(|last| last + 1));
        runs[1].is_complete();
    });
}

#[test]
fn second_restart_leaves_gap() {
    let gateway = FollowedGateway::new();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gateway"},
        "spec": {"containers": [gateway.container()]}});
    gateway.follow("default/pod/gateway", 2000);
    gateway.cluster.apply(&pod.to_string());
    gateway.await_lines(0, 20);
    gateway.api.refuse();
    gateway.order("crash");
    gateway.order("crash");
    let waits = "get pod gateway -o jsonpath={.status.containerStatuses[0].state.waiting.reason}";
    wait_for("the wait", LIMIT, || (gateway.cluster.kubectl(waits) == "CrashLoopBackOff").then_some(()));
    gateway.api.accept();
    // Of the two finished runs, only the log of the second one is kept, as both the current and the previous log.
    gateway.await_end(1);
    gateway.await_lines(2, 20);
    let (runs, facts) = (gateway.runs(), gateway.facts());
    let [LogDeliveryKind::Gap { from, to, .. }] = &facts[..] else { panic!("{facts:?}") };
    assert!(from < to, "{facts:?}");
    assert_eq!((runs.len(), runs[0].written), (3, None));
    runs.iter().for_each(GatewayRun::is_complete);
}

#[test]
fn interrupted_gateway_watch_leaves_gap() {
    let gateway = FollowedGateway::new();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gateway"},
        "spec": {"containers": [gateway.container()]}});
    gateway.follow("default/pod/gateway", 2000);
    gateway.cluster.apply(&pod.to_string());
    gateway.await_lines(0, 20);
    // The API server no longer has the version from which the watch would resume.
    gateway.api.set(|request| match is_watch(request) {
        true => Act::status(410, "Expired"),
        false => Act::Pass,
    });
    gateway.api.refuse();
    gateway.api.accept();
    wait_for("the gap", LIMIT, || (!gateway.facts().is_empty()).then_some(()));
    gateway.api.pass();
    gateway.await_lines(0, 20);
    gateway.runs()[0].is_complete();
    let delivered = gateway.delivered.lock().expect("no panic");
    for delivery in delivered.iter() {
        let LogDeliveryKind::Gap { from, to, why } = &delivery.kind else { continue };
        assert!(from <= to && *why == "pods may have come and gone unseen", "{delivery:?}");
        assert_eq!(&*delivery.source, "default/pod/gateway");
    }
}

#[test]
fn unreadable_gateway_log_is_reported() {
    let gateway = FollowedGateway::new();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gateway"},
        "spec": {"containers": [gateway.container()]}});
    gateway.cluster.apply(&pod.to_string());
    let stopped = |source: &str, max_rate, said: &str| {
        gateway.delivered.lock().expect("no panic").clear();
        gateway.follow(source, max_rate);
        let why = wait_for(said, LIMIT, || {
            gateway.facts().into_iter().find_map(|kind| match kind {
                LogDeliveryKind::Stopped { why } => Some(why),
                _ => None,
            })
        });
        assert!(why.contains(said), "{why}");
    };
    stopped("default/pod/gateway:other", 2000, "has no such container; it has gateway");
    stopped("default/pod/gateway", 1, "it writes more than 1 lines per second");
    gateway.api.set(|request| match is_log(request) {
        true => Act::status(403, "Forbidden"),
        false => Act::Pass,
    });
    stopped("default/pod/gateway", 2000, "Forbidden, as the test says");

    for (source, said) in [
        (
            "default/deployment/nothing",
            "failed to find Deployment nothing: there is none in namespace default",
        ),
        ("/nowhere/access.log", "failed to open /nowhere/access.log"),
    ] {
        let (client, clock) = (gateway.client(), Clock::start());
        let sources = [source.parse().expect("a source")];
        let logs = GatewayLogs::begin(&client, &sources, clock.now(), 2000, clock);
        let error = gateway.runtime.block_on(logs).expect_err("nothing to follow");
        assert_eq!(error.to_string(), said);
    }
}
