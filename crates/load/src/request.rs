//! Requests as bytes. Everything except the number and the placeholders is built once, before the first request is
//! sent. [`http2_template`] does the same for HTTP/2.

pub(super) mod http2_template;

use std::io::Write;

use bytes::Bytes;

use super::placeholders::{self, TemplatePiece};
use super::planned_target::{PlannedTarget, RequestBody};
use super::random::Random;
use rolldrop_record::id::ID_HEADER;

/// User agent, unless the user supplies another.
pub(super) const USER_AGENT: &str = concat!("rolldrop/", env!("CARGO_PKG_VERSION"));
/// Header with the id of the request that a retry repeats. The retry has no id of its own, because it has no row.
pub(super) const RETRY_HEADER: &str = "rolldrop-retry-of";

/// Persistence that a request announces for its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Persistence {
    /// The connection closes after the response.
    Close,
    /// The connection may carry further requests.
    Keep,
}

/// Sender of the requests built from a template.
#[derive(Clone, Debug)]
pub(super) struct SenderIdentity {
    /// Prefix of its request ids: `<run>-<source>-`.
    pub(super) ids: String,
    /// The worker's number.
    pub(super) worker: u64,
    /// Number of workers.
    pub(super) workers: u64,
    /// Seed of the load.
    pub(super) seed: u64,
}

impl SenderIdentity {
    /// Returns the global number of this sender's request `seq`, and the random numbers for the request.
    pub(super) fn draw(&self, seq: u64) -> (u64, Random) {
        let number = seq * self.workers + self.worker;
        (number, Random::of(self.seed, number))
    }
}

/// Requests of one source to one target: constant bytes around the varying parts.
#[derive(Debug)]
pub(super) struct Http1Template {
    /// Request line and header fields, except those in the other fields.
    head: Vec<TemplatePiece>,
    body: RequestBody,
    sender: SenderIdentity,
}

impl Http1Template {
    /// Creates the template for a sender's requests to `target`.
    pub(super) fn new(target: &PlannedTarget, sender: &SenderIdentity, persistence: Persistence) -> Self {
        let mut fields = Vec::new();
        // A request whose method gives content a meaning must announce that it has none.
        if let RequestBody::Fixed(body) = &target.body
            && (!body.is_empty() || ["POST", "PUT", "PATCH"].contains(&target.method.as_str()))
        {
            fields.push(("content-length", body.len().to_string()));
        }
        if persistence == Persistence::Close {
            fields.push(("connection", "close".to_owned()));
        }
        Self::of(sender, head(target, &fields), target.body.clone())
    }

    /// Creates the template for WebSocket handshakes with `target`, without the key.
    fn handshake(target: &PlannedTarget, sender: &SenderIdentity) -> Self {
        let fields = [("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13")]
            .map(|(name, value)| (name, value.to_owned()));
        Self::of(sender, head(target, &fields), RequestBody::Fixed(Bytes::new()))
    }

    /// Creates the template for messages to a WebSocket target: a request's id, an empty line, and the body.
    fn message(target: &PlannedTarget, sender: &SenderIdentity) -> Self {
        Self::of(sender, Vec::new(), target.body.clone())
    }

    fn of(sender: &SenderIdentity, head: Vec<TemplatePiece>, body: RequestBody) -> Self {
        Self { head, body, sender: sender.clone() }
    }

    /// Writes request number `seq`, as sent on attempt number `attempt` (from 1), to `out`, replacing its content.
    pub(super) fn fill(&self, seq: u64, attempt: u32, out: &mut Vec<u8>) {
        out.clear();
        let (number, mut random) = self.sender.draw(seq);
        placeholders::fill(&self.head, number, &mut random, out);
        let id = if attempt == 1 { ID_HEADER } else { RETRY_HEADER };
        for part in [id, ": ", &self.sender.ids] {
            out.extend_from_slice(part.as_bytes());
        }
        // Writing to a vector cannot fail.
        let _ = write!(out, "{seq}\r\n");
        match &self.body {
            RequestBody::Fixed(body) => {
                out.extend_from_slice(b"\r\n");
                out.extend_from_slice(body);
            }
            RequestBody::Made(pieces) => {
                let mut body = Vec::new();
                placeholders::fill(pieces, number, &mut random, &mut body);
                let _ = write!(out, "content-length: {}\r\n\r\n", body.len());
                out.extend_from_slice(&body);
            }
        }
    }
}

/// Handshakes and messages for a WebSocket target.
#[derive(Debug)]
pub(super) struct WebSocket {
    pub(super) handshake: Http1Template,
    pub(super) message: Http1Template,
}

impl WebSocket {
    /// Creates the templates for a sender's messages to `target`.
    pub(super) fn new(target: &PlannedTarget, sender: &SenderIdentity) -> Self {
        Self {
            handshake: Http1Template::handshake(target, sender),
            message: Http1Template::message(target, sender),
        }
    }
}

