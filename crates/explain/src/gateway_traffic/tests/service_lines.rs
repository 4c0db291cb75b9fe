//! Lines that name a Service instead of a pod. Pods `a`, `b` and `c` are behind Service `web`.

use serde_json::json;

use super::*;

pub(super) const WEB: &str = "10.96.0.1";
const API: &str = "10.96.0.2";

pub(super) fn show_service(world: &mut World, ms: i64, name: &str, address: &str) {
    let service = json!({"kind": "service", "change": "listed", "namespace": "shop", "name": name,
        "cluster_ips": [address], "node_ports": [30_080]});
    world.observe(ms, &serde_json::from_value(service).unwrap());
}

pub(super) fn show_slice(world: &mut World, ms: i64, service: &str, pods: &[&str]) {
    let endpoint = |pod: &&str| {
        json!({"pod": pod, "address": world.pods[*pod]["ip"], "ready": true, "serving": true,
            "terminating": false})
    };
    let endpoints: Vec<Value> = pods.iter().map(endpoint).collect();
    let slice = json!({"kind": "endpoint_slice", "change": "listed", "namespace": "shop",
        "name": format!("{service}-x"), "service": service, "endpoints": endpoints});
    world.observe(ms, &serde_json::from_value(slice).unwrap());
}

/// Returns three pods behind Service `web`.
fn behind_service() -> World {
    let mut world = World::new();
    show_service(&mut world, 0, "web", WEB);
    show_slice(&mut world, 0, "web", &["a", "b", "c"]);
    world
}

/// Logs requests to this address. From 100 ms to 400 ms after the deletion of `b`, every third request fails with the
/// attempts `lost`.
fn roll_service(world: &mut World, address: &str, lost: &[LoggedAttempt]) {
    log_while_pod_ends(world, |world, n, ms| match n % 3 == 1 && (100_100..100_400).contains(&ms) {
        true => world.log(ms, 502, lost.to_vec()),
        false => world.log(ms, 200, fine(address)),
    });
}

fn refused(address: &str) -> Vec<LoggedAttempt> {
    vec![attempt(address, Outcome::ConnectRefused, None)]
}

fn failed(address: &str) -> Vec<LoggedAttempt> {
    vec![attempt(address, Outcome::HttpError, Some(502))]
}

fn up_to(n: u64) -> Bounded {
    Bounded { at_least: 0, at_most: n, estimate: n as f64 }
}

#[test]
fn service_lines_are_matched_by_time() {
    let mut world = behind_service();
    roll_service(&mut world, WEB, &refused(WEB));
    let (_, traffic) = world.explain(180_000);
    // Only the end of b explains refused connections.
    assert_eq!(traffic.lost, Bounded::exactly(10), "{traffic:?}");
    assert_eq!(traffic.by_cause.len(), 1, "{traffic:?}");
    assert_eq!((traffic.background, traffic.windows.len()), (Some(Bounded::default()), 0));
    let requests = traffic.by_services["shop/web"];
    assert!((129..=240).contains(&requests), "{requests}, in 1.3 s and the width of t0");

    // Any of the pods may have sent the error.
    let mut world = behind_service();
    roll_service(&mut world, WEB, &failed(WEB));
    let (_, traffic) = world.explain(180_000);
    assert_eq!((traffic.lost, traffic.windows.len()), (up_to(10), 0), "{traffic:?}");
}

#[test]
fn node_ports_identify_their_service() {
    let mut world = behind_service();
    // The gateway names a node that has a pod in its network.
    world.begin(0, "host", "192.168.0.7", "listed");
    let node = |outcome, status| {
        let address: SocketAddr = "192.168.0.7:30080".parse().unwrap();
        vec![LoggedAttempt { upstream: LoggedUpstream::Address(address), ..attempt(WEB, outcome, status) }]
    };
    for n in 0..12_000 {
        if n == 10_000 {
            world.delete(100_000, "b");
        }
        let lost = (10_010..10_020).contains(&n);
        let shown = if lost { node(Outcome::ConnectRefused, None) } else { node(Outcome::Ok, Some(200)) };
        world.log(n * 10, if lost { 502 } else { 200 }, shown);
    }
    let (_, traffic) = world.explain(180_000);
    assert_eq!(traffic.lost, Bounded::exactly(10), "{traffic:?}");
}

