//! Survival of streams by age, from complete streams, cut ones, and ones found late.
//!
//! Sources: Kaplan and Meier 1958; Tsai, Jewell and Wang 1987 (delayed entry); Kalbfleisch and Prentice 2002, section
//! 1.4.3 (log-log bands). With delayed entry few streams are known at young ages, and a single end among three would
//! cost a third of the whole curve. So the curve begins at the first age with [`LEAST_AT_RISK`] streams, and its shares
//! are those of the streams that reach this age.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal};

use crate::model::{MissingShare, SpanEnd, StreamSpan, SurvivalStep};

/// Number of streams at risk at which the curve begins.
pub const LEAST_AT_RISK: usize = 30;

/// Ages between which one stream was observed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Life {
    /// Age at which a watch found the stream, in seconds; `None` if it was observed from its beginning.
    pub entered_s: Option<f64>,
    /// Age at which the stream ended or was last seen, in seconds.
    pub left_s: f64,
    /// Meaning of `left_s`.
    pub ended: SpanEnd,
}

impl From<&StreamSpan> for Life {
    fn from(span: &StreamSpan) -> Self {
        Self {
            entered_s: span.entered.map(|entered| entered.seconds_since(span.start)),
            left_s: span.end.seconds_since(span.start),
            ended: span.ended,
        }
    }
}

/// Share of streams that are still open after an age, by the Kaplan–Meier estimator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Survival {
    /// The curve's steps by age. The first is the age at which it begins, with a share of 1.
    steps: Vec<SurvivalStep>,
}

impl Survival {
    /// Returns the curve with pointwise bands at `confidence` (two-sided). `None` if there are never enough streams at
    /// risk, or if none of them was seen to end.
    pub fn of(lives: &[Life], confidence: f64) -> Option<Self> {
        let since = |life: &Life| life.entered_s.unwrap_or(f64::MIN);
        // A stream that left as soon as it was found was never at risk.
        let lives: Vec<&Life> = lives.iter().filter(|life| life.left_s > since(life)).collect();
        let mut entered: Vec<f64> = lives.iter().map(|life| since(life)).collect();
        let mut left: Vec<f64> = lives.iter().map(|life| life.left_s).collect();
        entered.sort_by(f64::total_cmp);
        left.sort_by(f64::total_cmp);
        let begins = (0..entered.len()).find(|i| {
            let gone = left.partition_point(|age| *age <= entered[*i].max(0.0));
            (i + 1).saturating_sub(gone) >= LEAST_AT_RISK
        })?;
        let from_s = entered[begins].max(0.0);

        let mut ends: Vec<f64> = (lives.iter())
            .filter(|life| life.ended == SpanEnd::Complete && life.left_s > from_s)
            .map(|life| life.left_s)
            .collect();
        ends.sort_by(f64::total_cmp);
        let z = Normal::standard().inverse_cdf(f64::midpoint(1.0, confidence));
        let first = SurvivalStep { age_s: from_s, share: 1.0, lower: 1.0, upper: 1.0 };
        let mut steps = vec![first];
        // Greenwood's sum: the variance of the logarithm of the share.
        let (mut last, mut variance) = (first, 0.0);
        for equal in ends.chunk_by(|a, b| a == b) {
            let (age_s, ended) = (equal[0], equal.len() as f64);
            let before = |ages: &[f64]| ages.partition_point(|age| *age < age_s);
            let at_risk = (before(&entered) - before(&left)) as f64;
            let share = last.share * (1.0 - ended / at_risk);
            variance += ended / (at_risk * (at_risk - ended));
            last = if share > 0.0 {
                let spread = (z * variance.sqrt() / share.ln().abs()).exp();
                SurvivalStep { age_s, share, lower: share.powf(spread), upper: share.powf(1.0 / spread) }
            } else {
                // A share of 0 has no band of its own.
                SurvivalStep { age_s, share: 0.0, lower: 0.0, upper: last.upper }
            };
            steps.push(last);
        }
        (steps.len() > 1).then_some(Self { steps })
    }

    /// Returns the steps by age.
    pub fn steps(&self) -> &[SurvivalStep] {
        &self.steps
    }

    /// Returns about `most` evenly spaced steps, including the first and the last.
    pub fn thinned(&self, most: usize) -> Vec<SurvivalStep> {
        let every = self.steps.len().div_ceil(most.max(1));
        let is_kept = |place: usize| place.is_multiple_of(every) || place + 1 == self.steps.len();
        let steps = self.steps.iter().enumerate();
        steps.filter(|(place, _)| is_kept(*place)).map(|(_, step)| *step).collect()
    }

    /// Returns the step that applies at this age. `None` before the first step, and beyond the last, where no stream
    /// was seen to end.
    pub fn at(&self, age_s: f64) -> Option<&SurvivalStep> {
        let upto = self.steps.partition_point(|step| step.age_s <= age_s);
        let step = self.steps.get(upto.checked_sub(1)?)?;
        (upto < self.steps.len() || step.age_s >= age_s).then_some(step)
    }

