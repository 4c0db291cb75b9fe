//! Counts the predictions that come true, for four distributions of stream lengths and for arrivals in bursts.

use std::fmt::Write as _;

use rand::{SeedableRng, rngs::SmallRng};
use statrs::distribution::{Binomial, DiscreteCDF};

use super::laws::{Arrivals, Law, Lognormal, Workload, lognormal, second};
use crate::prediction::{CutRange, Estimate, SteadyRecord, VirtualTerminations};
use rolldrop_explain::math::counts::count_quantile;
use rolldrop_explain::math::stats;

const PODS: usize = 3;
/// Number of further terminations that a prediction covers.
const FURTHER: u64 = 100;
/// Length of a record for which the intervals are nearly as narrow as if the distribution were known.
const LONG_HOURS: u32 = 24;
/// Number of simulations per choice of a grace period. A choice takes as long as the rest of a simulation.
const CHOICES: u64 = 10;
/// Maximum mean number of streams cut per termination for which the grace period is chosen.
const MOST_CUT: f64 = 0.1;
/// Share of terminations in which the smallest budget should save all streams.
const COVERED: f64 = 0.9;

/// Budgets that were chosen.
#[derive(Default)]
struct Choices {
    known: u64,
    bad: u64,
}

/// Figures of one row of the study.
#[derive(Default)]
struct Row {
    simulations: u64,
    grace_s: f64,
    cut: f64,
    hits: u64,
    hits_of_99_9: u64,
    hits_of_rule: u64,
    width: f64,
    oracle_width: f64,
    mean_above: u64,
    mean_below: u64,
    graces: Choices,
    needs: Choices,
}

impl Choices {
    fn add<T>(&mut self, choice: Estimate<T>, is_bad: impl FnOnce(T) -> bool) {
        if let Some(is_bad) = choice.map(is_bad).known() {
            self.known += 1;
            self.bad += u64::from(is_bad);
        }
    }

    fn print(&self) -> String {
        format!("{} of {}", self.bad, self.known)
    }
}

impl CutRange {
    fn has(self, cut: u64) -> bool {
        (self.lower..=self.upper).contains(&cut)
    }

    fn width(self) -> f64 {
        (self.upper - self.lower) as f64
    }

    /// Returns the interval that would follow if the mean number of streams cut per termination and its dispersion were
    /// known.
    fn known(mean: f64, dispersion: f64) -> Self {
        let mean = FURTHER as f64 * mean;
        let quantile = |p: f64| count_quantile(mean, dispersion * mean, p);
        Self { lower: quantile(0.025), upper: quantile(0.975) }
    }
}

impl Row {
    /// Simulates a record, predicts the cuts of a grace period at its 99th percentile, and terminates further pods with
    /// it.
    fn simulate(&mut self, workload: Workload, hours: u32, seed: u64) {
        let mut rng = SmallRng::seed_from_u64(seed);
        let length_s = 3600.0 * f64::from(hours);
        let spans = workload.record(PODS, length_s, &mut rng);
        let record = SteadyRecord {
            spans: &spans,
            from: second(0.0),
            to: second(length_s),
            pods: PODS,
            windows_s: &[(workload.window_s, workload.window_s)],
        };
        let record = VirtualTerminations::of(&record).unwrap();
        let rule = record.percentile_rule(0.99, f64::INFINITY).unwrap();
        let cuts = rule.cuts.known().unwrap();
        let cut = (0..FURTHER).map(|_| workload.terminate(rule.grace_s, &mut rng)).sum();
        let (truth, dispersion) = (workload.cut(rule.grace_s), workload.dispersion(rule.grace_s));
        let predicted = cuts.predict(FURTHER, 0.95);
        let mean = cuts.mean(0.975);
        self.simulations += 1;
        self.grace_s += rule.grace_s;
        self.cut += truth;
        self.hits += u64::from(predicted.has(cut));
        self.hits_of_99_9 += u64::from(cuts.predict(FURTHER, 0.999).has(cut));
        self.hits_of_rule += u64::from(CutRange::known(rule.expected, 1.0).has(cut));
        self.width += predicted.width();
        self.oracle_width += CutRange::known(truth, dispersion).width();
        self.mean_above += u64::from(truth > mean.upper);
        self.mean_below += u64::from(truth < mean.lower);
        let covering = record.needs(workload.window_s).covering(COVERED, 0.95);
        self.needs.add(covering, |budget_s| workload.uncut(budget_s) < COVERED);
        if seed.is_multiple_of(CHOICES) {
            let least = record.least_grace(workload.window_s, MOST_CUT, 0.95);
            self.graces.add(least, |grace| workload.cut(grace as f64) > MOST_CUT);
        }
    }

