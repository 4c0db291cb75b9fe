//! Tests the error messages for common mistakes.

use super::*;

/// Returns the causes of a rejection, each as `field: message`.
fn complaints(resource: Resource, object: Value) -> Vec<String> {
    let refused = registry().create(resource, "default", object).unwrap_err();
    causes(&refused)
}

fn causes(refused: &Status) -> Vec<String> {
    assert_eq!((refused.code(), refused.reason()), (422, "Invalid"), "{refused}");
    let causes = refused.to_json()["details"]["causes"].as_array().unwrap().clone();
    let text = |cause: &Value, field: &str| cause[field].as_str().unwrap().to_owned();
    causes.iter().map(|cause| format!("{}: {}", text(cause, "field"), text(cause, "message"))).collect()
}

fn pod_with(change: impl FnOnce(&mut Value)) -> Value {
    let mut pod = pod("a");
    change(&mut pod["spec"]);
    pod
}

fn container_with(field: &str, value: Value) -> Value {
    pod_with(|spec| spec["containers"][0][field] = value)
}

#[test]
fn invalid_update_returns_recorded_error() {
    let golden = recorded("error-422");
    let registry = registry();
    let mut object = golden["request"]["body"].clone();
    let wanted = object["spec"]["replicas"].take();
    for field in ["uid", "resourceVersion"] {
        remove(&mut object["metadata"], field);
    }
    registry.create(Resource::Deployments, "default", object.clone()).unwrap();
    object["spec"]["replicas"] = wanted;
    let refused = registry.update(Resource::Deployments, "default", "web", object).unwrap_err();
    assert_eq!(refused.to_json(), golden["response"]);
}

#[test]
fn conflict_and_not_found_match_recorded_errors() {
    let registry = registry();
    let golden = recorded("error-409-exists");
    let service = golden["request"]["body"].clone();
    registry.create(Resource::Services, "default", service.clone()).unwrap();
    let taken = registry.create(Resource::Services, "default", service).unwrap_err();
    assert_eq!(taken.to_json(), golden["response"]);
    let absent = registry.get(Resource::Pods, "default", "nosuch").unwrap_err();
    assert_eq!(absent.to_json(), recorded("error-404")["response"]);
    registry.create(Resource::Deployments, "default", deployment()).unwrap();
    let mut stale = deployment();
    stale["metadata"]["resourceVersion"] = json!("1");
    let stale = registry.update(Resource::Deployments, "default", "web", stale).unwrap_err();
    assert_eq!(stale.to_json(), recorded("error-409-conflict")["response"]);
}

