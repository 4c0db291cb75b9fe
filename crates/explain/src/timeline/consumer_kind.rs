//! Determines from responses whether the consumer behind a URL balances connections or requests.
//!
//! A Service routes connections; a gateway routes requests and pools its connections to pods. For a URL, only the
//! responses show which of the two it is:
//!
//! - a response with a gateway status (502, 503, 504) that names no pod, if no sidecar
//!   recorded that status: then the consumer itself speaks HTTP;
//! - requests on one connection that reached several pods;
//! - a header that gateways add: `via`, or `server` with the name of a product that is only a gateway. A
//!   product that also runs in single pods (Envoy), or serves apps directly (nginx), proves nothing.
//!
//! A value set in the scenario or on the command line is never changed, and a Service is never treated as a gateway.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::requests::{ConnectionId, Request, Requests};
use rolldrop_record::event::AnswerHeaders;
use rolldrop_record::outcome::is_gateway_status;
use rolldrop_record::run_info::{Balances, BalancesBecause, Target};
use rolldrop_record::{Outcome, RequestRow};

/// Prefixes of `server` values for products that route requests and never serve apps directly.
const GATEWAYS: [&str; 6] = [
    "awselb/",
    "cloudflare",
    "google frontend",
    "akamaighost",
    "microsoft-azure-application-gateway",
    "kong/",
];

/// Pods reached by the requests on each kept connection, as named in responses.
#[derive(Debug, Default)]
pub(super) struct KeptConnections {
    /// By target and connection: the alphabetically first and last of these pods.
    pods: HashMap<(Arc<str>, ConnectionId), [Arc<str>; 2]>,
}

impl KeptConnections {
    /// Adds a request. A connection's first request is not kept, as most connections carry no second one.
    pub(super) fn see(&mut self, row: &RequestRow) {
        let (true, Some(pod), Some(conn)) = (row.conn_reused, &row.pod, row.conn) else { return };
        let key = (Arc::clone(&row.target), (Arc::clone(&row.source), conn));
        let [first, last] = self.pods.entry(key).or_insert_with(|| [Arc::clone(pod), Arc::clone(pod)]);
        if pod < first {
            *first = Arc::clone(pod);
        } else if pod > last {
            *last = Arc::clone(pod);
        }
    }

    pub(super) fn merge(&mut self, later: Self) {
        for (key, [first, last]) in later.pods {
            match self.pods.entry(key) {
                Entry::Vacant(entry) => _ = entry.insert([first, last]),
                Entry::Occupied(mut entry) => {
                    let [own_first, own_last] = entry.get_mut();
                    if first < *own_first {
                        *own_first = first;
                    }
                    if last > *own_last {
                        *own_last = last;
                    }
                }
            }
        }
    }

    /// Returns two different pods reached by requests on the same connection to this target.
    fn changing(&self, target: &str) -> Option<&[Arc<str>; 2]> {
        let changing = self.pods.iter().filter(|((of, _), [first, last])| **of == *target && first != last);
        changing.min_by_key(|(key, _)| *key).map(|(_, pods)| pods)
    }
}

/// Sets the unit that each target balances from the evidence in its responses, if the target is a URL and the unit is
/// not configured. `headers` are the response headers, by target name.
pub(super) fn settle(targets: &mut [Target], requests: &Requests, headers: &BTreeMap<String, AnswerHeaders>) {
    let is_open = |target: &&mut Target| target.balances_because == BalancesBecause::Assumed;
    for target in targets.iter_mut().filter(is_open) {
        let because = by_statuses(&target.name, &requests.others).or_else(|| {
            let pods = requests.kept.changing(&target.name)?;
            Some(BalancesBecause::PodsOfOneConnection { pods: pods.each_ref().map(|pod| pod.to_string()) })
        });
        let because = because.or_else(|| by_headers(headers.get(&target.name)?));
        if let Some(because) = because {
            (target.balances, target.balances_because) = (Balances::Requests, because);
        }
    }
}

fn by_statuses(target: &str, others: &[Request]) -> Option<BalancesBecause> {
    let mut counts: BTreeMap<u16, u64> = BTreeMap::new();
    for request in others.iter().filter(|request| *request.row.target == *target) {
        if let Some(status) = gateway_status(request) {
            *counts.entry(status).or_default() += 1;
        }
    }
    let answers = counts.values().sum();
    let (status, _) = counts.into_iter().max_by_key(|(_, n)| *n)?;
    Some(BalancesBecause::GatewayStatus { status, answers })
}

