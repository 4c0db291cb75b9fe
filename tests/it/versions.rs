//! Runs on a cluster that reports an older version than its own.

use serde_json::{Value, json};

use crate::faulty_api::{Act, FaultyApi};
use crate::harness::{Finished, Rolldrop};
use crate::lab::Setup;
use crate::web::Web;

/// Returns a scenario whose app has these fields in its pods' spec and in its container.
fn scenario(pod: Value, app: Value) -> String {
    let web = Web::new(1).pod(pod).app(app);
    web.scenario("old", "  target: {service: web}\n  load: {rate: 50, duration: 1s}\n")
}

#[test]
fn run_refuses_features_that_server_lacks() {
    let cluster = Setup::new().start();
    let api = FaultyApi::before(&cluster);
    let run = |version: &'static str, scenario: &str, more: &[&str]| -> Finished {
        api.set(move |request| match (request.method.as_str(), request.uri.path()) {
            ("GET", "/version") => {
                let minor = version.split('.').nth(1);
                Act::json(200, &json!({"major": "1", "minor": minor, "gitVersion": version}))
            }
            _ => Act::Pass,
        });
        Rolldrop::run(scenario).on_cluster(&api.kubeconfig()).args(["--quiet"]).args(more).finish()
    };
    let sidecar = json!({"name": "helper", "image": "host/sleep", "restartPolicy": "Always", "command": ["sleep", "1000"]});
    let sidecar = || json!({"initContainers": [sidecar]});
    let sleep = json!({"lifecycle": {"preStop": {"sleep": {"seconds": 1}}}});
    let plain = || scenario(json!({}), json!({}));
    let says = |finished: &Finished, texts: &[&str]| {
        let said = finished.stderr();
        texts.iter().for_each(|text| assert!(said.contains(text), "{text}\n{finished}"));
        assert!(!finished.stderr().contains("creates"), "nothing was started\n{finished}");
    };

    let too_old = run("v1.28.15", &scenario(sidecar(), json!({})), &[]).expect_code(2);
    says(&too_old, &["runs Kubernetes 1.28", "Deployment web, container helper: native sidecars", "1.29"]);
    let too_old = run("v1.29.14-eks-1", &scenario(sidecar(), sleep), &[]).expect_code(2);
    says(&too_old, &["container app: a preStop sleep needs 1.30; use exec: {command: [sleep, \"1\"]}"]);
    assert!(!too_old.stderr().contains("native sidecars"), "{too_old}");
    // The recording proxy that the scenario requests is also a native sidecar.
    let too_old = run("v1.28.15", &plain(), &["--set", "sidecar.inject=true"]).expect_code(2);
    says(&too_old, &["container rolldrop", "native sidecars"]);

    // The refused runs left nothing behind, and features of 1.29 work.
    let fits = run("v1.29.14-eks-1", &scenario(sidecar(), json!({})), &[]);
    assert!(fits.stdout().contains("50 requests"), "{fits}");
    // An older cluster gets a warning, but is measured.
    let old = run("v1.28.15", &plain(), &[]);
    assert!(old.stdout().contains("50 requests"), "{old}");
    assert!(old.stderr().contains("the cluster runs Kubernetes 1.28; rolldrop supports 1.29"), "{old}");
}
