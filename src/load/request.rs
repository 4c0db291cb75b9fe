//! A request as bytes: all but its number is made once, before the first is sent.

use std::io::Write;

use super::plan::{Plan, PlannedTarget};
use crate::record::row::ID_HEADER;

/// Sent unless the user gives another.
const USER_AGENT: &str = concat!("rolldrop/", env!("CARGO_PKG_VERSION"));

/// What the request says about its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Persistence {
    /// It is to be closed after the answer.
    Close,
    /// It may carry further requests.
    Keep,
}

/// The requests of one source to one target: bytes around a number.
#[derive(Debug)]
pub(super) struct Template {
    before_seq: Vec<u8>,
    after_seq: Vec<u8>,
}

impl Template {
    /// The template of `source`'s requests to `target`.
    pub(super) fn new(plan: &Plan, target: &PlannedTarget, source: &str, persistence: Persistence) -> Self {
        let mut head = format!("{} {} HTTP/1.1\r\n", plan.method, target.path).into_bytes();
        let mut header = |name: &str, value: &[u8]| {
            head.extend_from_slice(name.as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(value);
            head.extend_from_slice(b"\r\n");
        };
        let given = |name: &str| plan.headers.iter().any(|(given, _)| given.as_str() == name);
        if !given("host") {
            header("host", target.authority.as_bytes());
        }
        if !given("user-agent") {
            header("user-agent", USER_AGENT.as_bytes());
        }
        for (name, value) in &plan.headers {
            header(name.as_str(), value.as_bytes());
        }
        let body = &plan.settings.body;
        // Methods with a meaning for content announce that there is none.
        if !body.is_empty() || ["POST", "PUT", "PATCH"].contains(&plan.method.as_str()) {
            header("content-length", body.len().to_string().as_bytes());
        }
        if persistence == Persistence::Close {
            header("connection", b"close");
        }
        let mut before_seq = head;
        before_seq.extend_from_slice(format!("{ID_HEADER}: {source}-").as_bytes());
        let mut after_seq = b"\r\n\r\n".to_vec();
        after_seq.extend_from_slice(body);
        Self { before_seq, after_seq }
    }

    /// Writes the request numbered `seq` to `out`, replacing what is there.
    pub(super) fn fill(&self, seq: u64, out: &mut Vec<u8>) {
        out.clear();
        out.reserve(self.before_seq.len() + 20 + self.after_seq.len());
        out.extend_from_slice(&self.before_seq);
        // Writing to a vector cannot fail.
        let _ = write!(out, "{seq}");
        out.extend_from_slice(&self.after_seq);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::plan::Settings;

    fn request(persistence: Persistence, change: impl FnOnce(&mut Settings)) -> String {
        let mut settings = Settings::new("http://web:8080/x?y=z");
        change(&mut settings);
        let plan = Plan::new(settings).unwrap();
        let mut out = b"an earlier request".to_vec();
        Template::new(&plan, &plan.targets[0], "load-3", persistence).fill(41, &mut out);
        String::from_utf8(out).unwrap().replace(env!("CARGO_PKG_VERSION"), "VERSION")
    }

    #[test]
    fn a_request_names_its_source_and_number() {
        assert_eq!(
            request(Persistence::Close, |_| {}),
            "GET /x?y=z HTTP/1.1\r\nhost: web:8080\r\nuser-agent: rolldrop/VERSION\r\n\
             connection: close\r\nrolldrop-id: load-3-41\r\n\r\n"
        );
    }

    #[test]
    fn headers_can_be_replaced_and_a_body_is_announced() {
        let changed = request(Persistence::Keep, |s| {
            s.method = "POST".into();
            s.body = b"{}".to_vec();
            s.headers = vec![("Host".into(), "other".into()), ("A".into(), "b".into())];
        });
        assert_eq!(
            changed,
            "POST /x?y=z HTTP/1.1\r\nuser-agent: rolldrop/VERSION\r\nhost: other\r\na: b\r\n\
             content-length: 2\r\nrolldrop-id: load-3-41\r\n\r\n{}"
        );
    }
}
