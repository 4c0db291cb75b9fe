//! Caddy's access log, with two fields that a site can add (`docs/access-logs.md`): `upstream`, which is logged once
//! the response is complete, and `started`, in milliseconds.

use std::time::Duration;

use rolldrop_record::Stamp;

use crate::LineError;
use crate::json_line::JsonLine;
use crate::response_outcome::{outcome_of_complete, sent_status};
use crate::upstream_address::read_upstream;
use rolldrop_record::{LoggedAttempt, LoggedRequest, LoggedUpstream};

const ENDED: &str = "ts";
const DURATION: &str = "duration";

/// Maximum time between the clock reading for the duration and the one for the line's own time, both taken at the end.
const BETWEEN_READINGS_NS: i64 = 1_000_000;

/// Parses a line.
pub(crate) fn read(line: &str) -> Result<Option<LoggedRequest>, LineError> {
    let Some(fields) = JsonLine::read(line, "logger")? else { return Ok(None) };
    if !fields.text("logger")?.is_some_and(|logger| logger.starts_with("http.log.access")) {
        return Ok(None);
    }
    let ended = seconds(&fields, ENDED)?;
    let end = Stamp::default() + ended;
    // A response that the upstream or the client cut off has neither a duration nor an upstream.
    let took = Some(seconds(&fields, DURATION)?).filter(|took| !took.is_zero());
    let started = fields.number("started")?.map(|ms| Stamp::default() + Duration::from_millis(ms));
    let (earliest, latest) = match (started, took) {
        (Some(started), _) => (started, started.shifted_ns(1_000_000)),
        (None, Some(took)) => ((end - took).shifted_ns(-BETWEEN_READINGS_NS), end - took),
        (None, None) => (Stamp::default(), end),
    };
    let by_clock =
        || started.and_then(|started| u64::try_from(end.ns_since(started)).ok()).map(Duration::from_nanos);
    let status =
        fields.number("status")?.filter(|status| *status < 1000).ok_or(LineError::Field("status"))?;
    let upstream = match fields.text("upstream")? {
        Some(upstream) => Some(read_upstream(upstream)),
        // The site does not log upstreams, or the response was cut off.
        None if !fields.has("upstream") => Some(LoggedUpstream::Unnamed),
        None => None,
    };
    // Caddy adds this header to responses from upstreams, but not to its own.
    let is_from_upstream = fields.has_header("resp_headers", "Via", "Caddy");
    let attempt = upstream.map(|upstream| LoggedAttempt {
        upstream,
        outcome: if is_from_upstream && took.is_some() { outcome_of_complete(status) } else { None },
        status: sent_status(status),
        took: None,
    });
    Ok(Some(LoggedRequest {
        earliest,
        latest,
        took: took.or_else(by_clock),
        status: sent_status(status),
        attempts: attempt.into_iter().collect(),
        attempts_made: None,
        client_left: status == 499,
        bytes: fields.number("size")?,
        route: None,
    }))
}

fn seconds(fields: &JsonLine, name: &'static str) -> Result<Duration, LineError> {
    Duration::try_from_secs_f64(fields.fraction(name)?).map_err(|_| LineError::Field(name))
}
