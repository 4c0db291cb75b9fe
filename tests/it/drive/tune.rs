//! `rolldrop tune` on an existing workload: it finds the shortest sleep, proves it, and leaves nothing behind.

use std::path::Path;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::ci::meets;
use crate::harness::{LIMIT, Rolldrop, signal, wait_for};
use crate::kubectl::{Kubectl, ROLLED_OUT, SharedCluster};
use crate::machine::{Meanwhile, figure, measured};
use crate::runs::turn;
use crate::web::Web;

/// Deployment as users might have it in a file.
const MANIFEST: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
spec:
  template:
    spec:
      containers:
        - name: app # serves
          image: rolldrop
";

/// A Deployment behind a Service, whose pods exit immediately.
struct Shop(Kubectl);

impl Shop {
    fn open(what: &str) -> Self {
        Self::of(what, Web::new(2).named())
    }

    fn of(what: &str, web: Web) -> Self {
        Self::with(what, &web.args(&["--on-sigterm=exit"]))
    }

    fn with(what: &str, web: &Web) -> Self {
        let kubectl = Kubectl::in_namespace(what);
        kubectl.apply(&web.manifests());
        kubectl.ok(ROLLED_OUT);
        Self(kubectl)
    }

    fn tune(&self, more: &[&str]) -> Rolldrop {
        let shop = ["tune", "svc/web", "-n", self.0.namespace(), "--out", "tuning", "--yes"];
        let how = ["--rate", "100", "--coverage", "50%", "--max-busy", "100%", "--quiet"];
        Rolldrop::new(shop)
            .args(how)
            .args(more)
            .args(["--kubeconfig"])
            .args([SharedCluster::get().kubeconfig()])
    }

    /// Returns the arguments to resume a tuning, or to verify its choice again.
    fn go_on(&self, how: &str, dir: &Path, more: &[&str]) -> Vec<String> {
        let tuning = dir.join("tuning").display().to_string();
        let words = ["tune", how, &tuning, "--yes"].into_iter().chain(more.iter().copied());
        words.map(str::to_owned).collect()
    }

    fn spec(&self) -> Value {
        serde_json::from_str(&self.0.ok("get deployment/web -o jsonpath={.spec}")).expect("JSON")
    }
}

/// Returns the tuning result found in a directory.
pub(crate) fn tuning(dir: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(dir.join("tuning/tune.json")).expect("tune.json"))
        .expect("JSON")
}

#[test]
fn tuning_proves_sleep_and_restores_workload() {
    measured(|| {
        let _turn = turn();
        let shop = Shop::open("tune");
        let before = shop.spec();
        let tuned = shop.tune(&["-f", "web.yaml"]).file("web.yaml", MANIFEST).measured();
        assert_eq!(shop.spec(), before);
        let found = tuning(tuned.dir());
        meets(&["--schemafile", "docs/tune.schema.json"], tuned.dir().join("tuning/tune.json"));
        tuned.figure(found["outcome"]["state"] == "proven");
        let sleep = &found["chosen"]["settings"]["pre_stop_seconds"];
        let proof = found["steps"].as_array().expect("steps").last().expect("a proof");
        assert_eq!((&proof["purpose"], &proof["lost_for_a_sleep"]), (&json!("proof"), &json!(0)), "{found}");
        assert_eq!(&proof["settings"]["pre_stop_seconds"], sleep, "{found}");
        assert!(found["lost_before"].as_array().is_some_and(|lost| !lost.is_empty()), "{found}");
        let patch = std::fs::read_to_string(tuned.dir().join("tuning/patch.yaml")).expect("the patch");
        assert!(patch.contains(&format!("seconds: {sleep}")), "{patch}");
        let line = format!("seconds: {sleep}");
        let said = tuned.stdout();
        assert!(said.lines().any(|said| said.starts_with("web.yaml:") && said.ends_with(&line)), "{said}");
        let picture = std::fs::read(tuned.dir().join("tuning/tune.png")).expect("the picture");
        assert!(picture.starts_with(b"\x89PNG"));
        // Applying the printed patch is all that the user has to do.
        shop.0.ok(&format!(
            "patch deployment/web --patch-file {}",
            tuned.dir().join("tuning/patch.yaml").display()
        ));
        assert_eq!(
            &shop.spec()["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"],
            sleep
        );
    });
}

