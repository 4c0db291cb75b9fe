//! Answers requests for streams, over HTTP/1.1.

use std::error::Error;
use std::time::Duration;

use futures::StreamExt;
use http_body_util::{BodyStream, Either};
use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Version};
use rolldrop_record::{LENGTH_HEADER, LengthLaw};
use url::form_urlencoded;

use super::path_responses::UnsentResponse;
use super::response_flush::{PacedBody, Unflushed};
use super::sample_streams::{SampleStreamKind, StreamBody, StreamCut, StreamFraming, StreamRequest};
use super::server_state::ServerState;
use super::workload_log::LoggedExchange;

/// Header for the requested stream length; the query parameter is `length`.
const LENGTH: HeaderName = HeaderName::from_static(LENGTH_HEADER);

/// Response body: known content or a stream.
pub(super) type ServedBody = Either<PacedBody, StreamBody>;

/// Parses a request for a stream; `None` if it is for something else. The error is the response to a request that gets
/// no stream.
pub(super) fn requested(
    request: &Request<Incoming>,
    shared: &ServerState,
) -> Option<Result<StreamRequest, UnsentResponse>> {
    let path = request.uri().path();
    let kind = SampleStreamKind::of(path)?;
    Some(if shared.is_to_fail(path) {
        Err(UnsentResponse::failure())
    } else if !matches!(*request.method(), Method::GET | Method::POST) {
        Err(UnsentResponse::text(StatusCode::METHOD_NOT_ALLOWED, "use GET or POST\n"))
    } else {
        requested_length(request).map(|length| StreamRequest {
            kind,
            accepted_ns: shared.log.now_ns(),
            length,
        })
    })
}

fn requested_length(request: &Request<Incoming>) -> Result<Option<LengthLaw>, UnsentResponse> {
    let query = request.uri().query().unwrap_or_default();
    let from_query = form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == "length");
    let text = match (&from_query, request.headers().get(LENGTH)) {
        (Some((_, text)), _) => Some(&**text),
        // Non-ASCII text is not a length law either.
        (None, header) => header.map(|header| header.to_str().unwrap_or_default()),
    };
    let refused = |_| UnsentResponse::bad_request("use a length such as 3.2s or lognormal:10s,1.0\n");
    text.map(|text| text.parse().map_err(refused)).transpose()
}

/// Begins a stream.
pub(super) async fn respond(
    requested: StreamRequest,
    body: Incoming,
    exchange: LoggedExchange,
    unflushed: Unflushed,
    shared: &ServerState,
) -> Response<ServedBody> {
    // A real server needs the prompt first. If it does not arrive in full, the connection is broken.
    let mut received = BodyStream::new(body);
    while let Some(Ok(_)) = received.next().await {}
    shared.delay(Duration::ZERO).await;
    let mut fields = shared.connection_fields();
    fields.insert(CONTENT_TYPE, requested.kind.content_type());
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let is_close_delimited = shared.streams.framing() == StreamFraming::CloseDelimited;
    if is_close_delimited {
        fields.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let exchange = exchange.with_status(StatusCode::OK.as_u16());
    let body = StreamBody::begin(&shared.streams, &shared.log, unflushed, requested, exchange);
    let mut response = shared.response(StatusCode::OK, fields, Either::Right(body));
    if is_close_delimited {
        // In any later version, hyper sends a body of unknown size in chunks.
        *response.version_mut() = Version::HTTP_10;
    }
    response
}

/// Returns true if a stream on the connection ended with a reset that has yet to be sent.
pub(super) fn is_to_reset(ended: &hyper::Result<()>) -> bool {
    let cause = ended.as_ref().err().and_then(Error::source);
    cause.and_then(|cause| cause.downcast_ref()) == Some(&StreamCut::Reset)
}
