//! Calls to the cluster, and everything they need: a client, a namespace, a limit for every wait, and retries while the
//! API server is temporarily down.

use std::fmt::Debug;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::core::TypeMeta;
use kube::discovery::{self, Scope};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::pages::{Pages, page};
use crate::error::{CoordinatorError, Result, is_passing};
use rolldrop_kubernetes::Listed;
use rolldrop_kubernetes::guard::object_names::in_path;
use rolldrop_kubernetes::guard::{Untrusted, distrust};
use rolldrop_kubernetes::warnings::Warnings;

/// First pause before a call is repeated; each further pause is twice as long, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause before a call is repeated.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Longest wait that the API server may ask for.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(10);
/// Time for which the API server may be down before a run starts. It is short, because the server may not exist at all.
const FIRST_CONTACT: Duration = Duration::from_secs(2);
/// Maximum number of times that a list is restarted because the API server has forgotten its position.
const LIST_RESTARTS: usize = 3;

/// Time limits. Each has the same name as in the error that reports it.
#[derive(Clone, Copy, Debug)]
pub struct TimeLimits {
    /// For one API call.
    pub api_call: Duration,
    /// For an API server that is down, overloaded or faulty, from the first failure of a call.
    pub outage: Duration,
    /// For an API server that has never responded; has an effect only if it is shorter than `outage`.
    pub silence: Duration,
    /// For the target's pods to become ready.
    pub ready: Duration,
    /// For a pod that reports why it cannot start, before the run gives up on it.
    pub stuck: Duration,
    /// For the disrupted pods and endpoints to be replaced, before the next disruption.
    pub recovery: Duration,
    /// For pods to terminate after the load, in addition to their grace period.
    pub settle: Duration,
    /// For a command's changes to settle after the command has exited. At the end of a run, for the undo to take
    /// effect, in addition to the pods' grace periods.
    pub rollout: Duration,
    /// For the last rows from a proxy.
    pub hand_over: Duration,
    /// For undoing all changes.
    pub undo: Duration,
}

impl Default for TimeLimits {
    fn default() -> Self {
        Self {
            api_call: Duration::from_secs(30),
            outage: Duration::from_secs(30),
            silence: Duration::MAX,
            ready: Duration::from_secs(60),
            stuck: Duration::from_secs(5),
            recovery: Duration::from_secs(300),
            settle: Duration::from_secs(10),
            rollout: Duration::from_secs(300),
            hand_over: Duration::from_secs(3),
            undo: Duration::from_secs(120),
        }
    }
}

/// Client for the API server, on behalf of one run.
#[derive(Clone)]
pub struct Caller {
    /// Client for the cluster.
    pub client: Client,
    /// Warnings from the API server about the objects that it created.
    pub warnings: Warnings,
    /// Namespace of the run.
    pub namespace: String,
    /// Time limits.
    pub limits: TimeLimits,
    /// Cancelled when the run should end early.
    pub stop: CancellationToken,
}

/// Result of a call that was repeated until it got a response.
pub(crate) struct RepeatedCall<T> {
    /// Response to the last attempt.
    pub(crate) answer: kube::Result<T>,
    /// True if an earlier attempt may have taken effect, although its response did not say so.
    pub(crate) is_doubtful: bool,
}

impl Caller {
    /// Creates a caller for the namespace `shop`, which tests use.
    #[cfg(test)]
    pub(crate) fn in_shop(client: Client, limits: TimeLimits, stop: CancellationToken) -> Self {
        Self { client, warnings: Warnings::default(), namespace: "shop".into(), limits, stop }
    }

    /// Creates a caller outside a run, which ends with its task.
    pub(crate) fn outside_run(client: Client, namespace: &str) -> Self {
        let (warnings, limits, stop) = (Warnings::default(), TimeLimits::default(), CancellationToken::new());
        Self { client, warnings, namespace: namespace.to_owned(), limits, stop }
    }

    /// Returns a caller for use before a run has started. It waits for a busy API server, but not long for one that may
    /// not exist.
    #[must_use]
    pub fn at_first_contact(&self) -> Self {
        let limits = TimeLimits { silence: FIRST_CONTACT, ..self.limits };
        Self { limits, ..self.clone() }
    }

