//! Runs during which the API server fails in various ways: the runs continue, report what they missed, and finish.

use std::panic::resume_unwind;
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use http::Method;
use http::request::Parts;
use nix::sys::signal::Signal;
use rolldrop_explain::model::{Mode, RunResult, Termination, Verdict};
use rolldrop_record::event::Action;
use rolldrop_record::{EndCause, event::ActionName};
use rolldrop_record::{EventKind, Records, RunDir};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::faulty_api::{Act, FaultyApi, is_watch};
use crate::harness::{self, LIMIT, Rolldrop, again_while_invalid, wait_for};
use crate::lab::{Cluster, Setup};
use crate::machine::{Meanwhile, figure, measured};
use crate::runs::{actions, json_lines, result, turn};
use crate::web::Web;

/// Returns a scenario with two pods behind a Service, with the sidecar and these disruptions.
fn scenario(name: &str, seconds: u32, disruptions: &str) -> String {
    Web::new(2).pod(json!({"terminationGracePeriodSeconds": 2})).scenario(
        name,
        &format!(
            "
  target: {{service: web}}
  load: {{rate: 40, duration: {seconds}s}}
  sidecar: {{inject: true}}
  disruptions: [{disruptions}]
"
        ),
    )
}

const DELETION: &str = "{at: 1s, action: deletePod, selector: app=web}";

/// Runs a case in its own namespace, and repeats it if the machine was starved. `fault` is called when the load starts,
/// and may interfere with the run in any way.
fn case(lab: &Cluster, name: &str, seconds: u32, disruptions: &str, fault: impl Fn(&Run)) -> Ended {
    prepared(lab, name, (seconds, disruptions), |_| {}, fault)
}

fn prepared(
    lab: &Cluster,
    name: &str,
    (seconds, disruptions): (u32, &str),
    prepare: impl Fn(&FaultyApi),
    fault: impl Fn(&Run),
) -> Ended {
    let attempt = AtomicUsize::new(0);
    let run = || {
        let meanwhile = Meanwhile::begins();
        let api = FaultyApi::before(lab);
        prepare(&api);
        let namespace = format!("{name}-{}", attempt.fetch_add(1, Ordering::SeqCst));
        let run = Run::start(lab, api, &namespace, &scenario(name, seconds, disruptions));
        fault(&run);
        let ended = run.end();
        lab.kubectl(&format!("delete namespace {namespace} --wait=false"));
        Ended { taken: meanwhile.taken(), ..ended }
    };
    again_while_invalid(run, Ended::was_starved)
}

/// A run in progress.
struct Run<'a> {
    lab: &'a Cluster,
    api: FaultyApi,
    namespace: String,
    child: Child,
    dir: TempDir,
}

impl<'a> Run<'a> {
    /// Starts a run, and waits until the load starts.
    fn start(lab: &'a Cluster, api: FaultyApi, namespace: &str, scenario: &str) -> Self {
        lab.kubectl(&format!("create namespace {namespace}"));
        let run = Rolldrop::run(scenario).on_cluster(&api.kubeconfig()).args(["-n", namespace]);
        let (child, dir) = run.start();
        let run = Self { lab, api, namespace: namespace.to_owned(), child, dir };
        run.until_recorded("load_started");
        run
    }

    /// Waits until the event log contains this text.
    fn until_recorded(&self, what: &str) {
        let log = self.path().join("events.jsonl");
        wait_for(what, LIMIT, || {
            let said = self.said();
            assert!(!["failed to", "scenario.yaml:"].iter().any(|why| said.contains(why)), "{said}");
            std::fs::read_to_string(&log).ok()?.contains(what).then_some(())
        });
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("stderr.log")).unwrap_or_default()
    }

    fn interrupt(&self) {
        harness::signal(&self.child, Signal::SIGINT);
    }

    /// Waits until the run exits.
    fn end(mut self) -> Ended {
        let status = wait_for("the end of the run", LIMIT, || self.child.try_wait().expect("its state"));
        let (path, said) = (self.path(), self.said());
        let records =
            RunDir::open(&path).and_then(|run| run.read()).unwrap_or_else(|e| panic!("{e}\n{said}"));
        Ended { code: status.code(), said, result: result(&path), records, dir: self.dir, taken: 0.0 }
    }
}

