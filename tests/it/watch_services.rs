//! `rolldrop watch --logs` beside a gateway that sends requests to a Service, so that its log names no pod. The client's
//! own log is the ground truth.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{LIMIT, wait_for};
use crate::ingress::{answers, serve, until_only};
use crate::pods::{PODS, on_with, run, shell, until_gone};
use crate::watch::{Watching, create_block_of_page, kubeconfig_of_page};
use crate::watch_streams::balance;

const SERVICES: &str = "/api/v1/namespaces/default/services";

#[test]
fn losses_behind_service_lie_within_bounds() {
    let latencies = json!({"deletionToSlice": "3s", "terminatedToSlice": "3s"});
    on_with("kernel", json!({"latencies": latencies}), async |lab| {
        serve(&lab, "serves-on", json!({"sleep": {"seconds": 6}})).await;
        serve(&lab, "exits", Value::Null).await;
        serve(&lab, "stays", Value::Null).await;
        let spec = json!({"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]});
        lab.create(SERVICES, &json!({"metadata": {"name": "web"}, "spec": spec})).await;
        let service = lab.call("GET", &format!("{SERVICES}/web"), None).await.body;
        let address = service["spec"]["clusterIP"].as_str().expect("an address");
        // Each request has a connection of its own, which kube-proxy routes.
        let servers = format!(" option httpclose\n http-reuse never\n server web {address}:80");
        let haproxy = balance(&lab, &servers).await;
        let ask = format!(
            "while :; do curl -s -o /dev/null -m 5 -w '%{{http_code}} %header{{rolldrop-pod}}\\n' http://{haproxy}:8000/; \
             sleep 0.03; done"
        );
        run(&lab, "client", json!({"terminationGracePeriodSeconds": 1, "containers": [shell("app", &ask)]}))
            .await;
        until_only(&lab, 0, &["serves-on", "exits", "stays"]).await;
        let kubeconfig = kubeconfig_of_page(&lab).await;
        create_block_of_page(&lab, 2).await;
        let begin = |format: &str| {
            let log = "default/pod/haproxy=haproxy";
            Watching::begin(&["-n", "default", "--logs", log, "--format", format], &kubeconfig)
        };
        let (mut watch, mut text) = (begin("json"), begin("text"));
        let before = answers(&lab).len();
        until_only(&lab, before, &["serves-on", "exits", "stays"]).await;

        let mut lost = Vec::new();
        for (pod, others) in [("exits", &["serves-on", "stays"][..]), ("serves-on", &["stays"][..])] {
            let before = answers(&lab).len();
            lab.call("DELETE", &format!("{PODS}/{pod}"), None).await;
            wait_for("the pod to be gone", LIMIT, || {
                let left = answers(&lab).split_off(before);
                let is_others =
                    |answer: &String| others.iter().any(|other| *answer == format!("200 {other}"));
                (left.len() > 150 && left[left.len() - 100..].iter().all(is_others)).then_some(())
            });
            until_gone(&lab, pod).await;
            let seen = answers(&lab).split_off(before);
            lost.push(seen.iter().filter(|answer| !answer.starts_with("200 ")).count() as u64);
        }
        assert!(lost[0] > 0, "{lost:?}");
        // Facts that explain a termination may still arrive on other watches.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let (json, text) = (watch.end(), text.end());
        // The docs show this output as an example.
        println!("{text}");
        assert!(
            text.contains("the log names Service default/web, not its pods: matched by time alone"),
            "{text}"
        );
        assert!(text.contains("docs/access-logs.md"), "{text}");
        assert!(watch.lines("not_watched").is_empty(), "{json}");
        for (pod, lost) in ["exits", "serves-on"].into_iter().zip(lost) {
            let all = watch.lines("termination");
            let end =
                all.into_iter().find(|line| line["pod"] == *pod).unwrap_or_else(|| panic!("{pod}: {json}"));
            let traffic = &end["traffic"];
            let number = |of: &str, bound: &str| traffic[of][bound].as_u64().unwrap_or_default();
            let least = number("lost", "at_least").saturating_sub(number("background", "at_most"));
            assert!((least..=number("lost", "at_most")).contains(&lost), "{lost} lost: {end:#}");
            assert!(
                traffic["by_services"]["default/web"]
                    .as_u64()
                    .is_some_and(|requests| requests >= lost.max(1)),
                "{end:#}"
            );
            assert_eq!(traffic["windows"], json!([]), "{end:#}");
        }
    });
}
