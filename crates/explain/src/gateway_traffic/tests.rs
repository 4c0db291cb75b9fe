//! Simulated gateways in front of three pods, with known ground truth. Pod `b` is deleted at 100 s.

mod journal_rows;
mod mangled_logs;
mod pooled_losses;
mod reused_names;
mod rolling_service;
mod service_lines;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::model::{Bounded, Cause, SeenConsumers, T0Basis};
use crate::timeline::TerminationWatch;
use crate::timeline::clocks::API_SERVER;
use rolldrop_record::{LoggedAttempt, LoggedUpstream, Outcome};

const MS: i64 = 1_000_000;

fn at(ms: i64) -> Stamp {
    Stamp::from_unix_ns(1_800_000_000_000_000_000 + ms * MS)
}

/// Watch of a cluster, and a gateway `gw` with its own clock.
struct World {
    watch: TerminationWatch,
    traffic: GatewayTraffic,
    pods: BTreeMap<&'static str, Value>,
    /// The gateway's clock minus ours, in milliseconds.
    ahead_ms: i64,
}

impl World {
    fn new() -> Self {
        let traffic = GatewayTraffic::new("k3v9x2abcdef".parse().unwrap(), at(0));
        let (watch, pods) = (TerminationWatch::default(), BTreeMap::new());
        let mut world = Self { watch, traffic, pods, ahead_ms: 0 };
        let offset = ClockOffset { offset_ns: 0, uncertainty_ns: 1_000 };
        world.observe(0, &EventKind::clock_sample(API_SERVER, offset));
        for (name, address) in [("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "10.0.0.3")] {
            world.begin(0, name, address, "listed");
        }
        world
    }

    fn observe(&mut self, ms: i64, kind: &EventKind) {
        self.watch.observe(at(ms), Some("shop"), kind);
        self.traffic.observe(at(ms), kind);
    }

    fn show(&mut self, ms: i64, name: &'static str) {
        let event = serde_json::from_value(self.pods[name].clone()).unwrap();
        self.observe(ms, &EventKind::Pod(event));
    }

    fn begin(&mut self, ms: i64, name: &'static str, address: &str, change: &str) {
        let pod = pod_event(name, &format!("uid-{name}"), address, change);
        self.pods.insert(name, pod);
        self.show(ms, name);
    }

    /// Deletes a pod. Its containers end 1 s later, and the pod is gone 1.3 s after its deletion.
    fn delete(&mut self, ms: i64, name: &'static str) {
        self.delete_until(ms, name, ms + 1000, 30);
    }

    /// Deletes a pod whose containers end at `ended_ms`. The pod is gone 0.3 s after that.
    fn delete_until(&mut self, ms: i64, name: &'static str, ended_ms: i64, grace_s: i64) {
        let pod = self.pods.get_mut(name).unwrap();
        pod["change"] = "applied".into();
        pod["deletion_grace_s"] = grace_s.into();
        pod["deletion_timestamp"] = json!(at((ms / 1000 + grace_s) * 1000));
        self.show(ms, name);
        for s in (ms / 1000..ended_ms / 1000).step_by(10) {
            self.traffic.forget_before(at(s * 1000));
        }
        let pod = self.pods.get_mut(name).unwrap();
        pod["ready"] = false.into();
        pod["containers"][0]["state"] = "terminated".into();
        pod["containers"][0]["exit_code"] = 0.into();
        self.show(ended_ms, name);
        self.pods.get_mut(name).unwrap()["change"] = "deleted".into();
        self.show(ended_ms + 300, name);
    }

    /// Logs a request that began at `ms` and took 2 ms; its line is read 30 ms later.
    fn log(&mut self, ms: i64, status: u16, attempts: Vec<LoggedAttempt>) {
        self.log_line(ms, line(Some(status), attempts));
    }

    fn log_line(&mut self, ms: i64, line: LoggedRequest) {
        let begun = at(ms + self.ahead_ms);
        let line = LoggedRequest { earliest: begun, latest: begun, ..line };
        self.traffic.add(&"gw".into(), at(ms + 32), &line);
    }

    /// Logs a response that began at `begun_ms` and ended at `ended_ms`; its line is read 30 ms later.
    fn log_stream(&mut self, begun_ms: i64, ended_ms: i64, attempt: LoggedAttempt) {
        let (begun, took) = (at(begun_ms), Duration::from_millis((ended_ms - begun_ms).try_into().unwrap()));
        let stream = line(Some(200), vec![LoggedAttempt { took: Some(took), ..attempt }]);
        let stream = LoggedRequest { earliest: begun, latest: begun, took: Some(took), ..stream };
        self.traffic.add(&"gw".into(), at(ended_ms + 30), &stream);
    }

    /// Explains the only termination.
    fn explain(&mut self, ms: i64) -> (WatchedTermination, TerminationTraffic) {
        let mut settled = self.watch.settled(at(ms));
        assert_eq!(settled.len(), 1, "{settled:?}");
        let end = settled.remove(0);
        let traffic = self.traffic.explain(&end, at(ms)).unwrap().unwrap();
        (end, traffic)
    }
}

/// Returns an event for a ready pod.
pub(super) fn pod_event(name: &str, uid: &str, address: &str, change: &str) -> Value {
    let app = json!({"name": "app", "sidecar": false, "pre_stop_sleep_s": null, "pre_stop_other": false,
        "state": "running", "reason": null, "exit_code": null, "restarts": 0});
    json!({"change": change, "namespace": "shop", "name": name, "uid": uid, "resource_version": "1", "node": "n1",
        "ip": address, "phase": "Running", "ready": true, "deletion_timestamp": null, "deletion_grace_s": null,
        "grace_s": 30, "disruption_target": null, "owner": "ReplicaSet/web-7d9f", "containers": [app]})
}

fn line(status: Option<u16>, attempts: Vec<LoggedAttempt>) -> LoggedRequest {
    LoggedRequest {
        earliest: Stamp::default(),
        latest: Stamp::default(),
        took: Some(Duration::from_millis(2)),
        status,
        attempts_made: u32::try_from(attempts.len()).ok(),
        attempts,
        client_left: false,
        bytes: None,
        route: None,
    }
}

fn attempt(address: &str, outcome: Outcome, status: Option<u16>) -> LoggedAttempt {
    let address: SocketAddr = format!("{address}:8080").parse().unwrap();
    let (upstream, took) = (LoggedUpstream::Address(address), Some(Duration::from_millis(1)));
    LoggedAttempt { upstream, outcome: Some(outcome), status, took }
}

fn fine(address: &str) -> Vec<LoggedAttempt> {
    vec![attempt(address, Outcome::Ok, Some(200))]
}

const ADDRESSES: [&str; 3] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];

