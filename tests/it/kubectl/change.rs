//! Changes to single objects: labels, annotations, patches, and exposing workloads as Services.

use super::{Kubectl, LIMIT, wait_for};

#[test]
fn kubectl_sets_and_removes_labels() {
    let kubectl = Kubectl::in_namespace("change");
    kubectl.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: map}}");
    assert_eq!(kubectl.ok("label configmap map tier=front"), "configmap/map labeled\n");
    let refused = kubectl.fails("label configmap map tier=back");
    assert!(refused.contains("'tier' already has a value (front), and --overwrite is false"), "{refused}");
    kubectl.ok("label configmap map tier=back --overwrite");
    assert_eq!(kubectl.field("configmap/map", ".metadata.labels.tier"), "back");
    assert_eq!(kubectl.ok("label configmap map tier-"), "configmap/map unlabeled\n");
    assert_eq!(kubectl.field("configmap/map", ".metadata.labels.tier"), "");
    assert_eq!(kubectl.ok("annotate configmap map why=because"), "configmap/map annotated\n");
    assert_eq!(kubectl.field("configmap/map", ".metadata.annotations.why"), "because");
    let invalid = kubectl.fails("label configmap map bad=-");
    assert!(invalid.contains("invalid"), "{invalid}");
}

#[test]
fn patch_supports_all_three_types() {
    let kubectl = Kubectl::in_namespace("change");
    kubectl.run_web(0);
    let patched = kubectl.ok(r#"patch deployment web -p {"spec":{"minReadySeconds":1}}"#);
    assert_eq!(patched, "deployment.apps/web patched\n");
    kubectl.ok(r#"patch deployment web --type merge -p {"metadata":{"labels":{"app":null,"tier":"front"}}}"#);
    kubectl.ok(
        r#"patch deployment web --type json -p [{"op":"test","path":"/spec/replicas","value":0},{"op":"replace","path":"/spec/replicas","value":1}]"#,
    );
    let web: serde_json::Value = serde_json::from_str(&kubectl.ok("get deployment web -o json")).unwrap();
    assert_eq!(web["spec"]["minReadySeconds"], 1);
    assert_eq!(web["metadata"]["labels"], serde_json::json!({"tier": "front"}));
    assert_eq!(web["spec"]["replicas"], 1);
    // A controller may write its status between kubectl's two looks at a Deployment.
    wait_for("a patch that changes nothing", LIMIT, || {
        let unchanged = kubectl.ok(r#"patch deployment web -p {"spec":{"minReadySeconds":1}}"#);
        (unchanged == "deployment.apps/web patched (no change)\n").then_some(())
    });
    kubectl.ok("create configmap settings");
    let patch = || kubectl.ok(r#"patch configmap settings -p {"data":{"color":"blue"}}"#);
    assert_eq!(patch(), "configmap/settings patched\n");
    assert_eq!(patch(), "configmap/settings patched (no change)\n");
    let invalid = kubectl.fails(r#"patch deployment web -p {"spec":{"replicas":-1}}"#);
    assert!(
        invalid.contains("spec.replicas: Invalid value: -1: must be greater than or equal to 0"),
        "{invalid}"
    );
    let failed = kubectl
        .fails(r#"patch deployment web --type json -p [{"op":"test","path":"/spec/replicas","value":7}]"#);
    let told = "The request is invalid: the server rejected our request due to an error in our request: ";
    assert!(failed.starts_with(told), "{failed}");
    let nonsense = kubectl.fails("patch deployment web -p text");
    assert_eq!(nonsense, "Error from server (BadRequest): the patch must be an object\n");
}

#[test]
fn scale_subresource_validates_body() {
    let kubectl = Kubectl::in_namespace("change");
    kubectl.run_web(0);
    let patch =
        |body: &str| kubectl.run(&format!("patch deployment web --subresource scale --type merge -p {body}"));
    let refused = |body: &str| {
        let ran = patch(body);
        assert_eq!(ran.code(), Some(1), "{ran}");
        ran.stderr()
    };
    assert_eq!(patch(r#"{"spec":{"replicas":1}}"#).ok(), "scale.autoscaling/web patched\n");
    let negative = "The Scale \"web\" is invalid: spec.replicas: Invalid value: -2: must be greater than or \
                    equal to 0\n";
    assert_eq!(refused(r#"{"spec":{"replicas":-2}}"#), negative);
    let text = refused(r#"{"spec":{"replicas":"two"}}"#);
    assert!(text.contains("cannot unmarshal string into Go struct field ScaleSpec.spec.replicas"), "{text}");
    assert!(refused(r#"{"kind":"Deployment"}"#).contains("(Deployment) does not match"));
    let stale = refused(r#"{"metadata":{"resourceVersion":"1"},"spec":{"replicas":5}}"#);
    assert!(stale.contains("deployments.apps \"web\": the object has been modified"), "{stale}");
    let unknown = patch(r#"{"spec":{"replicaz":5}}"#);
    assert_eq!(unknown.stderr(), "Warning: unknown field \"spec.replicaz\"\n", "{unknown}");
    let replaced =
        r#"{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":{"name":"web"},"spec":{"replicaz":5}}"#;
    let path = format!("/apis/apps/v1/namespaces/{}/deployments/web/scale", kubectl.namespace());
    let strict = kubectl.with_manifest(&format!("replace --raw {path}?fieldValidation=Strict"), replaced);
    let told = "Scale in version \"v1\" cannot be handled as a Scale: strict decoding error: unknown field \
                \"spec.replicaz\"";
    assert!(strict.stderr().contains(told), "{strict}");
    assert_eq!(kubectl.field("deployment/web", ".spec.replicas"), "1");
}

#[test]
fn expose_creates_service_for_deployment() {
    let kubectl = Kubectl::in_namespace("change");
    kubectl.run_web(1);
    let exposed = kubectl.ok("expose deployment web --name front --port 80 --target-port 8080");
    assert_eq!(exposed, "service/front exposed\n");
    assert_eq!(kubectl.field("service/front", ".spec.selector.app"), "web");
    let pod = kubectl.field("pods", ".items[0].status.podIP");
    kubectl
        .until("get endpointslices -l kubernetes.io/service-name=front -o yaml", |text| text.contains(&pod));
}

#[test]
fn replace_refuses_stale_object() {
    let kubectl = Kubectl::in_namespace("change");
    kubectl.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: map}}");
    let stale = kubectl.ok("get configmap map -o json");
    kubectl.ok("label configmap map a=b");
    let refused = kubectl.with_manifest("replace", &stale);
    assert_eq!(refused.code(), Some(1), "{refused}");
    let conflict = "Operation cannot be fulfilled on configmaps \"map\": the object has been modified; \
                    please apply your changes to the latest version and try again";
    assert!(refused.stderr().contains(conflict), "{refused}");
}
