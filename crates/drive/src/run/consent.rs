//! Consent to a run's changes to a cluster: the rules for going ahead without asking, and the prompt.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio_util::sync::CancellationToken;

use super::Job;
use super::error::RunError;
use crate::Operator;
use crate::cluster::{Cluster, Origin};
use crate::plan::RunPlan;
use rolldrop_scenario::Scenario;

/// Namespaces of the cluster's own components.
const SYSTEM: [&str; 3] = ["kube-system", "kube-public", "kube-node-lease"];

/// Interval between checks for an interruption while waiting for the user's answer.
const LOOK_AGAIN_MS: u8 = 100;

/// The user's consent to a run's changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    /// Still to be asked for.
    Asked(Naming),
    /// Already given, for this run and others.
    Given,
}

/// Origin of the choice of cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// The command line or the scenario names the cluster, or the cluster belongs to the run.
    Named,
    /// The cluster comes from the kubeconfig's current context.
    Current,
}

/// Refuses system namespaces.
pub(super) fn check_namespaces(namespace: &str, scenario: &Scenario) -> Result<(), RunError> {
    let of_manifests =
        scenario.manifests.iter().filter_map(|object| object["metadata"]["namespace"].as_str());
    match of_manifests.chain([namespace]).find(|namespace| SYSTEM.contains(namespace)) {
        Some(namespace) => Err(RunError::Refused(format!(
            "namespace {namespace} belongs to the cluster itself, so rolldrop does not disrupt it: use another \
             namespace (-n)"
        ))),
        None => Ok(()),
    }
}

/// Shows what the run will do, and continues only with consent.
pub(super) async fn ask(
    plan: &RunPlan,
    cluster: &Cluster,
    namespace: &str,
    job: &Job<'_>,
    operator: &Operator,
) -> Result<(), RunError> {
    let viewer = &operator.viewer;
    plan.own.iter().for_each(|own| viewer.say(&format!("this run {own}")));
    if plan.effects.is_empty() {
        return Ok(());
    }
    let Some(origin) = cluster.origin() else {
        plan.effects.iter().for_each(|effect| viewer.say(&format!("this run {effect}")));
        return Ok(());
    };
    let Consent::Asked(naming) = job.consent else { return Ok(()) };
    if naming == Naming::Current {
        let (effects, flag) = (plan.effects.join("; "), flag_of(Some(&origin)));
        return Err(RunError::Refused(format!(
            "the run would change a cluster that you did not name ({effects}): add {flag} if it is the right one"
        )));
    }
    viewer.note(&format!("on {}, in namespace {namespace}:", cluster.title().unwrap_or_default()));
    plan.effects.iter().for_each(|effect| viewer.note(&format!("this run {effect}")));
    if job.options.yes {
        return Ok(());
    }
    confirm(operator).await
}

/// Returns the option that names a cluster.
pub fn flag_of(origin: Option<&Origin>) -> String {
    match origin.and_then(|origin| origin.context.as_ref()) {
        Some(context) => format!("--context {context}"),
        None => "--in-cluster".to_owned(),
    }
}

/// Asks the user whether to continue.
///
/// # Errors
/// Fails if the answer is no, or if there is no terminal.
pub async fn confirm(operator: &Operator) -> Result<(), RunError> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        let why = "confirmation needs a terminal: add --yes, or check the plan first with \
                   --dry-run";
        return Err(RunError::Refused(why.to_owned()));
    }
    operator.viewer.ask("continue? [y/N]").map_err(RunError::failed("failed to ask"))?;
    let answer = line(operator.interrupts.stop.clone()).await;
    let answer = answer.map_err(RunError::failed("failed to read the answer"))?;
    match answer.ok_or(RunError::Interrupted)?.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(RunError::Refused("not confirmed: nothing was changed".to_owned())),
    }
}

/// Reads a line from the terminal. Returns `None` if the run is stopped first.
async fn line(stop: CancellationToken) -> io::Result<Option<String>> {
    let reading = tokio::task::spawn_blocking(move || {
        let stdin = io::stdin();
        // A terminal becomes readable once a line is complete.
        while !stop.is_cancelled() {
            let mut waiting = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
            match poll(&mut waiting, PollTimeout::from(LOOK_AGAIN_MS)) {
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => {
                    let mut line = String::new();
                    return stdin.read_line(&mut line).map(|_| Some(line));
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(None)
    });
    reading.await?
}