    fn ratio(&self) -> f64 {
        self.width / self.oracle_width
    }

    fn print(&self, name: &str) -> String {
        let n = self.simulations;
        let percent = |x: u64| 100.0 * x as f64 / n as f64;
        let mut line = format!("| {name} | {:.0} s | {:.2} ", self.grace_s / n as f64, self.cut / n as f64);
        let (low, high) = (stats::share_lower(self.hits, n, 0.975), stats::share_upper(self.hits, n, 0.975));
        let _ = write!(
            line,
            "| {:.1} % ({:.1} to {:.1}) | {:.1} % | {:.2} | {:.1} % | {:.1} %, {:.1} % | {} | {} |",
            percent(self.hits),
            100.0 * low,
            100.0 * high,
            percent(self.hits_of_99_9),
            self.ratio(),
            percent(self.hits_of_rule),
            percent(self.mean_above),
            percent(self.mean_below),
            self.graces.print(),
            self.needs.print(),
        );
        line
    }
}

/// Returns true if, for every true share between these two, a count this extreme occurs less than once in a million
/// times.
fn is_outside(hits: u64, n: u64, shares: [f64; 2]) -> bool {
    let at_most = |share: f64, k: u64| Binomial::new(share, n).unwrap().cdf(k);
    at_most(shares[0], hits) < 1e-6 || (hits > 0 && 1.0 - at_most(shares[1], hits - 1) < 1e-6)
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "an environment variable sets how many simulations a study makes"
)]
fn predicted_cuts_match_simulated_cuts() {
    // With more simulations and a longer record, this becomes a study (docs/proofs.md).
    let given = |name: &str, usual| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(usual);
    let simulations = u64::from(given("ROLLDROP_STUDY_SIMULATIONS", 25));
    let hours = given("ROLLDROP_STUDY_HOURS", 2);
    let kinds = [(5.0, 0.3), (90.0, 0.3)].map(|(median, sigma)| Lognormal { median, sigma });
    let laws = [
        ("exponential, median 10 s", Law::Exponential { mean: 10.0 / 2.0_f64.ln() }, 1),
        ("lognormal, median 10 s, σ 1.0", lognormal(10.0, 1.0), 1),
        ("lognormal, median 10 s, σ 1.5", lognormal(10.0, 1.5), 1),
        ("bimodal: 5 s, and a tenth 90 s", Law::Bimodal(kinds), 1),
        ("lognormal, σ 1.0, in bursts of five", lognormal(10.0, 1.0), 5),
    ];
    for (name, law, burst) in laws {
        let workload = Workload { law, arrivals: Arrivals { rate: 1.0, burst }, window_s: 2.0 };
        let mut row = Row::default();
        (0..simulations).for_each(|seed| row.simulate(workload, hours, seed));
        println!("{}", row.print(name));
        assert!(!is_outside(row.hits, simulations, [0.93, 0.98]), "{name}: {} hits", row.hits);
        assert!(hours < LONG_HOURS || row.ratio() <= 1.5, "{name}: {}", row.ratio());
        if matches!(law, Law::Lognormal(_)) {
            assert!(
                is_outside(row.hits_of_rule, simulations, [0.93, 1.0]),
                "{name}: the rule is not refuted"
            );
        }
    }
}
