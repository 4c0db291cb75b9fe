//! The API server's clock, from which deletionTimestamps are taken.
//!
//! Responses from the API server have a Date header, in whole seconds. One response determines the server's time to
//! within about a second. Repeating the request until the second changes narrows the bounds to the time between two
//! requests.

use std::time::Duration;

use http::{Request, header};
use kube::Client;
use kube::client::Body;
use tokio::time::{Instant, sleep, timeout};

use crate::api::TimeLimits;
use rolldrop_record::event::API_SERVER;
use rolldrop_record::{Clock, ClockOffset, EventKind, Stamp};

/// Time between two requests.
const PERIOD: Duration = Duration::from_millis(40);
/// Number of requests. Together they take more than a second, so the second changes during them.
const QUESTIONS: usize = 32;
/// Time after which no more requests are made, if there has been a response.
const LONGEST: Duration = Duration::from_secs(5);
/// Time between two requests after the first [`QUESTIONS`].
const LATER: Duration = Duration::from_secs(1);
const SECOND_NS: i64 = 1_000_000_000;

/// Compares the clocks, and returns the event that records the result.
///
/// Keeps asking an API server that does not respond until it does, and one that responds slowly for at most
/// [`LONGEST`].
pub(super) async fn sample(client: &Client, clock: Clock, limits: TimeLimits) -> EventKind {
    let begun = Instant::now();
    let mut known: Option<ClockBounds> = None;
    let mut asked = 0;
    loop {
        if let Some(bounds) = known.filter(|_| asked >= QUESTIONS || begun.elapsed() >= LONGEST) {
            return EventKind::clock_sample(API_SERVER, bounds.offset());
        }
        let sent = clock.now();
        let date = timeout(limits.api_call, date(client)).await;
        let answered = clock.now();
        if let Ok(Some(date)) = date {
            let bounds = ClockBounds::of_answer(sent, date, answered);
            known = Some(known.map_or(bounds, |known| known.narrowed(bounds)));
        }
        asked += 1;
        sleep(if asked < QUESTIONS { PERIOD } else { LATER }).await;
    }
}

/// Bounds on the difference between the server's clock and ours, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClockBounds {
    least_ns: i64,
    most_ns: i64,
}

impl ClockBounds {
    /// Returns the bounds from one response. The second in its date began before the response arrived, and had not
    /// ended when the request was sent.
    fn of_answer(sent: Stamp, date: Stamp, answered: Stamp) -> Self {
        Self { least_ns: date.ns_since(answered), most_ns: date.ns_since(sent) + SECOND_NS }
    }

    /// Returns the intersection of both bounds. If there is none, a clock was adjusted, and the later bounds are
    /// returned.
    fn narrowed(self, other: ClockBounds) -> ClockBounds {
        let both = ClockBounds {
            least_ns: self.least_ns.max(other.least_ns),
            most_ns: self.most_ns.min(other.most_ns),
        };
        if both.least_ns <= both.most_ns { both } else { other }
    }

    fn offset(self) -> ClockOffset {
        let half = (self.most_ns - self.least_ns) / 2;
        ClockOffset { offset_ns: self.least_ns + half, uncertainty_ns: half + 1 }
    }
}

async fn date(client: &Client) -> Option<Stamp> {
    let request = Request::get("/version").body(Body::empty()).ok()?;
    let answer = client.send(request).await.ok()?;
    let date = answer.headers().get(header::DATE)?.to_str().ok()?;
    let date = jiff::fmt::rfc2822::parse(date).ok()?;
    Some(Stamp::from_unix_ns(i64::try_from(date.timestamp().as_nanosecond()).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_boundary_narrows_clock_offset() {
        let at = |ms: i64| Stamp::from_unix_ns(ms * 1_000_000);
        // The server is 300 ms ahead: its second 10 begins at 9.7 s on our clock.
        let before = ClockBounds::of_answer(at(9_650), at(9_000), at(9_660));
        let after = ClockBounds::of_answer(at(9_700), at(10_000), at(9_710));
        let offset = before.narrowed(after).offset();
        assert!((offset.offset_ns - 300_000_000).abs() <= offset.uncertainty_ns, "{offset:?}");
        assert!(offset.uncertainty_ns <= 31_000_000, "{offset:?}");
        let set = ClockBounds::of_answer(at(9_700), at(90_000), at(9_710));
        assert_eq!(before.narrowed(set), set);
    }

    #[test]
    fn date_header_is_parsed() {
        let date = jiff::fmt::rfc2822::parse("Sat, 13 Jul 2024 15:09:59 GMT").unwrap();
        assert_eq!(date.timestamp().as_second(), 1_720_883_399);
    }
}
