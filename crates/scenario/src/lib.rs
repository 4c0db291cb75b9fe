//! Turns YAML into a validated scenario: what to deploy, load, disrupt and expect.
//!
//! The text becomes a tree that remembers line numbers (`document`), then a raw form in which every key is checked
//! (`raw`), then a [`Scenario`] without contradictions. Errors name the file, line, key and remedy. Nothing here talks
//! to a cluster.

mod builtin;
mod disruption;
mod document;
pub mod expectations;
mod files;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod load_spec;
pub mod nearest;
mod raw;
pub mod request_text;
pub mod target_argument;
mod validate;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use rolldrop_record::Expect;
use rolldrop_record::run_info::{Balances, BalancesBecause};

pub use builtin::{BUILTIN, Builtin, DEFAULT, ROLLOUT};
pub use disruption::{
    Count, Disruption, DisruptionAction, Object, Order, Patch, PatchType, Pods, Repeat, Restore, Until,
    Workload, WorkloadKind,
};
use document::Document;
pub use expectations::ExpectFile;
pub use load_spec::{Abort, LoadSpec};

/// A validated scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Name of the scenario.
    pub name: String,
    /// Sentence describing what the scenario shows.
    pub description: String,
    /// Notes for readers of the file; a run ignores them.
    pub annotations: BTreeMap<String, String>,
    /// Kubernetes objects that the run creates and removes.
    pub manifests: Vec<Value>,
    /// Path of each manifest within the file.
    pub manifest_keys: Vec<String>,
    /// Targets of the load: at least one, with unique names.
    pub targets: Vec<ScenarioTarget>,
    /// The load.
    pub load: LoadSpec,
    /// True if the recording proxy is added to the manifests as a sidecar.
    pub inject_sidecar: bool,
    /// Workloads that get the sidecar or are tuned, if no target determines them.
    pub sidecar_workloads: Vec<Workload>,
    /// Disruptions that terminate pods, with their times.
    pub disruptions: Vec<Disruption>,
    /// Time without losses that must pass between terminations; `None` if it is computed from the rate.
    pub settle: Option<Duration>,
    /// Time after which the next termination starts even if requests are still being lost.
    pub settle_max: Duration,
    /// Limits that the gate checks.
    pub expect: Expect,
    /// The YAML, with overrides applied.
    document: Document,
}

impl Scenario {
    /// Returns true if the load stops once all disruptions are done, even before its duration is over.
    pub fn ends_with_its_disruptions(&self) -> bool {
        let watches_on = |d: &Disruption| {
            matches!((&d.action, d.repeat), (DisruptionAction::Observe { lasts: None }, Repeat::Times(_)))
        };
        self.disruptions.iter().any(Disruption::ends_the_load) && !self.disruptions.iter().any(watches_on)
    }

    /// Returns the YAML with overrides applied, as JSON. Defaults are not filled in.
    pub fn resolved(&self) -> &Value {
        self.document.value()
    }

    /// Replaces expectations with those in a file, and then with assignments.
    ///
    /// # Errors
    /// Fails if the result is malformed or contradictory.
    pub fn expect_also(&mut self, file: &ExpectFile, set: &[String]) -> Result<()> {
        expectations::replace(&mut self.document, Some(file), set)?;
        self.expect = expectations::read(&self.document)?;
        expectations::check_targets(&self.expect, &self.targets, &self.document)
    }

    /// Returns the manifest of a Service; `None` if the manifests do not create it.
    pub fn own_service(&self, name: &str) -> Option<&Value> {
        self.manifests.iter().find(|object| object["kind"] == "Service" && object["metadata"]["name"] == name)
    }

    /// Returns the Services of the targets that the manifests do not create, each once.
    pub fn live_services(&self) -> BTreeSet<&str> {
        let services = self.targets.iter().filter_map(|target| match &target.place {
            Place::Service { name, .. } => Some(name.as_str()),
            Place::Url(_) => None,
        });
        services.filter(|name| self.own_service(name).is_none()).collect()
    }

