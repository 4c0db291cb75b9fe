//! `kubectl logs`.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use super::{Kubectl, SharedCluster, pod};

const TWO: &str = "
apiVersion: v1
kind: Pod
metadata: {name: two}
spec:
  restartPolicy: Never
  containers:
  - {name: first, image: host/shell:1, command: [sh, -c, 'echo from first']}
  - {name: second, image: host/shell:1, command: [sh, -c, 'echo from second']}
";

#[test]
fn logs_select_one_container() {
    let kubectl = Kubectl::in_namespace("logs");
    kubectl.apply(TWO);
    kubectl.ok("wait pod/two --for=jsonpath={.status.phase}=Succeeded --timeout=300s");
    assert_eq!(kubectl.ok("logs two -c second"), "from second\n");
    let ran = kubectl.run("logs two");
    assert_eq!(ran.stdout(), "from first\n", "{ran}");
    assert!(ran.stderr().contains("Defaulted container \"first\" out of: first, second"), "{ran}");
    let all = kubectl.ok("logs two --all-containers --prefix");
    let mut all: Vec<_> = all.lines().collect();
    all.sort_unstable();
    assert_eq!(all, ["[pod/two/first] from first", "[pod/two/second] from second"]);
    let missing = kubectl.fails("logs two -c third");
    assert!(missing.contains("container third is not valid for pod two"), "{missing}");
}

#[test]
fn logs_limit_lines_and_bytes() {
    let kubectl = Kubectl::in_namespace("logs");
    kubectl.apply(&pod("count", "for n in 1 2 3 4 5; do echo $n; done"));
    kubectl.ok("wait pod/count --for=jsonpath={.status.phase}=Succeeded --timeout=300s");
    assert_eq!(kubectl.ok("logs count"), "1\n2\n3\n4\n5\n");
    assert_eq!(kubectl.ok("logs count --tail=2"), "4\n5\n");
    assert_eq!(kubectl.ok("logs count --tail=0"), "");
    assert_eq!(kubectl.ok("logs count --limit-bytes=4"), "1\n2\n");
    let refused = kubectl.fails("logs count --limit-bytes=-1");
    assert!(refused.contains("must be greater than 0"), "{refused}");
}

#[test]
fn logs_filter_lines_by_timestamp() {
    let kubectl = Kubectl::in_namespace("logs");
    // Each line is logged before the next is written, because stdout and stderr are read in parallel. Options that
    // select lines by time use whole seconds.
    let gates =
        ["first", "second"].map(|gate| SharedCluster::get().file(&format!("{}-{gate}", kubectl.namespace())));
    let [first, second] =
        gates.each_ref().map(|gate| format!("while [ ! -e {} ]; do sleep 0.05; done", gate.display()));
    let script =
        format!("echo old; {first}; sleep 1.2; printf new; sleep 0.2; echo er; {second}; echo newest >&2");
    let mut manifest = pod("timed", &script);
    manifest.push_str("  - {name: other, image: host/shell:1, command: [sh, -c, 'echo other']}\n");
    kubectl.apply(&manifest);
    for (gate, last) in gates.iter().zip(["old\n", "newer\n"]) {
        kubectl.until("logs timed -c app", |log| log.ends_with(last));
        std::fs::write(gate, "").expect("a file");
    }
    kubectl.ok("wait pod/timed --for=jsonpath={.status.phase}=Succeeded --timeout=300s");
    let log = kubectl.ok("logs timed -c app --timestamps");
    let lines: Vec<_> = log.lines().map(|line| line.split_once(' ').expect("a time")).collect();
    let times: Vec<jiff::Timestamp> =
        lines.iter().map(|(time, _)| time.parse().expect("a time in RFC 3339")).collect();
    assert!(times.is_sorted() && times[0] < times[1], "{log}");
    assert_eq!(lines.iter().map(|(_, text)| *text).collect::<Vec<_>>(), ["old", "newer", "newest"]);

    let since = format!("logs timed -c app --since-time={}", lines[1].0);
    assert_eq!(kubectl.ok(&since), "newer\nnewest\n");
    assert_eq!(kubectl.ok(&format!("{since} --tail=1")), "newest\n");
    assert_eq!(kubectl.ok("logs timed -c app --since-time=2999-01-01T00:00:00Z"), "");
    assert_eq!(kubectl.ok("logs timed -c app --since=1h"), "old\nnewer\nnewest\n");
    let raw = format!("get --raw /api/v1/namespaces/{}/pods/timed/log?container=app", kubectl.namespace());
    let both = kubectl.fails(&format!("{raw}&sinceSeconds=5&sinceTime=2026-01-01T00:00:00Z"));
    assert!(both.contains("at most one of `sinceTime` or `sinceSeconds` may be specified"), "{both}");

    let all = kubectl.ok("logs -l app=timed --all-containers --prefix --timestamps");
    let of = |container: &str| {
        let prefix = format!("[pod/timed/{container}] 2");
        all.lines().filter(|line| line.starts_with(&prefix)).count()
    };
    assert_eq!((of("app"), of("other"), all.lines().count()), (3, 1, 4), "{all}");
}

