//! Events that `rolldrop watch --events` writes.

use std::sync::Arc;

use tokio::task::JoinSet;

use crate::viewer::WatchViewer;
use rolldrop_drive::act::{WorkloadEventText, write_workload_event};
use rolldrop_explain::count::termination_groups::{TerminationGroup, TerminationGroups};
use rolldrop_explain::model::WatchedTermination;
use rolldrop_record::Stamp;
use rolldrop_report::workload_notes;

/// Events about workloads, which are written when no further termination follows.
pub(crate) struct WorkloadEvents {
    client: kube::Client,
    viewer: Arc<dyn WatchViewer>,
    groups: TerminationGroups,
    writing: JoinSet<()>,
}

impl WorkloadEvents {
    pub(crate) fn of(client: kube::Client, viewer: Arc<dyn WatchViewer>) -> Self {
        Self { client, viewer, groups: TerminationGroups::default(), writing: JoinSet::new() }
    }

    /// Adds a termination.
    pub(crate) fn add(&mut self, now: Stamp, end: &WatchedTermination) {
        self.groups.add(now, end);
    }

    /// Begins to write Events about the groups that are complete.
    pub(crate) fn begin(&mut self, now: Stamp) {
        for group in self.groups.complete(now) {
            self.writing.spawn(Self::write(self.client.clone(), Arc::clone(&self.viewer), group));
        }
        while self.writing.try_join_next().is_some() {}
    }

    /// Writes the last Events.
    pub(crate) async fn finish(&mut self, now: Stamp) {
        self.begin(now);
        while self.writing.join_next().await.is_some() {}
    }

    /// Writes an Event for each notable fact about a group. A failure is only shown.
    async fn write(client: kube::Client, viewer: Arc<dyn WatchViewer>, group: TerminationGroup) {
        let TerminationGroup { workload, first, last } = group;
        let Some(name) = workload.workload.as_deref() else { return };
        for note in workload_notes(&workload) {
            let namespace = &workload.namespace;
            let text = WorkloadEventText {
                namespace,
                workload: name,
                reason: note.reason,
                message: &note.message,
                first,
                last,
            };
            if let Err(error) = write_workload_event(&client, &text).await {
                viewer.say(&format!("warning: {error}"));
            }
        }
    }
}
