//! Tests of the checks that a plan makes before anything is touched.

use super::*;

/// Returns a client for a cluster with these objects, identified by the end of their path. Lists are arrays; everything
/// else is a single object.
pub(super) fn cluster(objects: &[(&'static str, Value)]) -> Client {
    cluster_that_forbids("", objects)
}

/// Like [`cluster`], for a user who may not read the paths that end with `forbidden`, unless that is empty.
fn cluster_that_forbids(forbidden: &'static str, objects: &[(&'static str, Value)]) -> Client {
    let objects = objects.to_vec();
    let kinds = |group: &str, kinds: &[(&str, &str)]| {
        let resource = |(name, kind): &(&str, &str)| {
            json!({"name": name, "singularName": kind.to_lowercase(), "namespaced": true, "kind": kind,
                "verbs": ["create", "delete", "patch"]})
        };
        let resources: Vec<Value> = kinds.iter().map(resource).collect();
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group, "resources": resources})
    };
    let (client, _) = api(move |method, path| {
        assert_eq!(*method, Method::GET, "a plan only reads: {path}");
        let list =
            |items: &Value| json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items});
        if !forbidden.is_empty() && path.ends_with(forbidden) {
            return status(403, "Forbidden", &format!("{path} is forbidden"));
        }
        let found = objects.iter().find(|(end, _)| path.ends_with(end)).map(|(_, object)| object);
        let answer = match (path, found) {
            ("/version", _) => json!({"gitVersion": "v1.36.2"}),
            ("/api/v1", _) => kinds("v1", &[("services", "Service"), ("configmaps", "ConfigMap")]),
            ("/apis/apps/v1", _) => kinds("apps/v1", &[("deployments", "Deployment")]),
            ("/apis/policy/v1", _) => kinds("policy/v1", &[("poddisruptionbudgets", "PodDisruptionBudget")]),
            ("/api/v1/nodes/node-1/proxy/shutdown", _) => return status(405, "MethodNotAllowed", path),
            (_, Some(items @ Value::Array(_))) => list(items),
            (_, Some(object)) => object.clone(),
            _ if ["pods", "deployments", "poddisruptionbudgets", "nodes"]
                .iter()
                .any(|all| path.ends_with(all)) =>
            {
                list(&json!([]))
            }
            _ => return status(404, "NotFound", &format!("{path} not found")),
        };
        (200, answer.to_string())
    });
    client
}

pub(super) fn read(spec: &str) -> scenario::Scenario {
    let text = format!("apiVersion: rolldrop.dev/v1\nkind: Scenario\nmetadata: {{name: x}}\nspec:\n{spec}");
    scenario::parse::<Value>(&text, "x.yaml", std::path::Path::new("."), &[]).unwrap().scenario
}

/// Returns the plan for a scenario, or the error from planning.
async fn planned(client: Client, spec: &str) -> Result<RunPlan, String> {
    let (limits, stop) = (TimeLimits::default(), CancellationToken::new());
    let caller = Caller::in_shop(client, limits, stop);
    let scenario = read(spec);
    plan_run(&caller, &work(&scenario)).await.map_err(|error| error.to_string())
}