#[test]
fn tune_grace_proves_period_for_streams() {
    measured(|| {
        let _turn = turn();
        let web = Web::new(2).named().args(&["--on-sigterm=drain", "--streams-on-sigterm=finish"]);
        let shop = Shop::with("tune-grace", &web.pod(json!({"terminationGracePeriodSeconds": 2})));
        let before = shop.spec();
        let load = ["load.stream={kind: sse, length: exp:500ms}", "target.path=/events", "load.warmup=4s"];
        let tuned = shop.tune(&["--grace", "--max-cut", "0.5"]).set(&load).measured();
        assert_eq!(shop.spec(), before);
        meets(&["--schemafile", "docs/tune.schema.json"], tuned.dir().join("tuning/tune.json"));
        let found = tuning(tuned.dir());
        tuned.figure(found["outcome"]["state"] == "proven");
        let streams = &found["chosen"]["streams"];
        assert_eq!(streams["on_sigterm"], "drains", "{found}");
        let grace =
            found["chosen"]["settings"]["termination_grace_period_seconds"].as_u64().expect("seconds");
        assert_eq!(grace, streams["least_seconds"].as_u64().expect("seconds") + 1, "{found}");
        let steps = valid_steps(&found);
        let undisturbed = steps
            .iter()
            .find(|step| step["purpose"] == "lengths")
            .expect("a run that measured stream lengths");
        assert_eq!(undisturbed["terminations"], 0, "{found}");
        let proof = steps.last().expect("a proof");
        assert!(proof["streams"]["alive"].as_u64() > Some(0), "{found}");
        let said = tuned.stdout().replace('\n', " ");
        assert!(said.contains(&format!("terminationGracePeriodSeconds: {grace}")), "{said}");
        assert!(said.contains("The app finishes its streams after SIGTERM: a grace period of"), "{said}");
    });
}

#[test]
fn tune_grace_needs_streams() {
    let refused = Rolldrop::new(["tune", "naive-rollout", "--grace"]).finish().expect_code(2);
    assert!(refused.stderr().contains("--grace needs a load of streams"), "{refused}");
}

/// This is the short form of scripts/proofs/tune-killed.
#[test]
fn cleanup_undoes_killed_tuning() {
    let _turn = turn();
    let shop = Shop::open("tune-killed");
    let before = shop.spec();
    let planned = shop.tune(&["--dry-run"]).finish().expect_code(0);
    let calls = planned.stdout();
    assert!(calls.contains("PATCH") && calls.contains("/deployments/web"), "{planned}");
    assert!(!planned.dir().join("tuning").exists(), "{planned}");
    let is_in_use = || {
        !shop.0.ok(r"get deployment/web -o jsonpath={.metadata.annotations.rolldrop\.dev/in-use}").is_empty()
    };
    let is_set = || shop.spec()["template"]["spec"] != before["template"]["spec"];
    let moments: [(&dyn Fn() -> bool, &str); 2] = [(&is_in_use, "released"), (&is_set, "restored")];
    for (is_moment, done) in moments {
        let (mut child, dir) = shop.tune(&[]).start();
        wait_for("the moment to kill the tuning", LIMIT, || is_moment().then_some(()));
        let cleanup = || Rolldrop::new(["cleanup".as_ref(), dir.path().join("tuning").as_os_str()]).finish();
        assert!(cleanup().expect_code(2).stderr().contains("has not ended"));
        signal(&child, Signal::SIGKILL);
        child.wait().expect("an exit status");
        let cleaned = cleanup().expect_code(0);
        assert!(cleaned.stdout().contains(&format!(": {done}")), "{cleaned}");
        assert_eq!((shop.spec(), is_in_use()), (before.clone(), false));
        assert_eq!(cleanup().expect_code(0).stdout(), "the run left nothing to clean up\n");
    }
}

