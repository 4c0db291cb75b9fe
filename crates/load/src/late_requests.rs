//! Requests that are given up because it is too late to send them.
//!
//! A worker that falls behind its schedule, for example because it waits for a processor, still sends the requests that
//! are due. A request that is late by more than [`LATE_LIMIT`] is not sent, because it would no longer belong to the
//! load that the user asked for. Its row is `not_sent`, with the reason `late`.

use std::time::Duration;

use rolldrop_record::Stamp;

/// Maximum delay after the intended send time.
pub const LATE_LIMIT: Duration = Duration::from_secs(1);

/// Returns true if a request that was due at `due` must no longer be sent.
pub(super) fn is_too_late(due: Stamp, now: Stamp) -> bool {
    now > due + LATE_LIMIT
}
