//! A real ingress controller as a consumer of endpoints: unmodified Traefik in a pod.

use serde_json::{Value, json};

use crate::lab::trust_default_account;
use crate::pods::{PODS, log_with, on_with, run, shell};
use crate::termination::lab::{LIMIT, Lab};

const TRAEFIK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/test-venv/bin/traefik");
/// Number of consecutive responses from other pods that proves that a pod is no longer a backend, because the
/// controller uses round-robin.
const ROW: usize = 30;

fn field(name: &str, path: &str) -> Value {
    json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
}

/// Creates a server behind an Ingress.
pub(crate) async fn serve(lab: &Lab, name: &str, pre_stop: Value) {
    let app = json!({
        "name": "app", "image": "rolldrop", "args": ["workload", "--listen", "$(POD_IP):8080"],
        "env": [field("POD_IP", "status.podIP"), field("POD_NAME", "metadata.name")],
        "lifecycle": {"preStop": pre_stop},
    });
    let metadata = json!({"name": name, "labels": {"app": "web"}});
    lab.create(PODS, &json!({"metadata": metadata, "spec": {"containers": [app]}})).await;
}

/// Creates the controller, an Ingress for the servers, and a client pod. The client repeatedly sends requests through
/// the Ingress, and logs each status and the pod that responded.
pub(crate) async fn ask_through_traefik(lab: &Lab, options: &[&str]) {
    // The Service is headless, so clients use the pods' own addresses.
    let spec = json!({"clusterIP": "None", "selector": {"app": "web"}, "ports": [{"port": 8080}]});
    lab.create("/api/v1/namespaces/default/services", &json!({"metadata": {"name": "web"}, "spec": spec}))
        .await;
    let spec = json!({"controller": "traefik.io/ingress-controller"});
    let class = json!({"metadata": {"name": "traefik"}, "spec": spec});
    let networking = "/apis/networking.k8s.io/v1";
    lab.create(&format!("{networking}/ingressclasses"), &class).await;
    let backend = json!({"service": {"name": "web", "port": {"number": 8080}}});
    let paths = json!([{"path": "/", "pathType": "Prefix", "backend": backend}]);
    let spec = json!({"ingressClassName": "traefik", "rules": [{"http": {"paths": paths}}]});
    let ingress = json!({"metadata": {"name": "web"}, "spec": spec});
    lab.create(&format!("{networking}/namespaces/default/ingresses"), &ingress).await;

    lab.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &trust_default_account()).await;
    let mut env = vec![field("POD_IP", "status.podIP")];
    let mut command = vec![];
    if lab.dataplane == "userspace" {
        // Without service account files, the controller needs a kubeconfig, as outside a cluster.
        env.push(json!({"name": "KUBECONFIG", "value": lab.dir().join("kubeconfig")}));
        command.extend(["env", "--unset", "KUBERNETES_SERVICE_HOST"]);
    }
    command.extend([TRAEFIK, "--providers.kubernetesingress", "--entrypoints.web.address=$(POD_IP):8000"]);
    command.extend(["--global.checknewversion=false", "--global.sendanonymoususage=false"]);
    command.extend(options);
    let traefik = json!({"name": "traefik", "image": "host", "env": env, "command": command});
    run(lab, "traefik", json!({"terminationGracePeriodSeconds": 1, "containers": [traefik]})).await;
    let found = |seen: &[crate::termination::lab::Seen]| {
        let mut own = seen.iter().filter(|seen| seen.kind() == "Pod" && seen.name() == "traefik");
        own.find_map(|seen| seen.object["status"]["podIP"].as_str().map(str::to_owned))
    };
    let address = lab.until("default", "the controller's address", found).await;
    let script = format!(
        "while :; do curl -s -o /dev/null -m 5 -w '%{{http_code}} %header{{rolldrop-pod}}\\n' http://{address}:8000/; \
         sleep 0.03; done"
    );
    run(lab, "client", json!({"terminationGracePeriodSeconds": 1, "containers": [shell("app", &script)]}))
        .await;
}

/// Returns the responses that the client has logged so far.
pub(crate) fn answers(lab: &Lab) -> Vec<String> {
    log_with(lab, "client", "app", "").lines().map(str::to_owned).collect()
}

/// Waits until the last [`ROW`] responses are from exactly these pods. Returns all responses from number `from` on.
pub(crate) async fn until_only(lab: &Lab, from: usize, pods: &[&str]) -> Vec<String> {
    let deadline = tokio::time::Instant::now() + LIMIT;
    loop {
        let all = answers(lab).split_off(from);
        let row = &all[all.len().saturating_sub(ROW)..];
        let is_one = |answer: &String| pods.iter().any(|pod| *answer == format!("200 {pod}"));
        let is_met = |pod: &&str| row.contains(&format!("200 {pod}"));
        if row.len() == ROW && row.iter().all(is_one) && pods.iter().all(is_met) {
            return all;
        }
        assert!(tokio::time::Instant::now() < deadline, "not only {pods:?}: {row:?}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[test]
fn ingress_answers_502_for_gone_pod() {
    for dataplane in ["kernel", "userspace"] {
        let latencies =
            json!({"deletionToSlice": "1s", "terminatedToSlice": "1s", "processGoneToAddressGone": "10s"});
        on_with(dataplane, json!({"latencies": latencies}), async |lab| {
            serve(&lab, "serves-on", json!({"sleep": {"seconds": 20}})).await;
            serve(&lab, "exits", Value::Null).await;
            serve(&lab, "stays", Value::Null).await;
            ask_through_traefik(&lab, &[]).await;
            until_only(&lab, 0, &["serves-on", "exits", "stays"]).await;

            // The rest of the hook has no effect, because the pod leaves with the controller's next configuration.
            let before = answers(&lab).len();
            lab.call("DELETE", &format!("{PODS}/serves-on"), None).await;
            let seen = until_only(&lab, before, &["exits", "stays"]).await;
            assert!(seen.contains(&"200 serves-on".to_owned()), "{dataplane}: it still served: {seen:?}");
            assert!(seen.iter().all(|answer| answer.starts_with("200 ")), "{dataplane}: {seen:?}");

            // If a pod exits immediately, the client gets a gateway error status.
            let before = answers(&lab).len();
            lab.call("DELETE", &format!("{PODS}/exits"), None).await;
            let seen = until_only(&lab, before, &["stays"]).await;
            assert!(seen.contains(&"502 ".to_owned()), "{dataplane}: {seen:?}");
        });
    }
}
