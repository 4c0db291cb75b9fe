//! `rolldrop watch --logs` beside a real Traefik. A client's own log is the ground truth.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{LIMIT, wait_for};
use crate::ingress::{answers, ask_through_traefik, serve, until_only};
use crate::pods::{PODS, on_with, shell, until_gone};
use crate::watch::{DEPLOYMENTS, PROMPT, Watching, create_block_of_page, deployment, kubeconfig_of_page};
use crate::watch_metrics::{OPEN_METRICS, ScrapedMetrics};

/// Returns a termination of this pod.
fn of_pod(watch: &Watching, pod: &str) -> Value {
    let all = watch.lines("termination");
    all.into_iter().find(|line| line["pod"] == *pod).unwrap_or_else(|| panic!("no {pod}"))
}

/// Waits until both terminations are in the metrics, and checks them.
fn counted_in_metrics(watch: &Watching, lost: u64) {
    let metrics = wait_for("slow requests to be in the log", LIMIT, || {
        let metrics = ScrapedMetrics::scrape(watch, OPEN_METRICS);
        (metrics.sum("rolldrop_terminations_total", "") >= 2.0).then_some(metrics)
    });
    let source = "source=default/pod/traefik";
    for (name, labels, value) in [
        ("rolldrop_terminations_total", "result=lost,mode=other", 1.0),
        ("rolldrop_terminations_total", "result=clean,mode=other", 1.0),
        ("rolldrop_lost_requests_total", "cause=gateway_to_dead_pod,evidence=exact", lost as f64),
        ("rolldrop_lost_requests_total", "", lost as f64),
        ("rolldrop_masked_requests_total", "", 0.0),
        ("rolldrop_window_seconds_bucket", "le=+Inf", 2.0),
        ("rolldrop_evidence_up", source, 1.0),
        ("rolldrop_lines_unread_total", source, 0.0),
    ] {
        assert_eq!(metrics.sum(name, labels), value, "{name} {labels}\n{}", metrics.text);
    }
    assert_eq!(metrics.pods("rolldrop_lost_requests_total", ""), ["exits"], "{}", metrics.text);
    // The docs show this output as an example.
    println!("{}", metrics.text);
}

#[test]
fn gateway_log_shows_lost_requests() {
    // Traefik learns late that a pod is terminating.
    let latencies =
        json!({"deletionToSlice": "1s", "terminatedToSlice": "1s", "processGoneToAddressGone": "10s"});
    on_with("kernel", json!({"latencies": latencies}), async |lab| {
        serve(&lab, "serves-on", json!({"sleep": {"seconds": 5}})).await;
        serve(&lab, "exits", Value::Null).await;
        serve(&lab, "stays", Value::Null).await;
        ask_through_traefik(&lab, &["--accesslog=true", "--accesslog.format=json"]).await;
        until_only(&lab, 0, &["serves-on", "exits", "stays"]).await;
        let kubeconfig = kubeconfig_of_page(&lab).await;
        create_block_of_page(&lab, 2).await;
        for (name, consumers) in
            [("declares", "default/pod/traefik"), ("misspells", "default/service/traefik")]
        {
            let mut none = deployment(name, 0, 30, &shell("app", PROMPT));
            none["metadata"]["annotations"] = json!({"rolldrop.dev/consumers": consumers});
            lab.create(DEPLOYMENTS, &none).await;
        }
        let options = ["-n", "default", "--logs", "default/pod/traefik=traefik-json"];
        let more = ["--events", "--format", "json", "--metrics", "0"];
        let mut watch = Watching::begin(&[&options[..], &more].concat(), &kubeconfig);
        let mut text = Watching::begin(&options, &kubeconfig);

        let before = answers(&lab).len();
        lab.call("DELETE", &format!("{PODS}/exits"), None).await;
        let seen = until_only(&lab, before, &["serves-on", "stays"]).await;
        let lost = seen.iter().filter(|answer| *answer == "502 ").count() as u64;
        assert!(lost > 0, "{seen:?}");
        let before = answers(&lab).len();
        lab.call("DELETE", &format!("{PODS}/serves-on"), None).await;
        let seen = until_only(&lab, before, &["stays"]).await;
        assert!(seen.iter().all(|answer| answer.starts_with("200 ")), "{seen:?}");
        until_gone(&lab, "serves-on").await;
        // Facts that explain a termination may still arrive on other watches.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let text = text.end();
        let said = format!("LOST {lost} of ");
        assert!(text.contains(&said) && text.contains("or more is needed"), "{said}\n{text}");
        // The docs show this output as an example.
        println!("{text}");

        counted_in_metrics(&watch, lost);
        let output = watch.end();

        let exits = of_pod(&watch, "exits");
        let traffic = &exits["traffic"];
        assert_eq!(
            traffic["lost"],
            json!({"at_least": lost, "at_most": lost, "estimate": lost as f64}),
            "{exits:#}"
        );
        assert_eq!(
            traffic["by_cause"].as_object().expect("causes").keys().next().expect("one"),
            "gateway_to_dead_pod"
        );
        assert!(traffic["requests"].as_u64().expect("a number") >= lost, "{exits:#}");
        let window = &traffic["windows"][0];
        assert!(
            window["consumer"].as_str().expect("a name").starts_with("default/traefik/traefik"),
            "{exits:#}"
        );
        assert!(window["lower_s"].as_f64().expect("a bound") > 0.0, "{exits:#}");

        let serves_on = of_pod(&watch, "serves-on");
        assert_eq!(serves_on["traffic"]["lost"]["at_most"], 0, "{serves_on:#}");
        let window = &serves_on["traffic"]["windows"][0];
        assert!((0.0..8.0).contains(&window["lower_s"].as_f64().unwrap_or(0.0)), "{serves_on:#}");

        let consumers = json!({"seen": ["default/pod/traefik"], "with_gaps": [], "declared": null});
        assert_eq!(serves_on["traffic"]["consumers"], consumers, "{serves_on:#}");
        let warnings = watch.read("stderr.log");
        let ignored = "the annotation rolldrop.dev/consumers of Deployment misspells in default is ignored";
        assert_eq!(
            (warnings.matches(ignored).count(), warnings.contains("declares")),
            (1, false),
            "{warnings}"
        );

        let logs = watch.lines("log");
        let [log] = &logs[..] else { panic!("{output}") };
        assert!(log["lines"].as_u64().expect("a number") > 0 && log["unreadable"] == 0, "{log}");
    });
}
