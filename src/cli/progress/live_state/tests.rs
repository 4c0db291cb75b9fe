//! Run states built from events.

use std::path::Path;

use super::*;
use crate::cli::progress::news;
use rolldrop_drive::viewer::Wait;
use rolldrop_record::event::ActionName;
use rolldrop_scenario as scenario;

/// Returns a time in seconds from the start of the counted part of the load.
pub(in crate::cli::progress) fn at(s: f64) -> Stamp {
    Stamp::from_unix_ns(0) + Duration::from_secs_f64(1_000.0 + s)
}

/// State of a run whose load has begun.
pub(in crate::cli::progress) struct Run(pub(in crate::cli::progress) LiveState);

impl Run {
    pub(in crate::cli::progress) fn begin(ready: &[&str]) -> Self {
        let mut run = Self(LiveState::default());
        for pod in ready {
            run.pod(-3.0, pod, Change::Listed, LivePhase::Ready);
        }
        let load = EventKind::LoadStarted { rate: 200.0, duration_s: 3.0, warmup_s: 2.0 };
        run.event(-2.0, load);
        run.0.take_news();
        run
    }

    pub(in crate::cli::progress) fn event(&mut self, s: f64, kind: EventKind) {
        self.0.apply(&Event::new(at(s), "coordinator", kind));
    }

    fn pod(&mut self, s: f64, name: &str, change: Change, phase: LivePhase) {
        let event = PodEvent {
            change,
            namespace: "shop".into(),
            name: name.into(),
            uid: format!("uid-{name}"),
            resource_version: "1".into(),
            node: None,
            ip: None,
            phase: if phase == LivePhase::Ended { "Failed" } else { "Running" }.into(),
            ready: phase == LivePhase::Ready,
            deletion_timestamp: (phase == LivePhase::Terminating).then(|| at(s)),
            deletion_grace_s: None,
            grace_s: 30,
            disruption_target: None,
            disruption_message: None,
            reason: None,
            owner: Some("ReplicaSet/web".into()),
            containers: Vec::new(),
        };
        self.event(s, EventKind::Pod(event));
    }

    /// Applies a watch event for a pod.
    pub(in crate::cli::progress) fn sees(&mut self, s: f64, name: &str, phase: LivePhase) {
        self.pod(s, name, Change::Applied, phase);
    }

    pub(in crate::cli::progress) fn gone(&mut self, s: f64, name: &str) {
        self.pod(s, name, Change::Deleted, LivePhase::Terminating);
    }

    pub(in crate::cli::progress) fn lost(&mut self, s: f64, dropped: &[(&str, u64)]) {
        let dropped = dropped.iter().map(|(outcome, count)| ((*outcome).to_owned(), *count)).collect();
        self.0.dropped(at(s), dropped, false);
    }

    /// Applies the API server's response to an eviction.
    pub(in crate::cli::progress) fn evicts(&mut self, s: f64, disruption: u32, pod: &str, status: u16) {
        let error = (status >= 300).then(|| "it would violate the pod's disruption budget".to_owned());
        self.event(
            s,
            EventKind::Action(event::Action {
                disruption,
                action: ActionName::Drain,
                mode: None,
                pod: Some(pod.to_owned()),
                uid: None,
                answered: at(s),
                status: Some(status),
                error,
                is_undone: false,
            }),
        );
    }

    fn news(&mut self) -> Vec<String> {
        news::lines(&self.0.take_news(), 200)
    }
}

/// Parses a disruption, written as in a scenario file.
pub(in crate::cli::progress) fn disruption(text: &str) -> Disruption {
    let text = format!(
        "{{apiVersion: rolldrop.dev/v1, kind: Scenario, metadata: {{name: x}}, spec: {{target: {{service: web}}, \
         disruptions: [{text}]}}}}"
    );
    let loaded = scenario::parse::<serde_json::Value>(&text, "x.yaml", Path::new("."), &[]).unwrap();
    loaded.scenario.disruptions.into_iter().next().unwrap()
}

