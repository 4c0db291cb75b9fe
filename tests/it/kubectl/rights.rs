//! Permissions of a pod's token: RBAC as kubectl shows it.

use super::{Kubectl, Ran, pod};
use crate::harness::{LIMIT, wait_for};

/// A pod with a service account, and kubectl with the pod's token.
struct Account<'a> {
    kubectl: &'a Kubectl,
    name: &'static str,
    token: String,
}

impl<'a> Account<'a> {
    #[track_caller]
    fn new(kubectl: &'a Kubectl, name: &'static str) -> Self {
        kubectl.ok(&format!("create serviceaccount {name}"));
        let script = "cat $ROLLDROP_SERVICE_ACCOUNT/token; echo; exec sleep 1000";
        let spec = format!("spec:\n  serviceAccountName: {name}\n");
        kubectl.apply(&pod(name, script).replace("spec:\n", &spec));
        let token = kubectl.until(&format!("logs {name}"), |log| log.ends_with('\n'));
        Self { kubectl, name, token: token.trim().to_owned() }
    }

    fn run(&self, args: &str) -> Ran {
        // The admin's kubeconfig also has a token; the one on the command line takes precedence.
        self.kubectl.run(&format!("{args} --token={}", self.token))
    }

    #[track_caller]
    fn ok(&self, args: &str) -> String {
        self.run(args).ok()
    }

    /// Checks that a command is refused, with this message.
    #[track_caller]
    fn is_refused(&self, args: &str, what: &str, where_to: &str) {
        let ran = self.run(args);
        let (namespace, name) = (self.kubectl.namespace(), self.name);
        let why = format!(
            "is forbidden: User \"system:serviceaccount:{namespace}:{name}\" cannot {what} in API group {where_to}\n"
        );
        let said = ran.stderr();
        assert!(ran.code() == Some(1) && said.ends_with(&why), "{ran}");
    }
}

#[test]
fn pod_token_grants_only_role_permissions() {
    let kubectl = Kubectl::in_namespace("rights");
    let namespace = kubectl.namespace().to_owned();
    let here = format!("in the namespace \"{namespace}\"");
    let web = Account::new(&kubectl, "web");
    web.is_refused("get pod web", "get resource \"pods\"", &format!("\"\" {here}"));
    assert_eq!(
        web.ok("auth whoami -o jsonpath={.status.userInfo.username}"),
        format!("system:serviceaccount:{namespace}:web")
    );
    // Discovery is open to everyone.
    assert!(web.ok("api-resources").contains("rolebindings"));

    kubectl.ok("create role reader --verb=get,list --resource=pods,pods/log");
    kubectl.ok("create role own --verb=delete --resource=pods --resource-name=web");
    for role in ["reader", "own"] {
        kubectl.ok(&format!("create rolebinding {role} --role={role} --serviceaccount={namespace}:web"));
    }
    assert_eq!(web.ok("get pods -o name"), "pod/web\n");
    assert_eq!(web.ok("logs web"), format!("{}\n", web.token));
    assert_eq!(web.ok("auth can-i delete pod/web"), "yes\n");
    let other = web.run("auth can-i delete pod/other");
    assert_eq!((other.code(), other.stdout().as_str()), (Some(1), "no\n"));

    web.is_refused("delete pod other", "delete resource \"pods\"", &format!("\"\" {here}"));
    web.is_refused("get pods --watch", "watch resource \"pods\"", &format!("\"\" {here}"));
    web.is_refused("get secrets", "list resource \"secrets\"", &format!("\"\" {here}"));
    web.is_refused("get pods --all-namespaces", "list resource \"pods\"", "\"\" at the cluster scope");
    web.is_refused("get deployment web", "get resource \"deployments\"", &format!("\"apps\" {here}"));
    web.is_refused("get pods -n default", "list resource \"pods\"", "\"\" in the namespace \"default\"");
    web.is_refused("create configmap a", "create resource \"configmaps\"", &format!("\"\" {here}"));

    // A user who may only patch existing objects must not be able to create new ones.
    kubectl.ok("create role patcher --verb=get,patch --resource=configmaps");
    kubectl
        .ok(&format!("create rolebinding patcher --role=patcher --group=system:serviceaccounts:{namespace}"));
    let map = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {b: c}}";
    let apply = format!("apply --server-side --token={}", web.token);
    let refused = kubectl.with_manifest(&apply, map).stderr();
    assert!(refused.contains("cannot create resource \"configmaps\""), "{refused}");
    kubectl.ok("create configmap a");
    kubectl.with_manifest(&apply, map).ok();

    // The error names a role that does not exist.
    kubectl.ok(&format!("create rolebinding later --clusterrole=later --serviceaccount={namespace}:web"));
    let secrets = format!("\"\" {here}: RBAC: clusterrole.rbac.authorization.k8s.io \"later\" not found");
    web.is_refused("get secrets", "list resource \"secrets\"", &secrets);

    // Permissions end with the role binding, and the token's validity with the pod.
    kubectl.ok("delete rolebinding reader");
    web.is_refused("get pods", "list resource \"pods\"", &secrets.replace("secrets", "pods"));
    // An account that may not get the pod cannot wait for its deletion.
    web.ok("delete pod web --wait=false");
    kubectl.ok("wait --for=delete pod/web --timeout=120s");
    wait_for("the token to become invalid", LIMIT, || {
        let said = web.run("get pod web").stderr().contains("You must be logged in to the server");
        said.then_some(())
    });
}

#[test]
fn cluster_role_binding_sets_scope() {
    let kubectl = Kubectl::in_namespace("rights");
    let namespace = kubectl.namespace().to_owned();
    let viewer = Account::new(&kubectl, "viewer");
    kubectl.ok(&format!("create rolebinding view --clusterrole=view --serviceaccount={namespace}:viewer"));
    let can = |what: &str| viewer.run(&format!("auth can-i {what}")).stdout() == "yes\n";
    for allowed in ["list pods", "get pods --subresource=log", "watch endpointslices.discovery.k8s.io"] {
        assert!(can(allowed), "{allowed}");
    }
    for refused in ["list pods -n default", "list secrets", "create pods", "list nodes", "get /metrics"] {
        assert!(!can(refused), "{refused}");
    }
    kubectl.ok(&format!("create clusterrole {namespace} --verb=list --resource=nodes,pods"));
    let binding = format!("{namespace} --clusterrole={namespace} --serviceaccount={namespace}:viewer");
    kubectl.ok(&format!("create clusterrolebinding {binding}"));
    assert!(can("list nodes") && can("list pods -n default") && !can("get pods -n default"));
    kubectl.ok(&format!("delete clusterrole,clusterrolebinding {namespace}"));
}

#[test]
fn role_binding_refuses_role_change() {
    let kubectl = Kubectl::in_namespace("rights");
    kubectl.ok("create role a:b --verb=get --resource=pods");
    kubectl.ok("create rolebinding both --role=a:b --serviceaccount=shop:web --group=ops");
    let binding = kubectl.ok("describe rolebinding both");
    assert!(["a:b", "ops", "web", "shop"].iter().all(|part| binding.contains(part)), "{binding}");
    assert!(kubectl.ok("describe role a:b").contains("pods"));
    let refused = kubectl.fails("patch rolebinding both -p {\"roleRef\":{\"name\":\"c\"}}");
    assert!(refused.contains("cannot change roleRef"), "{refused}");
    assert!(
        kubectl
            .ok("get clusterroles -o name")
            .contains("clusterrole.rbac.authorization.k8s.io/system:discovery\n")
    );
}
