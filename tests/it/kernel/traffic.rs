//! Tests which endpoints can be reached from which node.

use super::*;

/// Creates a Service in the default namespace.
async fn create(cluster: &Cluster, service: Value) -> Service {
    let services = Api::<Service>::default_namespaced(cluster.client.clone());
    let service = serde_json::from_value(service).expect("a Service");
    services.create(&PostParams::default(), &service).await.expect("it is created")
}

/// Returns the pod that responds to a request from a node, or curl's `exit CODE`.
fn who_answers(cluster: &Cluster, from: &str, url: &str) -> String {
    let curl = ["--node", from, "--", "curl", "--silent", "--include", url];
    let output = cluster.exec(&[&curl[..], &CURL_LIMITS].concat());
    let said = String::from_utf8_lossy(&output.stdout);
    let pod = said.lines().find_map(|line| line.strip_prefix("rolldrop-pod: "));
    match (output.status.code(), pod) {
        (Some(0), Some(pod)) => pod.trim().to_owned(),
        (code, _) => format!("exit {}", code.unwrap_or(-1)),
    }
}

#[tokio::test]
async fn local_external_policy_drops_unserved_connections() {
    // The userspace dataplane drops nothing, and treats all connections to a node port as external.
    for (dataplane, dropped, from_itself, rejected) in
        [("kernel", "exit 28", "two", "exit 7"), ("userspace", "exit 56", "exit 56", "exit 56")]
    {
        let mut config = config(&json!({}));
        config["nodes"] = 2.into();
        let cluster = Cluster::start_on(dataplane, config).await;
        let service = create(
            &cluster,
            json!({"metadata": {"name": "web"}, "spec": {
                "type": "NodePort", "externalTrafficPolicy": "Local",
                "selector": {"app": "web"}, "ports": [{"port": 8080}],
            }}),
        )
        .await;
        let spec = service.spec.expect("a spec");
        let port = spec.ports.and_then(|ports| ports[0].node_port).expect("a node port");
        let nodes = Api::<Node>::all(cluster.client.clone());
        let mut at = BTreeMap::new();
        for node in nodes.list(&ListParams::default()).await.expect("nodes") {
            let addresses = node.status.and_then(|status| status.addresses).expect("addresses");
            let own = addresses.into_iter().find(|address| address.type_ == "InternalIP");
            let url = format!("http://{}:{port}/", own.expect("an internal address").address);
            at.insert(node.metadata.name.expect("a name"), url);
        }
        let (one, two) = (&at["node-1"], &at["node-2"]);
        let until = |what: &str, from: &str, url: &str, answer: &str| {
            wait_for(&format!("{dataplane}: {what}"), LIMIT, || {
                (who_answers(&cluster, from, url) == answer).then_some(())
            });
        };

        let serve = r#"exec "$0" workload --listen "$POD_IP:8080" --pod-name "$ROLLDROP_POD""#;
        let serve_on = format!("{serve} --on-sigterm drain --drain-for 100s");
        cluster.pod_on("two", &serve_on, Some("node-2")).await;
        until("the only pod, at its own node", "node-1", two, "two");
        until("a node without a pod", "node-2", one, dropped);
        until("the same, from that node itself", "node-1", one, from_itself);
        if dataplane == "kernel" {
            let own_address = format!("http://{}:8080/", spec.cluster_ip.expect("an address"));
            until("the Service's own address has no such policy", "node-1", &own_address, "two");
        }

        // A terminating pod that still serves is used, even if another node has a ready pod.
        cluster.pod_on("one", serve, Some("node-1")).await;
        until("a pod at either node", "node-2", one, "one");
        cluster.pods().delete("two", &DeleteParams::default()).await.expect("it is deleted");
        let log = cluster.dir.path().join("service-proxy.jsonl");
        wait_for("node 1 to leave out the terminating pod", LIMIT, || {
            let lines = json_lines(&log);
            let of_node = |line: &&Value| line["node"] == "node-1" && line["service"] == "default/web";
            let last = lines.iter().rfind(of_node)?;
            (last["endpoints"].as_array()?.len() == 1).then_some(())
        });
        for _ in 0..5 {
            assert_eq!(who_answers(&cluster, "node-1", two), "two", "{dataplane}");
        }
        let gone = DeleteParams::default().grace_period(0);
        cluster.pods().delete("two", &gone).await.expect("it is deleted");
        until("its pod gone, a ready one elsewhere", "node-1", two, dropped);
        cluster.delete("one").await;
        until("no pod anywhere", "node-1", two, rejected);
    }
}

