//! A run against the spread of several earlier ones: could each of its figures come from one more such run?
//!
//! The limits are prediction limits for one more value from n values, mean + t(n - 1) s sqrt(1 + 1/n) (Hahn and Meeker
//! 1991, section 4.7), one-sided, and joint over all figures (Bonferroni). The spread between runs is in s, so the
//! noise of the machine from run to run is in the limits. Latencies are judged on the logarithmic scale; counts and
//! shares on the scales on which chance alone gives them a known spread (Anscombe 1948), which s never falls below.
//! After runs without any loss the limit is that of the test of totals (`losses`).

pub(super) mod figures;

use std::collections::BTreeMap;

use statrs::distribution::{ContinuousCDF, StudentsT};

use super::blocks::{self, Beyond};
use super::{FEWEST_REQUESTS, Options, Sample, differences, worse};
use crate::math::exact::{at_least, z};
use crate::math::trend::grows;
use figures::{Figure, Scale};
use rolldrop_explain::math::stats;
use rolldrop_explain::model::figures::{count, counted, percent};
use rolldrop_explain::model::{Check, CheckVerdict, Verdict};

/// Fewest runs that show how much runs differ.
pub const FEWEST_RUNS: usize = 5;
/// Share by which a latency, a window or a rate may always differ from the usual one, by default. Runs of one day are
/// more alike than runs of several: beside other work, p99 of unchanged software moved by 18 %, where five runs before
/// it had differed by 3 % (docs/proofs.md).
pub const TOLERANCE: f64 = 0.2;
/// Time by which a window may always be longer than the usual one, in seconds: a preStop sleep has whole seconds, and
/// the bounds of windows are wider on a busy machine.
const WINDOW_TOLERANCE_S: f64 = 0.25;
/// Default maximum number of earlier runs that are used.
pub const LAST: usize = 20;

/// Earlier runs that count, and those that do not.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Runs that count, in order of their beginning.
    pub used: Vec<Sample>,
    /// Number of runs that do not count, by reason.
    pub left_out: BTreeMap<String, usize>,
}

impl History {
    /// Selects the last `last` of these runs that count: valid ones that passed, of the candidate's fingerprint (of
    /// any, if the options ask to compare runs that are not comparable).
    pub fn of(mut runs: Vec<Sample>, candidate: &Sample, last: usize, options: &Options) -> Self {
        let mut history = Self::default();
        runs.sort_by_key(|run| run.started);
        for run in runs.into_iter().rev() {
            if history.used.len() == last || run.started == candidate.started {
                continue;
            }
            match unfit(&run, candidate, options.anyway) {
                Some(why) => *history.left_out.entry(why).or_default() += 1,
                None => history.used.push(run),
            }
        }
        history.used.reverse();
        history
    }

    /// Checks that there are enough runs.
    fn enough(&self) -> Check {
        let n = self.used.len();
        let is_enough = n >= FEWEST_RUNS;
        let left_out: Vec<String> = self.left_out.iter().map(|(why, n)| format!("{n} {why}")).collect();
        let left_out = match left_out.is_empty() {
            true => String::new(),
            false => format!("; do not count: {}", left_out.join(", ")),
        };
        let verdict = if is_enough { CheckVerdict::Pass } else { CheckVerdict::Inconclusive };
        let (why, settle) = match is_enough {
            true => ("the limits are joint prediction limits for one more run", String::new()),
            false => ("so few do not show how much runs differ", format!("{} more runs", FEWEST_RUNS - n)),
        };
        let limit = format!("at least {FEWEST_RUNS} valid runs that passed");
        let check =
            Check::plain("baseline.history", verdict, limit, count(n as u64), why.to_owned() + &left_out);
        Check { settle, ..check }
    }

