//! Third-party gateways, each with its own log as ground truth: Traefik, which dials pods, and HAProxy with health
//! checks in front of NodePorts, in place of a cloud load balancer.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rolldrop_explain::Analysed;
use rolldrop_record::run_info::{Balances, BalancesBecause};
use rolldrop_record::{Cause, Event, EventKind, RunDir};
use serde_json::{Value, json};

use crate::harness::VENV;
use crate::lab::{Cluster, Setup, trust_default_account};
use crate::machine::measured;
use crate::runs::{Dataplane, turn};
use crate::web::Web;

/// The two gateways. Each responds itself if no pod does, and neither retries requests.
const GATEWAYS: &str = "\
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: traefik}
spec: {controller: traefik.io/ingress-controller}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web}
spec:
  ingressClassName: traefik
  rules:
  - http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}
  - host: idle.example
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: idle, port: {number: 80}}}}]}
---
apiVersion: v1
kind: Service
metadata: {name: idle}
spec: {selector: {app: idle}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: idle}
spec:
  replicas: 0
  selector: {matchLabels: {app: idle}}
  template:
    metadata: {labels: {app: idle}}
    spec:
      containers: [{name: app, image: rolldrop, args: [workload], ports: [{containerPort: 8080}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: traefik}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: traefik
    image: host
    command:
    - BIN/traefik
    - --providers.kubernetesingress
    - --entrypoints.web.address=:8000
    - --global.checknewversion=false
    - --global.sendanonymoususage=false
    - --accesslog
    - --accesslog.format=json
    - --accesslog.fields.headers.names.rolldrop-id=keep
";

const HAPROXY_POD: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: haproxy}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: haproxy, image: host, command: [haproxy, -f, DIR/haproxy.cfg]}
";

/// One connection per request, so the node's Service proxy routes each request.
const HAPROXY: &str = "\
global
  log stdout format raw local0 info
defaults
  mode http
  log global
  option http-server-close
  option httpchk GET /readyz
  retries 0
  timeout connect 1s
  timeout client 30s
  timeout server 30s
frontend outside
  bind :8000
  capture request header rolldrop-id len 128
  log-format \"%[capture.req.hdr(0)] %ST %ts %s\"
  default_backend nodes
backend nodes
";

const TWO_NODES: &str = "\
  default-server check inter 500ms fall 3 rise 1
  server node-1 NODE-1:30080
  server node-2 NODE-2:30080
";

/// One failed check takes a server out of service until two checks have passed. That takes a second, and chance alone
/// would not route every request to dead pods for so long. A check that is merely late, as on a busy machine, does not
/// count as failed.
const ONE_NODE: &str = "\
  timeout check 1s
  server node-1 NODE-1:30080 check inter 200ms downinter 500ms fall 1 rise 2
";

fn scenario(traefik: &str, haproxy: &str) -> String {
    let web = Web::new(3).args(&["--on-sigterm", "exit"]);
    let ports = json!([{"port": 80, "targetPort": "http", "nodePort": 30080}]);
    web.service(json!({"type": "NodePort", "ports": ports})).scenario(
        "gateways",
        &format!(
            "
  target:
  - {{url: 'http://{traefik}:8000/', name: ingress}}
  - {{url: 'http://{haproxy}:8000/', name: balancer}}
  load: {{rate: 200, duration: 90s, warmup: 4s, timeout: {{response: 2s}}}}
  disruptions: [{{at: 3s, action: deletePod, selector: app=web, until: {{terminations: 2}}}}]
"
        ),
    )
}

/// Returns the cluster with the gateways, and their addresses.
fn gateways() -> (Cluster, [String; 2]) {
    let cluster = slow_to_notice(2);
    cluster.apply(&trust_default_account().to_string());
    cluster.apply(&GATEWAYS.replace("BIN", VENV));
    let haproxy = haproxy(&cluster, TWO_NODES);
    let traefik = cluster.address_of("traefik");
    (cluster, [traefik, haproxy])
}

/// Returns a cluster whose endpoints keep terminating pods for a second.
fn slow_to_notice(nodes: u32) -> Cluster {
    let latencies = json!({"deletionToSlice": "1s", "terminatedToSlice": "1s"});
    Setup::on(Dataplane::Kernel).nodes(nodes).with(json!({"latencies": latencies})).start()
}

