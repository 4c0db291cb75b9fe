//! Distributions of stream lengths, and the theory's values for terminations.

use std::f64::consts::TAU;

use rand::{RngExt, SeedableRng, rngs::SmallRng};
use rolldrop_explain::model::{SpanEnd, StreamSpan};
use rolldrop_record::Stamp;

use crate::statistics::exact::{below, z};

/// Distribution of stream lengths, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Law {
    Exponential {
        mean: f64,
    },
    Lognormal(Lognormal),
    /// A tenth of the streams follow the second distribution.
    Bimodal([Lognormal; 2]),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Lognormal {
    pub(crate) median: f64,
    pub(crate) sigma: f64,
}

/// Arrivals of streams at one pod: `rate` per second, in bursts of `burst` at random times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrivals {
    pub(crate) rate: f64,
    pub(crate) burst: u32,
}

/// A distribution of lengths, its arrivals, and the propagation window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    pub(crate) law: Law,
    pub(crate) arrivals: Arrivals,
    pub(crate) window_s: f64,
}

pub(crate) fn lognormal(median: f64, sigma: f64) -> Law {
    Law::Lognormal(Lognormal { median, sigma })
}

/// Draws from the standard normal distribution.
fn normal(rng: &mut SmallRng) -> f64 {
    (2.0 * exponential(rng)).sqrt() * (TAU * rng.random::<f64>()).cos()
}

/// Draws from the exponential distribution of mean 1.
fn exponential(rng: &mut SmallRng) -> f64 {
    -(1.0 - rng.random::<f64>()).ln()
}

impl Lognormal {
    fn mean(self) -> f64 {
        self.median * (self.sigma * self.sigma / 2.0).exp()
    }

    /// Returns E[(D - s)+].
    fn excess(self, s: f64) -> f64 {
        let d = (self.median / s).ln();
        self.mean() * below(d / self.sigma + self.sigma) - s * below(d / self.sigma)
    }

    /// Returns P(D > s).
    fn beyond(self, s: f64) -> f64 {
        below((self.median / s).ln() / self.sigma)
    }

    fn draw(self, rng: &mut SmallRng) -> f64 {
        self.median * (self.sigma * normal(rng)).exp()
    }

    /// Draws with a probability proportional to length: a lognormal with a different median.
    fn draw_by_length(self, rng: &mut SmallRng) -> f64 {
        self.draw(rng) * (self.sigma * self.sigma).exp()
    }
}

impl Law {
    pub(crate) fn mean(self) -> f64 {
        self.excess(f64::MIN_POSITIVE)
    }

    /// Returns E[(D - s)+].
    pub(crate) fn excess(self, s: f64) -> f64 {
        match self {
            Self::Exponential { mean } => mean * (-s / mean).exp(),
            Self::Lognormal(law) => law.excess(s),
            Self::Bimodal([most, few]) => 0.9 * most.excess(s) + 0.1 * few.excess(s),
        }
    }

    /// Returns P(D > s).
    pub(crate) fn beyond(self, s: f64) -> f64 {
        match self {
            Self::Exponential { mean } => (-s / mean).exp(),
            Self::Lognormal(law) => law.beyond(s),
            Self::Bimodal([most, few]) => 0.9 * most.beyond(s) + 0.1 * few.beyond(s),
        }
    }

    fn draw(self, rng: &mut SmallRng) -> f64 {
        match self {
            Self::Exponential { mean } => mean * exponential(rng),
            Self::Lognormal(law) => law.draw(rng),
            Self::Bimodal([most, few]) => if rng.random::<f64>() < 0.9 { most } else { few }.draw(rng),
        }
    }

    /// Draws with a probability proportional to length: the length of a stream that is open at an instant.
    fn draw_by_length(self, rng: &mut SmallRng) -> f64 {
        match self {
            Self::Exponential { mean } => mean * (exponential(rng) + exponential(rng)),
            Self::Lognormal(law) => law.draw_by_length(rng),
            Self::Bimodal([most, few]) => {
                let of_most = 0.9 * most.mean() / self.mean();
                if rng.random::<f64>() < of_most { most } else { few }.draw_by_length(rng)
            }
        }
    }

    /// Returns the time after which less than 0.1 % of the stationary population is missing.
    fn warm_up_s(self) -> f64 {
        (0..).map(|i| 2.0_f64.powi(i)).find(|s| self.excess(*s) < 1e-3 * self.mean()).unwrap()
    }
}

impl Workload {
    /// Returns the mean number of streams cut per termination, by the theory of infinite-server queues.
    pub(crate) fn cut(self, budget_s: f64) -> f64 {
        self.arrivals.rate * self.law.excess(budget_s - self.window_s)
    }

    /// Returns the variance of the number of streams cut by a termination, divided by its mean. Two streams of one
    /// burst are cut together if both outlast the budget.
    pub(crate) fn dispersion(self, budget_s: f64) -> f64 {
        let pairs = f64::from(self.arrivals.burst - 1);
        let both = self.over_ages(budget_s, |open| pairs * open.powi(2));
        1.0 + self.arrivals.rate * both / self.cut(budget_s)
    }