#[test]
fn registry_rejects_invalid_pods() {
    let cases = [
        (pod_with(|spec| spec["containers"] = json!([])), "spec.containers: Required value"),
        (container_with("image", json!("")), "spec.containers[0].image: Required value"),
        (
            container_with("ports", json!([{"containerPort": 70_000}])),
            "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
        ),
        (
            container_with(
                "ports",
                json!([{"containerPort": 80, "name": "a"}, {"containerPort": 81, "name": "a"}]),
            ),
            "spec.containers[0].ports[1].name: Duplicate value: \"a\"",
        ),
        (
            container_with("readinessProbe", json!({"periodSeconds": 1})),
            "spec.containers[0].readinessProbe: Required value: must specify a handler type",
        ),
        (
            container_with("livenessProbe", json!({"tcpSocket": {"port": 1}, "exec": {"command": ["a"]}})),
            "spec.containers[0].livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type",
        ),
        (
            container_with("lifecycle", json!({"preStop": {"sleep": {"seconds": 31}}})),
            "spec.containers[0].lifecycle.preStop.sleep: Invalid value: 31: must be non-negative and less than terminationGracePeriodSeconds (30)",
        ),
        (
            container_with(
                "env",
                json!([{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
            ),
            "spec.containers[0].env[0].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty",
        ),
        (
            container_with("volumeMounts", json!([{"name": "v", "mountPath": "/v"}])),
            "spec.containers[0].volumeMounts[0].name: Not found: \"v\"",
        ),
        (
            pod_with(|spec| spec["restartPolicy"] = json!("Sometimes")),
            "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"Never\", \"OnFailure\"",
        ),
        (
            pod_with(|spec| {
                spec["initContainers"] = json!([{"name": "app", "image": "i"}]);
            }),
            "spec.initContainers[0].name: Duplicate value: \"app\"",
        ),
        (
            pod_with(|spec| {
                spec["containers"] = json!([{"name": "app", "image": "i"}, {"name": "app", "image": "i"}]);
            }),
            "spec.containers[1].name: Duplicate value: \"app\"",
        ),
        (
            pod_with(|spec| {
                let hook = json!({"preStop": {"exec": {"command": ["true"]}}});
                spec["initContainers"] = json!([{"name": "init", "image": "i", "lifecycle": hook}]);
            }),
            "spec.initContainers[0].lifecycle: Forbidden: may not be set for init containers without restartPolicy=Always",
        ),
    ];
    for (pod, complaint) in cases {
        assert_eq!(complaints(Resource::Pods, pod), [complaint]);
    }
    // The sleep in an exec hook is not checked, and a negative grace period means the minimum.
    let fine = pod_with(|spec| {
        spec["terminationGracePeriodSeconds"] = json!(-5);
        spec["containers"][0]["lifecycle"] = json!({"preStop": {"exec": {"command": ["sleep", "99"]}}});
    });
    let created = registry().create(Resource::Pods, "default", fine).unwrap();
    assert_eq!(created["spec"]["terminationGracePeriodSeconds"], 1);
}

#[test]
fn registry_rejects_invalid_workloads() {
    let mut bad = deployment();
    bad["spec"]["template"]["metadata"]["labels"] = json!({"app": "api"});
    bad["spec"]["strategy"] = json!({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}});
    bad["spec"]["minReadySeconds"] = json!(700);
    assert_eq!(
        complaints(Resource::Deployments, bad),
        [
            "spec.template.metadata.labels: Invalid value: {\"app\":\"api\"}: `selector` does not match template `labels`",
            "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: \"0%\": may not be 0 when `maxSurge` is 0",
            "spec.progressDeadlineSeconds: Invalid value: 600: must be greater than minReadySeconds",
        ]
    );
    let mut unselective = deployment();
    remove(&mut unselective["spec"], "selector");
    assert_eq!(complaints(Resource::Deployments, unselective), ["spec.selector: Required value"]);
    let registry = registry();
    registry.create(Resource::Deployments, "default", deployment()).unwrap();
    let refused = registry.modify(Resource::Deployments, "default", "web", ObjectPart::Main, |object| {
        object["spec"]["selector"] = json!({"matchLabels": {"app": "web", "a": "b"}});
        object["spec"]["template"]["metadata"]["labels"] = json!({"app": "web", "a": "b"});
    });
    let complaint =
        "spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"b\",\"app\":\"web\"}}: field is immutable";
    assert_eq!(causes(&refused.unwrap_err()), [complaint]);

    let template = json!({"spec": {"containers": [{"name": "app", "image": "i"}]}});
    let job = json!({"metadata": {"name": "pi"}, "spec": {"completionMode": "Indexed", "parallelism": 2, "template": template}});
    assert_eq!(
        complaints(Resource::Jobs, job),
        [
            "spec.completions: Required value: when completion mode is Indexed",
            "spec.template.spec.restartPolicy: Required value: valid values: \"OnFailure\", \"Never\"",
        ]
    );
    let budget = json!({"metadata": {"name": "web"}, "spec": {"minAvailable": 1, "maxUnavailable": "120%"}});
    assert_eq!(
        complaints(Resource::PodDisruptionBudgets, budget),
        [
            "spec: Invalid value: {\"maxUnavailable\":\"120%\",\"minAvailable\":1}: minAvailable and maxUnavailable cannot be both set",
        ]
    );
}

#[test]
fn invalid_stateful_set_yields_field_errors() {
    let set = |change: fn(&mut Value)| {
        let mut set = deployment();
        remove(&mut set["spec"], "strategy");
        change(&mut set["spec"]);
        set
    };
    let rolling = |rolling: Value| json!({"type": "RollingUpdate", "rollingUpdate": rolling});
    let mut wrong = set(|spec| spec["podManagementPolicy"] = json!("Random"));
    wrong["spec"]["updateStrategy"] = rolling(json!({"partition": -1, "maxUnavailable": 0}));
    assert_eq!(
        complaints(Resource::StatefulSets, wrong),
        [
            "spec.podManagementPolicy: Unsupported value: \"Random\": supported values: \"OrderedReady\", \"Parallel\"",
            "spec.updateStrategy.rollingUpdate.partition: Invalid value: -1: must be greater than or equal to 0",
            "spec.updateStrategy.rollingUpdate.maxUnavailable: Invalid value: 0: cannot be 0",
        ]
    );
    let on_delete = set(|spec| {
        spec["updateStrategy"] = json!({"type": "OnDelete", "rollingUpdate": {"partition": 1}});
    });
    assert_eq!(
        complaints(Resource::StatefulSets, on_delete),
        [
            "spec.updateStrategy.rollingUpdate: Invalid value: {\"partition\":1}: only allowed for updateStrategy 'RollingUpdate'"
        ]
    );
    let registry = registry();
    let created = registry.create(Resource::StatefulSets, "default", set(|_| {})).unwrap();
    assert_eq!(created["spec"]["updateStrategy"], rolling(json!({"partition": 0, "maxUnavailable": 1})));
    assert_eq!(created["spec"]["podManagementPolicy"], "OrderedReady");
    let refused = registry.modify(Resource::StatefulSets, "default", "web", ObjectPart::Main, |object| {
        object["spec"]["serviceName"] = json!("other");
    });
    let complaint = "spec: Forbidden: updates to statefulset spec for fields other than 'replicas', 'ordinals', \
                     'template', 'updateStrategy', 'revisionHistoryLimit', \
                     'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
    assert_eq!(causes(&refused.unwrap_err()), [complaint]);
    let claim = json!({"metadata": {"name": "data"}, "spec": {}});
    assert_eq!(
        complaints(Resource::PersistentVolumeClaims, claim),
        [
            "spec.accessModes: Required value: at least 1 access mode is required",
            "spec.resources[storage]: Required value",
        ]
    );
}

#[test]
fn invalid_daemon_set_yields_field_errors() {
    let set = |unavailable: Value, surge: Value| {
        let mut set = deployment();
        for field in ["strategy", "replicas"] {
            remove(&mut set["spec"], field);
        }
        set["spec"]["updateStrategy"] =
            json!({"rollingUpdate": {"maxUnavailable": unavailable, "maxSurge": surge}});
        set
    };
    let path = "spec.updateStrategy.rollingUpdate";
    assert_eq!(
        complaints(Resource::DaemonSets, set(json!(1), json!(1))),
        [format!("{path}.maxSurge: Invalid value: 1: may not be set when maxUnavailable is non-zero")]
    );
    assert_eq!(
        complaints(Resource::DaemonSets, set(json!(0), json!("0%"))),
        [format!("{path}.maxUnavailable: Required value: cannot be 0 when maxSurge is 0")]
    );
    assert_eq!(
        complaints(Resource::DaemonSets, set(json!("101%"), json!(0))),
        [format!("{path}.maxUnavailable: Invalid value: \"101%\": must not be greater than 100%")]
    );
    let created = registry().create(Resource::DaemonSets, "default", set(Value::Null, Value::Null)).unwrap();
    let strategy = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}});
    assert_eq!(created["spec"]["updateStrategy"], strategy);
}