/// Runs HAProxy with these servers in front of the NodePorts. Returns its address.
fn haproxy(cluster: &Cluster, servers: &str) -> String {
    let config = ["node-1", "node-2"].iter().fold(HAPROXY.to_owned() + servers, |config, node| {
        let name = node.to_uppercase();
        if !config.contains(&name) {
            return config;
        }
        let path = "{.status.addresses[?(@.type==\"InternalIP\")].address}";
        config.replace(&name, &cluster.kubectl(&format!("get node {node} -o jsonpath={path}")))
    });
    std::fs::write(cluster.dir().join("haproxy.cfg"), config).expect("a file");
    cluster.apply(&HAPROXY_POD.replace("DIR", &cluster.dir().display().to_string()));
    cluster.address_of("haproxy")
}

/// Returns a request's number, taken from its id.
fn number(id: &str) -> Option<u64> {
    id.rsplit_once('-')?.1.parse().ok()
}

/// Returns the pod that Traefik chose for each request, by the request's number.
fn chosen_by_traefik(log: &str) -> BTreeMap<u64, String> {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let chosen = lines.filter_map(|line| {
        let id =
            line.as_object()?.iter().find(|(name, _)| name.eq_ignore_ascii_case("request_rolldrop-id"))?.1;
        let address = line["ServiceAddr"].as_str()?.rsplit_once(':')?.0;
        Some((number(id.as_str()?)?, address.to_owned()))
    });
    chosen.collect()
}

/// Returns the numbers of requests for which HAProxy got no response.
fn failed_by_haproxy(log: &str) -> BTreeSet<u64> {
    let failed = log.lines().filter_map(|line| {
        let [id, status, state, _] = line.split_whitespace().collect::<Vec<_>>()[..] else { return None };
        // The first letter shows who ended the request, the second in which state: connecting, or waiting for the head.
        let is_servers =
            state.starts_with(['S', 's']) && status.parse::<u16>().is_ok_and(|status| status >= 500);
        // A pod that disappears between connection and response sends nothing, and the client's timeout is shorter than
        // HAProxy's.
        let is_left = ["CC", "CH", "cC", "cH"].contains(&state);
        (is_servers || is_left).then(|| number(id))?
    });
    failed.collect()
}

/// Returns a run's events and the analysed run.
fn analysed(run: &Path) -> (Vec<Event>, Analysed) {
    let (log, rows) = RunDir::open(run).and_then(|run| run.recorded()).expect("records");
    (log.events.clone(), Analysed::of(log, rows).expect("rows"))
}

/// Returns the pods' addresses, by UID.
fn addresses(events: &[Event]) -> BTreeMap<&str, &str> {
    let pods = events.iter().filter_map(|event| match &event.kind {
        EventKind::Pod(pod) => Some((pod.uid.as_str(), pod.ip.as_deref()?)),
        _ => None,
    });
    pods.collect()
}

/// Checks that the run finds the pods behind a URL, through the Ingress or else through the scenario.
fn finds_whose_pods_a_url_leads_to(cluster: &Cluster) {
    let live = "apiVersion: rolldrop.dev/v1\nkind: Scenario\nmetadata: {name: live}\nspec:\n  target: {url: 'http://HOST/'}\n";
    let plan = |host: &str, sidecar: &str| {
        let scenario = format!("{}  sidecar: {sidecar}\n", live.replace("HOST", host));
        cluster.run(&scenario).args(["--dry-run"]).finish()
    };
    let patch = "/apis/apps/v1/namespaces/default/deployments/idle ";
    for (host, sidecar) in [
        ("idle.example", "{inject: true}"),
        ("other.example", "{inject: true, workloads: [deployment/idle]}"),
    ] {
        let planned = plan(host, sidecar).expect_code(0);
        let patches = |line: &str| line.starts_with("PATCH") || line.contains("PATCH ");
        assert!(planned.stdout().lines().any(|line| patches(line) && line.contains(patch)), "{planned}");
    }
    let unknown = plan("10.0.0.9", "{inject: true, workloads: [deployment/none]}").expect_code(2);
    assert!(unknown.stderr().contains("there is no Deployment none in namespace default"), "{unknown}");
}

