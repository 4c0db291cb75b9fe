//! Subject of a tuning: a workload, its serving containers, and how its pods currently terminate.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Map, Value, json};

use super::TuningRequest;
use super::platform_limits::PlatformLimits;
use rolldrop_drive::Interrupts;
use rolldrop_drive::act::Tenure;
use rolldrop_drive::api::{Caller, pod_selector, why_no_rollout};
use rolldrop_drive::cluster::{ChosenCluster, Cluster, Origin};
use rolldrop_drive::observe::changed_by_others;
use rolldrop_drive::plan::{
    Rounding, WorkloadSelection, check_holds, controller_of, find_rivals, ingresses_to, kubernetes_version,
    node_labels, number_of, objects_behind, services_behind_in,
};
use rolldrop_drive::run::{self, Naming, RunError};
use rolldrop_explain::model::figure_text::{counted, len};
use rolldrop_explain::{MAX_COARSENESS_S, RunResult};
use rolldrop_judge::tuning::{PodSettings, RolloutShape, Strategy};
use rolldrop_record::Clock;
use rolldrop_scenario::{Loaded, Place, Scenario};
use rolldrop_sidecar::inject::ending::{self, Ending, Sleepers, set_ending};
use rolldrop_sidecar::inject::{KubernetesVersion, pod_labels, selects};

/// First preStop sleep for measuring windows, in seconds, on a real cluster and on the embedded one.
const FIRST_SLEEP_S: [u64; 2] = [10, 5];
/// Growth factor of the sleep when a window outlasts it.
const GROWTH: u64 = 3;

/// Workload being tuned.
#[derive(Debug)]
pub(super) struct Subject {
    pub(super) sleepers: Sleepers,
    pub(super) ending: Ending,
    pub(super) rollout: RolloutShape,
    pub(super) limits: PlatformLimits,
    /// The workload's Kubernetes object.
    pub(super) object: Value,
    /// True if the scenario creates the workload.
    pub(super) is_own: bool,
    /// The workload's cluster; `None` if each run creates and removes its own.
    pub(super) elsewhere: Option<Elsewhere>,
    /// Possible disturbances, to print before the first run, one sentence each.
    pub(super) cautions: Vec<String>,
}

/// Cluster that the tuning does not create itself.
#[derive(Debug)]
pub(super) struct Elsewhere {
    /// Title of the cluster.
    pub(super) title: String,
    /// Command-line option with which the user names the cluster.
    pub(super) flag: String,
    pub(super) naming: Naming,
}

/// Fields that settings give a container.
#[derive(Debug, PartialEq)]
pub(super) struct ContainerPatch {
    /// List in the pod that has the container: `initContainers` for a native sidecar.
    pub(super) list: &'static str,
    pub(super) container: String,
    pub(super) fields: Map<String, Value>,
}

/// Converts tuning settings to the form that manifests use.
pub(super) fn ending_of(settings: PodSettings) -> Ending {
    Ending {
        sleep_s: settings.pre_stop_seconds,
        grace_s: settings.termination_grace_period_seconds,
        min_ready_s: settings.min_ready_seconds,
        readiness_delay_s: settings.readiness_delay_seconds,
    }
}

