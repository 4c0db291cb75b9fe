//! Limits that an expectation sets relative to the baseline, such as `worse: 10%`.
//!
//! A figure within the allowed value passes. With a history, a figure fails if a run that is worse by just the allowed
//! margin would hardly ever produce it, given how much runs vary. With few runs, a figure fails if the test of totals
//! shows it to be worse, or if it is a latency that does not overlap the baseline's latencies. All other figures are
//! inconclusive.

use super::exposure::Exposure;
use super::latency_rows::Disjoint;
use super::run_history::history_figures::Scale;
use super::run_history::{Doubts, after_none, spread};
use super::{CompareOptions, Sample};
use crate::gate::{self, ComparableFigures, FiguresOfTarget, KnownFigure};
use crate::judgements::comparison::{FEWEST_RUNS, Metric, Quantile};
use crate::judgements::gate_check::{
    BaselineGrounds, Check, CheckEvidence, CheckName, MarginLimit, NoFigure, Worsening,
};
use crate::statistics::exact::at_least;
use rolldrop_explain::math::stats;
use rolldrop_explain::model::{CheckVerdict, RunResult, Unit};
use rolldrop_record::expect::{Kind, Margin, Worse};

/// Returns true if this limit replaces the row of a figure that is compared by default.
pub(super) fn replaces(limit: &Worse, metric: &Metric) -> bool {
    limit.part.is_none()
        && match metric {
            Metric::Dropped => limit.key == "dropped",
            Metric::AppErrors => limit.key == "appErrors",
            Metric::Latency(_, quantile) => quantile_of(limit) == Some(*quantile),
            _ => false,
        }
}

/// Returns the quantile if the limit is on a quantile of all latencies.
fn quantile_of(limit: &Worse) -> Option<Quantile> {
    let name = limit.key.strip_prefix("latency.").filter(|_| limit.part.is_none())?;
    Quantile::ALL.iter().copied().find(|quantile| quantile.key() == name)
}

/// Returns the checks for a run that has no baseline.
pub(crate) fn without_baseline(limits: &[Worse], result: &RunResult) -> Vec<Check> {
    let asked = if limits.is_empty() { Vec::new() } else { resolve(limits, &gate::figures(result)) };
    asked.iter().map(|asked| asked.open(BaselineGrounds::NoBaseline)).collect()
}

/// Returns the checks for a run that cannot be compared.
pub(super) fn unjudged(limits: &[Worse], candidate: &Sample, grounds: &BaselineGrounds) -> Vec<Check> {
    asked(limits, candidate).iter().map(|asked| asked.open(grounds.clone())).collect()
}

/// Returns the limits, each paired with the run's figure.
pub(super) fn asked<'a>(limits: &'a [Worse], candidate: &Sample) -> Vec<ComparedLimit<'a>> {
    resolve(limits, &candidate.by_key)
}

/// Checks a run against a baseline of only a few runs. If there are no limits, `candidate` may be several runs.
pub(super) fn by_few(baseline: &[Sample], candidate: &[Sample], options: &CompareOptions) -> Vec<Limited> {
    let [run] = candidate else { return Vec::new() };
    let apart = Disjoint::of(baseline, candidate).filter(|apart| apart.is_worse);
    let alpha = 1.0 - options.confidence;
    asked(&options.worse, run).iter().map(|asked| asked.by_few(baseline, run, apart, alpha)).collect()
}

/// A check that shares the allowed false-alarm rate with others.
#[derive(Debug)]
pub(super) struct Limited {
    pub(super) check: Check,
    /// Probability of a figure this bad if the candidate is no worse than allowed; `None` if nothing was tested.
    pub(super) p: Option<f64>,
}

impl Limited {
    /// Returns true if the check limits the total of dropped requests.
    pub(super) fn is_dropped(&self) -> bool {
        matches!(&self.check.name, CheckName::Worse(key) if key == "dropped")
    }

    /// Turns a failure into an inconclusive check. `figures` is the number of figures tested, if this figure differs
    /// when tested alone but not when all are tested together.
    pub(super) fn leave_open(&mut self, figures: Option<usize>) {
        let Check { verdict, evidence, .. } = &mut self.check;
        if let (CheckVerdict::Fail, CheckEvidence::Worse(worsening)) = (*verdict, evidence)
            && let BaselineGrounds::Totals { by_chance, .. } = &mut worsening.grounds
        {
            (*verdict, *by_chance) = (CheckVerdict::Inconclusive, figures);
        }
    }
}

