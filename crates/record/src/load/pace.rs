//! The pace of a load, as a user states it.
//!
//! Open loop is a rate over time, which sets when each request is due, independently of the others.
//! Closed loop is a number of connections that are kept busy, without times: it measures what a server can do, not
//! what its users see.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::names::named;
use crate::run_info::Pacing;

/// The pace of the requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pace {
    /// Open loop: these rates, one after the other.
    Open(Vec<Stage>),
    /// Closed loop: every connection sends its next request when it has the answer to the last.
    Closed(Length),
}

/// A rate over some time: constant, or a straight line from one to another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// Requests per second at its beginning.
    pub from: f64,
    /// Requests per second at its end.
    pub to: f64,
    /// Its length.
    pub duration: Duration,
}

/// When a closed loop ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Length {
    /// After this time.
    Time(Duration),
    /// After this many requests.
    Requests(u64),
}

named! {
    /// How the requests of an open loop are spread over its rates.
    #[derive(Default)]
    pub enum Arrivals else UnknownArrivals "{0:?} is neither even nor poisson" {
        /// Evenly.
        #[default]
        Even = "even",
        /// Like independent users: a Poisson process, given the number of arrivals that the rates set.
        Poisson = "poisson",
    }
}

/// A rate as it is written: requests per second, or a closed loop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Requests per second.
    PerSecond(f64),
    /// A closed loop: as many as the connections carry.
    Max,
}

/// A rate that is written otherwise.
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

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rate::PerSecond(rate) => rate.fmt(f),
            Rate::Max => f.write_str("max"),
        }
    }
}

impl Pace {
    /// Open loop at one rate.
    pub fn constant(rate: f64, duration: Duration) -> Self {
        Self::Open(vec![Stage { from: rate, to: rate, duration }])
    }

    /// Open loop with `requests` requests at one rate.
    pub fn constant_count(rate: f64, requests: u64) -> Self {
        let length = Duration::try_from_secs_f64(requests as f64 / rate);
        Self::constant(rate, length.unwrap_or(Duration::MAX))
    }

    /// The same, with a closed loop or the last rate held until the counted part is `length` long.
    #[must_use]
    pub fn held_until(mut self, length: Duration) -> Self {
        let left = length.saturating_sub(self.duration().unwrap_or(length));
        match &mut self {
            Pace::Closed(Length::Time(duration)) => *duration += left,
            Pace::Closed(Length::Requests(_)) => {}
            Pace::Open(stages) => match stages.last_mut() {
                Some(Stage { from, to, duration }) if from == to => *duration += left,
                Some(Stage { to, .. }) if !left.is_zero() => {
                    let held = Stage { from: *to, to: *to, duration: left };
                    stages.push(held);
                }
                _ => {}
            },
        }
        self
    }

    /// Length of the counted part; `None` if requests are counted instead.
    pub fn duration(&self) -> Option<Duration> {
        match self {
            Pace::Open(stages) => Some(stages.iter().map(|stage| stage.duration).sum()),
            Pace::Closed(Length::Time(duration)) => Some(*duration),
            Pace::Closed(Length::Requests(_)) => None,
        }
    }

    /// Whether each connection sends its next request when it has the answer to the last.
    pub fn is_closed(&self) -> bool {
        matches!(self, Pace::Closed(_))
    }

    /// The mean rate of the counted part, in requests per second; 0 for a closed loop, which has none.
    pub fn mean_rate(&self) -> f64 {
        let Pace::Open(stages) = self else { return 0.0 };
        let length_s: f64 = stages.iter().map(|stage| stage.duration.as_secs_f64()).sum();
        let requests: f64 = stages.iter().map(Stage::requests).sum();
        if length_s > 0.0 { requests / length_s } else { 0.0 }
    }

    /// The highest rate, in requests per second; 0 for a closed loop.
    pub fn peak_rate(&self) -> f64 {
        let Pace::Open(stages) = self else { return 0.0 };
        stages.iter().map(|stage| stage.from.max(stage.to)).fold(0.0, f64::max)
    }

    /// The rate of a warm-up, in requests per second: that of the first stage, or the end of a first ramp; 0 for a
    /// closed loop.
    pub fn warmup_rate(&self) -> f64 {
        let Pace::Open(stages) = self else { return 0.0 };
        stages.first().map_or(0.0, |stage| stage.to)
    }

    /// Its kind, as files name it.
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

impl Stage {
    /// The requests that it makes: the integral of its rate.
    pub fn requests(&self) -> f64 {
        (self.from + self.to) / 2.0 * self.duration.as_secs_f64()
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.duration.as_secs_f64();
        if self.from == self.to {
            write!(f, "{}:{seconds}s", self.to)
        } else {
            write!(f, "{}-{}:{seconds}s", self.from, self.to)
        }
    }
}

/// A stage that is written otherwise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither RATE:DURATION, such as 100:10s, nor a ramp FROM-TO:DURATION, such as 100-500:30s")]
pub struct NotAStage(String);

impl FromStr for Stage {
    type Err = NotAStage;

    fn from_str(text: &str) -> Result<Self, NotAStage> {
        let parse = || {
            let (rates, duration) = text.split_once(':')?;
            let (from, to) = rates.split_once('-').unwrap_or((rates, rates));
            let duration = super::duration(duration)?;
            Some(Stage { from: from.parse().ok()?, to: to.parse().ok()?, duration })
        };
        parse().ok_or_else(|| NotAStage(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_is_a_rate_or_a_ramp() {
        let stage = |from, to, s| Ok(Stage { from, to, duration: Duration::from_secs(s) });
        assert_eq!("100:10s".parse(), stage(100.0, 100.0, 10));
        assert_eq!("0-2.5:1m30s".parse(), stage(0.0, 2.5, 90));
        for wrong in ["100", "100:10", "fast:10s", "1-2-3:1s", ":1s", "100:-1s"] {
            assert!(wrong.parse::<Stage>().is_err(), "{wrong}");
        }
        assert_eq!("0-2.5:1m30s".parse::<Stage>().map(|stage| stage.to_string()), Ok("0-2.5:90s".into()));
    }

    #[test]
    fn the_last_rate_can_be_held() {
        let open = |texts: &[&str]| Pace::Open(texts.iter().map(|text| text.parse().unwrap()).collect());
        let minute = Duration::from_secs(60);
        assert_eq!(open(&["5:10s"]).held_until(minute), open(&["5:60s"]));
        let closed = |s| Pace::Closed(Length::Time(Duration::from_secs(s)));
        assert_eq!(closed(10).held_until(minute), closed(60));
        assert_eq!(open(&["1-5:10s"]).held_until(minute), open(&["1-5:10s", "5:50s"]));
    }

    #[test]
    fn a_pace_knows_its_rates() {
        let stages = ["0-100:10s", "100:5s"].map(|text| text.parse().unwrap());
        let pace = Pace::Open(stages.to_vec());
        assert_eq!((pace.peak_rate(), pace.warmup_rate(), pace.pacing()), (100.0, 100.0, Pacing::Stages));
        assert!((pace.mean_rate() - 1000.0 / 15.0).abs() < 1e-9);
        assert_eq!(Pace::constant_count(300.0, 100).duration(), Some(Duration::from_nanos(333_333_333)));
    }
}
