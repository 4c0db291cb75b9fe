//! Means of naming the pods of new connections whose answers do not name them.

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::steps::Steps;
use crate::cli::run;
use rolldrop_drive::cluster::Cluster;
use rolldrop_scenario::{Loaded, Place};

/// The evidence that the user asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum EvidenceArg {
    /// Any that there is, once the first run has shown no names.
    Auto,
    Sidecar,
    Conntrack,
}

/// Means of naming pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Means {
    /// The recording proxy, beside each pod.
    Sidecar,
    /// The kernel of the node from which the load comes.
    Conntrack,
}

impl Means {
    /// Returns the means, if they are known before the first run.
    pub(super) fn of(asked: Option<EvidenceArg>) -> Option<Self> {
        match asked? {
            EvidenceArg::Auto => None,
            EvidenceArg::Sidecar => Some(Self::Sidecar),
            EvidenceArg::Conntrack => Some(Self::Conntrack),
        }
    }

    /// Formats it as an override of a scenario's value.
    pub(super) fn as_override(self) -> String {
        match self {
            Self::Sidecar => "sidecar.inject=true".to_owned(),
            Self::Conntrack => "load.evidence=conntrack".to_owned(),
        }
    }
}

impl Steps<'_> {
    /// Chooses the means of naming pods, says so, and continues only with consent.
    ///
    /// # Errors
    /// Fails without consent, or if the cluster cannot be reached.
    pub(super) async fn means(&self) -> anyhow::Result<Means> {
        let (means, what) = match self.why_no_conntrack().await? {
            None => (Means::Conntrack, "the kernel's connection tracking here names them".to_owned()),
            Some(why) => {
                let what = "the sidecar names them: each run adds it to the pods, in the rollouts that it makes anyway";
                (Means::Sidecar, format!("{what} (no connection tracking: {why})"))
            }
        };
        self.progress.note(&format!("{}: from now on {what}", super::NO_NAMES));
        if self.subject.elsewhere().is_some() && !self.args.measure.yes {
            run::confirm(self.progress, self.interrupts).await?;
        }
        Ok(means)
    }

    /// Returns the reason why connection tracking would not name the pods, or would need more than this machine gives;
    /// `None` if it would.
    async fn why_no_conntrack(&self) -> anyhow::Result<Option<String>> {
        let measure = &self.args.measure;
        let name = self.args.scenario_name();
        let Loaded { scenario, cluster } = self.args.loaded(vec![Means::Conntrack.as_override()])?;
        if scenario.targets.iter().any(|target| matches!(target.place, Place::Url(_))) {
            return Ok(Some("what answers at a URL balances by itself".to_owned()));
        }
        let cluster = Cluster::connect(measure.choice(name, cluster, self.out)).await;
        let cluster = cluster.context("failed to get a cluster")?;
        let caller = run::caller(&cluster, measure.namespace.clone(), self.interrupts)?;
        let refused = run::why_no_evidence(&scenario, &cluster, &caller, self.interrupts).await;
        cluster.shut_down().await;
        refused
    }
}
