//! Limits against the baseline that were asked for, such as `worse: 10%`.
//!
//! A figure within the allowed value passes. With a history, a figure fails that a run just as much worse as allowed
//! would hardly have, given how much runs differ; with few runs, one that the test of totals shows to be worse, or a
//! latency whose answers do not overlap the baseline's. All others are inconclusive.

use super::history::figures::Scale;
use super::history::{Doubts, FEWEST_RUNS, after_none, range, spread};
use super::latency::{Apart, QUANTILES};
use super::{Options, Sample};
use crate::gate::{self, Figures, Known, OfTarget};
use crate::math::exact::at_least;
use rolldrop_explain::math::stats;
use rolldrop_explain::model::figures::counted;
use rolldrop_explain::model::{Check, CheckVerdict, Figure, RunResult, Unit};
use rolldrop_record::expect::{Kind, Margin, Worse};

/// Suffix of the names of these checks.
const SUFFIX: &str = ".worse";
const MORE_RUNS: &str = "a baseline of at least 5 runs";

/// Returns true if a check with this name judges a limit against a baseline.
pub(crate) fn is_name(check: &str) -> bool {
    check.ends_with(SUFFIX)
}

/// Returns true if this limit replaces the row of a figure that is always compared.
pub(super) fn replaces(limit: &Worse, metric: &str) -> bool {
    limit.part.is_none()
        && match metric.strip_prefix("latency_ms.").and_then(|metric| metric.split_once('.')) {
            Some((_, figure)) => limit.key.strip_prefix("latency.") == Some(figure),
            None => matches!((&*limit.key, metric), ("dropped", "dropped") | ("appErrors", "app_errors")),
        }
}

/// Returns the checks of a run that is compared with nothing.
pub(crate) fn without_baseline(limits: &[Worse], result: &RunResult) -> Vec<Check> {
    let settle = "rolldrop gate RUN --baseline RUN|FILE|FOLDER";
    let asked = if limits.is_empty() { Vec::new() } else { resolve(limits, &gate::figures(result)) };
    asked.iter().map(|asked| asked.open("there is no baseline to compare with", settle)).collect()
}

/// Returns the checks of a run that cannot be compared.
pub(super) fn unjudged(limits: &[Worse], candidate: &Sample, why: &str) -> Vec<Check> {
    asked(limits, candidate).iter().map(|asked| asked.open(why, "")).collect()
}

/// Returns the limits, each with the run's figure.
pub(super) fn asked<'a>(limits: &'a [Worse], candidate: &Sample) -> Vec<Asked<'a>> {
    resolve(limits, &candidate.by_key)
}

/// Checks a run against a baseline of few runs. Without limits `candidate` may be several runs.
pub(super) fn by_few(baseline: &[Sample], candidate: &[Sample], options: &Options) -> Vec<Limited> {
    let [run] = candidate else { return Vec::new() };
    let apart = Apart::of(baseline, candidate).filter(|apart| apart.is_worse);
    let alpha = 1.0 - options.confidence;
    asked(&options.worse, run)
        .iter()
        .map(|asked| asked.by_few(baseline, run, apart.as_ref(), alpha))
        .collect()
}

/// A check that shares its chance of a false alarm with others.
#[derive(Debug)]
pub(super) struct Limited {
    pub(super) check: Check,
    /// Chance of such a figure if it is no worse than allowed; `None` if nothing was tested.
    pub(super) p: Option<f64>,
}

impl Limited {
    /// Turns a failure into an inconclusive check.
    pub(super) fn is_open_because(&mut self, why: &str) {
        if self.check.verdict != CheckVerdict::Fail {
            return;
        }
        self.check.verdict = CheckVerdict::Inconclusive;
        self.check.why.push_str(why);
        self.check.settle = MORE_RUNS.to_owned();
    }
}

/// A limit with the run's figure.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    name: String,
    limit: &'a Worse,
    target: Option<String>,
    now: Known,
}

/// Resolves limits to the targets that they mean. A name that means none has its own check (`gate::part`).
fn resolve<'a>(limits: &'a [Worse], figures: &Figures) -> Vec<Asked<'a>> {
    let of_limit = |limit: &'a Worse| {
        let of_part = |part| gate::meant(part, &figures.targets, |target| (&target.name, &target.consumer));
        let meant = limit.part.as_ref().map(of_part).unwrap_or_default();
        let asked = |name: String, target: Option<&OfTarget>| {
            let target = target.map(|target| target.name.clone());
            let now = figures.get(target.as_deref(), &limit.key).unwrap_or_else(|| Known::Unknown {
                why: "the run has no such figure".into(),
                settle: String::new(),
            });
            Asked { name, limit, target, now }
        };
        match (&limit.part, &meant[..]) {
            (None, _) => vec![asked(limit.name(), None)],
            (Some(part), [_, _, ..]) => {
                let named = |target: &OfTarget| format!("{}.{}.{}", part.key(), target.name, limit.key);
                meant.iter().copied().map(|target| asked(named(target), Some(target))).collect()
            }
            (Some(_), _) => meant.iter().copied().map(|target| asked(limit.name(), Some(target))).collect(),
        }
    };
    limits.iter().flat_map(of_limit).collect()
}