    /// Creates an error about a value, for checks outside this module. `key` is the value's path from the top of the
    /// file.
    pub fn invalid(&self, key: &str, why: impl Into<String>) -> ScenarioError {
        self.document.error(key, why)
    }
}

/// A scenario and the cluster that it asks for; `C` is the embedded cluster's configuration type.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded<C> {
    /// The scenario.
    pub scenario: Scenario,
    /// `spec.cluster`, if given.
    pub cluster: Option<ClusterChoice<C>>,
}

/// The cluster that a scenario asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum ClusterChoice<C> {
    /// The embedded cluster, with this configuration.
    Embedded(C),
    /// A kubeconfig context.
    Context(String),
}

/// A target of the load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioTarget {
    /// Name in the recorded rows.
    pub name: String,
    /// Weight, relative to the sum of all targets' weights.
    pub weight: u32,
    /// Unit that the target's consumer balances: connections or requests. It decides which evidence shows the window.
    pub balances: Balances,
    /// Reason for `balances`.
    pub balances_because: BalancesBecause,
    /// Location of the target.
    pub place: Place,
}

/// Location of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A port of a Service.
    Service {
        /// Name of the Service.
        name: String,
        /// Name or number of the port; `None` for the Service's only port.
        port: Option<String>,
        /// Path of the requests.
        path: String,
        /// Node whose NodePort is used instead of the Service's own address.
        node: Option<String>,
    },
    /// A URL.
    Url(url::Url),
}

/// Result of reading a scenario.
type Result<T, E = ScenarioError> = std::result::Result<T, E>;

/// Error for a scenario that cannot be used.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("failed to read {path}")]
    Io { path: PathBuf, source: std::io::Error },
    /// Neither a file nor a built-in scenario has this name.
    #[error("there is no scenario {0:?}: name a YAML file, or a scenario that `rolldrop scenarios` lists{like}", like = builtin::like(.0))]
    Unknown(String),
    /// Something in the file is wrong.
    #[error("{place}: {key}: {why}")]
    Invalid { place: String, key: String, why: String },
}

/// Loads a scenario from a YAML file, or a built-in scenario by name.
///
/// `overrides` are `path=value` pairs, such as `load.rate=50` or
/// `spec.load.rate=50`, which replace values before anything is checked.
///
/// # Errors
/// Fails if the scenario cannot be read, or anything in it is unknown, malformed or contradictory.
pub fn load<C: DeserializeOwned>(name: &str, overrides: &[String]) -> Result<Loaded<C>> {
    let path = Path::new(name);
    if let Some(builtin) = BUILTIN.iter().find(|b| b.name == name).filter(|_| !path.exists()) {
        let file = format!("scenarios/{name}.yaml");
        return parse(builtin.yaml, &file, Path::new("."), overrides);
    }
    if !path.exists() && !name.contains(['/', '.']) {
        return Err(ScenarioError::Unknown(name.to_owned()));
    }
    let text =
        files::read_scenario(path).map_err(|source| ScenarioError::Io { path: path.to_owned(), source })?;
    parse(&text, name, path.parent().unwrap_or(Path::new(".")), overrides)
}

