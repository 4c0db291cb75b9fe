//! Content negotiation: selects a representation based on the client's `Accept` header.

use http::{Request, header};

use super::super::status::Status;

/// Object representation requested by a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectRepresentation {
    /// Complete objects.
    Whole,
    /// Metadata only: `PartialObjectMetadata`.
    Metadata,
    /// Rows of a `Table`, for kubectl to display.
    Table,
}

/// Returns the first representation in the request's `Accept` header that this API supports. Unsupported content types
/// (such as protobuf) are skipped.
///
/// # Errors
///
/// 406 if none is supported.
pub(super) fn view<B>(request: &Request<B>) -> Result<ObjectRepresentation, Status> {
    let accept = accept(request);
    if accept.is_empty() {
        return Ok(ObjectRepresentation::Whole);
    }
    let known = |range: &str| {
        let mut parts = range.split(';').map(str::trim);
        if !matches!(parts.next(), Some("application/json" | "application/*" | "*/*")) {
            return None;
        }
        let parameters: Vec<_> = parts.collect();
        let is_of_meta = ["g=meta.k8s.io", "v=v1"].iter().all(|wanted| parameters.contains(wanted));
        match parameters.iter().find_map(|parameter| parameter.strip_prefix("as=")) {
            None => Some(ObjectRepresentation::Whole),
            Some("Table") if is_of_meta => Some(ObjectRepresentation::Table),
            Some("PartialObjectMetadata" | "PartialObjectMetadataList") if is_of_meta => {
                Some(ObjectRepresentation::Metadata)
            }
            Some(_) => None,
        }
    };
    let refused = "only the following media types are accepted: application/json";
    accept.split(',').find_map(known).ok_or_else(|| Status::plain(406, refused))
}

/// Returns the `Accept` header, or an empty string if it is missing.
pub(super) fn accept<B>(request: &Request<B>) -> &str {
    request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view_of(accept: &str) -> Result<ObjectRepresentation, u16> {
        let request = Request::builder().header(header::ACCEPT, accept).body(()).unwrap();
        view(&request).map_err(|status| status.code())
    }

    #[test]
    fn accept_header_selects_first_supported_view() {
        assert_eq!(view(&Request::new(())), Ok(ObjectRepresentation::Whole));
        for accept in ["*/*", "application/json, */*", "application/vnd.kubernetes.protobuf,application/json"]
        {
            assert_eq!(view_of(accept), Ok(ObjectRepresentation::Whole), "{accept}");
        }
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(view_of(kubectl), Ok(ObjectRepresentation::Table));
        assert_eq!(
            view_of("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"),
            Ok(ObjectRepresentation::Metadata)
        );
        for accept in ["text/html", "application/vnd.kubernetes.protobuf", "application/json;as=Pie"] {
            assert_eq!(view_of(accept), Err(406), "{accept}");
        }
    }
}
