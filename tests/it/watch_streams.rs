//! `rolldrop watch --logs` beside real gateways that carry long responses. The clients' own logs are the ground truth.

use std::time::Duration;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::harness::{LIMIT, tracked, wait_for};
use crate::ingress::{ask_through_traefik, serve, until_only};
use crate::machine::{Meanwhile, figure, measured};
use crate::pods::{PODS, log_of, on_with, run, shell, until_gone};
use crate::termination::lab::Lab;
use crate::watch::{Watching, create_block_of_page, kubeconfig_of_page};

/// Number of streams through each gateway.
const STREAMS: usize = 8;

pub(crate) async fn address_of(lab: &Lab, pod: &str) -> String {
    loop {
        let found = lab.call("GET", &format!("{PODS}/{pod}"), None).await;
        if let Some(address) = found.body["status"]["podIP"].as_str() {
            return address.to_owned();
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Runs HAProxy in front of these servers, and returns its address. It logs as docs/access-logs.md advises.
pub(crate) async fn balance(lab: &Lab, servers: &str) -> String {
    let page = tracked("docs/access-logs.md");
    let format = page.split("```haproxy\n").nth(1).and_then(|rest| rest.lines().next()).expect("a format");
    let config = format!(
        "global\n log stdout format raw local0 info\ndefaults\n mode http\n log global\n retries 0\n timeout connect 1s\n \
         timeout client 600s\n timeout server 600s\nfrontend edge\n bind :8000\n {format}\n default_backend web\n\
         backend web\n{servers}\n"
    );
    let file = lab.dir().join("haproxy.cfg");
    std::fs::write(&file, config).expect("a file");
    let haproxy = json!({"name": "haproxy", "image": "host", "command": ["haproxy", "-db", "-f", file]});
    run(lab, "haproxy", json!({"terminationGracePeriodSeconds": 1, "containers": [haproxy]})).await;
    address_of(lab, "haproxy").await
}

/// Returns a container that opens streams through a gateway. It logs the head of each, and at its end curl's exit status
/// and the pod.
fn opens_streams(name: &str, gateway: &str) -> Value {
    let stream = "stream?bytes=2000&ms=600000";
    let told = "-D - -w 'ended %{exitcode} %header{rolldrop-pod}\\n'";
    let script = format!(
        "until curl -sf -o /dev/null http://{gateway}:8000/; do sleep 0.1; done
         for _ in $(seq {STREAMS}); do
           curl -s -o /dev/null {told} 'http://{gateway}:8000/{stream}' & sleep 0.05
         done; wait; sleep 1000"
    );
    shell(name, &script)
}

fn log(lab: &Lab, container: &str) -> String {
    log_of(lab, "streams", container).unwrap_or_default()
}

/// Returns the number of streams that began at a pod.
fn begun_at(lab: &Lab, container: &str, pod: &str) -> usize {
    let is_of = |line: &str| line.to_ascii_lowercase().trim_end() == format!("rolldrop-pod: {pod}");
    log(lab, container).lines().filter(|line| is_of(line)).count()
}

/// Waits until all streams at a pod have ended. Returns their number; all must have been cut.
fn cut_at(lab: &Lab, container: &str, pod: &str) -> usize {
    let begun = begun_at(lab, container, pod);
    assert!(begun > 0, "{}", log(lab, container));
    wait_for("the streams to end", LIMIT, || {
        let log = log(lab, container);
        let ended = log.lines().filter(|line| line.starts_with("ended ")).collect::<Vec<_>>();
        (ended.len() >= begun).then(|| {
            // 18: the response is incomplete.
            assert!(ended.iter().all(|line| *line == format!("ended 18 {pod}")), "{log}");
            ended.len()
        })
    })
}

fn traffic_of(watch: &mut Watching, pod: &str) -> Value {
    let output = watch.end();
    let all = watch.lines("termination");
    all.into_iter().find(|line| line["pod"] == *pod).unwrap_or_else(|| panic!("no {pod}: {output}"))["traffic"]
        .clone()
}

/// Returns the ends of the streams that a server cut off, by HAProxy's log: when each request came, and how long it took.
fn ends_of_cut_streams(log: &str) -> Vec<Timestamp> {
    let end = |line: &str| {
        let (date, rest) = line.split_once('[')?.1.split_once(']')?;
        let took_ms: i64 = rest.split_whitespace().nth(2)?.rsplit('/').next()?.parse().ok()?;
        let came =
            DateTime::strptime("%d/%b/%Y:%H:%M:%S%.f", date).ok()?.to_zoned(TimeZone::system()).ok()?;
        Some(came.timestamp() + SignedDuration::from_millis(took_ms))
    };
    log.lines().filter(|line| line.contains(" SD-- ")).map(|line| end(line).expect("a time")).collect()
}

async fn cut_streams_behind_gateways(lab: Lab) {
    let meanwhile = Meanwhile::begins();
    let pods = ["exits", "stays"];
    serve(&lab, pods[0], Value::Null).await;
    serve(&lab, pods[1], Value::Null).await;
    ask_through_traefik(&lab, &["--accesslog=true", "--accesslog.format=json"]).await;
    until_only(&lab, 0, &pods).await;
    // Traefik chooses pods in turn. With other requests in between, all streams might be at one pod.
    lab.call("DELETE", &format!("{PODS}/client"), None).await;
    until_gone(&lab, "client").await;
    // HAProxy keeps using an exited pod for at least 0.6 s. It gets other requests in between, but prefers the pod
    // with fewer streams.
    let mut servers =
        " balance leastconn\n option httpchk GET /readyz\n default-server check inter 300ms fall 3"
            .to_owned();
    for pod in pods {
        servers += &format!("\n server {pod} {}:8080", address_of(&lab, pod).await);
    }
    let (haproxy, traefik) = (balance(&lab, &servers).await, address_of(&lab, "traefik").await);
    let ask = format!(
        "while :; do curl -s -o /dev/null -w '%{{http_code}} %header{{rolldrop-pod}}\\n' http://{haproxy}:8000/; \
         sleep 0.03; done"
    );
    let clients =
        [opens_streams("haproxy", &haproxy), opens_streams("traefik", &traefik), shell("asks", &ask)];
    run(&lab, "streams", json!({"terminationGracePeriodSeconds": 1, "containers": clients})).await;
    for gateway in ["haproxy", "traefik"] {
        wait_for("all streams", LIMIT, || {
            let begun: usize = pods.iter().map(|pod| begun_at(&lab, gateway, pod)).sum();
            (begun == STREAMS).then_some(())
        });
    }
    let kubeconfig = kubeconfig_of_page(&lab).await;
    create_block_of_page(&lab, 2).await;
    // These watches begin after the streams.
    let begin = |log: &str, format: &str| {
        Watching::begin(&["-n", "default", "--logs", log, "--format", format], &kubeconfig)
    };
    let mut by_haproxy = begin("default/pod/haproxy=haproxy", "json");
    let mut by_traefik = begin("default/pod/traefik=traefik-json", "json");
    let mut text = begin("default/pod/haproxy=haproxy", "text");
    let before = log(&lab, "asks").lines().count();
    lab.call("DELETE", &format!("{PODS}/exits"), None).await;
    let deleted = Timestamp::now();
    let cut = ["haproxy", "traefik"].map(|gateway| cut_at(&lab, gateway, "exits"));
    let answers = wait_for("only the other pod to respond", LIMIT, || {
        let log = log(&lab, "asks");
        let seen: Vec<String> = log.lines().skip(before).map(str::to_owned).collect();
        let is_last = seen.len() > 60 && seen.iter().rev().take(30).all(|line| line == "200 stays");
        is_last.then_some(seen)
    });
    let failed = answers.iter().filter(|line| !line.starts_with("200 ")).count();
    assert!(failed > 0, "{answers:?}");
    until_gone(&lab, "exits").await;
    // Facts that explain a termination may still arrive on other watches.
    tokio::time::sleep(Duration::from_secs(3)).await;
    // On a busy machine, HAProxy's timer falls behind the clock, by up to a second, and it may skip a line.
    let by_log = ends_of_cut_streams(&log_of(&lab, "haproxy", "haproxy").unwrap_or_default());
    let is_complete = by_log.len() == cut[0] && by_log.iter().all(|end| *end >= deleted);
    figure(meanwhile.taken(), is_complete, || format!("{} streams cut after {deleted}: {by_log:?}", cut[0]));
    let exactly = |n: usize| json!({"at_least": n, "at_most": n, "estimate": n as f64});
    let traffic = traffic_of(&mut by_haproxy, "exits");
    assert_eq!(traffic["streams_cut"], exactly(cut[0]), "{traffic:#}");
    assert_eq!(traffic["lost"], exactly(cut[0] + failed), "{traffic:#}\n{answers:?}");
    let traffic = traffic_of(&mut by_traefik, "exits");
    assert_eq!(traffic["streams_cut"], Value::Null, "{traffic:#}");
    assert!(traffic["not_observable"].as_u64().expect("a number") >= cut[1] as u64, "{traffic:#}");

    let text = text.end();
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        format!("; streams cut: {};", cut[0]),
        format!("Streams cut among them: {}.", cut[0]),
        "A preStop sleep saves only streams that end before it does".to_owned(),
    ] {
        assert!(words.contains(&part), "{part}\n{text}");
    }
    // The docs show this output as an example.
    println!("{text}");
}

#[test]
fn gateway_log_shows_streams_cut() {
    measured(|| {
        let latencies = json!({"deletionToSlice": "1s", "terminatedToSlice": "1s"});
        on_with("kernel", json!({"latencies": latencies}), cut_streams_behind_gateways);
    });
}
