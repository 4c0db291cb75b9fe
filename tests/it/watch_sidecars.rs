//! `rolldrop watch --sidecars` beside a pod whose clients no gateway's log shows. A client's own log is the ground truth.

use serde_json::{Value, json};

use crate::harness::{LIMIT, Rolldrop, wait_for};
use crate::inject::inject;
use crate::machine::{Meanwhile, figure, measured};
use crate::pods::{PODS, log_of, on, run, shell};
use crate::termination::lab::Lab;
use crate::watch::{DEPLOYMENTS, Watching, create_block_of_page, kubeconfig_of_page, ready_pods};
use crate::watch_metrics::{OPEN_METRICS, ScrapedMetrics};

const TOKEN: &str = "s3cret";
const SOURCE: &str = "default/deployment/web";

/// App that exits as soon as it gets SIGTERM.
const WEB: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 10
      containers:
        - name: app
          image: rolldrop
          args: [workload, --listen, \"$(POD_IP):8080\", --on-sigterm=exit]
          env:
            - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
          ports: [{name: http, containerPort: 8080}]
";

/// Runs the app with a sidecar, and a client that uses only the first pod. Returns that pod's name.
async fn serve(lab: &Lab) -> String {
    let secret = json!({"metadata": {"name": "rolldrop-admin"}, "stringData": {"token": TOKEN}});
    lab.create("/api/v1/namespaces/default/secrets", &secret).await;
    let web = inject(&["--admin-token", "rolldrop-admin"], WEB);
    lab.create(DEPLOYMENTS, &serde_saphyr::from_str::<Value>(&web).expect("YAML")).await;
    let (pod, _) = ready_pods(lab, "web", 1).await.remove(0);
    let address = lab.call("GET", &format!("{PODS}/{pod}"), None).await.body["status"]["podIP"].clone();
    let ask = format!(
        "while :; do curl -s -o /dev/null -m 5 -w '%{{exitcode}} %{{http_code}}\\n' http://{}:18080/; sleep 0.02; done",
        address.as_str().expect("an address")
    );
    run(lab, "client", json!({"terminationGracePeriodSeconds": 1, "containers": [shell("app", &ask)]})).await;
    pod
}

/// Returns the client's responses: curl's exit status, and the status of the response.
fn answers(lab: &Lab) -> Vec<String> {
    log_of(lab, "client", "app").unwrap_or_default().lines().map(str::to_owned).collect()
}

#[test]
fn sidecar_shows_requests_lost_without_gateway() {
    measured(|| on("userspace", shows_what_sidecar_saw));
}

async fn shows_what_sidecar_saw(lab: Lab) {
    let pod = serve(&lab).await;
    let kubeconfig = kubeconfig_of_page(&lab).await;
    create_block_of_page(&lab, 4).await;
    let token = lab.dir().join("token");
    std::fs::write(&token, TOKEN).expect("a file");
    let options = ["-n", "default", "--sidecars", SOURCE];
    let with_token = ["--admin-token-file", token.to_str().expect("a path")];
    let json = ["--format", "json", "--metrics", "0"];
    let mut watch = Watching::begin(&[&options[..], &with_token, &json].concat(), &kubeconfig);
    let mut text =
        Watching::begin(&[options, [with_token[0], with_token[1], "--format", "text"]].concat(), &kubeconfig);
    let mut closed = Watching::begin(&[&options[..], &json].concat(), &kubeconfig);
    let good = |answers: &[String]| answers.iter().filter(|answer| *answer == "0 200").count();
    wait_for("responses", LIMIT, || (good(&answers(&lab)) > 50).then_some(()));
    let meanwhile = Meanwhile::begins();
    lab.call("DELETE", &format!("{PODS}/{pod}"), None).await;

    let found = watch.terminations("Deployment web", 1).remove(0);
    // curl says so if a connection was established and closed without a response.
    let is_lost = |answer: &&String| ["52 000", "56 000"].contains(&answer.as_str());
    let lost = answers(&lab).iter().filter(is_lost).count() as u64;
    let traffic = &found["traffic"];
    assert_eq!(found["pod"], json!(pod), "{found:#}");
    // A sidecar waits for its reader for at most two seconds, which is too short for a starved watch.
    figure(meanwhile.taken(), traffic["seen_by"] == "sidecar", || format!("{found:#}"));
    let seen = traffic["lost"]["at_least"].as_u64().expect("a number");
    assert_eq!(traffic["lost"]["at_most"], seen, "{found:#}");
    // The last lost request may have been in the kernel's queue when the sidecar exited.
    assert!(seen > 0 && (seen == lost || seen + 1 == lost), "{lost}: {found:#}\n{:?}", answers(&lab));
    let causes = traffic["by_cause"].as_object().expect("causes");
    assert!(causes.contains_key("routed_to_dead_pod"), "{found:#}");
    assert_eq!(traffic["consumers"]["seen"], json!([SOURCE]), "{found:#}");
    let [window] = &traffic["windows"].as_array().expect("windows")[..] else { panic!("{found:#}") };
    assert_eq!(window["upper_s"], Value::Null, "{found:#}");
    let [gap] = &traffic["gaps"].as_array().expect("gaps")[..] else { panic!("{found:#}") };
    let log = format!("default/{pod}/rolldrop");
    assert_eq!((&gap["source"], &gap["why"]), (&json!(log), &json!("sidecar ended")), "{found:#}");
    let metrics = ScrapedMetrics::scrape(&watch, OPEN_METRICS);
    let up = |metrics: &ScrapedMetrics| metrics.sum("rolldrop_evidence_up", &format!("source={SOURCE}"));
    assert_eq!(up(&metrics), 1.0, "{}", metrics.text);
    assert_eq!(
        metrics.sum("rolldrop_lost_requests_total", "evidence=at_least"),
        seen as f64,
        "{}",
        metrics.text
    );

    let elsewhere = ["watch", "--kubeconfig", "kubeconfig", "-n", "kube-system", "--sidecars", SOURCE];
    let refused = Rolldrop::new(elsewhere).file("kubeconfig", &kubeconfig).finish().expect_code(2);
    assert!(refused.stderr().contains("is not in the watched namespace, kube-system"), "{refused}");

    // Without the token, nothing is known.
    let unknown = closed.terminations("Deployment web", 1).remove(0);
    assert_eq!(unknown["traffic"], Value::Null, "{unknown:#}");
    let gaps = closed.lines("log_gap");
    assert_eq!(
        (gaps.len(), &gaps[0]["why"]),
        (1, &json!("it requires a token (--admin-token-file)")),
        "{gaps:?}"
    );
    assert_eq!(up(&ScrapedMetrics::scrape(&closed, OPEN_METRICS)), 0.0);
    let said = closed.read("stderr.log");
    assert_eq!(said.matches("requires a token (--admin-token-file)").count(), 1, "{said}");
    closed.end();
    watch.end();

    let text = text.end();
    figure(meanwhile.taken(), text.contains("LOST"), || text.clone());
    for part in [
        format!("LOST {seen} of "),
        " requests that reached its sidecar (".to_owned(),
        "; requests after its sidecar had ended are not known".to_owned(),
    ] {
        assert!(text.contains(&part), "{part}\n{text}");
    }
    // The docs show this output as an example.
    println!("{text}");
}
