//! Termination of recording proxies in a run: with skewed clocks, after a clean shutdown, and when killed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;

use nix::sys::signal::Signal;
use rolldrop_explain::Analysed;
use rolldrop_explain::model::figure_text::{count, counted, either, len};
use rolldrop_explain::timeline::clocks::Clocks;
use rolldrop_record::event::{ContainerState, PodEvent, ProxyPhase};
use rolldrop_record::parts::read_table;
use rolldrop_record::run_info::{Role, Rows, Source};
use rolldrop_record::{EventKind, Outcome, RunDir, ServedEnd, ServedRow, Stamp};

use crate::harness::{self, LIMIT, Process, Rolldrop, process_tree, wait_for};
use crate::kubectl;
use crate::machine::measured;
use crate::runs::{self, Dataplane, MeasuredRun};
use crate::termination::lab::now_ns;
use crate::truth;

const TOKEN: &str = "only-for-the-proxies";
/// Largest difference between the clocks of two processes on one machine, even if a library modifies one process's
/// clock.
const TOLERANCE_NS: i64 = 5_000_000;

/// A workload of one pod behind the Service `web`. `env` adds to the proxy's environment, `app` to the app's arguments,
/// and `more` to the app's container.
struct Workload {
    name: &'static str,
    env: String,
    app: &'static str,
    more: &'static str,
    grace_s: u32,
}

impl Workload {
    fn yaml(&self) -> String {
        let Self { name, env, app, more, grace_s } = self;
        format!(
            r#"
    - inline:
        apiVersion: apps/v1
        kind: Deployment
        metadata: {{name: {name}}}
        spec:
          replicas: 1
          selector: {{matchLabels: {{app: web, is: {name}}}}}
          template:
            metadata: {{labels: {{app: web, is: {name}}}}}
            spec:
              terminationGracePeriodSeconds: {grace_s}
              initContainers:
                - name: rolldrop
                  image: rolldrop
                  restartPolicy: Always
                  args: [proxy, --listen, "$(POD_IP):8081", --upstream, "$(POD_IP):8080", --open-admin]
                  env:
                    - {{name: POD_NAME, valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}}}
                    - {{name: POD_IP, valueFrom: {{fieldRef: {{fieldPath: status.podIP}}}}}}
                    - {{name: ROLLDROP_ADMIN, value: "$(POD_IP):8082"}}{env}
                  ports: [{{name: http, containerPort: 8081}}, {{name: rolldrop-admin, containerPort: 8082}}]
                  lifecycle: {{preStop: {{exec: {{command: [/rolldrop, proxy-pre-stop]}}}}}}
              containers:
                - name: app
                  image: rolldrop
                  args: [workload, --listen, "$(POD_IP):8080", --log, "-"{app}]
                  env: [{{name: POD_IP, valueFrom: {{fieldRef: {{fieldPath: status.podIP}}}}}}]
                  ports: [{{containerPort: 8080}}]
                  readinessProbe: {{httpGet: {{path: /readyz, port: 8080}}, periodSeconds: 1}}{more}"#
        )
    }
}

fn scenario(workloads: &[Workload], load: &str, disruptions: &str) -> String {
    let workloads: String = workloads.iter().map(Workload::yaml).collect();
    format!(
        r#"apiVersion: rolldrop.dev/v1
kind: Scenario
metadata: {{name: ends}}
spec:
  cluster: {{embedded: {{nodes: 1}}}}
  manifests:
    - inline: {{apiVersion: v1, kind: Secret, metadata: {{name: admin}}, stringData: {{token: {TOKEN}}}}}
    - inline:
        apiVersion: rbac.authorization.k8s.io/v1
        kind: Role
        metadata: {{name: own-pod}}
        rules: [{{apiGroups: [""], resources: [pods], verbs: [list, watch]}}]
    - inline:
        apiVersion: rbac.authorization.k8s.io/v1
        kind: RoleBinding
        metadata: {{name: own-pod}}
        roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: own-pod}}
        subjects: [{{kind: ServiceAccount, name: default}}]{workloads}
    - inline:
        apiVersion: v1
        kind: Service
        metadata: {{name: web}}
        spec: {{selector: {{app: web}}, ports: [{{name: http, port: 8080, targetPort: http}}]}}
  target: {{service: web, port: http, path: /}}
  load: {{{load}, warmup: 2s, connections: {{mode: fresh}}}}
  disruptions: [{disruptions}]