#[tokio::test]
async fn local_internal_policy_uses_node_pods() {
    for (dataplane, dropped, rejected) in
        [("kernel", "exit 28", "exit 7"), ("userspace", "exit 56", "exit 56")]
    {
        let mut config = config(&json!({}));
        config["nodes"] = 2.into();
        let cluster = Cluster::start_on(dataplane, config).await;
        let service = create(
            &cluster,
            json!({"metadata": {"name": "web"}, "spec": {
                "internalTrafficPolicy": "Local", "selector": {"app": "web"}, "ports": [{"port": 8080}],
            }}),
        )
        .await;
        let address = service.spec.and_then(|spec| spec.cluster_ip).expect("an address");
        let url = format!("http://{address}:8080/");
        let until = |what: &str, from: &str, answer: &str| {
            wait_for(&format!("{dataplane}: {what}"), LIMIT, || {
                (who_answers(&cluster, from, &url) == answer).then_some(())
            });
        };
        until("no pod anywhere", "node-1", rejected);

        let serve = r#"exec "$0" workload --listen "$POD_IP:8080" --pod-name "$ROLLDROP_POD""#;
        let serve_on = format!("{serve} --on-sigterm drain --drain-for 100s");
        cluster.pod_on("two", serve, Some("node-2")).await;
        // On the userspace dataplane, the first node carries these connections.
        if dataplane == "kernel" {
            until("the only pod, from its own node", "node-2", "two");
        }
        let log = cluster.dir.path().join("service-proxy.jsonl");
        wait_for("node 2 to see its pod", LIMIT, || {
            let lines = json_lines(&log);
            let mut of_node = lines.iter().filter(|line| line["node"] == "node-2");
            of_node.any(|line| line["endpoints"][0]["pod"] == "two").then_some(())
        });
        until("a node without a pod", "node-1", dropped);

        cluster.pod_on("one", &serve_on, Some("node-1")).await;
        until("a pod of its own", "node-1", "one");
        // A terminating pod that still serves is used, even if another node has a ready pod.
        cluster.pods().delete("one", &DeleteParams::default()).await.expect("it is deleted");
        let nodes = if dataplane == "kernel" {
            &[("node-1", "one"), ("node-2", "two")][..]
        } else {
            &[("node-1", "one")]
        };
        for (node, pod) in nodes.repeat(5) {
            assert_eq!(who_answers(&cluster, node, &url), pod, "{dataplane}, {node}");
        }
        let gone = DeleteParams::default().grace_period(0);
        cluster.pods().delete("one", &gone).await.expect("it is deleted");
        until("its pod gone, a ready one elsewhere", "node-1", dropped);
        cluster.delete("two").await;
        until("no pods left", "node-1", rejected);
    }
}

