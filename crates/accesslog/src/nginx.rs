//! The access log of nginx and ingress-nginx.
//!
//! nginx logs a status for each attempt, and fills in 502 or 504 where the upstream sent none. Only the connect and
//! header times distinguish these from statuses that the upstream sent. Only the length distinguishes a complete body
//! from a truncated one, and only if the upstream announced it.
//!
//! nginx may redirect a request to another group of servers after a response: with `error_page` after an error, and with
//! `X-Accel-Redirect` after a good one. Only the status distinguishes them.

use std::time::Duration;

use rolldrop_record::{Outcome, Stamp};

use crate::LineError;
use crate::decimal::{read_number, read_seconds, read_seconds_ns};
use crate::line_parts::{is_set, read_name};
use crate::line_time::LineTime;
use crate::nginx_template::{NginxTemplate, NginxValues};
use crate::response_outcome::{outcome_of_begun, outcome_of_complete, read_status, sent_status};
use crate::upstream_address::read_upstream;
use rolldrop_record::{LoggedAttempt, LoggedRequest, LoggedUpstream, SERVER_ERROR};

/// Maximum number of attempts. nginx tries each server of an upstream once.
const MOST_ATTEMPTS: usize = 256;

/// Parses a line.
pub(crate) fn read(template: &NginxTemplate, line: &str) -> Result<LoggedRequest, LineError> {
    let values = template.values(line)?;
    let end = end(&values)?;
    let took = value(&values, "request_time", read_seconds)?.ok_or(LineError::Field("request_time"))?;
    let status = read_status(values.text("status").unwrap_or_default(), "status")?;
    let sent = sent_status(status);
    let attempts = attempts(&values, sent)?;
    let waited = waited(&values, took).filter(|_| is_error(sent)).unwrap_or_default();
    let took = took - waited;
    let earliest = end.earliest - took;
    Ok(LoggedRequest {
        earliest,
        latest: earliest.shifted_ns(end.width_ns),
        took: Some(took),
        status: sent,
        attempts_made: u32::try_from(attempts.len()).ok(),
        attempts,
        client_left: status == 499,
        bytes: value(&values, "body_bytes_sent", read_number)?,
        route: read_name(values.text("proxy_upstream_name").unwrap_or_default(), "proxy_upstream_name")?,
    })
}

/// Parses a value, if there is one.
fn value<T>(
    values: &NginxValues<'_>,
    name: &'static str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, LineError> {
    values.text(name).map(|text| read(text).ok_or(LineError::Field(name))).transpose()
}

/// Returns the time at which the request ended, from the variable with the best resolution.
fn end(values: &NginxValues<'_>) -> Result<LineTime, LineError> {
    let at_ms = |ns| LineTime { earliest: Stamp::from_unix_ns(ns), width_ns: 1_000_000 };
    let precise = value(values, "msec", |text| read_seconds_ns(text).map(at_ms))?;
    let iso = || value(values, "time_iso8601", LineTime::read_rfc3339).transpose();
    let local = || value(values, "time_local", LineTime::read_common).transpose();
    precise.map(Ok).or_else(iso).or_else(local).ok_or(LineError::Field("time"))?
}

/// Returns true if the client got no response, or only an error.
fn is_error(sent: Option<u16>) -> bool {
    sent.is_none_or(|status| status >= SERVER_ERROR)
}

/// Returns the time in which nginx tried no upstream. Before an error, which takes no time to send, nginx read the
/// request's body then. Before other responses, it may also have been sending the response to a slow client.
fn waited(values: &NginxValues<'_>, took: Duration) -> Option<Duration> {
    let tried = items(values.text("upstream_response_time")?).map(read_seconds).sum::<Option<Duration>>()?;
    took.checked_sub(tried)
}

