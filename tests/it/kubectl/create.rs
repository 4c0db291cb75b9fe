//! `kubectl create`, `run` and `auth`. Their typed clients send protobuf.

use super::{Kubectl, web};

#[test]
fn create_refuses_existing_object() {
    let kubectl = Kubectl::in_namespace("create");
    assert_eq!(kubectl.with_manifest("create", &web(0)).ok(), "deployment.apps/web created\n");
    let again = kubectl.with_manifest("create", &web(0));
    let exists = "Error from server (AlreadyExists): error when creating \"STDIN\": deployments.apps \"web\" \
                  already exists\n";
    assert_eq!((again.code(), again.stderr().as_str()), (Some(1), exists), "{again}");
}

#[test]
fn create_builds_objects_from_arguments() {
    let kubectl = Kubectl::in_namespace("create");
    let created =
        kubectl.ok("create deployment api --image=host/sleep:1 --replicas=2 --port=80 -- sleep 1000");
    assert_eq!(created, "deployment.apps/api created\n");
    kubectl.ok("rollout status deployment api --timeout=300s");
    let api: serde_json::Value = serde_json::from_str(&kubectl.ok("get deployment api -o json")).unwrap();
    let container = &api["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["command"], serde_json::json!(["sleep", "1000"]));
    assert_eq!(container["ports"][0]["containerPort"], 80);
    assert_eq!(api["spec"]["selector"]["matchLabels"], serde_json::json!({"app": "api"}));

    kubectl.ok("create configmap settings --from-literal=colour=blue --from-literal=size=9");
    assert_eq!(kubectl.field("configmap/settings", ".data"), r#"{"colour":"blue","size":"9"}"#);
    kubectl.ok("create secret generic login --from-literal=password=open");
    assert_eq!(kubectl.field("secret/login", ".data.password"), "b3Blbg==");
    kubectl.ok("create serviceaccount robot");
    kubectl.ok("create service clusterip front --tcp=80:8080");
    assert_eq!(kubectl.field("service/front", ".spec.ports[0].targetPort"), "8080");
    kubectl.ok("create poddisruptionbudget api --selector=app=api --min-available=50%");
    assert_eq!(kubectl.field("pdb/api", ".spec.minAvailable"), "50%");
    kubectl.ok("create job once --image=host/true:1 -- true");
    kubectl.ok("wait job/once --for=condition=Complete --timeout=300s");
    let dry = kubectl.ok("create namespace elsewhere --dry-run=server");
    assert_eq!(dry, "namespace/elsewhere created (server dry run)\n");
}

#[test]
fn ingress_keeps_its_class_and_rules() {
    let kubectl = Kubectl::in_namespace("create");
    kubectl
        .ok("create ingress web --class=usual --rule=shop.example.com/*=web:80 --rule=*.example.com/a=web:http,tls=pair");
    assert_eq!(kubectl.field("ingress/web", ".spec.ingressClassName"), "usual");
    assert!(kubectl.ok("describe ingress web").contains("shop.example.com"));
}

#[test]
fn kubectl_run_starts_named_pod() {
    let kubectl = Kubectl::in_namespace("create");
    assert_eq!(
        kubectl.ok("run job --image=host/echo:1 --restart=Never --command -- echo hello"),
        "pod/job created\n"
    );
    kubectl.ok("wait pod/job --for=jsonpath={.status.phase}=Succeeded --timeout=300s");
    assert_eq!(kubectl.ok("logs job"), "hello\n");
}

#[test]
fn pod_uses_service_account_without_mount() {
    let kubectl = Kubectl::in_namespace("create");
    let script = format!(
        "{} auth whoami -o jsonpath='{{.status.userInfo.username}}'; \
                          cat $ROLLDROP_SERVICE_ACCOUNT/namespace; echo; echo $ROLLDROP_SERVICE_ACCOUNT",
        super::KUBECTL
    );
    kubectl.apply(&super::pod("asker", &script));
    kubectl.ok("wait pod/asker --for=jsonpath={.status.phase}=Succeeded --timeout=300s");
    let log = kubectl.ok("logs asker");
    let (said, dir) = log.trim().split_once('\n').expect("two lines");
    let namespace = kubectl.namespace();
    assert_eq!(said, format!("system:serviceaccount:{namespace}:default{namespace}"));
    kubectl.ok("delete pod asker");
    super::wait_for("the token is gone", super::LIMIT, || {
        (!std::path::Path::new(dir).exists()).then_some(())
    });
}

#[test]
fn whoami_names_admin_with_all_permissions() {
    let kubectl = Kubectl::in_namespace("create");
    assert!(kubectl.ok("auth whoami").contains("kubernetes-admin"));
    assert_eq!(kubectl.ok("auth can-i delete pods"), "yes\n");
}
