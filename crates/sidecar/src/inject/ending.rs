//! Settings that govern how a workload's pods terminate and start. Reads and sets the containers' preStop sleep, the
//! grace period, the readiness probe delay and minReadySeconds, in objects and in manifest text.
//!
//! A hook that does more than sleep is changed only on request, to a hook that sleeps first. Otherwise the error shows
//! what the hook would become.

use serde_json::{Value, json};
use thiserror::Error;

use super::Output;
use super::annotated_object;
use super::options::KubernetesVersion;
use super::port::{self, Services};
use rolldrop_manifest::{Edited, ManifestEdit, ManifestError, ManifestObject, Manifests};

/// Grace period of pods that specify none (pkg/apis/core/v1/defaults.go).
const DEFAULT_GRACE_S: u64 = 30;
/// Service mesh containers that carry the pod's traffic. They get the sleep too; without it, they would stop first.
const MESH_PROXIES: [&str; 4] = ["istio-proxy", "linkerd-proxy", "consul-dataplane", "kuma-sidecar"];
const SHELLS: [&str; 4] = ["sh", "bash", "ash", "dash"];
/// The shell that sleeps before a command, and the end of its script, which runs the words after the script.
const SHELL: &str = "/bin/sh";
const THEN: &str = "; exec \"$0\" \"$@\"";

/// Settings for the termination and start of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The preStop sleep, in seconds; 0 for none.
    pub sleep_s: u64,
    /// `terminationGracePeriodSeconds`, at least the sleep.
    pub grace_s: u64,
    /// `minReadySeconds` of the workload; 0 for none.
    pub min_ready_s: u64,
    /// `initialDelaySeconds` of the containers' readiness probes; `None` without a probe.
    pub readiness_delay_s: Option<u64>,
}

/// A workload whose termination settings are read or set: the containers that sleep, and the oldest supported
/// Kubernetes version.
#[derive(Clone, Debug)]
pub struct Sleepers {
    /// Title of the workload, such as `deployment/web`.
    pub workload: String,
    /// Names of the containers with the sleep.
    pub containers: Vec<String>,
    /// True if a sleep may be inserted before a hook's program.
    pub may_prefix: bool,
    /// Oldest Kubernetes version that the result must support.
    pub kubernetes: KubernetesVersion,
}

/// Failure to read or set the termination settings.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum EndingError {
    /// The manifests cannot be parsed or edited.
    #[error(transparent)]
    Text(#[from] ManifestError),
    /// The workload does not exist.
    #[error("there is no {0} among the manifests")]
    NoWorkload(String),
    /// A container does not exist.
    #[error("{workload} has no container {container}; its containers are {known}")]
    NoContainer { workload: String, container: String, known: String },
    /// The serving container is ambiguous.
    #[error(
        "{workload} has several containers ({known}), and none declares a port that a Service uses: name one with --container"
    )]
    Ambiguous { workload: String, known: String },
    /// A hook does something other than sleep.
    #[error(
        "container {container} in {workload} has a preStop hook that does more than sleep, so rolldrop does not change it; {instead}"
    )]
    Hook { workload: String, container: String, instead: String },
}

