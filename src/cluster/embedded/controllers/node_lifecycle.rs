//! Watches over the nodes, and draws the consequences of their state for nodes and pods.
//!
//! After pkg/controller/nodelifecycle. Taints `NoSchedule` follow a node's conditions at once
//! ([`taint`]). Everything else is decided when the nodes are looked at, every
//! `nodeMonitorPeriod` ([`Monitor`]): a node that has shown no life for too long ([`health`])
//! becomes `Unknown`, its pods count as not ready, and the taint `NoExecute`, by which
//! [`super::taint_eviction`] evicts its pods, follows at the rate that the state of its zone
//! allows ([`zone`]). A node that says of itself that it is not ready gets the same taints, but
//! its pods stay as its agent shows them.

mod health;
mod taint;
mod zone;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::{condition, conditions, is_ready, key};
use crate::cluster::embedded::Shared;
use crate::cluster::embedded::registry::{EventType, NODE_LEASES, Part};
use crate::cluster::embedded::resource::Resource;
use crate::cluster::embedded::selector::Selection;
use crate::cluster::embedded::status::Status;
use health::Health;
use taint::{NOT_READY, UNREACHABLE};
use zone::{Zone, ZoneState};

const COMPONENT: &str = "node-controller";

/// The conditions that nobody can say anything about any more when a node is lost.
const OF_THE_KUBELET: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

pub(super) async fn run(shared: Shared) {
    tokio::join!(taint::follow_conditions(&shared), Monitor::new(shared.clone()).run());
}

/// What is known of the nodes from one look to the next.
struct Monitor {
    shared: Shared,
    nodes: BTreeMap<String, Known>,
    zones: BTreeMap<String, Zone>,
}

/// What is known of one node.
struct Known {
    uid: Value,
    health: Health,
    /// Its pods could not all be marked as not ready.
    pods_to_mark: bool,
}

impl Monitor {
    fn new(shared: Shared) -> Self {
        Self { shared, nodes: BTreeMap::new(), zones: BTreeMap::new() }
    }

