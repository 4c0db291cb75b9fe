//! HAProxy's `httplog`.
//!
//! It names the server, but not its address. `docs/access-logs.md` says how to add the address: `%si:%sp` after the
//! queues, and thus before anything that a client chooses.

use std::time::Duration;

use rolldrop_record::Outcome;

use crate::LineError;
use crate::decimal::read_number;
use crate::line_parts::{LineParts, read_name};
use crate::line_time::LineTime;
use crate::response_outcome::{outcome_of_begun, outcome_of_complete, read_status, sent_status};
use crate::upstream_address::read_upstream;
use rolldrop_record::{LoggedAttempt, LoggedRequest, LoggedUpstream};

const TIMERS: &str = "TR/Tw/Tc/Tr/Ta";

/// Beginnings of HAProxy's messages about itself that contain no request time.
const MESSAGES: &[&str] = &["Server ", "Proxy ", "Backup Server ", "Health check ", "backend ", "proxy "];

/// Parses a line.
pub(crate) fn read(line: &str) -> Result<Option<LoggedRequest>, LineError> {
    let Some((start, rest)) = accepted(line) else {
        let message = line.rsplit_once("]: ").map_or(line, |(_, message)| message);
        let is_own = MESSAGES.iter().any(|beginning| message.starts_with(beginning));
        return if is_own { Ok(None) } else { Err(LineError::Field("request date")) };
    };
    let mut parts = LineParts(rest);
    // Such as "frontend/1: SSL handshake failure".
    if parts.word().ends_with(':') {
        return Ok(None);
    }
    let (backend, server) = parts.word().rsplit_once('/').ok_or(LineError::Field("backend/server"))?;
    let timers = HaproxyTimers::read(parts.word()).ok_or(LineError::Field(TIMERS))?;
    let status = match parts.word() {
        "-1" => None,
        text => sent_status(read_status(text, "status")?),
    };
    // The number of bytes, which includes the head, and two cookies.
    let [_, _, _] = [parts.word(), parts.word(), parts.word()];
    let ended = parts.word();
    let [side, phase] = match ended.as_bytes() {
        [side, phase, _, _] => [*side, *phase],
        _ => return Err(LineError::Field("termination state")),
    };
    let retries =
        parts.word().rsplit_once('/').and_then(|(_, n)| read_number::<u32>(n.trim_start_matches('+')));
    let retries = retries.ok_or(LineError::Field("retries"))?;
    parts.word().split_once('/').ok_or(LineError::Field("queues"))?;
    let is_chosen = server != "<NOSRV>";
    let responded = status.filter(|_| timers.has_responded);
    // After a retry, a part of the wait may have followed the first attempt.
    let waited = timers.waited.filter(|_| retries == 0);
    let begun = start.earliest + waited.unwrap_or_default();
    let took = timers.total.map(|total| total.saturating_sub(waited.unwrap_or_default()));
    let address = read_upstream(parts.word());
    let attempt = LoggedAttempt {
        // An address at the very end of the line may have been cut off.
        upstream: if parts.0.is_empty() { LoggedUpstream::Unnamed } else { address },
        outcome: outcome(side, phase, responded, timers.is_complete),
        status: responded,
        took: took.filter(|_| waited.is_some()),
    };
    Ok(Some(LoggedRequest {
        earliest: begun,
        latest: begun.shifted_ns(start.width_ns),
        took,
        status,
        attempts: is_chosen.then_some(attempt).into_iter().collect(),
        attempts_made: Some(retries.saturating_add(u32::from(is_chosen))),
        client_left: matches!(side, b'C' | b'c'),
        bytes: None,
        route: read_name(backend, "backend")?,
    }))
}

/// Finds the request's time, which follows a syslog header and the client's address. Returns it and the rest of the
/// line.
fn accepted(line: &str) -> Option<(LineTime, &str)> {
    // A syslog header may also contain brackets: "haproxy[7]:".
    line.match_indices('[').take(4).find_map(|(at, _)| {
        let (text, rest) = line[at + 1..].split_once("] ")?;
        Some((LineTime::read_haproxy(text)?, rest))
    })
}

/// The five timers of a request.
struct HaproxyTimers {
    total: Option<Duration>,
    /// Time until HAProxy had the request's head and, if the server had a queue, the request's turn came.
    waited: Option<Duration>,
    has_responded: bool,
    /// False with `option logasap`, which logs a request before its end.
    is_complete: bool,
}

impl HaproxyTimers {
    fn read(text: &str) -> Option<Self> {
        let mut timers = text.split('/');
        // A value of -1 means that the request did not get that far.
        let mut next = || {
            let text = timers.next()?;
            if text == "-1" { Some(None) } else { read_number::<u64>(text.trim_start_matches('+')).map(Some) }
        };
        let [request, queue, _connect, response, total] = [next()?, next()?, next()?, next()?, next()?];
        if timers.next().is_some() {
            return None;
        }
        let is_complete = !text.contains('+');
        let total = total.filter(|_| is_complete);
        let waited = request.zip(queue).and_then(|(request, queue)| request.checked_add(queue));
        let waited = waited.filter(|waited| total.is_none_or(|total| *waited <= total));
        Some(Self {
            total: total.map(Duration::from_millis),
            waited: waited.map(Duration::from_millis),
            has_responded: response.is_some(),
            is_complete,
        })
    }
}

/// Returns the outcome at the server, given the side that ended the session (`S`: the server; `s`: a server
/// timeout) and the phase in which it ended. Other values mean that HAProxy itself or the client ended the session.
fn outcome(side: u8, phase: u8, status: Option<u16>, is_complete: bool) -> Option<Outcome> {
    match (side, phase) {
        (b'S', b'C') => Some(Outcome::ConnectError),
        (b's', b'C') => Some(Outcome::ConnectTimeout),
        (b'S', b'H') => Some(Outcome::EofBeforeResponse),
        (b's', b'H') => Some(Outcome::ResponseTimeout),
        (b'S', b'D') => Some(Outcome::TruncatedBody),
        (b's', b'D') => Some(Outcome::BodyTimeout),
        (b'-', b'-') if is_complete => status.and_then(outcome_of_complete),
        (b'-', b'-') => status.and_then(outcome_of_begun),
        _ => None,
    }
}