"#
    )
}

/// Returns the path of libfaketime, a library that makes a process see a different time.
fn faketime() -> String {
    let dirs = fs::read_dir("/usr/lib").expect("/usr/lib").flatten().map(|dir| dir.path());
    let mut libraries = dirs.map(|dir| dir.join("faketime/libfaketime.so.1")).filter(|path| path.exists());
    libraries.next().expect("libfaketime; scripts/test installs it").display().to_string()
}

/// Deletes three pods whose proxies' clocks are 3 s ahead, 3 s behind, and 0.4 ms/s too fast. The last is nearly the
/// fastest drift that Linux allows; a faster drift could hide behind slow exchanges of clock readings. The admin ports
/// require a token; the last pod's app uses up its grace period.
fn skewed() -> MeasuredRun {
    let secret = "\n                    - {name: ROLLDROP_ADMIN_TOKEN, valueFrom: {secretKeyRef: {name: admin, key: token}}}";
    let preload = format!("\n                    - {{name: LD_PRELOAD, value: {}}}", faketime());
    let clock = |time: &str| {
        format!("{secret}{preload}\n                    - {{name: FAKETIME, value: \"{time}\"}}")
    };
    let exits = ", --on-sigterm, exit";
    let workloads = [
        Workload { name: "ahead", env: clock("+3s"), app: exits, more: "", grace_s: 30 },
        Workload { name: "behind", env: clock("-3s"), app: exits, more: "", grace_s: 30 },
        Workload {
            name: "fast",
            env: clock("+0s x1.0004"),
            app: ", --on-sigterm, ignore",
            more: "",
            grace_s: 2,
        },
    ];
    let delete = |at: &str, name: &str| {
        format!("{{at: {at}, action: deletePod, selector: is={name}, count: 1, allowOutage: true}}")
    };
    let disruptions = [delete("2s", "ahead"), delete("5s", "behind"), delete("8s", "fast")].join(", ");
    let text = scenario(&workloads, "rate: 150, duration: 13s", &disruptions);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let token = dir.path().join("token.txt");
    fs::write(&token, TOKEN).expect("a file");
    runs::measure(&text, Dataplane::Kernel, &["--admin-token-file", &token.display().to_string()])
}

/// Returns the stamps of each source's phases.
fn phases(run: &MeasuredRun) -> BTreeMap<String, BTreeMap<ProxyPhase, Stamp>> {
    let mut phases: BTreeMap<String, BTreeMap<_, _>> = BTreeMap::new();
    for event in &run.records.events {
        if let EventKind::ProxyPhase { phase, .. } = event.kind {
            let before = phases.entry(event.source.clone()).or_default().insert(phase, event.at);
            assert_eq!(before, None, "{} says {phase:?} twice", event.source);
        }
    }
    phases
}

/// Returns the time at which a pod's app got SIGTERM, according to the app's own log.
fn app_sigterm(run: &MeasuredRun, pod: &str) -> Stamp {
    let pods = fs::read_dir(run.path.join("cluster/pods")).expect("pod logs").flatten().map(|dir| dir.path());
    let own = format!("default_{pod}_");
    let mut dirs =
        pods.filter(|dir| dir.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&own)));
    let log = fs::read_to_string(dirs.next().expect("a log").join("app.log")).expect("a log");
    let log = crate::harness::written(&log);
    let lines = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let signal = lines.filter(|line| line["name"] == "SIGTERM").find_map(|line| line["t_ns"].as_i64());
    Stamp::from_unix_ns(signal.expect("SIGTERM"))
}

