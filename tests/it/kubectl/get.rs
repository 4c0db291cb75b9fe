//! `kubectl get` in all its forms, and API discovery.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use super::{Kubectl, pod, rows};

#[test]
fn get_tables_match_kubernetes_columns() {
    let kubectl = Kubectl::in_namespace("get");
    kubectl.run_web(2);
    kubectl.ok("expose deployment web --port 80 --target-port 8080");
    let header = |args: &str| rows(&kubectl.until(args, |table| !table.is_empty()))[0].join(" ");
    assert_eq!(header("get pods"), "NAME READY STATUS RESTARTS AGE");
    assert_eq!(
        header("get pods -o wide"),
        "NAME READY STATUS RESTARTS AGE IP NODE NOMINATED NODE READINESS GATES"
    );
    assert_eq!(header("get deployments"), "NAME READY UP-TO-DATE AVAILABLE AGE");
    assert_eq!(
        header("get deploy -o wide"),
        "NAME READY UP-TO-DATE AVAILABLE AGE CONTAINERS IMAGES SELECTOR"
    );
    assert_eq!(header("get rs"), "NAME DESIRED CURRENT READY AGE");
    assert_eq!(header("get svc"), "NAME TYPE CLUSTER-IP EXTERNAL-IP PORT(S) AGE");
    assert_eq!(header("get endpointslices"), "NAME ADDRESSTYPE PORTS ENDPOINTS AGE");
    assert_eq!(header("get nodes"), "NAME STATUS ROLES AGE VERSION");
    assert_eq!(header("get namespaces"), "NAME STATUS AGE");
    assert_eq!(header("get serviceaccounts"), "NAME AGE");
    assert_eq!(header("get clusterrolebindings"), "NAME AGE");
    assert_eq!(header("get events"), "LAST SEEN TYPE REASON OBJECT MESSAGE");

    let deployments = kubectl.ok("get deploy --no-headers");
    assert_eq!(rows(&deployments)[0][..4], ["web", "2/2", "2", "2"], "{deployments}");
    let pods = kubectl.ok("get pods --no-headers");
    assert!(rows(&pods).iter().all(|row| row[1..4] == ["1/1", "Running", "0"]), "{pods}");
    let services = kubectl.ok("get svc web --no-headers");
    assert_eq!(rows(&services)[0][1], "ClusterIP");
    assert_eq!(rows(&services)[0][3..5], ["<none>", "80/TCP"]);
    let all = kubectl.ok("get all -o name");
    for kind in ["pod/", "service/", "deployment.apps/", "replicaset.apps/"] {
        assert!(all.contains(kind), "{all}");
    }
}

#[test]
fn get_shows_familiar_pod_status() {
    let kubectl = Kubectl::in_namespace("get");
    kubectl.apply(&pod("done", "exit 0"));
    kubectl.apply(&pod("broken", "exit 3"));
    kubectl.apply(&pod("slow", "trap '' TERM; while :; do sleep 1; done"));
    kubectl.apply(&pod("crash", "exit 1").replace("restartPolicy: Never", "restartPolicy: Always"));
    let shows = |name: &str, status: &str| {
        kubectl.until(&format!("get pod {name} --no-headers"), |row| rows(row)[0][2] == status);
    };
    shows("done", "Completed");
    shows("broken", "Error");
    shows("crash", "CrashLoopBackOff");
    let restarts = kubectl.until("get pod crash --no-headers", |row| row.contains(" ago)"));
    assert!(rows(&restarts)[0][4].starts_with('('), "{restarts}");
    shows("slow", "Running");
    kubectl.ok("delete pod slow --wait=false");
    shows("slow", "Terminating");
    kubectl.ok("delete pod slow --force --grace-period=0 --wait=false");
}

