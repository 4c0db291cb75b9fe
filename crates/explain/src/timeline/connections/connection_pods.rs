//! Pods of kept connections. A request that does not name its pod reached the pod that its connection reached before.

use std::sync::Arc;

use foldhash::HashMap;

use crate::timeline::requests::ConnectionId;
use crate::timeline::{Request, Requests, Timeline};
use rolldrop_record::Stamp;
use rolldrop_record::run_info::Balances;

/// Pods of connections on which some requests do not name their pod.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionPods(HashMap<ConnectionId, Latest>);

/// Pod named by the last request on a connection that named one.
#[derive(Clone, Debug)]
struct Latest {
    /// Intended send time and number of that request.
    order: (Stamp, u64),
    pod: Arc<str>,
}

impl ConnectionPods {
    /// Returns true if no pod is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds any request.
    pub(crate) fn see(&mut self, timeline: &Timeline, requests: &Requests, r: &Request) {
        let is_of_connections = || {
            let target = timeline.target_of(&r.row);
            target.is_none_or(|target| timeline.info.targets[target].balances == Balances::Connections)
        };
        if !requests.unnamed.is_empty()
            && let Some(pod) = r.pod()
            && let Some(connection) = r.connection()
            && requests.unnamed.contains(&connection)
            && is_of_connections()
        {
            self.add(connection, pod, (r.row.scheduled, r.row.seq));
        }
    }

    /// Adds a request that names its pod.
    fn add(&mut self, connection: ConnectionId, pod: &Arc<str>, order: (Stamp, u64)) {
        if self.0.get(&connection).is_none_or(|latest| latest.order < order) {
            self.0.insert(connection, Latest { order, pod: Arc::clone(pod) });
        }
    }

    pub(crate) fn merge(&mut self, later: Self) {
        for (connection, latest) in later.0 {
            self.add(connection, &latest.pod, latest.order);
        }
    }

    /// Returns the pod that a request reached: named by one of the ends, or by its connection.
    pub(crate) fn pod<'a>(&'a self, r: &'a Request) -> Option<&'a Arc<str>> {
        let by_connection = || match r.row.conn_reused && !self.0.is_empty() {
            true => self.0.get(&r.connection()?).map(|latest| &latest.pod),
            false => None,
        };
        r.pod().or_else(by_connection)
    }
}
