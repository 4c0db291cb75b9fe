//! What the kernel's connection tracking said of the load's connections.

use super::clocks::Clocks;
use super::requests::Agreement;
use crate::record::{Event, EventKind, Stamp};

/// What the kernel's connection tracking said of the connections of the load.
#[derive(Clone, Debug, Default)]
pub struct Tracked {
    /// Connections that were opened.
    pub connections: u64,
    /// Those of them that it had an entry for.
    pub routed: u64,
    /// When it said more than could be taken in: from and to.
    pub gaps: Vec<(Stamp, Stamp)>,
    /// How that agrees with what the answers say.
    pub agreement: Agreement,
}

/// Takes in what load workers say of it.
#[derive(Debug, Default)]
pub(super) struct Collector(Option<Tracked>);

impl Collector {
    pub(super) fn observe(&mut self, clocks: &Clocks, event: &Event) {
        match &event.kind {
            EventKind::ConntrackGap { from } => {
                let [from, to] = [*from, event.at].map(|at| clocks.place(&event.source, at));
                self.0.get_or_insert_default().gaps.push((from, to));
            }
            EventKind::ConntrackEnded { connections, routed } => {
                let tracked = self.0.get_or_insert_default();
                tracked.connections += connections;
                tracked.routed += routed;
            }
            _ => {}
        }
    }

    /// `None` where the kernel was not asked.
    pub(super) fn finish(self, agreement: Agreement) -> Option<Tracked> {
        Some(Tracked { agreement, ..self.0? })
    }
}