impl Subject {
    /// Finds the workload without changing anything.
    pub(super) async fn find(request: &TuningRequest, interrupts: &Interrupts) -> Result<Self, RunError> {
        let TuningRequest { source, options, .. } = request;
        let Loaded { scenario, cluster } = source.load(Vec::new())?;
        if request.max_cut.is_some() && scenario.load.settings.stream.is_none() {
            let why = "--grace needs a load of streams: set load.stream in the scenario, or add --set load.stream.kind=sse";
            return Err(RunError::Refused(why.to_owned()));
        }
        let naming = source.naming(cluster.as_ref());
        let choice = source.choice(cluster, Path::new("."));
        let embedded_nodes = match &choice {
            ChosenCluster::Embedded { config, .. } => Some(config.nodes),
            ChosenCluster::Kubeconfig { .. } | ChosenCluster::InCluster => None,
        };
        let mut elsewhere = None;
        let is_own = scenario.manifests.iter().any(|object| pod_labels(object).is_some());
        let (mut nodes, mut cautions) = (Vec::new(), Vec::new());
        let (objects, kubernetes) = match (is_own, embedded_nodes.is_some()) {
            (true, true) => (scenario.manifests.clone(), KubernetesVersion::NAMED_SIDECAR_PORTS),
            (false, true) => {
                let why =
                    "the embedded cluster runs only what a scenario deploys: name a scenario or a cluster";
                return Err(RunError::Refused(why.to_owned()));
            }
            (_, false) => {
                let cluster = Cluster::connect(choice).await;
                let cluster = cluster.map_err(RunError::failed("failed to connect to the cluster"))?;
                let caller = run::caller(&cluster, options.namespace.as_deref(), interrupts)?;
                let kubernetes = kubernetes_version(&caller).await?;
                nodes = node_labels(&caller).await?;
                let title =
                    format!("{}, namespace {}", cluster.title().unwrap_or_default(), caller.namespace);
                let flag = run::flag_of(cluster.origin().as_ref());
                elsewhere = Some(Elsewhere { title, flag, naming });
                let objects = if is_own {
                    scenario.manifests.clone()
                } else {
                    let mut objects = objects_behind(&caller, &whose(&scenario)).await?;
                    objects.extend(ingresses_to(&caller, &objects).await?);
                    let meant = workload(&objects, &scenario)?;
                    let reference = format!("{}/{}", text(&meant["kind"]), text(&meant["metadata"]["name"]));
                    let held = reference.parse().map_err(RunError::Refused)?;
                    cautions = check_holds(&caller, &[held], None).await?;
                    cautions.extend(find_rivals(&caller, meant).await?);
                    objects
                };
                cluster.shut_down().await;
                (objects, kubernetes)
            }
        };
        let object = workload(&objects, &scenario)?.clone();
        let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
        let title = format!("{kind}/{}", object["metadata"]["name"].as_str().unwrap_or_default());
        let containers = match request.containers.is_empty() {
            true => ending::on_the_path(&objects, &title)?,
            false => request.containers.clone(),
        };
        let sleepers = Sleepers { workload: title, containers, may_prefix: request.prefix_hook, kubernetes };
        let ending = ending::ending(&objects, &sleepers)?;
        let each_node = embedded_nodes.map_or_else(|| nodes_for(&object, &nodes), u64::from);
        let rollout = rollout(&object, &kind, each_node)?;
        cautions.extend(ends_all(&object, rollout));
        let limits = PlatformLimits::find(&nodes, &objects, request.shutdown_budget);
        Ok(Self { sleepers, ending, rollout, limits, object, is_own, elsewhere, cautions })
    }

    /// Reconnects to the workload's cluster.
    async fn connect(
        request: &TuningRequest,
        interrupts: &Interrupts,
    ) -> Result<(Scenario, Caller, Option<Origin>), RunError> {
        let loaded = request.source.load(Vec::new())?;
        let (scenario, cluster, caller) = request.connect(loaded, Path::new("."), interrupts).await?;
        let origin = cluster.origin();
        cluster.shut_down().await;
        Ok((scenario, caller, origin))
    }

    /// Marks the workload as in use by the tuning in a directory. Returns `None` if each run creates its own workload.
    ///
    /// # Errors
    /// Fails if another run or tuning is using the workload.
    pub(super) async fn hold(
        &self,
        request: &TuningRequest,
        interrupts: &Interrupts,
        (out, clock): (&Path, Clock),
    ) -> Result<Option<Tenure>, RunError> {
        if self.is_own {
            return Ok(None);
        }
        let (_, caller, origin) = Self::connect(request, interrupts).await?;
        let run = run::run_name(&format!("tune-{}", self.name()), clock.now());
        let workload = self.workload().parse().map_err(RunError::Refused)?;
        Ok(Some(Tenure::begin(caller, (out, clock), (&run, origin), &workload).await?))
    }