#[test]
fn log_follower_survives_rotation() {
    const LINES: usize = 100_000;
    let kubectl = Kubectl::in_namespace("logs");
    let go = SharedCluster::get().file(kubectl.namespace());
    let script = format!(
        "echo 0; while [ ! -e {} ]; do sleep 0.05; done; seq -f '%.0f {}' {LINES}",
        go.display(),
        "x".repeat(100)
    );
    kubectl.apply(&pod("much", &script));
    kubectl.ok("wait pod/much --for=condition=Ready --timeout=300s");
    let mut follow = kubectl.command("logs -f much").stdout(Stdio::piped()).spawn().expect("kubectl starts");
    let lines = BufReader::new(follow.stdout.take().expect("its stdout")).lines();
    let mut numbers = lines.map(|line| {
        let line = line.expect("readable text");
        line.split(' ').next().and_then(|number| number.parse::<usize>().ok()).expect("a number")
    });
    assert_eq!(numbers.next(), Some(0));
    std::fs::write(go, "").expect("a file");
    assert!(numbers.eq(1..=LINES), "every line, once, in order");
    assert!(follow.wait().expect("an exit status").success());
}

#[test]
fn log_follower_streams_until_pod_ends() {
    let kubectl = Kubectl::in_namespace("logs");
    kubectl.apply(&pod("talk", "trap 'echo two; exit 0' TERM; echo one; while :; do sleep 0.1; done"));
    kubectl.ok("wait pod/talk --for=condition=Ready --timeout=300s");
    let mut follow = kubectl.command("logs -f talk").stdout(Stdio::piped()).spawn().expect("kubectl starts");
    let mut lines = BufReader::new(follow.stdout.take().expect("its stdout")).lines();
    assert_eq!(lines.next().expect("a line").expect("readable text"), "one");
    kubectl.ok("delete pod talk --wait=false");
    assert_eq!(lines.next().expect("a line").expect("readable text"), "two");
    assert!(lines.next().is_none());
    assert!(follow.wait().expect("an exit status").success());
}

#[test]
fn workload_logs_come_from_its_pods() {
    let kubectl = Kubectl::in_namespace("logs");
    let web = super::web(2).replace("[sleep, '1000']", "[sh, -c, 'echo up; exec sleep 1000']");
    kubectl.apply(&web);
    kubectl.ok("rollout status deployment web --timeout=300s");
    kubectl.until("logs deployment/web", |text| text == "up\n");
    kubectl.until("logs -l app=web", |text| text == "up\nup\n");
}

#[test]
fn logs_show_previous_container_run() {
    let kubectl = Kubectl::in_namespace("logs");
    let marker = SharedCluster::get().file(kubectl.namespace());
    let script =
        format!("if mkdir {}; then echo first; exit 1; fi; echo second; exec sleep 1000", marker.display());
    kubectl.apply(&pod("again", &script).replace("restartPolicy: Never", "restartPolicy: Always"));
    kubectl.until("logs again --previous", |text| text == "first\n");
    // mkdir writes its error to the other stream, which may be read later.
    kubectl.until("logs again", |text| text.lines().any(|line| line == "second"));
}
