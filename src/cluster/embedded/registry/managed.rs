//! Who owns which field of an object: `metadata.managedFields`, and server-side apply.
//!
//! Writes are recorded from an object's creation on, as a real API server does; an object whose
//! record a client has cleared gets one with its first server-side apply. What the API server does
//! by itself (a binding, the marks of an eviction and of a deletion) belongs to nobody.

mod fields;
mod typed;

use serde_json::{Value, json};

use super::{Resource, Status, copy_or_remove, remove};
use crate::cluster::embedded::schema::{self, Structure};
use fields::Fields;

/// Owns what an object without a record had before the first server-side apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";
/// Takes in the oldest entries when there are too many.
const ANCIENT: &str = "ancient-changes";
/// The most entries that plain writes may have in one object.
const MAX_UPDATE_ENTRIES: usize = 10;
/// Where kubectl's client-side apply keeps what it last applied.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Fields that nobody owns.
const UNOWNED: [&str; 9] = [
    "f:name",
    "f:namespace",
    "f:creationTimestamp",
    "f:selfLink",
    "f:uid",
    "f:clusterName",
    "f:generation",
    "f:managedFields",
    "f:resourceVersion",
];

/// Who writes, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Writer<'a> {
    pub(super) manager: &'a str,
    /// `status`, `scale`, or empty for the object itself.
    pub(super) subresource: &'a str,
    pub(super) now: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Operation {
    Apply,
    Update,
}

/// One entry of `managedFields`.
#[derive(Clone, Debug)]
struct Entry {
    manager: String,
    operation: Operation,
    api_version: String,
    subresource: String,
    time: Option<String>,
    fields: Fields,
}

impl Entry {
    fn of(resource: Resource, writer: Writer<'_>, operation: Operation) -> Self {
        Self {
            manager: writer.manager.to_owned(),
            operation,
            api_version: resource.api_version().to_owned(),
            subresource: writer.subresource.to_owned(),
            time: None,
            fields: Fields::default(),
        }
    }

    fn is_same_manager(&self, other: &Entry) -> bool {
        (&self.manager, self.operation, &self.subresource)
            == (&other.manager, other.operation, &other.subresource)
    }

    fn from_json(entry: &Value) -> Result<Self, Status> {
        let bad = |why: &str| Status::bad_request(format!("invalid metadata.managedFields: {why}"));
        let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
        let operation = match entry["operation"].as_str() {
            Some("Apply") => Operation::Apply,
            Some("Update") => Operation::Update,
            _ => return Err(bad("operation must be `Apply` or `Update`")),
        };
        if entry["fieldsType"] != "FieldsV1" {
            return Err(bad("fieldsType must be `FieldsV1`"));
        }
        Ok(Self {
            manager: text("manager"),
            operation,
            api_version: text("apiVersion"),
            subresource: text("subresource"),
            time: entry["time"].as_str().map(str::to_owned),
            fields: Fields::from_json(&entry["fieldsV1"]),
        })
    }

    fn to_json(&self) -> Value {
        let mut entry = json!({
            "manager": self.manager,
            "operation": match self.operation {
                Operation::Apply => "Apply",
                Operation::Update => "Update",
            },
            "apiVersion": self.api_version,
            "fieldsType": "FieldsV1",
            "fieldsV1": self.fields.to_json(),
        });
        if let Some(time) = &self.time {
            entry["time"] = json!(time);
        }
        if !self.subresource.is_empty() {
            entry["subresource"] = json!(self.subresource);
        }
        entry
    }

    /// As conflicts name it.
    fn in_words(&self) -> String {
        let mut words = format!("{:?}", self.manager);
        if !self.subresource.is_empty() {
            words += &format!(" with subresource {:?}", self.subresource);
        }
        if self.operation == Operation::Update {
            words += &format!(" using {}", self.api_version);
        }
        words
    }
}

/// The entries of an object, which may come from a client.
fn entries_of(object: &Value) -> Result<Vec<Entry>, Status> {
    let list = object["metadata"]["managedFields"].as_array().map_or(&[][..], Vec::as_slice);
    // A single empty entry is how clients clear the record.
    if list.iter().all(|entry| entry.as_object().is_some_and(serde_json::Map::is_empty)) {
        return Ok(Vec::new());
    }
    list.iter().map(Entry::from_json).collect()
}