/// Logs 100 requests/s for 120 s, each with `log`, which is passed its number and time. `b` is deleted at 100 s.
fn log_while_pod_ends(world: &mut World, mut log: impl FnMut(&mut World, i64, i64)) {
    for n in 0..12_000 {
        let ms = n * 10;
        if ms == 100_000 {
            world.delete(100_000, "b");
        }
        log(world, n, ms);
    }
}

/// Logs requests to all pods. Until 400 ms after the deletion of `b`, a third of them still go to `b`, which accepts no
/// connections from 100 ms after its deletion on. `refused` logs a request that `b` did not accept.
fn roll(world: &mut World, mut refused: impl FnMut(&mut World, i64)) {
    log_while_pod_ends(world, |world, n, ms| {
        let address = ADDRESSES[usize::try_from(n % 3).unwrap()];
        match (address, ms) {
            ("10.0.0.2", 100_400..) => world.log(ms, 200, fine("10.0.0.1")),
            ("10.0.0.2", 100_100..) => refused(world, ms),
            _ => world.log(ms, 200, fine(address)),
        }
    });
}

#[test]
fn refused_attempts_are_counted_exactly() {
    let mut world = World::new();
    roll(&mut world, |world, ms| {
        world.log(ms, 503, vec![attempt("10.0.0.2", Outcome::ConnectRefused, None)]);
    });
    let (_, traffic) = world.explain(180_000);
    assert_eq!(traffic.lost, Bounded::exactly(10), "{traffic:?}");
    assert_eq!(traffic.by_cause, BTreeMap::from([(Cause::GatewayToDeadPod, Bounded::exactly(10))]));
    assert_eq!((traffic.saved_by_retries, traffic.not_observable), (Some(Bounded::default()), 0));
    assert_eq!(traffic.background, Some(Bounded::exactly(0)));
    let [window] = &traffic.windows[..] else { panic!("{traffic:?}") };
    assert_eq!(window.consumer, "gw");
    // The window lasted 0.4 s. The uncertainty of t0 adds up to a second, and that of the clock up to another second.
    let (lower_s, upper_s) = (window.lower_s.unwrap(), window.upper_s.unwrap());
    assert!(lower_s <= 0.4 && (0.4..3.0).contains(&upper_s), "{window:?}");
}

