//! Laws of random lengths of time: the duration of a stream, or the gap between two of its events.
//!
//! The load generator and the sample server share the grammar. A law is self-contained: [`LengthLaw::read`] replaces a
//! file name with the file's contents so that a recorded law needs no file and no server opens files for its clients.

use std::f64::consts::TAU;
use std::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rand::{Rng, RngExt};

use crate::names::as_text;
use crate::units::{duration, in_units};

/// Request header that asks a server for a stream of this length.
pub const LENGTH_HEADER: &str = "rolldrop-length";

/// Prefix of an option's value that names a file of lengths.
const FILE: &str = "file:";

/// Distribution of a length of time.
///
/// Written as `fixed:30s` or just `30s`, `lognormal:10s,1.0` (median, sigma), `exp:20s` (mean), or `list:1s,2.5s`
/// (each equally likely). Options also accept `file:PATH`, a list with one length per line ([`LengthLaw::read`]).
#[derive(Clone, Debug, PartialEq)]
pub enum LengthLaw {
    /// Always the same length.
    Fixed(Duration),
    /// Length whose logarithm is normally distributed.
    LogNormal {
        /// Length that half of the samples exceed.
        median: Duration,
        /// Standard deviation of the natural logarithm.
        sigma: f64,
    },
    /// Exponential distribution with this mean.
    Exponential(Duration),
    /// One of these lengths, each equally likely. Never empty.
    Listed(Arc<[Duration]>),
}

/// Error for text that is not a length law.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LengthLawError {
    /// The text does not follow the grammar.
    #[error("{0:?} is not a length law, such as 30s, fixed:30s, lognormal:10s,1.0, exp:20s or list:1s,2.5s")]
    Grammar(String),
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A line of the file is not a duration.
    #[error("{}:{line}: {text:?} is not a duration with a unit, such as 2.5s", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line number, counted from 1.
        line: usize,
        /// The line.
        text: String,
    },
    /// The file contains no lengths.
    #[error("{} has no lengths: write one per line, such as 2.5s", .0.display())]
    EmptyFile(PathBuf),
}

impl LengthLaw {
    /// Parses an option's value: the grammar of [`LengthLaw`], or `file:PATH`. Skips empty lines of the file.
    ///
    /// # Errors
    /// Fails if the text does not follow the grammar, or if the file cannot be read or contains no lengths.
    pub fn read(text: &str) -> Result<Self, LengthLawError> {
        let Some(path) = text.strip_prefix(FILE).map(PathBuf::from) else { return text.parse() };
        let content = match fs::read_to_string(&path) {
            Ok(content) => content,
            Err(source) => return Err(LengthLawError::File { path, source }),
        };
        let mut lengths = Vec::new();
        for (index, text) in content.lines().map(str::trim).enumerate().filter(|(_, text)| !text.is_empty()) {
            match duration(text) {
                Some(length) => lengths.push(length),
                None => return Err(LengthLawError::Line { path, line: index + 1, text: text.to_owned() }),
            }
        }
        if lengths.is_empty() {
            Err(LengthLawError::EmptyFile(path))
        } else {
            Ok(Self::Listed(lengths.into()))
        }
    }

    /// Draws a length. The same sequence of random numbers yields the same lengths.
    pub fn sample(&self, random: &mut impl Rng) -> Duration {
        // Never 0, which keeps the logarithm finite.
        let mut unit = || 1.0 - random.random::<f64>();
        match self {
            Self::Fixed(length) => *length,
            Self::LogNormal { median, sigma } => {
                // The Box-Muller transform.
                let normal = (-2.0 * unit().ln()).sqrt() * (TAU * unit()).cos();
                scaled(*median, (sigma * normal).exp())
            }
            Self::Exponential(mean) => scaled(*mean, -unit().ln()),
            Self::Listed(lengths) => lengths[random.random_range(..lengths.len())],
        }
    }
}

/// Multiplies a length by a factor, saturating at the longest possible length.
fn scaled(length: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(length.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

impl FromStr for LengthLaw {
    type Err = LengthLawError;

    fn from_str(text: &str) -> Result<Self, LengthLawError> {
        parsed(text).ok_or_else(|| LengthLawError::Grammar(text.to_owned()))
    }
}

fn parsed(text: &str) -> Option<LengthLaw> {
    let (law, parameters) = text.split_once(':').unwrap_or(("fixed", text));
    match law {
        "fixed" => duration(parameters).map(LengthLaw::Fixed),
        "lognormal" => {
            let (median, sigma) = parameters.split_once(',')?;
            let sigma: f64 =
                sigma.trim().parse().ok().filter(|sigma| (0.0..f64::INFINITY).contains(sigma))?;
            Some(LengthLaw::LogNormal { median: duration(median)?, sigma })
        }
        "exp" => duration(parameters).map(LengthLaw::Exponential),
        "list" => parameters
            .split(',')
            .map(|length| duration(length.trim()))
            .collect::<Option<_>>()
            .map(LengthLaw::Listed),
        _ => None,
    }
}

impl fmt::Display for LengthLaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(length) => write!(f, "fixed:{}", in_units(*length)),
            Self::LogNormal { median, sigma } => write!(f, "lognormal:{},{sigma:?}", in_units(*median)),
            Self::Exponential(mean) => write!(f, "exp:{}", in_units(*mean)),
            Self::Listed(lengths) => {
                let lengths: Vec<_> = lengths.iter().map(|length| in_units(*length)).collect();
                write!(f, "list:{}", lengths.join(","))
            }
        }
    }
}

