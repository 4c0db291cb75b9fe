//! Puts a node's table into effect with nftables rules in the node's network namespace.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::nft::Nft;
use super::rules;
use super::table::{Backend, Table};
use super::truth::Line;
use super::{ProxiedNode, Synced};
use crate::cluster::embedded::kernel::{Fabric, KernelError};

/// The rules of a node.
#[derive(Debug)]
pub(super) struct Rules {
    nft: Nft,
    /// `None` before the first transaction, and after one that failed.
    in_effect: Option<Table>,
    /// What the last transaction took.
    took: Duration,
}

impl Rules {
    /// Nothing yet, on node `index` (from 0).
    pub(super) fn new(fabric: Arc<Fabric>, index: u8) -> Result<Self, KernelError> {
        Ok(Self { nft: Nft::new(fabric, index)?, in_effect: None, took: Duration::ZERO })
    }

    /// What programming the kernel takes, by the last time.
    pub(super) fn usual_duration(&self) -> Duration {
        self.took
    }

    /// Puts a table into effect, in one transaction.
    pub(super) async fn apply(&mut self, node: &ProxiedNode, table: Table) -> Synced {
        let address = node.shared.registry.node_address(node.index);
        let script = rules::script(self.in_effect.as_ref(), &table, address);
        if script.is_empty() {
            return Synced::Yes;
        }
        let (begun, swap_begin_ns) = (Instant::now(), node.shared.clock.now());
        let done = match self.in_effect {
            Some(_) => self.nft.run_lines(script).await,
            None => self.nft.run_script(script).await,
        };
        let t_ns = node.shared.clock.now();
        self.took = begun.elapsed();
        if let Err(error) = done {
            tracing::warn!(%error, node = node.name, "the rules for Services are not changed");
            self.in_effect = None;
            return Synced::No;
        }
        if self.in_effect.is_none() {
            self.nft.stay().await;
            if self.nft.stays() {
                // It is quicker than the process that this was.
                self.took = Duration::ZERO;
            }
        }
        let before = self.in_effect.replace(table).unwrap_or_default();
        let now = self.in_effect.iter().flatten();
        let nothing: Arc<[Backend]> = Arc::default();
        let gone = before.keys().filter(|port| !self.in_effect.iter().any(|table| table.contains_key(*port)));
        let gone = gone.map(|port| (port, &nothing));
        for (port, endpoints) in now.chain(gone) {
            if before.get(port).unwrap_or(&nothing) != endpoints {
                node.truth.write(&Line::Sync {
                    t_ns,
                    swap_begin_ns,
                    node: &node.name,
                    service: &port.service,
                    port: port.address.port(),
                    endpoints,
                });
            }
        }
        Synced::Yes
    }
}
