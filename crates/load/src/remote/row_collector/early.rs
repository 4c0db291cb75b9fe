//! Fetches rows of a running load from the workers' closed parts.
//!
//! A worker closes a part every few seconds. A reader that judges a run in progress orders the closed parts to be
//! fetched, and learns whether they include everything recorded up to a given time.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::join_all;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::oneshot;

use super::CollectorState;

/// Order to fetch the closed parts; dropped once it has been carried out.
pub(super) type FetchOrder = oneshot::Sender<()>;

/// Fetches rows while the load is running. Clones share the same state.
#[derive(Clone, Debug)]
pub struct EarlyRows {
    context: Arc<CollectorState>,
    /// Channel for the orders to each worker, by its name.
    workers: Vec<(String, Sender<FetchOrder>)>,
}

/// Number of requests recorded by each source at a given time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowMark(BTreeMap<String, u64>);

/// Result of an early fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// Everything up to the mark has arrived.
    All,
    /// Some rows up to the mark have not arrived yet.
    NotYet,
    /// Rows of this worker will never arrive.
    Lost(String),
}

impl EarlyRows {
    pub(super) fn new(context: Arc<CollectorState>) -> Self {
        Self { context, workers: Vec::new() }
    }

    /// Adds a worker, and returns the channel for its orders.
    pub(super) fn add(&mut self, name: &str) -> Receiver<FetchOrder> {
        let (orders, taken) = channel(1);
        self.workers.push((name.to_owned(), orders));
        taken
    }

    /// Returns the number of rows that each source has recorded so far, according to the workers' reports, which are
    /// about two seconds old.
    pub fn mark(&self) -> RowMark {
        let known = self.context.known();
        RowMark(known.reached.iter().map(|(source, (reached, _))| (source.clone(), reached.rows)).collect())
    }

    /// Fetches the currently closed parts from all workers, and returns whether everything up to the mark has arrived.
    pub async fn fetch(&self, RowMark(wanted): &RowMark) -> Arrived {
        join_all(self.workers.iter().map(|(_, orders)| async {
            let (order, carried_out) = oneshot::channel();
            // A worker that has ended accepts no orders; the order is dropped either way.
            let _ = orders.send(order).await;
            let _ = carried_out.await;
        }))
        .await;
        let known = self.context.known();
        if let Some((lost, _)) = self.workers.iter().find(|(name, _)| known.lost.contains(name)) {
            return Arrived::Lost(lost.clone());
        }
        match wanted.iter().all(|(source, rows)| known.rows_here(source) >= *rows) {
            true => Arrived::All,
            false => Arrived::NotYet,
        }
    }
}