#[test]
fn service_host_names_are_matched_by_time() {
    let mut world = behind_service();
    let host = |host: &str, outcome, status| {
        let upstream = LoggedUpstream::Host(host.into());
        vec![LoggedAttempt { upstream, ..attempt(WEB, outcome, status) }]
    };
    for (n, ms) in (0..120_000).step_by(10).enumerate() {
        if ms == 100_000 {
            world.delete(ms, "b");
        }
        match (100_100..100_200).contains(&ms) {
            true => world.log(ms, 502, host("web.shop.svc", Outcome::ConnectRefused, None)),
            // Another host fails all the time.
            false if n % 2 == 0 => world.log(ms, 502, host("example.com", Outcome::ConnectRefused, None)),
            false => world.log(ms, 200, host("web.shop", Outcome::Ok, Some(200))),
        }
    }
    let (_, traffic) = world.explain(180_000);
    assert_eq!(traffic.lost, Bounded::exactly(10), "{traffic:?}");
}

#[test]
fn pods_terminating_together_share_service_losses() {
    let mut world = behind_service();
    for ms in (0..120_000).step_by(10) {
        if ms == 100_000 {
            world.delete(ms, "a");
            world.delete(ms, "b");
        }
        match (100_100..100_200).contains(&ms) {
            true => world.log(ms, 502, refused(WEB)),
            false => world.log(ms, 200, fine(WEB)),
        }
    }
    let settled = world.watch.settled(at(180_000));
    assert_eq!(settled.len(), 2);
    for end in settled {
        let traffic = world.traffic.explain(&end, at(180_000)).unwrap().unwrap();
        assert_eq!((traffic.lost.at_least, traffic.lost.at_most), (0, 10), "{traffic:?}");
        assert!((traffic.lost.estimate - 5.0).abs() < 0.1, "{traffic:?}");
    }
}

#[test]
fn lines_naming_other_services_are_ignored() {
    let mut world = behind_service();
    show_service(&mut world, 0, "api", API);
    show_slice(&mut world, 0, "api", &["c"]);
    world.log(50_000, 200, fine(WEB));
    roll_service(&mut world, API, &refused(API));
    world.log(100_200, 200, fine(WEB));
    let (end, traffic) = world.explain(180_000);
    assert_eq!((&*end.pod, traffic.lost), ("b", Bounded::default()), "{traffic:?}");
    assert_eq!(traffic.by_services, BTreeMap::from([("shop/web".to_owned(), 1)]));

    // A log that names only other Services shows nothing about the pod, either.
    let mut world = behind_service();
    show_service(&mut world, 0, "api", API);
    roll_service(&mut world, API, &refused(API));
    let end = world.watch.settled(at(180_000)).remove(0);
    assert_eq!(world.traffic.explain(&end, at(180_000)).unwrap(), None);
}

#[test]
fn line_for_unknown_service_shows_nothing() {
    let mut world = World::new();
    roll_service(&mut world, WEB, &refused(WEB));
    show_service(&mut world, 120_000, "web", WEB);
    show_slice(&mut world, 120_000, "web", &["a", "b", "c"]);
    let end = world.watch.settled(at(180_000)).remove(0);
    assert_eq!(world.traffic.explain(&end, at(180_000)).unwrap(), None);
}

#[test]
fn pod_joins_service_when_slices_show_it() {
    let mut world = World::new();
    show_service(&mut world, 0, "web", WEB);
    show_slice(&mut world, 0, "web", &["a", "c"]);
    for ms in (0..90_000).step_by(100) {
        world.log(ms, 200, fine(WEB));
    }
    show_slice(&mut world, 90_000, "web", &["a", "b", "c"]);
    roll_service(&mut world, WEB, &refused(WEB));
    let (_, traffic) = world.explain(180_000);
    assert_eq!(traffic.lost, Bounded::exactly(10), "{traffic:?}");
}