#[test]
fn skewed_proxy_clocks_are_corrected() {
    measured(|| {
        let run = &skewed();
        assert_eq!(run.result.terminations.len(), 3, "{}", run.finished);
        truth::bounds_hold(run);
        offsets_are_right(run);
        rows_lie_between_what_the_client_saw(run);
        every_phase_is_there_and_none_before_its_cause(run);
        own_pods_are_seen(run);
        all_rows_are_handed_over_and_the_proxies_leave_with_0(run);
        runs::no_file_holds(&run.path, TOKEN);
        run.expect_valid();
    });
}

fn offsets_are_right(run: &MeasuredRun) {
    let sources: Vec<&Source> = run.records.info.sources.iter().filter(|s| s.role == Role::Proxy).collect();
    assert_eq!(sources.len(), 6, "three pods terminated, three survived: {sources:?}");
    for (name, offset_ns) in [("ahead", 3_000_000_000), ("behind", -3_000_000_000)] {
        for source in sources.iter().filter(|source| source.name.starts_with(name)) {
            let uncertainty_ns = source.clock_uncertainty_ns.expect("samples");
            let off_by = (source.clock_offset_ns - offset_ns).abs();
            assert!(off_by <= uncertainty_ns + TOLERANCE_NS, "{source:?}");
            assert!(uncertainty_ns < 500_000_000, "too uncertain: {source:?}");
        }
    }
    let clocks = Clocks::new(&run.records.info, &run.records.events);
    for source in sources.iter().filter(|source| source.name.starts_with("fast")) {
        let samples = run.records.events.iter().filter_map(|event| match &event.kind {
            EventKind::ClockSample { of, offset_ns, uncertainty_ns } if *of == source.name => {
                let at = event.at.shifted_ns(*uncertainty_ns).shifted_ns(*offset_ns);
                // The clock was read at some time during the exchange, and is 0.04 % too fast.
                Some((at, *offset_ns, *uncertainty_ns + *uncertainty_ns / 100))
            }
            _ => None,
        });
        let samples: Vec<_> = samples.collect();
        let [first, .., last] = &samples[..] else { panic!("{samples:?}") };
        assert!(last.1 + last.2 > first.1 - first.2, "it is too fast: {samples:?}");
        let overall_ns = source.clock_uncertainty_ns.expect("samples");
        for (at, offset_ns, uncertainty_ns) in samples {
            let known = clocks.offset(&source.name, at);
            let off_by = (known.offset_ns - offset_ns).abs();
            assert!(off_by <= known.uncertainty_ns + uncertainty_ns, "{source:?}: {known:?}, {offset_ns}");
            let off_by = (source.clock_offset_ns - offset_ns).abs();
            assert!(off_by <= overall_ns + uncertainty_ns, "{source:?}: {offset_ns}");
        }
    }
}

fn rows_lie_between_what_the_client_saw(run: &MeasuredRun) {
    let clocks = Clocks::new(&run.records.info, &run.records.events);
    let stamped: HashMap<_, &ServedRow> =
        run.records.served.iter().filter_map(|row| Some((row.request.clone()?, row))).collect();
    let (log, tables) = RunDir::open(&run.path).and_then(|run| run.recorded()).expect("the run reads");
    let Analysed { requests, .. } = Analysed::of(log, tables).expect("the rows read");
    let mut compared = BTreeMap::<&str, u32>::new();
    requests.in_memory().expect("the rows read").iter().for_each(|request| {
        let id = run.records.info.request_id(&request.row);
        let Some(served) = stamped.get(&id) else { return assert_eq!(request.proxy, None, "{request:?}") };
        assert_eq!(request.proxy.as_ref(), Some(&served.pod), "{request:?}");
        let placed = |at| clocks.place(&served.source, at);
        let uncertainty_ns = clocks.offset(&served.source, served.end).uncertainty_ns;
        let slack = uncertainty_ns + request.uncertainty_ns + TOLERANCE_NS;
        let begun = request.row.connect_start.expect("a fresh connection");
        assert!(placed(served.accepted).shifted_ns(slack) >= begun, "±{slack}: {request:?}");
        if let (Some(head), Some(answered)) = (served.head, request.row.head) {
            assert!(placed(head).shifted_ns(-slack) <= answered, "±{slack}: {request:?}");
            *compared.entry(served.pod.split('-').next().unwrap_or_default()).or_default() += 1;
        }
    });
    assert!(compared.len() == 3 && compared.values().all(|count| *count > 100), "{compared:?}");
}