fn by_headers(headers: &AnswerHeaders) -> Option<BalancesBecause> {
    let most = |values: &BTreeMap<String, u64>, is_meant: &dyn Fn(&str) -> bool| {
        let meant = values.iter().filter(|(value, _)| is_meant(value));
        meant.max_by_key(|(_, n)| **n).map(|(value, _)| value.clone())
    };
    let is_gateway = |value: &str| {
        let value = value.to_ascii_lowercase();
        GATEWAYS.iter().any(|name| value.starts_with(name))
    };
    let via = most(&headers.via, &|_| true).map(|value| ("via", value));
    let (header, value) = via.or_else(|| Some(("server", most(&headers.server, &is_gateway)?)))?;
    Some(BalancesBecause::GatewayHeader { header: header.to_owned(), value })
}

/// Returns the status of a response that, as far as is known, did not come from a pod.
fn gateway_status(request: &Request) -> Option<u16> {
    let Request { row, served, .. } = request;
    let status = row.status.filter(|status| is_gateway_status(*status))?;
    let is_apps = served.as_ref().is_some_and(|served| served.status == Some(status));
    (row.outcome == Outcome::HttpError && row.pod.is_none() && !is_apps).then_some(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rolldrop_record::{Phase, Stamp};

    fn row(conn: u64, pod: Option<&str>, status: u16) -> RequestRow {
        let at = Stamp::from_unix_ns(0);
        let outcome = if status < 400 { Outcome::Ok } else { Outcome::HttpError };
        let row = RequestRow::not_sent("load-0".into(), 0, "gate".into(), Phase::Main, at, at);
        let (conn, pod, status) = (Some(conn), pod.map(Arc::from), Some(status));
        RequestRow { outcome, conn, conn_reused: true, pod, status, ..row }
    }

    fn other(row: RequestRow) -> Request {
        Request::of(row)
    }

    #[test]
    fn unnamed_gateway_status_reveals_gateway() {
        let of = |requests: Vec<RequestRow>| {
            by_statuses("gate", &requests.into_iter().map(other).collect::<Vec<_>>())
        };
        assert_eq!(of(vec![row(1, None, 500), row(2, Some("a"), 503), row(3, None, 404)]), None);
        let status = |status, answers| Some(BalancesBecause::GatewayStatus { status, answers });
        assert_eq!(of(vec![row(1, None, 503), row(2, None, 502), row(3, None, 502)]), status(502, 3));
        let elsewhere = RequestRow { target: "web".into(), ..row(1, None, 502) };
        assert_eq!(of(vec![elsewhere]), None);
    }

    #[test]
    fn pod_switch_reveals_gateway() {
        let mut kept = KeptConnections::default();
        for (conn, pod) in [(1, "a"), (2, "b"), (1, "a"), (2, "b")] {
            kept.see(&row(conn, Some(pod), 200));
        }
        assert_eq!(kept.changing("gate"), None);
        kept.see(&row(1, None, 502));
        kept.see(&row(1, Some("b"), 200));
        assert_eq!(kept.changing("gate").unwrap().each_ref().map(|pod| &**pod), ["a", "b"]);
        assert_eq!(kept.changing("web"), None);
    }

    #[test]
    fn gateway_only_header_reveals_gateway() {
        let of = |via: &[(&str, u64)], server: &[(&str, u64)]| {
            let values = |of: &[(&str, u64)]| of.iter().map(|(value, n)| ((*value).to_owned(), *n)).collect();
            by_headers(&AnswerHeaders {
                via: values(via),
                server: values(server),
                ..AnswerHeaders::default()
            })
        };
        let header = |header: &str, value: &str| {
            Some(BalancesBecause::GatewayHeader { header: header.into(), value: value.into() })
        };
        assert_eq!(of(&[], &[("nginx/1.27", 900), ("istio-envoy", 9)]), None);
        assert_eq!(of(&[], &[("nginx/1.27", 900), ("awselb/2.0", 3)]), header("server", "awselb/2.0"));
        assert_eq!(of(&[("1.1 google", 9)], &[("cloudflare", 3)]), header("via", "1.1 google"));
    }
}