/// Parses the text of a scenario. `file` is its name in errors; paths of manifest files are relative to `dir`.
///
/// # Errors
/// Fails if anything in it is unknown, malformed or contradictory.
pub fn parse<C: DeserializeOwned>(
    text: &str,
    file: &str,
    dir: &Path,
    overrides: &[String],
) -> Result<Loaded<C>> {
    let mut document = Document::parse(text, file)?;
    for assignment in overrides {
        document.set(assignment)?;
    }
    document.drop_nulls("/spec/load");
    let raw: raw::ScenarioFile<C> = document.read()?;
    validate::validate(raw, &document, dir)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use rolldrop_record::load::{Arrivals, Connections, Pace, PortRange, RateStage};

    const MINIMAL: &str = "\
apiVersion: rolldrop.dev/v1
kind: Scenario
metadata: {name: x}
spec:
  target: {service: web}
  load: {duration: 10s}
";

    fn load_text(text: &str) -> Result<Scenario, String> {
        parse::<Value>(text, "x.yaml", Path::new("."), &[]).map(|l| l.scenario).map_err(|e| e.to_string())
    }

    #[test]
    fn built_in_scenarios_are_valid() {
        for builtin in BUILTIN {
            let loaded = load::<Value>(builtin.name, &[]).unwrap();
            assert_eq!(loaded.scenario.name, builtin.name);
            assert!(!loaded.scenario.description.is_empty());
        }
        assert!(BUILTIN.iter().any(|b| b.name == DEFAULT));
    }

    #[test]
    fn omitted_load_keys_take_defaults() {
        let load = load_text(MINIMAL).unwrap().load.settings;
        assert_eq!(
            load.pace,
            Pace::Open(vec![RateStage { from: 200.0, to: 200.0, duration: Duration::from_secs(10) }])
        );
        assert_eq!(load.connections, Connections::FRESH);
        assert_eq!(load.timeout.connect, Duration::from_secs(1));
        assert_eq!(load.response_timeout(), Duration::from_secs(5));
        assert_eq!(load.success, [(200, 399)]);
    }

    #[test]
    fn ramp_starts_at_previous_rate() {
        let stages =
            "stages: [{rate: 9, duration: 2s, ramp: linear}, {rate: 4, duration: 1s}], arrivals: poisson";
        let load = load_text(&MINIMAL.replace("duration: 10s", stages)).unwrap().load;
        let stage = |from, to, s| RateStage { from, to, duration: Duration::from_secs(s) };
        assert_eq!(load.settings.pace, Pace::Open(vec![stage(0.0, 9.0, 2), stage(4.0, 4.0, 1)]));
        assert_eq!((load.duration(), load.settings.arrivals), (Duration::from_secs(3), Arrivals::Poisson));
        let wrong = |load: &str| load_text(&MINIMAL.replace("duration: 10s", load)).unwrap_err();
        let both = wrong("rate: 1, stages: [{rate: 1, duration: 1s}]");
        assert_eq!(
            both,
            "x.yaml:6: spec.load.stages: each stage has its own rate and duration: remove load.rate and load.duration"
        );
        assert_eq!(
            wrong("stages: [{rate: 0, duration: 1s}]"),
            "x.yaml:6: spec.load.stages: at least one stage must be above 0 requests/s"
        );
        assert_eq!(
            wrong("stages: [{rate: 1, duration: 0s}]"),
            "x.yaml:6: spec.load.stages[0].duration: must be longer than 0"
        );
    }

    #[test]
    fn scenario_yields_targets_and_requests() {
        let text = "\
apiVersion: rolldrop.dev/v1
kind: Scenario
metadata: {name: x}
spec:
  target:
  - {service: web, weight: 3}
  - {url: 'http://gateway.example:81/x', name: gateway}
  load:
    template: true
    headers: {accept: text/plain}
    requests:
    - {path: '/items?n={{seq}}', weight: 4}
    - {path: /items, method: POST, headers: {content-type: application/json}, body: '{\"id\": \"{{uuid}}\"}'}
    retry: {times: 2, delay: 100ms}
    connections: {mode: keepalive, maxRequests: 50, maxAge: 30s}
    stages: [{from: 10, rate: 20, duration: 3s, ramp: linear}]
";
        let scenario = load_text(text).unwrap();
        let names: Vec<_> = scenario.targets.iter().map(|t| (t.name.as_str(), t.weight)).collect();
        assert_eq!(names, [("web", 3), ("gateway", 1)]);
        let load = scenario.load;
        let requests: Vec<_> =
            load.requests.iter().map(|r| (r.path.as_deref(), r.method.as_deref(), r.weight)).collect();
        assert_eq!(requests, [(Some("/items?n={{seq}}"), None, 4), (Some("/items"), Some("POST"), 1)]);
        assert_eq!(load.requests[1].body.as_deref(), Some(b"{\"id\": \"{{uuid}}\"}".as_slice()));
        let settings = load.settings;
        assert_eq!((settings.retry.times, settings.retry.delay), (2, Duration::from_millis(100)));
        let kept = settings.connections;
        assert_eq!((kept.max_requests, kept.max_age), (Some(50), Some(Duration::from_secs(30))));
        let ramp = RateStage { from: 10.0, to: 20.0, duration: Duration::from_secs(3) };
        assert_eq!(settings.pace, Pace::Open(vec![ramp]));
        let wrong = |from: &str, to: &str| load_text(&text.replace(from, to)).unwrap_err();
        assert_eq!(
            wrong("name: gateway", "name: web"),
            "x.yaml:7: spec.target[1].name: \"web\" is the name of another target: give each target its own name"
        );
        assert!(wrong("weight: 4", "wieght: 4").contains("spec.load.requests[0].wieght: unknown field"));
        assert!(wrong("weight: 4", "weight: 0").contains("spec.load.requests[0].weight: must be at least 1"));
        assert!(wrong("ramp: linear", "ramp: steep").contains("spec.load.stages[0].ramp"));
        assert!(wrong(", ramp: linear", "").contains("only a ramp can start at another rate"));
        assert!(wrong("body: '", "bodyFile: missing.json, body: '").contains("spec.load.requests[1].body"));
    }

    #[test]
    fn abort_window_precedes_disruptions() {
        let text = |load: &str, at: &str| {
            let disruptions =
                format!("  disruptions: [{{at: {at}, action: deletePod, selector: app=web}}]\n");
            load_text(&(MINIMAL.replace("duration: 10s", load) + &disruptions))
        };
        let load = "duration: 60s, abort: {dropped: 5%}";
        let abort = text(load, "10s").unwrap().load.abort.unwrap();
        assert_eq!(abort, Abort { share: 0.05, over: Duration::from_secs(10), requests: 50 });
        assert_eq!(
            text(load, "9s").unwrap_err(),
            "x.yaml:7: spec.disruptions[0].at: is before the load has been steady for 10.0 s, the period of spec.load.abort: start at 10.0 s or later"
        );
        let ramp = "stages: [{rate: 50, duration: 20s, ramp: linear}, {rate: 50, duration: 40s}], \
                    abort: {dropped: 0.5%, over: 5s, requests: 9}";
        assert_eq!(text(ramp, "25s").unwrap().load.steady_from(), Duration::from_secs(20));
        assert!(text(ramp, "24s").unwrap_err().contains("start at 25.0 s or later"));
        for (wrong, why) in [
            ("dropped: 5", "expected a share of the requests in percent, such as 5%"),
            ("dropped: 100%", "expected a share"),
            ("dropped: 5%, over: 10ms", "spec.load.abort.over: must be 1s or longer"),
            ("dropped: 5%, requests: 0", "spec.load.abort.requests: must be at least 1"),
        ] {
            let error = text(&format!("duration: 60s, abort: {{{wrong}}}"), "10s").unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn several_targets_may_share_one_service() {
        let text = MINIMAL.replace(
            "target: {service: web}",
            "target: [{service: web}, {service: web, node: n1}, {url: 'http://lb/', balances: requests}]",
        );
        let targets = load_text(&text).unwrap().targets;
        let names: Vec<_> = targets.iter().map(|target| (target.name.as_str(), target.balances)).collect();
        let connections = Balances::Connections;
        assert_eq!(names, [("web", connections), ("web@n1", connections), ("lb", Balances::Requests)]);
        let wrong = text.replace("{url: 'http://lb/', ", "{url: 'http://lb/', node: n1, ");
        assert!(load_text(&wrong).unwrap_err().contains("spec.target[2].node: only a Service has a port"));
    }

    #[test]
    fn override_applies_before_validation() {
        let overrides = ["load.rate=7".to_owned(), "load.connections.mode=keepalive".to_owned()];
        let loaded = parse::<Value>(MINIMAL, "x.yaml", Path::new("."), &overrides).unwrap();
        let sevens = RateStage { from: 7.0, to: 7.0, duration: Duration::from_secs(10) };
        assert_eq!(loaded.scenario.load.settings.pace, Pace::Open(vec![sevens]));
        assert_eq!(loaded.scenario.load.settings.connections, Connections::KEEPALIVE);
        let wrong = parse::<Value>(MINIMAL, "x.yaml", Path::new("."), &["load.rate=-1".to_owned()]);
        assert_eq!(
            wrong.unwrap_err().to_string(),
            "--set: spec.load.rate: is -1, must be above 0 and at most 1000000 requests/s"
        );
    }

    #[test]
    fn source_ports_parse_as_range() {
        let set = |range: &str| {
            let overrides = [format!("load.sourcePorts={range}")];
            let loaded = parse::<Value>(MINIMAL, "x.yaml", Path::new("."), &overrides);
            loaded.map(|l| l.scenario.load.settings.source_ports).map_err(|e| e.to_string())
        };
        assert_eq!(set("40000-40100"), Ok(Some(PortRange { first: 40_000, last: 40_100 })));
        let why = "--set: spec.load.sourcePorts: \"2-1\" is not a range of ports such as 32768-60999";
        assert_eq!(set("2-1").unwrap_err(), why);
    }

    #[test]
    fn scenario_errors_name_key_and_remedy() {
        let with = |line: &str| load_text(&format!("{MINIMAL}{line}")).unwrap_err();
        insta::assert_snapshot!(
            [
                with("  laod: {}\n"),
                with("  disruptions:\n  - {at: 1, action: deletePod, selector: a=b}\n"),
                with("  disruptions:\n  - {at: 1s, action: deletePod}\n"),
                with("  disruptions:\n  - {at: 9500ms, action: deletePod, selector: a=b}\n"),
                with("  disruptions:\n  - {at: 1s, action: deletePod, selector: a=b, repeat: 2}\n"),
                with("  manifests:\n  - {file: missing.yaml}\n"),
                with("  manifests:\n  - inline: {kind: Service}\n"),
                with("  manifests:\n  - inline: {apiVersion: v1, kind: Service, metadata: {name: other}}\n"),
                with("  expect: {dropped: {min: 2, max: 1}}\n"),
                with("  expect: {causes: {overload: {}}}\n"),
                load::<Value>("naive-exti", &[]).unwrap_err().to_string(),
            ]
            .join("\n"),
            @r#"
            x.yaml:7: spec.laod: unknown field `laod`, expected one of `cluster`, `manifests`, `target`, `load`, `sidecar`, `disruptions`, `settle`, `settleMax`, `expect`
            x.yaml:8: spec.disruptions[0].at: invalid type: integer `1`, expected a duration with its unit, such as 250ms, 30s or 1m30s
            x.yaml:8: spec.disruptions[0]: deletePod needs a selector, such as selector: app=web
            x.yaml:8: spec.disruptions[0].at: the last repetition would begin 9.5 s into a load of 10.0 s: lengthen spec.load.duration
            x.yaml:8: spec.disruptions[0]: repetitions need an interval: add every: 5s
            x.yaml:8: spec.manifests[0].file: ./missing.yaml: No such file or directory (os error 2)
            x.yaml:8: spec.manifests[0].inline: is not a Kubernetes object: it has no apiVersion
            x.yaml:5: spec.target.service: there is no Service "web" among the manifests: fix the name, or add the Service
            x.yaml:7: spec.expect.dropped: min 2 is above max 1
            x.yaml:7: spec.expect.causes.overload: needs min, max or worse
            there is no scenario "naive-exti": name a YAML file, or a scenario that `rolldrop scenarios` lists, such as naive-exit
            "#
        );
    }

    #[test]
    fn unmatched_selector_is_refused() {
        let text = BUILTIN[0].yaml.replace("selector: app=web", "selector: app=wbe");
        let error = load_text(&text).unwrap_err();
        assert!(error.contains("matches no pod template"), "{error}");
    }
}
