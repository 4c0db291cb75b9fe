//! Puts into words why the load did not send requests: each reason in the rows (`not_sent_reason`) has its own remedy.

use std::collections::BTreeMap;

use super::super::format::count;

/// Returns the meaning of a reason, and its remedy.
fn explain(reason: &str) -> (&'static str, &'static str) {
    match reason {
        "max_connections" => (
            "all connections that load.connections.max allows were in use",
            "raise load.connections.max (-c), to make room for slow answers",
        ),
        "max_concurrent_streams" => (
            "all HTTP/2 streams that load.connections.maxConcurrentStreams allows were in use",
            "raise load.connections.maxConcurrentStreams (--max-concurrent-streams) or load.connections.max (-c)",
        ),
        "max_open" => (
            "all streams that load.stream.maxOpen allows were open",
            "raise load.stream.maxOpen (--max-open), or lower the rate",
        ),
        "late" => {
            ("a load worker got to them too late", "use a lower rate, more workers, or a less busy machine")
        }
        "no_socket" => ("no socket could be opened", "raise the limit of open files (ulimit -n)"),
        "no_local_port" => (
            "no source port was free",
            "use more source ports (net.ipv4.ip_local_port_range, load.sourcePorts), or keep connections open",
        ),
        "no_request" => {
            ("the filled-in template was not a valid URL or header", "correct the template or its data")
        }
        _ => ("a reason that this version does not know", "see not_sent_reason in the rows"),
    }
}

/// Lists the reasons in words, most frequent first, each with its count.
pub(crate) fn reasons_in_words(by_reason: &BTreeMap<String, u64>) -> String {
    let each = |(reason, n): (&str, u64)| format!("{}: {} ({reason})", count(n), explain(reason).0);
    most_first(by_reason).into_iter().map(each).collect::<Vec<_>>().join("; ")
}

/// Returns the remedies, most frequent reason first.
pub(super) fn remedy(by_reason: &BTreeMap<String, u64>) -> String {
    let each = most_first(by_reason).into_iter().map(|(reason, _)| explain(reason).1);
    each.collect::<Vec<_>>().join("; ")
}

fn most_first(by_reason: &BTreeMap<String, u64>) -> Vec<(&str, u64)> {
    let mut all: Vec<_> = by_reason.iter().map(|(reason, n)| (reason.as_str(), *n)).collect();
    all.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn not_sent_remedy_follows_reason() {
        let by_reason = BTreeMap::from([("late".to_owned(), 2), ("max_connections".to_owned(), 4321)]);
        assert_eq!(
            reasons_in_words(&by_reason),
            "4,321: all connections that load.connections.max allows were in use (max_connections); 2: a load worker \
             got to them too late (late)"
        );
        let told = remedy(&by_reason);
        assert!(told.starts_with("raise load.connections.max"), "{told}");
        assert!(!remedy(&BTreeMap::from([("max_connections".to_owned(), 1)])).contains("busy"));
    }
}