fn store(mut entries: Vec<Entry>, object: &mut Value) {
    entries.retain(|entry| !entry.fields.is_empty());
    entries.sort_by(|a, b| {
        let key = |entry: &Entry| {
            (entry.operation, entry.time.clone(), entry.manager.clone(), entry.subresource.clone())
        };
        key(a).cmp(&key(b))
    });
    if entries.is_empty() {
        remove(&mut object["metadata"], "managedFields");
    } else {
        object["metadata"]["managedFields"] = entries.iter().map(Entry::to_json).collect();
    }
}

fn without_unowned(mut fields: Fields) -> Fields {
    for step in ["f:apiVersion", "f:kind"] {
        fields.below.remove(step);
    }
    if let Some(mut metadata) = fields.below.remove("f:metadata") {
        metadata.here = false;
        metadata.below.retain(|step, _| !UNOWNED.contains(&step.as_str()));
        fields.put("f:metadata".to_owned(), metadata);
    }
    fields
}

fn without_record(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata") {
        remove(metadata, "managedFields");
    }
    object
}

/// Records what a new object's creator has set.
pub(super) fn record_creation(resource: Resource, object: &mut Value, writer: Writer<'_>) {
    let mut entry = Entry::of(resource, writer, Operation::Update);
    // A new object's status is the cluster's own.
    let mut empty = json!({"metadata": {}});
    copy_or_remove(object, &mut empty, "status");
    let difference = typed::compare(schema::of(resource), &empty, &without_record(object));
    entry.fields = without_unowned(difference.changed);
    entry.time = Some(writer.now.to_owned());
    store(vec![entry], object);
}

/// Records what a plain write has changed. `object` may carry another record than `current`:
/// clients may rewrite it.
///
/// # Errors
///
/// 400 for a record that is none.
pub(super) fn record_update(
    resource: Resource,
    current: &Value,
    object: &mut Value,
    writer: Writer<'_>,
) -> Result<(), Status> {
    let source = if object["metadata"]["managedFields"].is_array() { &*object } else { current };
    let mut entries = entries_of(source)?;
    if entries.is_empty() {
        remove(&mut object["metadata"], "managedFields");
        return Ok(());
    }
    let difference = typed::compare(schema::of(resource), &without_record(current), &without_record(object));
    let (changed, removed) = (without_unowned(difference.changed), without_unowned(difference.removed));
    let taken = changed.union(&removed);
    for entry in &mut entries {
        entry.fields = entry.fields.minus(&taken);
    }
    if !changed.is_empty() {
        let mut own = Entry::of(resource, writer, Operation::Update);
        own.fields = changed;
        own.time = Some(writer.now.to_owned());
        match entries.iter_mut().find(|entry| entry.is_same_manager(&own)) {
            Some(entry) => {
                entry.fields = entry.fields.union(&own.fields);
                entry.time = own.time;
            }
            None => entries.push(own),
        }
    }
    cap(&mut entries);
    store(entries, object);
    Ok(())
}

/// Unites the oldest entries of plain writes when there are too many.
fn cap(entries: &mut Vec<Entry>) {
    let is_update = |entry: &Entry| entry.operation == Operation::Update;
    while entries.iter().filter(|entry| is_update(entry)).count() > MAX_UPDATE_ENTRIES {
        let age = |at: &usize| (entries[*at].manager != ANCIENT, entries[*at].time.clone());
        let mut oldest: Vec<_> = (0..entries.len()).filter(|at| is_update(&entries[*at])).collect();
        oldest.sort_by_key(age);
        let [into, from] = [oldest[0], oldest[1]];
        let gone = entries[from].clone();
        let ancient = &mut entries[into];
        ancient.fields = ancient.fields.union(&gone.fields);
        ancient.manager = ANCIENT.to_owned();
        ancient.subresource.clear();
        ancient.time = gone.time.or_else(|| ancient.time.take());
        entries.remove(from);
    }
}

