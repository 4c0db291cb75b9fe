//! A figure between its bounds, against a limit: pass, fail or inconclusive.

use super::known::Known;
use rolldrop_explain::model::{Check, CheckVerdict, Figure, Unit};
use rolldrop_record::expect::Bounds;

/// A figure with the words of its check.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    figure: Figure,
    /// Observation in words, if the figure's own words do not suffice.
    observed: Option<String>,
    /// Reason for the bounds; empty for a plain count.
    basis: String,
    /// Reason for being beyond a limit, if that needs other words.
    beyond: Option<String>,
    /// Way to settle the check if it is inconclusive.
    settle: String,
}

impl Measured {
    /// Creates a figure that is known exactly.
    pub(super) fn exactly(unit: Unit, value: f64) -> Self {
        Self::between(unit, Some(value), Some(value), Some(value))
    }

    /// Creates a number that is known exactly.
    pub(super) fn count(n: u64) -> Self {
        Self::exactly(Unit::Count, n as f64)
    }

    /// Creates a figure that is at least `low` and at most `high`, as far as these are known.
    pub(super) fn between(unit: Unit, low: Option<f64>, value: Option<f64>, high: Option<f64>) -> Self {
        let figure = Figure { unit, low, value, high };
        Self { figure, observed: None, basis: String::new(), beyond: None, settle: String::new() }
    }

    /// Creates a figure of which nothing is known.
    pub(super) fn unknown(unit: Unit, basis: impl Into<String>, settle: impl Into<String>) -> Self {
        Self::between(unit, None, None, None).because(basis).settled_by(settle)
    }

    pub(super) fn because(self, basis: impl Into<String>) -> Self {
        Self { basis: basis.into(), ..self }
    }

    pub(super) fn settled_by(self, settle: impl Into<String>) -> Self {
        Self { settle: settle.into(), ..self }
    }

    /// Sets other words for the reason why it is beyond a limit.
    pub(super) fn beyond_because(self, beyond: Option<String>) -> Self {
        Self { beyond, ..self }
    }

    /// Sets other words for the observation.
    pub(super) fn observed(self, words: impl Into<String>) -> Self {
        Self { observed: Some(words.into()), ..self }
    }

    /// Returns its upper bound; if that is unknown, the reason, and the way to settle it.
    pub(super) fn most(self) -> Known {
        match self.figure.high {
            Some(high) => Known::Value(high),
            None => Known::Unknown { why: self.basis, settle: self.settle },
        }
    }

    /// Returns true if it is known exactly.
    pub(super) fn is_exact(&self) -> bool {
        self.figure.low.is_some() && self.figure.low == self.figure.high
    }

    /// Returns true if both bounds are known.
    pub(super) fn is_bounded(&self) -> bool {
        self.figure.low.is_some() && self.figure.high.is_some()
    }

    /// Divides all numbers by `whole`, which makes them shares.
    pub(super) fn into_share_of(self, whole: f64) -> Self {
        let share = |n: Option<f64>| n.map(|n| n / whole);
        let Figure { low, value, high, .. } = self.figure;
        let figure = Figure { unit: Unit::Share, low: share(low), value: share(value), high: share(high) };
        Self { figure, ..self }
    }

    fn in_words(&self) -> String {
        let Figure { unit, low, value, high } = self.figure;
        let write = |v: f64| unit.write(v);
        match (&self.observed, low, value, high) {
            (Some(words), ..) => words.clone(),
            (None, Some(low), _, Some(high)) if low == high => write(low),
            (None, Some(low), Some(value), Some(high)) => {
                format!("{} ({} to {})", write(value), write(low), write(high))
            }
            (None, Some(low), _, Some(high)) => format!("{} to {}", write(low), write(high)),
            (None, Some(low), _, None) => format!("at least {}", write(low)),
            (None, None, _, Some(high)) => format!("at most {}", write(high)),
            (None, None, ..) => "unknown".to_owned(),
        }
    }

