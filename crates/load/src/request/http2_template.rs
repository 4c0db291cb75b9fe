//! HTTP/2 requests. Everything except the number and the placeholders is built once, before the first request is sent.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Uri, Version, header};

use super::{RETRY_HEADER, SenderIdentity, USER_AGENT};
use crate::grpc;
use crate::placeholders::{self, TemplatePiece};
use crate::planned_target::{PlannedTarget, RequestBody};
use rolldrop_record::id::ID_HEADER;

/// Checks that requests to a target can be sent over HTTP/2.
///
/// # Errors
/// Returns an error with the reason if they cannot.
pub(crate) fn check(target: &PlannedTarget) -> Result<(), String> {
    let sender = SenderIdentity { ids: "run-load-0-".into(), worker: 0, workers: 1, seed: 0 };
    Http2Template::new(target, &sender).check()
}

/// Template for the requests of one source to one target.
#[derive(Debug)]
pub(crate) struct Http2Template {
    /// Part common to all requests.
    fixed: Request<()>,
    /// Path template, if the path has placeholders.
    path: Option<Vec<TemplatePiece>>,
    /// Headers with placeholders in their values.
    made: Vec<(HeaderName, Vec<TemplatePiece>)>,
    body: RequestBody,
    is_grpc: bool,
    scheme: &'static str,
    authority: String,
    sender: SenderIdentity,
}

/// Error for a request that cannot be built.
#[derive(Debug)]
pub(crate) struct NotARequest;

impl Http2Template {
    /// Creates the template for a sender's requests to `target`.
    pub(crate) fn new(target: &PlannedTarget, sender: &SenderIdentity) -> Self {
        let mut fixed = Request::new(());
        *fixed.method_mut() = target.method.clone();
        *fixed.version_mut() = Version::HTTP_2;
        let mut authority = target.authority.clone();
        let mut made = Vec::new();
        for (name, value) in &target.headers {
            match value.as_slice() {
                // HTTP/2 uses :authority instead.
                [TemplatePiece::Bytes(value)] if *name == header::HOST => {
                    authority = String::from_utf8_lossy(value).into_owned();
                }
                [] => drop(fixed.headers_mut().append(name, HeaderValue::from_static(""))),
                [TemplatePiece::Bytes(value)] => {
                    if let Ok(value) = HeaderValue::from_bytes(value) {
                        fixed.headers_mut().append(name, value);
                    }
                }
                pieces => made.push((name.clone(), pieces.to_vec())),
            }
        }
        let headers = fixed.headers_mut();
        headers.entry(header::USER_AGENT).or_insert(HeaderValue::from_static(USER_AGENT));
        let is_grpc = target.grpc.is_some();
        let body = match &target.body {
            RequestBody::Fixed(body) if is_grpc => RequestBody::Fixed(grpc::framed(body)),
            body => body.clone(),
        };
        if let Some(call) = &target.grpc {
            call.add_headers(headers);
        } else if let RequestBody::Fixed(body) = &body
            && (!body.is_empty() || [Method::POST, Method::PUT, Method::PATCH].contains(&target.method))
        {
            headers.insert(header::CONTENT_LENGTH, body.len().into());
        }
        let mut template = Self {
            fixed,
            path: Some(target.path.clone()),
            made,
            body,
            is_grpc,
            scheme: if target.tls_name.is_some() { "https" } else { "http" },
            authority,
            sender: sender.clone(),
        };
        if let [TemplatePiece::Bytes(path)] = target.path.as_slice()
            && let Ok(uri) = template.uri(path)
        {
            *template.fixed.uri_mut() = uri;
            template.path = None;
        }
        template
    }

