//! The pace of a load, as specified by the user.
//!
//! In an open loop, a rate over time determines when each request is due, independently of the others. In a closed
//! loop, a fixed number of connections are kept busy without scheduled send times. That measures the server's capacity,
//! not what its users experience.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::names::named;
use crate::units::{Scalar, duration};

/// Pace of the requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pace {
    /// Open loop with these stages, one after another.
    Open(Vec<RateStage>),
    /// Closed loop: each connection sends its next request once the previous response has arrived.
    Closed(Length),
}

named! {
    /// Pacing of requests.
    #[derive(Default)]
    pub enum Pacing else UnknownPacing "unknown pacing {0:?}" {
        /// Scheduled at a constant rate.
        #[default]
        Constant = "constant",
        /// Scheduled at changing rates.
        Stages = "stages",
        /// Each connection sends its next request once the previous response has arrived; there are no intended send
        /// times.
        ClosedLoop = "closed_loop",
    }
}

/// A rate over a period: constant, or changing linearly.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RateStage {
    /// Requests per second at the beginning.
    pub from: f64,
    /// Requests per second at the end.
    pub to: f64,
    /// Length of the stage.
    pub duration: Duration,
}

/// Length of a closed loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Length {
    /// The loop ends after this time.
    Time(Duration),
    /// The loop ends after this many requests.
    Requests(u64),
}

named! {
    /// Distribution of requests in time, at the rates of an open loop.
    #[derive(Default)]
    pub enum Arrivals else UnknownArrivals "{0:?} is neither even nor poisson" {
        /// At even intervals.
        #[default]
        Even = "even",
        /// As if from independent users: a Poisson process, conditioned on the number of arrivals given by the rates.
        Poisson = "poisson",
    }
}

/// A rate as written: requests per second, or `max` for a closed loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Requests per second.
    PerSecond(f64),
    /// A closed loop: as fast as the connections allow.
    Max,
}

/// Error for text that is not a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("needs a number of requests per second, or max")]
pub struct NotARate;

impl FromStr for Rate {
    type Err = NotARate;

    fn from_str(text: &str) -> Result<Self, NotARate> {
        match text {
            "max" => Ok(Rate::Max),
            number => number.parse().map(Rate::PerSecond).map_err(|_| NotARate),
        }
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a number of requests per second, or max";
        match Scalar::read(deserializer, expected)? {
            Scalar::Number(rate) => Ok(Rate::PerSecond(rate)),
            Scalar::Text(text) if text == "max" => Ok(Rate::Max),
            Scalar::Text(text) => Err(de::Error::invalid_value(de::Unexpected::Str(&text), &expected)),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rate::PerSecond(rate) => rate.fmt(f),
            Rate::Max => f.write_str("max"),
        }
    }
}

impl Pace {
    /// Creates an open loop at a constant rate.
    pub fn constant(rate: f64, duration: Duration) -> Self {
        Self::Open(vec![RateStage { from: rate, to: rate, duration }])
    }

    /// Creates an open loop of `requests` requests at a constant rate.
    pub fn constant_count(rate: f64, requests: u64) -> Self {
        let length = Duration::try_from_secs_f64(requests as f64 / rate);
        Self::constant(rate, length.unwrap_or(Duration::MAX))
    }

    /// Extends the counted part to at least `length`, by continuing the closed loop or holding the last rate.
    #[must_use]
    pub fn held_until(mut self, length: Duration) -> Self {
        let left = length.saturating_sub(self.duration().unwrap_or(length));
        match &mut self {
            Pace::Closed(Length::Time(duration)) => *duration += left,
            Pace::Closed(Length::Requests(_)) => {}
            Pace::Open(stages) => match stages.last_mut() {
                Some(RateStage { from, to, duration }) if from == to => *duration += left,
                Some(RateStage { to, .. }) if !left.is_zero() => {
                    let held = RateStage { from: *to, to: *to, duration: left };
                    stages.push(held);
                }
                _ => {}
            },
        }
        self
    }

    /// Returns the length of the counted part; `None` if it is given as a number of requests.
    pub fn duration(&self) -> Option<Duration> {
        match self {
            Pace::Open(stages) => Some(stages.iter().map(|stage| stage.duration).sum()),
            Pace::Closed(Length::Time(duration)) => Some(*duration),
            Pace::Closed(Length::Requests(_)) => None,
        }
    }

    /// Returns true for a closed loop.
    pub fn is_closed(&self) -> bool {
        matches!(self, Pace::Closed(_))
    }