#[test]
fn tune_with_auto_evidence_needs_no_pod_names() {
    measured(|| {
        let _turn = turn();
        let shop = Shop::of("tune-auto", Web::new(2));
        let before = shop.spec();
        let tuned = shop.tune(&["--evidence", "auto"]).measured();
        assert_eq!(shop.spec(), before);
        assert!(tuned.stderr().contains("shows it"), "{tuned}");
        let found = tuning(tuned.dir());
        tuned.figure(found["outcome"]["state"] == "proven");
        let consumers = found["chosen"]["consumers"].as_array().expect("consumers");
        assert!(!consumers.is_empty(), "windows were measured: {found}");
    });
}

#[test]
fn workload_change_by_others_ends_tuning() {
    measured(|| {
        let _turn = turn();
        let meanwhile = Meanwhile::begins();
        let shop = Shop::open("tune-others");
        let before = shop.spec();
        let (child, dir) = shop.tune(&[]).start();
        wait_for("the first restart", LIMIT, || {
            (shop.spec()["template"]["metadata"] != before["template"]["metadata"]).then_some(())
        });
        shop.0.ok("scale deployment/web --replicas=3");
        let ended = child.wait_with_output().expect("an exit status");
        assert_eq!(ended.status.code(), Some(3), "{ended:?}");
        let found = tuning(dir.path());
        let why = found["outcome"]["why"][0].as_str().expect("a reason").to_owned();
        figure(meanwhile.taken(), !why.contains("the load generator fell behind"), || why.clone());
        assert!(why.contains("others changed spec.replicas of Deployment web during the run"), "{why}");
        let mut expected = before;
        expected["replicas"] = json!(3);
        assert_eq!(shop.spec(), expected);
    });
}

#[test]
fn tuning_refuses_recreate_and_paused_rollouts() {
    let shop = Shop::open("tune-recreate");
    let recreate = r#"{"spec":{"strategy":{"$retainKeys":["type"],"type":"Recreate"}}}"#;
    shop.0.ok(&format!("patch deployment/web --patch {recreate}"));
    let before = shop.spec();
    let refused = shop.tune(&[]).finish().expect_code(1);
    assert!(refused.stdout().contains("its Recreate strategy terminates its 2 pods"), "{refused}");
    assert!(!refused.dir().join("tuning").exists(), "{refused}");
    shop.0.ok("rollout pause deployment/web");
    let refused = shop.tune(&[]).finish().expect_code(2);
    assert!(refused.stderr().contains("its rollout is paused: resume it first"), "{refused}");
    shop.0.ok("rollout resume deployment/web");
    assert_eq!(shop.spec(), before);
}

#[test]
fn gitops_workload_gets_only_patch() {
    let shop = Shop::open("tune-gitops");
    shop.0.ok("annotate deployment/web argocd.argoproj.io/tracking-id=shop:apps/Deployment:shop/web");
    let refused = shop.tune(&["--max-sleep", "40s"]).finish().expect_code(2);
    let said = refused.stderr();
    assert!(
        said.contains("deployment/web is managed by Argo CD") && said.contains("seconds: 40"),
        "{refused}"
    );
    assert!(
        said.contains("rolldrop run --target ... -- kubectl rollout restart deployment/web"),
        "{refused}"
    );
    assert!(!refused.dir().join("tuning").exists());
}