#[test]
fn beats_narrow_gateway_window() {
    let upper_s = |has_beats: bool| {
        let mut world = World::new();
        for ms in (0..110_000).step_by(10) {
            // The deletion's version is between those of the beats at 100.5 s and 100.6 s.
            if has_beats && (95_000..102_000).contains(&ms) && ms % 100 == 0 {
                let beat = EventKind::Beat { answered: at(ms + 5), version: (2 * ms).to_string() };
                world.observe(ms, &beat);
                let version = (2 * ms + 1).to_string();
                world.observe(ms + 10, &EventKind::BeatCheck { answered: at(ms + 20), version });
            }
            if ms == 100_600 {
                world.pods.get_mut("b").unwrap()["resource_version"] = "201101".into();
                world.delete(ms, "b");
            }
            let address = ADDRESSES[usize::try_from(ms / 10 % 3).unwrap()];
            match (address, ms) {
                ("10.0.0.2", 100_700..) => world.log(ms, 200, fine("10.0.0.1")),
                _ => world.log(ms, 200, fine(address)),
            }
        }
        let (end, traffic) = world.explain(180_000);
        let basis = if has_beats { T0Basis::Beats } else { T0Basis::Timestamp };
        assert_eq!((end.t0_basis, traffic.windows.len()), (basis, 1));
        traffic.windows[0].upper_s.unwrap()
    };
    // Without beats, the deletion may have been at 100.0 s, or a little earlier by the API server's clock.
    let narrower_s = upper_s(false) - upper_s(true);
    assert!((0.5..0.6).contains(&narrower_s), "{narrower_s}");
}

#[test]
fn retried_attempts_count_as_saved() {
    let mut world = World::new();
    let refused = || attempt("10.0.0.2", Outcome::ConnectRefused, Some(502));
    let mut number = 0;
    roll(&mut world, |world, ms| {
        number += 1;
        match number % 3 {
            0 => world.log(ms, 502, vec![refused(), attempt("10.0.0.2", Outcome::ConnectRefused, Some(502))]),
            _ => world.log(ms, 200, vec![refused(), attempt("10.0.0.1", Outcome::Ok, Some(200))]),
        }
    });
    let (_, traffic) = world.explain(180_000);
    // Three of ten requests were lost, each after two attempts.
    assert_eq!((traffic.lost, traffic.saved_by_retries), (Bounded::exactly(3), Some(Bounded::exactly(7))));
}

/// The app of a pod that is ending may still send `X-Accel-Redirect`.
#[test]
fn redirected_request_is_neither_lost_nor_saved() {
    let mut world = World::new();
    roll(&mut world, |world, ms| {
        let attempts = [fine("10.0.0.2"), fine("10.0.0.1")].concat();
        world.log(ms, 200, attempts);
    });
    let (_, traffic) = world.explain(180_000);
    assert_eq!((traffic.lost, traffic.saved_by_retries), (Bounded::default(), Some(Bounded::default())));
}

#[test]
fn hidden_retries_are_unknown() {
    let mut world = World::new();
    roll(&mut world, |world, ms| {
        let line = LoggedRequest { attempts_made: None, ..line(Some(200), fine("10.0.0.1")) };
        world.log_line(ms, line);
    });
    let (_, traffic) = world.explain(180_000);
    assert_eq!((traffic.lost, traffic.saved_by_retries), (Bounded::default(), None));
}

#[test]
fn addressless_failures_are_bounded() {
    let mut world = World::new();
    roll(&mut world, |world, ms| {
        let nameless =
            LoggedAttempt { upstream: LoggedUpstream::Unnamed, outcome: None, status: None, took: None };
        world.log(ms, 502, vec![nameless]);
    });
    world.log(60_000, 502, Vec::new());
    let (_, traffic) = world.explain(180_000);
    assert!(traffic.lost.at_most >= 10 && traffic.lost.at_least <= 10, "{traffic:?}");
}

#[test]
fn responses_not_known_complete_are_not_observable() {
    let mut world = World::new();
    let unproven = |address| {
        let attempt = attempt(address, Outcome::Ok, Some(200));
        vec![LoggedAttempt { outcome: None, ..attempt }]
    };
    roll(&mut world, |_, _| {});
    for ms in [99_990, 100_010, 100_020, 103_000] {
        world.log(ms, 200, unproven("10.0.0.2"));
        world.log(ms, 200, unproven("10.0.0.1"));
    }
    let (_, traffic) = world.explain(180_000);
    // Because the gateway's clock is uncertain, the first may also have been under way. The last came after the pod was
    // gone.
    assert_eq!(traffic.not_observable, 3, "{traffic:?}");
    assert_eq!(traffic.lost, Bounded::exactly(0));
}