/// A finished run.
struct Ended {
    code: Option<i32>,
    said: String,
    result: RunResult,
    records: Records,
    dir: TempDir,
    /// Share of CPU time used by others during the run.
    taken: f64,
}

impl Ended {
    fn was_starved(&self) -> bool {
        let reasons = match &self.result.verdict {
            Verdict::Invalid { why } => why.join("\n"),
            _ => String::new(),
        };
        ["were not sent", "fell behind", "load generator's own", "hypervisor", "waited for a CPU"]
            .iter()
            .any(|w| reasons.contains(w))
    }

    /// Fails with full details unless the run was valid and complete, and had exactly one termination.
    #[track_caller]
    fn is_valid_with_its_deletion(&self) -> &Termination {
        figure(self.taken, !self.was_starved(), || self.to_string());
        assert_eq!((self.code, &self.result.verdict), (Some(0), &Verdict::Valid), "{self}");
        let [termination] = &self.result.terminations[..] else { panic!("one termination\n{self}") };
        assert_eq!((termination.mode, termination.disruption), (Mode::Isolated, Some(0)), "{self}");
        assert_eq!(termination.cause, Some(EndCause::ThisRun(ActionName::DeletePod)), "{self}");
        // No row that the proxies recorded is missing.
        let answered = self.records.requests.iter().filter(|row| row.pod.is_some()).count();
        assert!(answered > 0 && self.records.served.len() >= answered, "{self}");
        self.nothing_is_left();
        termination
    }

    #[track_caller]
    fn nothing_is_left(&self) {
        let changes =
            std::fs::read_to_string(self.dir.path().join("run/changes.jsonl")).expect("changes.jsonl");
        let count = |what: &str| changes.matches(what).count();
        assert_eq!(count("\"entry\":\"change\""), count("\"entry\":\"undone\""), "{changes}");
    }

    /// Returns the calls intended to terminate a pod.
    fn actions(&self) -> Vec<&Action> {
        actions(&self.records)
    }

    /// Returns how often a watch was lost, and how often it was late.
    fn gaps(&self) -> (usize, usize) {
        let count = |is: fn(&EventKind) -> bool| self.records.events.iter().filter(|e| is(&e.kind)).count();
        (
            count(|kind| matches!(kind, EventKind::WatchGap { .. })),
            count(|kind| matches!(kind, EventKind::WatchLate { .. })),
        )
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{:?}: {:?}", self.code, self.result.verdict)?;
        writeln!(f, "{:#?}\n{:#?}\n{}", self.result.terminations, self.actions(), self.said)
    }
}

fn is_pod_deletion(request: &Parts) -> bool {
    request.method == Method::DELETE && request.uri.path().contains("/pods/")
}

/// Waits until a counter reaches a value.
fn until(what: &str, count: &AtomicUsize, wanted: usize) {
    wait_for(what, LIMIT, || (count.load(Ordering::SeqCst) >= wanted).then_some(()));
}

