//! Compares a figure that has bounds with a limit: pass, fail or inconclusive.

use super::known::KnownFigure;
use crate::judgements::basis::{Basis, Measured};
use crate::judgements::gate_check::{Check, CheckEvidence, LimitSide};
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

    /// Checks a limit: passes if the figure is certainly within it, fails if it is certainly beyond.
    pub(super) fn against(&self, key: &str, limit: f64, side: LimitSide) -> Check {
        let Figure { low, high, .. } = self.figure;
        let (suffix, is_within, is_beyond) = match side {
            LimitSide::Min => ("min", low.map(|low| low >= limit), high.map(|high| high < limit)),
            LimitSide::Max => ("max", high.map(|high| high <= limit), low.map(|low| low > limit)),
        };
        let verdict = match (is_within, is_beyond) {
            (Some(true), _) => CheckVerdict::Pass,
            (_, Some(true)) => CheckVerdict::Fail,
            _ => CheckVerdict::Inconclusive,
        };
        let measured = self.clone();
        let evidence = CheckEvidence::Limit { measured, limit, side, by_default: false };
        Check::limit(format!("{key}.{suffix}"), verdict, evidence)
    }

    pub(super) fn at_least(&self, key: &str, min: f64) -> Check {
        self.against(key, min, LimitSide::Min)
    }

    pub(super) fn at_most(&self, key: &str, max: f64) -> Check {
        self.against(key, max, LimitSide::Max)
    }

    /// Checks the figure against both limits, if they are set.
    pub(super) fn within(&self, key: &str, bounds: Bounds<f64>) -> Vec<Check> {
        each_limit(bounds, |limit, side| self.against(key, limit, side))
    }
}

/// Makes a check for each limit that is set.
pub(super) fn each_limit<T>(bounds: Bounds<T>, check: impl Fn(T, LimitSide) -> Check) -> Vec<Check> {
    let sides = [(bounds.min, LimitSide::Min), (bounds.max, LimitSide::Max)];
    sides.into_iter().filter_map(|(limit, side)| Some(check(limit?, side))).collect()
}

/// Checks that each figure is within the limits: the largest decides `max`, the smallest decides `min`.
pub(super) fn each_within(
    name: &str,
    bounds: Bounds<f64>,
    all: &[Measured],
    nothing: impl Fn() -> Measured,
) -> Vec<Check> {
    each_limit(bounds, |limit, side| {
        let decisive = if side == LimitSide::Min { smallest(all) } else { largest(all) };
        decisive.unwrap_or_else(&nothing).against(name, limit, side)
    })
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
