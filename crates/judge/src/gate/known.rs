//! The figures of a run that can be compared with a baseline, by their keys in `expect`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::basis::Basis;

/// Figures by key, such as `latency.p99`. Causes and outcomes that no request had may be absent.
pub(super) type Keyed = BTreeMap<String, Known>;

/// A figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Known {
    /// Its upper bound: a number, a share from 0 to 1, seconds, or milliseconds of a latency.
    Value(f64),
    /// It has no upper bound, or nothing of the kind was measured. Files have only known figures.
    #[serde(skip)]
    Unbounded(Basis),
}

/// The figures of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Figures of all requests, by key.
    pub all: BTreeMap<String, Known>,
    /// The targets.
    pub targets: Vec<OfTarget>,
}

/// The figures of one target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OfTarget {
    /// Name of the target.
    pub name: String,
    /// Consumer that routes to it.
    pub consumer: String,
    /// Figures by key; empty if it is the only target, which has the figures of the whole run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, Known>,
}

impl Figures {
    /// Returns the figures that are known.
    pub(crate) fn known(&self) -> Self {
        let mut known = self.clone();
        let of_targets = known.targets.iter_mut().map(|target| &mut target.figures);
        for figures in of_targets.chain([&mut known.all]) {
            figures.retain(|_, figure| matches!(figure, Known::Value(_)));
        }
        known
    }

    /// Returns the figure of all requests, or of those to one target; `None` if there is no such target or key.
    pub(crate) fn get(&self, target: Option<&str>, key: &str) -> Option<Known> {
        let figures = match target {
            None => &self.all,
            Some(name) => match &self.targets.iter().find(|target| target.name == name)?.figures {
                figures if figures.is_empty() => &self.all,
                figures => figures,
            },
        };
        let none =
            || (key.starts_with("causes.") || key.starts_with("outcomes.")).then_some(Known::Value(0.0));
        figures.get(key).cloned().or_else(none)
    }
}