#[test]
fn job_template_is_immutable() {
    let registry = registry();
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "app", "image": "i"}]}});
    registry
        .create(
            Resource::Jobs,
            "default",
            json!({"metadata": {"name": "pi"}, "spec": {"template": template}}),
        )
        .unwrap();
    let refused = registry.modify(Resource::Jobs, "default", "pi", ObjectPart::Main, |job| {
        job["spec"]["template"]["spec"]["containers"][0]["image"] = json!("j");
    });
    let refused = causes(&refused.unwrap_err());
    assert!(
        refused[0].starts_with("spec.template: Invalid value: {")
            && refused[0].ends_with("field is immutable")
    );
    let suspended = registry.modify(Resource::Jobs, "default", "pi", ObjectPart::Main, |job| {
        job["spec"]["suspend"] = json!(true);
    });
    assert_eq!(suspended.unwrap()["metadata"]["generation"], 2);
}

#[test]
fn invalid_service_yields_field_errors() {
    let service = |spec: Value| json!({"metadata": {"name": "web"}, "spec": spec});
    assert_eq!(complaints(Resource::Services, service(json!({}))), ["spec.ports: Required value"]);
    let ports =
        json!([{"port": 0, "name": "a"}, {"port": 80, "name": "a", "targetPort": "toolongforaportname"}]);
    assert_eq!(
        complaints(Resource::Services, service(json!({"ports": ports}))),
        [
            "spec.ports[1].name: Duplicate value: \"a\"",
            "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
            "spec.ports[0].targetPort: Invalid value: 0: must be between 1 and 65535, inclusive",
            "spec.ports[1].targetPort: Invalid value: \"toolongforaportname\": must be no more than 15 characters",
        ]
    );
    let sticky = json!({"clientIP": {"timeoutSeconds": 86_401}});
    let sticky =
        json!({"ports": [{"port": 80}], "sessionAffinity": "ClientIP", "sessionAffinityConfig": sticky});
    assert_eq!(
        complaints(Resource::Services, service(sticky)),
        ["spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 86401: must be greater than 0 \
          and less than 86400"]
    );
    let registry = registry();
    let created =
        registry.create(Resource::Services, "default", service(json!({"ports": [{"port": 80}]}))).unwrap();
    let refused = registry.modify(Resource::Services, "default", "web", ObjectPart::Main, |service| {
        service["spec"]["clusterIP"] = json!("10.0.0.1");
    });
    let refused = causes(&refused.unwrap_err());
    assert_eq!(refused, ["spec.clusterIPs[0]: Invalid value: [\"10.0.0.1\"]: may not change once set"]);
    assert!(created["spec"]["clusterIP"].is_string());
}