impl Asked<'_> {
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

    fn check(&self, verdict: CheckVerdict, limit: String, why: impl Into<String>) -> Check {
        let value = match self.now {
            Known::Value(value) => Some(value),
            Known::Unknown { .. } => None,
        };
        let observed = value.map_or_else(|| "unknown".to_owned(), |value| self.unit().write(value));
        let figure = Figure { unit: self.unit(), low: value, value, high: value };
        let check = Check::plain(format!("{}{SUFFIX}", self.name), verdict, limit, observed, why);
        Check { figure: Some(figure), ..check }
    }

    fn open(&self, why: &str, settle: &str) -> Check {
        let limit = format!("at most {} worse than the baseline", self.limit.by);
        Check { settle: settle.to_owned(), ..self.check(CheckVerdict::Inconclusive, limit, why) }
    }

    /// Returns the quantile of all latencies that the figure is, if it is one.
    fn quantile(&self) -> Option<f64> {
        let name = self.limit.key.strip_prefix("latency.").filter(|_| self.limit.part.is_none())?;
        QUANTILES.iter().find(|(of, _)| *of == name).map(|(_, q)| *q)
    }

    /// Returns the number of terminations or requests that the figure is out of.
    fn exposure(&self, sample: &Sample) -> f64 {
        let by_requests = [
            "appErrors",
            "appErrors.whileEnding",
            "requests.notSent",
            "outcomes.http_error",
            "outcomes.not_sent",
        ];
        let n = match self.limit.kind {
            Kind::Total if by_requests.contains(&&*self.limit.key) => sample.total as f64,
            Kind::Total if sample.terminations.is_empty() => sample.total as f64,
            Kind::Total => sample.terminations.len() as f64,
            _ => 1.0,
        };
        n.max(1.0)
    }

    /// Returns the figure of a run of the baseline, or the reason why it is unknown.
    fn then(&self, run: &Sample) -> Result<f64, String> {
        match run.by_key.get(self.target.as_deref(), &self.limit.key) {
            Some(Known::Value(value)) => Ok(value),
            Some(Known::Unknown { why, .. }) => Err(why),
            None => Err("it has no such figure".to_owned()),
        }
    }

    /// Returns the run's figure with those of at least `fewest` runs of the baseline.
    fn compared(
        &self,
        runs: &[Sample],
        candidate: &Sample,
        fewest: usize,
    ) -> Result<Compared<'_>, Box<Check>> {
        let now = match &self.now {
            Known::Value(value) => *value,
            Known::Unknown { why, settle } => return Err(Box::new(self.open(why, settle))),
        };
        let (mut then, mut unknown) = (Vec::new(), None);
        for run in runs {
            match self.then(run) {
                Ok(value) => then.push((value, self.exposure(run))),
                Err(why) => unknown = Some(format!("{}: {why}", run.name)),
            }
        }
        if then.len() < fewest {
            let known =
                format!("{} of {} of the baseline have this figure", then.len(), self::runs(runs.len()));
            let why = unknown.map_or_else(|| known.clone(), |why| format!("{known} ({why})"));
            return Err(Box::new(self.open(&why, &format!("at least {fewest} such runs"))));
        }
        Ok(Compared { asked: self, now, exposure: self.exposure(candidate), then })
    }

    /// Checks a run that has enough runs before it.
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

    fn by_few(&self, baseline: &[Sample], candidate: &Sample, apart: Option<&Apart>, alpha: f64) -> Limited {
        match self.compared(baseline, candidate, 1) {
            Ok(compared) => compared.by_few(apart, alpha),
            Err(check) => Limited { check: *check, p: None },
        }
    }
}

/// A figure with those of the baseline.
struct Compared<'a> {
    asked: &'a Asked<'a>,
    now: f64,
    /// Number of units that it is out of.
    exposure: f64,
    /// Figures of the baseline, each with the number of units that it is out of.
    then: Vec<(f64, f64)>,
}