    /// Returns the mean rate of the counted part, in requests per second; 0 for a closed loop, which has none.
    pub fn mean_rate(&self) -> f64 {
        let Pace::Open(stages) = self else { return 0.0 };
        let length_s: f64 = stages.iter().map(|stage| stage.duration.as_secs_f64()).sum();
        let requests: f64 = stages.iter().map(RateStage::requests).sum();
        if length_s > 0.0 { requests / length_s } else { 0.0 }
    }

    /// Returns the highest rate, in requests per second; 0 for a closed loop.
    pub fn peak_rate(&self) -> f64 {
        let Pace::Open(stages) = self else { return 0.0 };
        stages.iter().map(|stage| stage.from.max(stage.to)).fold(0.0, f64::max)
    }

    /// Returns the warm-up rate, in requests per second: the rate of the first stage, or the final rate if that stage
    /// is a ramp; 0 for a closed loop.
    pub fn warmup_rate(&self) -> f64 {
        let Pace::Open(stages) = self else { return 0.0 };
        stages.first().map_or(0.0, |stage| stage.to)
    }

    /// Returns the kind of pacing, as named in files.
    pub fn pacing(&self) -> Pacing {
        match self {
            Pace::Open(stages) if stages.len() == 1 && stages.iter().all(|stage| stage.from == stage.to) => {
                Pacing::Constant
            }
            Pace::Open(_) => Pacing::Stages,
            Pace::Closed(_) => Pacing::ClosedLoop,
        }
    }
}

impl RateStage {
    /// Returns the number of requests in the stage: the integral of its rate.
    pub fn requests(&self) -> f64 {
        (self.from + self.to) / 2.0 * self.duration.as_secs_f64()
    }
}

impl fmt::Display for RateStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.duration.as_secs_f64();
        if self.from == self.to {
            write!(f, "{}:{seconds}s", self.to)
        } else {
            write!(f, "{}-{}:{seconds}s", self.from, self.to)
        }
    }
}

/// Error for text that is not a stage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither RATE:DURATION, such as 100:10s, nor a ramp FROM-TO:DURATION, such as 100-500:30s")]
pub struct NotAStage(String);

impl FromStr for RateStage {
    type Err = NotAStage;

    fn from_str(text: &str) -> Result<Self, NotAStage> {
        let parse = || {
            let (rates, length) = text.split_once(':')?;
            let (from, to) = rates.split_once('-').unwrap_or((rates, rates));
            let duration = duration(length)?;
            Some(RateStage { from: from.parse().ok()?, to: to.parse().ok()?, duration })
        };
        parse().ok_or_else(|| NotAStage(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stage_parses_rate_or_ramp() {
        let stage = |from, to, s| Ok(RateStage { from, to, duration: Duration::from_secs(s) });
        assert_eq!("100:10s".parse(), stage(100.0, 100.0, 10));
        assert_eq!("0-2.5:1m30s".parse(), stage(0.0, 2.5, 90));
        for wrong in ["100", "100:10", "fast:10s", "1-2-3:1s", ":1s", "100:-1s"] {
            assert!(wrong.parse::<RateStage>().is_err(), "{wrong}");
        }
        assert_eq!("0-2.5:1m30s".parse::<RateStage>().map(|stage| stage.to_string()), Ok("0-2.5:90s".into()));
    }

    #[test]
    fn held_until_extends_last_rate() {
        let open = |texts: &[&str]| Pace::Open(texts.iter().map(|text| text.parse().unwrap()).collect());
        let minute = Duration::from_secs(60);
        assert_eq!(open(&["5:10s"]).held_until(minute), open(&["5:60s"]));
        let closed = |s| Pace::Closed(Length::Time(Duration::from_secs(s)));
        assert_eq!(closed(10).held_until(minute), closed(60));
        assert_eq!(open(&["1-5:10s"]).held_until(minute), open(&["1-5:10s", "5:50s"]));
    }

    #[test]
    fn pace_reports_its_rates() {
        let stages = ["0-100:10s", "100:5s"].map(|text| text.parse().unwrap());
        let pace = Pace::Open(stages.to_vec());
        assert_eq!((pace.peak_rate(), pace.warmup_rate(), pace.pacing()), (100.0, 100.0, Pacing::Stages));
        assert!((pace.mean_rate() - 1000.0 / 15.0).abs() < 1e-9);
        assert_eq!(Pace::constant_count(300.0, 100).duration(), Some(Duration::from_nanos(333_333_333)));
    }
}