    /// Checks a run against these.
    pub fn checks(&self, candidate: &Sample, options: &Options) -> Vec<Check> {
        let mut checks = vec![self.enough()];
        let inconclusive = |name: &str, limit: String, observed: String, why: String| {
            Check::plain(format!("baseline.{name}"), CheckVerdict::Inconclusive, limit, observed, why)
        };
        if candidate.verdict != Verdict::Valid {
            let why = "an invalid or partial run is compared with nothing".to_owned();
            checks.extend(worse::unjudged(&options.worse, candidate, &why));
            checks.push(inconclusive("run", "valid".into(), "not valid".into(), why));
            return checks;
        }
        if candidate.total < FEWEST_REQUESTS {
            let why = "so few would not show that 1 % fail".to_owned();
            let limit = format!("at least {FEWEST_REQUESTS}");
            checks.push(inconclusive("requests", limit, count(candidate.total), why));
        }
        if self.used.len() < FEWEST_RUNS {
            let why = format!("the baseline has fewer than {FEWEST_RUNS} runs that count");
            checks.extend(worse::unjudged(&options.worse, candidate, &why));
            return checks;
        }
        let now = figures::of(candidate);
        let mut then: BTreeMap<String, Vec<Figure>> = BTreeMap::new();
        for figure in self.used.iter().flat_map(figures::of) {
            then.entry(figure.metric.clone()).or_default().push(figure);
        }
        then.retain(|metric, known| {
            known.len() >= FEWEST_RUNS && !options.worse.iter().any(|limit| worse::replaces(limit, metric))
        });
        let limits = worse::asked(&options.worse, candidate);
        let alpha = (1.0 - options.confidence) / (then.len() + limits.len()).max(1) as f64;
        let doubts = Doubts::new(candidate, &self.used, options.confidence);
        for (metric, known) in &then {
            checks.push(match now.iter().find(|figure| figure.metric == *metric) {
                Some(figure) => judge(figure, known, alpha, options.tolerance, doubts),
                None => inconclusive(
                    metric,
                    "known".into(),
                    "unknown".into(),
                    format!("{} earlier runs have this figure, and this run does not", known.len()),
                ),
            });
        }
        checks.extend(limits.iter().map(|limit| limit.by_history(&self.used, candidate, alpha, doubts)));
        checks
    }
}

/// Returns the reason why a run is not part of the history.
fn unfit(run: &Sample, candidate: &Sample, anyway: bool) -> Option<String> {
    match (&run.verdict, run.gate) {
        (Verdict::Invalid { .. }, _) => return Some("invalid".into()),
        (Verdict::Partial { .. }, _) => return Some("partial".into()),
        (Verdict::Valid, CheckVerdict::Fail | CheckVerdict::Inconclusive) => {
            return Some("did not pass".into());
        }
        (Verdict::Valid, CheckVerdict::Pass) => {}
    }
    if anyway {
        return None;
    }
    let valid = Sample { verdict: Verdict::Valid, ..candidate.figures() };
    let differences = differences(std::slice::from_ref(run), &[valid]);
    let what: Vec<&str> = differences.iter().map(|difference| difference.what.as_str()).collect();
    (!what.is_empty()).then(|| format!("with another {}", what.join(", ")))
}

/// Reason why a latency beyond its limit may prove nothing, with a way to settle it.
#[derive(Debug)]
pub(super) struct Doubt {
    pub(super) why: String,
    pub(super) settle: &'static str,
}

/// Facts that can cast doubt on a run's latencies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doubts<'a> {
    run: &'a Sample,
    lateness: Option<Lateness>,
    confidence: f64,
}

impl<'a> Doubts<'a> {
    fn new(run: &'a Sample, earlier: &[Sample], confidence: f64) -> Self {
        Self { run, lateness: Lateness::of(run, earlier), confidence }
    }

    /// Returns the doubt about a latency beyond its limit; `q` if it is that quantile of all answers.
    pub(super) fn about(&self, latency_ms: f64, limit_ms: f64, q: Option<f64>) -> Option<Doubt> {
        let late = || self.lateness.and_then(|late| late.explains(latency_ms, limit_ms));
        late().or_else(|| self.by_chance(limit_ms, q?))
    }

    /// Returns the doubt that chance explains it. Quantile `q` is beyond its limit if more than the share 1 - `q` of
    /// the answers are. Few moments of a run can decide that, such as a rollout that makes one answer in a hundred wait
    /// for a second.
    fn by_chance(&self, limit_ms: f64, q: f64) -> Option<Doubt> {
        let Beyond { share, least } = blocks::share_beyond(self.run, limit_ms, self.confidence)?;
        let rest = 1.0 - q;
        (least <= rest).then(|| Doubt {
            why: format!(
                "; few moments decide that: {} of the answers took longer than the limit, but between moments that varies so \
                 much that it may usually be {}; up to {} are allowed",
                percent(share),
                percent(least),
                percent(rest)
            ),
            settle: "a longer run",
        })
    }
}

/// Lateness of the load generator's sends, in milliseconds for 99 % of the requests. Response times contain it, though
/// the generator's machine causes it, not the app.
#[derive(Clone, Copy, Debug)]
struct Lateness {
    now_ms: f64,
    /// Median of the earlier runs.
    usual_ms: f64,
}

impl Lateness {
    fn of(candidate: &Sample, earlier: &[Sample]) -> Option<Self> {
        let mut known: Vec<f64> = earlier.iter().filter_map(|run| run.lag_p99_ms).collect();
        known.sort_by(f64::total_cmp);
        Some(Self { now_ms: candidate.lag_p99_ms?, usual_ms: stats::nearest_rank(&known, 0.5)? })
    }

