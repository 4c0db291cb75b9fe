//! Envoy's access log, in the default formats of Envoy Gateway, Istio and Envoy itself.
//!
//! Response flags: <https://www.envoyproxy.io/docs/envoy/latest/configuration/observability/access_log/usage>.

use std::sync::Arc;
use std::time::Duration;

use rolldrop_record::Outcome;

use crate::LineError;
use crate::decimal::read_number;
use crate::json_line::JsonLine;
use crate::line_parts::{LineParts, is_set, read_name};
use crate::line_time::LineTime;
use crate::response_outcome::{outcome_of_complete, read_status, sent_status};
use crate::upstream_address::read_upstream;
use rolldrop_record::{LoggedAttempt, LoggedRequest};

const STARTED: &str = "start_time";
const CODE: &str = "response_code";
const FLAGS: &str = "response_flags";
const DURATION: &str = "duration";
const HOST: &str = "upstream_host";

/// Fields needed from a line in either format.
struct EnvoyLine<'a> {
    start: &'a str,
    duration_ms: Option<u64>,
    code: u16,
    flags: &'a str,
    /// `None` if the format has no such field.
    details: Option<&'a str>,
    connect_failure: Option<&'a str>,
    host: Option<&'a str>,
    attempts: Option<u32>,
    bytes: Option<u64>,
    route: Option<Arc<str>>,
}

/// Parses a line of JSON.
pub(crate) fn read_json(line: &str) -> Result<Option<LoggedRequest>, LineError> {
    let Some(fields) = JsonLine::read(line, STARTED)? else { return Ok(None) };
    let route = match fields.text("upstream_cluster")? {
        Some(cluster) => read_name(cluster, "upstream_cluster")?,
        None => read_name(fields.text("route_name")?.unwrap_or_default(), "route_name")?,
    };
    let line = EnvoyLine {
        start: fields.text(STARTED)?.ok_or(LineError::Field(STARTED))?,
        duration_ms: fields.number(DURATION)?,
        code: fields.number(CODE)?.ok_or(LineError::Field(CODE))?,
        flags: fields.text(FLAGS)?.unwrap_or_default(),
        details: fields.text("response_code_details")?,
        connect_failure: fields.text("upstream_transport_failure_reason")?,
        host: fields.text(HOST)?,
        attempts: fields.number("upstream_request_attempt_count")?,
        bytes: fields.number("bytes_sent")?,
        route,
    };
    line.request().map(Some)
}

/// Parses a line of text. Clients choose all quoted values except the upstream's address and Istio's reason for a
/// failed connection. Envoy does not escape quotes in them, so the address is found from the end of the line.
pub(crate) fn read_text(line: &str) -> Result<LoggedRequest, LineError> {
    let mut parts = LineParts(line);
    parts.until("[", STARTED)?;
    let start = parts.until("] \"", STARTED)?;
    parts.until("\" ", "request")?;
    let mut end = parts;
    let behind_host = end.last("\"", HOST)?;
    let host = end.last("\"", HOST)?;
    let code = read_status(parts.word(), CODE)?;
    let flags = parts.word();
    let (mut details, mut connect_failure) = (None, None);
    let mut received = parts.word();
    if read_number::<u64>(received).is_none() {
        details = Some(received);
        parts.until("\"", "upstream_transport_failure_reason")?;
        connect_failure = Some(parts.until("\" ", "upstream_transport_failure_reason")?);
        received = parts.word();
    }
    read_number::<u64>(received).ok_or(LineError::Field("bytes_received"))?;
    let bytes = read_number(parts.word()).ok_or(LineError::Field("bytes_sent"))?;
    let duration_ms = Some(read_number(parts.word()).ok_or(LineError::Field(DURATION))?);
    // If the line was cut off, the last quotes contain something other than the address.
    let is_whole =
        if details.is_some() { behind_host.split(' ').count() > 6 } else { end.0.matches('"').count() >= 8 };
    if !is_whole {
        return Err(LineError::Field(HOST));
    }
    let cluster = LineParts(behind_host.trim_start()).word();
    let line = EnvoyLine {
        start,
        duration_ms,
        code,
        flags,
        details,
        connect_failure,
        host: Some(host).filter(|host| is_set(host)),
        attempts: None,
        bytes: Some(bytes),
        route: read_name(cluster, "upstream_cluster")?,
    };
    line.request()
}

