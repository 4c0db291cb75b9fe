//! What `--rate` takes.

use std::fmt;
use std::str::FromStr;

/// Requests per second, or a closed loop.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rate {
    PerSecond(f64),
    Max,
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "max" => Ok(Rate::Max),
            number => number
                .parse()
                .map(Rate::PerSecond)
                .map_err(|_| "needs a number of requests per second, or max".to_owned()),
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
