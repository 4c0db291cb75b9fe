//! A simulated gateway in front of a Service whose pods are replaced, with known ground truth. The gateway's log names
//! only the Service.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::service_lines::{WEB, show_service, show_slice};
use super::*;

const SLOTS: usize = 3;
/// Time between two requests, and end of the traffic.
const EVERY_MS: i64 = 20;
const OVER_MS: i64 = 200_000;
const GRACE_S: i64 = 30;

/// A pod behind the Service, with the times of its lifecycle.
#[derive(Clone, Debug)]
struct RollingPod {
    name: &'static str,
    address: String,
    is_probed: bool,
    ready_ms: i64,
    listens_ms: i64,
    deleted_ms: i64,
    deaf_ms: i64,
    ended_ms: i64,
    /// Times at which nodes begin and stop routing to the pod.
    routed_ms: (i64, i64),
    lost: u64,
}

type WorldStep = Box<dyn FnOnce(&mut World)>;

/// Returns successive pods, each of which replaces an earlier one. The new pod is ready before the old one is deleted.
fn rolling_pods(random: &mut StdRng) -> Vec<RollingPod> {
    let mut pods = Vec::new();
    for slot in 0..SLOTS {
        let (mut begun_ms, mut is_first) = (0, true);
        while begun_ms < OVER_MS - 30_000 {
            let number = pods.len();
            let ready_ms = if is_first { 0 } else { begun_ms + random.random_range(500..2_000) };
            let is_probed = random.random_bool(0.7);
            let starts_ms = if is_probed || is_first { 0 } else { random.random_range(0..1_500) };
            let deleted_ms = ready_ms + random.random_range(20_000..70_000);
            let deaf_ms = deleted_ms + random.random_range(0..1_200);
            pods.push(RollingPod {
                name: format!("web-{slot}-{number}").leak(),
                address: format!("10.0.1.{number}"),
                is_probed,
                ready_ms,
                listens_ms: ready_ms + starts_ms,
                deleted_ms,
                deaf_ms,
                ended_ms: deaf_ms + random.random_range(0..500),
                routed_ms: (
                    ready_ms + random.random_range(0..300),
                    deleted_ms + random.random_range(0..2_500),
                ),
                lost: 0,
            });
            (begun_ms, is_first) = (deleted_ms - random.random_range(2_000..4_000), false);
        }
    }
    pods
}

fn shows(name: &'static str, change: impl Fn(&mut Value) + 'static, ms: i64) -> (i64, WorldStep) {
    let step = move |world: &mut World| {
        change(world.pods.get_mut(name).unwrap());
        world.show(ms, name);
    };
    (ms, Box::new(step))
}

/// Returns the watch events.
fn events(pods: &[RollingPod]) -> Vec<(i64, WorldStep)> {
    let mut all: Vec<(i64, WorldStep)> = Vec::new();
    for of in pods {
        let RollingPod { name, is_probed, ready_ms, deleted_ms, ended_ms, .. } = *of;
        let address = of.address.clone();
        let begin = move |world: &mut World| {
            let change = if ready_ms == 0 { "listed" } else { "applied" };
            let mut pod = pod_event(name, &format!("uid-{name}"), &address, change);
            pod["containers"][0]["readiness_probe"] = is_probed.into();
            world.pods.insert(name, pod);
            world.show(ready_ms, name);
        };
        all.push((ready_ms, Box::new(begin)));
        let delete = move |pod: &mut Value| {
            pod["change"] = "applied".into();
            pod["deletion_grace_s"] = GRACE_S.into();
            pod["deletion_timestamp"] = json!(at((deleted_ms / 1000 + GRACE_S) * 1000));
        };
        all.push(shows(name, delete, deleted_ms));
        let end = |pod: &mut Value| {
            pod["ready"] = false.into();
            pod["containers"][0]["state"] = "terminated".into();
            pod["containers"][0]["exit_code"] = 0.into();
        };
        all.push(shows(name, end, ended_ms));
        all.push(shows(name, |pod| pod["change"] = "deleted".into(), ended_ms + 300));
    }
    // A single slice lists each pod from the time it is ready until it is gone.
    for ms in pods.iter().flat_map(|of| [of.ready_ms + 1, of.ended_ms + 301]) {
        let is_in = |of: &&RollingPod| of.ready_ms < ms && ms <= of.ended_ms + 300;
        let names: Vec<&'static str> = pods.iter().filter(is_in).map(|of| of.name).collect();
        all.push((ms, Box::new(move |world| show_slice(world, ms, "web", &names))));
    }
    all
}

