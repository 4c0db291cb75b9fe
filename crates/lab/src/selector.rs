//! Label and field selectors.

use serde_json::Value;

use super::resource::Resource;
use super::status::Status;
use super::value::{list, text};

/// Label and field selectors for a list or watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ObjectSelection {
    labels: LabelSelector,
    fields: Vec<FieldRequirement>,
}

impl ObjectSelection {
    /// Returns a selection that matches everything.
    pub(crate) fn all() -> Self {
        Self::default()
    }

    /// Returns a selection of the objects whose labels match.
    pub(crate) fn labels(labels: LabelSelector) -> Self {
        Self { labels, fields: Vec::new() }
    }

    /// Returns a selection of the objects with this value at a dotted path, such as `spec.nodeName`.
    pub(crate) fn field(path: &str, value: &str) -> Self {
        let requirement = FieldRequirement { path: path.to_owned(), value: value.to_owned(), equal: true };
        Self { labels: LabelSelector::default(), fields: vec![requirement] }
    }

    /// Parses the `labelSelector` and `fieldSelector` query parameters of a request for `resource`.
    ///
    /// # Errors
    ///
    /// 400 for an invalid selector, and for a field that selectors do not support.
    pub(crate) fn parse(resource: Resource, labels: &str, fields: &str) -> Result<Self, Status> {
        let fields = fields.split(',').filter(|term| !term.trim().is_empty());
        let fields = fields.map(|term| FieldRequirement::parse(resource, term));
        Ok(Self { labels: LabelSelector::parse(labels)?, fields: fields.collect::<Result<_, _>>()? })
    }

    /// Returns true if `object` is selected.
    pub(crate) fn matches(&self, object: &Value) -> bool {
        (self.labels.requirements.is_empty() || self.labels.matches(&object["metadata"]["labels"]))
            && self.fields.iter().all(|field| field.matches(object))
    }
}

/// Returns the object name that a `fieldSelector` requires, or `None` if it does not restrict the name.
pub(crate) fn required_name(fields: &str) -> Option<&str> {
    fields
        .split(',')
        .filter_map(split_equality)
        .find_map(|(path, value, equal)| (equal && path.trim() == "metadata.name").then(|| value.trim()))
}

