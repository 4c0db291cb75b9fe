//! The sidecars that `--sidecars` names: processes their journals.

use std::collections::BTreeSet;

use crate::viewer::WatchViewer;
use rolldrop_drive::collect::{JournalDelivery, JournalDeliveryKind, SidecarSource};
use rolldrop_explain::gateway_traffic::GatewayTraffic;
use rolldrop_explain::model::LogGap;

/// Sidecars whose journals are read.
#[derive(Debug)]
pub(crate) struct ReadSidecars {
    names: Vec<String>,
    /// Arguments whose latest pod's journal was not read, or not completely.
    unread: BTreeSet<usize>,
    /// Arguments that were warned about.
    warned: BTreeSet<usize>,
}

impl ReadSidecars {
    pub(crate) fn of(sources: &[SidecarSource]) -> Self {
        let names = sources.iter().map(ToString::to_string).collect();
        Self { names, unread: BTreeSet::new(), warned: BTreeSet::new() }
    }

    /// Returns the name of an argument.
    pub(crate) fn name(&self, number: usize) -> &str {
        &self.names[number]
    }

    /// Processes what a journal delivered. Returns the gap, if rows may be missing.
    pub(crate) fn take(
        &mut self,
        traffic: &mut GatewayTraffic,
        delivery: JournalDelivery,
        viewer: &dyn WatchViewer,
    ) -> Option<LogGap> {
        let JournalDelivery { number, uid, log, kind } = delivery;
        let name = &self.names[number];
        if !traffic.add_journal(&log, &uid, name) {
            // Each of its requests would count twice.
            if self.warned.insert(number) {
                viewer.say(&format!(
                    "warning: --sidecars names the sidecar {log} twice: {name} does not count"
                ));
            }
            return None;
        }
        match kind {
            JournalDeliveryKind::Clock(clock) => traffic.set_clock(&uid, &log, clock),
            JournalDeliveryKind::Rows(rows) => {
                self.unread.remove(&number);
                traffic.add_served(&uid, &log, rows);
            }
            JournalDeliveryKind::Ended { at } => traffic.end_journal(&uid, &log, at),
            JournalDeliveryKind::Warning(what) => {
                self.unread.insert(number);
                if self.warned.insert(number) {
                    viewer.say(&format!("warning: {what}"));
                }
            }
            JournalDeliveryKind::Gap { from, to, why } => {
                self.unread.insert(number);
                let gap = LogGap { source: log.to_string(), from_ns: from, to_ns: Some(to), why: Some(why) };
                traffic.add_journal_gap(&uid, gap.clone());
                return Some(gap);
            }
        }
        None
    }

    /// Returns the arguments whose latest pod's journal was not read, or not completely.
    pub(crate) fn unread(&self) -> impl Iterator<Item = &str> {
        self.unread.iter().map(|number| self.names[*number].as_str())
    }
}
