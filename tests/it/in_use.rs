//! Two runs on one workload: the second is refused, or gets a warning.

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::{LIMIT, Rolldrop, signal, wait_for};
use crate::kubectl::{Kubectl, ROLLED_OUT, SharedCluster};
use crate::runs::turn;
use crate::web::Web;

/// Restarts the workload.
const SCENARIO: &str = "\
apiVersion: rolldrop.dev/v1
kind: Scenario
metadata: {name: first}
spec:
  target: {service: web}
  load: {rate: 20, duration: 60s}
  disruptions: [{at: 50s, action: rollingRestart, workload: deployment/web}]
";

struct Shop(Kubectl);

impl Shop {
    fn open(what: &str) -> Self {
        let kubectl = Kubectl::in_namespace(what);
        kubectl.apply(&Web::new(2).manifests());
        kubectl.ok(ROLLED_OUT);
        Self(kubectl)
    }

    fn here(&self, rolldrop: Rolldrop) -> Rolldrop {
        let kubeconfig = SharedCluster::get().kubeconfig();
        rolldrop.args(["-n", self.0.namespace(), "--kubeconfig"]).args([kubeconfig]).args(["--yes"])
    }

    /// Returns the in-use annotation; `None` if no run uses the workload.
    fn holder(&self) -> Option<Value> {
        let text = self.0.ok(r"get deployment/web -o jsonpath={.metadata.annotations.rolldrop\.dev/in-use}");
        (!text.is_empty()).then(|| serde_json::from_str(&text).expect("JSON"))
    }

    fn spec(&self) -> String {
        self.0.ok("get deployment/web -o jsonpath={.spec}")
    }
}

#[test]
fn second_run_refuses_workload_in_use() {
    let _turn = turn();
    let shop = Shop::open("in-use");
    let before = shop.spec();
    let (mut first, dir) = shop.here(Rolldrop::run(SCENARIO)).start();
    let holder = wait_for("the annotation", LIMIT, || shop.holder());
    let run = holder["run"].as_str().expect("a run").to_owned();
    assert!(run.starts_with("first-"), "{holder}");
    let said =
        format!("Deployment web is in use by run {run} ({})", holder["owner"].as_str().expect("an owner"));

    let second = shop.here(Rolldrop::run(SCENARIO)).finish().expect_code(2);
    assert!(second.stderr().contains(&said), "{second}");
    assert!(!second.dir().join("run").exists(), "{second}");
    let tuning = shop.here(Rolldrop::new(["tune", "svc/web", "--out", "tuning"])).finish().expect_code(2);
    assert!(tuning.stderr().contains(&said) && !tuning.dir().join("tuning").exists(), "{tuning}");
    // A run that changes nothing is allowed.
    let watching = shop.here(Rolldrop::new(["run", "-t", "svc/web", "--dry-run"])).finish().expect_code(0);
    assert!(watching.stderr().contains(&format!("warning: {said}")), "{watching}");
    assert_eq!(shop.spec(), before);

    // A killed run holds the workload until someone cleans up.
    signal(&first, Signal::SIGKILL);
    first.wait().expect("an exit status");
    assert!(shop.holder().is_some());
    let cleaned =
        Rolldrop::new(["cleanup".as_ref(), dir.path().join("run").as_os_str()]).finish().expect_code(0);
    let released = format!("Deployment web in {}: released\n", shop.0.namespace());
    assert!(cleaned.stdout().contains(&released), "{cleaned}");
    assert_eq!((shop.holder(), shop.spec()), (None, before));
}
