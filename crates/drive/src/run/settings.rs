//! Converts a scenario's load into settings for the load generator, and the scenario into the form stored in run.json.

use serde_json::Value;

use super::error::RunError;
use rolldrop_load as load;
use rolldrop_record::run_info;
use rolldrop_scenario::{self as scenario, Place, Scenario};

/// Returns the resolved scenario without potential secrets: header values, Secret values and bodies.
pub(super) fn redacted(scenario: &Scenario) -> Value {
    fn redact(request: &mut Value) {
        if let Some(Value::Object(headers)) = request.get_mut("headers") {
            headers.values_mut().for_each(|value| *value = "(redacted)".into());
        }
        for name in ["body", "bodyHex", "bodyBase64"] {
            if let Some(body) = request.get_mut(name) {
                *body = "(redacted)".into();
            }
        }
    }

    fn redact_secrets(manifest: &mut Value) {
        let is_secret = manifest["kind"] == "Secret";
        for (name, value) in manifest.as_object_mut().into_iter().flatten() {
            match value {
                Value::Object(values) if is_secret && matches!(name.as_str(), "data" | "stringData") => {
                    values.values_mut().for_each(|value| *value = "(redacted)".into());
                }
                Value::Array(items) => items.iter_mut().for_each(redact_secrets),
                _ => {}
            }
        }
    }

    let mut resolved = scenario.resolved().clone();
    let manifests = resolved.pointer_mut("/spec/manifests").and_then(Value::as_array_mut);
    for manifest in manifests.into_iter().flatten().filter_map(|manifest| manifest.get_mut("inline")) {
        redact_secrets(manifest);
    }
    if let Some(load) = resolved.pointer_mut("/spec/load") {
        redact(load);
        load.get_mut("requests").and_then(Value::as_array_mut).into_iter().flatten().for_each(redact);
    }
    resolved
}

/// Returns the scenario's targets as far as they are known before the cluster has shown their addresses.
pub fn expected_targets(scenario: &Scenario) -> Vec<run_info::Target> {
    let url = |place: &Place| match place {
        Place::Url(url) => url.to_string(),
        Place::Service { path, .. } => format!("http://127.0.0.1{path}"),
    };
    let target = |target: &scenario::ScenarioTarget| run_info::Target {
        name: target.name.clone(),
        url: url(&target.place),
        consumer: String::new(),
        balances: target.balances,
        balances_because: target.balances_because.clone(),
        service: None,
        routing: None,
        node: None,
    };
    scenario.targets.iter().map(target).collect()
}

/// Returns every request of the scenario for every target, with the URLs that were found.
fn load_targets(scenario: &Scenario, found: &[run_info::Target]) -> Result<Vec<load::LoadTarget>, RunError> {
    let mut targets = Vec::new();
    for (target, found) in scenario.targets.iter().zip(found) {
        for request in &scenario.load.requests {
            let url = match &request.path {
                None => found.url.clone(),
                Some(path) => {
                    let base = url::Url::parse(&found.url);
                    let base = base.map_err(RunError::failed("failed to read the target's URL"))?;
                    let url = base.join(path);
                    url.map_err(RunError::failed(format!("path {path:?} cannot be used")))?.to_string()
                }
            };
            targets.push(load::LoadTarget {
                name: found.name.clone(),
                url,
                weight: target.weight.saturating_mul(request.weight),
                method: request.method.clone(),
                headers: request.headers.clone(),
                body: request.body.clone(),
            });
        }
    }
    Ok(targets)
}