fn web(count: usize) -> Value {
    let owner = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r", "controller": true}]);
    let pod = |number: usize| {
        json!({"metadata": {"name": format!("web-{number}"), "uid": format!("u{number}"), "namespace": "shop",
                "labels": {"app": "web"}, "ownerReferences": owner},
            "spec": {"nodeName": if number == 0 { "node-2" } else { "node-1" }},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    };
    (0..count).map(pod).collect()
}

pub(super) fn service(more: &Value) -> Value {
    let mut service = json!({"metadata": {"name": "web", "namespace": "shop"},
        "spec": {"selector": {"app": "web"}, "clusterIP": "10.96.0.7", "ports": [{"port": 80}]}});
    for (key, value) in more.as_object().into_iter().flatten() {
        service["spec"][key] = value.clone();
    }
    service
}

fn node(ready: &str) -> Value {
    json!({"metadata": {"name": "node-1", "labels": {"kubernetes.io/os": "linux"}}, "status": {
        "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
        "conditions": [{"type": "Ready", "status": ready, "reason": "KubeletStopped"}]}})
}

/// Returns a scenario with an existing target and these disruptions.
fn live(disruptions: &str) -> String {
    format!("  target: {{service: web}}\n  load: {{duration: 60s}}\n  disruptions:\n{disruptions}")
}

/// Returns a scenario whose manifests create everything: three pods behind the target, and two pods that no target
/// routes to.
fn own(disruptions: &str) -> String {
    let workload = |name: &str, replicas: u32| {
        let template =
            json!({"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "app"}]}});
        let spec =
            json!({"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template});
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec})
    };
    let mut service = service(&json!({"clusterIP": null}));
    service["apiVersion"] = "v1".into();
    service["kind"] = "Service".into();
    service["metadata"] = json!({"name": "web"});
    let objects = [workload("web", 3), workload("db", 2), service];
    let manifests: String = objects.iter().map(|object| format!("  - inline: {object}\n")).collect();
    format!("  manifests:\n{manifests}{}", live(disruptions))
}

#[tokio::test]
async fn impossible_disruption_errors_name_key_and_remedy() {
    let there = || cluster(&[("/services/web", service(&json!({}))), ("/pods", web(3))]);
    let mut said = Vec::new();
    for wrong in [
        "  - {at: 1s, action: deletePod, selector: app=web, count: all}\n",
        "  - {at: 1s, action: deletePod, selector: app=web, count: 4, allowOutage: true}\n",
        "  - {at: 1s, action: deletePod, selector: app=web, count: 2, batch: 1}\n  - {at: 1s, action: evict, selector: app=web, count: 2}\n",
        "  - {at: 1s, action: rollingRestart, workload: deploy/wbe}\n",
        "  - {at: 1s, action: scale, workload: deploy/web, replicas: 0}\n",
        "  - {at: 1s, action: drain, node: node-9}\n",
    ] {
        said.push(planned(there(), &live(wrong)).await.unwrap_err());
    }
    let nothing = cluster(&[("/services/web", service(&json!({})))]);
    let one = "  - {at: 1s, action: deletePod, selector: app=wbe}\n";
    said.push(planned(nothing, &live(one)).await.unwrap_err());
    let paused = json!({"metadata": {"name": "web"}, "spec": {"paused": true, "template": {}}});
    let there = cluster(&[("/services/web", service(&json!({}))), ("/deployments/web", paused)]);
    let restart = "  - {at: 1s, action: rollingRestart, workload: deploy/web}\n";
    said.push(planned(there, &live(restart)).await.unwrap_err());
    let held_back = json!({"metadata": {"name": "db"}, "spec": {
        "replicas": 2, "template": {}, "updateStrategy": {"rollingUpdate": {"partition": 2}}}});
    let there = cluster(&[("/services/web", service(&json!({}))), ("/statefulsets/db", held_back)]);
    let restart = "  - {at: 1s, action: rollingRestart, workload: sts/db}\n";
    said.push(planned(there, &live(restart)).await.unwrap_err());
    let widget = "  manifests:\n  - inline: {apiVersion: x.example/v1, kind: Widget, metadata: {name: w}}\n";
    let there = cluster(&[("/services/web", service(&json!({}))), ("/pods", web(3))]);
    said.push(
        planned(there, &format!("{widget}  target: {{service: web}}\n  load: {{duration: 60s}}\n"))
            .await
            .unwrap_err(),
    );
    insta::assert_snapshot!(said.join("\n"), @r#"
    x.yaml:8: spec.disruptions[0]: refused deletePod of app=web: all 3 ready pods would terminate at the same time; set allowOutage: true in the disruption if you want this
    x.yaml:8: spec.disruptions[0].count: is 4, but app=web matches only 3 ready pods: use a smaller number (or count: all), or add replicas
    x.yaml:9: spec.disruptions[1]: takes 2 pods at the same time as spec.disruptions[0], which takes 2 pods, but both select from the same 3 pods: start one after the other has finished, take fewer pods, or add replicas
    x.yaml:8: spec.disruptions[0].workload: there is no Deployment wbe in namespace shop: fix the name, or use another namespace (-n)
    x.yaml:8: spec.disruptions[0]: refused scale of Deployment web: no pod would be left; set allowOutage: true in the disruption if you want this
    x.yaml:8: spec.disruptions[0].node: /api/v1/nodes/node-9 not found: name an existing node (kubectl get nodes)
    x.yaml:8: spec.disruptions[0].selector: "app=wbe" matches no pod in namespace shop, and none that the manifests create: fix the selector or the pods' labels
    x.yaml:8: spec.disruptions[0].workload: Deployment web would not replace its pods: its rollout is paused: resume it first
    x.yaml:8: spec.disruptions[0].workload: StatefulSet db would not replace its pods: its partition holds back all its pods: set it below the number of replicas, or to 0
    x.yaml:6: spec.manifests[0].inline: the cluster does not know Widget (x.example/v1): remove it from the manifests, or use a cluster that has it (--context)
    "#);
}

/// Only the run itself enforces the limits of a deletion; the API server enforces those of an eviction.
#[tokio::test]
async fn unreadable_limits_refuse_deletions_only() {
    let there = [("/services/web", service(&json!({}))), ("/pods", web(3))];
    let with = async |forbidden: &'static str, action: &str| {
        let disruption = format!("  - {{at: 1s, action: {action}, selector: app=web}}\n");
        let plan = planned(cluster_that_forbids(forbidden, &there), &live(&disruption)).await?;
        let rights = plan.rights().into_iter().map(|right| right.to_string());
        let lists = rights.filter(|right| right.starts_with("list ") && !right.contains(" pods "));
        let lists: Vec<String> = lists.collect();
        Ok::<_, String>(lists.join("; "))
    };
    let (budgets, deployments) = ("/poddisruptionbudgets", "/deployments");
    for (forbidden, right) in
        [(budgets, "list poddisruptionbudgets.policy"), (deployments, "list deployments.apps")]
    {
        let why = with(forbidden, "deletePod").await.unwrap_err();
        assert!(why.starts_with(&format!("missing permissions: {right} in namespace shop; ")), "{why}");
        assert!(with(forbidden, "evict").await.is_ok());
        assert!(with(forbidden, "deletePod, allowOutage: true").await.is_ok());
    }
    let lists = "list endpointslices.discovery.k8s.io in namespace shop";
    assert_eq!(with("", "evict").await.unwrap(), lists);
    let limits =
        "list poddisruptionbudgets.policy in namespace shop; list deployments.apps in namespace shop";
    assert_eq!(with("", "deletePod").await.unwrap(), format!("{lists}; {limits}"));
}

#[tokio::test]
async fn manifest_pods_limit_disruptions() {
    let mut said = Vec::new();
    for wrong in [
        "  - {at: 1s, action: deletePod, selector: app=web, count: all}\n",
        "  - {at: 1s, action: deletePod, selector: app=web, count: 2}\n",
        "  - {at: 1s, action: relabel, selector: 'app in (db)', count: 3, allowOutage: true}\n",
    ] {
        said.push(planned(cluster(&[]), &own(wrong)).await.unwrap_err());
    }
    insta::assert_snapshot!(said.join("\n"), @r"
    x.yaml:12: spec.disruptions[0]: refused deletePod of app=web: all 3 ready pods would terminate at the same time; set allowOutage: true in the disruption if you want this
    x.yaml:12: spec.disruptions[0]: refused deletePod of app=web: maxUnavailable of Deployment web is 25%, so 1 of 3 pods may be unavailable at once; 2 pods would terminate; set allowOutage: true in the disruption if you want this
    x.yaml:12: spec.disruptions[0].count: is 3, but app in (db) matches only 2 ready pods: use a smaller number (or count: all), or add replicas
    ");
    let fine = "  - {at: 1s, action: deletePod, selector: app=web}\n  - {at: 1s, action: evict, selector: app=web, count: 2}\n";
    let plan = planned(cluster(&[]), &own(fine)).await.unwrap();
    assert_eq!(plan.findings, Vec::<String>::new());
}

#[tokio::test]
async fn plan_may_read_what_the_run_creates() {
    let plan = planned(cluster(&[]), &own("  - {at: 1s, action: evict, selector: app=web}\n")).await.unwrap();
    let rights: Vec<String> = plan.rights().iter().map(ToString::to_string).collect();
    for created in ["configmaps", "deployments.apps web", "deployments.apps db", "services web"] {
        let right = format!("get {created} in namespace shop");
        assert!(rights.contains(&right), "{right}: {rights:?}");
    }
}

#[tokio::test]
async fn earlier_scaling_suspends_pod_count_check() {
    let text = "  - {at: 1s, action: scale, workload: deploy/web, replicas: 6}\n  - {at: 20s, action: deletePod, selector: app=web, count: 4, batch: 1}\n";
    planned(cluster(&[]), &own(text)).await.unwrap();
    let too_early = text.replace("at: 20s", "at: 1s");
    let why = planned(cluster(&[]), &own(&too_early)).await.unwrap_err();
    assert!(why.contains("spec.disruptions[1].count: is 4, but app=web matches only 3 ready pods"), "{why}");
}

#[tokio::test]
async fn pods_outside_targets_raise_finding() {
    let plan =
        planned(cluster(&[]), &own("  - {at: 1s, action: deletePod, selector: app=db}\n")).await.unwrap();
    insta::assert_snapshot!(plan.findings.join("\n"), @"x.yaml:12: spec.disruptions[0].selector: none of its pods is behind a target (deletePod of app=db), so such pods get no requests and their terminations have no window: add their Service as a target, or fix the selector");
    let both = "  - {at: 1s, action: deletePod, selector: 'app in (web, db)'}\n";
    let plan = planned(cluster(&[]), &own(both)).await.unwrap();
    assert!(plan.findings[0].contains("2 of its 5 pods are not behind a target"), "{:?}", plan.findings);
    // The pods behind a URL are not known.
    let url = own(both).replace("target: {service: web}", "target: {url: 'http://web.example/'}");
    assert_eq!(planned(cluster(&[]), &url).await.unwrap().findings, Vec::<String>::new());
}

#[tokio::test]
async fn invalid_node_port_target_is_refused() {
    let spec = "  target: {service: web, node: node-1}\n  load: {duration: 60s}\n";
    let ports = json!([{"port": 80, "nodePort": 30080}]);
    let port =
        |policy: &str| service(&json!({"type": "NodePort", "ports": ports, "externalTrafficPolicy": policy}));
    let (at, of) = ("/services/web", "/nodes/node-1");
    let mut said = Vec::new();
    for wrong in [
        cluster(&[(of, node("True"))]),
        cluster(&[(at, service(&json!({}))), (of, node("True"))]),
        cluster(&[(at, port("Cluster"))]),
        cluster(&[(at, port("Cluster")), (of, node("False"))]),
        cluster(&[(at, port("Local")), (of, node("True")), ("/pods", web(1))]),
    ] {
        said.push(planned(wrong, spec).await.unwrap_err());
    }
    insta::assert_snapshot!(said.join("\n"), @r"
    x.yaml:5: spec.target.service: there is no Service web in namespace shop: fix the name, or use another namespace (-n)
    x.yaml:5: spec.target.node: service web: has no NodePort: remove the target's node, or set type: NodePort in the Service
    x.yaml:5: spec.target.node: /api/v1/nodes/node-1 not found: name an existing node (kubectl get nodes)
    x.yaml:5: spec.target.node: node node-1 is not ready (KubeletStopped), so its NodePort may not answer: name another node
    x.yaml:5: spec.target.node: node node-1 answers only while it has a ready pod of the Service (externalTrafficPolicy: Local), and it has none: name a node that has one
    ");
    for (policy, pods) in [("Cluster", 0), ("Local", 2)] {
        let fine = cluster(&[(at, port(policy)), (of, node("True")), ("/pods", web(pods))]);
        assert_eq!(planned(fine, spec).await.unwrap().findings, Vec::<String>::new());
    }
}

/// `maxUnavailable` applies only to rollouts; the eviction API ignores it.
#[tokio::test]
async fn drain_is_checked_against_budgets_only() {
    let deployment = json!([{"metadata": {"name": "web"}, "status": {"readyReplicas": 4}, "spec": {"replicas": 4,
        "selector": {"matchLabels": {"app": "web"}}, "template": {},
        "strategy": {"rollingUpdate": {"maxUnavailable": 0}}}}]);
    let budgets = |allowed: u32| {
        json!([{"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": {"app": "web"}}},
            "status": {"disruptionsAllowed": allowed, "currentHealthy": 4}}])
    };
    // This server does not filter by node: "all" has all four pods, and "three" leaves out the one on node-2.
    let on = |pods: &str, allowed: u32| {
        let found = [("/nodes/node-1", node("True")), ("/services/web", service(&json!({})))];
        let lists = [("/deployments", deployment.clone()), ("/poddisruptionbudgets", budgets(allowed))];
        let all: Vec<Value> = web(4).as_array().unwrap().clone();
        let there = if pods == "all" { all.clone() } else { all[1..].to_vec() };
        let of_node = [("/api/v1/pods", Value::from(there)), ("shop/pods", Value::from(all))];
        cluster(&[&found[..], &lists, &of_node].concat())
    };
    let drain = live("  - {at: 1s, action: drain, node: node-1}\n");
    assert!(planned(on("three", 0), &drain).await.is_ok());
    assert!(planned(on("all", 1), &drain).await.is_ok(), "the budget lets them go one by one");
    let all = planned(on("all", 4), &drain).await.unwrap_err();
    assert!(all.starts_with("x.yaml:8: spec.disruptions[0].node: refused drain of node node-1: "), "{all}");
}

/// Returns a ready pod on node-1, or on node-2 if its name ends with 2.
fn pod_on_node(namespace: &str, name: &str, owners: &Value) -> Value {
    let node = if name.ends_with('2') { "node-2" } else { "node-1" };
    json!({"metadata": {"name": name, "uid": format!("{namespace}/{name}"), "namespace": namespace,
            "labels": {"app": "db"}, "ownerReferences": owners},
        "spec": {"nodeName": node}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
}

#[tokio::test]
async fn node_actions_spare_pods_of_all_namespaces() {
    let set = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "s", "controller": true}]);
    let (db, other) = (pod_on_node("tools", "db-1", &set), pod_on_node("tools", "db-2", &set));
    let bare = pod_on_node("shop", "debug", &json!([]));
    let mut over = bare.clone();
    over["status"] = json!({"phase": "Succeeded"});
    let system = pod_on_node("kube-system", "dns-1", &json!([]));
    let planned = async |disruption: &str, pods: &[&Value], allowed: Option<u32>| {
        let mut all = web(3).as_array().unwrap().clone();
        all.extend(pods.iter().map(|pod| (*pod).clone()));
        let of = |is_it: &dyn Fn(&Value) -> bool| all.iter().filter(|pod| is_it(pod)).cloned().collect();
        let in_namespace = |name: &str| of(&|pod| pod["metadata"]["namespace"] == *name);
        let budgets = allowed.map(|allowed| {
            json!({"metadata": {"name": "db"}, "spec": {"selector": {"matchLabels": {"app": "db"}}},
                "status": {"disruptionsAllowed": allowed, "currentHealthy": 1}})
        });
        let client = cluster(&[
            ("/nodes/node-1", node("True")),
            ("/services/web", service(&json!({}))),
            ("/api/v1/pods", of(&|pod| pod["spec"]["nodeName"] == "node-1")),
            ("shop/pods", in_namespace("shop")),
            ("tools/pods", in_namespace("tools")),
            ("tools/poddisruptionbudgets", budgets.into_iter().collect()),
        ]);
        let scenario = format!("  - {{at: 1s, node: node-1, {disruption}}}\n");
        match disruption.contains("manifests") {
            true => self::planned(client, &own(&scenario.replace(", manifests", ""))).await,
            false => self::planned(client, &live(&scenario)).await,
        }
        .err()
    };
    let last = "the only ready pod of StatefulSet db in tools is on it; set allowOutage: true in the disruption if you want this";
    for action in ["drain", "drain, manifests", "nodeShutdown"] {
        let action = format!("action: {action}");
        let refused = planned(&action, &[&db], None).await.unwrap();
        assert!(
            refused.ends_with(last) && refused.contains("spec.disruptions[0].node: refused "),
            "{refused}"
        );
        let refused = planned(&action, &[&bare], None).await.unwrap();
        assert!(refused.contains("nothing would recreate pod debug in shop; set allowOutage"), "{refused}");
        assert_eq!(planned(&action, &[&db, &other, &over, &system], None).await, None, "{action}");
    }
    assert_eq!(planned("action: drain, allowOutage: true", &[&db, &bare], None).await, None);
    assert_eq!(planned("action: drain", &[&db], Some(0)).await, None, "the API server holds it back");
    assert!(planned("action: drain", &[&db], Some(1)).await.is_some());
}

/// The cluster shows neither a Service nor a workload for these pods, so the run lists the pods themselves.
#[tokio::test(start_paused = true)]
async fn run_with_url_target_awaits_manifest_pods() {
    let lists = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&lists);
    let (client, _) = api(move |_, path| {
        let items = match path {
            "/api/v1/namespaces/shop/pods" => match count.fetch_add(1, Ordering::SeqCst) {
                0 => json!([]),
                1 => web(2),
                _ => web(3),
            },
            "/version" => return (200, json!({"gitVersion": "v1.36.2"}).to_string()),
            _ if path.starts_with("/api/v1/namespaces/kube-system/") => return status(404, "NotFound", path),
            _ => json!([]),
        };
        (200, json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}).to_string())
    });
    let (session, _, _dir) = session(client, TimeLimits::default());
    let disruption = "  - {at: 1s, action: deletePod, selector: app=web}\n";
    let url = "target: {url: 'http://web.example/'}";
    let scenario = read(&own(disruption).replace("target: {service: web}", url));
    session.await_ready(&scenario, &scenario.disruptions).await.unwrap();
    // Two lists without all pods, one with all of them, and one for the check.
    assert!(lists.load(Ordering::SeqCst) > 3);
}

