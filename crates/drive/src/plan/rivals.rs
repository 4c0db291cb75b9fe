//! Controllers that may change a workload while it is measured: autoscalers for its replicas or its pods' resources.

use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use serde_json::Value;

use crate::api::Caller;
use crate::error::Result;

/// A kind of autoscaler.
struct AutoscalerKind {
    group: &'static str,
    version: &'static str,
    name: &'static str,
    /// JSON pointer to the reference that contains the workload's name, and its kind unless it is a Deployment.
    target: &'static str,
    /// Describes the change that an autoscaler may make, with the remedy; `None` if it makes none.
    says: fn(&Value, &str) -> Option<String>,
}

const KINDS: [AutoscalerKind; 3] = [
    AutoscalerKind {
        group: "autoscaling",
        version: "v2",
        name: "HorizontalPodAutoscaler",
        target: "/spec/scaleTargetRef",
        says: horizontal,
    },
    AutoscalerKind {
        group: "keda.sh",
        version: "v1alpha1",
        name: "ScaledObject",
        target: "/spec/scaleTargetRef",
        says: keda,
    },
    AutoscalerKind {
        group: "autoscaling.k8s.io",
        version: "v1",
        name: "VerticalPodAutoscaler",
        target: "/spec/targetRef",
        says: vertical,
    },
];
/// Annotations that pause KEDA.
const PAUSED: [&str; 2] = ["autoscaling.keda.sh/paused", "autoscaling.keda.sh/paused-replicas"];

fn horizontal(scaler: &Value, namespace: &str) -> Option<String> {
    let of_keda = |owner: &Value| owner["kind"] == "ScaledObject";
    if scaler["metadata"]["ownerReferences"].as_array().is_some_and(|owners| owners.iter().any(of_keda)) {
        return None;
    }
    let (name, spec) = (scaler["metadata"]["name"].as_str()?, &scaler["spec"]);
    let least = spec["minReplicas"].as_u64().unwrap_or(1);
    let most = spec["maxReplicas"].as_u64().filter(|most| *most != least)?;
    Some(format!(
        "HorizontalPodAutoscaler {name} may change the replicas ({least} to {most}) during the run, which would \
         end the run: set minReplicas and maxReplicas to the same number until the run is over (kubectl edit hpa \
         {name} -n {namespace})"
    ))
}

fn keda(scaler: &Value, namespace: &str) -> Option<String> {
    let name = scaler["metadata"]["name"].as_str()?;
    let annotations = &scaler["metadata"]["annotations"];
    let is_paused = PAUSED.iter().any(|paused| annotations[paused].as_str().is_some_and(|is| is != "false"));
    let [paused, _] = PAUSED;
    (!is_paused).then(|| {
        format!(
            "KEDA's ScaledObject {name} may change the replicas during the run, which would end the run: pause it \
             until the run is over (kubectl annotate scaledobject {name} -n {namespace} {paused}=true)"
        )
    })
}

fn vertical(scaler: &Value, namespace: &str) -> Option<String> {
    let name = scaler["metadata"]["name"].as_str()?;
    let mode = scaler["spec"]["updatePolicy"]["updateMode"].as_str().unwrap_or("Auto");
    (!["Off", "Initial"].contains(&mode)).then(|| {
        format!(
            "VerticalPodAutoscaler {name} may evict pods during the run (updateMode {mode}), outside of any \
             rollout: set updateMode to Off until the run is over (kubectl edit vpa {name} -n {namespace})"
        )
    })
}

/// Returns a warning for each autoscaler that may change a workload while it is measured.
///
/// # Errors
/// Fails if the API server does not respond.
pub async fn find_rivals(caller: &Caller, workload: &Value) -> Result<Vec<String>> {
    let (mut rivals, mut unknown) = (Vec::new(), Vec::new());
    for AutoscalerKind { group, version, name, target, says } in KINDS {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, name));
        let plural = &resource.plural;
        let api = caller.dynamic_api(&resource);
        let is_meant = |scaler: &Value| {
            let target = scaler.pointer(target).unwrap_or(&Value::Null);
            target["name"] == workload["metadata"]["name"]
                && target["kind"].as_str().unwrap_or("Deployment") == workload["kind"]
        };
        let of = |scaler: DynamicObject| {
            let scaler = serde_json::to_value(scaler).unwrap_or_default();
            is_meant(&scaler).then(|| says(&scaler, &caller.namespace)).flatten()
        };
        match caller.list_as(&format!("list {plural}"), &api, &ListParams::default(), of).await? {
            Ok(found) => rivals.extend(found.into_iter().flatten()),
            // The cluster does not have this kind.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(_) => unknown.push(format!("{plural}.{group}")),
        }
    }
    if !unknown.is_empty() {
        rivals.push(format!(
            "rolldrop cannot tell whether an autoscaler changes the workload: the API server refused to list {} in \
             namespace {}",
            unknown.join(", "),
            caller.namespace
        ));
    }
    Ok(rivals)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::api::TimeLimits;
    use crate::session::tests::api;

    async fn rivals(answer: fn(&str) -> (u16, Vec<Value>)) -> Vec<String> {
        let (client, _) = api(move |_, path| {
            let (code, items) = answer(path.rsplit('/').next().unwrap());
            let body = match code {
                200 => json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}),
                code => json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                    "reason": "as told", "message": "as told"}),
            };
            (code, body.to_string())
        });
        let (limits, stop) = (TimeLimits::default(), CancellationToken::new());
        let caller = Caller::in_shop(client, limits, stop);
        find_rivals(&caller, &json!({"kind": "Deployment", "metadata": {"name": "web"}})).await.unwrap()
    }

    fn scaler(spec: Value) -> Value {
        json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec})
    }

    #[tokio::test]
    async fn autoscalers_are_named_with_remedy() {
        let found = rivals(|plural| {
            let target = json!({"kind": "Deployment", "name": "web"});
            let items = match plural {
                "horizontalpodautoscalers" => vec![
                    scaler(json!({"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 10})),
                    scaler(json!({"scaleTargetRef": target, "minReplicas": 3, "maxReplicas": 3})),
                    scaler(
                        json!({"scaleTargetRef": {"kind": "Deployment", "name": "other"}, "maxReplicas": 10}),
                    ),
                ],
                "scaledobjects" => vec![scaler(json!({"scaleTargetRef": {"name": "web"}}))],
                _ => vec![
                    scaler(json!({"targetRef": target})),
                    scaler(json!({"targetRef": target,
                    "updatePolicy": {"updateMode": "Off"}})),
                ],
            };
            (200, items)
        });
        let found = found.await;
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(
            found[0].starts_with("HorizontalPodAutoscaler web may change the replicas (2 to 10)"),
            "{found:?}"
        );
        assert!(
            found[1].contains("kubectl annotate scaledobject web -n shop autoscaling.keda.sh/paused=true")
        );
        assert!(
            found[2].contains("VerticalPodAutoscaler web may evict pods during the run (updateMode Auto)")
        );
    }

    #[tokio::test]
    async fn refused_lists_leave_autoscalers_unknown() {
        let found =
            rivals(|plural| if plural == "scaledobjects" { (404, Vec::new()) } else { (403, Vec::new()) });
        let said = "rolldrop cannot tell whether an autoscaler changes the workload: the API server refused to list \
            horizontalpodautoscalers.autoscaling, verticalpodautoscalers.autoscaling.k8s.io in namespace shop";
        assert_eq!(found.await, [said]);
        assert!(rivals(|_| (404, Vec::new())).await.is_empty());
    }
}