    /// Returns the future's result, or an error if the run is stopped first.
    pub(crate) async fn stoppable<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        tokio::select! {
            result = future => Ok(result),
            () = self.stop.cancelled() => Err(CoordinatorError::Interrupted),
        }
    }

    /// Returns the API server's version, such as `v1.36.2`.
    pub(crate) async fn server_version(&self) -> Result<String> {
        Ok(self.must("read the version", || self.client.apiserver_version()).await?.git_version)
    }

    /// Returns the API for a kind in the run's namespace.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Like [`Caller::api`], for a kind that is known only at run time.
    pub(crate) fn dynamic_api(&self, resource: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, resource)
    }

    /// Returns the future's result, or an error if the time limit for API calls expires first.
    pub(crate) async fn limited<T>(&self, what: &str, future: impl Future<Output = T>) -> Result<T> {
        let limit = self.limits.api_call;
        match self.stoppable(timeout(limit, future)).await? {
            Ok(result) => Ok(result),
            Err(_) => Err(CoordinatorError::Timeout { what: what.to_owned(), limit }),
        }
    }

    /// Returns the response to a call that may be repeated. Repeats it after temporary faults for as long as the limit
    /// for an outage allows.
    pub(crate) async fn ask<T, F>(&self, what: &str, call: impl FnMut() -> F) -> Result<kube::Result<T>>
    where
        F: Future<Output = kube::Result<T>>,
    {
        Ok(self.insist(what, call).await?.answer)
    }

    /// Like [`Caller::ask`], for a call that has to succeed.
    pub(crate) async fn must<T, F>(&self, what: &str, call: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = kube::Result<T>>,
    {
        self.ask(what, call).await?.map_err(|error| CoordinatorError::api(what, &error))
    }

    /// Reads the object with this name. Like [`Caller::ask`], returns a refusal.
    pub(crate) async fn ask_for<K>(&self, api: &Api<K>, what: &str, name: &str) -> Result<kube::Result<K>>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let part = in_path(name);
        self.ask(what, || api.get(&part)).await
    }

    /// Like [`Caller::ask_for`], for a node.
    pub(crate) async fn ask_node(&self, name: &str) -> Result<kube::Result<Node>> {
        self.ask_for(&Api::all(self.client.clone()), &format!("read Node {name}"), name).await
    }

    /// Reads the object with this name, which has to exist.
    pub(crate) async fn read<K>(&self, api: &Api<K>, what: &str, name: &str) -> Result<K>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        self.ask_for(api, what, name).await?.map_err(|error| CoordinatorError::api(what, &error))
    }

    /// Reads the object with this name, if there is one.
    pub(crate) async fn find<K>(&self, api: &Api<K>, what: &str, name: &str) -> Result<Option<K>>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let part = in_path(name);
        self.must(what, || api.get_opt(&part)).await
    }

    /// Like [`Caller::ask`], but also reports whether an attempt before the last one may have taken effect.
    pub(crate) async fn insist<T, F>(
        &self,
        what: &str,
        mut call: impl FnMut() -> F,
    ) -> Result<RepeatedCall<T>>
    where
        F: Future<Output = kube::Result<T>>,
    {
        let begun = Instant::now();
        let mut pauses = Pauses::default();
        let mut is_doubtful = false;
        loop {
            let answer = self.limited(what, call()).await;
            let pause = match &answer {
                Ok(Err(error)) if is_passing(error) => {
                    is_doubtful |= may_have_been_done(error);
                    pauses.after(error)
                }
                Err(CoordinatorError::Timeout { .. }) => {
                    is_doubtful = true;
                    pauses.next()
                }
                Ok(_) | Err(_) => return Ok(RepeatedCall { answer: answer?, is_doubtful }),
            };
            let limit = match &answer {
                Ok(Err(error)) if is_too_many(error) => self.limits.outage,
                Ok(_) | Err(_) => self.limits.outage.min(self.limits.silence),
            };
            if Instant::now() + pause >= begun + limit {
                return Ok(RepeatedCall { answer: answer?, is_doubtful });
            }
            tracing::debug!(what, ?pause, "retrying the API call");
            self.stoppable(sleep(pause)).await?;
        }
    }

    /// Returns the API for a kind, in this namespace if the kind is namespaced.
    pub(crate) fn api_of(
        &self,
        resource: &ApiResource,
        scope: &Scope,
        namespace: &str,
    ) -> Api<DynamicObject> {
        match scope {
            Scope::Namespaced => Api::namespaced_with(self.client.clone(), namespace, resource),
            Scope::Cluster => Api::all_with(self.client.clone(), resource),
        }
    }

    /// Looks up the API resource and the scope of a kind in the cluster.
    pub(crate) async fn kind_of(&self, api_version: &str, kind: &str) -> Result<(ApiResource, Scope)> {
        let what = "discover the cluster's kinds";
        let types = TypeMeta { api_version: api_version.to_owned(), kind: kind.to_owned() };
        let gvk = GroupVersionKind::try_from(&types);
        let unknown = || {
            let TypeMeta { api_version, kind } = types;
            CoordinatorError::UnknownKind { kind, api_version }
        };
        let Ok(gvk) = gvk else { return Err(unknown()) };
        match self.ask(what, || discovery::pinned_kind(&self.client, &gvk)).await? {
            Ok((resource, capabilities)) => Ok((resource, capabilities.scope)),
            Err(kube::Error::Discovery(_)) => Err(unknown()),
            Err(kube::Error::Api(status)) if status.code == 404 => Err(unknown()),
            Err(error) => Err(CoordinatorError::api(what, &error)),
        }
    }

    /// Lists all selected objects.
    pub(crate) async fn list<K>(&self, what: &str, api: &Api<K>, params: &ListParams) -> Result<Vec<K>>
    where
        K: Resource + Listed,
    {
        let listed = self.list_as(what, api, params, |object| object).await?;
        listed.map_err(|error| CoordinatorError::api(what, &error))
    }

    /// Lists all objects of a kind, and keeps only the needed part of each, because there may be thousands. Returns an
    /// empty list if the cluster does not have the kind, or does not let the run list it.
    pub(crate) async fn list_shown<K, T>(
        &self,
        what: &str,
        api: &Api<K>,
        known: impl Fn(K) -> T,
    ) -> Result<Vec<T>>
    where
        K: Resource + Listed,
    {
        match self.list_as(what, api, &ListParams::default(), known).await? {
            Err(kube::Error::Api(status)) if [403, 404].contains(&status.code) => Ok(Vec::new()),
            listed => listed.map_err(|error| CoordinatorError::api(what, &error)),
        }
    }

    /// Like [`Caller::list_shown`], for a kind in the run's namespace.
    pub(crate) async fn list_kind_as<K, T>(&self, known: impl Fn(K) -> T) -> Result<Vec<T>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Listed,
    {
        self.list_shown(&format!("list {}", K::plural(&())), &self.api(), known).await
    }

    /// Lists all objects of a kind in the run's namespace.
    pub(crate) async fn list_kind<K>(&self) -> Result<Vec<K>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Listed,
    {
        self.list_kind_as(|object: K| object).await
    }

    /// Lists all selected objects, and keeps only the needed part of each.
    pub(crate) async fn list_as<K, T>(
        &self,
        what: &str,
        api: &Api<K>,
        params: &ListParams,
        known: impl Fn(K) -> T,
    ) -> Result<kube::Result<Vec<T>>>
    where
        K: Resource + Listed,
    {
        let (mut pages, mut all, mut restarts) = (Pages::of(params), Vec::new(), 0);
        while pages.version().is_none() {
            let next = pages.next();
            let page = match self.ask(what, || page(api, &next)).await? {
                Err(kube::Error::Api(status)) if status.code == 410 && restarts < LIST_RESTARTS => {
                    (pages, restarts) = (Pages::of(params), restarts + 1);
                    all.clear();
                    continue;
                }
                Err(error) => return Ok(Err(error)),
                Ok(page) => pages.take(page),
            };
            match page {
                Ok(page) => all.extend(page.into_iter().map(&known)),
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(Ok(all))
    }
}

/// Pauses between attempts at one call.
#[derive(Debug, Default)]
pub(crate) struct Pauses(Duration);

impl Pauses {
    /// Returns a pause twice as long as the previous one.
    pub(crate) fn next(&mut self) -> Duration {
        self.0 = (2 * self.0).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.0
    }

    /// Returns the pause that the API server asks for, or one twice as long as the previous pause.
    pub(crate) fn after(&mut self, error: &kube::Error) -> Duration {
        retry_after(error).map_or_else(|| self.next(), |told| told.min(LONGEST_RETRY_AFTER))
    }
}

/// Returns true if the API server is up but asks for fewer calls.
pub(crate) fn is_too_many(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 429)
}

