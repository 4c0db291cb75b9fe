//! Detects non-HTTP ports in manifests.
//!
//! The HTTP proxy waits for a request head. In front of Redis it would respond with 400; with a server that speaks
//! first, such as MySQL, both sides would wait forever.

use std::fmt;

use serde_json::Value;

/// Words that indicate HTTP in port names (`<protocol>-<suffix>`, as in Istio's convention) and application protocols.
/// They take precedence over other words, so `redis-metrics` and `mysql-http` are HTTP.
const HTTP_WORDS: [&str; 24] = [
    "admin",
    "api",
    "console",
    "dashboard",
    "exporter",
    "grpc",
    "grpcs",
    "h2",
    "h2c",
    "health",
    "healthz",
    "http",
    "http2",
    "https",
    "metrics",
    "monitor",
    "monitoring",
    "prom",
    "prometheus",
    "rest",
    "ui",
    "web",
    "ws",
    "wss",
];

/// Non-HTTP protocols, the words that indicate them, and their usual ports.
const OTHERS: [(&str, &[&str], &[u16]); 30] = [
    ("AMQP", &["amqp", "amqps", "rabbitmq"], &[5671, 5672]),
    ("Bolt (Neo4j)", &["bolt"], &[7687]),
    ("CQL (Cassandra)", &["cassandra", "cql", "scylla"], &[9042]),
    ("ClickHouse's native protocol", &["clickhouse"], &[]),
    ("CockroachDB's SQL", &["cockroachdb"], &[26257]),
    ("DNS", &["dns"], &[53]),
    ("Elasticsearch's transport", &["transport"], &[9300]),
    ("Erlang's distribution", &["epmd"], &[4369, 25672]),
    ("FTP", &["ftp"], &[21]),
    ("Fluentd's forward", &["fluentd"], &[24224]),
    ("IMAP", &["imap", "imaps"], &[143, 993]),
    ("Kafka", &["kafka"], &[9092, 9094]),
    ("LDAP", &["ldap", "ldaps"], &[389, 636]),
    ("MQTT", &["mqtt", "mqtts"], &[1883, 8883]),
    ("Memcached", &["memcache", "memcached"], &[11211]),
    ("MongoDB", &["mongo", "mongod", "mongodb", "mongos"], &[27017, 27018, 27019]),
    ("MySQL", &["mariadb", "mysql", "mysqlx"], &[3306, 33060]),
    ("NATS", &["nats"], &[4222, 6222]),
    ("NFS", &["nfs"], &[2049]),
    ("OpenWire", &["openwire"], &[61616]),
    ("Oracle's SQL*Net", &["sqlnet"], &[1521]),
    ("POP3", &["pop3", "pop3s"], &[110, 995]),
    ("PostgreSQL", &["pgbouncer", "pgsql", "postgres", "postgresql"], &[5432, 6432]),
    ("Pulsar", &["pulsar"], &[6650]),
    ("Redis", &["redis", "valkey"], &[6379, 6380, 16379, 26379]),
    ("SMTP", &["smtp", "smtps"], &[25, 465, 587]),
    ("SQL Server's TDS", &["mssql", "sqlserver", "tds"], &[1433]),
    ("SSH", &["sftp", "ssh"], &[22]),
    ("STOMP", &["stomp"], &[61613]),
    ("ZooKeeper", &["zookeeper"], &[2181]),
];

/// A non-HTTP protocol, and the evidence for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Foreign {
    protocol: String,
    by: String,
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (judging by its {})", self.protocol, self.by)
    }
}

/// Determines the protocol of a port if it is not HTTP, from the Services' `appProtocol`, the port's names, or its
/// number, in this order.
pub(super) fn foreign<'a>(
    port: u16,
    app_protocols: impl Iterator<Item = &'a Value>,
    names: impl Iterator<Item = &'a str>,
) -> Option<Foreign> {
    let mut said = None;
    for app_protocol in app_protocols.filter_map(Value::as_str) {
        match meaning(app_protocol) {
            Some(PortMeaning::Http) => return None,
            Some(PortMeaning::Other(protocol)) => said = Some((protocol.to_owned(), app_protocol)),
            // The port is declared to carry opaque bytes. TLS is passed on unread, whatever it carries.
            None if app_protocol.eq_ignore_ascii_case("tcp") => said = Some(("TCP".to_owned(), app_protocol)),
            None => {}
        }
    }
    if let Some((protocol, app_protocol)) = said {
        return Some(Foreign { protocol, by: format!("appProtocol {app_protocol}") });
    }
    let mut said = None;
    for name in names {
        match meaning(name) {
            Some(PortMeaning::Http) => return None,
            Some(PortMeaning::Other(protocol)) => {
                said = Some(Foreign { protocol: protocol.to_owned(), by: format!("name {name}") });
            }
            None => {}
        }
    }
    let by_number = || {
        let (protocol, ..) = OTHERS.iter().find(|(_, _, ports)| ports.contains(&port))?;
        Some(Foreign { protocol: (*protocol).to_owned(), by: "number".to_owned() })
    };
    said.or_else(by_number)
}

enum PortMeaning {
    Http,
    Other(&'static str),
}

fn meaning(name: &str) -> Option<PortMeaning> {
    let lower = name.to_lowercase();
    let words = || lower.split(|c: char| !c.is_ascii_alphanumeric());
    if words().any(|word| HTTP_WORDS.contains(&word)) {
        return Some(PortMeaning::Http);
    }
    let (protocol, ..) = OTHERS.iter().find(|(_, known, _)| words().any(|word| known.contains(&word)))?;
    Some(PortMeaning::Other(protocol))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(port: u16, app_protocol: Option<&str>, names: &[&str]) -> Option<String> {
        let app_protocol = app_protocol.map(Value::from);
        foreign(port, app_protocol.iter(), names.iter().copied()).map(|found| found.to_string())
    }

    #[test]
    fn non_http_ports_are_recognised() {
        for (port, app_protocol, names, is) in [
            (6379, None, &[][..], Some("Redis (judging by its number)")),
            (5432, None, &["db"], Some("PostgreSQL (judging by its number)")),
            (9000, None, &["mysql"], Some("MySQL (judging by its name mysql)")),
            (9000, None, &["tcp-kafka-internal"], Some("Kafka (judging by its name tcp-kafka-internal)")),
            (9000, Some("mongo"), &["web"], Some("MongoDB (judging by its appProtocol mongo)")),
            (9000, Some("tcp"), &["web"], Some("TCP (judging by its appProtocol tcp)")),
            (8080, None, &["http"], None),
            (8080, None, &["tcp"], None),
            (6379, Some("kubernetes.io/h2c"), &["redis"], None),
            (6379, None, &["http"], None),
            (9121, None, &["redis-metrics"], None),
            (8080, None, &["transporter"], None),
            (9200, None, &["transport"], Some("Elasticsearch's transport (judging by its name transport)")),
            (443, Some("tls"), &[], None),
        ] {
            assert_eq!(said(port, app_protocol, names).as_deref(), is, "{port} {app_protocol:?} {names:?}");
        }
    }
}