    /// Returns the share of terminations that cut no stream: no burst has a stream that outlasts the budget.
    pub(crate) fn uncut(self, budget_s: f64) -> f64 {
        let Arrivals { rate, burst } = self.arrivals;
        let some = self.over_ages(budget_s, |open| 1.0 - (1.0 - open).powf(f64::from(burst)));
        (-rate / f64::from(burst) * some).exp()
    }

    /// Integrates `of` over the ages of streams that are cut; its argument is the share of streams that reach an age.
    fn over_ages(self, budget_s: f64, of: impl Fn(f64) -> f64) -> f64 {
        const STEPS: u32 = 10_000;
        let step_s = self.law.warm_up_s() / f64::from(STEPS);
        let age_s = |i: u32| budget_s - self.window_s + (f64::from(i) + 0.5) * step_s;
        (0..STEPS).map(|i| of(self.law.beyond(age_s(i))) * step_s).sum()
    }

    /// Calls `add` with the start and the length of each stream that arrives between two times.
    fn arrive(self, from_s: f64, to_s: f64, rng: &mut SmallRng, mut add: impl FnMut(f64, f64)) {
        let Arrivals { rate, burst } = self.arrivals;
        let mut at_s = from_s;
        loop {
            at_s += exponential(rng) * f64::from(burst) / rate;
            if at_s > to_s {
                return;
            }
            (0..burst).for_each(|_| add(at_s, self.law.draw(rng)));
        }
    }

    /// Simulates a steady record of pods that starts at second 0.
    pub(crate) fn record(self, pods: usize, length_s: f64, rng: &mut SmallRng) -> Vec<StreamSpan> {
        let warm_up_s = self.law.warm_up_s();
        let mut spans = Vec::new();
        for pod in 0..pods {
            self.arrive(-warm_up_s, length_s, rng, |start_s, lasts_s| {
                if start_s + lasts_s > 0.0 {
                    spans.push(span(pod, start_s, start_s + lasts_s, SpanEnd::Complete));
                }
            });
        }
        spans
    }

    /// Simulates one further termination, and returns the number of streams that it cuts.
    pub(crate) fn terminate(self, budget_s: f64, rng: &mut SmallRng) -> u64 {
        let mut cut = 0;
        let mut add = |start_s: f64, lasts_s: f64| cut += u64::from(start_s + lasts_s > budget_s);
        if self.arrivals.burst > 1 {
            self.arrive(-self.law.warm_up_s(), self.window_s, rng, add);
            return cut;
        }
        // The number of streams open at t0 is Poisson, and the remainder of each is a uniform share of its length.
        let open = self.arrivals.rate * self.law.mean();
        let mut next = exponential(rng);
        while next < open {
            add(0.0, self.law.draw_by_length(rng) * rng.random::<f64>());
            next += exponential(rng);
        }
        self.arrive(0.0, self.window_s, rng, add);
        cut
    }
}

/// Returns a span from its times in seconds.
pub(crate) fn span(pod: usize, start_s: f64, end_s: f64, ended: SpanEnd) -> StreamSpan {
    StreamSpan { pod, start: second(start_s), end: second(end_s), ended, entered: None }
}

/// Returns the stamp of a second.
pub(crate) fn second(s: f64) -> Stamp {
    #[expect(clippy::cast_possible_truncation, reason = "simulated times are far from the limits")]
    let ns = (s * 1e9) as i64;
    Stamp::from_unix_ns(ns)
}

#[test]
fn p99_rule_cuts_more_than_one_percent() {
    // Lognormal with median 10 s: a budget at the 99th percentile cuts 3.0 % of the open streams at sigma 1.0, and
    // 9.8 % at 1.5.
    for (sigma, p99, share) in [(1.0, 102.0, 0.030), (1.5, 328.0, 0.098)] {
        let law = lognormal(10.0, sigma);
        assert!((10.0 * (sigma * z(0.99)).exp() - p99).abs() < 1.0);
        assert!((law.beyond(p99) - 0.01).abs() < 2e-4);
        let cut = law.excess(p99) / law.mean();
        assert!((cut - share).abs() < 5e-4, "{cut}");
    }
}

#[test]
fn simulated_terminations_match_theory() {
    let mut rng = SmallRng::seed_from_u64(3);
    for burst in [1, 4] {
        let arrivals = Arrivals { rate: 1.0, burst };
        let workload = Workload { law: lognormal(10.0, 1.0), arrivals, window_s: 3.0 };
        let (n, budget_s) = (3000, 40.0);
        let cut: u64 = (0..n).map(|_| workload.terminate(budget_s, &mut rng)).sum();
        let mean = f64::from(n) * workload.cut(budget_s);
        let sd = (mean * workload.dispersion(budget_s)).sqrt();
        assert!((cut as f64 - mean).abs() < 4.9 * sd, "{burst}: {cut} {mean} {sd}");
    }
}
