use futures::FutureExt;

use super::super::tests::bench::Bench;
use super::*;
use crate::registry::DeleteOptions;
use crate::well_known::HEADLESS;

fn pod() -> Value {
    json!({
        "metadata": {"name": "web-1", "namespace": "default", "uid": "u", "labels": {"app": "web"}},
        "spec": {
            "nodeName": "node-1",
            "containers": [{"name": "app", "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}]}],
            "initContainers": [{
                "name": "side", "restartPolicy": "Always",
                "ports": [{"name": "proxied", "containerPort": 9090, "protocol": "TCP"}],
            }],
        },
        "status": {"podIP": "127.64.1.1", "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

fn conditions(change: impl FnOnce(&mut Value), publish_not_ready: bool) -> Option<(bool, bool, bool)> {
    let mut pod = pod();
    change(&mut pod);
    let service = json!({"spec": {"publishNotReadyAddresses": publish_not_ready}});
    let endpoint = endpoint(&pod, &service)?;
    let is = |name: &str| endpoint["conditions"][name] == true;
    Some((is("ready"), is("serving"), is("terminating")))
}

#[test]
fn conditions_follow_pod_lifecycle() {
    let delete = |pod: &mut Value| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let unready = |pod: &mut Value| pod["status"]["conditions"][0]["status"] = json!("False");
    let both = |pod: &mut Value| {
        delete(pod);
        unready(pod);
    };
    assert_eq!(conditions(|_| {}, false), Some((true, true, false)));
    assert_eq!(conditions(unready, false), Some((false, false, false)));
    assert_eq!(conditions(delete, false), Some((false, true, true)));
    assert_eq!(conditions(both, false), Some((false, false, true)));
    assert_eq!(conditions(delete, true), Some((true, true, true)));
    assert_eq!(conditions(|pod| pod["status"]["phase"] = json!("Failed"), false), None);
    assert_eq!(conditions(|pod| pod["status"]["podIP"] = Value::Null, false), None);
}

#[test]
fn headless_service_endpoint_has_hostname() {
    let mut pod = pod();
    pod["spec"]["hostname"] = json!("web-0");
    pod["spec"]["subdomain"] = json!("web");
    let hostname =
        |service: &str| endpoint(&pod, &json!({"metadata": {"name": service}})).unwrap()["hostname"].clone();
    assert_eq!(hostname("web"), "web-0");
    assert_eq!(hostname("other"), Value::Null);
}

#[test]
fn target_port_resolves_number_or_name() {
    let service = |target: Value| json!({"spec": {"ports": [{"name": "p", "port": 80, "protocol": "TCP", "targetPort": target}]}});
    let resolved = |target: Value| ports(&service(target), &pod())[0]["port"].clone();
    assert_eq!(resolved(json!(1234)), 1234);
    assert_eq!(resolved(json!("http")), 8080);
    assert_eq!(resolved(json!("proxied")), 9090);
    assert_eq!(ports(&service(json!("nosuch")), &pod()), json!([]));
}

#[test]
fn pods_with_different_ports_get_separate_slices() {
    let service =
        json!({"spec": {"ports": [{"name": "p", "port": 80, "protocol": "TCP", "targetPort": "http"}]}});
    let mut moved = pod();
    moved["spec"]["containers"][0]["ports"][0]["containerPort"] = json!(8081);
    let (old, same) = (pod(), pod());
    let groups = endpoints_by_ports(&service, [&old, &moved, &same].into_iter());
    let sizes: Vec<_> =
        groups.values().map(|(ports, endpoints)| (ports[0]["port"].clone(), endpoints.len())).collect();
    assert_eq!(sizes, [(json!(8080), 2), (json!(8081), 1)]);
    assert_eq!(endpoints_by_ports(&service, std::iter::empty()).len(), 1);
}

fn running(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {
            "nodeName": "node-1",
            "containers": [{"name": "app", "image": "host", "command": ["true"], "ports": [{"name": "http", "containerPort": 8080}]}],
        },
    })
}

/// Returns the endpoints in all slices, by pod.
fn shown(bench: &Bench) -> BTreeMap<String, Value> {
    let slices = bench.list(Resource::EndpointSlices);
    let endpoints = slices.iter().flat_map(|slice| slice["endpoints"].as_array().unwrap().clone());
    endpoints
        .map(|endpoint| {
            (endpoint["targetRef"]["name"].as_str().unwrap().to_owned(), endpoint["conditions"].clone())
        })
        .collect()
}

fn start_with_service(spec: Value) -> Bench {
    let bench = Bench::start(&[|shared| run(shared).boxed()]);
    bench.create(Resource::Nodes, json!({"metadata": {"name": "node-1"}}));
    bench.create(
        Resource::Services,
        json!({"metadata": {"name": "web", "labels": {"team": "a"}}, "spec": spec}),
    );
    bench
}

fn web() -> Value {
    json!({"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]})
}

#[tokio::test]
async fn endpoint_conditions_follow_pod_lifecycle() {
    let bench = start_with_service(web());
    bench.holds("an empty slice appears", |bench| bench.list(Resource::EndpointSlices).len() == 1).await;
    bench.create(Resource::Pods, running("a"));
    bench.set_ready("a", false);
    let conditions =
        |ready, serving, terminating| json!({"ready": ready, "serving": serving, "terminating": terminating});
    let is = |conditions: Value| move |bench: &Bench| shown(bench).get("a") == Some(&conditions);
    bench.holds("not ready", is(conditions(false, false, false))).await;
    bench.set_ready("a", true);
    bench.holds("ready", is(conditions(true, true, false))).await;
    let slice = bench.list(Resource::EndpointSlices).pop().unwrap();
    assert_eq!(slice["ports"], json!([{"name": "http", "protocol": "TCP", "port": 8080}]));
    assert_eq!(
        slice["metadata"]["labels"],
        json!({"kubernetes.io/service-name": "web", "endpointslice.kubernetes.io/managed-by": MANAGED_BY, "team": "a"})
    );
    let legacy = bench.get(Resource::Endpoints, "web");
    assert_eq!(legacy["subsets"][0]["addresses"][0]["targetRef"]["name"], "a");

    bench.registry().delete(Resource::Pods, "default", "a", &DeleteOptions::default()).unwrap();
    bench.holds("terminating", is(conditions(false, true, true))).await;
    bench
        .holds("the pod leaves the legacy Endpoints", |bench| {
            bench.get(Resource::Endpoints, "web")["subsets"].is_null()
        })
        .await;
    bench.modify(Resource::Pods, "a", ObjectPart::Status, |pod| pod["status"]["phase"] = json!("Succeeded"));
    bench.holds("the pod is removed", |bench| shown(bench).is_empty()).await;
    assert_eq!(bench.list(Resource::EndpointSlices).len(), 1);
}

#[tokio::test]
async fn label_change_adds_and_removes_endpoint() {
    let bench = start_with_service(web());
    bench.create(Resource::Pods, running("a"));
    bench.set_ready("a", true);
    bench.holds("the pod is listed", |bench| shown(bench).contains_key("a")).await;
    let label = |bench: &Bench, app: &str| {
        bench.modify(Resource::Pods, "a", ObjectPart::Main, |pod| {
            pod["metadata"]["labels"]["app"] = json!(app)
        });
    };
    label(&bench, "debug");
    bench.holds("the pod is removed", |bench| shown(bench).is_empty()).await;
    label(&bench, "web");
    bench.holds("the pod is listed again", |bench| shown(bench).contains_key("a")).await;
}

#[tokio::test]
async fn one_slice_holds_130_pods() {
    let mut spec = web();
    spec["clusterIP"] = json!("None");
    let bench = start_with_service(spec);
    for n in 0..130 {
        let name = format!("p{n}");
        bench.create(Resource::Pods, running(&name));
        bench.set_ready(&name, true);
    }
    bench.holds("all pods are listed", |bench| shown(bench).len() == 130).await;
    let slices = bench.list(Resource::EndpointSlices);
    assert_eq!(slices.len(), 1);
    assert_eq!(slices[0]["metadata"]["labels"][HEADLESS], "");
}

#[tokio::test]
async fn selectorless_service_gets_no_endpoints() {
    let bench = start_with_service(json!({"ports": [{"port": 80}]}));
    let own = json!({
        "metadata": {"name": "own", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "endpoints": [{"addresses": ["127.0.0.1"]}], "ports": [],
    });
    bench.create(Resource::EndpointSlices, own);
    bench.create(Resource::Services, json!({"metadata": {"name": "other"}, "spec": web()}));
    bench
        .holds("the other Service has a slice", |bench| bench.list(Resource::EndpointSlices).len() == 2)
        .await;
    assert!(bench.registry().get(Resource::Endpoints, "default", "web").is_err());
}