/// A limit, paired with the run's figure.
#[derive(Debug)]
pub(super) struct ComparedLimit<'a> {
    name: String,
    limit: &'a Worse,
    target: Option<String>,
    now: Result<f64, NoFigure>,
}

/// Returns a figure that may be absent or unknown.
fn figure(figures: &ComparableFigures, target: Option<&str>, key: &str) -> Result<f64, NoFigure> {
    match figures.get(target, key) {
        Some(KnownFigure::Value(value)) => Ok(value),
        Some(KnownFigure::Unbounded(basis)) => Err(NoFigure::Unbounded(basis)),
        None => Err(NoFigure::Absent),
    }
}

/// Resolves limits to the targets that they refer to. A name that matches no target gets its own check (`gate::part`).
fn resolve<'a>(limits: &'a [Worse], figures: &ComparableFigures) -> Vec<ComparedLimit<'a>> {
    let of_limit = |limit: &'a Worse| {
        let of_part = |part| gate::meant(part, &figures.targets, |target| (&target.name, &target.consumer));
        let meant = limit.part.as_ref().map(of_part).unwrap_or_default();
        let asked = |name: String, target: Option<&FiguresOfTarget>| {
            let target = target.map(|target| target.name.clone());
            let now = figure(figures, target.as_deref(), &limit.key);
            ComparedLimit { name, limit, target, now }
        };
        match (&limit.part, &meant[..]) {
            (None, _) => vec![asked(limit.name(), None)],
            (Some(part), [_, _, ..]) => {
                let named =
                    |target: &FiguresOfTarget| format!("{}.{}.{}", part.key(), target.name, limit.key);
                meant.iter().copied().map(|target| asked(named(target), Some(target))).collect()
            }
            (Some(_), _) => meant.iter().copied().map(|target| asked(limit.name(), Some(target))).collect(),
        }
    };
    limits.iter().flat_map(of_limit).collect()
}

impl ComparedLimit<'_> {
    const fn unit(&self) -> Unit {
        match self.limit.kind {
            Kind::Total | Kind::Most | Kind::Neither => Unit::Count,
            Kind::Time => Unit::Seconds,
            Kind::Latency => Unit::Millis,
            Kind::Share => Unit::Share,
        }
    }

    const fn scale(&self) -> Scale {
        match self.limit.kind {
            Kind::Total | Kind::Most | Kind::Neither => Scale::Count,
            Kind::Time => Scale::Time,
            Kind::Latency => Scale::Log,
            Kind::Share => Scale::Rate,
        }
    }

    fn check(&self, verdict: CheckVerdict, limit: Option<MarginLimit>, grounds: BaselineGrounds) -> Check {
        let now = self.now.as_ref().ok().copied();
        let worsening = Worsening { unit: self.unit(), now, by: self.limit.by, limit, grounds };
        let evidence = CheckEvidence::Worse(Box::new(worsening));
        Check::new(CheckName::Worse(self.name.clone()), verdict, evidence)
    }

    fn open(&self, grounds: BaselineGrounds) -> Check {
        self.check(CheckVerdict::Inconclusive, None, grounds)
    }

    /// Returns the units over which the figure counts events in these runs.
    fn exposure<'r>(&self, runs: impl IntoIterator<Item = &'r Sample>) -> Exposure {
        let by_requests = [
            "appErrors",
            "appErrors.whileEnding",
            "requests.notSent",
            "outcomes.http_error",
            "outcomes.not_sent",
        ];
        match self.limit.kind {
            Kind::Total if by_requests.contains(&&*self.limit.key) => Exposure::Requests,
            Kind::Total => Exposure::of_losses(runs),
            _ => Exposure::Runs,
        }
    }

    /// Returns the run's figure along with the baseline's; fails if fewer than `fewest` baseline runs have the figure.
    fn compared(
        &self,
        runs: &[Sample],
        candidate: &Sample,
        fewest: usize,
    ) -> Result<Compared<'_>, Box<Check>> {
        let now = match &self.now {
            Ok(value) => *value,
            Err(unknown) => return Err(Box::new(self.open(BaselineGrounds::Unknown(unknown.clone())))),
        };
        let exposure = self.exposure(runs.iter().chain([candidate]));
        let (mut then, mut without) = (Vec::new(), None);
        for run in runs {
            match figure(&run.by_key, self.target.as_deref(), &self.limit.key) {
                Ok(value) => then.push((value, exposure.units(run))),
                Err(unknown) => without = Some((run.name.clone(), unknown)),
            }
        }
        if then.len() < fewest {
            let (known, runs) = (then.len(), runs.len());
            return Err(Box::new(self.open(BaselineGrounds::FewFigures {
                known,
                runs,
                needed: fewest,
                without,
            })));
        }
        Ok(Compared { asked: self, now, exposure: exposure.units(candidate), then })
    }

    /// Checks a run that has enough earlier runs.
    pub(super) fn by_history(
        &self,
        used: &[Sample],
        candidate: &Sample,
        alpha: f64,
        doubts: Doubts<'_>,
    ) -> Check {
        match self.compared(used, candidate, FEWEST_RUNS) {
            Ok(compared) => compared.by_history(alpha, doubts),
            Err(check) => *check,
        }
    }

    fn by_few(
        &self,
        baseline: &[Sample],
        candidate: &Sample,
        apart: Option<Disjoint>,
        alpha: f64,
    ) -> Limited {
        let (check, p) = match self.compared(baseline, candidate, 1) {
            Ok(compared) => compared.by_few(apart, alpha),
            Err(check) => (*check, None),
        };
        let mut limited = Limited { check, p };
        if p.is_none() {
            limited.leave_open(None);
        }
        limited
    }
}

