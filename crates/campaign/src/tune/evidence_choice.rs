//! Means of naming the pods that new connections reach, if responses do not name them.

use serde::{Deserialize, Serialize};

use super::NO_NAMES;
use super::step_runner::StepRunner;
use rolldrop_drive::run::{self, RunError};
use rolldrop_scenario::Place;

/// Evidence requested by the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvidenceChoice {
    /// Any available means, if responses in the first run do not name the pods.
    Any,
    /// One particular means.
    Means(Means),
}

/// Way to learn which pod a connection reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Means {
    /// Recording proxy, as a sidecar in each pod.
    Sidecar,
    /// Kernel connection tracking on the node that sends the load.
    Conntrack,
}

impl Means {
    /// Returns the means if it is known before the first run.
    pub(super) const fn of(asked: Option<EvidenceChoice>) -> Option<Self> {
        match asked {
            Some(EvidenceChoice::Means(means)) => Some(means),
            Some(EvidenceChoice::Any) | None => None,
        }
    }

    /// Formats the means as an override of a scenario value.
    pub(super) fn as_override(self) -> String {
        match self {
            Self::Sidecar => "sidecar.inject=true".to_owned(),
            Self::Conntrack => "load.evidence=conntrack".to_owned(),
        }
    }
}

impl StepRunner<'_> {
    /// Chooses the means of naming pods, announces it, and continues only with consent.
    ///
    /// # Errors
    /// Fails without consent, or if the cluster cannot be reached.
    pub(super) async fn means(&self) -> Result<Means, RunError> {
        let (means, what) = match self.why_no_conntrack().await? {
            None => {
                (Means::Conntrack, "the kernel's connection tracking on this machine shows it".to_owned())
            }
            Some(why) => {
                let what =
                    "a sidecar shows it, which each run adds to the pods in rollouts that it needs anyway";
                (Means::Sidecar, format!("{what} (no connection tracking: {why})"))
            }
        };
        self.operator.viewer.note(&format!("{NO_NAMES}. From now on, {what}"));
        if self.subject.elsewhere.is_some() && !self.request.options.yes {
            run::confirm(self.operator).await?;
        }
        Ok(means)
    }

    /// Returns the reason why connection tracking cannot name the pods, or needs more than this machine allows; `None`
    /// if it works.
    async fn why_no_conntrack(&self) -> Result<Option<String>, RunError> {
        let loaded = self.request.source.load(vec![Means::Conntrack.as_override()])?;
        if loaded.scenario.targets.iter().any(|target| matches!(target.place, Place::Url(_))) {
            return Ok(Some("a proxy behind a URL may balance requests itself".to_owned()));
        }
        let interrupts = &self.operator.interrupts;
        let (scenario, cluster, caller) = self.request.connect(loaded, self.out, interrupts).await?;
        let refused = run::why_no_evidence(&scenario, &cluster, &caller, interrupts).await;
        cluster.shut_down().await;
        refused
    }
}
