//! Several consumers of the same endpoints, loaded side by side: each stops routing to a pod at its own pace.

use std::collections::BTreeMap;

use rolldrop_explain::model::Mode;
use rolldrop_record::{EventKind, RunDir};
use serde_json::json;

use crate::harness::VENV;
use crate::lab::{Setup, trust_default_account};
use crate::machine::measured;
use crate::runs::{Dataplane, json_lines, result, seconds, turn};
use crate::web::Web;

/// An unmodified ingress controller, and an Ingress for the Service.
const INGRESS: &str = "\
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
";

fn scenario(traefik: &str) -> String {
    let web = Web::new(3).named().app(json!({"lifecycle": {"preStop": {"sleep": {"seconds": 9}}}}));
    let web = web.service(json!({"type": "NodePort"}));
    let ports = json!([{"port": 80, "targetPort": "http"}]);
    let headless = json!({"clusterIP": "None", "selector": {"app": "web"}, "ports": ports});
    web.and("v1", "Service", "pods", headless).scenario(
        "consumers",
        &format!(
            "
  target:
  - {{service: web}}
  - {{service: web, node: node-1}}
  - {{service: web, node: node-2}}
  - {{service: pods}}
  - {{url: 'http://{traefik}:8000/', balances: requests, name: ingress}}
  load: {{rate: 250, duration: 14s}}
  disruptions: [{{at: 3s, action: deletePod, selector: app=web}}]
"
        ),
    )
}

#[test]
fn each_consumer_has_its_own_window() {
    measured(|| {
        let _turn = turn();
        let cluster = Setup::on(Dataplane::Kernel).nodes(2).start();
        cluster.apply(&format!("{}\n---\n{INGRESS}", trust_default_account()).replace("BIN", VENV));
        let address = cluster.address_of("traefik");
        let finished = cluster.run(&scenario(&address)).measured().expect_code(0);

        let path = finished.dir().join("run");
        let result = result(&path);
        let [termination] = &result.terminations[..] else { panic!("one termination\n{finished}") };
        assert_eq!(termination.mode, Mode::Isolated, "{finished}");
        let windows: BTreeMap<&str, _> =
            termination.windows.iter().map(|window| (window.consumer.as_str(), window)).collect();
        assert_eq!(windows.len(), 5, "each has its own name: {windows:?}\n{finished}");
        for (consumer, window) in &windows {
            println!("{consumer}: {window:?}");
            // Each consumer gets a fifth of the rate, and each pod a third of that.
            finished.figure(window.upper_s.is_some() && (8.0..30.0).contains(&window.rate_before));
        }
        let of = |part: &str| {
            let found: Vec<_> = windows.iter().filter(|(consumer, _)| consumer.contains(part)).collect();
            let [(_, window)] = found[..] else { panic!("{part}: {windows:?}") };
            *window
        };
        // A DNS client caches a response for longer than a Service proxy takes to update.
        assert!(
            of("headless Service pods").upper_s > of("Service proxy of this host").upper_s,
            "{windows:?}"
        );
        of(&format!("http://{address}:8000/"));

        // Each node's Service proxy logs when it stopped routing to the pod.
        let records = RunDir::open(&path).and_then(|run| run.read()).expect("the run reads");
        let deleted = records.events.iter().find_map(|event| match &event.kind {
            EventKind::Action(action) => Some((event.at, action.answered)),
            _ => None,
        });
        let (sent, answered) = deleted.expect("the deletion");
        let left = |node: &str| {
            let mut begun = None;
            for line in json_lines(&cluster.dir().join("service-proxy.jsonl")) {
                if line["kind"] == "sync" && line["service"] == "default/web" && line["node"] == node {
                    let pods = line["endpoints"].as_array().expect("endpoints");
                    let has_it = pods.iter().any(|endpoint| endpoint["pod"] == termination.pod.as_str());
                    match (has_it, begun) {
                        (true, None) => begun = Some(()),
                        (false, Some(())) => {
                            return (seconds(&line["swap_begin_ns"]), seconds(&line["t_ns"]));
                        }
                        _ => {}
                    }
                }
            }
            panic!("node {node} never stopped routing to the pod")
        };
        for node in ["node-1", "node-2"] {
            let window = of(&format!("(Service proxy of node {node})"));
            let (begin, end) = left(node);
            let lower = answered.unix_ns() as f64 / 1e9 + window.lower_s.unwrap_or(0.0);
            let upper = sent.unix_ns() as f64 / 1e9 + window.upper_s.expect("a bound");
            assert!(
                lower <= end && begin <= upper,
                "{node}: {window:?}, but it stopped routing at {begin}..{end}\n{finished}"
            );
        }
    });
}
