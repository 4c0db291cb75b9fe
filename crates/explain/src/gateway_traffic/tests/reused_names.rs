//! Pods that have, or had, the name of the terminating pod.

use super::*;

/// Losses at the terminating pod `b`: one every 10 ms from 100.1 s to 101.0 s.
const LOST: u64 = 90;

/// Returns the traffic of `b`, whose gateway uses it until 101 s. `show` is called with each time.
fn traffic_of_pod(mut show: impl FnMut(&mut World, i64)) -> TerminationTraffic {
    let mut world = World::new();
    log_while_pod_ends(&mut world, |world, _, ms| {
        show(world, ms);
        match ms {
            101_000.. => world.log(ms, 200, fine("10.0.0.1")),
            100_100.. => world.log(ms, 503, vec![attempt("10.0.0.2", Outcome::ConnectRefused, None)]),
            _ => world.log(ms, 200, fine("10.0.0.2")),
        }
    });
    world.explain(180_000).1
}

/// Shows another pod named `b`.
fn show_namesake(world: &mut World, ms: i64, namespace: &str, change: &str) {
    let mut pod = pod_event("b", "uid-namesake", "10.0.0.9", change);
    pod["namespace"] = namespace.into();
    world.observe(ms, &EventKind::Pod(serde_json::from_value(pod).unwrap()));
}

#[test]
fn losses_at_old_address_belong_to_predecessor() {
    // A StatefulSet creates the next pod as soon as the last one is gone.
    let traffic = traffic_of_pod(|world, ms| match ms {
        100_500 => show_namesake(world, ms, "shop", "applied"),
        100_505.. => world.log(ms + 5, 200, fine("10.0.0.9")),
        _ => {}
    });
    assert_eq!(traffic.lost, Bounded::exactly(LOST), "{traffic:?}");
    // The gateway's clock is known to within half a second.
    assert!(traffic.windows[0].lower_s.unwrap() > 0.4, "{traffic:?}");
}

#[test]
fn losses_belong_to_pod_of_own_namespace() {
    // The gateway may use the namesake at the same time.
    let traffic = traffic_of_pod(|world, ms| {
        match ms {
            0 => show_namesake(world, ms, "other", "listed"),
            50_000 => show_namesake(world, ms, "other", "applied"),
            _ => {}
        }
        world.log(ms + 5, 200, fine("10.0.0.9"));
    });
    assert_eq!(traffic.lost, Bounded::exactly(LOST), "{traffic:?}");
}

#[test]
fn users_of_earlier_pod_are_not_those_of_its_successor() {
    let mut world = World::new();
    roll(&mut world, |_, _| {});
    assert_eq!(world.watch.settled(at(115_000)).len(), 1, "b");
    // A pod that no gateway uses gets the address.
    world.begin(120_000, "d", "10.0.0.2", "applied");
    world.delete(200_000, "d");
    let end = world.watch.settled(at(300_000)).remove(0);
    assert_eq!((&*end.pod, world.traffic.explain(&end, at(300_000)).unwrap()), ("d", None));
}
