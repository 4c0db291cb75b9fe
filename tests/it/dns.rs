//! The cluster's DNS as clients use it: with a pod's own resolver on the kernel dataplane, and with a resolver that
//! caches responses for as long as allowed.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::str::FromStr;
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RData, RecordType};
use serde_json::{Value, json};

use crate::harness::wait_for;
use crate::pods::{PODS, log_with, on, run, shell, wait_for_async};
use crate::termination::lab::{LIMIT, Lab};

const SERVICES: &str = "/api/v1/namespaces/default/services";

/// Creates a server pod with the label `app: web`.
async fn serve(lab: &Lab, name: &str, more: Value) {
    let mut container = json!({
        "name": "app", "image": "rolldrop", "args": ["workload", "--listen", "0.0.0.0:8080"],
        "lifecycle": {"preStop": {"sleep": {"seconds": 300}}},
    });
    for (field, value) in more.as_object().into_iter().flatten() {
        container[field] = value.clone();
    }
    let spec = json!({"terminationGracePeriodSeconds": 300, "containers": [container]});
    lab.create(PODS, &json!({"metadata": {"name": name, "labels": {"app": "web"}}, "spec": spec})).await;
}

/// Creates a Service for those servers.
async fn service(lab: &Lab, name: &str, more: Value) {
    let mut spec = json!({"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]});
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    lab.create(SERVICES, &json!({"metadata": {"name": name}, "spec": spec})).await;
}

/// Returns the address of a running pod.
async fn address(lab: &Lab, pod: &str) -> String {
    let found = |seen: &[crate::termination::lab::Seen]| {
        let mut own = seen.iter().filter(|seen| seen.kind() == "Pod" && seen.name() == pod);
        own.find_map(|seen| seen.object["status"]["podIP"].as_str().map(str::to_owned))
    };
    lab.until("default", "the address of a pod", found).await
}

/// A resolver that queries again only when its last response has expired.
#[derive(Clone)]
struct Resolver {
    server: SocketAddr,
    name: Name,
    kept: Vec<Ipv4Addr>,
    expires: Instant,
}

impl Resolver {
    fn addresses(&mut self) -> &[Ipv4Addr] {
        if self.kept.is_empty() || Instant::now() >= self.expires {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
            socket.set_read_timeout(Some(LIMIT)).expect("a limit");
            let mut question = Message::query();
            question.add_query(Query::query(self.name.clone(), RecordType::A));
            let asked = Instant::now();
            socket.send_to(&question.to_vec().expect("a question"), self.server).expect("it is sent");
            let mut answer = [0; 1500];
            let length = socket.recv(&mut answer).expect("a response");
            let answer = Message::from_vec(&answer[..length]).expect("a DNS response").answers;
            let ttl = answer.iter().map(|record| record.ttl).min().unwrap_or(0);
            self.kept = answer
                .iter()
                .filter_map(|record| match &record.data {
                    RData::A(address) => Some(address.0),
                    _ => None,
                })
                .collect();
            self.kept.sort_unstable();
            self.expires = asked + Duration::from_secs(ttl.into());
        }
        &self.kept
    }
}

/// Returns true if a request to a server succeeds.
fn is_served(address: Ipv4Addr) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect((address, 8080))?;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.starts_with("HTTP/1.1 200"))
    };
    ask().unwrap_or(false)
}

