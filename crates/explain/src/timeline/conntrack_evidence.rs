//! Evidence from the kernel's connection tracking about the load's connections.

use super::clocks::Clocks;
use super::requests::Agreement;
use rolldrop_record::service_proxy::ServiceProxy;
use rolldrop_record::{Event, EventKind, RequestRow, Stamp};

/// Evidence from the kernel's connection tracking about the load's connections.
#[derive(Clone, Debug, Default)]
pub struct ConntrackEvidence {
    /// Number of opened connections.
    pub connections: u64,
    /// Number of these connections for which the kernel had an entry.
    pub routed: u64,
    /// Periods in which the kernel reported more than could be read, with the start and the end of each.
    pub gaps: Vec<(Stamp, Stamp)>,
    /// Agreement between the kernel's entries and the responses.
    pub agreement: Agreement,
}

impl ConntrackEvidence {
    /// Returns true if a new connection certainly had no entry of its own: a rule refused it, or it matched the entry
    /// of an earlier connection from its port.
    pub fn had_no_entry(&self, row: &RequestRow) -> bool {
        let is_in_a_gap = |at: Stamp| self.gaps.iter().any(|(from, to)| (*from..=*to).contains(&at));
        let is_listened_to = self.agreement.is_relied_on && self.agreement.to_pods > 0;
        let is_opened = row.connect_start.filter(|_| !row.conn_reused && row.routed_to.is_none());
        is_listened_to && is_opened.is_some_and(|at| !is_in_a_gap(at))
    }
}

/// Returns the mode reported by the kube-proxies on the load workers' nodes, if they agree.
pub(super) fn service_proxy(events: &[Event]) -> Option<ServiceProxy> {
    let mut said = events.iter().filter_map(|event| match &event.kind {
        EventKind::ConntrackEnded { service_proxy, .. } => service_proxy.as_ref(),
        _ => None,
    });
    let first = said.next()?;
    said.all(|other| other == first).then(|| first.clone())
}

/// Collects the load workers' reports about connection tracking; `None` if it was not used.
#[derive(Debug, Default)]
pub(super) struct ConntrackCollector(pub(super) Option<ConntrackEvidence>);

impl ConntrackCollector {
    pub(super) fn observe(&mut self, clocks: &Clocks, event: &Event) {
        match &event.kind {
            EventKind::ConntrackGap { from } => {
                let [from, to] = [*from, event.at].map(|at| clocks.place(&event.source, at));
                self.0.get_or_insert_default().gaps.push((from, to));
            }
            EventKind::ConntrackEnded { connections, routed, .. } => {
                let tracked = self.0.get_or_insert_default();
                tracked.connections += connections;
                tracked.routed += routed;
            }
            _ => {}
        }
    }
}
