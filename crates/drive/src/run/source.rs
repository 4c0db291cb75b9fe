//! Sources of a run: the scenario and the cluster that the user names.

use std::path::{Path, PathBuf};

use crate::cluster::ChosenCluster;
use crate::embedded::lab::{self, config::DataplaneChoice};
use rolldrop_scenario::{self as scenario, ClusterChoice, Loaded, ScenarioError, Workload};

use super::consent::Naming;

/// The scenario and the cluster that the user names. Each run of a tuning reads them anew.
#[derive(Clone, Debug)]
pub struct RunSource {
    /// File, or name of a built-in scenario; `None` for one that has only the target.
    pub name: Option<String>,
    /// Text of a scenario that has only the target, if one is named.
    pub target: Option<String>,
    /// Replacements for values in the scenario.
    pub overrides: Vec<String>,
    /// The only workload to change, if one is named.
    pub workload: Option<Workload>,
    /// The kubeconfig, if one is named.
    pub kubeconfig: Option<PathBuf>,
    /// The context in a kubeconfig, if one is named.
    pub context: Option<String>,
    /// True to use the embedded cluster, whatever the scenario names.
    pub embedded: bool,
    /// True to use the cluster that this pod runs in.
    pub in_cluster: bool,
    /// Dataplane of the embedded cluster, if one is named.
    pub dataplane: Option<DataplaneChoice>,
}

impl RunSource {
    /// Loads the scenario with these additional overrides.
    ///
    /// # Errors
    /// Fails if it cannot be used.
    pub fn load(&self, further: Vec<String>) -> Result<Loaded<lab::ClusterConfig>, ScenarioError> {
        let overrides = [self.overrides.clone(), further].concat();
        let mut loaded = match (&self.name, &self.target) {
            (Some(name), _) => scenario::load(name, &overrides)?,
            (None, None) => scenario::load(scenario::DEFAULT, &overrides)?,
            (None, Some(target)) => scenario::parse(target, "--target", Path::new("."), &overrides)?,
        };
        if let Some(workload) = &self.workload {
            loaded.scenario.sidecar_workloads = vec![workload.clone()];
        }
        Ok(loaded)
    }

    /// Returns true if the user named only a target, which is then in an existing cluster.
    fn is_target_alone(&self) -> bool {
        self.name.is_none() && self.target.is_some()
    }

    /// Returns the origin of the choice of cluster. `asked` is the scenario's own choice.
    pub fn naming(&self, asked: Option<&ClusterChoice<lab::ClusterConfig>>) -> Naming {
        let on_command_line =
            self.context.is_some() || self.kubeconfig.is_some() || self.embedded || self.in_cluster;
        let is_current = self.is_target_alone() && asked.is_none();
        if is_current && !on_command_line { Naming::Current } else { Naming::Named }
    }

    /// Returns the choice of cluster; an embedded cluster keeps its logs in `out`.
    pub fn choice(&self, asked: Option<ClusterChoice<lab::ClusterConfig>>, out: &Path) -> ChosenCluster {
        if self.context.is_some() || self.kubeconfig.is_some() {
            return ChosenCluster::Kubeconfig {
                path: self.kubeconfig.clone(),
                context: self.context.clone(),
            };
        }
        if self.in_cluster {
            return ChosenCluster::InCluster;
        }
        let mut config = match asked {
            Some(ClusterChoice::Context(context)) if !self.embedded => {
                return ChosenCluster::Kubeconfig { path: None, context: Some(context) };
            }
            Some(ClusterChoice::Embedded(config)) => config,
            None if self.is_target_alone() && !self.embedded => {
                return ChosenCluster::Kubeconfig { path: None, context: None };
            }
            _ => lab::ClusterConfig::default(),
        };
        config.dataplane = self.dataplane.unwrap_or(config.dataplane);
        ChosenCluster::Embedded { config: Box::new(config), log_dir: out.join("cluster") }
    }
}