/// Returns a response that the log does not show to be complete.
fn endless(address: &str) -> LoggedAttempt {
    LoggedAttempt { outcome: None, ..attempt(address, Outcome::Ok, Some(200)) }
}

fn cut(address: &str) -> LoggedAttempt {
    attempt(address, Outcome::TruncatedBody, Some(200))
}

#[test]
fn losses_after_response_began_count_as_streams_cut() {
    let mut world = World::new();
    roll(&mut world, |world, ms| {
        if ms == 100_210 {
            // One began long before the watch.
            for begun_ms in [-36_000_000, 30_000, 99_000] {
                world.log_stream(begun_ms, 100_150, cut("10.0.0.2"));
            }
            world.log_stream(99_500, 100_160, attempt("10.0.0.2", Outcome::BodyTimeout, Some(200)));
            world.log_stream(90_000, 100_160, attempt("10.0.0.2", Outcome::Ok, Some(200)));
        }
        world.log(ms, 502, vec![attempt("10.0.0.2", Outcome::EofBeforeResponse, None)]);
    });
    let (_, traffic) = world.explain(180_000);
    assert_eq!((traffic.lost, traffic.streams_cut), (Bounded::exactly(14), Some(Bounded::exactly(4))));
}

#[test]
fn gateway_with_only_streams_shows_losses() {
    let mut world = World::new();
    for second in 0..100 {
        world.traffic.forget_before(at(second * 1000));
    }
    world.delete(100_000, "b");
    for begun_ms in [-36_000_000, -400_000, 99_000] {
        world.log_stream(begun_ms, 100_500, cut("10.0.0.2"));
        world.traffic.forget_before(at(101_000));
    }
    let (_, traffic) = world.explain(180_000);
    assert_eq!(traffic.lost, Bounded::exactly(3), "{traffic:?}");
}

#[test]
fn unseen_ends_leave_cut_streams_unknown() {
    let streams_cut = |log: &dyn Fn(&mut World)| {
        let mut world = World::new();
        roll(&mut world, |_, _| {});
        log(&mut world);
        let (_, traffic) = world.explain(180_000);
        (traffic.streams_cut, traffic.not_observable)
    };
    let none = (Some(Bounded::default()), 0);
    assert_eq!(streams_cut(&|_| {}), none);
    assert_eq!(streams_cut(&|world| world.log_stream(98_000, 100_100, endless("10.0.0.2"))), (None, 1));
    // Caddy logs no address for a response that was cut.
    let nameless = LoggedAttempt { upstream: LoggedUpstream::Unnamed, ..endless("10.0.0.2") };
    assert_eq!(streams_cut(&|world| world.log_stream(98_000, 100_100, nameless.clone())), (None, 1));
    assert_eq!(streams_cut(&|world| world.log(100_100, 200, Vec::new())), none, "the gateway's own response");
    assert_eq!(streams_cut(&|world| world.log_stream(98_000, 100_100, endless("10.0.0.1"))), none);
    assert_eq!(streams_cut(&|world| world.log_stream(90_000, 95_000, endless("10.0.0.2"))), none);
    let both = streams_cut(&|world| {
        world.log_stream(98_000, 100_100, endless("10.0.0.2"));
        world.log_stream(98_000, 100_100, cut("10.0.0.2"));
    });
    assert_eq!(both, (Some(Bounded::exactly(1)), 1));
}

/// A stream began while its pod was healthy, but the pod's own termination cut it.
#[test]
fn stream_cut_by_own_pod_is_not_background() {
    let mut world = World::new();
    world.begin(0, "d", "10.0.0.4", "listed");
    world.delete(90_000, "d");
    for second in 0..80 {
        world.log_stream(second * 1000, 90_500, cut("10.0.0.4"));
    }
    let first = world.watch.settled(at(99_000));
    assert_eq!(first.len(), 1);
    roll(&mut world, |_, _| {});
    world.log_stream(50_000, 100_500, cut("10.0.0.2"));
    let (_, traffic) = world.explain(180_000);
    assert_eq!((traffic.lost, traffic.background), (Bounded::exactly(1), Some(Bounded::default())));
}