#[test]
fn invalid_names_are_rejected() {
    let named = |name: &str| json!({"metadata": {"name": name}});
    for bad in ["A", "a_b", "-a", "a/b", "..", "a..b", &"a".repeat(254)] {
        let complaints = complaints(Resource::ConfigMaps, named(bad));
        assert!(complaints[0].starts_with("metadata.name: Invalid value"), "{complaints:?}");
    }
    let service = json!({"metadata": {"name": "1a"}, "spec": {"ports": [{"port": 80}]}});
    assert!(complaints(Resource::Services, service)[0].contains("a DNS-1035 label must consist of"));
}

#[test]
fn invalid_role_binding_yields_field_errors() {
    let binding = |role: Value| {
        let web = json!({"kind": "ServiceAccount", "name": "web"});
        json!({"metadata": {"name": "a:b"}, "roleRef": role, "subjects": [web]})
    };
    assert_eq!(
        complaints(Resource::RoleBindings, binding(json!({"kind": "User", "name": "r"}))),
        ["roleRef.kind: Unsupported value: \"User\": supported values: \"Role\", \"ClusterRole\""]
    );
    let unbound = json!({"metadata": {"name": "a:b"}});
    assert_eq!(complaints(Resource::RoleBindings, unbound), ["roleRef: Required value"]);
    let registry = registry();
    let to_role = binding(json!({"kind": "Role", "name": "r"}));
    let bound = registry.create(Resource::RoleBindings, "default", to_role).unwrap();
    assert_eq!(bound["roleRef"]["apiGroup"], "rbac.authorization.k8s.io");
    let mut other = (*bound).clone();
    other["roleRef"]["name"] = json!("other");
    let refused = registry.update(Resource::RoleBindings, "default", "a:b", other).unwrap_err();
    let [cause] = &causes(&refused)[..] else { panic!("{refused}") };
    assert!(cause.ends_with("cannot change roleRef"), "{cause}");
}
