//! Table-driven tests that match rules against requests, and bindings against users.

use rolldrop_record::Clock;
use serde_json::json;

use super::*;
use crate::address_block::AddressBlock;

/// Parses `VERB GROUP/RESOURCE[/SUBRESOURCE] [NAME]`. Core resources need the leading `/`, too. The namespace is
/// always `shop`.
fn asks(text: &str) -> Attributes {
    let mut words = text.split(' ');
    let verb = words.next().unwrap().to_owned();
    let mut parts = words.next().unwrap().split('/').map(str::to_owned);
    let mut part = || parts.next().unwrap_or_default();
    let (group, resource, subresource) = (part(), part(), part());
    let name = words.next().unwrap_or_default().to_owned();
    let namespace = "shop".to_owned();
    Attributes {
        verb,
        target: AccessTarget::Resource(ResourceTarget { group, resource, subresource, namespace, name }),
    }
}

fn asks_path(verb: &str, path: &str) -> Attributes {
    Attributes { verb: verb.to_owned(), target: AccessTarget::Path(path.to_owned()) }
}

#[test]
fn rule_allows_only_listed_resources() {
    let rule = |verbs: &[&str], groups: &[&str], resources: &[&str], names: &[&str]| json!({"verbs": verbs, "apiGroups": groups, "resources": resources, "resourceNames": names});
    let read_pods = rule(&["get", "list"], &[""], &["pods"], &[]);
    let one_pod = rule(&["get", "delete"], &[""], &["pods"], &["web-1"]);
    let logs = rule(&["get"], &[""], &["pods/log"], &[]);
    let any_status = rule(&["update"], &["*"], &["*/status"], &[]);
    let all_of_apps = rule(&["*"], &["apps"], &["*"], &[]);
    let several = rule(&["create"], &["apps", "batch"], &["deployments", "jobs"], &[]);
    let nothing = json!({"verbs": ["get"]});
    for (rule, allowed, refused) in [
        (
            &read_pods,
            &["get /pods web-1", "list /pods", "get /pods"][..],
            &[
                "watch /pods",
                "delete /pods web-1",
                "get /pods/log web-1",
                "get apps/pods x",
                "get /secrets x",
                "Get /pods web-1",
                "* /pods",
            ][..],
        ),
        (
            &one_pod,
            &["get /pods web-1", "delete /pods web-1"],
            &["get /pods web-2", "get /pods", "delete /pods"],
        ),
        (
            &logs,
            &["get /pods/log web-1"],
            &["get /pods web-1", "get /pods/status web-1", "get /pods/logs web-1"],
        ),
        (
            &any_status,
            &["update /pods/status web-1", "update apps/deployments/status web"],
            &["update /pods web-1", "update apps/deployments/scale web", "get /pods/status web-1"],
        ),
        (
            &all_of_apps,
            &[
                "get apps/deployments web",
                "deletecollection apps/replicasets",
                "patch apps/deployments/scale web",
            ],
            &["get /pods web-1", "get batch/jobs x"],
        ),
        (&several, &["create apps/deployments", "create batch/jobs", "create apps/jobs"], &["create /pods"]),
        (&nothing, &[], &["get /pods web-1", "get / x"]),
    ] {
        for text in allowed {
            assert!(allows(rule, &asks(text)), "{rule} refuses {text}");
        }
        for text in refused {
            assert!(!allows(rule, &asks(text)), "{rule} allows {text}");
        }
        assert!(!allows(rule, &asks_path("get", "/pods")), "{rule} allows a path");
    }
}

#[test]
fn path_rule_allows_only_paths() {
    let rule = |urls: &[&str]| json!({"verbs": ["get"], "nonResourceURLs": urls});
    for (urls, allowed, refused) in [
        (&["/version"][..], &["/version"][..], &["/version/", "/versions", "/"][..]),
        (&["/api/*"], &["/api/", "/api/v1"], &["/api", "/apis"]),
        (&["/apis*"], &["/apis", "/apis/apps"], &["/api"]),
        (&["*"], &["/", "/version"], &[]),
    ] {
        for path in allowed {
            assert!(allows(&rule(urls), &asks_path("get", path)), "{urls:?} refuses {path}");
        }
        for path in refused {
            assert!(!allows(&rule(urls), &asks_path("get", path)), "{urls:?} allows {path}");
        }
        assert!(!allows(&rule(urls), &asks_path("post", allowed[0])), "{urls:?} allows another verb");
        assert!(!allows(&rule(urls), &asks("get /pods")), "{urls:?} allows a resource");
    }
}