#[test]
fn gateway_clock_is_corrected() {
    let mut world = World::new();
    world.ahead_ms = 5_000;
    roll(&mut world, |world, ms| {
        world.log(ms, 503, vec![attempt("10.0.0.2", Outcome::ConnectRefused, None)]);
    });
    let (_, traffic) = world.explain(180_000);
    assert_eq!(traffic.lost, Bounded::exactly(10), "{traffic:?}");
    let window = &traffic.windows[0];
    assert!(window.lower_s.unwrap() <= 0.4 && window.upper_s.unwrap() >= 0.4, "{window:?}");
}

/// HAProxy logs local time, which is hours behind in some places, and the watch forgets attempts twice a second.
#[test]
fn attempts_of_slow_clock_are_not_forgotten() {
    for ahead_ms in [-18_000_000, -900_000, -200_000, 18_000_000] {
        let mut world = World::new();
        world.ahead_ms = ahead_ms;
        log_while_pod_ends(&mut world, |world, _, ms| {
            match ms {
                100_400.. => world.log(ms, 200, fine("10.0.0.1")),
                100_100.. => world.log(ms, 503, vec![attempt("10.0.0.2", Outcome::ConnectRefused, None)]),
                _ => world.log(ms, 200, fine("10.0.0.2")),
            }
            world.traffic.forget_before(at(ms));
        });
        let (_, traffic) = world.explain(180_000);
        assert_eq!(
            (traffic.lost, &traffic.gaps[..]),
            (Bounded::exactly(30), &[][..]),
            "{ahead_ms}: {traffic:?}"
        );
        world.traffic.forget_before(at(3_600_000));
        let kept = world.traffic.attempts.responses().count();
        assert_eq!(kept, 0, "{ahead_ms}");
    }
}

/// A Service with `publishNotReadyAddresses` also has addresses of pods that are not ready.
#[test]
fn response_of_unready_pod_leaves_clock_known() {
    let mut world = World::new();
    let mut pod = pod_event("d", "uid-d", "10.0.0.4", "applied");
    (pod["ready"], pod["ip"]) = (false.into(), Value::Null);
    world.pods.insert("d", pod);
    world.show(40_000, "d");
    world.pods.get_mut("d").unwrap()["ip"] = "10.0.0.4".into();
    world.show(41_000, "d");
    world.log(50_000, 200, fine("10.0.0.4"));
    roll(&mut world, |world, ms| {
        world.log(ms, 503, vec![attempt("10.0.0.2", Outcome::ConnectRefused, None)]);
    });
    let (_, traffic) = world.explain(180_000);
    assert_eq!(traffic.lost, Bounded::exactly(10), "{traffic:?}");
}

#[test]
fn background_comes_from_healthy_pods() {
    let mut world = World::new();
    let failing = |address| vec![attempt(address, Outcome::HttpError, Some(503))];
    // One error per second at each healthy pod, and one reset at the terminating pod.
    for second in 0..100 {
        world.log(second * 1000 + 5, 503, failing("10.0.0.1"));
        world.log(second * 1000 + 7, 503, failing("10.0.0.3"));
    }
    roll(&mut world, |_, _| {});
    world.log(100_050, 502, vec![attempt("10.0.0.2", Outcome::EofBeforeResponse, None)]);
    let (_, traffic) = world.explain(180_000);
    assert_eq!(traffic.lost, Bounded::exactly(1), "{traffic:?}");
    assert_eq!(traffic.by_cause, BTreeMap::from([(Cause::KilledInFlight, Bounded::exactly(1))]));
    let background = traffic.background.unwrap();
    // Periods of 1.3 s have one or two of these errors.
    assert_eq!((background.at_least, background.at_most), (0, 2), "{background:?}");
}

#[test]
fn background_ignores_pods_that_got_no_requests() {
    let errors = |idle: u8| {
        let mut world = World::new();
        for number in 0..idle {
            // The name does not matter here.
            let (name, uid) = ("idle", format!("uid-{number}"));
            let event = pod_event(name, &uid, &format!("10.0.1.{number}"), "listed");
            world.observe(0, &EventKind::Pod(serde_json::from_value(event).unwrap()));
        }
        for second in 0..100 {
            for address in ["10.0.0.1", "10.0.0.2", "10.0.0.3"] {
                let failing = attempt(address, Outcome::HttpError, Some(503));
                world.log(second * 1000 + 5, 503, vec![failing]);
            }
        }
        roll(&mut world, |_, _| {});
        world.explain(180_000).1.background.unwrap()
    };
    assert_eq!(errors(100), errors(0));
}