/// Refuses the first two deletions and, once the load has begun, also every other call.
fn refused(lab: &Cluster, name: &str, (status, reason): (u16, &'static str)) -> Ended {
    let deletions = Arc::new(AtomicUsize::new(0));
    // Refuses one in `one_of` calls.
    let refuse = |api: &FaultyApi, one_of: usize| {
        let (calls, deletions) = (AtomicUsize::new(1), Arc::clone(&deletions));
        api.set(move |request| {
            let is_refused = match is_pod_deletion(request) {
                true => deletions.fetch_add(1, Ordering::SeqCst) < 2,
                false => calls.fetch_add(1, Ordering::SeqCst).is_multiple_of(one_of),
            };
            if is_refused { Act::status(status, reason) } else { Act::Pass }
        });
    };
    let prepare = |api: &FaultyApi| {
        deletions.store(0, Ordering::SeqCst);
        refuse(api, usize::MAX);
    };
    prepared(lab, name, (7, DELETION), prepare, |run| {
        refuse(&run.api, 2);
        until("a deletion after two that were refused", &deletions, 3);
        run.api.pass();
    })
}

fn survives_unreachable_api(lab: &Cluster) {
    let ended = case(lab, "refused", 16, DELETION, |run| {
        run.api.refuse();
        std::thread::sleep(Duration::from_secs(10));
        run.api.accept();
    });
    let termination = ended.is_valid_with_its_deletion();
    let actions = ended.actions();
    let (last, before) = actions.split_last().expect("actions");
    assert!(before.iter().all(|action| action.status.is_none() && action.is_undone), "{ended}");
    assert_eq!(last.status, Some(200), "{ended}");
    // Attempts that certainly had no effect add no uncertainty.
    let took = last.answered.seconds_since(
        ended.records.events.iter().rfind(|e| matches!(e.kind, EventKind::Action(_))).expect("an action").at,
    );
    assert!(termination.t0_uncertainty_s <= took + 1e-6, "{ended}");
    let (lost, late) = ended.gaps();
    assert!(lost == 0 && late >= 2, "{lost} {late}: no event is lost, only late\n{ended}");
}

fn survives_rate_limit(lab: &Cluster) {
    let ended = refused(lab, "busy", (429, "TooManyRequests"));
    ended.is_valid_with_its_deletion();
    let statuses: Vec<_> = ended.actions().iter().filter_map(|action| action.status).collect();
    assert!(statuses.starts_with(&[429, 429]) && statuses.ends_with(&[200]), "{ended}");
}

fn survives_internal_errors(lab: &Cluster) {
    let ended = refused(lab, "broken", (500, "InternalError"));
    let termination = ended.is_valid_with_its_deletion();
    let actions = ended.actions();
    assert!(actions.len() >= 3 && actions[0].status == Some(500), "{ended}");
    // Any of the attempts may have taken effect; only the API server's own timestamp shows which, to the second.
    assert!(termination.t0_uncertainty_s > 0.0, "{ended}");
}

fn renews_expiring_token(lab: &Cluster) {
    // The client asks the credential program again whenever credentials are about to expire, and these always are.
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("credential.json");
    let issue = |token: &str| {
        let status = json!({"token": token, "expirationTimestamp": "2000-01-01T00:00:00Z"});
        let version = "client.authentication.k8s.io/v1";
        let credential = json!({"apiVersion": version, "kind": "ExecCredential", "status": status});
        let next = file.with_extension("next");
        std::fs::write(&next, credential.to_string()).expect("a file");
        std::fs::rename(&next, &file).expect("its place");
    };
    let prepare = |api: &FaultyApi| {
        issue("the first");
        api.authenticate_by(&json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1",
            "command": "cat", "args": [file], "interactiveMode": "Never"}}));
    };
    let ended = prepared(lab, "token", (10, DELETION), prepare, |run| {
        let refused = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&refused);
        run.api.refuse();
        run.api.set(move |request| {
            if request.headers.get("authorization").is_some_and(|by| by == "Bearer the second") {
                return Act::Pass;
            }
            seen.fetch_add(1, Ordering::SeqCst);
            Act::status(401, "Unauthorized")
        });
        run.api.accept();
        until("refused calls", &refused, 10);
        issue("the second");
    });
    ended.is_valid_with_its_deletion();
}

fn survives_short_watches(lab: &Cluster) {
    let ended = case(lab, "short", 7, DELETION, |run| {
        // Open connections would stay open, so all are cut once.
        run.api.refuse();
        run.api.set(
            |request| {
                if is_watch(request) { Act::EndAfter(Duration::from_secs(1)) } else { Act::Pass }
            },
        );
        run.api.accept();
    });
    let termination = ended.is_valid_with_its_deletion();
    assert_eq!(ended.gaps().0, 0, "nothing is lost\n{ended}");
    let stages: Vec<String> = termination.timeline.keys().map(|stage| format!("{stage:?}")).collect();
    for stage in ["DeletionSeen", "EndpointTerminating", "EndpointRemoved", "PodDeleted"] {
        assert!(stages.iter().any(|seen| seen == stage), "{stage} was missed: {stages:?}\n{ended}");
    }
}

fn survives_slow_answers(lab: &Cluster) {
    let late = Duration::from_secs(1);
    // The deletion is slow even if this test notices the start of the load late.
    let prepare = |api: &FaultyApi| {
        api.set(move |request| if is_pod_deletion(request) { Act::Slow(late) } else { Act::Pass });
    };
    let ended = prepared(lab, "slow", (12, DELETION), prepare, |run| {
        run.api.set(move |_| Act::Slow(late));
        run.until_recorded("load_ended");
        run.api.pass();
    });
    let termination = ended.is_valid_with_its_deletion();
    assert!(termination.t0_uncertainty_s >= late.as_secs_f64(), "at least the duration of the call\n{ended}");
}