#[test]
fn get_supports_every_output_format() {
    let kubectl = Kubectl::in_namespace("get");
    kubectl.run_web(1);
    assert_eq!(kubectl.ok("get deployment web -o name"), "deployment.apps/web\n");
    let json: serde_json::Value = serde_json::from_str(&kubectl.ok("get deployment web -o json")).unwrap();
    assert_eq!((json["kind"].as_str(), json["spec"]["replicas"].as_i64()), (Some("Deployment"), Some(1)));
    let yaml = kubectl.ok("get deployment web -o yaml");
    assert!(yaml.starts_with("apiVersion: apps/v1\nkind: Deployment\nmetadata:\n"), "{yaml}");
    let list: serde_json::Value = serde_json::from_str(&kubectl.ok("get pods -o json")).unwrap();
    assert_eq!((list["kind"].as_str(), list["items"][0]["kind"].as_str()), (Some("List"), Some("Pod")));
    assert_eq!(kubectl.field("pods", ".items[*].status.phase"), "Running");
    let columns =
        kubectl.ok("get pods -o custom-columns=PHASE:.status.phase,IMAGE:.spec.containers[0].image");
    assert_eq!(rows(&columns), [["PHASE", "IMAGE"], ["Running", "host/sleep:1"]]);
    assert!(kubectl.ok("get pods --show-labels").contains("app=web,pod-template-hash="));
    let sorted = kubectl.ok("get events --sort-by=.metadata.creationTimestamp -o name");
    assert!(sorted.starts_with("event/"), "{sorted}");
}

#[test]
fn selectors_filter_listed_pods() {
    let kubectl = Kubectl::in_namespace("get");
    kubectl.run_web(1);
    kubectl.apply(&pod("done", "exit 0"));
    kubectl.ok("wait pod/done --for=jsonpath={.status.phase}=Succeeded --timeout=300s");
    assert_eq!(kubectl.ok("get pods -l app=done -o name"), "pod/done\n");
    assert_eq!(kubectl.ok("get pods -l app!=web -o name"), "pod/done\n");
    assert_eq!(kubectl.ok("get pods --field-selector status.phase=Succeeded -o name"), "pod/done\n");
    assert_eq!(kubectl.ok("get pods --field-selector metadata.name=done -o name"), "pod/done\n");
    let node = kubectl.field("pod/done", ".spec.nodeName");
    assert!(
        kubectl.ok(&format!("get pods --field-selector spec.nodeName={node} -o name")).contains("pod/done")
    );
    let refused = kubectl.fails("get pods --field-selector spec.hostname=x");
    assert!(refused.contains("field label not supported: spec.hostname"), "{refused}");
    let events = kubectl.ok("get events --field-selector involvedObject.name=done,reason=Started -o name");
    assert_eq!(events.lines().count(), 1, "{events}");
    let everywhere = kubectl.ok("get pods -A -l app=done --no-headers");
    assert!(rows(&everywhere).iter().any(|row| row[..2] == [kubectl.namespace(), "done"]), "{everywhere}");
    let deployments = kubectl.ok("get pods -l tier=none");
    assert_eq!(deployments, "");
}

#[test]
fn get_reports_missing_objects_and_kinds() {
    let kubectl = Kubectl::in_namespace("get");
    assert_eq!(kubectl.fails("get pod nosuch"), "Error from server (NotFound): pods \"nosuch\" not found\n");
    let unknown = kubectl.fails("get things");
    assert_eq!(unknown, "error: the server doesn't have a resource type \"things\"\n");
    let ran = kubectl.run("get deployments");
    assert_eq!(ran.stderr(), format!("No resources found in {} namespace.\n", kubectl.namespace()));
}

