//! The only definitions of request times: `rolldrop load`, the live view, latency logs and the analysis all use them.
//!
//! ```text
//! scheduled          begun                          end
//!     |--- send lag ---|--------- service ------------|
//!     |------------------ response -------------------|
//! ```
//!
//! Send lag and service time add up to the response time. The client waits for the whole response time; the send lag is
//! the part that the load generator itself added.

use super::{RequestRow, Stamp};

impl RequestRow {
    /// Returns the actual send time: the time connecting began or, on an existing connection, the time the request
    /// was written. Returns `None` if the request was not sent.
    pub fn actually_sent(&self) -> Option<Stamp> {
        self.connect_start.or(self.sent)
    }

    /// Returns the response time in nanoseconds: from the intended send time to the end.
    pub fn response_ns(&self) -> i64 {
        self.end.ns_since(self.scheduled)
    }

    /// Returns the service time in nanoseconds: from the actual send time to the end. It includes connecting and the
    /// TLS handshake, if the request needed them. Returns `None` if the request was not sent.
    pub fn service_ns(&self) -> Option<i64> {
        Some(self.end.ns_since(self.actually_sent()?))
    }

    /// Returns the send lag in nanoseconds: from the intended send time to the actual one. Returns `None` if the
    /// request was not sent.
    pub fn send_lag_ns(&self) -> Option<i64> {
        Some(self.actually_sent()?.ns_since(self.scheduled))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Phase;

    fn row(scheduled: i64, connect_start: Option<i64>, sent: Option<i64>, end: i64) -> RequestRow {
        let at = Stamp::from_unix_ns;
        RequestRow {
            connect_start: connect_start.map(at),
            sent: sent.map(at),
            ..RequestRow::not_sent("load-0".into(), 0, "web".into(), Phase::Main, at(scheduled), at(end))
        }
    }

    #[test]
    fn service_time_includes_connecting() {
        let fresh = row(100, Some(110), Some(180), 200);
        assert_eq!((fresh.send_lag_ns(), fresh.service_ns(), fresh.response_ns()), (Some(10), Some(90), 100));
        let kept = row(100, None, Some(120), 200);
        assert_eq!((kept.send_lag_ns(), kept.service_ns()), (Some(20), Some(80)));
        let not_sent = row(100, None, None, 200);
        assert_eq!((not_sent.send_lag_ns(), not_sent.service_ns()), (None, None));
    }

    proptest! {
        #[test]
        fn send_lag_plus_service_equals_response(
            scheduled in 0..1000_i64,
            connect_start in proptest::option::of(1000..2000_i64),
            sent in proptest::option::of(2000..3000_i64),
            end in 3000..4000_i64,
        ) {
            let row = row(scheduled, connect_start, sent, end);
            if let (Some(lag), Some(service)) = (row.send_lag_ns(), row.service_ns()) {
                prop_assert_eq!(lag + service, row.response_ns());
            }
        }
    }
}