fn survives_lost_answer(lab: &Cluster) {
    let prepare = |api: &FaultyApi| {
        let deleted = AtomicUsize::new(0);
        api.set(move |request| {
            let is_first = is_pod_deletion(request) && deleted.fetch_add(1, Ordering::SeqCst) == 0;
            if is_first { Act::LoseAnswer } else { Act::Pass }
        });
    };
    let ended = prepared(lab, "lost", (7, DELETION), prepare, |_| {});
    let termination = ended.is_valid_with_its_deletion();
    let actions = ended.actions();
    assert_eq!(actions.iter().map(|a| a.status).collect::<Vec<_>>(), [None, Some(200)], "{ended}");
    assert!(!actions[0].is_undone, "it counts as done: only its response was lost\n{ended}");
    // The first call took effect, because the second came too late to be the cause.
    let sent = termination.timeline.iter().find(|(stage, _)| format!("{stage:?}") == "DeleteSent");
    let (_, sent_s) = sent.expect("the time it was sent");
    assert!(-sent_s >= termination.t0_uncertainty_s - 1e-6, "{ended}");
}

fn survives_lost_events(lab: &Cluster) {
    let ended = case(lab, "gap", 10, "", |run| {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        run.api.refuse();
        run.api.set(move |request| match is_watch(request) {
            // The API server no longer has the watch's resource version, and cannot list for a while.
            true if !over.load(Ordering::SeqCst) => Act::status(410, "Expired"),
            false if !over.load(Ordering::SeqCst) => Act::status(503, "ServiceUnavailable"),
            _ => Act::Pass,
        });
        run.api.accept();
        run.lab.kubectl(&format!("-n {} delete pod -l app=web --wait", run.namespace));
        is_over.store(true, Ordering::SeqCst);
    });
    let Verdict::Invalid { why } = &ended.result.verdict else { panic!("invalid\n{ended}") };
    assert!(why.iter().any(|why| why.starts_with("the watch of pods saw nothing for")), "{ended}");
    assert_eq!((ended.code, ended.result.terminations.len()), (Some(3), 2), "{ended}");
    for termination in &ended.result.terminations {
        let gap = termination.watch_gaps.iter().find(|gap| gap.resource == "pods").expect("a watch gap");
        assert!(gap.lost && gap.to_s > gap.from_s, "{ended}");
        // The time of the deletion is not guessed; it may be anywhere in the gap.
        assert!((gap.to_s - gap.from_s - termination.t0_uncertainty_s).abs() < 1e-6, "{ended}");
        assert_eq!((termination.mode, termination.cause.clone()), (Mode::Other, None), "{ended}");
    }
    ended.nothing_is_left();
}

#[test]
fn run_survives_and_reports_api_faults() {
    measured(|| {
        let _turn = turn();
        let lab = Setup::new().start();
        let cases: [fn(&Cluster); 8] = [
            survives_unreachable_api,
            survives_slow_answers,
            renews_expiring_token,
            survives_lost_events,
            survives_rate_limit,
            survives_internal_errors,
            survives_short_watches,
            survives_lost_answer,
        ];
        // Four cases run at a time, the longest first; they mostly wait.
        let next = AtomicUsize::new(0);
        let run = || {
            while let Some(case) = cases.get(next.fetch_add(1, Ordering::SeqCst)) {
                case(&lab);
            }
        };
        std::thread::scope(|scope| {
            let all = [(); 4].map(|()| scope.spawn(run));
            // The first case that fails, or was starved by the machine, ends the test.
            all.into_iter().for_each(|one| one.join().unwrap_or_else(|end| resume_unwind(end)));
        });
    });
}