#[test]
fn gateway_losses_match_gateway_log() {
    measured(|| {
        let _turn = turn();
        let (cluster, [traefik, haproxy]) = gateways();
        finds_whose_pods_a_url_leads_to(&cluster);

        // No option states that these gateways balance requests, and only the run itself waits for the pods.
        let finished = cluster.run(&scenario(&traefik, &haproxy)).measured().expect_code(0);
        let (events, Analysed { timeline, analysis, .. }) = analysed(&finished.dir().join("run"));
        for target in &timeline.info.targets {
            let because = &target.balances_because;
            assert!(matches!(because, BalancesBecause::GatewayStatus { .. }), "{because:?}\n{finished}");
            assert_eq!(target.balances, Balances::Requests);
        }
        assert_eq!(analysis.result.terminations.len(), 2, "{finished}");

        let log = cluster.kubectl("logs traefik");
        let chosen = chosen_by_traefik(&log);
        let failed = failed_by_haproxy(&cluster.kubectl("logs haproxy"));
        let addresses = addresses(&events);
        let mut of_balancer = BTreeSet::new();
        let (mut of_ingress, mut unexplained) = (0, 0);
        for lost in &analysis.lost {
            // A balancer that keeps its connections sends responses over them, which reveals little about the pods
            // still in use.
            if *lost.target == *"balancer" && lost.cause == Cause::GatewayError {
                unexplained += 1;
                of_balancer.insert(lost.seq);
                continue;
            }
            assert_eq!(lost.cause, Cause::GatewayToDeadPod, "{lost:?}\n{finished}");
            let only =
                lost.only().unwrap_or_else(|| panic!("not attributed to a single pod: {lost:?}\n{finished}"));
            let named = analysis.result.terminations[only].uid.as_str();
            if *lost.target == *"ingress" {
                of_ingress += 1;
                let chosen_pod = chosen.get(&lost.seq).map(String::as_str);
                let lines = || log.lines().filter(|line| line.contains(&format!("-{}", lost.seq)));
                assert_eq!(
                    chosen_pod,
                    addresses.get(named).copied(),
                    "{lost:?}\n{:?} of {} requests in a log of {} bytes\n{finished}",
                    lines().collect::<Vec<_>>(),
                    chosen.len(),
                    log.len()
                );
            } else {
                of_balancer.insert(lost.seq);
            }
        }
        finished.figure(unexplained * 5 <= of_balancer.len());
        assert!(
            of_ingress >= 10 && of_balancer.len() >= 10,
            "{of_ingress}, {}\n{finished}",
            of_balancer.len()
        );
        let missing: BTreeSet<u64> = of_balancer.difference(&failed).copied().collect();
        assert!(missing.is_empty(), "{missing:?} was lost, but HAProxy did not log it as failed\n{finished}");
        for termination in &analysis.result.terminations {
            for window in &termination.windows {
                assert!(window.lower_s > Some(0.5), "{window:?}\n{finished}");
            }
        }
    });
}

/// Returns the numbers of requests for which HAProxy had no server.
fn without_a_server(log: &str) -> BTreeSet<u64> {
    let of_none = log.lines().filter(|line| line.ends_with(" <NOSRV>"));
    of_none.filter_map(|line| number(line.split(' ').next()?)).collect()
}

#[test]
fn gateway_without_server_blames_no_pod() {
    measured(|| {
        let _turn = turn();
        let cluster = slow_to_notice(1);
        let haproxy = haproxy(&cluster, ONE_NODE);
        let ports = json!([{"port": 80, "targetPort": "http", "nodePort": 30080}]);
        let web = Web::new(3).args(&["--on-sigterm", "exit"]);
        let scenario = web.service(json!({"type": "NodePort", "ports": ports})).scenario(
            "without-a-server",
            &format!(
                "
  target: {{url: 'http://{haproxy}:8000/', name: balancer}}
  load: {{rate: 200, duration: 60s, warmup: 4s, timeout: {{response: 2s}}}}
  disruptions: [{{at: 3s, action: deletePod, selector: app=web, until: {{terminations: 2}}}}]
"
            ),
        );
        let finished = cluster.run(&scenario).measured().expect_code(0);
        let (_, Analysed { analysis, .. }) = analysed(&finished.dir().join("run"));
        let refused = without_a_server(&cluster.kubectl("logs haproxy"));
        let lost = analysis.lost.iter().map(|lost| (lost.seq, lost.cause));
        let (without, others): (Vec<_>, Vec<_>) = lost.partition(|(seq, _)| refused.contains(seq));
        let called_so =
            |of: &[(u64, Cause)]| of.iter().filter(|(_, cause)| *cause == Cause::GatewayNoServer).count();
        println!("{finished}");
        println!("{} of {}, {} of {}", called_so(&without), without.len(), called_so(&others), others.len());
        finished.figure(without.len() >= 10);
        finished.figure(called_so(&without) * 100 >= without.len() * 95);
        finished.figure(called_so(&others) * 100 <= others.len() * 5);
    });
}
