//! DNS protocol messages: decodes questions and encodes responses. Pure.

use hickory_proto::op::{Edns, Message, MessageType, Metadata, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};
use rand::seq::SliceRandom;

use super::dns_records::{DnsRecords, ZONE};

/// Maximum number of bytes in a UDP response, regardless of the client's limit. It avoids fragmentation (CoreDNS's
/// `bufsize` plugin).
const MAX_UDP_BYTES: u16 = 1232;

/// Transport of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DnsTransport {
    Udp,
    Tcp,
}

/// Answers a question; returns `None` if the bytes are not a question.
pub(super) fn answer(
    question: &[u8],
    records: &DnsRecords,
    ttl_seconds: u32,
    transport: DnsTransport,
) -> Option<Vec<u8>> {
    let request = Message::from_vec(question).ok()?;
    if request.metadata.message_type != MessageType::Query {
        return None;
    }
    let mut response = Message::new(request.metadata.id, MessageType::Response, request.metadata.op_code);
    response.metadata = Metadata::response_from_request(&request.metadata);
    if request.edns.is_some() {
        let mut edns = Edns::new();
        edns.set_max_payload(MAX_UDP_BYTES);
        response.edns = Some(edns);
    }
    match &request.queries[..] {
        _ if request.metadata.op_code != OpCode::Query => {
            response.metadata.response_code = ResponseCode::NotImp;
        }
        [query] => {
            response.add_query(query.clone());
            fill(&mut response, query, records, ttl_seconds);
        }
        _ => response.metadata.response_code = ResponseCode::FormErr,
    }
    let bytes = response.to_vec().ok()?;
    let limit = usize::from(request.max_payload().min(MAX_UDP_BYTES));
    if transport == DnsTransport::Udp && bytes.len() > limit {
        return response.truncate().to_vec().ok();
    }
    Some(bytes)
}

fn fill(response: &mut Message, query: &Query, records: &DnsRecords, ttl_seconds: u32) {
    let text = query.name().to_ascii().to_ascii_lowercase();
    let labels: Vec<_> = text.trim_end_matches('.').split('.').collect();
    // There is no other name server to ask, so the server refuses names outside the cluster's domain.
    let Some(labels) = labels.strip_suffix(&ZONE[..]).filter(|_| query.query_class() == DNSClass::IN) else {
        response.metadata.response_code = ResponseCode::Refused;
        return;
    };
    response.metadata.authoritative = true;
    match records.addresses(labels) {
        None => response.metadata.response_code = ResponseCode::NXDomain,
        Some(mut addresses) => {
            // CoreDNS's `loadbalance` plugin does the same, because clients take the first address.
            addresses.shuffle(&mut rand::rng());
            for address in addresses.into_iter().filter(|_| query.query_type() == RecordType::A) {
                let data = RData::A(A(address));
                response.add_answer(Record::from_rdata(query.name().clone(), ttl_seconds, data));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;
    use std::sync::Arc;

    use hickory_proto::rr::Name;
    use serde_json::json;

    use super::*;

    fn ask(records: &DnsRecords, name: &str, record_type: RecordType, transport: DnsTransport) -> Message {
        let mut request = Message::query();
        request.add_query(Query::query(Name::from_str(name).unwrap(), record_type));
        let bytes = answer(&request.to_vec().unwrap(), records, 5, transport).unwrap();
        let response = Message::from_vec(&bytes).unwrap();
        assert_eq!(response.metadata.id, request.metadata.id);
        response
    }

    fn records(endpoints: u8) -> DnsRecords {
        let mut records = DnsRecords::default();
        let key = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
        records.namespaces.insert(key("", "shop"), Arc::new(json!({})));
        records.services.insert(key("shop", "db"), Arc::new(json!({"spec": {"clusterIP": "None"}})));
        let endpoints: Vec<_> =
            (0..endpoints).map(|n| json!({"addresses": [format!("10.244.1.{n}")]})).collect();
        let slice = json!({
            "metadata": {"labels": {"kubernetes.io/service-name": "db"}}, "addressType": "IPv4",
            "ports": [{"name": "sql", "protocol": "TCP", "port": 5432}], "endpoints": endpoints,
        });
        records.slices.insert(key("shop", "db-1"), Arc::new(slice));
        records
    }

    #[test]
    fn dns_response_code_matches_name() {
        let records = records(2);
        let a = ask(&records, "DB.shop.svc.cluster.local.", RecordType::A, DnsTransport::Udp);
        assert_eq!(
            (a.answers.len(), a.metadata.response_code, a.metadata.authoritative),
            (2, ResponseCode::NoError, true)
        );
        assert!(a.answers.iter().all(|record| record.ttl == 5));
        let empty = ask(&records, "db.shop.svc.cluster.local.", RecordType::AAAA, DnsTransport::Udp);
        assert!(empty.answers.is_empty());
        assert_eq!(empty.metadata.response_code, ResponseCode::NoError);
        let absent = ask(&records, "nosuch.shop.svc.cluster.local.", RecordType::A, DnsTransport::Udp);
        assert_eq!(absent.metadata.response_code, ResponseCode::NXDomain);
        let elsewhere = ask(&records, "example.org.", RecordType::A, DnsTransport::Udp);
        assert_eq!(elsewhere.metadata.response_code, ResponseCode::Refused);
    }

    #[test]
    fn oversized_udp_answer_is_truncated() {
        let records = records(100);
        let name = "db.shop.svc.cluster.local.";
        let udp = ask(&records, name, RecordType::A, DnsTransport::Udp);
        assert!(udp.metadata.truncation && udp.answers.is_empty());
        let tcp = ask(&records, name, RecordType::A, DnsTransport::Tcp);
        assert!(!tcp.metadata.truncation);
        assert_eq!(tcp.answers.len(), 100);
    }

    #[test]
    fn malformed_query_gets_no_answer() {
        let records = DnsRecords::default();
        assert_eq!(answer(b"", &records, 5, DnsTransport::Udp), None);
        assert_eq!(answer(&[0xFF; 40], &records, 5, DnsTransport::Udp), None);
        // A response is not a question; otherwise, two servers could answer each other forever.
        let response = Message::new(1, MessageType::Response, OpCode::Query).to_vec().unwrap();
        assert_eq!(answer(&response, &records, 5, DnsTransport::Udp), None);
    }
}