/// A container's preStop hook.
#[derive(Clone, Debug, PartialEq)]
enum ContainerPreStop<'a> {
    /// No hook.
    None,
    /// `sleep: {seconds: N}`.
    Action(u64),
    /// A program that sleeps: the command's words before the number, and the prefix of the number within its own word.
    Program { words: &'a [Value], prefix: &'static str, seconds: u64 },
    /// A shell that sleeps and then runs this command.
    Before { command: &'a [Value], seconds: u64 },
    /// A program that does more than sleep.
    Command(&'a [Value]),
    /// A hook of another kind.
    Other,
}

impl<'a> ContainerPreStop<'a> {
    fn of(container: &'a Value) -> Self {
        let hook = &container["lifecycle"]["preStop"];
        if hook.is_null() {
            return Self::None;
        }
        if let Some(seconds) = hook["sleep"]["seconds"].as_u64() {
            return Self::Action(seconds);
        }
        match hook["exec"]["command"].as_array() {
            Some(command) => {
                Self::program(command).or_else(|| Self::before(command)).unwrap_or(Self::Command(command))
            }
            None => Self::Other,
        }
    }

    /// Recognises the form that [`Self::with`] uses to insert a sleep before a command.
    fn before(command: &'a [Value]) -> Option<Self> {
        let [shell, option, script, command @ ..] = command else { return None };
        let seconds = script.as_str()?.strip_prefix("sleep ")?.strip_suffix(THEN)?.parse().ok()?;
        (*shell == SHELL && *option == "-c").then_some(Self::Before { command, seconds })
    }

    fn program(command: &'a [Value]) -> Option<Self> {
        let (last, words) = command.split_last()?;
        let last = last.as_str()?;
        let (number, prefix) = match words {
            [program] if base_name(program) == Some("sleep") => (last, ""),
            [shell, option] if *option == "-c" && SHELLS.contains(&base_name(shell)?) => {
                (last.trim().strip_prefix("sleep ")?, "sleep ")
            }
            _ => return None,
        };
        let seconds = number.trim().trim_end_matches('s').parse().ok()?;
        Some(Self::Program { words, prefix, seconds })
    }

    /// Returns the hook's sleep in seconds; `None` if the sleep of this hook cannot be changed.
    fn seconds(&self, may_prefix: bool) -> Option<u64> {
        match self {
            Self::None => Some(0),
            Self::Action(seconds) | Self::Program { seconds, .. } | Self::Before { seconds, .. } => {
                Some(*seconds)
            }
            Self::Command(_) => may_prefix.then_some(0),
            Self::Other => None,
        }
    }

    /// Returns the hook with this sleep, keeping its form; `None` if the hook cannot be changed.
    fn with(&self, seconds: u64, kubernetes: KubernetesVersion) -> Option<Value> {
        match self {
            Self::Other => None,
            Self::Command(command) | Self::Before { command, .. } => {
                let sleep = [json!(SHELL), json!("-c"), json!(format!("sleep {seconds}{THEN}"))];
                let command: Vec<&Value> = sleep.iter().chain(*command).collect();
                Some(json!({"exec": {"command": command}}))
            }
            Self::Program { words, prefix, .. } => {
                let number = Value::from(format!("{prefix}{seconds}"));
                let command: Vec<&Value> = words.iter().chain([&number]).collect();
                Some(json!({"exec": {"command": command}}))
            }
            Self::None if kubernetes < KubernetesVersion::SLEEP_ACTIONS => {
                Some(json!({"exec": {"command": ["sleep", seconds.to_string()]}}))
            }
            Self::None | Self::Action(_) => Some(json!({"sleep": {"seconds": seconds}})),
        }
    }
}

/// Returns the sleep, in seconds, of a command that does nothing else: `sleep 5`, `/bin/sleep 5`, or the same in a
/// shell.
pub(crate) fn command_sleep_s(command: &[String]) -> Option<i64> {
    let words: Vec<Value> = command.iter().map(|word| word.as_str().into()).collect();
    let ContainerPreStop::Program { seconds, .. } = ContainerPreStop::program(&words)? else { return None };
    i64::try_from(seconds).ok()
}

fn base_name(word: &Value) -> Option<&str> {
    word.as_str()?.rsplit('/').next()
}

/// Returns the containers in a pod, with their JSON pointers.
fn containers<'a>(object: &'a ManifestObject, pod: &str) -> impl Iterator<Item = (String, &'a Value)> {
    let pod = pod.to_owned();
    ["containers", "initContainers"].into_iter().flat_map(move |list| {
        let at = format!("{pod}/spec/{list}");
        let all = object.get(&at).as_array().into_iter().flatten().enumerate();
        let stays = move |container: &Value| list == "containers" || container["restartPolicy"] == "Always";
        all.filter(move |(_, container)| stays(container))
            .map(move |(n, container)| (format!("{at}/{n}"), container))
    })
}

fn name(container: &Value) -> &str {
    container["name"].as_str().unwrap_or_default()
}