    /// Builds request number `seq`, as sent on attempt number `attempt` (from 1).
    ///
    /// # Errors
    /// Returns an error if a placeholder's value results in an invalid URL or header.
    pub(crate) fn make(&self, seq: u64, attempt: u32) -> Result<(Request<()>, Bytes), NotARequest> {
        let (number, mut random) = self.sender.draw(seq);
        let mut fill = |pieces: &[TemplatePiece]| {
            let mut text = Vec::new();
            placeholders::fill(pieces, number, &mut random, &mut text);
            text
        };
        let mut request = self.fixed.clone();
        if let Some(path) = &self.path {
            *request.uri_mut() = self.uri(&fill(path))?;
        }
        for (name, pieces) in &self.made {
            let value = HeaderValue::from_maybe_shared(Bytes::from(fill(pieces)));
            request.headers_mut().append(name, value.map_err(|_| NotARequest)?);
        }
        let body = match &self.body {
            RequestBody::Fixed(body) => body.clone(),
            RequestBody::Made(pieces) if self.is_grpc => grpc::framed(&fill(pieces)),
            RequestBody::Made(pieces) => {
                let body = Bytes::from(fill(pieces));
                request.headers_mut().insert(header::CONTENT_LENGTH, body.len().into());
                body
            }
        };
        let id = HeaderValue::try_from(format!("{}{seq}", self.sender.ids)).map_err(|_| NotARequest)?;
        let name = if attempt == 1 { ID_HEADER } else { RETRY_HEADER };
        request.headers_mut().insert(HeaderName::from_static(name), id);
        Ok((request, body))
    }

    /// Checks that the template builds only valid requests.
    ///
    /// # Errors
    /// Returns an error with the reason if it does not.
    fn check(&self) -> Result<(), String> {
        /// Headers that HTTP/2 forbids (RFC 9113, 8.2.2).
        const NOT_IN_HTTP2: [&str; 3] = ["keep-alive", "proxy-connection", "upgrade"];

        let headers = self.fixed.headers();
        if let Some(name) = NOT_IN_HTTP2.iter().find(|name| headers.contains_key(**name)) {
            return Err(format!("HTTP/2 does not allow the header {name}: remove it"));
        }
        if headers.get_all(header::TE).iter().any(|te| te != "trailers") {
            return Err("HTTP/2 allows the header te only with the value trailers".to_owned());
        }
        self.make(0, 1).map(drop).map_err(|NotARequest| "it does not form a valid HTTP/2 request".to_owned())
    }

    fn uri(&self, path: &[u8]) -> Result<Uri, NotARequest> {
        Uri::builder()
            .scheme(self.scheme)
            .authority(self.authority.as_str())
            .path_and_query(path)
            .build()
            .map_err(|_| NotARequest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load_plan::Plan;
    use rolldrop_record::load::Load;

    fn request(change: impl FnOnce(&mut Load)) -> (Request<()>, Bytes) {
        let mut settings = Load::new("http://web:8080/x?y=z");
        change(&mut settings);
        let plan = Plan::new(settings).unwrap();
        let sender = SenderIdentity { ids: "k3v9x2ab-load-3-".into(), worker: 3, workers: 4, seed: 1 };
        Http2Template::new(&plan.targets[0], &sender).make(41, 1).unwrap()
    }

    #[test]
    fn http2_request_carries_rolldrop_id() {
        let (request, body) = request(|_| {});
        assert_eq!(request.uri(), "http://web:8080/x?y=z");
        assert_eq!(request.headers()[ID_HEADER], "k3v9x2ab-load-3-41");
        assert_eq!(request.headers()["user-agent"], USER_AGENT);
        assert!(body.is_empty() && !request.headers().contains_key("content-length"));
    }

    #[test]
    fn templated_request_uses_host_as_authority() {
        let (request, body) = request(|s| {
            s.template = true;
            s.method = "POST".into();
            s.targets[0].url = "http://web/{{seq}}?q={{int:5-5}}".into();
            s.headers = vec![("Host".into(), "other:1".into()), ("A".into(), "n{{seq}}".into())];
            s.body = b"<{{seq}}>".to_vec();
        });
        assert_eq!(request.uri(), "http://other:1/167?q=5");
        assert_eq!(request.headers()["a"], "n167");
        assert_eq!((request.headers()["content-length"].as_bytes(), &body[..]), (&b"5"[..], &b"<167>"[..]));
        assert!(!request.headers().contains_key("host"));
    }
}