/// Returns the time after which the API server allows the refused call to be repeated.
pub(crate) fn retry_after(error: &kube::Error) -> Option<Duration> {
    let kube::Error::Api(status) = error else { return None };
    let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    (seconds > 0).then(|| Duration::from_secs(seconds.into()))
}

/// Returns true if a failed call may still have taken effect because the API server did not refuse it, and it may have
/// reached the server.
pub(crate) fn may_have_been_done(error: &kube::Error) -> bool {
    match error {
        error if matches!(distrust(error), Some(Untrusted::Request(_))) => false,
        kube::Error::Api(status) => status.code >= 500,
        other => !was_refused_to_connect(other) && !matches!(other, kube::Error::Auth(_)),
    }
}

fn was_refused_to_connect(error: &kube::Error) -> bool {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        let io = error.downcast_ref::<std::io::Error>();
        if io.is_some_and(|io| io.kind() == std::io::ErrorKind::ConnectionRefused) {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use kube::core::Status;

    use super::*;

    fn refusal(code: u16) -> kube::Error {
        kube::Error::Api(Status::failure("as told", "").with_code(code).boxed())
    }

    fn caller(outage: Duration) -> Caller {
        let client = Client::try_from(kube::Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
        let limits = TimeLimits { outage, ..TimeLimits::default() };
        Caller::in_shop(client, limits, CancellationToken::new())
    }

    #[tokio::test(start_paused = true)]
    async fn caller_retries_transient_errors_only() {
        let (caller, asked) = (&caller(Duration::from_secs(10)), &Cell::new(0));
        let answer = |codes: &'static [u16]| {
            asked.set(0);
            caller.insist("look", move || {
                let n = asked.replace(asked.get() + 1);
                async move { codes.get(n).map_or(Ok("found"), |code| Err(refusal(*code))) }
            })
        };
        let found = answer(&[429, 401]).await.unwrap();
        assert_eq!((found.answer.unwrap(), found.is_doubtful, asked.get()), ("found", false, 3));
        let found = answer(&[500]).await.unwrap();
        assert_eq!((found.answer.unwrap(), found.is_doubtful, asked.get()), ("found", true, 2));
        let refused = answer(&[403]).await.unwrap();
        assert!(refused.answer.is_err());
        assert_eq!(asked.get(), 1);
        let begun = Instant::now();
        assert!(answer(&[503; 1000]).await.unwrap().answer.is_err());
        assert!(begun.elapsed() <= Duration::from_secs(10), "{:?}", begun.elapsed());
        assert!((8..40).contains(&asked.get()), "{}", asked.get());
    }

    #[tokio::test(start_paused = true)]
    async fn first_contact_retries_busy_server() {
        let caller = &caller(Duration::from_secs(20)).at_first_contact();
        let answer = |code: u16| async move {
            let begun = Instant::now();
            let answer = caller.insist("look", || async move { Err::<(), _>(refusal(code)) }).await;
            assert!(answer.unwrap().answer.is_err());
            begun.elapsed()
        };
        assert!(answer(429).await > Duration::from_secs(15), "the server exists");
        assert!(answer(503).await < 2 * FIRST_CONTACT, "the server may not exist");
        let why = CoordinatorError::api("look", &refusal(429)).to_string();
        assert!(why.contains("429 Too Many Requests"), "{why}");
    }

    #[tokio::test]
    async fn connection_refusal_rules_out_changes() {
        let caller = caller(Duration::ZERO);
        let refused = caller.insist("look", || caller.client.apiserver_version()).await.unwrap();
        let error = refused.answer.unwrap_err();
        assert!(is_passing(&error) && !may_have_been_done(&error) && !refused.is_doubtful, "{error:?}");
        for (code, may_be) in [(409, false), (429, false), (500, true), (504, true)] {
            assert_eq!(may_have_been_done(&refusal(code)), may_be, "{code}");
        }
    }
}
