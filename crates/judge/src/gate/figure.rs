//! Compares a figure that has bounds with a limit: pass, fail or inconclusive.

use super::known::KnownFigure;
use crate::judgements::basis::{Basis, Measured};
use crate::judgements::gate_check::{Check, CheckEvidence, CheckName, LimitSide};
use rolldrop_explain::model::{CheckVerdict, Figure, Unit};
use rolldrop_record::expect::Bounds;

impl Measured {
    /// Creates a figure that is known exactly.
    pub(super) fn exactly(unit: Unit, value: f64) -> Self {
        Self::between(unit, Some(value), Some(value), Some(value))
    }

    /// Creates a number that is known exactly.
    pub(super) fn count(n: u64) -> Self {
        Self::exactly(Unit::Count, n as f64)
    }

    /// Creates a figure between `low` and `high`, where these are known.
    pub(super) fn between(unit: Unit, low: Option<f64>, value: Option<f64>, high: Option<f64>) -> Self {
        Self { figure: Figure { unit, low, value, high }, basis: Basis::Observed }
    }

    /// Creates a figure with no known value or bounds.
    pub(super) fn unknown(unit: Unit, basis: Basis) -> Self {
        Self::between(unit, None, None, None).because(basis)
    }

    pub(super) fn because(self, basis: Basis) -> Self {
        Self { basis, ..self }
    }

    /// Returns the figure's upper bound, or its basis if that bound is unknown.
    pub(super) fn most(self) -> KnownFigure {
        self.figure.high.map_or(KnownFigure::Unbounded(self.basis), KnownFigure::Value)
    }

    /// Returns true if the figure is known exactly.
    pub(super) fn is_exact(&self) -> bool {
        self.figure.low.is_some() && self.figure.low == self.figure.high
    }

    /// Returns true if both bounds are known.
    pub(super) fn is_bounded(&self) -> bool {
        self.figure.low.is_some() && self.figure.high.is_some()
    }

    /// Divides the value and its bounds by `whole`, to turn counts into shares.
    pub(super) fn into_share_of(self, whole: f64) -> Self {
        let share = |n: Option<f64>| n.map(|n| n / whole);
        let Figure { low, value, high, .. } = self.figure;
        let figure = Figure { unit: Unit::Share, low: share(low), value: share(value), high: share(high) };
        Self { figure, ..self }
    }

    fn check(&self, key: String, limit: f64, side: LimitSide, verdict: CheckVerdict) -> Check {
        let measured = self.clone();
        let evidence = CheckEvidence::Limit { measured, limit, side, by_default: false };
        Check::new(CheckName::Limit(key), verdict, evidence)
    }

    /// Checks a lower limit: passes if the figure is certainly at least `min`, fails if it is certainly below.
    pub(super) fn at_least(&self, key: &str, min: f64) -> Check {
        let Figure { low, high, .. } = self.figure;
        let verdict = match (low, high) {
            (Some(low), _) if low >= min => CheckVerdict::Pass,
            (_, Some(high)) if high < min => CheckVerdict::Fail,
            _ => CheckVerdict::Inconclusive,
        };
        self.check(format!("{key}.min"), min, LimitSide::Min, verdict)
    }

    /// Checks an upper limit: passes if the figure is certainly at most `max`, fails if it is certainly above.
    pub(super) fn at_most(&self, key: &str, max: f64) -> Check {
        let Figure { low, high, .. } = self.figure;
        let verdict = match (low, high) {
            (_, Some(high)) if high <= max => CheckVerdict::Pass,
            (Some(low), _) if low > max => CheckVerdict::Fail,
            _ => CheckVerdict::Inconclusive,
        };
        self.check(format!("{key}.max"), max, LimitSide::Max, verdict)
    }

    /// Checks the figure against both limits, if they are set.
    pub(super) fn within(&self, key: &str, bounds: Bounds<f64>) -> Vec<Check> {
        let min = bounds.min.map(|min| self.at_least(key, min));
        min.into_iter().chain(bounds.max.map(|max| self.at_most(key, max))).collect()
    }
}