/// Returns the gateway's lines, and counts the requests that pods lose. `shows_why` is true if the log shows why there
/// was no connection.
fn lines(pods: &mut [RollingPod], fails: f64, shows_why: bool, random: &mut StdRng) -> Vec<(i64, WorldStep)> {
    let mut all: Vec<(i64, WorldStep)> = Vec::new();
    for ms in (0..OVER_MS).step_by(usize::try_from(EVERY_MS).unwrap()) {
        let is_routed = |of: &&mut RollingPod| (of.routed_ms.0..of.routed_ms.1).contains(&ms);
        let mut routed: Vec<&mut RollingPod> = pods.iter_mut().filter(is_routed).collect();
        if routed.is_empty() {
            continue;
        }
        let number = random.random_range(0..routed.len());
        let of = &mut *routed[number];
        let is_refused = !(of.listens_ms..of.deaf_ms).contains(&ms);
        of.lost += u64::from(is_refused && ms >= of.deleted_ms);
        let shown = match (is_refused, shows_why) {
            (true, true) => attempt(WEB, Outcome::ConnectRefused, None),
            (true, false) => LoggedAttempt { outcome: None, ..attempt(WEB, Outcome::HttpError, Some(502)) },
            (false, _) if random.random_bool(fails) => attempt(WEB, Outcome::HttpError, Some(503)),
            (false, _) => attempt(WEB, Outcome::Ok, Some(200)),
        };
        let status = if shown.outcome == Some(Outcome::Ok) { 200 } else { 502 };
        all.push((ms, Box::new(move |world| world.log(ms, status, vec![shown]))));
    }
    all
}

#[test]
fn losses_behind_rolling_service_lie_within_bounds() {
    let (mut ends, mut lost, mut at_least, mut surely) = (0, 0, 0, 0);
    for seed in 0..12 {
        let random = &mut StdRng::seed_from_u64(seed);
        let mut pods = rolling_pods(random);
        let fails = [0.0, 0.003][random.random_range(0..2)];
        let lines = lines(&mut pods, fails, seed % 2 == 0, random);
        let mut steps: Vec<(i64, WorldStep)> = events(&pods).into_iter().chain(lines).collect();
        steps.sort_by_key(|(ms, _)| *ms);
        let mut world = World::new();
        show_service(&mut world, 0, "web", WEB);
        let mut settled = Vec::new();
        for (ms, step) in steps {
            step(&mut world);
            if ms % 1_000 == 0 {
                settled.extend(world.watch.settled(at(ms)).into_iter().map(|end| (ms, end)));
                let explained = settled.extract_if(.., |(from, _)| ms - *from >= 76_000).collect::<Vec<_>>();
                for (_, end) in explained {
                    let traffic = world.traffic.explain(&end, at(ms)).unwrap().unwrap();
                    let truth = pods.iter().find(|pod| *pod.name == *end.pod).unwrap().lost;
                    let most = traffic.background.map_or(0, |background| background.at_most);
                    let least = traffic.lost.at_least.saturating_sub(most);
                    let bounds = least..=traffic.lost.at_most;
                    assert!(bounds.contains(&truth), "{seed} {}: {truth} lost: {traffic:#?}", end.pod);
                    assert!(traffic.windows.is_empty(), "{traffic:#?}");
                    (ends, lost, at_least) = (ends + 1, lost + truth, at_least + traffic.lost.at_least);
                    surely += u64::from(traffic.lost.is_exact());
                }
                world.traffic.forget_before(at(ms));
            }
        }
    }
    println!("{ends} terminations, {lost} lost, at least {at_least}, {surely} exact");
    assert!(ends > 50 && at_least > 0, "{ends} terminations, {at_least}");
}
