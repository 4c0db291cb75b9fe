//! The silence after a termination, which shows that the termination's window has closed.
//!
//! A consumer keeps sending requests to a pod that is gone, for a time that is not known in advance: a second or two
//! for a Service proxy, minutes for a cloud load balancer. Therefore, the silence restarts with each request that is
//! lost during it, up to a limit.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Longest time between two checks for losses.
const PERIOD: Duration = Duration::from_millis(200);

/// Wait after a termination, once the pods have been replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settle {
    /// Time for which no request may be lost; `None` to derive it from the request rate.
    pub silence: Option<Duration>,
    /// Time after which the wait ends even if requests are still being lost.
    pub most: Duration,
}

impl Default for Settle {
    fn default() -> Self {
        Self { silence: None, most: Duration::from_secs(300) }
    }
}

/// Result of a wait for silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// No request was lost for the required time.
    Kept,
    /// Requests were still being lost when the limit had passed.
    NeverCame,
}

/// Waits until no request has been lost for `length`, or until `most` has passed while requests are still being lost.
pub(crate) async fn until_silent(losses: impl Fn() -> u64, length: Duration, most: Duration) -> Silence {
    let begun = Instant::now();
    let (mut since, mut seen) = (begun, losses());
    loop {
        sleep_until((since + length).min(Instant::now() + PERIOD)).await;
        let (now, lost) = (Instant::now(), losses());
        if lost > seen {
            (since, seen) = (now, lost);
        }
        if now >= since + length {
            return Silence::Kept;
        }
        if now >= begun + most.max(length) {
            return Silence::NeverCame;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn loss_restarts_silence_up_to_limit() {
        let s = Duration::from_secs;
        for (until, expected, took_s) in [
            (0, Silence::Kept, 5.0),
            (3, Silence::Kept, 8.0),
            (40, Silence::Kept, 45.0),
            (90, Silence::NeverCame, 60.0),
        ] {
            let begun = Instant::now();
            // One request is lost each second.
            let losses = || begun.elapsed().min(s(until)).as_secs();
            assert_eq!(until_silent(losses, s(5), s(60)).await, expected);
            let took = begun.elapsed().as_secs_f64();
            assert!((took - took_s).abs() < 0.3, "{until}: {took} s, {took_s} s expected");
        }
        let begun = Instant::now();
        assert_eq!(until_silent(|| 0, s(90), s(60)).await, Silence::Kept);
        assert_eq!(begun.elapsed(), s(90));
    }
}
