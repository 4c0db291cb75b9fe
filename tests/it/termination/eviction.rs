//! Pods that their node's agent evicts, because they take up more storage than they may.

use serde_json::{Value, json};

use super::case::condition;
use super::lab::{LIMIT, Lab, Seen};
use super::services::ready_endpoints;
use crate::harness::wait_for;
use crate::pods::{PODS, on_with, run, shell};

const NAMESPACE: &str = "default";

/// Of a hook that nobody waits for.
const HOOK_S: i64 = 100;

/// A pod of a Deployment, which is evicted after it was told to write too much.
struct Evicted {
    /// What was seen since.
    seen: Vec<Seen>,
    name: String,
    /// What the API says of it at last.
    pod: Value,
    /// When its program wrote that it was asked to end, and when it was last alive.
    term_ns: i64,
    alive_ns: i64,
}

/// Runs a Deployment of one pod whose first container ignores SIGTERM and, once told to, runs
/// `writes`; waits until that pod has ended and another has taken its place.
async fn evict(lab: &Lab, writes: &str, mut spec: Value) -> Evicted {
    let dir = lab.dir().display();
    let script = format!(
        "trap 'echo term $(date +%s%N) >> {dir}/told' TERM
         alive() {{ date +%s%N > {dir}/now; mv {dir}/now {dir}/alive; }}
         until [ -e {dir}/go ]; do sleep 0.1; done
         mkdir {dir}/first || while :; do sleep 1; done
         {writes}
         while :; do alive; sleep 0.1; done"
    );
    let app = &mut spec["containers"][0];
    (app["image"], app["command"]) = (json!("host"), json!(["sh", "-c", script]));
    app["readinessProbe"] = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    app["lifecycle"] = json!({"preStop": {"sleep": {"seconds": HOOK_S}}});
    spec["terminationGracePeriodSeconds"] = json!(2 * HOOK_S);
    let service = json!({
        "metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 8080}]},
    });
    lab.create("/api/v1/namespaces/default/services", &service).await;
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": spec});
    let deployment = json!({
        "metadata": {"name": "web"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template},
    });
    lab.create("/apis/apps/v1/namespaces/default/deployments", &deployment).await;
    let ready = |seen: &[Seen]| ready_endpoints(seen).pop();
    let name = lab.until(NAMESPACE, "a ready endpoint", ready).await;

    let before = lab.seen(NAMESPACE).len();
    std::fs::write(lab.dir().join("go"), "").expect("a file");
    let replaced = |seen: &[Seen]| ready_endpoints(seen).into_iter().find(|ready| *ready != name);
    lab.until(NAMESPACE, "another ready endpoint", replaced).await;
    let pod = lab.call("GET", &format!("/api/v1/namespaces/default/pods/{name}"), None).await;
    assert_eq!(pod.status, 200, "its object stays: {}", pod.body);
    let number = |file: &str| {
        wait_for(file, LIMIT, || {
            let text = std::fs::read_to_string(lab.dir().join(file)).ok()?;
            text.split_whitespace().last()?.parse().ok()
        })
    };
    let (term_ns, alive_ns) = (number("told"), number("alive"));
    Evicted { seen: lab.seen(NAMESPACE).split_off(before), name, pod: pod.body, term_ns, alive_ns }
}

impl Evicted {
    /// When something of the pod, or of an event about it, was first seen.
    #[track_caller]
    fn first_ns(&self, what: &str, is: impl Fn(&Seen) -> bool) -> i64 {
        let about_it =
            |seen: &&Seen| seen.name() == self.name || seen.object["involvedObject"]["name"] == *self.name;
        let found = self.seen.iter().filter(about_it).find(|seen| is(seen));
        found.unwrap_or_else(|| panic!("{what}: not seen: {:#?}", self.seen)).at_ns
    }