#[test]
fn attempt_at_reused_address_belongs_to_latest_pod() {
    let mut world = World::new();
    let refused = || vec![attempt("10.0.0.2", Outcome::ConnectRefused, None)];
    roll(&mut world, |world, ms| world.log(ms, 503, refused()));
    world.begin(103_000, "d", "10.0.0.2", "applied");
    for ms in (103_005..108_000).step_by(10) {
        world.log(ms, 503, refused());
    }
    let (_, traffic) = world.explain(180_000);
    // The gateway's clock is known to within half a second, in which the gateway sends 50 requests.
    let Bounded { at_least, at_most, .. } = traffic.lost;
    assert!(at_least == 10 && (10..=60).contains(&at_most), "{traffic:?}");
}

#[test]
fn clients_that_give_up_count_as_lost() {
    let mut world = World::new();
    roll(&mut world, |world, ms| {
        let silent = attempt("10.0.0.2", Outcome::Ok, None);
        let attempts = vec![LoggedAttempt { outcome: None, took: None, ..silent }];
        world.log_line(ms, LoggedRequest { client_left: true, ..line(None, attempts) });
    });
    let (_, traffic) = world.explain(180_000);
    assert_eq!(traffic.lost, Bounded::exactly(10), "{traffic:?}");
    assert_eq!(traffic.by_cause, BTreeMap::from([(Cause::GatewayToDeadPod, Bounded::exactly(10))]));
}

/// Nothing that explains a termination is forgotten before the termination has been explained.
#[test]
fn forgetting_changes_no_explanation() {
    let explained = |forgets: bool| {
        let mut world = World::new();
        roll(&mut world, |world, ms| {
            world.log(ms, 502, vec![attempt("10.0.0.2", Outcome::ConnectRefused, None)]);
        });
        if forgets {
            (0..400).for_each(|turn| world.traffic.forget_before(at(turn * 500)));
        }
        world.explain(200_000)
    };
    assert_eq!(explained(true), explained(false));
}

#[test]
fn long_termination_keeps_its_first_losses() {
    let mut world = World::new();
    for ms in (0..100_000).step_by(100) {
        world.log(ms, 200, fine("10.0.0.2"));
    }
    for ms in (100_500..103_000).step_by(100) {
        world.log(ms, 502, vec![attempt("10.0.0.2", Outcome::ConnectRefused, None)]);
    }
    world.delete_until(100_000, "b", 1_500_000, 3_600);
    let (_, traffic) = world.explain(1_600_000);
    assert_eq!(traffic.lost, Bounded::exactly(25), "{traffic:?}");
}

/// Its node is lost, or a finalizer keeps it.
#[test]
fn pod_that_does_not_end_holds_no_lines() {
    let mut world = World::new();
    let pod = world.pods.get_mut("c").unwrap();
    pod["change"] = "applied".into();
    pod["deletion_grace_s"] = 30.into();
    pod["deletion_timestamp"] = json!(at(130_000));
    let stuck = pod.clone();
    let mut kept = Vec::new();
    for n in 0..60_000 {
        let ms = n * 50;
        match ms {
            100_000 => world.show(ms, "c"),
            2_000_000 => world.delete(ms, "b"),
            _ => {}
        }
        match ms {
            2_000_500.. => world.log(ms, 200, fine("10.0.0.1")),
            2_000_100.. => world.log(ms, 503, vec![attempt("10.0.0.2", Outcome::ConnectRefused, None)]),
            _ => world.log(ms, 200, fine(["10.0.0.2", "10.0.0.3"][usize::try_from(n % 2).unwrap()])),
        }
        if ms % 10_000 == 0 {
            world.traffic.forget_before(at(ms));
            kept.push(world.traffic.attempts.len());
        }
        if ms == 2_080_000 {
            let (_, traffic) = world.explain(ms);
            assert_eq!((traffic.lost, &traffic.gaps[..]), (Bounded::exactly(8), &[][..]), "{traffic:?}");
        }
    }
    // Lines are kept for 3 minutes before the deletion, and for 3 minutes and a half after it.
    assert!(kept.iter().all(|kept| *kept <= 400 * 20), "{kept:?}");
    world.pods.insert("c", stuck);
    world.pods.get_mut("c").unwrap()["change"] = "deleted".into();
    world.show(3_000_000, "c");
    let (end, traffic) = world.explain(3_080_000);
    let [gap] = &traffic.gaps[..] else { panic!("{traffic:?}") };
    assert_eq!((gap.from_ns, gap.why.as_deref()), (end.t0_earliest_ns, Some(UNKNOWN)), "{gap:?}");
}