/// Checks that each figure is within the limits: the largest decides `max`, the smallest decides `min`.
pub(super) fn each_within(
    name: &str,
    bounds: Bounds<f64>,
    all: &[Measured],
    nothing: impl Fn() -> Measured,
) -> Vec<Check> {
    let min = bounds.min.map(|min| smallest(all).unwrap_or_else(&nothing).at_least(name, min));
    let max = bounds.max.map(|max| largest(all).unwrap_or_else(&nothing).at_most(name, max));
    min.into_iter().chain(max).collect()
}

/// Returns the largest of several figures. Its upper bound is unknown if any figure's upper bound is unknown.
pub(super) fn largest(all: &[Measured]) -> Option<Measured> {
    let low = all.iter().filter_map(|m| m.figure.low).reduce(f64::max);
    let highs: Option<Vec<f64>> = all.iter().map(|m| m.figure.high).collect();
    outermost(all, low, highs.and_then(|highs| highs.into_iter().reduce(f64::max)))
}

/// Returns the smallest of several figures. Its lower bound is unknown if any figure's lower bound is unknown.
fn smallest(all: &[Measured]) -> Option<Measured> {
    let high = all.iter().filter_map(|m| m.figure.high).reduce(f64::min);
    let lows: Option<Vec<f64>> = all.iter().map(|m| m.figure.low).collect();
    outermost(all, lows.and_then(|lows| lows.into_iter().reduce(f64::min)), high)
}

fn outermost(all: &[Measured], low: Option<f64>, high: Option<f64>) -> Option<Measured> {
    let of = Measured::between(all.first()?.figure.unit, low, None, high);
    let open = all.iter().find(|m| !m.is_exact());
    Some(match open {
        Some(open) => of.because(open.basis.clone()),
        None => of,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use CheckVerdict::{Fail, Inconclusive, Pass};

    fn verdict(low: Option<f64>, high: Option<f64>, bounds: Bounds<f64>) -> CheckVerdict {
        Measured::between(Unit::Share, low, None, high).within("x", bounds)[0].verdict
    }

    #[test]
    fn figure_passes_only_within_limit() {
        let max = Bounds { max: Some(0.5), ..Bounds::default() };
        assert_eq!(verdict(Some(0.1), Some(0.5), max), Pass);
        assert_eq!(verdict(Some(0.51), Some(0.9), max), Fail);
        assert_eq!(verdict(Some(0.5), Some(0.9), max), Inconclusive);
        assert_eq!(verdict(None, None, max), Inconclusive);
        assert_eq!(verdict(Some(0.6), None, max), Fail);
        let min = Bounds { min: Some(0.5), ..Bounds::default() };
        assert_eq!(verdict(Some(0.5), None, min), Pass);
        assert_eq!(verdict(None, Some(0.4), min), Fail);
        assert_eq!(verdict(Some(0.4), Some(0.5), min), Inconclusive);
    }

    #[test]
    fn unknown_value_leaves_limit_inconclusive() {
        let known = |v| Measured::exactly(Unit::Seconds, v);
        let unknown = || Measured::unknown(Unit::Seconds, Basis::NoEnd);
        let judge = |all: &[Measured], max| {
            each_within("x", Bounds { max: Some(max), ..Bounds::default() }, all, unknown)[0].clone()
        };
        assert_eq!(judge(&[known(1.0), known(2.0)], 2.0).verdict, Pass);
        assert_eq!(judge(&[known(1.0), unknown()], 0.5).verdict, Fail);
        let open = judge(&[known(1.0), unknown()], 2.0);
        assert_eq!(open.verdict, Inconclusive);
        let CheckEvidence::Limit { measured, .. } = open.evidence else { panic!("{open:?}") };
        assert_eq!(measured.basis, Basis::NoEnd);
        assert_eq!(judge(&[], 2.0).verdict, Inconclusive);
    }
}