    /// It went as every eviction by a kubelet does, and for this reason.
    #[track_caller]
    fn check(&self, message: &str) {
        let status = &self.pod["status"];
        assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("Evicted")));
        assert_eq!(status["message"], message);
        assert_eq!(status["containerStatuses"][0]["state"]["terminated"]["exitCode"], 137, "{status:#}");
        // The condition is for those that a node under pressure evicts.
        assert_eq!(condition(&self.pod, "DisruptionTarget"), None);
        let event = |reason: &'static str| move |seen: &Seen| seen.object["reason"] == reason;
        let evicted = self.first_ns("Evicted", |seen| {
            let object = &seen.object;
            event("Evicted")(seen) && object["type"] == "Warning" && object["message"] == message
        });
        let killing = self.first_ns("Killing", event("Killing"));
        let failed = self.first_ns("its end", |seen| seen.object["status"]["phase"] == "Failed");
        assert!(evicted <= failed && killing <= failed);

        // Its grace period is 1 s, whatever its own is: the hook is cut, and SIGKILL comes 2 s later.
        let ms = |from: i64, to: i64| (to - from) / 1_000_000;
        assert!(ms(killing, self.term_ns) > 500, "SIGTERM {} ms after Killing", ms(killing, self.term_ns));
        assert!(ms(killing, self.term_ns) < HOOK_S * 500, "the hook was waited for");
        assert!(
            ms(self.term_ns, self.alive_ns) > 1000,
            "killed {} ms after SIGTERM",
            ms(self.term_ns, self.alive_ns)
        );
        assert!(ms(self.term_ns, failed) > 1900, "ended {} ms after SIGTERM", ms(self.term_ns, failed));

        // Nothing in the object says that it ends, so its endpoint stays ready until its status does.
        let (mut last, mut is_gone) = (None, false);
        for seen in &self.seen {
            let its_own = seen.kind() == "Pod" && seen.name() == self.name;
            assert!(!its_own || seen.object["metadata"]["deletionTimestamp"].is_null(), "{seen:#?}");
            if seen.kind() != "EndpointSlice" {
                continue;
            }
            let mut endpoints = seen.object["endpoints"].as_array().into_iter().flatten();
            let endpoint = endpoints.find(|endpoint| endpoint["targetRef"]["name"] == *self.name);
            match endpoint {
                Some(endpoint) => {
                    let ready = json!({"ready": true, "serving": true, "terminating": false});
                    assert_eq!(endpoint["conditions"], ready, "{seen:#?}");
                    last = Some(seen.at_ns);
                }
                None if !is_gone => {
                    is_gone = true;
                    // Two watches of one client.
                    assert!(
                        ms(failed, seen.at_ns) > -500,
                        "gone {} ms after its end",
                        ms(failed, seen.at_ns)
                    );
                }
                None => {}
            }
        }
        assert!(is_gone, "the endpoint stays after {last:?}");
        // Whoever made it makes another, once it has failed.
        let other = self.seen.iter().find(|seen| seen.kind() == "Pod" && seen.event == "ADDED");
        assert!(ms(failed, other.expect("another pod").at_ns) > -500);
    }
}

/// A cluster that looks more often than every 10 s, and at volumes more often than every minute.
fn soon() -> Value {
    json!({"kubelet": {"evictionMonitoringPeriod": "1s", "volumeStatsAggPeriod": "1s"}})
}

#[test]
fn a_pod_whose_empty_dir_exceeds_its_limit_is_evicted_while_its_endpoint_stays_ready() {
    on_with("kernel", soon(), async |lab| {
        let spec = json!({
            "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}],
            "containers": [{"name": "app", "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}],
        });
        let evicted = evict(&lab, "head -c 3000000 /dev/zero > /scratch/file", spec).await;
        evicted.check("Usage of EmptyDir volume \"scratch\" exceeds the limit \"1Mi\". ");
    });
}

#[test]
fn a_container_that_writes_more_than_its_limit_is_evicted() {
    for dataplane in super::DATAPLANES {
        on_with(dataplane, soon(), async |lab| {
            let limit = |storage: &str| json!({"limits": {"ephemeral-storage": storage}});
            let script = "head -c 100000 /dev/zero | tr '\\0' x | fold -w 100; sleep 1000";
            let mut modest = shell("app", script);
            modest["resources"] = limit("1Mi");
            run(&lab, "modest", json!({"terminationGracePeriodSeconds": 1, "containers": [modest]})).await;
            let other = json!({
                "name": "other", "image": "host", "command": ["sleep", "1000"], "resources": limit("1Gi"),
            });
            let spec = json!({"containers": [{"name": "app", "resources": limit("1Mi")}, other]});
            let writes = "head -c 3000000 /dev/zero | tr '\\0' x | fold -w 100";
            let evicted = evict(&lab, writes, spec).await;
            evicted.check("Container app exceeded its local ephemeral storage limit \"1Mi\". ");
            let modest = lab.call("GET", &format!("{PODS}/modest"), None).await.body;
            assert_eq!(modest["status"]["phase"], "Running", "{modest:#}");
        });
    }
}