    /// Returns the reason why requests are lost regardless of the sleep, with a remedy, or `None` if a sleep may help.
    pub(super) fn why_no_sleep_helps(&self) -> Option<String> {
        why_no_sleep_helps(&self.object, self.workload(), self.rollout)
    }

    /// Describes changes that others have made to the workload since the tuning found it; `None` if there are none.
    ///
    /// # Errors
    /// Fails if the cluster cannot be read.
    pub(super) async fn changed_since(
        &self,
        request: &TuningRequest,
        interrupts: &Interrupts,
    ) -> Result<Option<String>, RunError> {
        if self.is_own {
            return Ok(None);
        }
        let (scenario, caller, _) = Self::connect(request, interrupts).await?;
        let objects = objects_behind(&caller, &whose(&scenario)).await?;
        Ok(changed_by_others(&self.object, workload(&objects, &scenario)?))
    }

    /// Returns the GitOps controller that would revert changes to the workload.
    pub(super) fn managed_by(&self) -> Option<&'static str> {
        controller_of(&self.object).filter(|_| !self.is_own)
    }

    pub(super) fn workload(&self) -> &str {
        &self.sleepers.workload
    }

    pub(super) fn name(&self) -> String {
        self.object["metadata"]["name"].as_str().unwrap_or("workload").to_owned()
    }

    /// Returns the fields that the settings give the containers with the sleep: those that a run with these settings
    /// applies, so that an app's own hook is kept as it is there.
    pub(super) fn container_patches(&self, settings: PodSettings) -> Vec<ContainerPatch> {
        let mut objects = [self.object.clone()];
        // Without an edit, the hooks stay as they are, also in a run.
        let _ = set_ending(&mut objects, &self.sleepers, ending_of(settings));
        let containers = |object: &Value, list: &str| {
            object["spec"]["template"]["spec"][list].as_array().cloned().unwrap_or_default()
        };
        let of_list = |list: &'static str| {
            let (now, before) = (containers(&objects[0], list), containers(&self.object, list));
            let patch = move |(now, before): (Value, Value)| {
                let container = text(&now["name"]).to_owned();
                let (hook, delay) =
                    (&now["lifecycle"]["preStop"], &now["readinessProbe"]["initialDelaySeconds"]);
                let mut fields = Map::new();
                if !hook.is_null() {
                    fields.insert("lifecycle".to_owned(), json!({"preStop": hook}));
                }
                if *delay != before["readinessProbe"]["initialDelaySeconds"] {
                    fields.insert("readinessProbe".to_owned(), json!({"initialDelaySeconds": delay}));
                }
                ContainerPatch { list, container, fields }
            };
            now.into_iter().zip(before).map(patch)
        };
        let all = ["containers", "initContainers"].into_iter().flat_map(of_list);
        let is_set = |patch: &ContainerPatch| {
            !patch.fields.is_empty() && self.sleepers.containers.contains(&patch.container)
        };
        all.filter(is_set).collect()
    }

    /// Returns the same fields by container, a line of YAML each.
    pub(super) fn container_fields(&self, settings: PodSettings) -> BTreeMap<String, Vec<String>> {
        let lines = |fields: Map<String, Value>| {
            fields.iter().map(|(key, value)| format!("{key}: {}", flow(value))).collect()
        };
        let patches = self.container_patches(settings).into_iter();
        patches.map(|patch| (patch.container, lines(patch.fields))).collect()
    }

    /// Returns the workload's pod selector as text.
    ///
    /// # Errors
    /// Fails if the workload has no valid selector.
    pub(super) fn selector(&self) -> Result<String, RunError> {
        pod_selector(&self.object).map_err(|why| RunError::Refused(format!("{}: {why}", self.workload())))
    }

    /// Explains why, judging by an earlier run, there are too few connections to show the pods' windows. Returns `None`
    /// if there are enough.
    pub(super) fn too_few_connections(&self, before: &RunResult) -> Option<String> {
        let windows = before.terminations.iter().flat_map(|t| &t.windows).map(|window| window.rate_before);
        let named = windows.filter(|rate| *rate > 0.0).fold(f64::INFINITY, f64::min);
        let each = named.min(before.load.rate / self.rollout.pods.max(1) as f64);
        let least = 3.0 / MAX_COARSENESS_S;
        (each < least).then(|| {
            let rate = (before.load.rate * least / each.max(0.1)).ceil();
            format!(
                "a pod got only {each:.1} new connections/s, but measuring its window takes {least:.0}/s: use \
                 --rate {rate:.0} or more"
            )
        })
    }

    /// Returns the current termination settings of the pods.
    pub(super) const fn settings(&self) -> PodSettings {
        PodSettings {
            pre_stop_seconds: self.ending.sleep_s,
            termination_grace_period_seconds: self.ending.grace_s,
            min_ready_seconds: self.ending.min_ready_s,
            readiness_delay_seconds: self.ending.readiness_delay_s,
        }
    }

    /// Returns the sleeps to measure windows with, in the order to try them, in seconds.
    pub(super) fn sleeps(&self, most: Duration) -> Vec<u64> {
        let [real, embedded] = FIRST_SLEEP_S;
        let first = if self.elsewhere.is_some() { real } else { embedded };
        let (set, most) = (self.ending.sleep_s, most.as_secs());
        let growing = std::iter::successors(Some(first), |sleep_s| sleep_s.checked_mul(GROWTH));
        let mut sleeps: Vec<u64> = growing.take_while(|sleep_s| *sleep_s < most).chain([most]).collect();
        sleeps.retain(|sleep_s| *sleep_s > set);
        if sleeps.is_empty() { vec![set] } else { sleeps }
    }

    /// Returns the settings for measuring windows with this sleep. The time left for the app after its sleep stays the
    /// same.
    pub(super) const fn wide(&self, sleep_s: u64) -> PodSettings {
        let set = self.settings();
        let of_app = set.termination_grace_period_seconds.saturating_sub(set.pre_stop_seconds);
        PodSettings { pre_stop_seconds: sleep_s, termination_grace_period_seconds: sleep_s + of_app, ..set }
    }
}