    fn check(&self, name: String, limit: String, verdict: CheckVerdict) -> Check {
        let is_open = verdict == CheckVerdict::Inconclusive;
        Check {
            name,
            verdict,
            limit,
            observed: self.in_words(),
            why: match (verdict, &self.beyond) {
                (CheckVerdict::Fail, Some(beyond)) => beyond.clone(),
                (CheckVerdict::Inconclusive, _) if self.basis.is_empty() => {
                    "the limit lies between the bounds".to_owned()
                }
                _ => self.basis.clone(),
            },
            settle: if is_open { self.settle.clone() } else { String::new() },
            figure: Some(self.figure),
        }
    }

    /// Checks the figure: passes if it is surely at least `min`, fails if it is surely below.
    pub(super) fn at_least(&self, name: &str, min: f64) -> Check {
        let Figure { low, high, unit, .. } = self.figure;
        let verdict = match (low, high) {
            (Some(low), _) if low >= min => CheckVerdict::Pass,
            (_, Some(high)) if high < min => CheckVerdict::Fail,
            _ => CheckVerdict::Inconclusive,
        };
        self.check(format!("{name}.min"), format!("at least {}", unit.limit(min)), verdict)
    }

    /// Checks the figure: passes if it is surely at most `max`, fails if it is surely above.
    pub(super) fn at_most(&self, name: &str, max: f64) -> Check {
        let Figure { low, high, unit, .. } = self.figure;
        let verdict = match (low, high) {
            (_, Some(high)) if high <= max => CheckVerdict::Pass,
            (Some(low), _) if low > max => CheckVerdict::Fail,
            _ => CheckVerdict::Inconclusive,
        };
        self.check(format!("{name}.max"), format!("at most {}", unit.limit(max)), verdict)
    }

    /// Checks both bounds.
    pub(super) fn within(&self, name: &str, bounds: Bounds<f64>) -> Vec<Check> {
        let min = bounds.min.map(|min| self.at_least(name, min));
        min.into_iter().chain(bounds.max.map(|max| self.at_most(name, max))).collect()
    }
}

/// Checks that several figures are each within bounds: the largest decides about `max`, the smallest about `min`.
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

/// Returns the largest of several figures. Its upper bound is unknown if any of theirs is.
pub(super) fn largest(all: &[Measured]) -> Option<Measured> {
    let low = all.iter().filter_map(|m| m.figure.low).reduce(f64::max);
    let highs: Option<Vec<f64>> = all.iter().map(|m| m.figure.high).collect();
    outermost(all, low, highs.and_then(|highs| highs.into_iter().reduce(f64::max)))
}

/// Returns the smallest of several figures. Its lower bound is unknown if any of theirs is.
fn smallest(all: &[Measured]) -> Option<Measured> {
    let high = all.iter().filter_map(|m| m.figure.high).reduce(f64::min);
    let lows: Option<Vec<f64>> = all.iter().map(|m| m.figure.low).collect();
    outermost(all, lows.and_then(|lows| lows.into_iter().reduce(f64::min)), high)
}

fn outermost(all: &[Measured], low: Option<f64>, high: Option<f64>) -> Option<Measured> {
    let of = Measured::between(all.first()?.figure.unit, low, None, high);
    let open = all.iter().find(|m| !m.is_exact());
    Some(match open {
        Some(open) => of.because(&*open.basis).settled_by(&*open.settle),
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
        let unknown = || Measured::unknown(Unit::Seconds, "nobody saw it", "look");
        let judge = |all: &[Measured], max| {
            each_within("x", Bounds { max: Some(max), ..Bounds::default() }, all, unknown)[0].clone()
        };
        assert_eq!(judge(&[known(1.0), known(2.0)], 2.0).verdict, Pass);
        assert_eq!(judge(&[known(1.0), unknown()], 0.5).verdict, Fail);
        let open = judge(&[known(1.0), unknown()], 2.0);
        assert_eq!(
            (open.verdict, open.why.as_str(), open.settle.as_str()),
            (Inconclusive, "nobody saw it", "look")
        );
        assert_eq!(judge(&[], 2.0).verdict, Inconclusive);
    }
}