    /// Returns a doubt if the latency is within its limit once the generator's additional lateness is taken off.
    fn explains(self, latency_ms: f64, limit_ms: f64) -> Option<Doubt> {
        let Self { now_ms, usual_ms } = self;
        (latency_ms - (now_ms - usual_ms).max(0.0) <= limit_ms).then(|| Doubt {
            why: format!(
                "; the load generator's machine may explain that: 99 % of the requests were sent at most {now_ms:.1} ms \
                 late, usually {usual_ms:.1} ms"
            ),
            settle: "a run on a machine that is less busy",
        })
    }
}

fn judge(figure: &Figure, known: &[Figure], alpha: f64, tolerance: f64, doubts: Doubts<'_>) -> Check {
    let limit = limit(figure, known, alpha, tolerance);
    let met = if figure.scale.is_more_better() { figure.value >= limit } else { figure.value <= limit };
    let scaled: Vec<f64> = known.iter().map(|one| one.value_at(figure)).collect();
    let mut why = range(&scaled, |value| figure.written(value));
    let worse = |value: f64| if figure.scale.is_more_better() { -value } else { value };
    let in_order: Vec<f64> = scaled.iter().copied().chain([figure.value]).map(worse).collect();
    let p = grows(&in_order);
    if p <= alpha {
        why.push_str(&format!(
            "; it gets steadily worse over the last {} runs (Mann-Kendall test, p = {p:.1e})",
            in_order.len()
        ));
    }
    let is_slow = !met && figure.scale == Scale::Log;
    let doubt = is_slow.then(|| doubts.about(figure.value, limit, figure.quantile)).flatten();
    let (verdict, settle) = match (met, &doubt) {
        (true, _) => (CheckVerdict::Pass, ""),
        (false, Some(doubt)) => (CheckVerdict::Inconclusive, doubt.settle),
        (false, None) => (CheckVerdict::Fail, ""),
    };
    why.push_str(&doubt.map(|doubt| doubt.why).unwrap_or_default());
    let side = if figure.scale.is_more_better() { "least" } else { "most" };
    let limit = format!("at {side} {}", figure.written(limit));
    let name = format!("baseline.{}", figure.metric);
    Check {
        settle: settle.to_owned(),
        ..Check::plain(name, verdict, limit, figure.written(figure.value), why)
    }
}

/// Returns the limit for a figure of one more run.
fn limit(figure: &Figure, known: &[Figure], alpha: f64, tolerance: f64) -> f64 {
    let scale = figure.scale;
    if scale == Scale::Count && known.iter().all(|one| one.value == 0.0) {
        return after_none(known.iter().map(|one| one.exposure / figure.exposure).sum(), alpha);
    }
    let values: Vec<f64> = known.iter().map(|one| one.value_at(figure)).collect();
    let (mean, beyond) = spread(scale, figure.exposure, &values, alpha);
    // A value that a run which passed had as well is never beyond the limit, however seldom it happens.
    let worse = if scale.is_more_better() { f64::min } else { f64::max };
    let limit = values.iter().copied().fold(scale.back(mean + beyond, figure.exposure), worse);
    let usual = scale.back(mean, figure.exposure);
    match scale {
        Scale::Count | Scale::Share => limit,
        Scale::Time => limit.max(usual * (1.0 + tolerance)).max(usual + WINDOW_TOLERANCE_S),
        Scale::Log => limit.max(usual * (1.0 + tolerance)),
        Scale::Rate => limit.min(usual / (1.0 + tolerance)),
    }
}

/// Describes the values of several runs: their number, the least and the most.
pub(super) fn range(values: &[f64], written: impl Fn(f64) -> String) -> String {
    let (least, most) = values.iter().fold((f64::INFINITY, 0.0_f64), |(a, b), x| (a.min(*x), b.max(*x)));
    format!("{}: {} to {}", counted(values.len() as u64, "run"), written(least), written(most))
}

/// Returns the mean of earlier values on the scale, and the distance beyond it within which one more run may lie.
pub(super) fn spread(scale: Scale, exposure: f64, values: &[f64], alpha: f64) -> (f64, f64) {
    let n = values.len() as f64;
    let values: Vec<f64> = values.iter().map(|value| scale.of(*value, exposure)).collect();
    let mean = values.iter().sum::<f64>() / n;
    let s = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt();
    let t = StudentsT::new(0.0, 1.0, n - 1.0).map_or(f64::INFINITY, |t| t.inverse_cdf(1.0 - alpha));
    let by_chance = z(1.0 - alpha) * scale.least_spread(exposure);
    (mean, (t * s).max(by_chance) * (1.0 + 1.0 / n).sqrt())
}

/// Returns the most events that one more run may have after `runs` runs without any, by the test of totals.
pub(super) fn after_none(runs: f64, alpha: f64) -> f64 {
    let beyond = (1..).find(|lost| at_least(*lost, *lost, runs, 1.0) <= alpha).unwrap_or(1_u64);
    (beyond - 1) as f64
}

#[cfg(test)]
mod tests;
