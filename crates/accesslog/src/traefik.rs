//! Traefik's access log, as JSON and in the common log format.

use std::time::Duration;

use crate::LineError;
use crate::decimal::read_number;
use crate::json_line::JsonLine;
use crate::line_parts::{LineParts, is_set, read_name};
use crate::line_time::LineTime;
use crate::response_outcome::{outcome_of_begun, outcome_of_complete, read_status, sent_status};
use crate::upstream_address::{read_upstream, read_upstream_url};
use rolldrop_record::{LoggedAttempt, LoggedRequest};

const STATUS: &str = "DownstreamStatus";
const STARTED: &str = "StartUTC";
const DURATION: &str = "Duration";

/// Parses a line of JSON.
pub(crate) fn read_json(line: &str) -> Result<Option<LoggedRequest>, LineError> {
    let Some(fields) = JsonLine::read(line, STATUS)? else { return Ok(None) };
    let started = match fields.text(STARTED)? {
        None => fields.text("StartLocal")?,
        started => started,
    };
    let start = started.and_then(LineTime::read_rfc3339).ok_or(LineError::Field(STARTED))?;
    let status = fields.number(STATUS)?.filter(|status| *status < 1000).ok_or(LineError::Field(STATUS))?;
    let retries: Option<u32> = fields.number("RetryAttempts")?;
    let upstream = match fields.text("ServiceAddr")? {
        Some(address) => Some(read_upstream(address)),
        None => fields.text("ServiceURL")?.map(read_upstream_url),
    };
    let route = match fields.text("ServiceName")? {
        Some(service) => read_name(service, "ServiceName")?,
        None => read_name(fields.text("RouterName")?.unwrap_or_default(), "RouterName")?,
    };
    // Traefik sets the origin fields once the response is complete. If they are missing although the response has
    // begun, the upstream or the client cut it off.
    let origin_status = fields.number("OriginStatus")?.filter(|status| *status > 0);
    let origin_size = fields.number("OriginContentSize")?;
    let origin_ns = fields.number("OriginDuration")?.filter(|ns| *ns > 0);
    let attempt = upstream.map(|upstream| LoggedAttempt {
        upstream,
        outcome: origin_status
            .filter(|origin| !may_be_own(*origin, origin_size))
            .and_then(outcome_of_complete),
        status: sent_status(origin_status.unwrap_or(status)),
        took: origin_ns.map(Duration::from_nanos),
    });
    Ok(Some(LoggedRequest {
        earliest: start.earliest,
        latest: start.earliest.shifted_ns(start.width_ns),
        took: fields.number(DURATION)?.map(Duration::from_nanos),
        status: sent_status(status),
        attempts: attempt.into_iter().collect(),
        // Traefik 3.7 logs 0 even if it has retried.
        attempts_made: retries.filter(|retries| *retries > 0).map(|retries| retries.saturating_add(1)),
        // With its retry middleware, Traefik sends no status to a client that has disconnected.
        client_left: status == 499 || (status == 0 && origin_status == Some(499)),
        bytes: fields.number("DownstreamContentSize")?,
        route,
    }))
}

/// Parses a line in the common log format. Clients choose the path and the user name, which precedes the time.
pub(crate) fn read_text(line: &str) -> Result<LoggedRequest, LineError> {
    let mut parts = LineParts(line);
    let took_ms = parts.last(" ", DURATION)?.strip_suffix("ms").and_then(read_number);
    let took_ms = took_ms.ok_or(LineError::Field(DURATION))?;
    let url = quoted(&mut parts, "server URL")?;
    let router = quoted(&mut parts, "router name")?;
    parts.until(" [", STARTED)?;
    let start = LineTime::read_common(parts.until("] \"", STARTED)?).ok_or(LineError::Field(STARTED))?;
    parts.until("\" ", "request")?;
    let status = read_status(parts.word(), STATUS)?;
    let size = parts.word();
    let bytes = if is_set(size) { Some(read_number(size).ok_or(LineError::Field("size"))?) } else { None };
    let attempt = is_set(url).then(|| LoggedAttempt {
        upstream: read_upstream_url(url),
        outcome: if may_be_own(status, bytes) { None } else { outcome_of_begun(status) },
        status: sent_status(status),
        took: None,
    });
    Ok(LoggedRequest {
        earliest: start.earliest,
        latest: start.earliest.shifted_ns(start.width_ns),
        took: Some(Duration::from_millis(took_ms)),
        status: sent_status(status),
        attempts: attempt.into_iter().collect(),
        attempts_made: None,
        client_left: status == 499,
        bytes,
        route: read_name(router, "router name")?,
    })
}

/// Takes a quoted value from the end of the line.
fn quoted<'a>(parts: &mut LineParts<'a>, field: &'static str) -> Result<&'a str, LineError> {
    parts.last("\"", field)?;
    parts.last("\"", field)
}

/// Returns true if a response may be Traefik's own, whose body is always the name of the status.
fn may_be_own(status: u16, size: Option<u64>) -> bool {
    let own = match status {
        502 => "Bad Gateway",
        504 => "Gateway Timeout",
        500 => "Internal Server Error",
        499 => "Client Closed Request",
        _ => return false,
    };
    size.is_none_or(|size| size == own.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The line was logged by Traefik 3.7.15; fields that are not needed are omitted.
    #[test]
    fn traefik_retry_log_shows_client_left() {
        let line = r#"{"DownstreamContentSize":0,"DownstreamStatus":0,"Duration":5001811248,"OriginContentSize":21,"OriginDuration":5001679753,"OriginStatus":499,"RetryAttempts":0,"ServiceAddr":"10.244.1.2:8080","ServiceName":"default-web-8080@kubernetes","StartUTC":"2026-11-29T07:01:38.081037931Z"}"#;
        let request = read_json(line).unwrap().unwrap();
        assert!(request.client_left);
        let statuses = (request.status, request.attempts[0].status, request.attempts[0].outcome);
        assert_eq!(statuses, (None, None, None));
    }
}