/// Returns the scenario's load on its targets, with the URLs that were found.
pub fn load_settings(scenario: &Scenario, found: &[run_info::Target]) -> Result<load::Load, RunError> {
    let settings = &scenario.load.settings;
    if let Some(pattern) = &settings.pod_body {
        let wrong = |error: load::NotAPodBody| scenario.invalid("spec.load.podBody", error.to_string());
        pattern.parse::<load::PodBody>().map_err(wrong)?;
    }
    Ok(load::Load { targets: load_targets(scenario, found)?, ..settings.clone() })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Returns the settings that result from a scenario with these keys in its load.
    fn settings_of(text: &str) -> Result<load::Load, String> {
        let loaded =
            scenario::parse::<Value>(text, "x.yaml", Path::new("."), &[]).map_err(|e| e.to_string())?;
        let found = expected_targets(&loaded.scenario);
        load_settings(&loaded.scenario, &found).map_err(|e| e.to_string())
    }

    fn with_load(keys: &str) -> String {
        format!(
            "apiVersion: rolldrop.dev/v1\nkind: Scenario\nmetadata: {{name: x}}\nspec:\n  \
             target: {{url: 'http://web/', name: 'http://web/'}}\n  load: {{{keys}}}\n"
        )
    }

    #[test]
    fn expect_rejects_unknown_cause() {
        let check = |cause: &str| {
            let text =
                with_load("duration: 10s") + &format!("  expect: {{causes: {{{cause}: {{max: 0}}}}}}\n");
            let loaded = scenario::parse::<Value>(&text, "x.yaml", Path::new("."), &[]);
            loaded.map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(check("killed_in_flight"), Ok(()));
        let error = check("killed_inflight").unwrap_err();
        let begin =
            "x.yaml:7: spec.expect.causes.killed_inflight: is not a cause; use one of routed_to_dead_pod, ";
        assert!(error.starts_with(begin), "{error}");
    }

    #[test]
    fn load_errors_name_their_key() {
        let error = |keys: &str| settings_of(&with_load(keys)).unwrap_err();
        assert_eq!(
            error("connectTo: [web]"),
            "x.yaml:6: spec.load.connectTo[0]: \"web\" is not HOST1:PORT1:HOST2:PORT2 (each part may be \
             empty), such as web:80:127.0.0.1:8080"
        );
        for (keys, why) in [
            ("dns: {servers: [x]}", "spec.load.dns.servers[0]: \"x\" is not the address of a DNS server"),
            ("grpc: {method: x}", "spec.load.grpc.method: "),
            ("grpc: {method: a/b}, http: 1.1", "spec.load.http: is 1.1, but gRPC needs HTTP/2"),
            (
                "grpc: {method: a/b}, method: GET",
                "spec.load.method: a gRPC call is always a POST: remove this key",
            ),
            (
                "grpc: {method: a/b}, requests: [{body: a}, {method: PUT}]",
                "spec.load.requests[1].method: a gRPC call is always a POST",
            ),
            ("grpc: {method: a/b}, requests: [{path: /c}]", "requests[0].path: the path of a gRPC call is"),
            (
                "grpc: {method: a/b}, success: [200]",
                "spec.load.success: gRPC calls are not judged by their HTTP status",
            ),
            (
                "podBody: 'pod=(\\S+'",
                "6: spec.load.podBody: cannot find pod names with \"pod=(\\\\S+\": unclosed",
            ),
            (
                "podBody: '.*'",
                "spec.load.podBody: cannot find pod names with \".*\": it can match an empty string",
            ),
            ("grpc: {method: a/b}, podBody: a", "spec.load.podBody: gRPC messages are not searched"),
            ("rate: fast", "expected a number of requests per second, or max"),
            ("rate: max, arrivals: poisson", "spec.load.arrivals: a closed loop has no arrivals"),
            ("tls: {version: 1.1}", "spec.load.tls.version: is 1.1, must be 1.2 or 1.3"),
            ("tls: {key: me.key}", "spec.load.tls.key: is a key without a certificate"),
            ("http: 3", "spec.load.http: is 3, must be auto, 1.1 or 2"),
            ("body: a, bodyHex: '00'", "spec.load.body: is given twice"),
            ("bodyHex: 0g", "spec.load.bodyHex: needs pairs of hexadecimal digits"),
            ("headersFromEnv: {a: ROLLDROP_NO_SUCH}", "spec.load.headersFromEnv.a: the environment variable"),
            ("sourceAddresses: [x]", "spec.load.sourceAddresses"),
        ] {
            assert!(error(keys).contains(why), "{}", error(keys));
        }
    }

    #[test]
    fn requests_cover_targets_and_hide_secrets() {
        let mut set = vec![
            "load.requests=[{path: /a, weight: 2}, {method: POST, body: hush, headers: {auth: hush}}]"
                .to_owned(),
            "load.template=true".to_owned(),
            "load.headers={auth: hush}".to_owned(),
            "load.body=hush".to_owned(),
        ];
        set.push("target=[{service: web, weight: 3}, {url: 'http://other/x?n={{seq}}'}]".to_owned());
        let scenario = scenario::load::<Value>(scenario::DEFAULT, &set).unwrap().scenario;
        let settings = load_settings(&scenario, &expected_targets(&scenario)).unwrap();
        let targets: Vec<_> =
            settings.targets.iter().map(|t| (t.name.as_str(), t.url.as_str(), t.weight)).collect();
        assert_eq!(
            targets,
            [
                ("web", "http://127.0.0.1/a", 6),
                ("web", "http://127.0.0.1/", 3),
                ("other", "http://other/a", 2),
                ("other", "http://other/x?n={{seq}}", 1),
            ]
        );
        assert!(!redacted(&scenario).to_string().contains("hush"));
        load::Plan::new(settings).unwrap();
    }
}