/// Returns a Deployment behind the target whose pods have the sidecar and these sysctls.
fn with_sidecar(replicas: u32, sysctls: &Value) -> Value {
    let metadata = json!({"labels": {"app": "web"}, "annotations": {"rolldrop.dev/sidecar": "registry.example/rolldrop"}});
    let template = json!({"metadata": metadata, "spec": {"securityContext": {"sysctls": sysctls}}});
    json!([{"metadata": {"name": "web", "namespace": "shop"}, "spec": {"replicas": replicas,
        "selector": {"matchLabels": {"app": "web"}}, "template": template}}])
}

#[tokio::test]
async fn sidecar_port_shortage_raises_finding() {
    let findings = async |workloads: Value, load: &str| {
        let there = [("/services/web", service(&json!({}))), ("/deployments", workloads)];
        let spec = format!("  target: {{service: web}}\n  load: {{{load}}}\n");
        planned(cluster(&there), &spec).await.unwrap().findings
    };
    let many = "rate: 1400, duration: 60s";
    let found = findings(with_sidecar(2, &json!([])), many).await;
    insta::assert_snapshot!(found.join("\n"), @"x.yaml:6: spec.load: 700 fresh connections/s to each pod of Deployment web need 42000 source ports in the pod: for each of them, the sidecar opens a connection to the app, and if the client closes first, its port stays in use for 60 s (TIME_WAIT). The pod has 28232, enough for 471/s; the other connections would be refused or reset. Keep connections open (connections: {mode: keepalive}), run 1.5 times as many replicas, lower the rate, or set the sysctl net.ipv4.ip_local_port_range in the pod template (docs/inject.md, Source ports). If the server closes first, set reusePorts: true");
    let widened = json!([{"name": "net.ipv4.ip_local_port_range", "value": "1024 65535"}]);
    let mut bare = with_sidecar(2, &json!([]));
    bare[0]["spec"]["template"]["metadata"]["annotations"] = Value::Null;
    for (workloads, load) in [
        (with_sidecar(3, &json!([])), many),
        (with_sidecar(2, &widened), many),
        (bare, many),
        (with_sidecar(2, &json!([])), "rate: 1400, duration: 30s"),
        (with_sidecar(2, &json!([])), "rate: 1400, duration: 60s, reusePorts: true"),
        (with_sidecar(2, &json!([])), "rate: 1400, duration: 60s, connections: {mode: keepalive}"),
        (with_sidecar(2, &json!([])), "rate: 1400, duration: 60s, connections: {mode: mixed, share: 0.5}"),
    ] {
        assert_eq!(findings(workloads, load).await, Vec::<String>::new(), "{load}");
    }
    // The workload comes from the manifests; half of the requests go to a URL.
    let mut own = with_sidecar(1, &json!([]));
    let (mut deployment, mut web) = (own[0].take(), service(&json!({"clusterIP": null})));
    (deployment["apiVersion"], deployment["kind"]) = ("apps/v1".into(), "Deployment".into());
    (web["apiVersion"], web["kind"]) = ("v1".into(), "Service".into());
    let spec = format!(
        "  manifests:\n  - inline: {deployment}\n  - inline: {web}\n  target: [{{service: web}}, {{url: 'http://other/'}}]\n  \
         load: {{{many}}}\n"
    );
    let found = planned(cluster(&[]), &spec).await.unwrap().findings;
    assert!(
        found[0].contains("spec.load: 700 fresh connections/s to each pod of Deployment web"),
        "{found:?}"
    );
}
