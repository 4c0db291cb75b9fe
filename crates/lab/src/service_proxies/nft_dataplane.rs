//! Puts a node's table into effect through nftables rules in the node's network namespace.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::nft::Nft;
use super::nft_script::{self, NodeAddresses};
use super::proxied_node::{ProxiedNode, Synced};
use super::service_table::{PortEndpoints, ServiceTable};
use crate::address_block::node_pods;
use crate::kernel::{Fabric, KernelError};
use rolldrop_record::clock::Stamp;

/// A node's nftables rules.
#[derive(Debug)]
pub(super) struct NftRules {
    nft: Nft,
    /// Table in effect; `None` before the first transaction and after a failed one.
    in_effect: Option<ServiceTable>,
    /// Duration of the last transaction.
    took: Duration,
}

impl NftRules {
    /// Creates an empty set of rules on node `index` (from 0).
    pub(super) fn new(fabric: Arc<Fabric>, index: u8) -> Result<Self, KernelError> {
        let nft = Nft::new(fabric, index)?;
        Ok(Self { nft, in_effect: None, took: Duration::ZERO })
    }

    /// Returns the usual time to program the kernel, which is the duration of the last transaction.
    pub(super) fn usual_duration(&self) -> Duration {
        self.took
    }

    /// Puts a table into effect in one transaction.
    pub(super) async fn apply(&mut self, node: &ProxiedNode, table: ServiceTable) -> Synced {
        let own = NodeAddresses {
            address: node.shared.registry.addresses().node(node.index),
            pods: node_pods(node.index),
        };
        let script = nft_script::script(self.in_effect.as_ref(), &table, own);
        let swap_begin_ns = node.shared.clock.now();
        if !script.is_empty()
            && let Err(error) = self.program(script).await
        {
            tracing::warn!(%error, node = node.name, "cannot change the rules for Services");
            self.in_effect = None;
            return Synced::No;
        }
        let t_ns = node.shared.clock.now();
        let before = self.in_effect.replace(table).unwrap_or_default();
        self.report(node, &before, [swap_begin_ns, t_ns]);
        Synced::Yes
    }

    async fn program(&mut self, script: String) -> io::Result<()> {
        let begun = Instant::now();
        let done = match self.in_effect {
            Some(_) => self.nft.run_lines(script).await,
            None => self.nft.run_script(script).await,
        };
        self.took = begun.elapsed();
        if done.is_ok() && self.in_effect.is_none() {
            self.nft.stay().await;
            if self.nft.stays() {
                // The next transaction will be faster than this one, which started a process.
                self.took = Duration::ZERO;
            }
        }
        done
    }

    /// Logs the changed routes and when they changed.
    fn report(&self, node: &ProxiedNode, before: &ServiceTable, at: [Stamp; 2]) {
        let nothing = PortEndpoints::default();
        let now = self.in_effect.iter().flatten();
        let gone = before.keys().filter(|port| !self.in_effect.iter().any(|table| table.contains_key(*port)));
        for (port, endpoints) in gone.map(|port| (port, &nothing)).chain(now) {
            let routes = port.routes(endpoints);
            if port.routes(before.get(port).unwrap_or(&nothing)) != routes {
                node.report(port, &routes, at);
            }
        }
    }
}
