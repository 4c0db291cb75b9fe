//! Losses that happen anyway, in sum over many terminations of made-up apps.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::count::workload_ranking::WorkloadTraffic;
use crate::gateway_traffic::background::healthy_losses;

/// Number of periods, as long as a termination, in the ten minutes before a rollout.
const PERIODS: i64 = 30;
/// Number of pods that terminate at the same time.
const AT_ONCE: usize = 2;
const HISTORIES: u64 = 400;
/// Maximum number of these histories with a false alarm: 2.5 %.
const FEW: u64 = 10;

/// An app that loses requests whether or not its pods terminate.
#[derive(Clone, Copy, Debug)]
enum Failing {
    /// Losses at each pod are independent, with this mean per period.
    Constantly(f64),
    /// Some pods lose far more than others.
    AtSomePods(f64),
    /// The mean changes from rollout to rollout.
    AtSomeTimes(f64),
    /// Five requests are lost together.
    InBursts(f64),
    /// All pods lose requests in this share of the periods.
    InOutages(f64),
}

impl Failing {
    /// Returns the numbers lost at each pod in a period of this rollout.
    fn lost(self, rollout: u32, pods: usize, random: &mut StdRng) -> Vec<u64> {
        let outage: f64 = random.random();
        let mut lost = |pod: usize| match self {
            Self::Constantly(mean) => poisson(mean, random),
            Self::AtSomePods(mean) => poisson(if pod.is_multiple_of(4) { 3.0 } else { 0.3 } * mean, random),
            Self::AtSomeTimes(mean) => poisson(mean * f64::from(rollout % 5 + 1) / 3.0, random),
            Self::InBursts(mean) => 5 * poisson(mean, random),
            Self::InOutages(share) => poisson(if outage < share { 20.0 } else { 0.01 }, random),
        };
        (0..pods).map(&mut lost).collect()
    }

    /// Returns the sums over these rollouts of an app with this number of pods.
    fn traffic(self, any: &WatchedTermination, sizes: (u32, usize), random: &mut StdRng) -> WorkloadTraffic {
        let (rollouts, pods) = sizes;
        let mut sums = WorkloadTraffic::default();
        for rollout in 0..rollouts {
            let healthy = (0..PERIODS).map(|period| (period, self.lost(rollout, pods, random))).collect();
            let losses = healthy_losses(&healthy).unwrap();
            for first in (0..pods).step_by(AT_ONCE) {
                let lost = self.lost(rollout, pods, random);
                for lost in lost.into_iter().skip(first).take(AT_ONCE) {
                    sums.add(&ended(any, rollout, losses, lost));
                }
            }
        }
        sums
    }

    /// Returns the number of histories in which terminations that lost nothing seem to have lost requests.
    fn alarms(self, any: &WatchedTermination, sizes: (u32, usize)) -> u64 {
        let random = &mut StdRng::seed_from_u64(7);
        (0..HISTORIES).filter(|_| self.traffic(any, sizes, random).surely_lost() > 0).count() as u64
    }
}

/// Returns a random number of events with this mean (Knuth's method).
fn poisson(mean: f64, random: &mut StdRng) -> u64 {
    let (mut product, mut events) = (random.random::<f64>(), 0);
    while product > (-mean).exp() {
        product *= random.random::<f64>();
        events += 1;
    }
    events
}

fn any_termination() -> WatchedTermination {
    let mut world = World::new();
    roll(&mut world, |_, _| {});
    world.explain(180_000).0
}

/// Returns a termination in a rollout that lost this many requests.
fn ended(any: &WatchedTermination, rollout: u32, losses: HealthyLosses, lost: u64) -> WatchedTermination {
    let traffic = TerminationTraffic {
        lost: Bounded::exactly(lost),
        background: Some(losses.limits),
        background_spread: Some(losses.spread),
        ..TerminationTraffic::default()
    };
    WatchedTermination {
        t0_latest_ns: at(i64::from(rollout) * 3_600_000),
        traffic: Some(traffic),
        ..any.clone()
    }
}

#[test]
fn failing_apps_seldom_seem_to_lose_more() {
    use Failing::*;
    let any = any_termination();
    let rates = [0.002, 0.02, 0.2, 2.0];
    let at_random = rates.iter().flat_map(|rate| [Constantly(*rate), AtSomePods(*rate), AtSomeTimes(*rate)]);
    let at_random = at_random.flat_map(|app| [(app, (1, 10)), (app, (10, 5)), (app, (25, 2))]);
    let together = [InBursts(0.01), InBursts(0.2), InOutages(0.01), InOutages(0.05)];
    let together = together.into_iter().flat_map(|app| [(app, (10, 5)), (app, (25, 2))]);
    for (app, sizes) in at_random.chain(together) {
        let alarms = app.alarms(&any, sizes);
        println!("{app:?} {sizes:?}: {alarms} of {HISTORIES}");
        assert!(alarms <= FEW, "{app:?} {sizes:?}: {alarms}");
    }
    // What happened at most once in the ten minutes before a single rollout may happen in it by chance.
    for app in [InBursts(0.01), InOutages(0.01), InOutages(0.05)] {
        let alarms = app.alarms(&any, (1, 10));
        println!("{app:?} in one rollout: {alarms} of {HISTORIES}");
        assert!(alarms <= 3 * FEW, "{app:?}: {alarms}");
    }
}

#[test]
fn one_harmful_termination_among_fifty_is_found() {
    let any = any_termination();
    let random = &mut StdRng::seed_from_u64(7);
    for sizes in [(1, 50), (10, 5), (25, 2)] {
        let mut found = 0;
        for _ in 0..HISTORIES {
            let mut sums = Failing::Constantly(0.3).traffic(&any, sizes, random);
            sums.lost.merge(&Bounded::exactly(20));
            found += u64::from(sums.surely_lost() > 0);
        }
        println!("{sizes:?}: found in {found} of {HISTORIES}");
        assert!(found >= HISTORIES - FEW, "{sizes:?}: {found}");
    }
}