/// Writes a value as YAML on one line.
fn flow(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields: Vec<String> =
                fields.iter().map(|(key, value)| format!("{key}: {}", flow(value))).collect();
            format!("{{{}}}", fields.join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        // A number, or a string in quotes.
        _ => value.to_string(),
    }
}

/// Selects the workloads behind the targets.
pub(super) fn whose(scenario: &Scenario) -> WorkloadSelection<'_> {
    let mut whose = WorkloadSelection {
        workloads: scenario.sidecar_workloads.iter().collect(),
        ..WorkloadSelection::default()
    };
    for target in &scenario.targets {
        match &target.place {
            Place::Service { name, .. } => whose.services.push(name),
            Place::Url(url) => whose.urls.push(url),
        }
    }
    whose
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Finds the named workload, or the only one behind the targets.
pub(super) fn workload<'a>(objects: &'a [Value], scenario: &Scenario) -> Result<&'a Value, RunError> {
    if let [named] = &scenario.sidecar_workloads[..] {
        return objects
            .iter()
            .find(|object| named.is(object))
            .ok_or_else(|| RunError::Refused(format!("there is no {named}: correct --workload")));
    }
    let mut services: Vec<String> = Vec::new();
    for target in &scenario.targets {
        match &target.place {
            Place::Service { name, .. } => services.push(name.clone()),
            Place::Url(url) => services.extend(services_behind_in(url, objects)),
        }
    }
    let is_meant = |service: &&Value| {
        let name = service["metadata"]["name"].as_str().unwrap_or_default();
        service["kind"] == "Service" && (services.is_empty() || services.iter().any(|meant| meant == name))
    };
    let routing: Vec<&Value> = objects.iter().filter(is_meant).collect();
    let is_behind =
        |object: &&Value| pod_labels(object).is_some_and(|labels| routing.iter().any(|s| selects(s, labels)));
    let behind: Vec<&Value> = objects.iter().filter(is_behind).collect();
    match behind.as_slice() {
        [only] => Ok(only),
        [] => {
            let why = "no Deployment, StatefulSet or DaemonSet creates the pods behind the target's Service";
            Err(RunError::Refused(why.to_owned()))
        }
        several => {
            let names: Vec<&str> =
                several.iter().filter_map(|object| object["metadata"]["name"].as_str()).collect();
            let names = names.join(", ");
            let why =
                format!("several workloads are behind the target ({names}): choose one with --workload");
            Err(RunError::Refused(why))
        }
    }
}

