//! Responses by path.

use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use url::form_urlencoded;

use super::sample_streams::SampleStreamKind;

/// Path for the WebSocket.
pub(super) const WEBSOCKET_PATH: &str = "/ws";

/// Maximum body size that a request may ask for.
const MAX_BODY_BYTES: usize = 64 << 20;
/// Number of pieces in which `/stream` sends its body.
const STREAM_PIECES: u32 = 20;

/// Response that has not been sent yet.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnsentResponse {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
    /// Delay before the response begins.
    pub(super) delay: Duration,
    pub(super) pace: BodyPace,
}

/// Pace at which the body is sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BodyPace {
    /// In one piece.
    AtOnce,
    /// In pieces, with a pause between them.
    Pieces { piece_bytes: usize, pause: Duration },
}

/// Response to readiness probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerReadiness {
    Ready,
    NotReady,
}

impl UnsentResponse {
    pub(super) fn text(status: StatusCode, text: impl Into<Bytes>) -> Self {
        Self { status, body: text.into(), delay: Duration::ZERO, pace: BodyPace::AtOnce }
    }

    /// Returns the response to a request that is meant to fail.
    pub(super) fn failure() -> Self {
        Self::text(StatusCode::INTERNAL_SERVER_ERROR, "configured failure\n")
    }

    pub(super) fn bad_request(why: &'static str) -> Self {
        Self::text(StatusCode::BAD_REQUEST, why)
    }
}

/// Returns true if the path is for probes.
pub(super) fn is_of_a_probe(path: &str) -> bool {
    matches!(path, "/healthz" | "/readyz")
}

/// Returns the response for a path and query. `index` is the body of `/`.
pub(super) fn answer(
    path: &str,
    query: Option<&str>,
    readiness: ServerReadiness,
    index: &Bytes,
) -> UnsentResponse {
    match path {
        "/" => UnsentResponse::text(StatusCode::OK, index.clone()),
        "/healthz" => UnsentResponse::text(StatusCode::OK, "ok\n"),
        "/readyz" => match readiness {
            ServerReadiness::Ready => UnsentResponse::text(StatusCode::OK, "ready\n"),
            ServerReadiness::NotReady => UnsentResponse::text(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
        },
        "/slow" => match number(query, "ms") {
            Some(ms) => UnsentResponse {
                delay: Duration::from_millis(ms),
                ..UnsentResponse::text(StatusCode::OK, "ok\n")
            },
            None => UnsentResponse::bad_request("set ms=MILLISECONDS\n"),
        },
        "/stream" => stream(query),
        _ if SampleStreamKind::of(path).is_some() => {
            UnsentResponse::text(StatusCode::HTTP_VERSION_NOT_SUPPORTED, "use HTTP/1.1\n")
        }
        WEBSOCKET_PATH => {
            UnsentResponse::text(StatusCode::UPGRADE_REQUIRED, "request an upgrade to websocket\n")
        }
        _ => match path.strip_prefix("/status/") {
            Some(code) => match code.parse().ok().and_then(|code: u16| final_status(code)) {
                Some(status) => {
                    UnsentResponse::text(status, if bodiless(status) { "" } else { "requested status\n" })
                }
                None => UnsentResponse::bad_request("use a status from 200 to 599\n"),
            },
            None => UnsentResponse::text(StatusCode::NOT_FOUND, "no such path\n"),
        },
    }
}

fn stream(query: Option<&str>) -> UnsentResponse {
    let (Some(bytes), Some(ms)) = (number(query, "bytes"), number(query, "ms")) else {
        return UnsentResponse::bad_request("set bytes=SIZE&ms=MILLISECONDS\n");
    };
    let Some(bytes) = usize::try_from(bytes).ok().filter(|bytes| *bytes <= MAX_BODY_BYTES) else {
        return UnsentResponse::bad_request("set bytes to at most 67108864\n");
    };
    let piece_bytes = bytes.div_ceil(STREAM_PIECES as usize).max(1);
    // Pauses come between pieces, so there is one fewer pause than pieces.
    let pauses = u32::try_from(bytes.div_ceil(piece_bytes)).unwrap_or(STREAM_PIECES).saturating_sub(1).max(1);
    UnsentResponse {
        pace: BodyPace::Pieces { piece_bytes, pause: Duration::from_millis(ms) / pauses },
        ..UnsentResponse::text(StatusCode::OK, filler(bytes))
    }
}

/// Returns the body of `/`: filler of this size, or else a short text that names the pod.
pub(super) fn index_body(body_bytes: Option<usize>, pod_name: Option<&str>) -> Bytes {
    match (body_bytes, pod_name) {
        (Some(bytes), _) => filler(bytes),
        (None, Some(pod)) => format!("ok {pod}\n").into(),
        (None, None) => "ok\n".into(),
    }
}

fn filler(bytes: usize) -> Bytes {
    vec![b'x'; bytes].into()
}

fn number(query: Option<&str>, name: &str) -> Option<u64> {
    form_urlencoded::parse(query?.as_bytes()).find(|(key, _)| key == name)?.1.parse().ok()
}

fn final_status(code: u16) -> Option<StatusCode> {
    StatusCode::from_u16(code).ok().filter(|_| (200..600).contains(&code))
}

fn bodiless(status: StatusCode) -> bool {
    matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str, query: &str) -> UnsentResponse {
        answer(path, Some(query), ServerReadiness::Ready, &index_body(None, Some("web-1")))
    }

    #[test]
    fn paths_return_documented_responses() {
        assert_eq!(get("/", "").body, "ok web-1\n");
        assert_eq!(get("/slow", "ms=30").delay, Duration::from_millis(30));
        assert_eq!(get("/slow", "").status, StatusCode::BAD_REQUEST);
        assert_eq!(get("/status/418", "").status, StatusCode::IM_A_TEAPOT);
        assert_eq!(get("/status/204", "").body, "");
        assert_eq!(get("/status/100", "").status, StatusCode::BAD_REQUEST);
        assert_eq!(get("/nowhere", "").status, StatusCode::NOT_FOUND);
        assert_eq!(get("/events", "").status, StatusCode::HTTP_VERSION_NOT_SUPPORTED);
    }

    #[test]
    fn readiness_and_health_use_separate_paths() {
        let asked = |path| answer(path, None, ServerReadiness::NotReady, &Bytes::new()).status;
        assert_eq!(asked("/readyz"), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(asked("/healthz"), StatusCode::OK);
        assert_eq!(asked("/"), StatusCode::OK);
    }

    #[test]
    fn stream_lasts_for_requested_time() {
        let answer = get("/stream", "bytes=1000&ms=1900");
        assert_eq!(answer.pace, BodyPace::Pieces { piece_bytes: 50, pause: Duration::from_millis(100) });
        assert_eq!(answer.body.len(), 1000);
        assert_eq!(get("/stream", "bytes=1&ms=5").body.len(), 1);
        assert_eq!(get("/stream", "bytes=0&ms=5").body.len(), 0);
        assert_eq!(get("/stream", "bytes=999999999&ms=5").status, StatusCode::BAD_REQUEST);
    }

    #[test]
    fn body_size_replaces_default_text() {
        assert_eq!(index_body(Some(3), Some("web-1")), "xxx");
        assert_eq!(index_body(None, None), "ok\n");
    }
}