#[tokio::test]
async fn affinity_lasts_until_deletion_or_timeout() {
    for dataplane in ["kernel", "userspace"] {
        let cluster = Cluster::start_on(dataplane, config(&json!({}))).await;
        let sticky = |seconds: u32| json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}});
        let mut service = json!({"metadata": {"name": "web"}, "spec": sticky(86_400)});
        service["spec"]["selector"] = json!({"app": "web"});
        service["spec"]["ports"] = json!([{"port": 8080}]);
        let service = create(&cluster, service).await;
        let address = service.spec.and_then(|spec| spec.cluster_ip).expect("an address");
        let url = format!("http://{address}:8080/");
        let serve = r#"exec "$0" workload --listen "$POD_IP:8080" --pod-name "$ROLLDROP_POD""#;
        for pod in ["one", "two", "three", "four"] {
            cluster.pod(pod, serve).await;
        }
        let log = cluster.dir.path().join("service-proxy.jsonl");
        let until_routed = |count: usize| {
            wait_for(&format!("{dataplane}: {count} endpoints"), LIMIT, || {
                let lines = json_lines(&log);
                let last = lines.iter().rfind(|line| line["service"] == "default/web")?;
                (last["endpoints"].as_array()?.len() == count).then_some(())
            });
        };
        until_routed(4);

        let ask = || who_answers(&cluster, "node-1", &url);
        let stays = |pod: &str| {
            for _ in 0..20 {
                assert_eq!(ask(), pod, "{dataplane}");
            }
        };
        let first = ask();
        stays(&first);
        // Added or removed endpoints do not affect clients of other endpoints.
        cluster.pod("five", serve).await;
        until_routed(5);
        stays(&first);
        cluster.delete(&first).await;
        until_routed(4);
        let second = ask();
        assert_ne!(second, first, "{dataplane}");
        stays(&second);

        let services = Api::<Service>::default_namespaced(cluster.client.clone());
        let set = async |spec: Value| {
            let patch = Patch::Merge(json!({"spec": spec}));
            services.patch("web", &PatchParams::default(), &patch).await.expect("it is patched");
        };
        set(sticky(1)).await;
        wait_for(&format!("{dataplane}: another pod after the timeout"), LIMIT, || {
            std::thread::sleep(Duration::from_millis(1100));
            (ask() != second).then_some(())
        });
        set(json!({"sessionAffinity": "None", "sessionAffinityConfig": null})).await;
        wait_for(&format!("{dataplane}: one pod after the other"), LIMIT, || (ask() != ask()).then_some(()));
    }
}

#[tokio::test]
async fn link_delay_slows_consumer_traffic() {
    // A delay is correct on average, but its timer may fire a millisecond early.
    let one_way_s = 0.2 - 0.001;
    for dataplane in ["kernel", "userspace"] {
        let cluster = Cluster::start_on(dataplane, config(&json!({"link": {"node-1": "200ms"}}))).await;
        let service = json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 8080}]}});
        let service = create(&cluster, service).await;
        let address = service.spec.and_then(|spec| spec.cluster_ip).expect("an address");
        let url = format!("http://{address}:8080/");
        cluster.pod("web", SERVE_AT_POD_IP).await;
        // Returns the seconds until the connection is established, and until the response begins.
        let times = |spot: &[&str]| {
            let curl = ["--", "curl", "--silent", "--output", "/dev/null", "--max-time", "30", "--write-out"];
            let output =
                cluster.exec(&[spot, &curl, &["%{time_connect} %{time_starttransfer}", &url]].concat());
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let (connected, answered) = said.split_once(' ')?;
            let seconds = |text: &str| text.parse::<f64>().expect("seconds");
            output.status.success().then(|| (seconds(connected), seconds(answered)))
        };
        let node = ["--node", "node-1"];
        let (connected, answered) = wait_for(&format!("{dataplane}: an answer"), LIMIT, || times(&node));
        if dataplane == "userspace" {
            // The relay that the client connects to is on the client's own side of the link.
            assert!(answered >= 2.0 * one_way_s, "{answered}");
            continue;
        }
        assert!(connected >= 2.0 * one_way_s && answered >= 4.0 * one_way_s, "{connected}, {answered}");
        // A pod is another consumer.
        cluster.pod("other", "exec sleep 1000").await;
        let other = ["--pod", "default/other"];
        wait_for("a nearby pod", LIMIT, || times(&other).filter(|(_, answered)| *answered < 2.0 * one_way_s));
    }
}