fn every_phase_is_there_and_none_before_its_cause(run: &MeasuredRun) {
    let clocks = Clocks::new(&run.records.info, &run.records.events);
    let phases = phases(run);
    for termination in &run.result.terminations {
        let pod = &termination.pod;
        let of_pod = &phases[pod];
        assert_eq!(of_pod.keys().collect::<Vec<_>>(), ProxyPhase::ALL.iter().collect::<Vec<_>>(), "{pod}");
        let latest = |phase: ProxyPhase| {
            let at = of_pod[&phase];
            clocks.place(pod, at).shifted_ns(clocks.offset(pod, at).uncertainty_ns + TOLERANCE_NS)
        };
        let sent = run.records.events.iter().find_map(|event| match &event.kind {
            EventKind::Action(action) if action.pod.as_ref() == Some(pod) => Some(event.at),
            _ => None,
        });
        let sent = sent.expect("its deletion");
        use ProxyPhase::{DeletionSeen, Drained, Exit, ListenerClosed, PreStop, Sigterm};
        for phase in [DeletionSeen, PreStop, ListenerClosed, Sigterm, Drained, Exit] {
            assert!(latest(phase) >= sent, "{pod}: {phase:?} before its deletion");
        }
        let signalled = app_sigterm(run, pod);
        for phase in [ListenerClosed, Sigterm, Drained, Exit] {
            assert!(latest(phase) >= signalled, "{pod}: {phase:?} before its app's SIGTERM");
        }
        // The limit is less than the skew.
        let early = clocks.place(pod, of_pod[&PreStop]).ns_since(sent);
        assert!(early < 2_900_000_000, "{pod}: its hook {early} ns after its deletion");
    }
}

fn own_pods_are_seen(run: &MeasuredRun) {
    for termination in &run.result.terminations {
        let pod = &termination.pod;
        let seen = run.records.events.iter().filter(|event| event.source == *pod).filter_map(|event| {
            match &event.kind {
                EventKind::OwnPod(seen) => Some((event.at, seen)),
                _ => None,
            }
        });
        let seen: Vec<(Stamp, &PodEvent)> = seen.collect();
        assert!(seen.iter().all(|(_, own)| own.uid == termination.uid), "{pod}: an event about another pod");
        assert!(seen.first().is_some_and(|(_, own)| own.deletion_timestamp.is_none()), "{pod}: {seen:?}");
        let deleted = seen.iter().find(|(_, own)| own.deletion_timestamp.is_some());
        let (at, own) = deleted.unwrap_or_else(|| panic!("{pod}: no deletionTimestamp in {seen:?}"));
        let told = phases(run)[pod][&ProxyPhase::DeletionSeen];
        assert!(told == *at && own.deletion_grace_s.is_some(), "{pod}: {told:?} {own:?}");
    }
}

fn all_rows_are_handed_over_and_the_proxies_leave_with_0(run: &MeasuredRun) {
    for source in run.records.info.sources.iter().filter(|source| source.role == Role::Proxy) {
        let rows = source.rows.expect("a proxy's rows");
        assert!(rows.recorded == Some(rows.received) && rows.received > 0, "{source:?}");
    }
    for termination in &run.result.terminations {
        let sidecar = |c: &&ContainerState| c.sidecar && c.state.as_deref() == Some("terminated");
        let code = run.records.events.iter().find_map(|event| match &event.kind {
            EventKind::Pod(pod) if pod.uid == termination.uid => {
                pod.containers.iter().find(sidecar)?.exit_code
            }
            _ => None,
        });
        assert_eq!(code, Some(0), "{}\n{}", termination.pod, run.finished);
        let used_up = termination.pod.starts_with("fast");
        assert_eq!(termination.exit_code == Some(137), used_up, "{termination:?}");
    }
}