fn names<'a>(containers: impl Iterator<Item = (String, &'a Value)>) -> String {
    containers.map(|(_, container)| name(container)).collect::<Vec<_>>().join(", ")
}

/// Finds a workload's object, and the JSON pointer to the pod metadata and spec.
fn workload<'a>(
    objects: &'a [ManifestObject],
    title: &str,
) -> Result<(&'a ManifestObject, &'static str), EndingError> {
    let found = objects.iter().find(|object| object.title() == title);
    found
        .and_then(|object| Some((object, annotated_object::pod(&object.value)?)))
        .ok_or_else(|| EndingError::NoWorkload(title.to_owned()))
}

/// Returns the containers that requests from Services pass through: containers with a port that a Service uses, and
/// mesh proxies. A pod's only container always counts.
///
/// # Errors
///
/// Fails if the workload does not exist, or the serving container is ambiguous.
pub fn on_the_path(objects: &[Value], title: &str) -> Result<Vec<String>, EndingError> {
    let objects = annotated_object::all(objects);
    let (object, pod) = workload(&objects, title)?;
    let targets = port::targets(object, pod, &Services::among(&objects));
    let serves = |container: &Value| {
        let ports = container["ports"].as_array().into_iter().flatten();
        ports
            .filter_map(|port| port["containerPort"].as_u64())
            .any(|port| targets.iter().any(|to| u64::from(*to) == port))
    };
    let is_mesh = |container: &Value| MESH_PROXIES.contains(&name(container));
    let apps: Vec<&Value> = containers(object, pod)
        .map(|(_, container)| container)
        .filter(|container| !is_mesh(container))
        .collect();
    let serving = match apps.as_slice() {
        [only] => vec![*only],
        several => several.iter().copied().filter(|container| serves(container)).collect(),
    };
    if serving.is_empty() {
        return Err(EndingError::Ambiguous {
            workload: title.to_owned(),
            known: names(containers(object, pod)),
        });
    }
    let mesh = containers(object, pod).map(|(_, container)| container).filter(|container| is_mesh(container));
    Ok(serving.into_iter().chain(mesh).map(|container| name(container).to_owned()).collect())
}

/// Reads the current termination and start settings of a workload's pods. The shortest sleep and the longest delay
/// among the containers count.
///
/// # Errors
///
/// Fails if the workload does not exist, or a hook does something other than sleep.
pub fn ending(objects: &[Value], sleepers: &Sleepers) -> Result<Ending, EndingError> {
    ending_of(&annotated_object::all(objects), sleepers)
}

fn ending_of(objects: &[ManifestObject], sleepers: &Sleepers) -> Result<Ending, EndingError> {
    let (object, pod) = workload(objects, &sleepers.workload)?;
    let (mut sleep_s, mut readiness_delay_s) = (None, None);
    for container in &sleepers.containers {
        let (_, container) = sleepers.find(object, pod, container)?;
        readiness_delay_s = readiness_delay_s.max(delay_of(container));
        let seconds = ContainerPreStop::of(container)
            .seconds(sleepers.may_prefix)
            .ok_or_else(|| sleepers.hook(container, 0))?;
        sleep_s = Some(sleep_s.map_or(seconds, |least: u64| least.min(seconds)));
    }
    Ok(Ending {
        sleep_s: sleep_s.unwrap_or(0),
        grace_s: object
            .get(&format!("{pod}/spec/terminationGracePeriodSeconds"))
            .as_u64()
            .unwrap_or(DEFAULT_GRACE_S),
        min_ready_s: object.get("/spec/minReadySeconds").as_u64().unwrap_or(0),
        readiness_delay_s,
    })
}

/// Returns the delay of a container's readiness probe; `None` without one.
fn delay_of(container: &Value) -> Option<u64> {
    let probe = container["readinessProbe"].as_object()?;
    Some(probe.get("initialDelaySeconds").and_then(Value::as_u64).unwrap_or(0))
}

/// Sets the termination and start settings of a workload's pods.
///
/// # Errors
///
/// Fails if the workload does not exist, or a hook does something other than sleep.
pub fn set_ending(objects: &mut [Value], sleepers: &Sleepers, ending: Ending) -> Result<(), EndingError> {
    for edit in sleepers.edits(&annotated_object::all(objects), ending)? {
        edit.apply(&mut objects[edit.document]);
    }
    Ok(())
}

