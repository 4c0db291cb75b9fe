//! Figures of a run that can be compared with a baseline, by their keys in `expect`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::judgements::basis::Basis;

/// Figures by key, such as `latency.p99`. Causes and outcomes without any request may be absent.
pub(super) type Keyed = BTreeMap<String, KnownFigure>;

/// A figure, as far as it is known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum KnownFigure {
    /// Upper bound of the figure: a count, a share from 0 to 1, seconds or, for latencies, milliseconds.
    Value(f64),
    /// The figure has no upper bound, or nothing of the kind was measured. Files contain only known figures.
    #[serde(skip)]
    Unbounded(Basis),
}

/// Comparable figures of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ComparableFigures {
    /// Figures of all requests, by key.
    pub all: BTreeMap<String, KnownFigure>,
    /// Figures of each target.
    pub targets: Vec<FiguresOfTarget>,
}

/// Comparable figures of one target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FiguresOfTarget {
    /// Name of the target.
    pub name: String,
    /// Consumer that routes to the target.
    pub consumer: String,
    /// Figures by key. Empty for a run's only target, whose figures are those of the whole run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, KnownFigure>,
}

impl ComparableFigures {
    /// Returns a copy without the unknown figures.
    pub(crate) fn known(&self) -> Self {
        let mut known = self.clone();
        let of_targets = known.targets.iter_mut().map(|target| &mut target.figures);
        for figures in of_targets.chain([&mut known.all]) {
            figures.retain(|_, figure| matches!(figure, KnownFigure::Value(_)));
        }
        known
    }

    /// Returns a figure over all requests, or over the requests to one target; `None` if there is no such target or
    /// key.
    pub(crate) fn get(&self, target: Option<&str>, key: &str) -> Option<KnownFigure> {
        let figures = match target {
            None => &self.all,
            Some(name) => match &self.targets.iter().find(|target| target.name == name)?.figures {
                figures if figures.is_empty() => &self.all,
                figures => figures,
            },
        };
        let none = || {
            (key.starts_with("causes.") || key.starts_with("outcomes.")).then_some(KnownFigure::Value(0.0))
        };
        figures.get(key).cloned().or_else(none)
    }
}