#[test]
fn stale_dns_cache_misleads_client() {
    on("userspace", async |lab| {
        service(&lab, "web", json!({"clusterIP": "None", "ports": [{"port": 8080}]})).await;
        let bound = json!({
            "args": ["workload", "--listen", "$(POD_IP):8080"], "lifecycle": null,
            "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
            "readinessProbe": {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1},
        });
        for name in ["web-1", "web-2"] {
            serve(&lab, name, bound.clone()).await;
        }
        let slices = "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices";
        let dns = lab.call("GET", &format!("{slices}/kube-dns"), None).await.body;
        let ip = dns["endpoints"][0]["addresses"][0].as_str().expect("an address");
        let ip: Ipv4Addr = ip.parse().expect("IPv4");
        let port = dns["ports"][0]["port"].as_u64().expect("a port");
        let server = SocketAddr::from((ip, u16::try_from(port).expect("a port")));
        let name = Name::from_str("web.default.svc.cluster.local.").expect("a name");
        let mut resolver = Resolver { server, name, kept: Vec::new(), expires: Instant::now() };
        let begin = Instant::now();
        while resolver.addresses().len() < 2 {
            assert!(begin.elapsed() < LIMIT, "two ready pods");
            resolver.kept.clear();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let gone: Ipv4Addr = address(&lab, "web-1").await.parse().expect("an address");

        // The resolver gets a fresh response, which the deletion makes wrong immediately.
        resolver.kept.clear();
        let asked = Instant::now();
        let both = resolver.addresses().to_vec();
        let told = resolver.expires;
        assert!(both.len() == 2 && both.contains(&gone), "{both:?}");
        assert_eq!((told - asked).as_secs(), 5, "the TTL of CoreDNS");
        lab.call("DELETE", &format!("{PODS}/web-1"), None).await;
        // The client uses the cached address until a request to it is seen to fail.
        wait_for("a failure with the cached address", LIMIT, || {
            let failed = both.iter().copied().find(|address| !is_served(*address));
            failed.inspect(|failed| assert_eq!(*failed, gone))
        });
        // Other clients already get responses without that address.
        let mut other = resolver.clone();
        wait_for("responses without the deleted pod", LIMIT, || {
            other.kept.clear();
            (!other.addresses().contains(&gone)).then_some(())
        });
        tokio::time::sleep_until(told.into()).await;
        for _ in 0..20 {
            let addresses = resolver.addresses().to_vec();
            assert!(resolver.expires != told && !addresses.is_empty(), "it queries again");
            for address in addresses {
                assert!(is_served(address) && address != gone, "{address} after querying again");
            }
        }
    });
}

/// Tests the same on the kernel dataplane, where the client is a pod.
#[test]
fn stale_dns_cache_misleads_pod() {
    on("kernel", async |lab| {
        service(&lab, "web", json!({"clusterIP": "None", "ports": [{"port": 8080}]})).await;
        for name in ["web-1", "web-2"] {
            serve(&lab, name, json!({"lifecycle": null})).await;
        }
        let (gone, left) = (address(&lab, "web-1").await, address(&lab, "web-2").await);
        // The client keeps its first address until a request to it fails.
        let script = "\
            failed=\n\
            addresses() { getent ahostsv4 web | cut -d' ' -f1 | sort -u; }\n\
            until [ $(addresses | wc -l) = 2 ]; do sleep 0.1; done\n\
            while :; do\n\
                kept=$(addresses); echo asked; until=$(($(date +%s) + 5))\n\
                while [ -z \"$failed\" ] || [ $(date +%s) -lt $until ]; do\n\
                    for a in $kept; do\n\
                        curl -s -o /dev/null -m 0.5 http://$a:8080/ && echo \"[$a] served\" || {\n\
                            echo \"[$a] failed\"; failed=yes\n\
                        }\n\
                    done\n\
                    sleep 0.1\n\
                done\n\
            done";
        let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [shell("app", script)]});
        run(&lab, "asker", spec).await;
        log_with(&lab, "asker", "app", &format!("[{gone}] served"));
        lab.call("DELETE", &format!("{PODS}/web-1"), None).await;
        // The client fails with the cached address, and no longer fails after querying again.
        log_with(&lab, "asker", "app", &format!("[{gone}] failed"));
        wait_for("responses without the deleted pod", LIMIT, || {
            let log = log_with(&lab, "asker", "app", "asked");
            let last = log.rsplit("asked\n").next()?;
            (last.contains(&format!("[{left}] served")) && !last.contains(&gone)).then_some(())
        });
    });
}