#[test]
fn line_from_the_future_blocks_no_others() {
    let mut world = World::new();
    let future = LoggedRequest {
        earliest: at(3_600_000_000),
        latest: at(3_600_000_000),
        ..line(Some(200), fine("10.0.0.1"))
    };
    world.traffic.add(&"gw".into(), at(0), &future);
    for ms in (0..2_000_000).step_by(100) {
        world.log(ms, 503, vec![attempt("10.0.0.1", Outcome::HttpError, Some(503))]);
    }
    world.traffic.forget_before(at(2_000_000));
    assert!(world.traffic.attempts.len() <= 1_801, "{}", world.traffic.attempts.len());
}

#[test]
fn pods_deleted_in_gap_are_forgotten() {
    let mut world = World::new();
    // A Job's pod ends by itself, so its termination is never explained.
    let pod = world.pods.get_mut("b").unwrap();
    (pod["phase"], pod["ready"]) = ("Succeeded".into(), false.into());
    world.show(10_000, "b");
    world.observe(60_000, &EventKind::WatchGap { resource: PODS.to_owned(), from: at(30_000) });
    for name in ["a", "c"] {
        world.pods.get_mut(name).unwrap()["change"] = "listed".into();
        world.show(60_001, name);
    }
    assert_eq!(world.watch.settled(at(100_000)), []);
    let all = TimeSpan { from: at(0), until: at(100_000) };
    let well = world.traffic.well_pods(all).into_iter().map(|(_, span)| span.until);
    assert_eq!(well.collect::<Vec<_>>(), [at(100_000), at(60_000), at(100_000)]);
    world.traffic.forget_before(at(2_000_000));
    let known: Vec<_> = world.traffic.pods.keys().map(String::as_str).collect();
    assert_eq!(known, ["uid-a", "uid-c"]);
}

#[test]
fn watch_that_ends_early_leaves_gap() {
    let mut world = World::new();
    roll(&mut world, |_, _| {});
    let (_, traffic) = world.explain(130_000);
    let [gap] = &traffic.gaps[..] else { panic!("{traffic:?}") };
    assert_eq!((&*gap.source, gap.from_ns, gap.to_ns), ("gw", at(130_000), Some(at(176_300))));
    assert_eq!(traffic.windows[0].upper_s, None);
}

#[test]
fn missing_lines_leave_window_open() {
    let mut world = World::new();
    roll(&mut world, |_, _| {});
    let gap = LogGap {
        source: "gw".to_owned(),
        from_ns: at(100_200),
        to_ns: Some(at(100_900)),
        why: Some("the log was rotated".to_owned()),
    };
    world.traffic.add_gap(gap.clone());
    let (end, traffic) = world.explain(180_000);
    assert_eq!((&traffic.gaps[..], traffic.windows[0].upper_s), (&[gap.clone()][..], None));
    // A line missing later on may be that of a slow request.
    let late = LogGap { from_ns: at(150_000), to_ns: Some(at(151_000)), ..gap };
    world.traffic.add_gap(late.clone());
    let traffic = world.traffic.explain(&end, at(180_000)).unwrap().unwrap();
    assert_eq!(traffic.gaps.last(), Some(&late));
    world.traffic.forget_before(at(120_000 + 3_600_000));
    assert_eq!(world.traffic.explain(&end, at(3_700_000)).unwrap(), None, "no line names the pod any more");
}

#[test]
fn seen_consumers_are_sources_whose_logs_name_pod() {
    let mut world = World::new();
    let (of_gateway, other) = ("edge/deployment/envoy", "edge/deployment/traefik");
    for (log, source) in [("gw", of_gateway), ("gw-2", of_gateway), ("other", other)] {
        world.traffic.add_log(log.into(), source.to_owned());
    }
    roll(&mut world, |_, _| {});
    let (end, traffic) = world.explain(260_000);
    let only = BTreeSet::from([of_gateway.to_owned()]);
    let mut expected = SeenConsumers { seen: only.clone(), ..SeenConsumers::default() };
    assert_eq!(traffic.consumers, expected);
    let mut seen_with = |gap| {
        world.traffic.add_gap(gap);
        world.traffic.explain(&end, at(260_000)).unwrap().unwrap().consumers
    };
    let gap = |source: &str| LogGap {
        source: source.to_owned(),
        from_ns: at(100_500),
        to_ns: Some(at(101_000)),
        why: None,
    };
    assert_eq!(seen_with(gap("other")), expected, "this log does not name the pod");
    expected.with_gaps = only;
    assert_eq!(seen_with(gap("gw-2")), expected, "another pod of the gateway may have used it");
}