#[test]
fn pod_reports_each_phase_change_once() {
    let mut run = Run::begin(&["web-a"]);
    run.sees(1.0, "web-a", LivePhase::Terminating);
    run.sees(1.1, "web-a", LivePhase::Terminating);
    run.sees(1.2, "web-b", LivePhase::Starting);
    assert_eq!(run.0.pod_counts().unwrap(), "1 starting, 1 terminating");
    run.sees(3.0, "web-b", LivePhase::Ready);
    run.gone(4.0, "web-a");
    // A pod that is no longer ready is not the same as one that is not ready yet.
    run.sees(5.0, "web-b", LivePhase::Starting);
    assert_eq!(run.0.pod_counts().unwrap(), "1 not ready");
    run.sees(6.0, "web-b", LivePhase::Ended);
    assert_eq!(
        run.news(),
        [
            "web-a begins to terminate",
            "web-b is ready",
            "web-a is gone",
            "web-b is no longer ready",
            "web-b has ended"
        ]
    );
}

#[test]
fn watch_gap_invents_no_transition() {
    let mut run = Run::begin(&["web-a", "web-b"]);
    run.event(1.0, EventKind::WatchGap { resource: "pods".into(), from: at(0.0) });
    run.pod(1.0, "web-a", Change::Listed, LivePhase::Terminating);
    assert_eq!(run.0.pod_counts().unwrap(), "1 terminating");
    assert_eq!(run.news(), Vec::<String>::new());
    assert_eq!(run.0.pods()[0].since, None, "when it began to terminate is unknown");
}

#[test]
fn loss_line_names_changing_pods() {
    let mut run = Run::begin(&["web-a", "web-b"]);
    run.0.dropped(at(-1.0), BTreeMap::from([("reset".to_owned(), 5)]), true);
    run.lost(0.5, &[("reset", 6)]);
    run.sees(1.0, "web-a", LivePhase::Terminating);
    run.lost(1.5, &[("reset", 6), ("connect_refused", 2)]);
    run.lost(1.7, &[("reset", 6), ("connect_refused", 5)]);
    run.gone(2.0, "web-a");
    run.sees(2.0, "web-b", LivePhase::Terminating);
    run.lost(2.5, &[("reset", 7), ("connect_refused", 5)]);
    run.gone(6.0, "web-b");
    run.sees(9.5, "web-c", LivePhase::Starting);
    run.lost(9.6, &[("reset", 8), ("connect_refused", 5)]);
    run.lost(9.8, &[("reset", 8), ("connect_refused", 5)]);
    run.lost(11.0, &[("reset", 8), ("connect_refused", 5)]);
    let losses = [
        "lost at 0 s: 1 reset while no pod was terminating or starting",
        "lost at 1 s: 5 connect_refused while web-a was terminating",
        "lost at 2 s: 1 reset while web-b was terminating, just after web-a was gone",
        "lost at 9 s: 1 reset while web-c was starting",
    ];
    assert_eq!(run.0.losses().collect::<Vec<_>>(), losses.iter().rev().copied().collect::<Vec<_>>());
    let news = run.news();
    let told: Vec<_> = news.iter().filter(|line| line.starts_with("lost ")).collect();
    assert_eq!(told, losses.iter().collect::<Vec<_>>());
    let first: Vec<_> = news.iter().filter(|line| line.starts_with("first ")).collect();
    assert_eq!(first, ["first connect_refused while web-a was terminating"], "once for each class");
    let mut url = Run::begin(&[]);
    url.lost(1.0, &[("reset", 1)]);
    url.0.tell_loss();
    assert_eq!(url.news(), ["first reset", "lost at 1 s: 1 reset"], "its pods are unknown");
}

