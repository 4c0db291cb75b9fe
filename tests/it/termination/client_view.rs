//! Pod termination on the kernel dataplane as a client sees it. Each kind of failure is caused by the behaviour of the
//! pod's process. Tests in which consumers matter are in `kernel`, `stale_flows` and `ingress`.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rolldrop_record::{Outcome, RequestRow, RunDir};
use serde_json::{Value, json};

use super::lab::{LIMIT, Lab, Seen};
use crate::harness::wait_for;
use crate::pods::{PODS, log_with, on, on_with, run, shell};

/// A server, and a client that sends requests to it from the node.
struct Pair<'a> {
    lab: &'a Lab,
    name: &'static str,
    client: Child,
    out: PathBuf,
}

fn exec(lab: &Lab, spot: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rolldrop"));
    command.args(["cluster", "exec", "--kubeconfig"]).arg(lab.dir().join("kubeconfig")).args(spot).arg("--");
    command
}

/// Starts a server that first prints its pid, and exits immediately on SIGTERM. Returns its address. Other processes
/// can stop the server, because it is not the first process in a namespace.
async fn serve(lab: &Lab, name: &str) -> String {
    let binary = env!("CARGO_BIN_EXE_rolldrop");
    let script = format!("echo pid $$$$; exec {binary} workload --listen 0.0.0.0:8080 --log -");
    run(lab, name, json!({"shareProcessNamespace": true, "containers": [shell("app", &script)]})).await;
    log_with(lab, name, "app", "listening");
    let found = |seen: &[Seen]| {
        let mut own = seen.iter().filter(|seen| seen.kind() == "Pod" && seen.name() == name);
        own.find_map(|seen| seen.object["status"]["podIP"].as_str().map(str::to_owned))
    };
    lab.until("default", "its address", found).await
}

impl<'a> Pair<'a> {
    async fn start(lab: &'a Lab, name: &'static str, path: &str, load: &[&str]) -> Self {
        let address = serve(lab, name).await;
        Self::ask(lab, name, &format!("http://{address}:8080{path}"), load)
    }

    fn ask(lab: &'a Lab, name: &'static str, url: &str, load: &[&str]) -> Self {
        let out = lab.dir().join(format!("{name}.run"));
        let client = exec(lab, &[])
            .args([env!("CARGO_BIN_EXE_rolldrop"), "load", url, "--warmup", "0s", "--quiet"])
            .args(["--response-timeout", "60s"])
            .args(load)
            .arg("--out")
            .arg(&out)
            .stdout(Stdio::null())
            .spawn()
            .expect("the binary starts");
        Self { lab, name, client, out }
    }

    /// Deletes the pod; returns the outcomes of the client's requests.
    async fn end(mut self, grace: u32) -> Vec<RequestRow> {
        let options = json!({"gracePeriodSeconds": grace});
        self.lab.call("DELETE", &format!("{PODS}/{}", self.name), Some(&options)).await;
        wait_for("the client to exit", LIMIT, || self.client.try_wait().expect("its state"));
        RunDir::open(&self.out).and_then(|run| run.read()).expect("the client's records").requests
    }
}

fn has(rows: &[RequestRow], outcome: Outcome) -> bool {
    rows.iter().any(|row| row.outcome == outcome)
}

#[test]
fn client_outcome_reflects_server_progress() {
    on("kernel", async |lab| {
        // The server had read the request.
        let pair = Pair::start(&lab, "thinking", "/slow?ms=60000", &["-r", "5", "-d", "1s"]).await;
        log_with(&lab, "thinking", "app", "received");
        let rows = pair.end(1).await;
        assert!(has(&rows, Outcome::EofBeforeResponse), "{rows:?}");

        // The server was in the middle of the body.
        let pair =
            Pair::start(&lab, "talking", "/stream?bytes=100000&ms=60000", &["-r", "5", "-d", "1s"]).await;
        log_with(&lab, "talking", "app", "received");
        let rows = pair.end(1).await;
        assert!(has(&rows, Outcome::TruncatedBody), "{rows:?}");

        // The server had served earlier requests on this connection, and had read the next one.
        let kept = ["-r", "5", "-d", "6s", "--connections", "keepalive", "-c", "1"];
        let pair = Pair::start(&lab, "serving", "/slow?ms=1000", &kept).await;
        wait_for("a request after a response", LIMIT, || {
            let log = log_with(&lab, "serving", "app", "answered");
            let count = |what| log.matches(what).count();
            (count("\"received\"") > count("\"answered\"")).then_some(())
        });
        let rows = pair.end(1).await;
        let on_kept = |row: &&RequestRow| row.conn_reused && row.outcome != Outcome::Ok;
        let lost: Vec<_> = rows.iter().filter(on_kept).map(|row| (row.outcome, row.bytes_received)).collect();
        assert_eq!(lost, [(Outcome::EofBeforeResponse, 0)], "{rows:?}");

        // The server had not yet accepted the connection, but the kernel had.
        let address = serve(&lab, "stopped").await;
        let log = log_with(&lab, "stopped", "app", "listening");
        let pid = log.split_whitespace().nth(1).expect("its process id").to_owned();
        let stop = exec(&lab, &["--pod", "default/stopped"])
            .args(["sh", "-c", &format!("kill -STOP {pid}")])
            .status();
        assert!(stop.expect("it starts").success());
        let url = format!("http://{address}:8080/");
        let pair = Pair::ask(&lab, "stopped", &url, &["-r", "5", "-d", "1s"]);
        wait_for("a connection", LIMIT, || {
            let sockets = exec(&lab, &["--pod", "default/stopped"]).args(["cat", "/proc/net/tcp"]).output();
            let sockets = String::from_utf8_lossy(&sockets.expect("it starts").stdout).into_owned();
            // Port 8080, established.
            sockets.lines().any(|line| line.contains(":1F90 ") && line.contains(" 01 ")).then_some(())
        });
        let rows = pair.end(1).await;
        assert!(has(&rows, Outcome::ResetBeforeResponse), "{rows:?}");
    });
}