#[test]
fn tuning_refuses_non_sleep_hook() {
    let hook = json!({"lifecycle": {"preStop": {"exec": {"command": ["/bin/drain", "--now"]}}}});
    let kubectl = Kubectl::in_namespace("tune-hook");
    kubectl.apply(&Web::new(2).app(hook).manifests());
    let shop = Shop(kubectl);
    let refused = shop.tune(&[]).finish().expect_code(2);
    assert!(refused.stderr().contains("has a preStop hook that does more than sleep"), "{refused}");
    assert!(refused.stderr().contains(r#""/bin/drain","--now""#), "{refused}");
    assert!(!refused.dir().join("tuning").exists());
}

#[test]
fn tune_requires_workload_for_unknown_gateway() {
    let _turn = turn();
    let shop = Shop::open("tune-gateway");
    let tune = |more: &[&str]| {
        let gateway = ["tune", "-t", "http://gateway.example/", "--dry-run", "-n", shop.0.namespace()];
        let rolldrop = Rolldrop::new(gateway).args(more).args(["--kubeconfig"]);
        rolldrop.args([SharedCluster::get().kubeconfig()]).finish()
    };
    let unknown = tune(&[]).expect_code(2);
    assert!(unknown.stderr().contains("rolldrop tune --workload deployment/web"), "{unknown}");
    let planned = tune(&["--workload", "deployment/web"]).expect_code(0);
    assert!(planned.stdout().contains("/deployments/web "), "{planned}");
    let missing = tune(&["--workload", "deployment/other"]).expect_code(2);
    assert!(missing.stderr().contains("there is no Deployment other in namespace"), "{missing}");
}

/// Returns a tuning's runs, except those that were repeated because the machine lagged.
fn valid_steps(found: &Value) -> Vec<&Value> {
    let steps = found["steps"].as_array().expect("steps");
    steps.iter().filter(|step| step["verdict"]["state"] == "valid").collect()
}

#[test]
fn tune_without_pod_names_measures_rollouts() {
    measured(|| {
        let _turn = turn();
        let shop = Shop::of("tune-nameless", Web::new(2));
        let before = shop.spec();
        let tuned = shop.tune(&[]).measured();
        assert_eq!(shop.spec(), before);
        let found = tuning(tuned.dir());
        meets(&["--schemafile", "docs/tune.schema.json"], tuned.dir().join("tuning/tune.json"));
        tuned.figure(found["outcome"]["state"] == "proven");
        for step in valid_steps(&found) {
            assert_eq!(step["modes"], json!(["rollout"]), "{found}");
            assert!(step["rollouts"].as_u64() > Some(0) && step["unit"] != "deletions", "{found}");
        }
        let sleep = found["chosen"]["settings"]["pre_stop_seconds"].as_u64().expect("a sleep");
        let seen = found["seen"]["longest_lower_seconds"].as_f64().unwrap_or(0.0);
        assert!(sleep as f64 >= seen, "{found}");
        let patch = std::fs::read_to_string(tuned.dir().join("tuning/patch.yaml")).expect("the patch");
        assert!(patch.starts_with("# A preStop sleep of") && patch.contains(" rollout"), "{patch}");

        // The choice is verified again, as in a nightly job.
        let verified = shop.go_on("--verify", tuned.dir(), &["--out", "again"]);
        let verified = Rolldrop::new(verified).measured();
        let again: Value = serde_json::from_str(
            &std::fs::read_to_string(verified.dir().join("again/tune.json")).expect("tune.json"),
        )
        .expect("JSON");
        assert_eq!(again["steps"][0]["purpose"], "proof", "{again}");
        assert_eq!(again["chosen"]["settings"], found["chosen"]["settings"], "{again}");
        assert_eq!(shop.spec(), before);

        // A choice without a sleep fails verification.
        let mut short = found.clone();
        short["chosen"]["settings"]["pre_stop_seconds"] = json!(0);
        std::fs::write(tuned.dir().join("tuning/tune.json"), short.to_string()).expect("a file");
        let refuted = Rolldrop::new(shop.go_on("--verify", tuned.dir(), &["--out", "short"])).finish();
        let refuted = refuted.expect_code(1);
        assert!(refuted.stdout().contains("that a longer one might save"), "{refuted}");
        assert_eq!(shop.spec(), before);
    });
}

#[test]
fn resumed_tuning_reuses_measured_steps() {
    measured(|| {
        let _turn = turn();
        let shop = Shop::of("tune-resume", Web::new(2));
        let before = shop.spec();
        let (child, dir) = shop.tune(&[]).start();
        wait_for("a longer sleep", LIMIT, || {
            (shop.spec()["template"]["spec"] != before["template"]["spec"]).then_some(())
        });
        signal(&child, Signal::SIGINT);
        let ended = child.wait_with_output().expect("an exit status");
        assert_eq!(ended.status.code(), Some(130), "{ended:?}");
        assert_eq!(shop.spec(), before);
        let partial = tuning(dir.path());
        meets(&["--schemafile", "docs/tune.schema.json"], dir.path().join("tuning/tune.json"));
        assert_eq!(partial["outcome"]["state"], "partial", "{partial}");
        assert_eq!(partial["steps"][0]["purpose"], "before", "{partial}");
        let told = std::fs::read_to_string(dir.path().join("tuning/tune.md")).expect("tune.md");
        assert!(told.contains("rolldrop tune --resume tuning"), "{told}");
        // No further rollouts are allowed, so the measured rollouts are read again, and nothing else happens.
        let resumed = Rolldrop::new(shop.go_on("--resume", dir.path(), &["--max-rollouts", "1"])).finish();
        resumed.expect_code(3);
        let found = tuning(dir.path());
        let why = found["outcome"]["why"][0].as_str().expect("a reason");
        assert!(why.contains("--max-rollouts allows 1"), "{found}");
        assert_eq!(found["steps"][0], partial["steps"][0], "{found}");
        assert_eq!(shop.spec(), before);
    });
}

#[test]
fn resume_restores_workload_unless_redeployed() {
    let _turn = turn();
    let shop = Shop::open("tune-killed-resume");
    let before = shop.spec();
    let (mut child, dir) = shop.tune(&[]).start();
    wait_for("a longer sleep", LIMIT, || {
        (shop.spec()["template"]["spec"] != before["template"]["spec"]).then_some(())
    });
    signal(&child, Signal::SIGKILL);
    child.wait().expect("an exit status");
    shop.0.ok("set env deployment/web DEPLOYED=meanwhile");
    let deployed = shop.spec();
    let resume = || Rolldrop::new(shop.go_on("--resume", dir.path(), &["--max-rollouts", "1"])).finish();
    let refused = resume().expect_code(2);
    assert!(refused.stderr().contains("someone has changed it since"), "{refused}");
    assert!(refused.stderr().contains("Nothing was changed"), "{refused}");
    assert_eq!(shop.spec(), deployed);
    shop.0.ok("set env deployment/web DEPLOYED-");
    resume().expect_code(3);
    assert_eq!(shop.spec(), before);
    let found = tuning(dir.path());
    assert_eq!(found["steps"][0]["purpose"], "before", "the measured steps are reused: {found}");
}

/// Tunes a workload of this kind, whose rollouts replace its pods one by one.
fn is_tuned(kind: &str) {
    measured(|| {
        let _turn = turn();
        let web = Web::new(3).named().args(&["--on-sigterm=exit"]).kind(kind);
        let lower = kind.to_lowercase();
        let kubectl = Kubectl::in_namespace(&format!("tune-{lower}"));
        kubectl.apply(&web.manifests());
        kubectl.ok(&format!("rollout status {lower}/web --timeout=300s"));
        let shop = Shop(kubectl);
        let spec = || shop.0.ok(&format!("get {lower}/web -o jsonpath={{.spec}}"));
        let before = spec();
        let planned = shop.tune(&["--dry-run"]).finish().expect_code(0);
        assert!(planned.stdout().contains(&format!("/{lower}s/web")), "{planned}");
        let tuned = shop.tune(&[]).measured();
        assert_eq!(spec(), before);
        let found = tuning(tuned.dir());
        tuned.figure(found["outcome"]["state"] == "proven");
        let proof = found["steps"].as_array().expect("steps").last().expect("a proof");
        assert_eq!((&proof["purpose"], &proof["lost_for_a_sleep"]), (&json!("proof"), &json!(0)), "{found}");
    });
}

/// The StatefulSet is restarted in order, and its pods keep their names.
#[test]
fn tuning_supports_stateful_set() {
    is_tuned("StatefulSet");
}

#[test]
fn tuning_supports_daemon_set() {
    is_tuned("DaemonSet");
}

#[test]
fn tuning_refuses_stateful_set_that_keeps_old_pods() {
    let on_delete = json!({"updateStrategy": {"type": "OnDelete"}});
    let partition = json!({"updateStrategy": {"rollingUpdate": {"partition": 1}}});
    for (strategy, what, helps) in [
        (
            on_delete,
            "tune-on-delete",
            "its update strategy is OnDelete: delete its pods, or use RollingUpdate",
        ),
        (partition, "tune-partition", "with ordinals below 1: set its partition to 0"),
    ] {
        let web = Web::new(2).named().kind("StatefulSet").deployment(strategy);
        let kubectl = Kubectl::in_namespace(what);
        kubectl.apply(&web.manifests());
        let refused = Shop(kubectl).tune(&[]).finish().expect_code(2);
        assert!(refused.stderr().contains(helps), "{refused}");
    }
}