/// Returns the reason why a rollout loses requests regardless of the sleep, with a remedy, or `None` if a sleep may
/// help.
fn why_no_sleep_helps(object: &Value, workload: &str, rollout: RolloutShape) -> Option<String> {
    let pods = counted(rollout.pods, "pod");
    let (why, remedy) = match rollout.strategy {
        Strategy::Recreate => (
            format!("its Recreate strategy terminates its {pods} before it starts new ones"),
            "set strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}",
        ),
        Strategy::InPlace { at_once } if at_once >= rollout.pods => (
            format!("it terminates its {pods} before it starts new ones"),
            match object["kind"] == "DaemonSet" {
                true => {
                    "set updateStrategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}"
                }
                false => "use at least two replicas, and replace fewer of them at once (maxUnavailable)",
            },
        ),
        Strategy::InPlace { .. } | Strategy::Rolling { .. } => return None,
    };
    Some(format!(
        "no preStop sleep prevents the losses in a rollout of {workload}: {why}, and nothing answers in between. \
         Nothing was changed. To lose nothing, {remedy}"
    ))
}

/// Returns a caution if a Deployment's rollouts may terminate all pods before new ones are ready.
fn ends_all(object: &Value, rollout: RolloutShape) -> Option<String> {
    let RolloutShape { pods, strategy: Strategy::Rolling { .. } } = rollout else { return None };
    let most = &object["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"];
    let may_be_missing = serde_json::from_value(most.clone()).ok();
    let all = usize::try_from(pods).unwrap_or(usize::MAX);
    let is_all = may_be_missing.is_some_and(|most| number_of(&most, all, Rounding::Down) >= all);
    is_all.then(|| {
        format!(
            "a rollout may terminate all {pods} pods at once (maxUnavailable: {most}). Until new pods are ready, only \
             terminating pods answer, and clients behind a gateway get no answer. To keep serving, set \
             maxUnavailable: 0 and maxSurge: 1"
        )
    })
}

/// Counts the nodes that match the node selector in a workload's pod template.
fn nodes_for(object: &Value, nodes: &[BTreeMap<String, String>]) -> u64 {
    let selector = object["spec"]["template"]["spec"]["nodeSelector"].as_object();
    let is_selected = |labels: &&BTreeMap<String, String>| {
        let mut wanted = selector.into_iter().flatten();
        wanted.all(|(name, value)| labels.get(name).is_some_and(|label| *value == label.as_str()))
    };
    len(nodes.iter().filter(is_selected).count())
}

