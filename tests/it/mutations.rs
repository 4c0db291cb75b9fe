//! The deliberate faults that prove the gate (`gate/mutations.yaml`): each breaks a working scenario by changing
//! existing fields. A few are run here; `scripts/proofs/mutations` runs all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;

use serde::Deserialize;
use serde_json::Value;

use crate::harness::{Finished, Rolldrop};
use crate::machine::measured;
use crate::runs::{Dataplane, turn};

#[derive(Deserialize)]
struct Faults {
    base: Value,
    mutations: Vec<Mutation>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutation {
    name: String,
    fault: String,
    seen: String,
    caught: String,
    #[serde(default)]
    only: Vec<String>,
    #[serde(default)]
    pods: BTreeMap<String, Value>,
    #[serde(default)]
    set: BTreeMap<String, Value>,
    exit: Option<i32>,
}

impl Faults {
    fn read() -> Self {
        serde_saphyr::from_str(include_str!("gate/mutations.yaml")).expect("YAML")
    }

    /// Returns the scenario's Deployments, with their indices in `manifests`.
    fn deployments(&self) -> impl Iterator<Item = (usize, &str)> {
        let manifests = self.base["spec"]["manifests"].as_array().expect("manifests").iter().enumerate();
        manifests
            .filter(|(_, manifest)| manifest["inline"]["kind"] == "Deployment")
            .map(|(at, manifest)| (at, manifest["inline"]["metadata"]["name"].as_str().expect("a name")))
    }

    /// Returns the `--set` arguments of `rolldrop run` that introduce the fault.
    fn settings(&self, mutation: &Mutation) -> Vec<String> {
        let is_meant = |name: &str| mutation.only.is_empty() || mutation.only.iter().any(|only| only == name);
        let places = self.deployments().filter(|(_, name)| is_meant(name)).map(|(at, _)| at);
        let of_pods = places.flat_map(|at| {
            let pods = mutation.pods.iter();
            pods.map(move |(path, value)| format!("manifests.{at}.inline.spec.template.spec.{path}={value}"))
        });
        of_pods.chain(mutation.set.iter().map(|(path, value)| format!("{path}={value}"))).collect()
    }
}

/// Plans the scenario with these settings, without running it. Returns the exit code and the output.
fn plan(base: &Value, settings: &[String]) -> (Option<i32>, String) {
    let mut run = Rolldrop::new(["run", "base.yaml", "--dry-run", "--dataplane", "userspace"]);
    for setting in settings {
        run = run.args(["--set", setting]);
    }
    let finished = run.file("base.yaml", &base.to_string()).finish();
    (finished.code(), finished.stderr())
}

#[test]
fn every_mutation_plans_as_declared() {
    let faults = Faults::read();
    let names: BTreeSet<&str> = faults.mutations.iter().map(|mutation| mutation.name.as_str()).collect();
    assert_eq!((names.len(), faults.mutations.len()), (20, 20));
    let by_default = faults.mutations.iter().filter(|mutation| mutation.caught == "default").count();
    assert!(by_default >= 17, "{by_default}");

    let (code, said) = plan(&faults.base, &[]);
    assert_eq!(code, Some(0), "{said}");
    for mutation in &faults.mutations {
        let Mutation { name, fault, seen, caught, exit, .. } = mutation;
        assert!(!fault.is_empty() && !seen.is_empty(), "{name}");
        assert!(caught == "default" || caught.starts_with("expect."), "{name}: {caught}");
        assert!(exit.is_none_or(|exit| exit == 2), "{name}");
        let settings = faults.settings(mutation);
        assert!(!settings.is_empty(), "{name} changes nothing");
        let (code, said) = plan(&faults.base, &settings);
        // A scenario that cannot work may be refused before it starts.
        assert!(code == Some(0) || *exit == code, "{name}: {settings:?}\n{said}");
    }
}

/// Settings for a shorter run with a load that needs little CPU time.
const SMALL: [&str; 4] = [
    "load.rate=50",
    "load.duration=12s",
    "load.timeout.connect=10s",
    "disruptions=[{at: 2s, action: evict, selector: app=web, every: 4s, repeat: 2}]",
];

/// Faults that are visible in any run, and the checks that detect them.
const FEW: [(&str, &str); 3] = [
    ("downloads-longer-than-grace-period", "dropped.max"),
    ("one-percent-errors", "appErrors.max"),
    ("budget-that-blocks", "terminations.planned"),
];

/// Runs the scenario with these settings; returns the run, and the default gate's verdict on it.
fn judged(base: &Value, settings: &[String]) -> (Finished, Finished) {
    let settings: Vec<&str> = SMALL.into_iter().chain(settings.iter().map(String::as_str)).collect();
    let run = Rolldrop::run(&format!("{base}\n")).set(&settings).args(["--quiet"]).on(Dataplane::Userspace);
    let run = run.measured();
    let gate = Rolldrop::new(["gate".as_ref(), run.dir().join("run").as_os_str()]).finish();
    (run, gate)
}

#[test]
fn default_gate_fails_only_faulty_runs() {
    measured(|| {
        let _turn = turn();
        let faults = &Faults::read();
        thread::scope(|scope| {
            let one = |settings: Vec<String>| scope.spawn(move || judged(&faults.base, &settings));
            let base = one(Vec::new());
            let few = FEW.map(|(name, check)| {
                let fault = faults.mutations.iter().find(|fault| fault.name == name).expect(name);
                assert_eq!(fault.caught, "default", "{name}");
                (check, one(faults.settings(fault)))
            });
            let (run, gate) = base.join().expect("a run");
            run.figure(gate.code() == Some(0));
            assert_eq!(gate.code(), Some(0), "{run}{gate}");
            assert!(gate.stderr().contains("the default gate applies"), "{gate}");
            for (check, judged) in few {
                let (run, gate) = judged.join().expect("a run");
                run.figure(gate.code() == Some(1));
                assert!(gate.stdout().contains(&format!("FAIL         {check}: ")), "{run}{gate}");
            }
        });
    });
}