#[test]
fn get_watch_prints_changed_rows() {
    let kubectl = Kubectl::in_namespace("get");
    kubectl.apply(&pod("first", "sleep 1000"));
    let mut command = kubectl.command("get pods -w --no-headers");
    let mut watch = command.stdout(Stdio::piped()).spawn().expect("kubectl starts");
    let mut lines =
        BufReader::new(watch.stdout.take().expect("its stdout")).lines().map(|line| line.expect("a line"));
    // Once the watch has shown a pod, it misses no event of the next pod.
    assert!(lines.next().expect("a row").starts_with("first"));
    kubectl.apply(&pod("short", "sleep 1"));
    let mut seen = Vec::new();
    for line in lines.filter(|line| line.starts_with("short")) {
        seen.push(rows(&line)[0][2].to_owned());
        if line.contains("Completed") {
            break;
        }
    }
    watch.kill().expect("it still runs");
    watch.wait().expect("an exit status");
    seen.dedup();
    assert_eq!(seen, ["Pending", "ContainerCreating", "Running", "Completed"]);
}

#[test]
fn discovery_lists_resources_and_versions() {
    let kubectl = Kubectl::in_namespace("get");
    let resources = kubectl.ok("api-resources --no-headers");
    let names: Vec<_> = rows(&resources).iter().map(|row| row[0]).collect();
    for name in ["pods", "services", "deployments", "jobs", "poddisruptionbudgets", "endpointslices"] {
        assert!(names.contains(&name), "{resources}");
    }
    let short = kubectl.ok("api-resources --api-group=apps --no-headers");
    let deployments = ["deployments", "deploy", "apps/v1", "true", "Deployment"];
    assert!(rows(&short).iter().any(|row| *row == deployments), "{short}");
    assert!(kubectl.ok("api-versions").lines().any(|version| version == "policy/v1"));
    assert!(kubectl.ok("version").contains("Server Version: v1.36"));
    assert!(kubectl.ok("cluster-info").contains("Kubernetes control plane"));
    assert_eq!(kubectl.ok("get --raw /readyz"), "ok");
}

#[test]
fn get_prints_rows_of_every_kind() {
    let kubectl = Kubectl::in_namespace("get");
    kubectl.run_web(2);
    kubectl.ok("expose deployment web --port 80 --target-port 8080");
    kubectl.ok("create configmap settings --from-literal=a=1 --from-literal=b=2");
    kubectl.ok("create secret generic hidden --from-literal=a=1");
    kubectl.ok("create serviceaccount robot");
    kubectl.ok("create poddisruptionbudget web --selector=app=web --min-available=1");
    kubectl.ok("create job work --image=host/shell:1 -- sh -c true");
    let row = |line: &str| rows(line)[0].iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let get = |what: &str| row(&kubectl.ok(&format!("get {what} --no-headers")));
    let ips: Vec<_> =
        kubectl.field("pods -l app=web", ".items[*].status.podIP").split(' ').map(str::to_owned).collect();

    kubectl.until("get endpoints web --no-headers", |line| {
        line.matches(":8080").count() == 2 && ips.iter().all(|ip| line.contains(ip.as_str()))
    });
    let slices = "get endpointslices -l kubernetes.io/service-name=web --no-headers";
    let slice = row(&kubectl.until(slices, |line| ips.iter().all(|ip| line.contains(ip.as_str()))));
    assert_eq!(slice[1..3], ["IPv4", "8080"]);
    // These kinds have no table of their own.
    assert_eq!(get("configmap settings")[0], "settings");
    assert_eq!(get("secret hidden")[0], "hidden");
    assert_eq!(get("serviceaccount robot")[0], "robot");
    let budget = "get poddisruptionbudgets web --no-headers";
    let budget = row(&kubectl.until(budget, |line| rows(line)[0][3] == "1"));
    assert_eq!(budget[..4], ["web", "1", "N/A", "1"]);
    let job = row(&kubectl.until("get job work --no-headers", |line| line.contains("Complete")));
    assert_eq!(job[..3], ["work", "Complete", "1/1"]);
    let events = kubectl.ok("get events --no-headers");
    assert!(
        rows(&events).iter().any(|row| row[1..4] == ["Normal", "SuccessfulCreate", "job/work"]),
        "{events}"
    );

    let node = kubectl.ok("get nodes -o wide --no-headers");
    assert!(!node.contains("<unknown>"), "{node}");
    assert!(node.contains("processes://"), "{node}");
}