/// Like [`set_ending`], but edits manifest text and keeps its comments.
///
/// # Errors
///
/// Fails if the text cannot be parsed, the workload does not exist, or a hook does something other than sleep.
pub fn set_ending_in(
    file: &str,
    text: &str,
    sleepers: &Sleepers,
    ending: Ending,
) -> Result<Output, EndingError> {
    let manifests = Manifests::parse(file, text)?;
    let edits = sleepers.edits(&manifests.objects(), ending)?;
    let Edited { text, notes } = manifests.edited(&edits);
    Ok(Output { text, notes })
}

impl Sleepers {
    fn edits(&self, objects: &[ManifestObject], ending: Ending) -> Result<Vec<ManifestEdit>, EndingError> {
        // The shortest sleep counts, so containers that sleep longer stay as they are.
        if ending_of(objects, self).is_ok_and(|now| now == ending) {
            return Ok(Vec::new());
        }
        let (object, pod) = workload(objects, &self.workload)?;
        let mut edits = Vec::new();
        for container in &self.containers {
            let (at, container) = self.find(object, pod, container)?;
            let hook = ContainerPreStop::of(container);
            if let (Some(delay), Some(now)) = (ending.readiness_delay_s, delay_of(container))
                && delay != now
            {
                edits.push(object.set(format!("{at}/readinessProbe/initialDelaySeconds"), delay));
            }
            let cannot = || self.hook(container, ending.sleep_s);
            if hook.seconds(self.may_prefix).ok_or_else(cannot)? == ending.sleep_s {
                continue;
            }
            let with = hook.with(ending.sleep_s, self.kubernetes).ok_or_else(cannot)?;
            edits.push(match (&hook, container["lifecycle"].is_object()) {
                (ContainerPreStop::Action(_), _) => {
                    object.set(format!("{at}/lifecycle/preStop/sleep/seconds"), ending.sleep_s)
                }
                (_, true) => object.set(format!("{at}/lifecycle/preStop"), with),
                (_, false) => object.set(format!("{at}/lifecycle"), json!({"preStop": with})),
            });
        }
        let now = |pointer: &str, default| object.get(pointer).as_u64().unwrap_or(default);
        let grace = format!("{pod}/spec/terminationGracePeriodSeconds");
        if now(&grace, DEFAULT_GRACE_S) != ending.grace_s {
            edits.push(object.set(grace, ending.grace_s));
        }
        if now("/spec/minReadySeconds", 0) != ending.min_ready_s && !pod.is_empty() {
            edits.push(object.set("/spec/minReadySeconds", ending.min_ready_s));
        }
        Ok(edits)
    }

