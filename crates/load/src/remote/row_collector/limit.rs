//! Limits the network traffic for fetching parts, over all workers.

use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Burst allowance. After a pause, the bytes for this duration may arrive all at once.
const BURST: Duration = Duration::from_millis(100);
/// Unit suffixes of a limit, with their factors.
const UNITS: [(&str, f64); 4] = [("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0)];

/// Limit in bytes per second, or no limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FetchRateLimit(Option<f64>);

/// Error for text that is not a valid limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a rate in bytes per second: use one such as 5MB or 500kB, or 0 or max for no limit")]
pub struct NotAFetchRateLimit(String);

impl Default for FetchRateLimit {
    fn default() -> Self {
        Self(Some(5e6))
    }
}

impl FromStr for FetchRateLimit {
    type Err = NotAFetchRateLimit;

    fn from_str(text: &str) -> Result<Self, NotAFetchRateLimit> {
        if text == "max" {
            return Ok(Self(None));
        }
        let amount = text.strip_suffix("/s").unwrap_or(text);
        let amount = amount.strip_suffix('B').unwrap_or(amount);
        // The last unit, an empty suffix, always matches.
        let unit = UNITS.iter().find_map(|(unit, factor)| Some((amount.strip_suffix(unit)?, factor)));
        let per_s = unit.and_then(|(number, factor)| Some(number.parse::<f64>().ok()? * factor));
        match per_s {
            Some(0.0) => Ok(Self(None)),
            Some(per_s) if per_s.is_finite() && per_s >= 1.0 => Ok(Self(Some(per_s))),
            _ => Err(NotAFetchRateLimit(text.to_owned())),
        }
    }
}

impl fmt::Display for FetchRateLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(per_s) = self.0 else { return f.write_str("max") };
        let fits = |(_, factor): &&(&str, f64)| per_s >= *factor;
        let (unit, factor) = UNITS.iter().find(fits).copied().unwrap_or(("", 1.0));
        write!(f, "{}{unit}B", per_s / factor)
    }
}

/// Enforces a limit over everything that shares this bucket.
#[derive(Debug)]
pub(super) struct Bucket {
    limit: FetchRateLimit,
    /// Time at which the bytes taken so far comply with the limit.
    paid_at: Mutex<Instant>,
}

impl Bucket {
    pub(super) fn new(limit: FetchRateLimit) -> Self {
        Self { limit, paid_at: Mutex::new(Instant::now()) }
    }

    /// Accounts for bytes that have arrived, and waits until more may arrive.
    pub(super) async fn take(&self, bytes: usize) {
        let FetchRateLimit(Some(per_s)) = self.limit else { return };
        let until = {
            let mut paid_at = self.paid_at.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            let from = (*paid_at).max(now.checked_sub(BURST).unwrap_or(now));
            *paid_at = from + Duration::from_secs_f64(bytes as f64 / per_s);
            *paid_at
        };
        sleep_until(until).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn limit_parses_decimal_units() {
        let read = |text: &str| text.parse::<FetchRateLimit>().map(|limit| limit.to_string());
        for (text, shown) in [
            ("5MB", "5MB"),
            ("5MB/s", "5MB"),
            ("2.5M", "2.5MB"),
            ("500k", "500kB"),
            ("1GB", "1GB"),
            ("64000", "64kB"),
            ("800B", "800B"),
            ("0", "max"),
            ("0MB", "max"),
            ("max", "max"),
        ] {
            assert_eq!(read(text), Ok(shown.to_owned()), "{text}");
        }
        for text in ["", "MB", "fast", "-5MB", "nan", "inf", "1e400", "0.1", "5MiB", "5 MB"] {
            assert_eq!(read(text), Err(NotAFetchRateLimit(text.to_owned())), "{text}");
        }
        assert_eq!(FetchRateLimit::default().to_string(), "5MB");
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_takers_share_one_limit() {
        let bucket = Arc::new(Bucket::new("1MB".parse().unwrap()));
        let began = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..10 {
            let bucket = Arc::clone(&bucket);
            tasks.spawn(async move {
                for _ in 0..20 {
                    bucket.take(50_000).await;
                }
            });
        }
        while tasks.join_next().await.is_some() {}
        // 10 MB, minus the burst that the preceding pause allowed.
        let took = began.elapsed();
        assert!((Duration::from_millis(9_850)..Duration::from_millis(10_050)).contains(&took), "{took:?}");
        let began = Instant::now();
        let free = Bucket::new("max".parse().unwrap());
        free.take(usize::MAX).await;
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