impl Compared<'_> {
    /// Returns the figures that the baseline's runs would have had with this run's exposure.
    fn scaled(&self) -> Vec<f64> {
        self.then.iter().map(|(value, exposure)| value * self.exposure / exposure).collect()
    }

    /// Returns the mean of the baseline; for a latency or a rate the mean of the logarithms.
    fn usual(&self) -> f64 {
        let (scaled, scale) = (self.scaled(), self.asked.scale());
        let is_log = matches!(scale, Scale::Log | Scale::Rate);
        let of = |value: f64| if is_log { scale.of(value, self.exposure) } else { value };
        let mean = scaled.iter().map(|value| of(*value)).sum::<f64>() / scaled.len() as f64;
        if is_log { scale.back(mean, self.exposure) } else { mean }
    }

    /// Returns the largest allowed value (of a rate, the smallest).
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
            // No run has a part of a request.
            Scale::Count => (usual + by - 1e-9).ceil(),
            _ => usual + by,
        }
    }

    fn is_beyond(&self, limit: f64) -> bool {
        let slack = 1e-9 * limit.abs();
        if self.asked.scale().is_more_better() { self.now < limit - slack } else { self.now > limit + slack }
    }

    /// Returns true if the limit is a share of 0.
    fn says_nothing(&self) -> bool {
        matches!(self.asked.limit.by, Margin::Share(_))
            && !self.asked.scale().is_more_better()
            && self.then.iter().all(|(value, _)| *value == 0.0)
    }

    fn write(&self, value: f64) -> String {
        self.asked.unit().write(value)
    }

    fn range(&self) -> String {
        range(&self.scaled(), |value| self.write(value))
    }

    fn check(&self, verdict: CheckVerdict, why: impl Into<String>, settle: &str) -> Check {
        let by = self.asked.limit.by;
        let limit = format!("{}: {by} worse than {}", self.write(self.allowed()), self.write(self.usual()));
        Check { settle: settle.to_owned(), ..self.asked.check(verdict, limit, why) }
    }

    fn passes(&self) -> Check {
        self.check(CheckVerdict::Pass, self.range(), "")
    }

    fn of_nothing(&self) -> Check {
        let why = format!("{} of 0 says nothing; {}", self.asked.limit.by, self.range());
        self.check(CheckVerdict::Inconclusive, why, "an absolute limit, such as worse: 200ms or worse: 5")
    }

    fn by_history(&self, alpha: f64, doubts: Doubts<'_>) -> Check {
        let scale = self.asked.scale();
        if self.says_nothing() && scale == Scale::Count {
            let exposures = self.then.iter().map(|(_, exposure)| exposure / self.exposure).sum();
            let most = after_none(exposures, alpha);
            let verdict = if self.now <= most { CheckVerdict::Pass } else { CheckVerdict::Fail };
            let by = self.asked.limit.by;
            let n = runs(self.then.len());
            let why = format!(
                "{by} of 0 says nothing: after {n} without any the test of totals allows {}",
                self.write(most)
            );
            return self.check(verdict, why, "");
        }
        let allowed = self.allowed();
        if !self.is_beyond(allowed) {
            return self.passes();
        }
        if self.says_nothing() {
            return self.of_nothing();
        }
        let (_, beyond) = spread(scale, self.exposure, &self.scaled(), alpha);
        let last = scale.back(scale.of(allowed, self.exposure) + beyond, self.exposure);
        let side = if scale.is_more_better() { "at least" } else { "at most" };
        let why = format!(
            "runs differ: one that is just as much worse as allowed has {side} {}; {}",
            self.write(last),
            self.range()
        );
        if !self.is_beyond(last) {
            return self.check(
                CheckVerdict::Inconclusive,
                why,
                "more runs in the baseline, or a wider limit",
            );
        }
        let is_latency = scale == Scale::Log;
        match is_latency.then(|| doubts.about(self.now, last, self.asked.quantile())).flatten() {
            None => self.check(CheckVerdict::Fail, why, ""),
            Some(doubt) => self.check(CheckVerdict::Inconclusive, why + &doubt.why, doubt.settle),
        }
    }

    fn by_few(&self, apart: Option<&Apart>, alpha: f64) -> Limited {
        let untested = |check| Limited { check, p: None };
        let Worse { kind, part, key, .. } = self.asked.limit;
        if *kind == Kind::Total {
            return self.by_totals(alpha);
        }
        if !self.is_beyond(self.allowed()) {
            return untested(self.passes());
        }
        let is_of_all = part.is_none() && key.matches('.').count() == 1;
        let is_apart = |apart: &&Apart| match self.asked.limit.by {
            Margin::Share(share) => apart.slower_ms > apart.faster_ms * (1.0 + share.0),
            Margin::Time(time) => apart.slower_ms > apart.faster_ms + time.seconds() * 1e3,
            Margin::Count(_) => false,
        };
        match apart.filter(|_| *kind == Kind::Latency && is_of_all).filter(is_apart) {
            Some(apart) => untested(self.check(CheckVerdict::Fail, apart.in_words(), "")),
            None if self.says_nothing() => untested(self.of_nothing()),
            None => {
                let why =
                    format!("a baseline of {} does not show how much runs differ", runs(self.then.len()));
                untested(self.check(CheckVerdict::Inconclusive, why, MORE_RUNS))
            }
        }
    }

    /// Takes the allowed value off, and tests the rest against the baseline.
    fn by_totals(&self, alpha: f64) -> Limited {
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
            return Limited { check: self.passes(), p };
        }
        let by = self.asked.limit.by;
        let nothing = if self.says_nothing() { format!("{by} of 0 says nothing; ") } else { String::new() };
        let (n, now) = (runs(self.then.len()), self.write(self.now));
        let why = format!("{nothing}{before} in {n}, then {now}; test of totals");
        let mut limited = Limited { check: self.check(CheckVerdict::Fail, why, ""), p };
        if p.is_none() {
            limited.is_open_because("");
        }
        limited
    }
}

fn runs(n: usize) -> String {
    counted(n as u64, "run")
}

#[cfg(test)]
mod tests;