/// A run in progress.
struct Run {
    child: std::process::Child,
    dir: tempfile::TempDir,
}

impl Drop for Run {
    fn drop(&mut self) {
        // The run has exited, unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Run {
    fn events(&self) -> Vec<serde_json::Value> {
        let path = self.dir.path().join("run/events.jsonl");
        // The last line may be incomplete.
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Runs kubectl until it exits, with any status.
    fn kubectl(&self, arguments: &str) -> kubectl::Ran {
        kubectl::run(&self.dir.path().join("run/cluster/kubeconfig"), arguments, "")
    }

    /// Changes a terminating pod repeatedly until it is gone. Returns the resource versions, and the time of each.
    fn changes_until_gone(&self, pod: &str) -> Vec<(String, Stamp)> {
        let change = |n: usize| {
            let show = "-o jsonpath={.metadata.resourceVersion}";
            let ran = self.kubectl(&format!("annotate pod {pod} n={n} --overwrite {show}"));
            let is_changed = ran.code() == Some(0);
            assert!(is_changed || ran.stderr().contains("NotFound"), "{ran}");
            is_changed.then(|| (ran.stdout(), Stamp::from_unix_ns(now_ns())))
        };
        (0..).map_while(change).collect()
    }

    /// Returns the names of the pods of these workloads.
    fn pods<const N: usize>(&self, workloads: [&str; N]) -> [String; N] {
        let names = self.kubectl("get pods -o name").ok();
        workloads.map(|workload| {
            let prefix = format!("pod/{workload}-");
            let name = names.lines().find(|name| name.starts_with(&prefix)).expect("a pod of each workload");
            name["pod/".len()..].to_owned()
        })
    }

    /// Returns the process of a pod's proxy.
    fn proxy(&self, pod: &str) -> Process {
        let processes = process_tree(self.child.id());
        let own =
            |process: &Process| process.runs("proxy") && process.variable("POD_NAME").as_deref() == Some(pod);
        processes.into_iter().find(own).unwrap_or_else(|| panic!("no proxy of {pod}"))
    }

    /// Waits until the run has recorded an event that meets the condition `is_so`.
    fn until_recorded(&self, what: &str, is_so: impl Fn(&serde_json::Value) -> bool) {
        wait_for(what, LIMIT, || self.events().iter().any(&is_so).then_some(()));
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "one run with all its evidence")]
fn killed_proxy_loss_is_counted() {
    let of = |name, more| Workload {
        name,
        env: String::new(),
        app: ", --response-time, 300ms, --on-sigterm, finish",
        more,
        grace_s: 30,
    };
    let hook = "\n                  lifecycle: {preStop: {sleep: {seconds: 5}}}";
    // On a busy machine, kubectl takes seconds for a change.
    let long_hook = "\n                  lifecycle: {preStop: {sleep: {seconds: 20}}}";
    let workloads =
        [of("clean", ""), of("crash", ""), of("killed", hook), of("forced", hook), of("watched", long_hook)];
    // The load must outlast all that follows, which takes three times as long on a busy machine.
    let text = scenario(&workloads, "rate: 200, duration: 40s", "");
    let _turn = runs::turn();
    let (child, dir) = Rolldrop::run(&text).args(["--quiet"]).on(Dataplane::Kernel).start();
    let mut run = Run { child, dir };
    run.until_recorded("the load", |event| event["kind"] == "load_started");
    let parts = run.dir.path().join("run/served");
    let rows = || {
        fs::read_dir(&parts)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|e| e.path().extension().is_some_and(|e| e == "parquet"))
            .count()
    };
    wait_for("rows of all proxies", LIMIT, || (rows() >= 5).then_some(()));

    let [clean, crash, killed, forced, watched] = run.pods(["clean", "crash", "killed", "forced", "watched"]);
    run.proxy(&clean).signal(Signal::SIGTERM);
    run.proxy(&crash).kill();
    let in_termination = run.proxy(&killed);
    run.kubectl(&format!("delete pod {killed} --wait=false")).ok();
    run.until_recorded("its hook", |event| event["source"] == *killed && event["phase"] == "pre_stop");
    in_termination.kill();
    run.kubectl(&format!("delete pod {forced} --grace-period=0 --force --wait=false")).ok();
    run.kubectl(&format!("delete pod {watched} --wait=false")).ok();
    let changes = run.changes_until_gone(&watched);
    let code = run.child.wait().expect("its exit status").code();
    let said = fs::read_to_string(run.dir.path().join("stderr.log")).expect("its stderr");
    assert_eq!(code, Some(3), "an incomplete response is not a success\n{said}");

    let path = run.dir.path().join("run");
    let records = RunDir::open(&path).and_then(|run| run.read()).expect("the run reads");
    let sources: BTreeMap<&str, Rows> =
        records.info.sources.iter().filter_map(|source| Some((&*source.name, source.rows?))).collect();
    let is_whole = |source: &str| sources[source].recorded == Some(sources[source].received);
    // These are the container that shut down cleanly, and those started after it and after the crash.
    for source in [clean.clone(), format!("{clean}~1"), format!("{crash}~1")] {
        assert!(is_whole(&source), "{source}: {sources:?}\n{said}");
    }
    assert!(sources[&*clean].received > 0, "{sources:?}");
    let result = runs::result(&path);
    let findings: Vec<&str> = result.findings.iter().map(|finding| &*finding.what).collect();
    assert!(!result.complete, "{findings:?}");
    for pod in [&crash, &killed] {
        let Rows { recorded, known, in_flight, received } = sources[&**pod];
        assert!(recorded.is_none() && known >= received && received > 0, "{pod}: {sources:?}");
        // A request takes 0.3 s, and a pod that is not terminating gets 40 requests per second.
        assert!(*pod == killed || in_flight > 0, "{pod}: {sources:?}");
        let missing = known - received;
        let wanted = format!(
            "proxy {pod} ended without handing over all its rows: {} arrived, at least {} did not, and {} requests were \
             in flight at its last report",
            count(received),
            count(missing),
            count(in_flight)
        );
        assert!(findings.contains(&wanted.as_str()), "{wanted}: {findings:?}");
        // The clients know of answered requests that have no proxy row.
        let served: HashSet<_> = records.served.iter().filter_map(|row| row.request.clone()).collect();
        let id = |row: &rolldrop_record::RequestRow| records.info.request_id(row);
        let answered = records.requests.iter().filter(|row| row.pod.as_deref() == Some(pod));
        let unrecorded = answered.filter(|row| !served.contains(&id(row))).count();
        assert!(unrecorded <= 25, "half a second's worth: {unrecorded} of {pod}");
        let requests = counted(len(unrecorded), "request");
        let have = either(len(unrecorded), "has", "have");
        let wanted = format!("{requests} that pod {pod} answered {have} no row from its proxy");
        assert_eq!(findings.contains(&wanted.as_str()), unrecorded > 0, "{wanted}: {findings:?}");
    }
    // A forced deletion may or may not kill the pod's proxy with it; either way, the rows are accounted for.
    let Rows { recorded, known, received, .. } = sources[&*forced];
    assert!(received > 0 && (recorded == Some(received) || known >= received), "{sources:?}");
    let says_so = findings.iter().any(|what| what.starts_with(&format!("the proxy {forced} ")));
    assert_eq!(says_so, !is_whole(&forced), "{sources:?} {findings:?}");

    // The API server serves a pod throughout its termination, so the proxy saw every change made before the proxy was
    // told to exit.
    let of_watched = || records.events.iter().filter(|event| event.source == watched);
    let seen: HashSet<&str> = of_watched()
        .filter_map(|event| match &event.kind {
            EventKind::OwnPod(own) => Some(&*own.resource_version),
            _ => None,
        })
        .collect();
    let told = of_watched().find_map(|event| match &event.kind {
        EventKind::ProxyPhase { phase: ProxyPhase::Sigterm, .. } => Some(event.at),
        _ => None,
    });
    let told = told.expect("SIGTERM");
    let before = || changes.iter().filter(|(_, at)| *at < told);
    assert!(before().count() >= 5, "{changes:?}, told {told:?}");
    let missed: Vec<_> = before().filter(|(version, _)| !seen.contains(version.as_str())).collect();
    assert!(missed.is_empty(), "{missed:?}");

    // Neither rows nor requests are counted twice.
    let mut by_source: BTreeMap<&str, u64> = BTreeMap::new();
    records.served.iter().for_each(|row| *by_source.entry(&row.source).or_default() += 1);
    for (source, rows) in &sources {
        let counted = by_source.get(source).copied().unwrap_or(0);
        // Rows that arrived after the run was over are not counted.
        assert!(counted >= rows.received, "{source}: {counted} {rows:?}");
    }
    let mut ids = HashSet::new();
    assert!(records.served.iter().filter_map(|row| row.request.clone()).all(|id| ids.insert(id)));
}

#[test]
fn killed_proxy_streams_stay_recorded_as_open() {
    let streaming = Workload {
        name: "streaming",
        env: String::new(),
        app: ", --stream-length, 600s",
        more: "",
        grace_s: 1,
    };
    let text = scenario(&[streaming], "rate: 5, duration: 60s, stream: {kind: sse}", "");
    let text = text.replace("path: /}", "path: /events}");
    let _turn = runs::turn();
    let (child, dir) = Rolldrop::run(&text).on(Dataplane::Kernel).start();
    let mut run = Run { child, dir };
    let path = run.dir.path().join("run");
    let open = wait_for("open streams", LIMIT, || {
        let rows: Vec<ServedRow> = read_table(&path).ok()?;
        let open = rows.into_iter().filter(|row| row.ended == ServedEnd::Open);
        let open: HashSet<_> = open.filter_map(|row| row.request).collect();
        (!open.is_empty()).then_some(open)
    });
    let [pod] = run.pods(["streaming"]);
    run.proxy(&pod).kill();
    let next = format!("{pod}~1");
    run.until_recorded("the next proxy", |event| event["source"] == *next);
    harness::signal(&run.child, Signal::SIGINT);
    // The run waits for requests in flight. Streams through the next proxy would last for ten minutes.
    let read_said = || fs::read_to_string(run.dir.path().join("stderr.log")).expect("its stderr");
    wait_for("the run to wait", LIMIT, || read_said().contains("press Ctrl-C again").then_some(()));
    harness::signal(&run.child, Signal::SIGINT);
    let code = run.child.wait().expect("its exit status").code();
    let said = read_said();
    assert_eq!(code, Some(130), "{said}");

    let records = RunDir::open(&path).and_then(|run| run.read()).expect("the run reads");
    let left = records.served.iter().filter(|row| *row.source == *pod && row.ended == ServedEnd::Open);
    let left: HashSet<_> = left.filter_map(|row| row.request.clone()).collect();
    assert!(open.is_subset(&left), "{open:?} {left:?}\n{said}");
    let cut = records.requests.iter().filter(|row| row.outcome == Outcome::StreamCut);
    let cut: HashSet<_> = cut.map(|row| records.info.request_id(row)).collect();
    assert!(left.is_subset(&cut), "{left:?} {cut:?}\n{said}");
    let result = runs::result(&path);
    let findings: Vec<&str> = result.findings.iter().map(|finding| &*finding.what).collect();
    let wanted = format!("proxy {pod} ended without handing over all its rows");
    let says_so = |what: &&str| what.starts_with(&wanted) && what.contains("in flight at its last report");
    assert!(!result.complete && findings.iter().any(says_so), "{wanted}: {findings:?}");
}