as_text!(LengthLaw);

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    use super::*;

    const SAMPLES: usize = 100_000;

    /// Returns seeded samples in seconds, sorted by length.
    fn samples(law: &str) -> Vec<f64> {
        let law: LengthLaw = law.parse().unwrap();
        let mut random = SmallRng::seed_from_u64(7);
        let mut samples: Vec<_> = (0..SAMPLES).map(|_| law.sample(&mut random).as_secs_f64()).collect();
        samples.sort_by(f64::total_cmp);
        samples
    }

    fn mean(samples: &[f64]) -> f64 {
        samples.iter().sum::<f64>() / samples.len() as f64
    }

    #[track_caller]
    fn assert_near(value: f64, expected: f64) {
        assert!((value / expected - 1.0).abs() < 0.02, "{value} is not near {expected}");
    }

    #[test]
    fn laws_round_trip_through_text() {
        for text in ["fixed:30s", "lognormal:10s,1.0", "lognormal:2.5s,0.25", "exp:20s", "list:1s,2.5s,10ms"]
        {
            let law: LengthLaw = text.parse().unwrap();
            assert_eq!(law.to_string(), text);
            assert_eq!(serde_json::to_string(&law).unwrap(), format!("{text:?}"));
            assert_eq!(serde_json::from_value::<LengthLaw>(text.into()).unwrap(), law);
        }
        assert_eq!("3.2s".parse::<LengthLaw>().unwrap(), LengthLaw::Fixed(Duration::from_millis(3200)));
    }

    #[test]
    fn invalid_laws_are_rejected() {
        let wrong =
            ["", "soon", "fixed:", "fixed:5", "lognormal:10s", "lognormal:10s,-1", "lognormal:10s,NaN"];
        for text in
            wrong.into_iter().chain(["exp:-1s", "list:", "list:1s,", "file:/etc/passwd", "uniform:1s"])
        {
            let error = text.parse::<LengthLaw>().unwrap_err().to_string();
            assert!(error.contains("is not a length law"), "{error}");
            assert!(serde_json::from_value::<LengthLaw>(text.into()).is_err(), "{text}");
        }
    }

    #[test]
    fn same_seed_yields_same_lengths() {
        for law in ["lognormal:10s,1.5", "exp:20s", "list:1s,2s,3s"] {
            assert_eq!(samples(law), samples(law));
        }
    }

    #[test]
    fn samples_match_law_parameters() {
        assert!(samples("fixed:3s").iter().all(|&length| length == 3.0));
        let lognormal = samples("lognormal:10s,1.0");
        assert_near(lognormal[SAMPLES / 2], 10.0);
        assert_near(mean(&lognormal), 10.0 * 0.5_f64.exp());
        let exponential = samples("exp:20s");
        assert_near(mean(&exponential), 20.0);
        assert_near(exponential[SAMPLES / 2], 20.0 * std::f64::consts::LN_2);
        let listed = samples("list:1s,2s,6s");
        assert_near(mean(&listed), 3.0);
        assert_eq!([listed[0], listed[SAMPLES / 2], listed[SAMPLES - 1]], [1.0, 2.0, 6.0]);
    }

    #[test]
    fn huge_samples_saturate() {
        let law: LengthLaw = "lognormal:1000000h,400".parse().unwrap();
        let mut random = SmallRng::seed_from_u64(1);
        assert!((0..100).any(|_| law.sample(&mut random) == Duration::MAX));
    }

    #[test]
    fn file_becomes_list() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lengths");
        let read = |content: &str| {
            std::fs::write(&path, content).unwrap();
            LengthLaw::read(&format!("file:{}", path.display())).map_err(|error| error.to_string())
        };
        assert_eq!(read("1s\n\n 2.5s \n").unwrap().to_string(), "list:1s,2.5s");
        assert!(
            read("1s\n5\n")
                .unwrap_err()
                .ends_with("lengths:2: \"5\" is not a duration with a unit, such as 2.5s")
        );
        assert!(read("\n").unwrap_err().contains("has no length"));
        assert!(
            LengthLaw::read("file:/no/such/file").unwrap_err().to_string().starts_with("cannot read /no/")
        );
        assert_eq!(LengthLaw::read("exp:20s").unwrap(), LengthLaw::Exponential(Duration::from_secs(20)));
    }
}
