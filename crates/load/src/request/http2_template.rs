//! HTTP/2 requests. Everything except the number and the placeholders is built once, before the first request is sent.
//! This includes the encoded header block, which does not depend on any connection's table.

use std::io::Write;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Request, Uri, Version, header};

use super::{RETRY_HEADER, SenderIdentity, USER_AGENT};
use crate::grpc;
use crate::placeholders::{self, TemplatePiece};
use crate::planned_target::{PlannedTarget, RequestBody};
use rolldrop_record::id::ID_HEADER;
use rolldrop_wire::http2::hpack;

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
    /// Header block of all requests, except the body's length and the id.
    block: Vec<BlockPart>,
    /// True if a request could be built from the template.
    is_valid: bool,
}

/// Maximum length of a path, as in [`Uri`].
const MAX_PATH: usize = u16::MAX as usize - 1;

/// A part of an encoded header block.
#[derive(Debug)]
enum BlockPart {
    Bytes(Vec<u8>),
    /// The path, which has placeholders.
    Path(Vec<TemplatePiece>),
    /// A value with placeholders.
    Value(Vec<TemplatePiece>),
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
            block: Vec::new(),
            is_valid: false,
        };
        if let [TemplatePiece::Bytes(path)] = target.path.as_slice()
            && let Ok(uri) = template.uri(path)
        {
            *template.fixed.uri_mut() = uri;
            template.path = None;
        }
        template.block = template.encode();
        template.is_valid = template.make(0, 1).is_ok();
        template
    }

    /// Encodes the part of the header block that is common to all requests.
    fn encode(&self) -> Vec<BlockPart> {
        let mut bytes = vec![hpack::NO_TABLE];
        let mut parts = Vec::new();
        write_pseudo(&mut bytes, &self.fixed, (self.scheme, &self.authority));
        if let Some(path) = &self.path {
            hpack::write_name(&mut bytes, b":path");
            parts.push(BlockPart::Bytes(std::mem::take(&mut bytes)));
            parts.push(BlockPart::Path(path.clone()));
        }
        write_headers(&mut bytes, &self.fixed);
        for (name, value) in &self.made {
            hpack::write_name(&mut bytes, name.as_str().as_bytes());
            parts.push(BlockPart::Bytes(std::mem::take(&mut bytes)));
            parts.push(BlockPart::Value(value.clone()));
        }
        parts.push(BlockPart::Bytes(bytes));
        parts
    }

    /// Appends the header block of request number `seq` to `block`, as sent on attempt number `attempt` (from 1).
    /// Returns the body.
    ///
    /// Only the first request is built in full, to check that it is valid. Values of placeholders consist of letters,
    /// digits, `-` and `.`, so all others are valid too, unless one of them makes the path too long.
    ///
    /// # Errors
    /// Returns an error if the request would not be valid.
    pub(crate) fn write(&self, seq: u64, attempt: u32, block: &mut Vec<u8>) -> Result<Bytes, NotARequest> {
        if !self.is_valid {
            return Err(NotARequest);
        }
        let (number, mut random) = self.sender.draw(seq);
        for part in &self.block {
            let (pieces, most) = match part {
                BlockPart::Bytes(bytes) => {
                    block.extend_from_slice(bytes);
                    continue;
                }
                BlockPart::Path(pieces) => (pieces, MAX_PATH),
                BlockPart::Value(pieces) => (pieces, usize::MAX),
            };
            let begin = block.len();
            placeholders::fill(pieces, number, &mut random, block);
            let length = block.len() - begin;
            if length > most {
                return Err(NotARequest);
            }
            // The length precedes the value, but is known only now.
            let mut prefix = Vec::new();
            hpack::write_integer(&mut prefix, length, 7);
            block.splice(begin..begin, prefix);
        }
        let body = match &self.body {
            RequestBody::Fixed(body) => body.clone(),
            RequestBody::Made(pieces) => {
                let mut body = Vec::new();
                placeholders::fill(pieces, number, &mut random, &mut body);
                if self.is_grpc {
                    grpc::framed(&body)
                } else {
                    hpack::write_field(block, b"content-length", body.len().to_string().as_bytes());
                    Bytes::from(body)
                }
            }
        };
        let id = if attempt == 1 { ID_HEADER } else { RETRY_HEADER };
        hpack::write_name(block, id.as_bytes());
        let mut digits = [0; 20];
        let mut rest = &mut digits[..];
        // A number has at most 20 digits.
        let _ = write!(rest, "{seq}");
        let count = 20 - rest.len();
        hpack::write_integer(block, self.sender.ids.len() + count, 7);
        block.extend_from_slice(self.sender.ids.as_bytes());
        block.extend_from_slice(&digits[..count]);
        Ok(body)
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

/// Returns the header block for a request that [`Http2Template::write`] did not write.
pub(crate) fn encode(request: &Request<()>) -> Vec<u8> {
    let mut block = vec![hpack::NO_TABLE];
    let uri = request.uri();
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    write_pseudo(&mut block, request, (uri.scheme_str().unwrap_or("http"), authority));
    write_headers(&mut block, request);
    block
}

/// Writes the pseudo-header fields. The path comes last, and only if the request has one.
fn write_pseudo(block: &mut Vec<u8>, request: &Request<()>, (scheme, authority): (&str, &str)) {
    for (name, value) in
        [(":method", request.method().as_str()), (":scheme", scheme), (":authority", authority)]
    {
        hpack::write_field(block, name.as_bytes(), value.as_bytes());
    }
    if request.uri().authority().is_some() {
        hpack::write_field(
            block,
            b":path",
            request.uri().path_and_query().map_or("/", |path| path.as_str()).as_bytes(),
        );
    }
}

fn write_headers(block: &mut Vec<u8>, request: &Request<()>) {
    for (name, value) in request.headers() {
        hpack::write_field(block, name.as_str().as_bytes(), value.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load_plan::Plan;
    use rolldrop_record::load::Load;

    /// Returns request number 41, which must be the same as a header block.
    fn request(change: impl FnOnce(&mut Load)) -> (Request<()>, Bytes) {
        let mut settings = Load::new("http://web:8080/x?y=z");
        change(&mut settings);
        let plan = Plan::new(settings).unwrap();
        let sender = SenderIdentity { ids: "k3v9x2ab-load-3-".into(), worker: 3, workers: 4, seed: 1 };
        let template = Http2Template::new(&plan.targets[0], &sender);
        for attempt in [2, 1] {
            let (request, body) = template.make(41, attempt).unwrap();
            let mut block = Vec::new();
            assert_eq!(template.write(41, attempt, &mut block).unwrap(), body);
            let [written, made] = [block, encode(&request)].map(|block| fields(&block));
            assert_eq!(written, made);
            assert_eq!(written.len(), 4 + request.headers().len());
        }
        template.make(41, 1).unwrap()
    }

    /// Returns the fields of a block in order, pseudo-header fields first.
    fn fields(block: &[u8]) -> Vec<(String, String)> {
        let (mut decoder, mut fields) = (hpack::Decoder::default(), Vec::new());
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        decoder.decode(block, |name, value| fields.push((text(name), text(value)))).unwrap();
        let pseudo = fields.iter().take_while(|(name, _)| name.starts_with(':')).count();
        assert!(fields[pseudo..].iter().all(|(name, _)| !name.starts_with(':')), "{fields:?}");
        fields.sort();
        fields
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

    #[test]
    fn long_values_are_encoded_like_short_ones() {
        let long = "v".repeat(300);
        let (request, _) = request(|s| {
            s.template = true;
            s.method = "PATCH".into();
            s.targets[0].url = "https://web/{{random:200}}/{{uuid}}".into();
            s.headers = vec![
                ("long".into(), long.clone().into()),
                ("made".into(), "{{random:300}}".into()),
                ("empty".into(), "".into()),
            ];
        });
        assert_eq!(request.headers()["long"], long.as_str());
        assert_eq!(request.headers()["made"].len(), 300);
    }

    #[test]
    fn overlong_path_makes_request_invalid() {
        let mut settings = Load::new("http://web/{{random:70000}}");
        settings.template = true;
        let target = |settings| Plan::new(settings).map(|plan| plan.targets[0].clone());
        assert!(target(settings.clone()).is_ok(), "HTTP/1.1 has no such limit");
        settings.http = rolldrop_record::load::Http::Http2;
        assert!(target(settings).is_err());
    }
}
