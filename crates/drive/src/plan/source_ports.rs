//! Checks that the sidecars have enough source ports for the load's fresh connections.
//!
//! For each client connection, a sidecar opens a connection to its app, from the pod's own address to the same address.
//! If the client closes first, the sidecar also closes its connection to the app first, and the source port stays in
//! use for a while.

use std::time::Duration;

use serde_json::Value;

use super::call::RunPlan;
use super::disruption_checks::Checks;
use super::target_checks::expected_remotes;
use crate::error::Result;
use rolldrop_record::load::{PortRange, TIME_WAIT, ephemeral_of};
use rolldrop_scenario::Place;
use rolldrop_sidecar::inject;

impl Checks<'_> {
    /// Adds a finding for each workload whose sidecars have too few source ports. `workloads` are those with pods when
    /// the load begins; `length` is the length of the load, if known.
    pub(super) async fn source_ports(
        &self,
        workloads: &[Value],
        length: Option<Duration>,
        plan: &mut RunPlan,
    ) -> Result<()> {
        let settings = &self.scenario.load.settings;
        let with_sidecar = |workload: &&Value| !annotation(workload).is_null();
        if settings.reuse_ports || !workloads.iter().any(|workload| with_sidecar(&workload)) {
            return Ok(());
        }
        let held_s = length.map_or(TIME_WAIT, |length| TIME_WAIT.min(length)).as_secs_f64();
        let rates = self.fresh_per_pod(workloads).await?;
        for (workload, per_s) in workloads.iter().zip(rates).filter(|(workload, _)| with_sidecar(workload)) {
            let (needed, ports) = (per_s * held_s, ports_of(workload));
            if needed <= ports as f64 || self.is_over_loopback().await? {
                continue;
            }
            let (kind, name) = (&workload["kind"], workload["metadata"]["name"].as_str().unwrap_or_default());
            let why = format!(
                "{per_s:.0} fresh connections/s to each pod of {} {name} need {needed:.0} source ports in the pod: \
                 for each of them, the sidecar opens a connection to the app, and if the client closes first, its \
                 port stays in use for {} s (TIME_WAIT). The pod has {ports}, enough for {:.0}/s; the other \
                 connections would be refused or reset. Keep connections open (connections: {{mode: keepalive}}), \
                 run {:.1} times as many replicas, lower the rate, or set the sysctl net.ipv4.ip_local_port_range \
                 in the pod template (docs/inject.md, Source ports). If the server closes first, set reusePorts: \
                 true",
                kind.as_str().unwrap_or_default(),
                TIME_WAIT.as_secs(),
                ports as f64 / held_s,
                needed / ports as f64,
            );
            plan.findings.push(self.scenario.invalid("spec.load", why).to_string());
        }
        Ok(())
    }

    /// Returns, for each workload, the number of fresh connections per second to each pod; 0 if the number of pods is
    /// not known.
    async fn fresh_per_pod(&self, workloads: &[Value]) -> Result<Vec<f64>> {
        let targets = &self.scenario.targets;
        let turns: u32 = targets.iter().map(|target| target.weight).sum();
        let mut rates = vec![0.0; workloads.len()];
        for target in targets {
            // A gateway behind a URL opens its own connections.
            let Place::Service { name, .. } = &target.place else { continue };
            let Some((service, _)) = self.service_of_target(name, "spec.target").await? else { continue };
            let service = serde_json::to_value(service).unwrap_or_default();
            let selected = |workload: &Value| {
                inject::selects(&service, &workload["spec"]["template"]["metadata"]["labels"])
            };
            let pods = workloads.iter().filter(|workload| selected(workload)).map(pods_of);
            let Some(pods) = pods.sum::<Option<u64>>().filter(|pods| *pods > 0) else { continue };
            let share = f64::from(target.weight) / f64::from(turns) / pods as f64;
            for (workload, rate) in workloads.iter().zip(&mut rates) {
                if selected(workload) {
                    *rate += self.scenario.load.settings.fresh_per_s() * share;
                }
            }
        }
        Ok(rates)
    }

    /// Returns true if the pods have loopback addresses, as in the embedded cluster's userspace dataplane. There, the
    /// kernel releases a port after a second.
    async fn is_over_loopback(&self) -> Result<bool> {
        let remotes = expected_remotes(self.caller, self.scenario).await?;
        let is_loopback = |remote: &String| {
            remote.parse::<std::net::SocketAddr>().is_ok_and(|remote| remote.ip().is_loopback())
        };
        Ok(remotes.iter().flatten().flatten().any(is_loopback))
    }
}

/// Returns the image of the sidecar that was added to a workload's pods; null if there is no sidecar.
fn annotation(workload: &Value) -> &Value {
    &workload["spec"]["template"]["metadata"]["annotations"][inject::SIDECAR]
}

/// Returns a workload's number of pods; `None` if it depends on the nodes and no status shows it.
fn pods_of(workload: &Value) -> Option<u64> {
    match workload["kind"].as_str() {
        Some("DaemonSet") => workload["status"]["desiredNumberScheduled"].as_u64(),
        _ => Some(workload["spec"]["replicas"].as_u64().unwrap_or(1)),
    }
}

/// Returns the number of source ports in each of a workload's pods.
fn ports_of(workload: &Value) -> usize {
    let sysctls = workload["spec"]["template"]["spec"]["securityContext"]["sysctls"].as_array();
    let set = |name: &str| {
        let of_name = |sysctl: &&Value| sysctl["name"] == *name;
        sysctls.into_iter().flatten().find(of_name).and_then(|sysctl| sysctl["value"].as_str())
    };
    let PortRange { first, last } = PortRange::OF_LINUX;
    let range = set("net.ipv4.ip_local_port_range").map_or(format!("{first} {last}"), str::to_owned);
    let reserved = set("net.ipv4.ip_local_reserved_ports").unwrap_or_default();
    ephemeral_of(&range, reserved).map_or(usize::from(last - first) + 1, |ports| ports.len())
}