#[test]
fn action_reports_start_wait_and_end() {
    let mut run = Run::begin(&["web-a"]);
    let delete = disruption("{at: 2s, action: deletePod, selector: app=web, count: 1, every: 6s, repeat: 2}");
    let mut stands = |standing| {
        run.0.stands(0, &delete, standing);
        (run.news().concat(), run.0.actions(at(1.0)).concat())
    };
    let due = DisruptionStage::Due { repetition: 0, at: at(2.0) };
    assert_eq!(
        stands(due),
        (String::new(), "deletePod 1 pod matching app=web (1 of 2) begins in 1 s".into())
    );
    let (news, words) = stands(DisruptionStage::Acts);
    assert_eq!(news, "deletePod 1 pod matching app=web (1 of 2) begins");
    assert_eq!(words, "deletePod 1 pod matching app=web (1 of 2), in progress");
    let waits = "deletePod 1 pod matching app=web (1 of 2) waits until no request has been lost for 4.2 s";
    let silence = DisruptionStage::Waits(Wait::Silence(Duration::from_millis(4_200)));
    assert_eq!(stands(silence), (waits.into(), waits.into()));
    assert_eq!(stands(DisruptionStage::Acts).0, "");
    stands(DisruptionStage::Due { repetition: 1, at: at(8.0) });
    assert_eq!(stands(DisruptionStage::Acts).0, "deletePod 1 pod matching app=web (2 of 2) begins");
    assert_eq!(stands(DisruptionStage::Done).0, "deletePod 1 pod matching app=web (2 of 2) is done");
    let observe = disruption("{at: 0s, action: observe, for: 5s}");
    run.0.stands(1, &observe, DisruptionStage::Due { repetition: 0, at: at(0.0) });
    run.0.stands(1, &observe, DisruptionStage::Acts);
    assert_eq!(run.news(), ["watching for changes by others"]);
    assert_eq!(run.0.actions(at(1.0))[0], "watching for changes by others");
}

#[test]
fn refused_eviction_waits_for_budget() {
    let mut run = Run::begin(&["web-a", "web-b"]);
    let drain = disruption("{at: 2s, action: drain, node: node-1}");
    run.0.stands(0, &drain, DisruptionStage::Due { repetition: 0, at: at(2.0) });
    run.0.stands(0, &drain, DisruptionStage::Acts);
    run.news();
    for s in [2.0, 7.0] {
        run.evicts(s, 0, "web-a", 429);
        run.evicts(s, 0, "web-b", 429);
    }
    assert_eq!(run.news(), ["2 pods cannot be evicted yet because of a disruption budget: web-a, web-b"]);
    run.evicts(12.0, 0, "web-a", 201);
    let waits = "drain node-1 waits until a disruption budget allows the eviction of web-b";
    assert_eq!(run.0.actions(at(12.0)), [waits]);
    run.evicts(17.0, 0, "web-b", 404);
    assert_eq!(run.news(), ["drain node-1 was refused: it would violate the pod's disruption budget"]);
    assert_eq!(run.0.actions(at(17.0)), ["drain node-1, in progress"]);
}

#[test]
fn user_command_awaits_its_rollout() {
    let mut run = Run::begin(&["web-a"]);
    let command = vec!["helm".to_owned(), "upgrade".to_owned(), "web".to_owned()];
    run.event(1.0, EventKind::CommandStarted { command, disruption: None });
    assert_eq!(run.0.actions(at(1.0)), ["helm upgrade web, in progress"]);
    run.event(2.0, EventKind::CommandEnded { code: Some(0), signal: None, disruption: None });
    run.0.unsettled(Some("Deployment web: 1 of 3 pods updated"));
    let waits = "helm upgrade web waits for the rollout (Deployment web: 1 of 3 pods updated)";
    assert_eq!(run.0.actions(at(2.0)), [waits]);
    let mode = rolldrop_record::Mode::Rollout;
    run.event(9.0, EventKind::CommandSettled { mode, disruption: None, unsettled: None });
    run.0.awaits_silence(Some(Duration::from_secs(4)));
    let waits = "waiting until no request has been lost for 4.0 s";
    assert_eq!(run.0.actions(at(9.0)), [waits, "helm upgrade web is done"]);
    assert_eq!(run.news(), [waits]);
    run.0.awaits_silence(None);
    assert_eq!((run.0.actions(at(9.0)).len(), run.news().len()), (1, 0));
}