/// Label requirements, all of which must be met. An empty selector matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LabelSelector {
    requirements: Vec<LabelRequirement>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct LabelRequirement {
    key: String,
    operator: SelectorOperator,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum SelectorOperator {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
}

impl LabelSelector {
    /// Parses the text form: `a=b,c!=d,e in (f,g),h,!i`.
    ///
    /// # Errors
    ///
    /// 400 for an invalid selector.
    pub(crate) fn parse(text: &str) -> Result<Self, Status> {
        let terms = split_outside_parentheses(text);
        let requirements = terms.into_iter().filter(|term| !term.is_empty()).map(LabelRequirement::parse);
        Ok(Self { requirements: requirements.collect::<Result<_, _>>()? })
    }

    /// Reads a map of labels, such as a Service's `spec.selector`. Returns `None` if it is missing or empty, because
    /// such a Service selects nothing.
    pub(crate) fn from_map(map: &Value) -> Option<Self> {
        let map = map.as_object().filter(|map| !map.is_empty())?;
        let requirements = map.iter().map(|(key, value)| LabelRequirement {
            key: key.clone(),
            operator: SelectorOperator::In(vec![value.as_str().unwrap_or_default().to_owned()]),
        });
        Some(Self { requirements: requirements.collect() })
    }

    /// Reads the `matchLabels` and `matchExpressions` of a workload's `spec.selector`.
    pub(crate) fn from_object(selector: &Value) -> Self {
        let mut all = Self::from_map(&selector["matchLabels"]).unwrap_or_default();
        for expression in list(&selector["matchExpressions"]) {
            let values = list(&expression["values"]).iter();
            let values = values.filter_map(Value::as_str).map(str::to_owned).collect();
            let operator = match text(&expression["operator"]) {
                "In" => SelectorOperator::In(values),
                "NotIn" => SelectorOperator::NotIn(values),
                "Exists" => SelectorOperator::Exists,
                "DoesNotExist" => SelectorOperator::DoesNotExist,
                // An unknown operator matches nothing.
                _ => SelectorOperator::In(Vec::new()),
            };
            let key = text(&expression["key"]).to_owned();
            all.requirements.push(LabelRequirement { key, operator });
        }
        all
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Returns true if `labels` (an object or null) satisfy all requirements.
    pub(crate) fn matches(&self, labels: &Value) -> bool {
        self.requirements.iter().all(|requirement| {
            let value = labels.get(&requirement.key).and_then(Value::as_str);
            let among = |values: &[String]| value.is_some_and(|value| values.iter().any(|v| v == value));
            match &requirement.operator {
                SelectorOperator::In(values) => among(values),
                SelectorOperator::NotIn(values) => !among(values),
                SelectorOperator::Exists => value.is_some(),
                SelectorOperator::DoesNotExist => value.is_none(),
            }
        })
    }
}

impl LabelRequirement {
    fn parse(term: &str) -> Result<Self, Status> {
        let bad = || Status::bad_request(format!("unable to parse requirement: {term:?}"));
        let (key, operator) = if let Some((key, value, equal)) = split_equality(term) {
            let values = vec![value.trim().to_owned()];
            (key, if equal { SelectorOperator::In(values) } else { SelectorOperator::NotIn(values) })
        } else if let Some(key) = term.strip_prefix('!') {
            (key, SelectorOperator::DoesNotExist)
        } else if let Some((left, values)) = term.strip_suffix(')').and_then(|term| term.split_once('(')) {
            let values = values.split(',').map(|value| value.trim().to_owned()).collect();
            match left.split_whitespace().collect::<Vec<_>>()[..] {
                [key, "in"] => (key, SelectorOperator::In(values)),
                [key, "notin"] => (key, SelectorOperator::NotIn(values)),
                _ => return Err(bad()),
            }
        } else {
            (term, SelectorOperator::Exists)
        };
        let key = key.trim();
        let valid = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        if key.is_empty() || !key.chars().all(valid) {
            return Err(bad());
        }
        Ok(Self { key: key.to_owned(), operator })
    }
}

/// Splits `a=b`, `a==b` or `a!=b` into the two sides and a flag that is true if they should be equal.
fn split_equality(term: &str) -> Option<(&str, &str, bool)> {
    let unequal = term.split_once("!=").map(|(left, right)| (left, right, false));
    let equal = || term.split_once("==").or_else(|| term.split_once('='));
    unequal.or_else(|| equal().map(|(left, right)| (left, right, true)))
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let parts = text.split(|c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    parts.map(str::trim).collect()
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldRequirement {
    path: String,
    value: String,
    equal: bool,
}

impl FieldRequirement {
    fn parse(resource: Resource, term: &str) -> Result<Self, Status> {
        let Some((path, value, equal)) = split_equality(term) else {
            return Err(Status::bad_request(format!("invalid field selector: {term:?}")));
        };
        let path = path.trim();
        let selectable = selectable(resource);
        if matches!(path, "metadata.name" | "metadata.namespace") || selectable.contains(&path) {
            return Ok(Self { path: path.to_owned(), value: value.trim().to_owned(), equal });
        }
        let message = match selectable[..] {
            [] => format!(
                "{path:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
            ),
            _ => format!("field label not supported: {path}"),
        };
        Err(Status::bad_request(message))
    }

    fn matches(&self, object: &Value) -> bool {
        let path = if self.path == "source" { "source.component" } else { &self.path };
        let found = path.split('.').fold(object, |value, key| &value[key]);
        let text = match found {
            Value::String(text) => text.clone(),
            Value::Null => zero(path).to_owned(),
            other => other.to_string(),
        };
        (text == self.value) == self.equal
    }
}

/// Fields that field selectors support besides name and namespace, by kind (pkg/apis/*/v1/conversion.go).
const SELECTABLE: &str = "
Pod spec.nodeName spec.restartPolicy spec.schedulerName spec.serviceAccountName spec.hostNetwork status.phase
Pod status.podIP status.nominatedNodeName
Node spec.unschedulable
Namespace status.phase
Service spec.clusterIP spec.type
Secret type
Job status.successful
Event involvedObject.kind involvedObject.namespace involvedObject.name involvedObject.uid involvedObject.apiVersion
Event involvedObject.resourceVersion involvedObject.fieldPath reason reportingComponent source type
";

fn selectable(resource: Resource) -> Vec<&'static str> {
    let lines = SELECTABLE.lines().filter_map(|line| line.split_once(' '));
    lines.filter(|(kind, _)| *kind == resource.kind()).flat_map(|(_, fields)| fields.split(' ')).collect()
}

/// Returns the value that a selectable field has when an object omits it.
fn zero(path: &str) -> &'static str {
    match path {
        "spec.hostNetwork" | "spec.unschedulable" => "false",
        "status.successful" => "0",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn labels_match(selector: &str, labels: Value) -> bool {
        LabelSelector::parse(selector).unwrap().matches(&labels)
    }

    #[test]
    fn label_selectors_follow_kubernetes() {
        let web = json!({"app": "web", "tier": "front"});
        for selector in [
            "",
            "app=web",
            "app==web, tier=front",
            "app in (api, web)",
            "app",
            "!gone",
            "app!=api",
            "gone!=x",
        ] {
            assert!(labels_match(selector, web.clone()), "{selector}");
        }
        for selector in ["app=api", "app=web,tier=back", "app notin (web)", "!app", "gone"] {
            assert!(!labels_match(selector, web.clone()), "{selector}");
        }
        for bad in ["=x", "a b", "app of (x)"] {
            assert!(LabelSelector::parse(bad).is_err(), "{bad}");
        }
        assert!(labels_match("!app", Value::Null));
    }

    #[test]
    fn label_selector_combines_labels_and_expressions() {
        let selector = LabelSelector::from_object(&json!({
            "matchLabels": {"app": "web"},
            "matchExpressions": [{"key": "canary", "operator": "DoesNotExist"}],
        }));
        assert!(selector.matches(&json!({"app": "web"})));
        assert!(!selector.matches(&json!({"app": "web", "canary": "yes"})));
        assert_eq!(LabelSelector::from_map(&json!({})), None);
    }

    #[test]
    fn field_selectors_match_supported_fields() {
        let pod = json!({"metadata": {"name": "a"}, "spec": {"nodeName": "node-1"}, "status": {}});
        let matches = |fields| ObjectSelection::parse(Resource::Pods, "", fields).unwrap().matches(&pod);
        assert!(matches("metadata.name=a,spec.nodeName!=node-2"));
        assert!(matches("status.phase="));
        assert!(!matches("spec.nodeName="));
        assert!(matches("spec.hostNetwork=false"));
        for refused in ["nonsense", "spec.hostname=x"] {
            assert!(ObjectSelection::parse(Resource::Pods, "", refused).is_err(), "{refused}");
        }
        assert!(ObjectSelection::parse(Resource::ConfigMaps, "", "metadata.name=a").is_ok());
    }
}