#[test]
fn service_background_excludes_terminations() {
    let mut world = behind_service();
    world.begin(0, "d", "10.0.0.4", "listed");
    show_slice(&mut world, 0, "web", &["a", "b", "c", "d"]);
    // Losses at the end of another pod are not part of the background.
    world.delete(30_000, "d");
    for ms in (30_010..31_000).step_by(10) {
        world.log(ms, 502, failed(WEB));
    }
    assert_eq!(world.watch.settled(at(35_000)).len(), 1);
    for second in 45..100 {
        world.log(second * 1000 + 5, 503, vec![attempt(WEB, Outcome::HttpError, Some(503))]);
    }
    roll_service(&mut world, WEB, &refused(WEB));
    let (_, traffic) = world.explain(180_000);
    let background = traffic.background.unwrap();
    // Periods are 12 s long, including the margin in which losses are matched by time.
    assert!(background.at_most <= 14 && background.at_least <= 12, "{background:?}");
    assert!(background.estimate > 5.0, "{background:?}");
    assert_eq!(traffic.lost.at_least, 10, "{traffic:?}");
}

/// The gateway keeps its connections to other pods, so responses from those pods do not show that a dead pod is no
/// longer used.
#[test]
fn kept_connections_exclude_no_dead_pod() {
    let mut world = behind_service();
    roll_service(&mut world, WEB, &failed(WEB));
    // The pod was gone at 101.3 s. A node still routes to it.
    world.log(107_000, 502, failed(WEB));
    let (_, traffic) = world.explain(180_000);
    assert_eq!(traffic.lost, up_to(11), "{traffic:?}");
    let earlier = {
        let mut world = behind_service();
        roll_service(&mut world, WEB, &failed(WEB));
        world.explain(180_000).1.by_services["shop/web"]
    };
    assert_eq!(traffic.by_services["shop/web"], earlier + 1, "the late request may have reached the pod too");
}

/// A pod without a probe may be ready before it listens, and refuse connections like one that has ended.
#[test]
fn starting_pods_leave_refusals_ambiguous() {
    let mut world = behind_service();
    world.begin(99_000, "d", "10.0.0.4", "applied");
    show_slice(&mut world, 99_000, "web", &["a", "b", "c", "d"]);
    roll_service(&mut world, WEB, &refused(WEB));
    let (_, traffic) = world.explain(180_000);
    assert_eq!(traffic.lost, up_to(10), "{traffic:?}");
}

/// HAProxy logs no server if the health checks of its only server, a Service, have failed.
#[test]
fn failures_without_upstream_belong_to_sole_service() {
    let mut world = behind_service();
    roll_service(&mut world, WEB, &[]);
    let (_, traffic) = world.explain(180_000);
    assert_eq!(traffic.lost, up_to(10), "{traffic:?}");
    // If the log also names other upstreams, the failures may be theirs.
    let mut world = behind_service();
    world.log(1, 200, fine("10.9.9.9"));
    roll_service(&mut world, WEB, &[]);
    let (_, traffic) = world.explain(180_000);
    assert_eq!(traffic.lost, Bounded::default(), "{traffic:?}");
}

#[test]
fn retried_service_requests_may_count_as_saved() {
    let mut world = behind_service();
    for ms in (0..120_000).step_by(10) {
        if ms == 100_000 {
            world.delete(ms, "b");
        }
        match (100_100..100_200).contains(&ms) {
            true => world.log(ms, 200, [failed(WEB), fine(WEB)].concat()),
            false => world.log(ms, 200, fine(WEB)),
        }
    }
    let (_, traffic) = world.explain(180_000);
    assert_eq!(
        (traffic.lost, traffic.saved_by_retries),
        (Bounded::default(), Some(up_to(10))),
        "{traffic:?}"
    );
}

/// Lines that name pods yield windows even if other lines name only the Service.
#[test]
fn windows_come_only_from_lines_that_name_pods() {
    let mut world = behind_service();
    let mut is_second = false;
    roll(&mut world, |world, ms| {
        is_second = !is_second;
        world.log(ms, 503, refused(if is_second { "10.0.0.2" } else { WEB }));
    });
    world.log(60_000, 200, fine(WEB));
    let (_, traffic) = world.explain(180_000);
    assert_eq!((traffic.lost, traffic.windows.len()), (Bounded::exactly(10), 1), "{traffic:?}");
    assert_eq!(traffic.windows[0].consumer, "gw");
    assert_eq!(traffic.by_services.len(), 1);
}
