//! Findings about the kernel's connection tracking (`--evidence conntrack`).

use crate::model::figures::{count, counted, len};
use crate::model::finding;
use crate::model::{Finding, Severity};
use crate::timeline::{Agreement, Timeline, Tracked};

/// Returns the findings about its evidence, and reasons why it may not be usable.
pub(super) fn findings(said: &Tracked, timeline: &Timeline) -> Vec<Finding> {
    let Tracked { connections, routed, gaps, agreement } = said;
    let mut findings = Vec::new();
    let mut warn = |what: String, why: &str, remedy: &str| {
        findings.push(finding(Severity::Warning, what, why, remedy));
    };
    if *connections > 0 && *routed == 0 {
        warn(
            format!("the kernel has no entry for any of {} connections", count(*connections)),
            "a kube-proxy replacement that balances at the socket leaves no entries, and so do rules that skip \
             connection tracking",
            "do not use --evidence conntrack here; --pod-header, --pod-body or a sidecar names pods",
        );
    } else if agreement.routed > 0 && agreement.to_pods == 0 {
        warn(
            "the kernel sent no connection to an address of a pod of this run".to_owned(),
            "the address is translated elsewhere (the port of another node, a load balancer), or a gateway answers",
            "send the load from nodes of the cluster to the Service: --load-from cluster --target svc/NAME",
        );
    }
    if let Some((first, _)) = gaps.first() {
        warn(
            format!(
                "the kernel's connection tracking has {}, the first after {:.1} s",
                counted(len(gaps.len()), "gap"),
                timeline.seconds(*first)
            ),
            "more connections were opened on the node than could be listened to: of some in that time it is not \
             known where they were sent (routed_to is null)",
            "a lower rate, a quieter node, or a larger net.core.rmem_max",
        );
    }
    findings.extend(contradictions(agreement));
    if agreement.is_relied_on && *routed > 0 && agreement.to_pods > 0 {
        let what = format!(
            "the kernel says where {} of {} connections were sent",
            count(*routed),
            count(*connections)
        );
        let why =
            "without an entry: refused by a rule, or on an entry of an earlier connection from its port";
        findings.push(finding(Severity::Info, what, why, ""));
    }
    findings
}

/// Returns the finding about answers and entries that name different pods, or of which too few name the same one.
fn contradictions(agreement: &Agreement) -> Option<Finding> {
    let Agreement { agreed, disagreed, is_relied_on, to_pods, .. } = *agreement;
    let (what, why, remedy) = match (disagreed, is_relied_on) {
        (0, true) => return None,
        (0, false) if to_pods == 0 => return None,
        (0, false) => (
            format!("the kernel's entries are not relied on: {} answers confirm them", count(agreed)),
            "under IPVS they count only if at least 20 answers name the same pods, and none another one",
            "let answers name their pods: --pod-header, --pod-body, or a sidecar",
        ),
        (n, _) => (
            format!("{} answers come from another pod than the kernel sent their connection to", count(n)),
            "something between the kernel and the app passes connections on, or an address has changed hands; the \
             answer counts",
            "do not rely on routed_to of lost requests here",
        ),
    };
    Some(finding(Severity::Warning, what, why, remedy))
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
        let what = |agreement| contradictions(&agreement).map(|finding| finding.what).unwrap_or_default();
        assert_eq!(
            what(agreement(100, 2, true)),
            "2 answers come from another pod than the kernel sent their connection to"
        );
        assert_eq!(
            what(agreement(3, 0, false)),
            "the kernel's entries are not relied on: 3 answers confirm them"
        );
    }
}
