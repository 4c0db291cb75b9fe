//! Errors that end a run, or a job that consists of runs.

use std::error::Error;

use crate::cluster::ClusterError;
use crate::embedded::child::Died;
use crate::error::CoordinatorError;
use rolldrop_load::PlanError;
use rolldrop_load::load_process::ProcessError;
use rolldrop_load::remote::fleet::FleetError;
use rolldrop_load::remote::row_collector::CollectError;
use rolldrop_record::RunDirError;
use rolldrop_record::run_info::ServiceProxyMismatch;
use rolldrop_scenario::ScenarioError;
use rolldrop_sidecar::inject::ending::EndingError;

/// Error that ends a run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The user stopped the run before anything was measured.
    #[error("interrupted before anything was measured")]
    Interrupted,
    /// The run is refused; the text gives the reason and the remedy.
    #[error("{0}")]
    Refused(String),
    /// Something that the run needs has failed.
    #[error("{what}")]
    Failed {
        /// Description of what has failed.
        what: String,
        /// Cause of the failure.
        source: Box<dyn Error + Send + Sync>,
    },
    /// There is no cluster.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The cluster died during the run.
    #[error(transparent)]
    Died(#[from] Died),
    /// The coordinator failed.
    #[error(transparent)]
    Coordinator(CoordinatorError),
    /// The scenario cannot be used.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The pods' termination settings cannot be changed.
    #[error(transparent)]
    Ending(#[from] EndingError),
    /// The cluster shows something other than what the user stated.
    #[error(transparent)]
    Contradiction(#[from] ServiceProxyMismatch),
    /// The load cannot be sent.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The process that sends the load failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The pods that send the load failed.
    #[error(transparent)]
    Fleet(#[from] FleetError),
    /// The pods' rows could not be written.
    #[error(transparent)]
    Collect(#[from] CollectError),
    /// The run directory could not be written.
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// Something else has failed.
    #[error(transparent)]
    Other(Box<dyn Error + Send + Sync>),
}

impl RunError {
    /// Returns a function that adds a description of the failure to its cause.
    pub fn failed<E: Into<Box<dyn Error + Send + Sync>>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        let what = what.into();
        |cause| Self::Failed { what, source: cause.into() }
    }

    /// Wraps any other error.
    pub fn other(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Other(error.into())
    }

    /// Describes the error with its causes.
    pub fn in_words(&self) -> String {
        rolldrop_load::in_words(self)
    }
}

impl From<CoordinatorError> for RunError {
    fn from(error: CoordinatorError) -> Self {
        match error {
            CoordinatorError::Interrupted => Self::Interrupted,
            other => Self::Coordinator(other),
        }
    }
}