#[test]
fn client_refusal_precedes_slice_update() {
    let config = json!({"latencies": {"deletionToSlice": "2s", "terminatedToSlice": "2s"}});
    on_with("kernel", config, async |lab| {
        let spec = json!({"selector": {"app": "web"}, "ports": [{"port": 8080}]});
        let service = json!({"metadata": {"name": "web"}, "spec": spec});
        let service = lab.create("/api/v1/namespaces/default/services", &service).await.body;
        let ip = service["spec"]["clusterIP"].as_str().expect("an address");
        serve(&lab, "web").await;
        let label = json!({"metadata": {"labels": {"app": "web"}}});
        assert_eq!(lab.call("PATCH", &format!("{PODS}/web"), Some(&label)).await.status, 200);
        let url = format!("http://{ip}:8080/");
        let succeeds = || {
            let status = exec(&lab, &[]).args(["curl", "-sf", "-o", "/dev/null", "-m", "1", &url]).status();
            status.expect("it starts").success().then_some(())
        };
        wait_for("an answer", LIMIT, succeeds);

        let pair = Pair::ask(&lab, "web", &url, &["-d", "4s", "-r", "50"]);
        wait_for("requests", LIMIT, || {
            (log_with(&lab, "web", "app", "answered").matches("\"answered\"").count() > 10).then_some(())
        });
        let rows = pair.end(30).await;
        let endpoints = |seen: &Seen| seen.object["endpoints"].as_array().cloned().unwrap_or_default();
        let slices = lab.seen("default").into_iter().filter(|seen| seen.kind() == "EndpointSlice");
        let is_late = |seen: &Seen| endpoints(seen).iter().any(|e| e["conditions"]["terminating"] == true);
        let terminating = slices.into_iter().find(is_late).expect("a terminating endpoint").at_ns;
        let refused = rows.iter().filter(|row| row.outcome == Outcome::ConnectRefused);
        let first = refused.filter_map(|row| row.connect_start).map(|at| at.unix_ns()).min();
        assert!(first.is_some_and(|first| first < terminating), "{first:?}, {terminating}: {rows:?}");
    });
}

fn uid(pod: &Value) -> String {
    pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn final_deletion_spares_new_pod_with_same_name() {
    on("userspace", async |lab| {
        let spec =
            json!({"containers": [shell("app", "trap '' TERM; echo up; while :; do sleep 0.1; done")]});
        run(&lab, "web", spec.clone()).await;
        log_with(&lab, "web", "app", "up");
        let path = format!("{PODS}/web");
        let old = uid(&lab.call("DELETE", &path, Some(&json!({"gracePeriodSeconds": 0}))).await.body);
        run(&lab, "web", spec).await;
        let new = uid(&lab.call("GET", &path, None).await.body);
        assert_ne!(old, new);
        // The old container exits 2 s later, and the node agent is then done with it.
        let killed = lab.dir().join("pods").join(format!("default_web_{old}"));
        let held = super::lab::Held::find("trap '' TERM; echo up").await;
        held.ended_ns().await;
        assert!(killed.exists());
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        let now = lab.call("GET", &path, None).await;
        assert_eq!((now.status, uid(&now.body)), (200, new));
        assert!(now.body["metadata"]["deletionTimestamp"].is_null(), "{}", now.body);
    });
}
