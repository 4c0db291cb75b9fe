//! Connects to a worker in a pod through the API server's pod proxy, so that access to the API server is enough.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{AsyncBufRead, FutureExt, StreamExt, TryStreamExt};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use kube::client::Body;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::worker_transport::{WorkerResponseBody, WorkerTransport, WorkerTransportError, addressed};
use crate::error::in_words;
use rolldrop_record::wire::AdminToken;

/// Time limit for receiving a response's head, and for receiving all of a short response.
pub const CALL_LIMIT: Duration = Duration::from_secs(10);
/// Time after which a silent stream is closed, and requested again: a connection that broke unnoticed sends nothing.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(10);
/// Maximum size of a short response, in bytes.
const SHORT_ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// A pod's port, reached through the API server.
pub struct PodProxy {
    client: kube::Client,
    /// Path of the pod's port at the API server.
    prefix: String,
    token: AdminToken,
}

impl PodProxy {
    /// Returns a transport to a port of a pod, whose worker requires this token.
    pub fn new(client: kube::Client, namespace: &str, pod: &str, port: u16, token: AdminToken) -> Self {
        Self { client, prefix: format!("/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy"), token }
    }
}

impl WorkerTransport for PodProxy {
    fn ask(
        &self,
        request: Request<Bytes>,
    ) -> BoxFuture<'_, Result<Response<WorkerResponseBody>, WorkerTransportError>> {
        async move {
            let request = addressed(request, &self.prefix, &self.token)?;
            let request = request.map(|body| Body::from(body.to_vec()));
            let answer =
                self.client.send(request).await.map_err(|error| WorkerTransportError(in_words(&error)))?;
            Ok(answer.map(|body| body.map_err(std::io::Error::other).boxed_unsync()))
        }
        .boxed()
    }
}

/// Reason why a request to a worker failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum WorkerLinkError {
    /// There was no response.
    #[error(transparent)]
    Ask(#[from] WorkerTransportError),
    /// The response did not arrive in time.
    #[error("the load worker did not answer within {CALL_LIMIT:?}")]
    Timeout,
    /// A stream sent nothing for too long.
    #[error("the load worker sent nothing for {SILENCE_LIMIT:?}")]
    Silent,
    /// The worker or the API server refused the request.
    #[error("the request to the load worker was refused: {status} {why}")]
    Refused { status: StatusCode, why: String },
    /// The response cannot be parsed.
    #[error("failed to read the load worker's response: {0}")]
    Unreadable(String),
}

/// Client for requests to one worker.
#[derive(Clone)]
pub struct WorkerLink(Arc<dyn WorkerTransport>);

impl WorkerLink {
    /// Creates a link over this transport.
    pub fn new(way: Arc<dyn WorkerTransport>) -> Self {
        Self(way)
    }

    /// Returns the transport.
    pub fn way(&self) -> &Arc<dyn WorkerTransport> {
        &self.0
    }

    /// Requests a value and returns it. The response must be short.
    ///
    /// # Errors
    /// Returns an error if there is no valid response in time.
    pub async fn json<T: DeserializeOwned>(&self, path: &str) -> Result<T, WorkerLinkError> {
        let body = self.short(Method::GET, path, Bytes::new()).await?;
        serde_json::from_slice(&body).map_err(|error| WorkerLinkError::Unreadable(error.to_string()))
    }

    /// Sends a POST request with `body`.
    ///
    /// # Errors
    /// Returns an error if the worker does not confirm it in time.
    pub async fn post(&self, path: &str, body: Bytes) -> Result<(), WorkerLinkError> {
        self.short(Method::POST, path, body).await.map(drop)
    }

    /// Sends a GET request and returns the response as a stream of lines.
    ///
    /// # Errors
    /// Returns an error if the response does not begin in time.
    pub async fn lines(
        &self,
        path: &str,
    ) -> Result<impl AsyncBufRead + Unpin + Send + use<>, WorkerLinkError> {
        let answer = self.open(request(Method::GET, path, Bytes::new())?).await?;
        Ok(answer.into_body().into_data_stream().boxed().into_async_read())
    }

    /// Sends a request and returns its successful response. Reading the body may take any amount of time.
    ///
    /// # Errors
    /// Returns an error if the response does not begin in time.
    pub async fn open(
        &self,
        request: Request<Bytes>,
    ) -> Result<Response<WorkerResponseBody>, WorkerLinkError> {
        timeout(CALL_LIMIT, self.head(request)).await.map_err(|_| WorkerLinkError::Timeout)?
    }

    async fn short(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes, WorkerLinkError> {
        let request = request(method, path, body)?;
        let whole = async { read(self.head(request).await?.into_body()).await };
        timeout(CALL_LIMIT, whole).await.map_err(|_| WorkerLinkError::Timeout)?
    }

    /// Waits for the head of a successful response. The body remains to be read.
    async fn head(&self, request: Request<Bytes>) -> Result<Response<WorkerResponseBody>, WorkerLinkError> {
        let answer = self.0.ask(request).await?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let why = read(answer.into_body()).await?;
        let why = String::from_utf8_lossy(&why).trim().to_owned();
        Err(WorkerLinkError::Refused { status, why })
    }
}

fn request(method: Method, path: &str, body: Bytes) -> Result<Request<Bytes>, WorkerLinkError> {
    let request = Request::builder().method(method).uri(path).body(body);
    request.map_err(|error| WorkerLinkError::Unreadable(error.to_string()))
}

/// Reads all of a short body.
async fn read(body: WorkerResponseBody) -> Result<Bytes, WorkerLinkError> {
    let body = Limited::new(body, SHORT_ANSWER_BYTES).collect().await;
    body.map(|body| body.to_bytes()).map_err(|error| WorkerLinkError::Unreadable(error.to_string()))
}