#[test]
fn curl_in_pod_resolves_service_name() {
    on("kernel", async |lab| {
        service(&lab, "front", json!({})).await;
        serve(&lab, "web-1", json!({})).await;
        let script = "until curl -sf -o /dev/null -m 2 http://front/; do sleep 0.1; done; \
                      curl -sf -o /dev/null -m 2 http://front.default.svc.cluster.local/ && echo reached; \
                      sleep 1000";
        let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [shell("app", script)]});
        run(&lab, "asker", spec).await;
        log_with(&lab, "asker", "app", "reached");
    });
}

#[test]
fn headless_service_resolves_ready_endpoints() {
    on("kernel", async |lab| {
        service(&lab, "web", json!({"clusterIP": "None", "ports": [{"port": 8080}]})).await;
        for name in ["web-1", "web-2"] {
            serve(&lab, name, json!({})).await;
        }
        let never = json!({"exec": {"command": ["false"]}, "periodSeconds": 1});
        serve(&lab, "unready", json!({"readinessProbe": never})).await;
        let unready = address(&lab, "unready").await;
        let (first, second) = (address(&lab, "web-1").await, address(&lab, "web-2").await);

        let script = "while :; do echo \"[$(getent ahostsv4 web | cut -d' ' -f1 | sort -u | tr '\\n' ' ')]\"; \
                      sleep 0.1; done";
        let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [shell("app", script)]});
        run(&lab, "asker", spec).await;
        let mut both = [first.as_str(), second.as_str()];
        both.sort_unstable();
        let both = format!("[{} {} ]\n", both[0], both[1]);
        log_with(&lab, "asker", "app", &both);

        // The pod's termination outlasts the test, and meanwhile the pod disappears from the responses.
        lab.call("DELETE", &format!("{PODS}/web-1"), None).await;
        let log = wait_for("only the other pod", LIMIT, || {
            let log = log_with(&lab, "asker", "app", &both);
            let since = log.rsplit(&both).next()?;
            since.contains(&format!("[{second} ]\n")).then_some(log)
        });
        let pod = lab.call("GET", &format!("{PODS}/web-1"), None).await;
        assert!(pod.body["metadata"]["deletionTimestamp"].is_string(), "{}", pod.body);
        assert_eq!(pod.body["status"]["phase"], "Running");
        assert!(!log.contains(&format!("{unready} ")), "{log}");
    });
}

#[test]
fn stateful_set_pod_keeps_name_but_not_address() {
    on("kernel", async |lab| {
        service(&lab, "web", json!({"clusterIP": "None", "ports": [{"port": 8080}]})).await;
        let script = "echo \"[$HOSTNAME]\"; echo \"$(uname -n) at $(getent ahostsv4 $(uname -n) | cut -d' ' -f1 | sort -u)\"; \
                      sleep 1000";
        let containers = [shell("app", script)];
        let spec = json!({
            "replicas": 2, "serviceName": "web", "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"terminationGracePeriodSeconds": 1, "containers": containers},
            },
        });
        let sets = "/apis/apps/v1/namespaces/default/statefulsets";
        lab.create(sets, &json!({"metadata": {"name": "web"}, "spec": spec})).await;
        let before = address(&lab, "web-1").await;
        log_with(&lab, "web-1", "app", "[web-1]\n");
        // The host has the pod's name, and the name resolves to the pod.
        log_with(&lab, "web-1", "app", &format!("web-1 at {before}\n"));

        let script = "while :; do echo \"[$(getent ahostsv4 web-1.web.default.svc.cluster.local | cut -d' ' -f1 | \
                      sort -u)]\"; sleep 0.1; done";
        let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [shell("app", script)]});
        run(&lab, "asker", spec).await;
        log_with(&lab, "asker", "app", &format!("[{before}]\n"));
        lab.call("DELETE", &format!("{PODS}/web-1"), None).await;
        let address_now = async || {
            let pod = lab.call("GET", &format!("{PODS}/web-1"), None).await.body;
            pod["status"]["podIP"].as_str().unwrap_or_default().to_owned()
        };
        wait_for_async(async || ![before.as_str(), ""].contains(&&*address_now().await)).await;
        let after = address_now().await;
        log_with(&lab, "asker", "app", &format!("[{after}]\n"));
    });
}