#[test]
fn unread_log_leaves_gap() {
    let gap_of = |hide: &dyn Fn(&mut GatewayTraffic)| {
        let mut world = World::new();
        roll(&mut world, |_, _| {});
        hide(&mut world.traffic);
        let (_, traffic) = world.explain(180_000);
        assert!(traffic.gaps.is_empty() || traffic.windows[0].upper_s.is_none());
        let times = |gap: &LogGap| (gap.from_ns.unix_ns() / MS, gap.to_ns.unwrap().unix_ns() / MS);
        traffic
            .gaps
            .iter()
            .map(times)
            .map(|(from, to)| (from - at(0).unix_ns() / MS, to - at(0).unix_ns() / MS))
            .collect::<Vec<_>>()
    };
    let gw = Arc::from("gw");
    assert_eq!(gap_of(&|_| {}), []);
    // The log cannot be read, or could not be read for a while.
    assert_eq!(gap_of(&|traffic| traffic.interrupt(&gw, at(150_000))), [(150_000, 180_000)]);
    assert_eq!(gap_of(&|traffic| traffic.interrupt(&gw, at(179_000))), [], "all lines were read before");
    let resume = |traffic: &mut GatewayTraffic| {
        traffic.interrupt(&gw, at(150_000));
        traffic.resume("gw");
    };
    assert_eq!(gap_of(&resume), []);
    // Unreadable lines near each other are one gap.
    let add = |traffic: &mut GatewayTraffic| {
        [20_000, 110_000, 111_000, 119_000, 140_000]
            .iter()
            .for_each(|ms| traffic.add_unreadable("gw", at(*ms)));
    };
    assert_eq!(gap_of(&add), [(110_000, 119_000), (140_000, 140_000)]);
    // No line of this log was read. Another gateway's log shows nothing about this pod.
    let add_gap = |traffic: &mut GatewayTraffic, source: &str| {
        let (from_ns, to_ns) = (at(100_000), Some(at(105_000)));
        traffic.add_gap(LogGap { source: source.to_owned(), from_ns, to_ns, why: None });
    };
    assert_eq!(gap_of(&|traffic| add_gap(traffic, "edge/deployment/gw")), [(100_000, 105_000)]);
    let add_elsewhere = |traffic: &mut GatewayTraffic| {
        let elsewhere =
            LoggedRequest { earliest: at(90_000), latest: at(90_000), ..line(Some(200), fine("10.9.9.9")) };
        traffic.add(&"elsewhere".into(), at(90_010), &elsewhere);
        add_gap(traffic, "elsewhere");
    };
    assert_eq!(gap_of(&add_elsewhere), []);
}

/// The API server was unreachable, but the log was not.
#[test]
fn late_deletion_leaves_gap_where_lines_were_forgotten() {
    for (forgotten_ms, has_gap) in [(99_000, false), (100_200, true)] {
        let mut world = World::new();
        for n in 0..12_000 {
            world.log(n * 10, 200, fine(ADDRESSES[usize::try_from(n % 3).unwrap()]));
        }
        world.traffic.forget_before(at(forgotten_ms).shifted_ns(RECENT_NS));
        let pod = world.pods.get_mut("b").unwrap();
        pod["change"] = "applied".into();
        pod["deletion_grace_s"] = 30.into();
        pod["deletion_timestamp"] = json!(at(130_000));
        world.show(281_000, "b");
        let pod = world.pods.get_mut("b").unwrap();
        pod["containers"][0]["state"] = "terminated".into();
        pod["change"] = "deleted".into();
        world.show(281_300, "b");
        let (end, traffic) = world.explain(370_000);
        assert!(end.t0_earliest_ns < at(100_200), "{end:?}");
        assert_eq!(!traffic.gaps.is_empty(), has_gap, "{traffic:?}");
    }
}

/// A watch that begins after a deletion does not know what was lost before the watch began.
#[test]
fn unknown_start_of_termination_leaves_gap() {
    for was_listed in [true, false] {
        let mut world = World::new();
        world.traffic.known_from = at(100_200);
        if !was_listed {
            world.traffic.pods.remove("uid-b");
        }
        roll(&mut world, |_, _| {});
        let (end, traffic) = world.explain(180_000);
        assert_eq!(traffic.gaps.len(), usize::from(!was_listed), "{traffic:?}");
        assert!(traffic.gaps.iter().all(|gap| gap.from_ns == end.t0_earliest_ns), "{traffic:?}");
    }
}
