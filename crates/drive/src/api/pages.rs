//! Lists from the API server, read page by page; at most one unprocessed page of a list is in memory.

use kube::api::{ListParams, ObjectList};
use kube::{Api, Resource};

use rolldrop_kubernetes::Listed;
use rolldrop_kubernetes::guard::{MOST_PAGES, PAGE, Untrusted};

/// Progress of a list.
pub(crate) struct Pages {
    params: ListParams,
    taken: u32,
    version: Option<String>,
}

impl Pages {
    /// Starts a list with these parameters, before its first page.
    pub(crate) fn of(params: &ListParams) -> Self {
        Self { params: params.clone().limit(PAGE), taken: 0, version: None }
    }

    /// Returns the parameters for the next page.
    pub(crate) fn next(&self) -> ListParams {
        self.params.clone()
    }

    /// Returns the objects on a page, without the fields that only the API server needs.
    ///
    /// # Errors
    /// Fails if the list has no end.
    pub(crate) fn take<K: Resource + Clone>(&mut self, page: ObjectList<K>) -> kube::Result<Vec<K>> {
        self.taken += 1;
        let token = page.metadata.continue_.filter(|token| !token.is_empty());
        if token.is_some() && self.taken >= MOST_PAGES {
            let why = format!("a list has more than {MOST_PAGES} pages");
            return Err(kube::Error::Service(Untrusted::Answer(why).into()));
        }
        if token.is_none() {
            self.version = Some(page.metadata.resource_version.unwrap_or_default());
        }
        self.params.continue_token = token;
        let mut items = page.items;
        for item in &mut items {
            item.meta_mut().managed_fields = None;
        }
        Ok(items)
    }

    /// Returns the version of the whole list, once the last page has been taken.
    pub(crate) fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }
}

/// Reads one page of a list.
pub(crate) async fn page<K: Resource + Listed>(
    api: &Api<K>,
    params: &ListParams,
) -> kube::Result<ObjectList<K>> {
    let request = kube::core::Request::new(api.resource_url()).list(params);
    let text = api.clone().into_client().request_text(request.map_err(kube::Error::BuildRequest)?).await?;
    K::page(&text).map_err(kube::Error::SerdeError)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use http::{Request, Response};
    use k8s_openapi::api::core::v1::Pod;
    use kube::client::Body;
    use kube::{Client, ResourceExt};
    use serde_json::{Value, json};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::api::{Caller, TimeLimits};

    type Queries = Arc<Mutex<Vec<String>>>;

    /// Returns a caller whose API server responds to the nth request with `answer(n)`, and the received queries.
    fn caller(answer: impl Fn(usize) -> Value + Clone + Send + 'static) -> (Caller, Queries) {
        let (queries, count) = (Queries::default(), Arc::new(AtomicUsize::new(0)));
        let seen = Arc::clone(&queries);
        let service = tower::service_fn(move |request: Request<Body>| {
            seen.lock().unwrap().push(request.uri().query().unwrap_or_default().to_owned());
            let answer = answer(count.fetch_add(1, Ordering::SeqCst));
            let status = answer["code"].as_u64().unwrap_or(200);
            let status = u16::try_from(status).unwrap();
            let answer = Response::builder().status(status).body(Body::from(answer.to_string().into_bytes()));
            std::future::ready(answer.map_err(kube::Error::HttpError))
        });
        let client = Client::new(service, "shop");
        let stop = CancellationToken::new();
        (Caller::in_shop(client, TimeLimits::default(), stop), queries)
    }

    fn page(number: usize, next: &str) -> Value {
        let metadata = json!({"name": format!("web-{number}"), "managedFields": [{"manager": "kubelet"}]});
        json!({"kind": "PodList", "apiVersion": "v1", "items": [{"metadata": metadata}],
            "metadata": {"resourceVersion": "7", "continue": next}})
    }

    async fn names(caller: &Caller) -> kube::Result<Vec<String>> {
        let api = Api::<Pod>::namespaced(caller.client.clone(), "shop");
        let params = ListParams::default().labels("app=web");
        let known = |pod: Pod| {
            assert!(pod.managed_fields().is_empty());
            pod.name_any()
        };
        caller.list_as("list pods", &api, &params, known).await.unwrap()
    }

    #[tokio::test]
    async fn expired_page_token_restarts_list() {
        let forgotten =
            json!({"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": ""});
        let (caller, queries) = caller(move |n| match n {
            0 => page(0, "a"),
            1 => forgotten.clone(),
            2 => page(2, "b&limit=9"),
            _ => page(n, ""),
        });
        assert_eq!(names(&caller).await.unwrap(), ["web-2", "web-3"]);
        let queries = queries.lock().unwrap();
        let first = "&labelSelector=app%3Dweb&limit=100";
        let expected =
            ["", "&continue=a", "", "&continue=b%26limit%3D9"].map(|token| format!("{first}{token}"));
        assert_eq!(*queries, expected);
    }

    #[tokio::test]
    async fn endless_list_is_abandoned() {
        let (caller, queries) = caller(|n| page(n, "more"));
        let error = names(&caller).await.unwrap_err();
        assert!(rolldrop_kubernetes::guard::distrust(&error).is_some(), "{error:?}");
        assert_eq!(queries.lock().unwrap().len(), MOST_PAGES as usize);
    }
}
