//! Ports that the sidecar must not take, and NetworkPolicies that do not admit clients to its port.

use super::*;

/// Returns the sidecar's ports in the output for this text.
fn sidecar_ports(text: &str, options: &InjectOptions) -> [u16; 2] {
    let output = inject(text, options).expect("manifests").text;
    let objects = Manifests::parse("out.yaml", &output).expect("manifests").objects();
    let ports = super::super::container::ports(&objects[0], "/spec/template").expect("a sidecar");
    [ports.listen, ports.admin]
}

#[test]
fn sidecar_takes_no_port_that_app_uses() {
    assert_eq!(sidecar_ports(SHOP, &options()), [18080, 18081]);
    let undeclared = SHOP.replace("          ports:\n            - name: http # as the Service says\n              containerPort: 8080\n", "");
    assert!(!undeclared.contains("containerPort"));
    let by_service = undeclared.replace("targetPort: http", "targetPort: 18080");
    assert_eq!(sidecar_ports(&by_service, &options()), [18081, 18082]);
    let by_port = undeclared.replace("port: 80, targetPort: http", "port: 18081");
    assert_eq!(sidecar_ports(&by_port, &options()), [18080, 18082]);
    let chosen = InjectOptions { port: Some(18080), ..named(&["deployment/web"]) };
    let (alone, _) = undeclared.split_once("---").expect("two documents");
    assert_eq!(sidecar_ports(alone, &chosen), [18081, 18082]);
    for (before, after) in [
        ("httpGet: {path: /readyz, port: http}", "httpGet: {path: /readyz, port: 18081}"),
        ("httpGet: {path: /readyz, port: http}", "grpc: {port: 18081}"),
        ("preStop: {sleep: {seconds: 5}}", "preStop: {httpGet: {path: /quit, port: 18081}}"),
        ("preStop: {sleep: {seconds: 5}}", "postStart: {tcpSocket: {port: 18081}}"),
    ] {
        assert_eq!(sidecar_ports(&SHOP.replace(before, after), &options()), [18080, 18082], "{after}");
    }
    // A Service that the user pointed to the sidecar leads to no port of the app.
    let mut objects: Vec<Value> = serde_saphyr::from_multiple(SHOP).expect("YAML");
    let mut other = objects[0].clone();
    (other["metadata"]["name"], other["spec"]["template"]["metadata"]["labels"]["app"]) =
        ("db".into(), "db".into());
    inject_into(&mut objects, &options()).expect("manifests");
    objects[1]["spec"]["ports"][0]["targetPort"] = 18080.into();
    objects.push(other);
    inject_into(&mut objects, &options()).expect("manifests");
    let args = &objects[2]["spec"]["template"]["spec"]["initContainers"][0]["args"];
    assert_eq!(args[1], "--listen=$(POD_IPS):18080");
}

/// Returns the reason why a policy with this spec forbids the sidecar in the Deployment; `None` if it does not.
fn shut_out(spec: &str, options: &InjectOptions) -> Option<String> {
    let policy = format!(
        "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {{name: front}}\nspec: {spec}\n"
    );
    inject(&format!("{SHOP}---\n{policy}"), options).err().map(|error| error.to_string())
}

#[test]
fn policy_that_admits_only_app_port_is_refused() {
    let app = "{ports: [{port: 8080}]}";
    let of = |ingress: &str| format!("{{podSelector: {{matchLabels: {{app: web}}}}, ingress: [{ingress}]}}");
    let why = shut_out(&of(app), &options()).expect("a refusal");
    assert_eq!(
        why,
        "shop.yaml:2: deployment/web: networkpolicy/front admits clients to port 8080 but not to the sidecar's port 18080: \
         add port 18080 to the policy's rule"
    );
    let gateway = "{from: [{podSelector: {matchLabels: {app: gateway}}}], ports: [{port: 8080}]}";
    let any =
        "{from: [{podSelector: {matchLabels: {app: gateway}}}, {podSelector: {}}], ports: [{port: 18080}]}";
    let selecting = |selector: &str| format!("{{podSelector: {{{selector}}}, ingress: [{app}]}}");
    for refused in [
        of("{ports: [{port: 8000, endPort: 8100, protocol: TCP}]}"),
        of(&format!("{app}, {{from: [{{podSelector: {{}}}}], ports: [{{port: 18080}}]}}")),
        of(&format!("{gateway}, {{from: [{{ipBlock: {{cidr: 10.0.0.0/8}}}}]}}")),
        of(&format!("{app}, {{ports: [{{port: 18080, protocol: UDP}}, {{port: 18081}}]}}")),
        selecting(""),
        selecting(
            "matchExpressions: [{key: app, operator: In, values: [db, web]}, {key: tier, operator: DoesNotExist}]",
        ),
        selecting(
            "matchExpressions: [{key: app, operator: NotIn, values: [db]}, {key: app, operator: Exists}]",
        ),
        of(app).replace("ingress:", "policyTypes: [Egress, Ingress], ingress:"),
    ] {
        assert!(shut_out(&refused, &options()).is_some(), "{refused}");
    }
    for fine in [
        of(""),
        of("{}"),
        of("{ports: [{port: 9090}]}"),
        of("{ports: [{port: 8080}, {port: 18080}]}"),
        of("{ports: [{port: 8000, endPort: 20000}]}"),
        of(&format!("{app}, {{}}")),
        of(&format!("{gateway}, {any}")),
        selecting("matchLabels: {app: db}"),
        selecting("matchExpressions: [{key: app, operator: NotIn, values: [web]}]"),
        of(app).replace("ingress:", "policyTypes: [Egress], ingress:"),
    ] {
        assert_eq!(shut_out(&fine, &options()), None, "{fine}");
    }
}

/// Before Kubernetes 1.33 a port's name stays with the app.
#[test]
fn policy_by_name_follows_moved_name() {
    let by_name = "{podSelector: {}, ingress: [{ports: [{port: http}]}]}";
    assert_eq!(shut_out(by_name, &options()), None);
    let old = InjectOptions { kubernetes: KubernetesVersion::NATIVE_SIDECARS, ..options() };
    assert!(shut_out(by_name, &old).expect("a refusal").contains("admits clients to port 8080"));
}

#[test]
fn policies_of_cluster_are_checked_after_injection() {
    let rule = |port: Value| {
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "front"},
            "spec": {"podSelector": {}, "ingress": [{"ports": [{"port": port}]}]}})
    };
    for (kubernetes, admitted) in [
        (KubernetesVersion::NATIVE_SIDECARS, json!(18080)),
        (KubernetesVersion::NAMED_SIDECAR_PORTS, json!("http")),
    ] {
        let mut objects: Vec<Value> = serde_saphyr::from_multiple(SHOP).expect("YAML");
        let refused = |objects: &[Value], port: Value| refuse_network_policies(objects, &[rule(port)]).err();
        assert!(refused(&objects, json!(8080)).is_none(), "there is no sidecar yet");
        inject_into(&mut objects, &InjectOptions { kubernetes, ..options() }).expect("manifests");
        let why = refused(&objects, json!(8080)).expect("a refusal").to_string();
        assert!(
            why.starts_with("deployment/web: networkpolicy/front admits clients to port 8080 but"),
            "{why}"
        );
        assert!(refused(&objects, admitted).is_none());
    }
}