#[test]
fn binding_matches_users_groups_and_accounts() {
    let account = |namespace: &str, name: &str| User::ServiceAccount {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    let web = account("shop", "web");
    for (subject, bound, others) in [
        (json!({"kind": "ServiceAccount", "name": "web"}), true, false),
        (json!({"kind": "ServiceAccount", "name": "web", "namespace": "shop"}), true, false),
        (json!({"kind": "ServiceAccount", "name": "web", "namespace": "other"}), false, false),
        (json!({"kind": "User", "name": "system:serviceaccount:shop:web"}), true, false),
        (json!({"kind": "User", "name": "web"}), false, false),
        (json!({"kind": "Group", "name": "system:serviceaccounts:shop"}), true, true),
        (json!({"kind": "Group", "name": "system:serviceaccounts:other"}), false, false),
        (json!({"kind": "Group", "name": "system:serviceaccounts"}), true, true),
        (json!({"kind": "Group", "name": "system:authenticated"}), true, true),
        (json!({"kind": "Group", "name": "system:masters"}), false, false),
        (json!({"kind": "Robot", "name": "web"}), false, false),
    ] {
        let binding = json!({"metadata": {"namespace": "shop"}, "subjects": [subject]});
        assert_eq!(is_bound(&binding, &web), bound, "{subject}");
        assert_eq!(is_bound(&binding, &account("shop", "api")), others, "{subject} for another account");
    }
    let unbound = json!({"metadata": {"namespace": "shop"}});
    assert!(!is_bound(&unbound, &web), "a binding without subjects binds someone");
}

fn registry() -> Registry {
    let registry = Registry::new(Clock::start(), AddressBlock::private(), "".into());
    for namespace in ["shop", "other"] {
        registry.create(Resource::Namespaces, "", json!({"metadata": {"name": namespace}})).unwrap();
    }
    registry
}

fn bind(registry: &Registry, resource: Resource, namespace: &str, role: &Value) {
    let binding = json!({
        "metadata": {"name": format!("{}-{}", role["kind"], role["name"]).replace('"', "").to_lowercase()},
        "roleRef": role,
        "subjects": [{"kind": "ServiceAccount", "namespace": "shop", "name": "web"}],
    });
    registry.create(resource, namespace, binding).unwrap();
}

#[test]
fn role_scope_follows_binding_namespace() {
    let registry = registry();
    let rules = |resource: &str| json!([{"verbs": ["get"], "apiGroups": [""], "resources": [resource]}]);
    let role = |name: &str, resource: &str| json!({"metadata": {"name": name}, "rules": rules(resource)});
    registry.create(Resource::Roles, "shop", role("pods", "pods")).unwrap();
    registry.create(Resource::Roles, "other", role("secrets", "secrets")).unwrap();
    registry.create(Resource::ClusterRoles, "", role("services", "services")).unwrap();
    registry.create(Resource::ClusterRoles, "", role("nodes", "nodes")).unwrap();
    let to = |kind: &str, name: &str| json!({"kind": kind, "name": name});
    bind(&registry, Resource::RoleBindings, "shop", &to("Role", "pods"));
    bind(&registry, Resource::RoleBindings, "shop", &to("ClusterRole", "services"));
    bind(&registry, Resource::RoleBindings, "other", &to("Role", "secrets"));
    bind(&registry, Resource::ClusterRoleBindings, "", &to("ClusterRole", "nodes"));
    let web = User::ServiceAccount { namespace: "shop".to_owned(), name: "web".to_owned() };
    let is_allowed = |namespace: &str, resource: &str| {
        let (resource, namespace) = (resource.to_owned(), namespace.to_owned());
        let target = ResourceTarget { resource, namespace, ..ResourceTarget::default() };
        let attributes = Attributes { verb: "get".to_owned(), target: AccessTarget::Resource(target) };
        assert_eq!(decide(&registry, &User::Admin, &attributes), Ok(()));
        decide(&registry, &web, &attributes).is_ok()
    };
    for (namespace, allowed) in [
        ("shop", &["pods", "services", "nodes"][..]),
        // This namespace's RoleBinding names an account from another namespace.
        ("other", &["secrets", "nodes"]),
        ("", &["nodes"]),
    ] {
        for resource in ["pods", "services", "secrets", "nodes"] {
            let expected = allowed.contains(&resource);
            assert_eq!(is_allowed(namespace, resource), expected, "{resource} in {namespace:?}");
        }
    }
}

#[test]
fn refusal_names_user_and_missing_role() {
    let registry = registry();
    let web = User::ServiceAccount { namespace: "shop".to_owned(), name: "web".to_owned() };
    let refused = |attributes: &Attributes| match decide(&registry, &web, attributes) {
        Err(reason) => attributes.refuse(&web, &reason).to_json(),
        Ok(()) => panic!("{attributes:?} is allowed"),
    };
    let pod = refused(&asks("get /pods web-1"));
    assert_eq!(
        pod["message"],
        "pods \"web-1\" is forbidden: User \"system:serviceaccount:shop:web\" cannot get resource \"pods\" in API \
         group \"\" in the namespace \"shop\""
    );
    assert_eq!((&pod["code"], &pod["reason"]), (&json!(403), &json!("Forbidden")));
    assert_eq!(pod["details"], json!({"name": "web-1", "kind": "pods"}));
    assert_eq!(
        refused(&asks_path("get", "/metrics"))["message"],
        "forbidden: User \"system:serviceaccount:shop:web\" cannot get path \"/metrics\""
    );
    let mut everywhere = asks("list apps/deployments");
    let AccessTarget::Resource(target) = &mut everywhere.target else { panic!("a path") };
    target.namespace.clear();
    bind(&registry, Resource::RoleBindings, "shop", &json!({"kind": "Role", "name": "gone"}));
    let text = refused(&everywhere);
    assert_eq!(
        text["message"],
        "deployments.apps is forbidden: User \"system:serviceaccount:shop:web\" cannot list resource \
         \"deployments\" in API group \"apps\" at the cluster scope"
    );
    assert_eq!(text["details"], json!({"group": "apps", "kind": "deployments"}));
    let log = refused(&asks("get /pods/log web-1"));
    assert_eq!(
        log["message"],
        "pods \"web-1\" is forbidden: User \"system:serviceaccount:shop:web\" cannot get resource \"pods/log\" in \
         API group \"\" in the namespace \"shop\": RBAC: role.rbac.authorization.k8s.io \"gone\" not found"
    );
}