#[test]
fn run_reports_failed_undo_and_missing_permissions() {
    let _turn = turn();
    let lab = Setup::new().start();
    let run = Run::start(&lab, FaultyApi::before(&lab), "away", &scenario("away", 60, ""));
    run.api.refuse();
    run.interrupt();
    wait_for("the undo", LIMIT, || run.said().contains("undoing the changes").then_some(()));
    run.interrupt();
    let path = run.path();
    let cleanup = |api: &FaultyApi| {
        let words = ["cleanup".into(), path.clone(), "--kubeconfig".into(), api.kubeconfig()];
        Rolldrop::new(words).finish()
    };
    let api = FaultyApi::before(&lab);
    let ended = run.end();
    assert_eq!(ended.code, Some(130), "{ended}");
    assert!(ended.said.contains("run `rolldrop cleanup run` to try again"), "{ended}");
    let cleaned = cleanup(&api).expect_code(0);
    for object in ["Service web", "Deployment web", "ConfigMap rolldrop-run-away-"] {
        assert!(cleaned.stdout().contains(object), "{cleaned}");
    }
    assert_eq!(cleanup(&api).expect_code(0).stdout(), "the run left nothing to clean up\n");

    let touched = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&touched);
    api.set(move |request| {
        if request.uri.path().ends_with("/selfsubjectaccessreviews") {
            let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                "metadata": {}, "spec": {}, "status": {"allowed": false}});
            return Act::json(201, &review);
        }
        seen.fetch_add(usize::from(request.method != Method::GET), Ordering::SeqCst);
        Act::Pass
    });
    let run = Rolldrop::run(&scenario("denied", 9, DELETION)).on_cluster(&api.kubeconfig());
    let denied = run.finish().expect_code(2);
    assert!(denied.stderr().contains("missing permissions: list pods in namespace default"), "{denied}");
    assert!(denied.stderr().contains("delete pods in namespace default"), "{denied}");
    assert_eq!(touched.load(Ordering::SeqCst), 0, "{denied}");
}

#[test]
fn run_rejects_objects_that_it_did_not_request() {
    let _turn = turn();
    let lab = Setup::new().start();
    // Watches of all pods in the namespace are passed on unchanged, so they keep working.
    let is_selection = |request: &Parts| request.uri.query().is_some_and(|q| q.contains("labelSelector=app"));
    type Lie = (&'static str, fn(&mut Value), &'static str);
    let lies: [Lie; 3] = [
        (
            "name",
            |pod| pod["metadata"]["name"] = "x?gracePeriodSeconds=0&".into(),
            "is not a valid name for pods",
        ),
        ("place", |pod| pod["metadata"]["namespace"] = "kube-system".into(), ", not in "),
        (
            "labels",
            |pod| pod["metadata"]["labels"] = json!({"app": "db"}),
            "do not match the requested selector app=web",
        ),
    ];
    std::thread::scope(|scope| {
        for (name, lie, said) in lies {
            let lab = &lab;
            scope.spawn(move || {
                let api = FaultyApi::before(lab);
                let deletion = "{at: 3s, action: deletePod, selector: app=web}";
                let run = Run::start(lab, api, name, &scenario(name, 5, deletion));
                let deletions = Arc::new(AtomicUsize::new(0));
                let seen = Arc::clone(&deletions);
                run.api.set(move |request| {
                    seen.fetch_add(usize::from(is_pod_deletion(request)), Ordering::SeqCst);
                    if is_selection(request) { Act::Lie(lie) } else { Act::Pass }
                });
                let ended = run.end();
                assert_eq!(
                    (deletions.load(Ordering::SeqCst), ended.result.terminations.len()),
                    (0, 0),
                    "{ended}"
                );
                let why = format!("{:?}", ended.records.events);
                assert!(why.contains("response from the API server rejected") && why.contains(said), "{why}");
                ended.nothing_is_left();
            });
        }
    });
    // A run does not start if the API server returns objects that were not requested.
    let api = FaultyApi::before(&lab);
    api.set(|request| match request.uri.path().ends_with("/pods") && request.method == Method::GET {
        true => Act::Lie(|pod| pod["metadata"]["namespace"] = "kube-system".into()),
        false => Act::Pass,
    });
    lab.kubectl("-n name run bystander --image rolldrop --command -- rolldrop workload --listen 127.0.0.1:0");
    let run = Rolldrop::run(&scenario("watched", 9, DELETION)).on_cluster(&api.kubeconfig());
    let refused = run.args(["-n", "name"]).finish().expect_code(2);
    assert!(refused.stderr().contains("is in namespace \"kube-system\", not in \"name\""), "{refused}");
    // Text from the API server reaches a terminal as plain text, and logs have no colours.
    api.set(|_| Act::status(403, "\u{1b}]0;title\u{7}\u{9b}2J\u{202e}forbidden"));
    let words = ["run", "--dry-run", "--target", "svc/web", "--kubeconfig"];
    let logged = Rolldrop::new(words).args([api.kubeconfig()]).env("ROLLDROP_LOG", "debug");
    let refused = logged.finish().expect_code(2);
    let said = refused.stderr();
    assert!(
        said.contains(r"\u{1b}]0;title\u{7}\u{9b}2J\u{202e}forbidden") && said.contains("DEBUG"),
        "{refused}"
    );
    assert!(!said.contains(r"\u{1b}["), "its own lines have no colours to be escaped\n{refused}");
    assert!(!said.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}'), "{refused}");
    let words = ["run", "--dry-run", "--target", "svc/web", "-n", "shop#x", "--kubeconfig"];
    let refused = Rolldrop::new(words).args([api.kubeconfig()]).finish().expect_code(2);
    assert!(refused.stderr().contains("\"shop#x\" is not a valid namespace name"), "{refused}");
}