impl EnvoyLine<'_> {
    fn request(self) -> Result<LoggedRequest, LineError> {
        let start = LineTime::read_rfc3339(self.start).ok_or(LineError::Field(STARTED))?;
        if self.code >= 1000 {
            return Err(LineError::Field(CODE));
        }
        let attempt = self.host.map(|host| {
            let outcome = self.outcome();
            let has_responded = self.client_left()
                || outcome.is_some_and(|o| {
                    matches!(o, Outcome::Ok | Outcome::HttpError | Outcome::BodyTimeout) || o.is_cut_off()
                });
            LoggedAttempt {
                upstream: read_upstream(host),
                outcome,
                status: sent_status(self.code).filter(|_| has_responded),
                took: None,
            }
        });
        let shown = u32::from(attempt.is_some());
        Ok(LoggedRequest {
            earliest: start.earliest,
            latest: start.earliest.shifted_ns(start.width_ns),
            took: self.duration_ms.map(Duration::from_millis),
            status: sent_status(self.code),
            attempts: attempt.into_iter().collect(),
            // Envoy also counts an attempt for which it found no host.
            attempts_made: self.attempts.map(|made| made.saturating_sub(1 - shown).max(shown)),
            client_left: self.client_left(),
            bytes: self.bytes,
            route: self.route,
        })
    }

    fn has_flag(&self, flag: &str) -> bool {
        self.flags.split(',').any(|has| has == flag)
    }

    /// Returns true if the client closed the connection or reset the stream.
    fn client_left(&self) -> bool {
        self.has_flag("DC") || self.has_flag("DR")
    }

    /// Returns the outcome of the last attempt.
    fn outcome(&self) -> Option<Outcome> {
        let details = self.details.unwrap_or_default();
        // Without the details, only a status that Envoy never generates is certain to be the upstream's.
        let is_own_status = matches!(self.code, 0 | 502..=504);
        let has_begun = details.contains("after_response_started")
            || (!details.contains("before_response_started") && !is_own_status);
        let or_cut = |outcome, cut| Some(if has_begun { cut } else { outcome });
        if self.has_flag("UF") {
            return Some(self.outcome_of_connecting(details));
        }
        if self.has_flag("UC") {
            return or_cut(Outcome::EofBeforeResponse, Outcome::TruncatedBody);
        }
        if self.has_flag("UR") {
            let is_refused = details.contains("refused_stream");
            let reset = if is_refused { Outcome::H2RefusedStream } else { Outcome::ResetBeforeResponse };
            return or_cut(reset, Outcome::ResetMidResponse);
        }
        // Envoy reports a truncated body as a protocol error.
        if self.has_flag("UPE") {
            return or_cut(Outcome::ProtocolError, Outcome::TruncatedBody);
        }
        if self.has_flag("UT") {
            return or_cut(Outcome::ResponseTimeout, Outcome::BodyTimeout);
        }
        let is_complete = self.flags.split(',').all(|flag| matches!(flag, "" | "-" | "URX"))
            && self.details.is_none_or(|details| details == "via_upstream");
        if is_complete { outcome_of_complete(self.code) } else { None }
    }

    /// Returns the outcome of a failed connection attempt. The reasons are worded by Envoy or by the operating system.
    fn outcome_of_connecting(&self, details: &str) -> Outcome {
        let reason = self.connect_failure.unwrap_or_default();
        let has = |text: &str| reason.contains(text) || details.contains(text);
        match () {
            () if has("Connection_refused") || has("Connection refused") => Outcome::ConnectRefused,
            () if has("connection_timeout") || has("timed_out") || has("timed out") => {
                Outcome::ConnectTimeout
            }
            () if has("No_route_to_host") || has("No route to host") || has("unreachable") => {
                Outcome::ConnectUnreachable
            }
            () if has("TLS") => Outcome::TlsError,
            () => Outcome::ConnectError,
        }
    }
}