    /// Looks at the nodes, for ever.
    async fn run(mut self) {
        let mut looks = interval(self.shared.config.controllers.node_monitor_period);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let taints_due = self.zones.values().filter_map(Zone::next_taint_at).min();
            tokio::select! {
                _ = looks.tick() => self.look(),
                () = sleep_until(taints_due.unwrap_or_else(Instant::now)), if taints_due.is_some() => {}
            }
            self.taint_those_in_turn();
        }
    }

    fn look(&mut self) {
        let nodes = self.shared.registry.list(Resource::Nodes, None, &Selection::all()).items;
        self.meet_and_forget(&nodes);
        let mut ready_by_zone: BTreeMap<String, Vec<bool>> = BTreeMap::new();
        for node in &nodes {
            match self.look_at(node) {
                Ok(is_ready) => ready_by_zone.entry(zone::of(node)).or_default().push(is_ready),
                Err(status) => tracing::debug!(%status, node = key(node).1, "to be looked at again"),
            }
        }
        self.judge_zones(&ready_by_zone, &nodes);
    }

    /// Takes note of nodes that came and went.
    fn meet_and_forget(&mut self, nodes: &[Arc<Value>]) {
        let registry = &self.shared.registry;
        for node in nodes {
            let name = key(node).1;
            let uid = &node["metadata"]["uid"];
            if self.nodes.get(&name).is_some_and(|known| known.uid == *uid) {
                continue;
            }
            let message = format!("Node {name} event: Registered Node {name} in Controller");
            registry.record_event(node, EventType::Normal, "RegisteredNode", &message, COMPONENT);
            let known = Known { uid: uid.clone(), health: Health::new(Instant::now()), pods_to_mark: false };
            self.nodes.insert(name, known);
        }
        let present: BTreeSet<_> = nodes.iter().map(|node| key(node).1).collect();
        self.nodes.retain(|name, known| {
            let stays = present.contains(name);
            if !stays {
                let gone = json!({
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": name, "uid": known.uid},
                });
                let message = format!("Node {name} event: Removing Node {name} from Controller");
                registry.record_event(&gone, EventType::Normal, "RemovingNode", &message, COMPONENT);
            }
            stays
        });
        let rate = self.shared.config.controllers.node_eviction_rate;
        for node in nodes {
            self.zones.entry(zone::of(node)).or_insert_with(|| Zone::new(rate, Instant::now()));
        }
    }

    /// Judges a node and draws the consequences; answers whether it is ready.
    fn look_at(&mut self, node: &Arc<Value>) -> Result<bool, Status> {
        let registry = &self.shared.registry;
        let name = key(node).1;
        let Some(known) = self.nodes.get_mut(&name) else { return Ok(false) };
        let lease = registry.get(Resource::Leases, NODE_LEASES, &name).ok();
        known.health.observe(node, lease.as_deref(), Instant::now());

        let observed = condition(node, "Ready")["status"].clone();
        let controllers = &self.shared.config.controllers;
        let grace = if observed.is_null() {
            controllers.node_startup_grace_period
        } else {
            controllers.node_monitor_grace_period
        };
        let mut node = Arc::clone(node);
        if known.health.is_silent_for(grace, Instant::now()) && observed != "Unknown" {
            let now = registry.now();
            node = registry
                .modify(Resource::Nodes, "", &name, Part::Status, |node| mark_as_unknown(node, &now))?;
        }
        let current = &condition(&node, "Ready")["status"];
        let is_lost = current != "True" && observed == "True";
        if is_lost {
            let message = format!("Node {name} status is now: NodeNotReady");
            registry.record_event(&node, EventType::Normal, "NodeNotReady", &message, COMPONENT);
        }
        if is_lost || (known.pods_to_mark && observed != "True") {
            known.pods_to_mark = true;
            mark_pods_not_ready(&self.shared, &name)?;
        }
        known.pods_to_mark = false;
        self.ask_for_taint(&node, &name)?;
        Ok(current == "True")
    }

    /// Puts a node in the queue for the taint that its state asks for, or takes its taints away
    /// (`processTaintBaseEviction`).
    fn ask_for_taint(&mut self, node: &Value, name: &str) -> Result<(), Status> {
        let (wanted, other) = match condition(node, "Ready")["status"].as_str() {
            Some("True") => return self.reach_again(node, name),
            Some("False") => (NOT_READY, UNREACHABLE),
            Some(_) => (UNREACHABLE, NOT_READY),
            None => return Ok(()),
        };
        if taint::has_no_execute(node, other) {
            return taint::swap_no_execute(&self.shared.registry, name, &[wanted], &[other]);
        }
        if let Some(zone) = self.zones.get_mut(&zone::of(node))
            && !taint::has_no_execute(node, wanted)
        {
            zone.enqueue(name);
        }
        Ok(())
    }

    /// Takes the taints `NoExecute` off a node (`markNodeAsReachable`).
    fn reach_again(&mut self, node: &Value, name: &str) -> Result<(), Status> {
        if let Some(zone) = self.zones.get_mut(&zone::of(node)) {
            zone.dequeue(name);
        }
        if ![NOT_READY, UNREACHABLE].iter().any(|taint| taint::has_no_execute(node, taint)) {
            return Ok(());
        }
        taint::swap_no_execute(&self.shared.registry, name, &[], &[NOT_READY, UNREACHABLE])
    }

    /// Adapts the rate of evictions to the state of the zones (`handleDisruption`). When all nodes of
    /// all zones fail, it is rather this side that cannot reach them: nobody is evicted.
    fn judge_zones(&mut self, ready_by_zone: &BTreeMap<String, Vec<bool>>, nodes: &[Arc<Value>]) {
        self.zones.retain(|name, _| ready_by_zone.contains_key(name));
        let controllers = self.shared.config.controllers.clone();
        let states: BTreeMap<_, _> = ready_by_zone
            .iter()
            .map(|(name, ready)| (name, ZoneState::of(ready, controllers.unhealthy_zone_threshold)))
            .collect();
        let all_failed = states.values().all(|state| *state == ZoneState::FullDisruption);
        let all_had_failed = self.zones.values().all(|zone| zone.state() == ZoneState::FullDisruption);
        let now = Instant::now();
        if all_failed && !all_had_failed {
            for node in nodes {
                if let Err(status) = self.reach_again(node, &key(node).1) {
                    tracing::debug!(%status, "taints stay");
                }
            }
            for zone in self.zones.values_mut() {
                zone.enter(ZoneState::FullDisruption, 0.0, now);
            }
        } else if !all_failed {
            if all_had_failed {
                for known in self.nodes.values_mut() {
                    known.health.give_time(now);
                }
            }
            for (name, state) in states {
                let size = ready_by_zone[name].len();
                let rate = state.rate(size, &controllers);
                if let Some(zone) = self.zones.get_mut(name) {
                    zone.enter(state, rate, now);
                }
            }
        }
    }

    /// Gives the taint `NoExecute` to as many of those that wait for it as the rates allow
    /// (`doNoExecuteTaintingPass`).
    fn taint_those_in_turn(&mut self) {
        let registry = &self.shared.registry;
        for zone in self.zones.values_mut() {
            while let Some(name) = zone.take_turn(Instant::now()) {
                let Ok(node) = registry.get(Resource::Nodes, "", &name) else { continue };
                let (wanted, other) = match condition(&node, "Ready")["status"].as_str() {
                    Some("False") => (NOT_READY, UNREACHABLE),
                    Some("Unknown") => (UNREACHABLE, NOT_READY),
                    // It is ready again.
                    _ => continue,
                };
                if let Err(status) = taint::swap_no_execute(registry, &name, &[wanted], &[other]) {
                    tracing::debug!(%status, node = name, "not tainted");
                }
            }
        }
    }
}

/// Says of a node whose agent shows no life that nothing is known of it.
fn mark_as_unknown(node: &mut Value, now: &str) {
    for kind in OF_THE_KUBELET {
        let mut known = condition(node, kind).clone();
        if known.is_null() {
            known = json!({
                "type": kind,
                "reason": "NodeStatusNeverUpdated",
                "message": "Kubelet never posted node status.",
                "lastHeartbeatTime": node["metadata"]["creationTimestamp"],
            });
        } else if known["status"] != "Unknown" {
            known["reason"] = json!("NodeStatusUnknown");
            known["message"] = json!("Kubelet stopped posting node status.");
        }
        known["status"] = json!("Unknown");
        conditions::put(node, known, now);
    }
}

/// Nobody can say any more whether the pods of a lost node are ready (`MarkPodsNotReady`).
fn mark_pods_not_ready(shared: &Shared, node: &str) -> Result<(), Status> {
    let registry = &shared.registry;
    let now = registry.now();
    for pod in registry.list(Resource::Pods, None, &Selection::field("spec.nodeName", node)).items {
        if !is_ready(&pod) {
            continue;
        }
        let (namespace, name) = key(&pod);
        let marked = registry.modify(Resource::Pods, &namespace, &name, Part::Status, |pod| {
            let mut ready = condition(pod, "Ready").clone();
            ready["status"] = json!("False");
            conditions::put(pod, ready, &now);
        });
        match marked {
            Ok(pod) => {
                let (reason, message) = ("NodeNotReady", "Node is not ready");
                registry.record_event(&pod, EventType::Warning, reason, message, COMPONENT);
            }
            Err(status) if status.code() == 404 => {}
            Err(status) => return Err(status),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
