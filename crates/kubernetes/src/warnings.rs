//! Warnings that an API server sends when it creates an object: the `Warning` headers of its responses (RFC 7234, 5.5).

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderMap, Method, Request, Response, header};
use tower::{Layer, Service};

/// Maximum number of warnings kept, which is more than an API server sends for one object.
const MAX_WARNINGS: usize = 64;

/// Collector of warnings from responses to POST requests. Clones share one collection.
#[derive(Clone, Debug, Default)]
pub struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    /// Returns the warnings received since the last call.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, headers: &HeaderMap) {
        let mut collected = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = MAX_WARNINGS.saturating_sub(collected.len());
        let values = headers.get_all(header::WARNING).iter().filter_map(|value| value.to_str().ok());
        collected.extend(values.filter_map(text).take(room));
    }
}

/// Returns the text of a warning such as `299 - "unknown field"`.
fn text(value: &str) -> Option<String> {
    let quoted = value.strip_prefix("299 ")?.split_once(" \"")?.1.strip_suffix('"')?;
    let mut text = String::new();
    let mut letters = quoted.chars();
    while let Some(letter) = letters.next() {
        text.extend(if letter == '\\' { letters.next() } else { Some(letter) });
    }
    Some(text)
}

impl<S> Layer<S> for Warnings {
    type Service = WarningCollector<S>;

    fn layer(&self, inner: S) -> WarningCollector<S> {
        WarningCollector { inner, warnings: self.clone() }
    }
}

/// Client service that collects the warnings it receives.
#[derive(Clone, Debug)]
pub struct WarningCollector<S> {
    inner: S,
    warnings: Warnings,
}

impl<S, A, B> Service<Request<A>> for WarningCollector<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let creates = request.method() == Method::POST;
        let (answer, warnings) = (self.inner.call(request), self.warnings.clone());
        async move {
            let answer = answer.await?;
            if creates {
                warnings.add(answer.headers());
            }
            Ok(answer)
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warning_text_comes_from_quoted_part() {
        assert_eq!(
            text(r#"299 - "unknown field \"spec.a\\b\"""#).as_deref(),
            Some(r#"unknown field "spec.a\b""#)
        );
        assert_eq!(text("199 - \"other\""), None);
        assert_eq!(text("299 - bare"), None);
    }
}
