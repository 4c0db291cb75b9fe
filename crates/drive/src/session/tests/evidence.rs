//! Tests of the checks and warnings before the run asks the kernel where connections are routed.

use super::*;

const ASKING: &str = "
apiVersion: rolldrop.dev/v1
kind: Scenario
metadata: {name: x}
spec:
  target: {service: web}
  load: {duration: 10s, evidence: conntrack}
";

/// Returns the plan for a cluster with a Service proxy in this mode, and a namespace that allows pods of this level.
async fn planned(
    mode: &'static str,
    level: Option<&'static str>,
    workers: Option<usize>,
) -> Result<RunPlan, String> {
    let (client, _) = api(move |method, path| match path {
        "/api/v1/namespaces/kube-system/configmaps/kube-proxy" => {
            let config = format!("mode: {mode}\n");
            (200, json!({"metadata": {"name": "kube-proxy"}, "data": {"config.conf": config}}).to_string())
        }
        "/api/v1/namespaces/shop" => {
            let label = "pod-security.kubernetes.io/enforce";
            let labels = level.map(|level| json!({label: level}));
            (200, json!({"metadata": {"name": "shop", "labels": labels}}).to_string())
        }
        "/api/v1/namespaces/shop/services/web" => {
            (200, json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}}).to_string())
        }
        _ => with_discovery(method, path, status(500, "InternalError", "unexpected")),
    });
    let (limits, stop) = (TimeLimits::default(), CancellationToken::new());
    let caller = Caller::in_shop(client, limits, stop);
    let scenario =
        scenario::parse::<Value>(ASKING, "x.yaml", std::path::Path::new("."), &[]).unwrap().scenario;
    let work = Work { load_workers: workers, ..work(&scenario) };
    plan_run(&caller, &work).await.map_err(|error| error.to_string())
}

#[tokio::test]
async fn plan_announces_privileged_workers() {
    let plan = planned("nftables", Some("privileged"), Some(2)).await.unwrap();
    insta::assert_snapshot!(plan.effects.join("\n"), @"runs 2 load workers as root with NET_ADMIN in their nodes' network, to ask the kernel which pod each connection goes to (--evidence conntrack)");
    let calls: Vec<String> = plan.calls.iter().map(ToString::to_string).collect();
    let job = calls.iter().find(|call| call.contains("/jobs ")).expect("a Job");
    assert!(job.contains("2 load workers, as root with NET_ADMIN in their nodes' network"), "{job}");
    assert_eq!(planned("nftables", None, Some(1)).await.unwrap().effects.len(), 1);
    let local = planned("iptables", Some("restricted"), None).await.unwrap();
    assert!(local.effects.is_empty() && local.own[0].contains("asks the kernel"), "{:?}", local.own);
}

#[tokio::test]
async fn plan_fails_if_evidence_is_unavailable() {
    let error = planned("userspace", None, None).await.unwrap_err();
    assert!(error.contains("the Service proxy is in userspace mode"), "{error}");
    let error = planned("nftables", Some("baseline"), Some(2)).await.unwrap_err();
    assert!(error.contains("namespace shop allows only baseline pods"), "{error}");
}