/// A figure, along with the baseline's figures.
struct Compared<'a> {
    asked: &'a ComparedLimit<'a>,
    now: f64,
    /// Number of units over which the figure counts events.
    exposure: f64,
    /// Baseline figures, each with its number of units.
    then: Vec<(f64, f64)>,
}

impl Compared<'_> {
    /// Returns the figures that the baseline's runs would have had with this run's exposure.
    fn scaled(&self) -> Vec<f64> {
        self.then.iter().map(|(value, exposure)| value * self.exposure / exposure).collect()
    }

    /// Returns the mean of the baseline; for latencies and rates, the geometric mean.
    fn usual(&self) -> f64 {
        let (scaled, scale) = (self.scaled(), self.asked.scale());
        let is_log = matches!(scale, Scale::Log | Scale::Rate);
        let of = |value: f64| if is_log { scale.of(value, self.exposure) } else { value };
        let mean = scaled.iter().map(|value| of(*value)).sum::<f64>() / scaled.len() as f64;
        if is_log { scale.back(mean, self.exposure) } else { mean }
    }

    /// Returns the largest allowed value; for a rate, the smallest.
    fn allowed(&self) -> f64 {
        let usual = self.usual();
        let by = match self.asked.limit.by {
            Margin::Share(share) => usual * share.0,
            Margin::Time(time) if self.asked.limit.kind == Kind::Latency => time.seconds() * 1e3,
            Margin::Time(time) => time.seconds(),
            Margin::Count(n) => n as f64,
        };
        match self.asked.scale() {
            Scale::Rate => (usual - by).max(0.0),
            // A run cannot have a fraction of a request.
            Scale::Count => (usual + by - 1e-9).ceil(),
            _ => usual + by,
        }
    }

    fn is_beyond(&self, limit: f64) -> bool {
        let slack = 1e-9 * limit.abs();
        if self.asked.scale().is_more_better() { self.now < limit - slack } else { self.now > limit + slack }
    }

    /// Returns true if the limit is a percentage of 0.
    fn says_nothing(&self) -> bool {
        matches!(self.asked.limit.by, Margin::Share(_))
            && !self.asked.scale().is_more_better()
            && self.then.iter().all(|(value, _)| *value == 0.0)
    }

    fn check(&self, verdict: CheckVerdict, grounds: BaselineGrounds) -> Check {
        let limit = MarginLimit { allowed: self.allowed(), usual: self.usual() };
        self.asked.check(verdict, Some(limit), grounds)
    }

    fn passes(&self) -> Check {
        self.check(CheckVerdict::Pass, BaselineGrounds::Within(self.scaled()))
    }

    fn of_nothing(&self) -> Check {
        self.check(CheckVerdict::Inconclusive, BaselineGrounds::ShareOfNothing(self.scaled()))
    }

    fn by_history(&self, alpha: f64, doubts: Doubts<'_>) -> Check {
        let scale = self.asked.scale();
        if self.says_nothing() && scale == Scale::Count {
            let exposures = self.then.iter().map(|(_, exposure)| exposure / self.exposure).sum();
            let most = after_none(exposures, alpha);
            let verdict = if self.now <= most { CheckVerdict::Pass } else { CheckVerdict::Fail };
            return self.check(verdict, BaselineGrounds::AfterNone { runs: self.then.len(), most });
        }
        let allowed = self.allowed();
        if !self.is_beyond(allowed) {
            return self.passes();
        }
        if self.says_nothing() {
            return self.of_nothing();
        }
        let runs = self.scaled();
        let (_, beyond) = spread(scale, self.exposure, &runs, alpha);
        let last = scale.back(scale.of(allowed, self.exposure) + beyond, self.exposure);
        let is_beyond = self.is_beyond(last);
        let is_doubtful = is_beyond && scale == Scale::Log;
        let doubt =
            is_doubtful.then(|| doubts.about(self.now, last, quantile_of(self.asked.limit))).flatten();
        let verdict = match is_beyond && doubt.is_none() {
            true => CheckVerdict::Fail,
            false => CheckVerdict::Inconclusive,
        };
        self.check(verdict, BaselineGrounds::Spread { last, runs, doubt })
    }

    /// Returns the check, with the probability of a figure this bad if the candidate is no worse than allowed.
    fn by_few(&self, apart: Option<Disjoint>, alpha: f64) -> (Check, Option<f64>) {
        let Worse { kind, part, key, .. } = self.asked.limit;
        if *kind == Kind::Total {
            return self.by_totals(alpha);
        }
        if !self.is_beyond(self.allowed()) {
            return (self.passes(), None);
        }
        let is_of_all = part.is_none() && key.matches('.').count() == 1;
        let is_apart = |Disjoint { bounds, .. }: &Disjoint| match self.asked.limit.by {
            Margin::Share(share) => bounds.slower_ms > bounds.faster_ms * (1.0 + share.0),
            Margin::Time(time) => bounds.slower_ms > bounds.faster_ms + time.seconds() * 1e3,
            Margin::Count(_) => false,
        };
        let check = match apart.filter(|_| *kind == Kind::Latency && is_of_all).filter(is_apart) {
            Some(apart) => self.check(CheckVerdict::Fail, BaselineGrounds::Apart(apart.bounds)),
            None if self.says_nothing() => self.of_nothing(),
            None => self.check(CheckVerdict::Inconclusive, BaselineGrounds::FewToDiffer(self.then.len())),
        };
        (check, None)
    }

    /// Subtracts the allowed margin, and tests the remainder against the baseline.
    fn by_totals(&self, alpha: f64) -> (Check, Option<f64>) {
        let whole = |value: f64| stats::index(value + 1e-9) as u64;
        let before = whole(self.then.iter().map(|(value, _)| value).sum());
        let rest = match self.asked.limit.by {
            Margin::Share(_) if before == 0 => whole(self.now),
            Margin::Share(share) => whole(self.now / (1.0 + share.0)),
            Margin::Count(n) => whole(self.now).saturating_sub(n),
            Margin::Time(_) => 0,
        };
        let n = self.then.len() as f64;
        let exposed: f64 = self.then.iter().map(|(_, exposure)| exposure).sum();
        let test = |part: u64| at_least(part, before + rest, n, n * self.exposure / exposed);
        let p = (test(before + rest) <= alpha).then(|| test(rest));
        if !self.is_beyond(self.allowed()) {
            return (self.passes(), p);
        }
        let (runs, is_share_of_nothing) = (self.then.len(), self.says_nothing());
        let grounds = BaselineGrounds::Totals { before, runs, is_share_of_nothing, by_chance: None };
        (self.check(CheckVerdict::Fail, grounds), p)
    }
}

#[cfg(test)]
mod tests;
