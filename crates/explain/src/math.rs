//! Statistics, independent of runs.

pub mod counts;
pub mod sets;
pub mod stats;
pub mod survival;
pub(crate) mod values;

use std::collections::BTreeMap;

/// Adds other counts to these.
pub fn add_counts<K: Ord>(own: &mut BTreeMap<K, u64>, others: BTreeMap<K, u64>) {
    for (key, count) in others {
        *own.entry(key).or_default() += count;
    }
}
