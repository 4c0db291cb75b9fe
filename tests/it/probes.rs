//! Probes that need a special server.

use serde_json::{Value, json};

use crate::pods::{PODS, on, run};
use crate::termination::lab::Seen;

/// A minimal gRPC server. It reports its service `shop` as serving once a file exists.
const HEALTH_SERVER: &str = r"
import os, socket, sys, threading

def serve(connection):
    stream = connection.makefile('rb')
    stream.read(24)
    def send(kind, flags, number, body):
        head = len(body).to_bytes(3, 'big') + bytes([kind, flags]) + number.to_bytes(4, 'big')
        connection.sendall(head + body)
    send(4, 0, 0, b'')
    while head := stream.read(9):
        body = stream.read(int.from_bytes(head[:3], 'big'))
        kind, flags, number = head[3], head[4], int.from_bytes(head[5:], 'big')
        if kind in (4, 6) and not flags & 1:
            send(kind, 1, 0, body if kind == 6 else b'')
        if kind == 0:
            serving = body[5:] == b'\n\x04shop' and os.path.exists(sys.argv[1])
            send(1, 4, number, b'\x88')
            send(0, 0, number, b'\0\0\0\0\2\x08' + (b'\1' if serving else b'\2'))
            send(1, 5, number, b'\0\x0bgrpc-status\x010')

server = socket.create_server((os.environ['POD_IP'], 9090))
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
";

/// Returns the messages of events with this reason.
fn messages(seen: &[Seen], reason: &str) -> Vec<String> {
    let events = seen.iter().filter(|seen| seen.kind() == "Event" && seen.object["reason"] == *reason);
    events.map(|seen| seen.object["message"].as_str().unwrap_or_default().to_owned()).collect()
}

fn restarts(pod: &Value) -> i64 {
    pod["status"]["containerStatuses"][0]["restartCount"].as_i64().unwrap_or(0)
}

#[test]
fn grpc_probes_follow_service_health() {
    for dataplane in ["userspace", "kernel"] {
        on(dataplane, async |lab| {
            let file = lab.dir().join("serving");
            let probe = |service: &str, failures: u32| json!({"grpc": {"port": 9090, "service": service}, "periodSeconds": 1, "failureThreshold": failures});
            let app = json!({
                "name": "app", "image": "host", "command": ["python3", "-c", HEALTH_SERVER, file],
                "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                "startupProbe": {"tcpSocket": {"port": 9090}, "periodSeconds": 1, "failureThreshold": 60},
                "readinessProbe": probe("shop", 1),
                "livenessProbe": probe("shop", 1000),
            });
            run(&lab, "shop", json!({"terminationGracePeriodSeconds": 1, "containers": [app]})).await;
            let expected = "Readiness probe failed: service unhealthy (responded with \"NOT_SERVING\")";
            let unhealthy =
                |seen: &[Seen]| messages(seen, "Unhealthy").iter().any(|why| why == expected).then_some(());
            lab.until("default", "an unhealthy service", unhealthy).await;
            let pod = lab.call("GET", &format!("{PODS}/shop"), None).await.body;
            assert_eq!(pod["status"]["containerStatuses"][0]["ready"], false);

            std::fs::write(&file, "").expect("a file");
            let ready = |seen: &[Seen]| {
                let mut pods = seen.iter().filter(|seen| seen.kind() == "Pod" && seen.name() == "shop");
                pods.any(|pod| pod.object["status"]["containerStatuses"][0]["ready"] == true).then_some(())
            };
            lab.until("default", "a ready pod", ready).await;

            // The service is unknown, so the liveness probe restarts the container.
            let mut stranger = pod["spec"]["containers"][0].clone();
            stranger["livenessProbe"] = probe("bank", 1);
            stranger["volumeMounts"] = Value::Null;
            run(&lab, "bank", json!({"terminationGracePeriodSeconds": 1, "containers": [stranger]})).await;
            let restarted = |seen: &[Seen]| {
                let mut pods = seen.iter().filter(|seen| seen.kind() == "Pod" && seen.name() == "bank");
                pods.any(|pod| restarts(&pod.object) > 0).then(|| messages(seen, "Killing"))
            };
            let killed = lab.until("default", "a restart", restarted).await;
            assert!(
                killed.contains(&"Container app failed liveness probe, will be restarted".to_owned()),
                "{killed:?}"
            );
        });
    }
}