/// Refuses a configuration with fields that nobody could own.
fn check_fields(resource: Resource, configuration: &Value) -> Result<(), Status> {
    let unknown = typed::unknown(schema::of(resource), configuration);
    let errors: Vec<_> = unknown.iter().map(|path| format!("{path}: field not declared in schema")).collect();
    let errors = match &errors[..] {
        [] => return Ok(()),
        [error] => error.clone(),
        errors => format!("errors:\n  {}", errors.join("\n  ")),
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &configuration["metadata"];
    Err(Status::internal(format!(
        "failed to create typed patch object ({}/{}; {}, Kind={}): {errors}",
        text(&metadata["namespace"]),
        text(&metadata["name"]),
        text(&configuration["apiVersion"]),
        resource.kind(),
    )))
}

/// What a server-side apply makes of `current`: the merged object with its new record. For an
/// object that does not exist, `current` is an empty object.
///
/// # Errors
///
/// 409 when the configuration changes what others own, unless `force` is set; 500, as a real API
/// server has it, when it has fields that are unknown.
pub(super) fn apply(
    resource: Resource,
    current: &Value,
    configuration: &Value,
    writer: Writer<'_>,
    force: bool,
) -> Result<Value, Status> {
    let top = schema::of(resource);
    check_fields(resource, configuration)?;
    let mut configuration = without_record(configuration);
    // Each part of an object is applied by its own path.
    if writer.subresource == "status" {
        remove(&mut configuration, "spec");
    } else if resource.has_status() {
        remove(&mut configuration, "status");
    }
    let live = without_record(current);
    let mut entries = entries_of(current)?;
    if entries.is_empty() && live["metadata"]["uid"].is_string() {
        let before = Writer { manager: BEFORE_FIRST_APPLY, subresource: "", now: writer.now };
        let mut entry = Entry::of(resource, before, Operation::Update);
        let empty = json!({"metadata": {}});
        entry.fields = without_unowned(typed::compare(top, &empty, &live).changed);
        entry.time = Some(writer.now.to_owned());
        entries.push(entry);
    }

    let mut own = Entry::of(resource, writer, Operation::Apply);
    own.fields = without_unowned(typed::claims(top, &configuration));
    let previous = entries.iter().position(|entry| entry.is_same_manager(&own)).map(|at| entries.remove(at));

    let mut merged = typed::merge(top, &live, &configuration);
    if let Some(previous) = &previous {
        let kept = entries.iter().fold(own.fields.clone(), |kept, entry| kept.union(&entry.fields));
        typed::drop_fields(top, &mut merged, &previous.fields, &kept);
    }
    let difference = typed::compare(top, &live, &merged);
    // kubectl goes over from client-side to server-side apply without a conflict with itself.
    let by_kubectl = writer.manager == "kubectl";
    let own_before = if by_kubectl { applied_by_client(top, &live) } else { Fields::default() };
    let disputed = difference.changed.minus(&own_before);
    let conflicts: Vec<_> = entries
        .iter()
        .map(|entry| (entry.in_words(), entry.fields.intersection(&disputed).paths()))
        .filter(|(_, paths)| !paths.is_empty())
        .collect();
    if !force && !conflicts.is_empty() {
        return Err(Status::apply_conflict(&conflicts));
    }
    let taken = difference.changed.union(&difference.removed);
    for entry in &mut entries {
        entry.fields = entry.fields.minus(&taken);
    }
    let has_changed = difference != typed::Difference::default();
    own.time = if has_changed { Some(writer.now.to_owned()) } else { previous.and_then(|entry| entry.time) };
    entries.push(own);
    store(entries, &mut merged);
    if by_kubectl && merged["metadata"]["annotations"][LAST_APPLIED].is_string() {
        if let Some(annotations) = configuration["metadata"].get_mut("annotations") {
            remove(annotations, LAST_APPLIED);
        }
        merged["metadata"]["annotations"][LAST_APPLIED] = json!(format!("{configuration}\n"));
    }
    Ok(merged)
}

/// What kubectl's client-side apply has set, where the object still has it so.
fn applied_by_client(top: &Structure, live: &Value) -> Fields {
    let applied = live["metadata"]["annotations"][LAST_APPLIED].as_str();
    let Some(applied) = applied.and_then(|applied| serde_json::from_str(applied).ok()) else {
        return Fields::default();
    };
    let since = typed::compare(top, &applied, live);
    typed::claims(top, &applied).minus(&since.changed).minus(&since.removed)
}

#[cfg(test)]
mod tests;