/// Returns the attempts at upstreams. If nginx sent an error to the client, the upstreams that only provided the error's
/// page are left out.
fn attempts(values: &NginxValues<'_>, sent: Option<u16>) -> Result<Vec<LoggedAttempt>, LineError> {
    let text = values.text("upstream_addr");
    let addresses: Vec<&str> = text.into_iter().flat_map(items).take(MOST_ATTEMPTS + 1).collect();
    let ends = text.map(group_ends).unwrap_or_default();
    if addresses.len() > MOST_ATTEMPTS {
        return Err(LineError::Field("upstream_addr"));
    }
    let column = |name| NginxColumn::read(values, name, addresses.len());
    let statuses = column("upstream_status")?;
    let times = column("upstream_response_time")?;
    let connected = column("upstream_connect_time")?;
    let responded = column("upstream_header_time")?;
    let received = column("upstream_bytes_received")?;
    let lengths = column("upstream_response_length")?;
    let announced = values.text("upstream_http_content_length");
    let mut attempts = Vec::with_capacity(addresses.len());
    for (at, address) in addresses.iter().enumerate() {
        let is_last = at + 1 == addresses.len();
        let is_redirected = !is_last && ends.contains(&(at + 1));
        let status = statuses.value(at, |text| read_number(text).filter(|status| *status < 1000))?;
        let is_good = status.is_some_and(|status| status < SERVER_ERROR);
        let facts = NginxAttempt {
            status,
            is_redirect: is_redirected && is_good,
            has_connected: connected.has(at),
            has_responded: responded.has(at),
            received: received.value(at, read_number)?,
            is_complete: is_last && announced.is_some() && announced == lengths.text(at),
        };
        let upstream = read_upstream(address);
        // Otherwise this is the name of a group of servers, none of which could be tried.
        if matches!(upstream, LoggedUpstream::Address(_)) || address.starts_with("unix:") {
            attempts.push(facts.attempt(upstream, times.value(at, read_seconds)?));
        }
        if is_redirected && !is_good && is_error(sent) {
            break;
        }
    }
    Ok(attempts)
}

/// List in a line, with one value per attempt.
struct NginxColumn<'a> {
    name: &'static str,
    /// `None` if the format does not include the list.
    items: Option<Vec<&'a str>>,
}

impl<'a> NginxColumn<'a> {
    fn read(values: &NginxValues<'a>, name: &'static str, attempts: usize) -> Result<Self, LineError> {
        let items = values.logged(name).map(|text| items(text).take(attempts + 1).collect::<Vec<_>>());
        if attempts > 0 && items.as_ref().is_some_and(|items| items.len() != attempts) {
            return Err(LineError::Field(name));
        }
        Ok(Self { name, items })
    }

    fn text(&self, at: usize) -> Option<&'a str> {
        self.items.as_ref().and_then(|items| items.get(at).copied()).filter(|text| is_set(text))
    }

    fn value<T>(&self, at: usize, read: impl Fn(&str) -> Option<T>) -> Result<Option<T>, LineError> {
        self.text(at).map(|text| read(text).ok_or(LineError::Field(self.name))).transpose()
    }

    /// Returns true if there is a value for the attempt; `None` if the format does not include the list.
    fn has(&self, at: usize) -> Option<bool> {
        self.items.is_some().then(|| self.text(at).is_some())
    }
}

/// Values for one attempt; `None` for those that the line's format does not include.
struct NginxAttempt {
    status: Option<u16>,
    /// True if the response redirected the request to another group of servers.
    is_redirect: bool,
    has_connected: Option<bool>,
    has_responded: Option<bool>,
    received: Option<u64>,
    is_complete: bool,
}

impl NginxAttempt {
    fn attempt(&self, upstream: LoggedUpstream, took: Option<Duration>) -> LoggedAttempt {
        let is_made_up = matches!(self.status, Some(502 | 504)) && self.has_responded == Some(false);
        let outcome = match self.status {
            Some(_) if self.is_redirect => Some(Outcome::Ok),
            Some(status) if is_made_up => self.outcome_without_response(status),
            Some(502 | 504) if self.has_responded.is_none() => None,
            Some(status) if self.is_complete => outcome_of_complete(status),
            Some(status) => outcome_of_begun(status),
            None => None,
        };
        let status = self.status.filter(|_| !is_made_up).and_then(sent_status);
        LoggedAttempt { upstream, outcome, status, took }
    }

    fn outcome_without_response(&self, made_up: u16) -> Option<Outcome> {
        match (made_up, self.has_connected?) {
            (504, false) => Some(Outcome::ConnectTimeout),
            (_, false) => Some(Outcome::ConnectError),
            (504, true) => Some(Outcome::ResponseTimeout),
            // nginx logs the same status for a response head that it cannot parse.
            (_, true) => (self.received == Some(0)).then_some(Outcome::EofBeforeResponse),
        }
    }
}

/// Splits a list. nginx separates attempts at one group of servers with commas, and groups with colons.
fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(" : ").flat_map(|group| group.split(", "))
}

/// Returns the number of items up to the end of each group.
fn group_ends(text: &str) -> Vec<usize> {
    let sizes = text.split(" : ").map(|group| group.split(", ").count());
    sizes
        .scan(0, |end, size| {
            *end += size;
            Some(*end)
        })
        .collect()
}
