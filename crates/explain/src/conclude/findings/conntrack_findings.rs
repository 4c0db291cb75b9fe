//! Findings about the kernel's connection tracking (`--evidence conntrack`).

use super::len;
use crate::model::account::Measurement;
use crate::timeline::{Agreement, ConntrackEvidence, Timeline};

/// Returns the findings about the evidence from connection tracking, and reasons why it may not be usable.
pub(super) fn findings(said: &ConntrackEvidence, timeline: &Timeline) -> Vec<Measurement> {
    let ConntrackEvidence { connections, routed, gaps, agreement } = said;
    let (connections, routed) = (*connections, *routed);
    let mut findings = Vec::new();
    if connections > 0 && routed == 0 {
        findings.push(Measurement::NoEntries { connections });
    } else if agreement.routed > 0 && agreement.to_pods == 0 {
        findings.push(Measurement::NoPodAddresses);
    }
    if let Some((first, _)) = gaps.first() {
        findings.push(Measurement::TrackingGaps { gaps: len(gaps.len()), first_s: timeline.seconds(*first) });
    }
    findings.extend(contradictions(agreement));
    if agreement.is_relied_on && routed > 0 && agreement.to_pods > 0 {
        findings.push(Measurement::Tracked { routed, connections });
    }
    findings
}

/// Returns the finding about responses and entries that name different pods, or too rarely name the same pod.
fn contradictions(agreement: &Agreement) -> Option<Measurement> {
    let Agreement { agreed, disagreed, is_relied_on, to_pods, .. } = *agreement;
    match (disagreed, is_relied_on) {
        (0, true) => None,
        (0, false) => (to_pods > 0).then_some(Measurement::EntriesUnconfirmed { agreed }),
        (_, _) => Some(Measurement::EntriesContradicted { disagreed }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agreement(agreed: u64, disagreed: u64, is_relied_on: bool) -> Agreement {
        let to_pods = agreed + disagreed + 1;
        Agreement { routed: to_pods, to_pods, agreed, disagreed, is_relied_on }
    }

    #[test]
    fn conntrack_finding_reports_untrusted_entries() {
        assert_eq!(contradictions(&agreement(100, 0, true)), None);
        let contradicted = Measurement::EntriesContradicted { disagreed: 2 };
        assert_eq!(contradictions(&agreement(100, 2, true)), Some(contradicted));
        let unconfirmed = Measurement::EntriesUnconfirmed { agreed: 3 };
        assert_eq!(contradictions(&agreement(3, 0, false)), Some(unconfirmed));
    }
}