/// Returns the request line and header fields of a request to `target`, followed by `fields`.
fn head(target: &PlannedTarget, fields: &[(&str, String)]) -> Vec<TemplatePiece> {
    let mut head = vec![TemplatePiece::Bytes(format!("{} ", target.method).into_bytes())];
    head.extend(target.path.iter().cloned());
    head.push(TemplatePiece::Bytes(b" HTTP/1.1\r\n".to_vec()));
    let mut header = |name: &str, value: &[TemplatePiece]| {
        head.push(TemplatePiece::Bytes(format!("{name}: ").into_bytes()));
        head.extend(value.iter().cloned());
        head.push(TemplatePiece::Bytes(b"\r\n".to_vec()));
    };
    let text = |text: &str| [TemplatePiece::Bytes(text.as_bytes().to_vec())];
    let given = |name: &str| target.headers.iter().any(|(given, _)| given.as_str() == name);
    if !given("host") {
        header("host", &text(&target.authority));
    }
    if !given("user-agent") {
        header("user-agent", &text(USER_AGENT));
    }
    for (name, value) in &target.headers {
        header(name.as_str(), value);
    }
    for (name, value) in fields {
        header(name, &text(value));
    }
    joined(head)
}

/// Merges text into as few pieces as possible.
fn joined(pieces: Vec<TemplatePiece>) -> Vec<TemplatePiece> {
    let mut joined: Vec<TemplatePiece> = Vec::new();
    for piece in pieces {
        match (joined.last_mut(), piece) {
            (Some(TemplatePiece::Bytes(last)), TemplatePiece::Bytes(more)) => last.extend(more),
            (_, piece) => joined.push(piece),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load_plan::Plan;
    use rolldrop_record::load::Load;

    fn request(persistence: Persistence, change: impl FnOnce(&mut Load)) -> String {
        let mut settings = Load::new("http://web:8080/x?y=z");
        change(&mut settings);
        let plan = Plan::new(settings).unwrap();
        let mut out = b"an earlier request".to_vec();
        let sender = SenderIdentity { ids: "k3v9x2ab-load-3-".into(), worker: 3, workers: 4, seed: 1 };
        Http1Template::new(&plan.targets[0], &sender, persistence).fill(41, 1, &mut out);
        String::from_utf8(out).unwrap().replace(env!("CARGO_PKG_VERSION"), "VERSION")
    }

    #[test]
    fn http1_request_carries_rolldrop_id() {
        assert_eq!(
            request(Persistence::Close, |_| {}),
            "GET /x?y=z HTTP/1.1\r\nhost: web:8080\r\nuser-agent: rolldrop/VERSION\r\n\
             connection: close\r\nrolldrop-id: k3v9x2ab-load-3-41\r\n\r\n"
        );
    }

    #[test]
    fn user_headers_replace_defaults() {
        let changed = request(Persistence::Keep, |s| {
            s.method = "POST".into();
            s.body = b"{}".to_vec();
            s.headers = vec![("Host".into(), "other".into()), ("A".into(), "b".into())];
        });
        assert_eq!(
            changed,
            "POST /x?y=z HTTP/1.1\r\nuser-agent: rolldrop/VERSION\r\nhost: other\r\na: b\r\n\
             content-length: 2\r\nrolldrop-id: k3v9x2ab-load-3-41\r\n\r\n{}"
        );
    }

    #[test]
    fn target_settings_override_global_ones() {
        let changed = request(Persistence::Keep, |s| {
            s.headers = vec![("A".into(), "all".into()), ("B".into(), "all".into())];
            s.body = b"all".to_vec();
            s.targets[0].method = Some("PUT".into());
            s.targets[0].headers = vec![("a".into(), "own".into())];
            s.targets[0].body = Some(b"own".to_vec());
        });
        assert_eq!(
            changed,
            "PUT /x?y=z HTTP/1.1\r\nhost: web:8080\r\nuser-agent: rolldrop/VERSION\r\nb: all\r\na: own\r\n\
             content-length: 3\r\nrolldrop-id: k3v9x2ab-load-3-41\r\n\r\nown"
        );
    }

    #[test]
    fn template_fills_path_headers_and_body() {
        let made = request(Persistence::Keep, |s| {
            s.template = true;
            s.targets[0].url = "http://web/{{seq}}?q={{int:5-5}}".into();
            s.headers = vec![("A".into(), "n{{seq}}".into())];
            s.body = b"<{{seq}}>".to_vec();
        });
        assert_eq!(
            made,
            "GET /167?q=5 HTTP/1.1\r\nhost: web\r\nuser-agent: rolldrop/VERSION\r\na: n167\r\n\
             rolldrop-id: k3v9x2ab-load-3-41\r\ncontent-length: 5\r\n\r\n<167>"
        );
    }
}