/// Describes a workload's rollouts. `each_node` is the pod count for a DaemonSet that does not report its own.
fn rollout(object: &Value, kind: &str, each_node: u64) -> Result<RolloutShape, RunError> {
    let refused = |why: String| Err(RunError::Refused(why));
    let (spec, name) = (&object["spec"], object["metadata"]["name"].as_str().unwrap_or_default());
    if let Some(why) = why_no_rollout(object) {
        return refused(format!("{kind} {name} would not replace its pods: {why}"));
    }
    let partition = spec["updateStrategy"]["rollingUpdate"]["partition"].as_u64().unwrap_or(0);
    if partition > 0 {
        return refused(format!(
            "{kind} {name} would not replace pods with ordinals below {partition}: set its partition to 0"
        ));
    }
    let pods = match kind {
        "daemonset" => object["status"]["desiredNumberScheduled"].as_u64().unwrap_or(each_node),
        _ => spec["replicas"].as_u64().unwrap_or(1),
    };
    // Percentages are rounded as in a rollout.
    let of = |value: &Value, default: &str, round| {
        let value = serde_json::from_value(value.clone()).ok();
        let value: IntOrString = value.unwrap_or_else(|| IntOrString::String(default.to_owned()));
        len(number_of(&value, usize::try_from(pods).unwrap_or(usize::MAX), round))
    };
    let strategy = match kind {
        "deployment" if spec["strategy"]["type"] == "Recreate" => Strategy::Recreate,
        "deployment" => {
            let rolling = &spec["strategy"]["rollingUpdate"];
            let surge = of(&rolling["maxSurge"], "25%", Rounding::Up);
            Strategy::Rolling { at_once: surge + of(&rolling["maxUnavailable"], "25%", Rounding::Down) }
        }
        "statefulset" | "daemonset" => {
            let rolling = &spec["updateStrategy"]["rollingUpdate"];
            match of(&rolling["maxSurge"], "0", Rounding::Up) {
                0 => {
                    // A StatefulSet rounds a percentage down, a DaemonSet up.
                    let round = if kind == "statefulset" { Rounding::Down } else { Rounding::Up };
                    Strategy::InPlace { at_once: of(&rolling["maxUnavailable"], "", round).max(1) }
                }
                at_once => Strategy::Rolling { at_once },
            }
        }
        kind => {
            return refused(format!("a {kind} has no rollout: name a Deployment, StatefulSet or DaemonSet"));
        }
    };
    if pods == 0 && kind == "daemonset" {
        return refused(format!(
            "{kind} {name} has 0 pods: no visible node matches its nodeSelector. Correct it, or grant permission to \
             list nodes"
        ));
    }
    let is_alone = matches!(strategy, Strategy::Rolling { .. }) && pods < 2;
    if is_alone || pods == 0 {
        let pods = counted(pods, "pod");
        return refused(format!(
            "{kind} {name} has {pods}: a termination can be measured only while another pod serves. Scale it to 2 or \
             more"
        ));
    }
    Ok(RolloutShape { pods, strategy })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rollout_strategy_may_make_sleep_futile() {
        let deployment = |strategy: Value| {
            let spec = json!({"replicas": 3, "strategy": strategy});
            (json!({"kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}), "deployment")
        };
        let in_place = |kind: &'static str, replicas: u64, rolling: Value| {
            let spec = json!({"replicas": replicas, "updateStrategy": {"rollingUpdate": rolling}});
            (json!({"kind": kind, "metadata": {"name": "web"}, "spec": spec}), kind)
        };
        let why = |(object, kind): (Value, &str)| {
            let rollout = rollout(&object, &kind.to_lowercase(), 3).unwrap();
            why_no_sleep_helps(&object, "deployment/web", rollout)
        };
        let recreate = why(deployment(json!({"type": "Recreate"}))).unwrap();
        assert!(
            recreate.contains("Recreate strategy terminates its 3 pods") && recreate.contains("maxSurge: 1"),
            "{recreate}"
        );
        let alone = why(in_place("StatefulSet", 1, Value::Null)).unwrap();
        assert!(
            alone.contains("terminates its 1 pod before") && alone.contains("at least two replicas"),
            "{alone}"
        );
        let all = why(in_place("DaemonSet", 3, json!({"maxUnavailable": "100%"}))).unwrap();
        assert!(all.contains("terminates its 3 pods before") && all.contains("maxSurge: 1"), "{all}");
        for helped in [
            deployment(Value::Null),
            in_place("StatefulSet", 3, Value::Null),
            in_place("DaemonSet", 3, json!({"maxUnavailable": 0, "maxSurge": 3})),
        ] {
            assert_eq!(why(helped), None);
        }
        let (all_at_once, _) =
            deployment(json!({"rollingUpdate": {"maxUnavailable": "100%", "maxSurge": 0}}));
        let rolling = rollout(&all_at_once, "deployment", 0).unwrap();
        let caution = ends_all(&all_at_once, rolling).unwrap();
        assert!(
            caution.starts_with("a rollout may terminate all 3 pods at once (maxUnavailable: \"100%\")"),
            "{caution}"
        );
    }

    #[test]
    fn blocked_rollouts_are_refused() {
        let why = |kind: &str, spec: Value| {
            let object = json!({"metadata": {"name": "web"}, "spec": spec});
            rollout(&object, kind, 0).unwrap_err().to_string()
        };
        assert!(
            why("deployment", json!({"replicas": 3, "paused": true})).contains("is paused: resume it first")
        );
        let on_delete = json!({"replicas": 3, "updateStrategy": {"type": "OnDelete"}});
        assert!(why("statefulset", on_delete).contains("OnDelete"));
        let held_back = json!({"replicas": 3, "updateStrategy": {"rollingUpdate": {"partition": 2}}});
        assert!(why("statefulset", held_back).contains("with ordinals below 2: set its partition to 0"));
        assert!(why("deployment", json!({"replicas": 0})).starts_with("deployment web has 0 pods"));
    }

    #[test]
    fn daemon_set_counts_selected_nodes() {
        let labels = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let nodes = [labels(&[("tier", "edge"), ("os", "linux")]), labels(&[("os", "linux")])];
        let set = |selector: Value| {
            json!({"kind": "DaemonSet", "metadata": {"name": "web"},
                "spec": {"template": {"spec": {"nodeSelector": selector}}}})
        };
        assert_eq!(nodes_for(&set(Value::Null), &nodes), 2);
        assert_eq!(nodes_for(&set(json!({"os": "linux", "tier": "edge"})), &nodes), 1);
        let of = |set: Value, each_node| rollout(&set, "daemonset", each_node).map(|rollout| rollout.pods);
        assert_eq!(of(set(Value::Null), 2).unwrap(), 2, "a DaemonSet from a scenario has no status");
        let mut running = set(Value::Null);
        running["status"] = json!({"desiredNumberScheduled": 3});
        assert_eq!(of(running, 2).unwrap(), 3);
        let error = of(set(Value::Null), 0).unwrap_err().to_string();
        assert!(error.starts_with("daemonset web has 0 pods: no visible node"), "{error}");
    }

    #[test]
    fn batch_size_follows_surge_and_unavailability() {
        let of = |rolling: Value| {
            let spec = json!({"replicas": 10, "strategy": {"rollingUpdate": rolling}});
            rollout(&json!({"spec": spec}), "deployment", 0).unwrap().strategy
        };
        // 25 % of 10: surge of 3, and 2 unavailable.
        assert_eq!(of(Value::Null), Strategy::Rolling { at_once: 5 });
        assert_eq!(of(json!({"maxSurge": 1, "maxUnavailable": 0})), Strategy::Rolling { at_once: 1 });
        let in_place = |kind: &str, most: Value| {
            let strategy = json!({"rollingUpdate": {"maxUnavailable": most}});
            let object = json!({"spec": {"replicas": 10, "updateStrategy": strategy}});
            rollout(&object, kind, 10).unwrap().strategy
        };
        // 25 % of 10, rounded as their controllers do.
        assert_eq!(in_place("statefulset", json!("25%")), Strategy::InPlace { at_once: 2 });
        assert_eq!(in_place("statefulset", json!("5%")), Strategy::InPlace { at_once: 1 });
        assert_eq!(in_place("daemonset", json!("25%")), Strategy::InPlace { at_once: 3 });
        let alone = json!({"metadata": {"name": "web"}, "spec": {"replicas": 1}});
        let error = rollout(&alone, "deployment", 0).unwrap_err().to_string();
        assert!(error.starts_with("deployment web has 1 pod:"), "{error}");
    }
}