/// Returns true if the request goes to a node's agent, which is not part of the Kubernetes API.
fn is_of_an_agent(request: &Parts) -> bool {
    request.uri.path().starts_with("/api/v1/nodes/") && request.uri.path().contains("/proxy/")
}

#[test]
fn cleanup_boots_node_after_killed_run() {
    let _turn = turn();
    let lab = Setup::new().start();
    let api = FaultyApi::before(&lab);
    let asked = AtomicUsize::new(0);
    api.set(move |request| {
        let is_call = is_of_an_agent(request) && request.method == Method::POST;
        let is_first = is_call && asked.fetch_add(1, Ordering::SeqCst) == 0;
        if is_first { Act::status(500, "InternalError") } else { Act::Pass }
    });
    let shutdown = "{at: 0s, action: nodeShutdown, node: node-1, gracePeriodSeconds: 1, allowOutage: true}";
    let mut run = Run::start(&lab, api, "shutdown", &scenario("shutdown", 60, shutdown));
    let log = run.path().join("events.jsonl");
    let statuses = wait_for("the shutdown", LIMIT, || {
        let actions = json_lines(&log).into_iter().filter(|line| line["action"] == "nodeShutdown");
        let statuses: Vec<_> = actions.map(|line| line["status"].clone()).collect();
        (statuses.len() > 1).then_some(statuses)
    });
    assert_eq!(statuses, [500, 200], "the request is retried\n{}", run.said());
    harness::signal(&run.child, Signal::SIGKILL);
    run.child.wait().expect("an exit status");
    let is_ready = || {
        let of = "-o jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        lab.kubectl(&format!("get node node-1 {of}")) == "True"
    };
    wait_for("the node's shutdown", LIMIT, || (!is_ready()).then_some(()));
    let cleanup = || Rolldrop::new(["cleanup".into(), run.path()]).finish().expect_code(0);
    let cleaned = cleanup();
    assert!(cleaned.stdout().starts_with("Node node-1: booted\n"), "{cleaned}");
    wait_for("the node", LIMIT, || is_ready().then_some(()));
    assert_eq!(cleanup().stdout(), "the run left nothing to clean up\n");

    // Kubernetes has no such call, so other clusters have nothing at that path.
    let touched = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&touched);
    run.api.set(move |request| {
        seen.fetch_add(usize::from(request.method != Method::GET), Ordering::SeqCst);
        if is_of_an_agent(request) { Act::status(404, "NotFound") } else { Act::Pass }
    });
    for (disruption, instead) in [
        ("{at: 1s, action: nodeShutdown, node: node-1}", "use drain, which works on any cluster"),
        (
            "{at: 1s, action: restartNodeAgent, node: node-1}",
            "command: [ssh, NODE, systemctl, restart, kubelet]",
        ),
        ("{at: 1s, action: crash, selector: app=web}", "command: [kubectl, exec, deploy/web, --, kill, '1']"),
    ] {
        let words = ["run", "scenario.yaml", "--out", "run", "--yes", "--kubeconfig"];
        let refused = Rolldrop::new(words).args([run.api.kubeconfig()]);
        let refused =
            refused.file("scenario.yaml", &scenario("refused", 9, disruption)).finish().expect_code(2);
        let said = refused.stderr();
        assert!(said.contains("Kubernetes has no API call for it") && said.contains(instead), "{refused}");
        assert!(said.contains("rolldrop: connecting to context "), "{refused}");
    }
    assert_eq!(touched.load(Ordering::SeqCst), 0);
}
