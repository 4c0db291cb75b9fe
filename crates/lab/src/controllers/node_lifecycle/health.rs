//! When a node last showed that it is alive. Pure.
//!
//! What counts is when a heartbeat was seen here, not the time that it carries: the clocks of nodes
//! may differ (`tryUpdateNodeHealth`).

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;

use super::condition;

/// What is remembered of a node's heartbeats.
#[derive(Clone, Debug)]
pub(super) struct Health {
    /// The last heartbeat in its condition `Ready`, as written there; null without that condition.
    heartbeat: Value,
    /// When its Lease was last renewed.
    renewed: Option<Timestamp>,
    /// When something of it was last seen here.
    seen_at: Instant,
}

impl Health {
    /// Of a node that is seen for the first time.
    pub(super) fn new(now: Instant) -> Self {
        Self { heartbeat: Value::Null, renewed: None, seen_at: now }
    }

    /// Looks for new heartbeats in a node's status and its Lease.
    pub(super) fn observe(&mut self, node: &Value, lease: Option<&Value>, now: Instant) {
        let heartbeat = &condition(node, "Ready")["lastHeartbeatTime"];
        if *heartbeat != self.heartbeat {
            self.heartbeat = heartbeat.clone();
            self.seen_at = now;
        }
        let renewed = lease.and_then(|lease| lease["spec"]["renewTime"].as_str()?.parse().ok());
        if renewed > self.renewed {
            self.renewed = renewed;
            self.seen_at = now;
        }
    }

    /// Whether nothing was seen for longer than this.
    pub(super) fn is_silent_for(&self, time: Duration, now: Instant) -> bool {
        now > self.seen_at + time
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_heartbeat_or_a_renewed_lease_is_a_sign_of_life_and_an_old_one_is_not() {
        let node =
            |beat: &str| json!({"status": {"conditions": [{"type": "Ready", "lastHeartbeatTime": beat}]}});
        let lease = |renewed: &str| json!({"spec": {"renewTime": renewed}});
        let start = Instant::now();
        let second = |n| start + Duration::from_secs(n);
        let grace = Duration::from_secs(50);
        let mut health = Health::new(start);
        health.observe(&node("2026-01-01T00:00:00Z"), None, second(1));
        assert!(!health.is_silent_for(grace, second(51)) && health.is_silent_for(grace, second(52)));
        health.observe(&node("2026-01-01T00:05:00Z"), None, second(40));
        let renewed = lease("2026-01-01T00:00:10.000001Z");
        health.observe(&node("2026-01-01T00:05:00Z"), Some(&renewed), second(60));
        assert!(!health.is_silent_for(grace, second(110)));
        for old in [&renewed, &lease("2026-01-01T00:00:10.000000Z")] {
            health.observe(&node("2026-01-01T00:05:00Z"), Some(old), second(70));
            assert!(health.is_silent_for(grace, second(111)));
        }
    }
}
