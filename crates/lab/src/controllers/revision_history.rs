//! The ControllerRevisions of a StatefulSet or DaemonSet, one for each template in its history.
//!
//! Based on pkg/controller/history and `constructHistory` (pkg/controller/daemon/update.go). A template that is used
//! again gets its old revision back, with a new number.

use std::sync::Arc;

use serde_json::{Value, json};

use super::claim::claim;
use super::pod_template;
use crate::object_fields::{controller_reference, key};
use crate::registry::{ObjectPart, Registry};
use crate::resource::Resource;
use crate::selector::LabelSelector;
use crate::status::Status;
use crate::value::{number, text};

/// Pod label that contains the revision (`ControllerRevisionHashLabelKey`).
pub(super) const REVISION_LABEL: &str = "controller-revision-hash";

/// Revisions of a workload's template.
pub(super) struct RevisionHistory {
    /// Revision of the latest template.
    pub(super) update: Arc<Value>,
    /// Other revisions, oldest first.
    pub(super) old: Vec<Arc<Value>>,
}

impl RevisionHistory {
    /// Returns the history of `owner`, with its latest template as the newest revision. `mark` builds the value of the
    /// revision's own label from the revision's name and the hash in that name.
    pub(super) fn of(
        registry: &Registry,
        owner: &Value,
        mark: impl Fn(&str, &str) -> String,
    ) -> Result<Self, Status> {
        let selector = LabelSelector::from_object(&owner["spec"]["selector"]);
        let mut old = claim(registry, owner, Resource::ControllerRevisions, &selector, |_| true)?;
        old.sort_by_cached_key(|revision| (number(&revision["revision"]), key(revision).1));
        let wanted = &owner["spec"]["template"];
        let is_present = |revision: &Arc<Value>| pod_template::is_same(&template_of(revision), wanted);
        let present = old.iter().rposition(is_present).map(|at| old.remove(at));
        let newest = old.last().map_or(0, |revision| number(&revision["revision"])) + 1;
        let update = match present {
            Some(present) if number(&present["revision"]) >= newest => present,
            Some(present) => {
                registry.change(Resource::ControllerRevisions, &present, ObjectPart::Main, |revision| {
                    revision["revision"] = json!(newest);
                })?
            }
            None => {
                let revision = new_revision(owner, newest, mark);
                registry.create(Resource::ControllerRevisions, &key(owner).0, revision)?
            }
        };
        Ok(Self { update, old })
    }

    /// Finds an old revision by name.
    pub(super) fn find(&self, name: &str) -> Option<&Arc<Value>> {
        self.old.iter().find(|revision| key(revision).1 == name)
    }

    /// Deletes the oldest revisions that exceed the limit, except for those still in use.
    pub(super) fn forget(
        &self,
        registry: &Registry,
        owner: &Value,
        is_in_use: impl Fn(&Value) -> bool,
    ) -> Result<(), Status> {
        let unused: Vec<_> = self.old.iter().filter(|revision| !is_in_use(revision)).collect();
        let limit = owner["spec"]["revisionHistoryLimit"].as_u64().unwrap_or(10);
        let excess = unused.len().saturating_sub(usize::try_from(limit).unwrap_or(usize::MAX));
        for revision in unused.into_iter().take(excess) {
            registry.remove(Resource::ControllerRevisions, revision)?;
        }
        Ok(())
    }
}

/// Returns the value of the revision label on a pod or a ControllerRevision.
pub(super) fn revision_of(object: &Value) -> &str {
    text(&object["metadata"]["labels"][REVISION_LABEL])
}

/// Returns the template stored in a revision.
pub(super) fn template_of(revision: &Value) -> Value {
    let mut template = revision["data"]["spec"]["template"].clone();
    if let Some(fields) = template.as_object_mut() {
        fields.remove("$patch");
    }
    template
}

/// Builds a revision for the owner's latest template: a patch that `kubectl rollout undo` can send to restore it.
fn new_revision(owner: &Value, number: i64, mark: impl Fn(&str, &str) -> String) -> Value {
    let mut template = owner["spec"]["template"].clone();
    let hash = pod_template::hash(&template);
    let name = format!("{}-{hash}", key(owner).1);
    let mut labels = template["metadata"]["labels"].clone();
    labels[REVISION_LABEL] = json!(mark(&name, &hash));
    template["$patch"] = json!("replace");
    json!({
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": owner["metadata"]["annotations"],
            "ownerReferences": [controller_reference(owner)],
        },
        "data": {"spec": {"template": template}},
        "revision": number,
    })
}
