//! Events that `rolldrop watch --events` writes.

use tokio::task::JoinSet;

use crate::cli::say::say;
use rolldrop_drive::act::{WorkloadEventText, write_workload_event};
use rolldrop_explain::count::termination_groups::{TerminationGroup, TerminationGroups};
use rolldrop_explain::model::WatchedTermination;
use rolldrop_record::Stamp;
use rolldrop_report::workload_notes;

/// Events about workloads, which are written when no further termination follows.
pub(super) struct WorkloadEvents {
    client: kube::Client,
    groups: TerminationGroups,
    writing: JoinSet<()>,
}

impl WorkloadEvents {
    pub(super) fn of(client: kube::Client) -> Self {
        Self { client, groups: TerminationGroups::default(), writing: JoinSet::new() }
    }

    /// Adds a termination.
    pub(super) fn add(&mut self, now: Stamp, end: &WatchedTermination) {
        self.groups.add(now, end);
    }

    /// Begins to write Events about the groups that are complete.
    pub(super) fn begin(&mut self, now: Stamp) {
        for group in self.groups.complete(now) {
            self.writing.spawn(Self::write(self.client.clone(), group));
        }
        while self.writing.try_join_next().is_some() {}
    }

    /// Writes the last Events.
    pub(super) async fn finish(&mut self, now: Stamp) {
        self.begin(now);
        while self.writing.join_next().await.is_some() {}
    }

    /// Writes an Event for each notable fact about a group. A failure is only shown.
    async fn write(client: kube::Client, group: TerminationGroup) {
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
                say(&format!("warning: {error}"));
            }
        }
    }
}