    fn find<'a>(
        &self,
        object: &'a ManifestObject,
        pod: &str,
        wanted: &str,
    ) -> Result<(String, &'a Value), EndingError> {
        let found = containers(object, pod).find(|(_, container)| name(container) == wanted);
        found.ok_or_else(|| EndingError::NoContainer {
            workload: self.workload.clone(),
            container: wanted.to_owned(),
            known: names(containers(object, pod)),
        })
    }

    /// Returns the error for a container's hook that cannot be made to sleep this long.
    fn hook(&self, container: &Value, seconds: u64) -> EndingError {
        let hook = ContainerPreStop::of(container);
        let instead = match hook.with(seconds, self.kubernetes) {
            Some(both) => format!(
                "with --prefix-hook it sleeps first and then runs the same command, if the image has a shell: preStop: {both}"
            ),
            None => format!("make the endpoint that it calls wait {seconds} s before it answers"),
        };
        EndingError::Hook { workload: self.workload.clone(), container: name(container).to_owned(), instead }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOP: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
        # The app itself.
        - name: app
          image: shop/web:1.2
          ports: [{name: http, containerPort: 8080}]
        - name: metrics
          image: metrics
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: http}]}
";
    const FIVE: Ending = Ending { sleep_s: 5, grace_s: 40, min_ready_s: 0, readiness_delay_s: None };

    fn objects(text: &str) -> Vec<Value> {
        Manifests::parse("shop.yaml", text)
            .expect("manifests")
            .objects()
            .into_iter()
            .map(|object| object.value)
            .collect()
    }

    fn sleepers(containers: &[&str]) -> Sleepers {
        Sleepers {
            workload: "deployment/web".into(),
            containers: containers.iter().map(|name| (*name).to_owned()).collect(),
            may_prefix: false,
            kubernetes: KubernetesVersion::NAMED_SIDECAR_PORTS,
        }
    }

    fn with_hook(hook: &str) -> String {
        SHOP.replace(
            "          image: shop/web:1.2\n",
            &format!("          image: shop/web:1.2\n          lifecycle: {{preStop: {hook}}}\n"),
        )
    }

    #[test]
    fn serving_and_mesh_containers_sleep() {
        assert_eq!(on_the_path(&objects(SHOP), "deployment/web").unwrap(), ["app"]);
        let meshed = SHOP.replace("name: metrics", "name: istio-proxy");
        assert_eq!(on_the_path(&objects(&meshed), "deployment/web").unwrap(), ["app", "istio-proxy"]);
        let portless = SHOP.replace("          ports: [{name: http, containerPort: 8080}]\n", "");
        let error = on_the_path(&objects(&portless), "deployment/web").unwrap_err().to_string();
        assert!(
            error.contains("several containers (app, metrics)") && error.contains("--container"),
            "{error}"
        );
        let error = on_the_path(&objects(SHOP), "deployment/shop").unwrap_err().to_string();
        assert_eq!(error, "there is no deployment/shop among the manifests");
    }

    #[test]
    fn edited_text_keeps_comments() {
        let Output { text, notes } = set_ending_in("shop.yaml", SHOP, &sleepers(&["app"]), FIVE).unwrap();
        assert_eq!(notes, Vec::<String>::new());
        assert!(text.contains("# The app itself."), "{text}");
        assert_eq!(ending(&objects(&text), &sleepers(&["app"])).unwrap(), FIVE);
        let again = set_ending_in("shop.yaml", &text, &sleepers(&["app"]), FIVE).unwrap().text;
        assert_eq!(again, text, "nothing is left to set");
    }

    #[test]
    fn changed_sleep_keeps_its_form() {
        for (hook, seconds, set) in [
            ("{sleep: {seconds: 3}}", 3, json!({"sleep": {"seconds": 5}})),
            ("{exec: {command: [sleep, '3']}}", 3, json!({"exec": {"command": ["sleep", "5"]}})),
            ("{exec: {command: [/bin/sleep, 3s]}}", 3, json!({"exec": {"command": ["/bin/sleep", "5"]}})),
            (
                "{exec: {command: [/bin/sh, -c, sleep 15]}}",
                15,
                json!({"exec": {"command": ["/bin/sh", "-c", "sleep 5"]}}),
            ),
        ] {
            let mut objects = objects(&with_hook(hook));
            assert_eq!(ending(&objects, &sleepers(&["app"])).unwrap().sleep_s, seconds, "{hook}");
            set_ending(&mut objects, &sleepers(&["app"]), FIVE).unwrap();
            assert_eq!(objects[0]["spec"]["template"]["spec"]["containers"][0]["lifecycle"]["preStop"], set);
        }
        let mut objects = objects(SHOP);
        let older = Sleepers { kubernetes: KubernetesVersion::minor(29), ..sleepers(&["app"]) };
        set_ending(&mut objects, &older, FIVE).unwrap();
        let hook = &objects[0]["spec"]["template"]["spec"]["containers"][0]["lifecycle"]["preStop"];
        assert_eq!(*hook, json!({"exec": {"command": ["sleep", "5"]}}));
    }

    #[test]
    fn only_pure_sleep_commands_yield_seconds() {
        let of = |words: &[&str]| {
            command_sleep_s(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(of(&["sleep", "5"]), Some(5));
        assert_eq!(of(&["/bin/sleep", "5s"]), Some(5));
        assert_eq!(of(&["/bin/sh", "-c", "sleep 12"]), Some(12));
        assert_eq!(of(&["sh", "-c", "sleep 12; nginx -s quit"]), None);
        assert_eq!(of(&["/bin/no-such-sleep", "5"]), None);
        assert_eq!(of(&["nginx", "-s", "quit"]), None);
    }

    #[test]
    fn custom_hook_is_refused() {
        let error = |hook: &str| {
            let text = with_hook(hook);
            set_ending_in("shop.yaml", &text, &sleepers(&["app"]), FIVE).unwrap_err().to_string()
        };
        assert_eq!(
            error("{exec: {command: [nginx, -s, quit]}}"),
            "container app in deployment/web has a preStop hook that does more than sleep, so rolldrop does not change it; with --prefix-hook \
             it sleeps first and then runs the same command, if the image has a shell: preStop: {\"exec\":{\"command\":[\"/bin/sh\",\"-c\",\"sleep 5; exec \\\"$0\\\" \
             \\\"$@\\\"\",\"nginx\",\"-s\",\"quit\"]}}"
        );
        assert!(
            error("{httpGet: {path: /quit, port: 80}}").contains("make the endpoint that it calls wait 5 s")
        );
        assert!(error("{exec: {command: [sh, -c, sleep 5 && kill 1]}}").contains("with --prefix-hook"));
    }

    #[test]
    fn prefix_option_prepends_sleep() {
        let prefixing = Sleepers { may_prefix: true, ..sleepers(&["app"]) };
        let mut objects = objects(&with_hook("{exec: {command: [nginx, -s, quit]}}"));
        let before = ending(&objects, &prefixing).unwrap();
        assert_eq!(before.sleep_s, 0);
        let hook = |objects: &[Value]| {
            objects[0]["spec"]["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
                .clone()
        };
        set_ending(&mut objects, &prefixing, before).unwrap();
        assert_eq!(hook(&objects), json!(["nginx", "-s", "quit"]), "the sleep is already as requested");
        for seconds in [5, 9] {
            set_ending(&mut objects, &prefixing, Ending { sleep_s: seconds, ..before }).unwrap();
            let script = format!("sleep {seconds}; exec \"$0\" \"$@\"");
            assert_eq!(hook(&objects), json!(["/bin/sh", "-c", script, "nginx", "-s", "quit"]));
        }
        // A hook that already has the prefix is recognised by its form.
        assert_eq!(ending(&objects, &sleepers(&["app"])).unwrap().sleep_s, 9);
        let calls = self::objects(&with_hook("{httpGet: {path: /quit, port: 80}}"));
        assert!(ending(&calls, &prefixing).is_err());
    }

    #[test]
    fn readiness_probe_gets_initial_delay() {
        let probed = SHOP.replace(
            "          image: shop/web:1.2\n",
            "          image: shop/web:1.2\n          readinessProbe: {httpGet: {path: /, port: http}}\n",
        );
        let before = ending(&objects(&probed), &sleepers(&["app"])).unwrap();
        assert_eq!(before.readiness_delay_s, Some(0));
        let later = Ending { readiness_delay_s: Some(4), ..before };
        let text = set_ending_in("shop.yaml", &probed, &sleepers(&["app"]), later).unwrap().text;
        assert_eq!(ending(&objects(&text), &sleepers(&["app"])).unwrap(), later);
    }

    #[test]
    fn only_differing_settings_are_written() {
        let mut objects = objects(&with_hook("{sleep: {seconds: 5}}"));
        let before = objects.clone();
        let as_it_is = Ending { grace_s: 30, ..FIVE };
        set_ending(&mut objects, &sleepers(&["app"]), as_it_is).unwrap();
        assert_eq!(objects, before);
        set_ending(&mut objects, &sleepers(&["app"]), Ending { min_ready_s: 4, ..as_it_is }).unwrap();
        assert_eq!(objects[0]["spec"]["minReadySeconds"], 4);
        let error = set_ending(&mut objects, &sleepers(&["web"]), FIVE).unwrap_err().to_string();
        assert_eq!(error, "deployment/web has no container web; its containers are app, metrics");
    }
}
