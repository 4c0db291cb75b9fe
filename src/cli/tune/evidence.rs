//! What names the pods of new connections where their answers do not.

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::steps::Steps;
use crate::cli::run;
use crate::cluster::Cluster;
use crate::scenario::{Loaded, Place};

/// What the user asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum EvidenceArg {
    /// What there is, once the first run has shown no names.
    Auto,
    Sidecar,
    Conntrack,
}

/// What names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Means {
    /// The recording proxy, beside each pod.
    Sidecar,
    /// The kernel of the node from which the load comes.
    Conntrack,
}

impl Means {
    /// What is known before the first run.
    pub(super) fn of(asked: Option<EvidenceArg>) -> Option<Self> {
        match asked? {
            EvidenceArg::Auto => None,
            EvidenceArg::Sidecar => Some(Self::Sidecar),
            EvidenceArg::Conntrack => Some(Self::Conntrack),
        }
    }

    /// As a value of a scenario.
    pub(super) fn as_override(self) -> String {
        match self {
            Self::Sidecar => "sidecar.inject=true".to_owned(),
            Self::Conntrack => "load.evidence=conntrack".to_owned(),
        }
    }
}

impl Steps<'_> {
    /// Chooses what names the pods, says so, and goes on only with consent.
    ///
    /// # Errors
    /// Without consent, or when the cluster cannot be reached.
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

    /// Why connection tracking would not name the pods, or not without more than this machine gives; `None` if it does.
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
