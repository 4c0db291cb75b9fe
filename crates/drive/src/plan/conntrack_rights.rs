//! Calls and permissions for asking the kernel where connections are routed, and checks that the kernel has
//! this information.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::ApiResource;
use kube::{Api, ResourceExt};

use super::call::{About, RunPlan};
use crate::api::Caller;
use crate::error::{CoordinatorError, Result};
use crate::observe::proxy_detection;
use rolldrop_record::Evidence;
use rolldrop_record::service_proxy::ServiceProxy;
use rolldrop_scenario::Scenario;

/// Namespace label with the pod security level that the namespace allows.
const ENFORCE: &str = "pod-security.kubernetes.io/enforce";

/// Adds the calls and permissions for asking the kernel, if the scenario requires it.
///
/// # Errors
/// Fails if the kernel does not have this information, or if the namespace does not allow the pods that would ask.
pub(super) async fn plan_evidence(
    caller: &Caller,
    scenario: &Scenario,
    load_workers: Option<usize>,
    plan: &mut RunPlan,
) -> Result<()> {
    match scenario.load.settings.evidence {
        None => return Ok(()),
        Some(Evidence::Conntrack) => {}
    }
    let config = About::all(ApiResource::erase::<ConfigMap>(&()), Some(proxy_detection::NAMESPACE));
    plan.helps("get", &config, "checks that the Service proxy leaves connections to the kernel");
    // Without permission to read the mode, this check is left to the load workers.
    let (mode, _) = proxy_detection::find(caller, &[]).await?.known;
    if mode == ServiceProxy::Userspace {
        return Err(CoordinatorError::NoEvidence(
            "the Service proxy is in userspace mode: it opens its own connections to the pods, which the \
             kernel cannot match to clients. On the embedded cluster use --dataplane kernel"
                .to_owned(),
        ));
    }
    let Some(workers) = load_workers else {
        plan.own.push(
            "asks the kernel of the machine that sends the load which pod each connection goes to".into(),
        );
        return Ok(());
    };
    let namespace = About::all(ApiResource::erase::<Namespace>(&()), None).named(&caller.namespace);
    plan.helps("get", &namespace, "checks that it allows privileged pods");
    let namespaces = Api::<Namespace>::all(caller.client.clone());
    let found = caller.ask_for(&namespaces, "read the namespace", &caller.namespace).await?;
    if let Some(level) = found.ok().and_then(|found| found.labels().get(ENFORCE).cloned())
        && level != "privileged"
    {
        return Err(CoordinatorError::NoEvidence(format!(
            "namespace {} allows only {level} pods ({ENFORCE}), but the load workers need their nodes' network and \
             NET_ADMIN: use another namespace (-n), or omit --evidence",
            caller.namespace
        )));
    }
    let s = if workers == 1 { "" } else { "s" };
    plan.effects.push(format!(
        "runs {workers} load worker{s} as root with NET_ADMIN in their nodes' network, to ask the kernel which pod \
         each connection goes to (--evidence conntrack)"
    ));
    Ok(())
}