    /// Returns the share of the stationary population that is missing `after_s` seconds after streams began to arrive:
    /// among all streams that would be open then, those that would have begun earlier. `None` if the curve does not
    /// begin at age 0.
    pub fn missing_share(&self, after_s: f64) -> Option<MissingShare> {
        let (first, last) = (self.steps.first()?, self.steps.last()?);
        let open_s = |from_s: f64| -> f64 {
            let pairs = self.steps.iter().zip(&self.steps[1..]);
            pairs.map(|(step, next)| step.share * (next.age_s - step.age_s.max(from_s)).max(0.0)).sum()
        };
        let share = open_s(after_s) / open_s(0.0);
        (first.age_s <= 0.0).then_some(match last.share > 0.0 {
            // The streams that last longer add the same to both sums.
            true => MissingShare::AtLeast(share),
            false => MissingShare::Exactly(share),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(left_s: f64, ended: SpanEnd) -> Life {
        Life { entered_s: None, left_s, ended }
    }

    /// Returns the remissions under 6-MP from Freireich et al. 1963, in weeks, each twice: 42 patients.
    fn remissions() -> Vec<Life> {
        let ended = [6.0, 6.0, 6.0, 7.0, 10.0, 13.0, 16.0, 22.0, 23.0];
        let censored = [6.0, 9.0, 10.0, 11.0, 17.0, 19.0, 20.0, 25.0, 32.0, 32.0, 34.0, 35.0];
        let all = (ended.iter().map(|weeks| life(*weeks, SpanEnd::Complete)))
            .chain(censored.iter().map(|weeks| life(*weeks, SpanEnd::Censored)));
        all.flat_map(|life| [life; 2]).collect()
    }

    #[test]
    fn curve_matches_published_remissions() {
        let curve = Survival::of(&remissions(), 0.95).unwrap();
        let published = [
            (0.0, 1.0),
            (6.0, 0.857),
            (7.0, 0.807),
            (10.0, 0.753),
            (13.0, 0.690),
            (16.0, 0.627),
            (22.0, 0.538),
            (23.0, 0.448),
        ];
        assert_eq!(curve.steps().len(), published.len());
        for (step, (age, share)) in curve.steps().iter().zip(published) {
            assert!(step.age_s == age && (step.share - share).abs() < 6e-4, "{step:?}");
        }
        // By hand: 0.857^exp(±1.96 sqrt(6 / (42 * 36)) / |ln 0.857|).
        let six = curve.at(6.5).unwrap();
        assert!((six.lower - 0.709).abs() < 1e-3 && (six.upper - 0.933).abs() < 1e-3, "{six:?}");
        assert_eq!((curve.at(-1.0), curve.at(24.0)), (None, None), "unknown beyond the last end");
        assert_eq!(curve.at(23.0).unwrap().age_s, 23.0);
    }

    #[test]
    fn curve_needs_enough_streams() {
        assert_eq!(Survival::of(&remissions()[..29], 0.95), None);
        assert_eq!(Survival::of(&[life(1.0, SpanEnd::Censored); 40], 0.95), None);
    }

    #[test]
    fn late_entries_delay_curve() {
        // Ten streams are seen from their beginning, and one of them ends at 2 s; 40 are found at 5 s.
        let entered = |entered_s, left_s| Life { entered_s, left_s, ended: SpanEnd::Complete };
        let mut lives = vec![entered(None, 2.0)];
        lives.extend((0..9).map(|i| entered(None, 10.0 + f64::from(i))));
        lives.extend((0..40).map(|i| entered(Some(5.0), 10.5 + f64::from(i))));
        let curve = Survival::of(&lives, 0.95).unwrap();
        assert_eq!((curve.at(4.9), curve.at(5.0).map(|step| step.share)), (None, Some(1.0)));
        assert!((curve.at(10.0).unwrap().share - 48.0 / 49.0).abs() < 1e-12);
        assert_eq!(curve.missing_share(6.0), None, "ages below 5 s are unknown");
    }

    #[test]
    fn missing_share_integrates_curve() {
        // Half of the streams last 10 s, half 30 s: 20 s on average. After 15 s, half of the long ones' time is
        // missing.
        let of = |last: SpanEnd| {
            let lives: Vec<Life> = (0..20)
                .flat_map(|_| [life(10.0, SpanEnd::Complete), life(30.0, SpanEnd::Complete)])
                .chain([life(40.0, last); 2])
                .collect();
            Survival::of(&lives, 0.95).unwrap()
        };
        let mean = (20.0 * 10.0 + 20.0 * 30.0 + 2.0 * 40.0) / 42.0;
        let missing = (20.0 * 15.0 + 2.0 * 25.0) / 42.0 / mean;
        let MissingShare::Exactly(share) = of(SpanEnd::Complete).missing_share(15.0).unwrap() else {
            panic!()
        };
        assert!((share - missing).abs() < 1e-12);
        let MissingShare::AtLeast(share) = of(SpanEnd::Censored).missing_share(15.0).unwrap() else {
            panic!()
        };
        assert!(share < missing, "{share}");
        assert_eq!(of(SpanEnd::Complete).missing_share(50.0), Some(MissingShare::Exactly(0.0)));
    }

    #[test]
    fn missing_share_follows_exponential_law() {
        // Quantiles of an exponential distribution with a mean of 10 s: after T the share e^(-T/10) is missing.
        let n = 20_000;
        let lives: Vec<Life> = (0..n)
            .map(|i| -10.0 * ((f64::from(i) + 0.5) / f64::from(n)).ln())
            .map(|left_s| life(left_s, SpanEnd::Complete))
            .collect();
        let curve = Survival::of(&lives, 0.95).unwrap();
        for after_s in [0.0, 5.0, 20.0, 40.0_f64] {
            let MissingShare::Exactly(share) = curve.missing_share(after_s).unwrap() else { panic!() };
            assert!((share - (-after_s / 10.0).exp()).abs() < 1e-3, "{after_s}: {share}");
        }
    }
}
